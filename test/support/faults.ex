defmodule Nx.Vulkan.Faults do
  @moduledoc """
  Devices that are lost: nodes whose Vulkan calls go through the layer of native/nx_vulkan_faults, and what makes one of
  these calls fail.

  Cargo builds the layer with the tests of Rust; `NX_VULKAN_TEST_LAYER` may name its file. What calls it from here is
  compiled by a C compiler.
  """

  alias Nx.Vulkan.RemoteNode

  @source Path.expand("faults/faults.c", __DIR__)
  @root Path.expand("../..", __DIR__)
  @device_lost -4

  @doc "Why there are no such nodes, or nil."
  def missing do
    cond do
      layer() == nil -> "the layer nx_vulkan_faults is not built: cargo test --package nx_vulkan_faults does it"
      System.find_executable("cc") == nil -> "there is no C compiler"
      not File.exists?(Path.join(headers(), "erl_nif.h")) -> "there is no erl_nif.h in #{headers()}"
      true -> nil
    end
  end

  defp layer do
    target = System.get_env("CARGO_TARGET_DIR", Path.join(@root, "target"))
    built = for folder <- ["debug/deps", "debug"], do: Path.join([target, folder, "libnx_vulkan_faults.so"])
    [System.get_env("NX_VULKAN_TEST_LAYER", "") | built] |> Enum.find(&File.regular?/1)
  end

  defp headers, do: Path.join([:code.root_dir(), "usr", "include"])

  @doc "Starts a node on which calls of Vulkan can fail. It stops with the caller. Files go to a folder of the test."
  def start_link(folder) do
    layer = Path.expand(layer())

    # The loader wants the layer last.
    manifest = """
    {"file_format_version": "1.2.0", "layer": {"name": "VK_LAYER_NX_VULKAN_faults", "type": "GLOBAL",
    "library_path": "#{layer}", "api_version": "1.3.281", "implementation_version": "1",
    "description": "calls that fail"}}
    """

    File.write!(Path.join(folder, "faults.json"), manifest)
    library = Path.join(folder, "faults")
    {_, 0} = System.cmd("cc", ["-shared", "-fPIC", "-I", headers(), "-o", library <> ".so", @source, "-ldl"])

    {:ok, peer, node} =
      RemoteNode.start_link(%{
        "VK_ADD_LAYER_PATH" => folder,
        "VK_INSTANCE_LAYERS" => "VK_LAYER_NX_VULKAN_faults",
        # Mesa's own layer reads what a call that failed has not written (docs/design/driver-faults.md).
        "NODEVICE_SELECT" => "1"
      })

    :ok = :erpc.call(node, __MODULE__, :load, [library])
    {:ok, peer, node, layer}
  end

  @doc false
  def load(library), do: :erlang.load_nif(to_charlist(library), 0)

  @doc "On the node of the caller: the device that does the `call`-th submission from now on is lost."
  def lose(layer, call \\ 1), do: :ok = arm(to_charlist(layer), ~c"vkQueueSubmit", call, @device_lost)

  @doc false
  def arm(_layer, _function, _call, _result), do: :erlang.nif_error(:not_loaded)
end
