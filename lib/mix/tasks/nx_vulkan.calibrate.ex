defmodule Mix.Tasks.NxVulkan.Calibrate do
  @shortdoc "Measures the device, so that kernels are chosen by what it can do"

  @moduledoc """
  Measures the device, so that kernels are chosen by what it can do.

      mix nx_vulkan.calibrate

  #{Nx.Vulkan.Calibration.usage()}
  `Nx.Vulkan.Calibration` says what the numbers are for, and does the same in a release without Mix.
  """

  use Mix.Task

  alias Nx.Vulkan.Calibration

  @impl true
  def run(args) do
    Mix.Task.run("app.config")
    status = Calibration.run(args, print: &Mix.shell().info/1)
    if status != 0, do: exit({:shutdown, status})
  end
end
