defmodule Mix.Tasks.NxVulkan.Cache do
  @shortdoc "Says how large the cache on disk is, and clears it"

  @moduledoc """
  Says how large the cache on disk is, and clears it.

      mix nx_vulkan.cache

  #{Nx.Vulkan.Cache.usage()}
  `Nx.Vulkan.Cache` says what is in it, and does the same in a release without Mix.
  """

  use Mix.Task

  alias Nx.Vulkan.Cache

  @impl true
  def run(args) do
    Mix.Task.run("app.config")
    status = Cache.run(args, print: &Mix.shell().info/1)
    if status != 0, do: exit({:shutdown, status})
  end
end
