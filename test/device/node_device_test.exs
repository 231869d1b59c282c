defmodule Nx.Vulkan.NodeDeviceTest do
  # A VM of its own, whose cache folder is empty.
  use ExUnit.Case, async: true

  @moduletag :device
  @moduletag :tmp_dir

  test "a node that ends saves the pipelines that were compiled", %{tmp_dir: folder} do
    code = """
    {:ok, _} = Application.ensure_all_started(:nx_vulkan)
    {:ok, node} = Nx.Vulkan.Node.start_link()
    one = Nx.tensor([1.0], backend: Nx.Vulkan.VulkanoBackend)
    [2.0] = Nx.Vulkan.Node.with_node(fn -> one |> Nx.add(1) |> Nx.to_flat_list() end)
    files = fn -> Path.wildcard(Path.join(#{inspect(folder)}, "pipelines/*")) end
    [] = files.()
    :ok = GenServer.stop(node)
    [_] = files.()
    {:error, :node_dead} = Nx.Vulkan.Node.with_node(fn -> :value end)
    [3.0] = one |> Nx.add(2) |> Nx.to_flat_list()
    """

    paths = Path.wildcard("#{Mix.Project.build_path()}/lib/*/ebin")
    arguments = Enum.flat_map(paths, &["-pa", &1]) ++ ["-e", code]
    {output, status} = System.cmd("elixir", arguments, env: [{"NX_VULKAN_CACHE_DIR", folder}], stderr_to_stdout: true)
    assert status == 0, output
  end
end
