defmodule Mix.Tasks.NxVulkan.Doctor do
  @shortdoc "Says what there is of Vulkan, which device is used, and what to do about problems"

  @moduledoc """
  Says what there is of Vulkan on this machine: the loader, drivers, devices and which one is used, whether it computes
  right, and what to do about each problem.

      mix nx_vulkan.doctor

  #{Nx.Vulkan.Doctor.usage()}
  The exit status is 0 where all is well, 1 where there is no device to use or it computes wrong, and 2 for other
  arguments. `Nx.Vulkan.Doctor` shows what it prints, and does the same in a release without Mix.
  """

  use Mix.Task

  @impl true
  def run(args) do
    # Not started: what can't be started is told as well.
    Mix.Task.run("app.config")
    status = Nx.Vulkan.Doctor.run(args, print: &Mix.shell().info/1)
    if status != 0, do: exit({:shutdown, status})
  end
end
