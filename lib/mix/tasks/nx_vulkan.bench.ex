defmodule Mix.Tasks.NxVulkan.Bench do
  @shortdoc "Measures what the device does with Nx, beside what it can do"

  @moduledoc """
  Measures what the device does with Nx, beside what it can do: copies, sums, products, sorts, transfers and others.

      mix nx_vulkan.bench

  #{Nx.Vulkan.Bench.usage()}
  The exit status is 0 where all results are right, 1 where there is no device, a result is wrong or the file can't be
  written, and 2 for other arguments. `Nx.Vulkan.Bench` shows what it prints and says how to read it, and does the same
  in a release without Mix.
  """

  use Mix.Task

  alias Nx.Vulkan.Bench

  @impl true
  def run(args) do
    Mix.Task.run("app.config")
    status = Bench.run(args, print: &Mix.shell().info/1)
    if status != 0, do: exit({:shutdown, status})
  end
end
