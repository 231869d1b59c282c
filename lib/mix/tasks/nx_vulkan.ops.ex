defmodule Mix.Tasks.NxVulkan.Ops do
  @shortdoc "Writes the table of ops and types"

  @moduledoc """
  Runs every op on every type and writes `guides/ops.md`: what is native, and the device features that it depends on.

      mix nx_vulkan.ops

  The device must have all features that the engine knows, as lavapipe does.
  """

  use Mix.Task

  # In test/support, which only the test environment compiles.
  @compile {:no_warn_undefined, Nx.Vulkan.OpsTable}

  @impl true
  def run([]) do
    Mix.Task.run("app.start")
    File.write!(Nx.Vulkan.OpsTable.path(), Nx.Vulkan.OpsTable.render())
    Mix.shell().info(Nx.Vulkan.OpsTable.path())
  end
end
