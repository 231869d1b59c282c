defmodule Nx.Vulkan.RemoteTest do
  # Tensors and compiled functions of another node.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.{Compiler, NativeV, RemoteNode}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @moduletag :device

  setup_all do
    RemoteNode.start_distribution()
    :ok
  end

  setup do
    Nx.default_backend(B)
    {:ok, peer, node} = RemoteNode.start_link()
    %{peer: peer, node: node}
  end

  defp there(node, shape, opts \\ []), do: :erpc.call(node, RemoteNode, :hold, [shape, opts])

  test "are read, inspected, copied and transferred", %{node: node} do
    x = there(node, {2, 3}, type: :f32)
    assert node(x.data.ref) == node
    assert Nx.to_list(x) == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert Nx.to_binary(x, limit: 2) == <<0.0::float-32-native, 1.0::float-32-native>>
    assert inspect(x) =~ "[0.0, 1.0, 2.0],"
    copy = Nx.backend_copy(x, B)
    assert {node(copy.data.ref), Nx.to_list(copy)} == {node(), Nx.to_list(x)}
    assert %Nx.BinaryBackend{} = Nx.backend_copy(x).data
    moved = Nx.backend_transfer(x, B)
    assert {node(moved.data.ref), Nx.to_list(moved)} == {node(), Nx.to_list(copy)}
    assert inspect(x) =~ "Deallocated"
    assert Nx.backend_deallocate(x) == :already_deallocated
    assert_raise Nx.Vulkan.Error, ~r/released/, fn -> Nx.to_binary(x) end
  end

  test "have a place to be seen", %{node: node} do
    x = there(node, {2})
    Application.put_env(:nx_vulkan, :add_backend_on_inspect, true)
    assert inspect(x) =~ "Nx.Vulkan.VulkanoBackend<on #{node}, "
  after
    Application.put_env(:nx_vulkan, :add_backend_on_inspect, false)
  end

  test "of every type and of many parts arrive whole", %{node: node} do
    for type <- [:u2, :s4, :u8, :bf16, :f64, :c64] do
      x = there(node, {3, 5}, type: type)
      assert Nx.to_binary(x) == Nx.to_binary(Nx.iota({3, 5}, type: type))
    end

    # Three parts, the last of which is shorter, of bytes and of elements that are less than one.
    for {type, size} <- [f32: 9_000_001, u4: 70_000_001] do
      x = there(node, {size}, type: type)
      same? = Nx.to_binary(x) == Nx.to_binary(Nx.iota({size}, type: type))
      assert same?
    end
  end

  test "are operands and arguments as those of this node", %{node: node} do
    x = there(node, {3}, type: :f32)
    assert Nx.to_list(Nx.add(x, 1)) == [1.0, 2.0, 3.0]
    assert Nx.to_list(Nx.multiply(Nx.tensor([1.0, 2.0, 3.0]), x)) == [0.0, 2.0, 6.0]
    {q, _r} = Nx.LinAlg.qr(there(node, {3, 3}, type: :f32))
    assert node(q.data.ref) == node()
    assert Nx.to_number(Nx.Defn.jit(&Nx.sum(Nx.exp(&1)), compiler: Compiler).(x)) > 11.0
    deferred = Nx.Vulkan.eager(:deferred, fn -> x |> Nx.add(x) |> Nx.sum() |> Nx.to_number() end)
    assert deferred == 6.0
    batch = Nx.Batch.stack([x, x])
    serving = Nx.Serving.new(&Nx.Defn.jit(fn t -> Nx.multiply(t, 2) end, &1), compiler: Compiler)
    assert Nx.to_list(Nx.Serving.run(serving, batch)) == [[0.0, 2.0, 4.0], [0.0, 2.0, 4.0]]
  end

  test "run functions that were compiled here, and the other way round", %{node: node} do
    fun = :erpc.call(node, RemoteNode, :compiled, [Nx.template({3}, :f32)])
    assert Nx.to_number(fun.(Nx.tensor([1.0, 2.0, 3.0]))) == 14.0
    assert Nx.to_number(fun.(there(node, {3}, type: :f32))) == 5.0
    here = RemoteNode.compiled(Nx.template({3}, :f32))
    assert :erpc.call(node, RemoteNode, :number, [here, [1.0, 2.0, 3.0]]) == 14.0
  end

  test "of a node that is gone raise", %{node: node, peer: peer} do
    x = there(node, {3}, type: :f32)
    :peer.stop(peer)
    message = ~r/the tensor's memory is on #{node}, which does not answer: :noconnection/

    for use <- [
          &Nx.to_binary/1,
          &Nx.add(&1, 1),
          &Nx.backend_copy(&1, B),
          &Nx.Defn.jit(fn t -> Nx.sin(t) end, compiler: Compiler).(&1)
        ] do
      error = assert_raise Nx.Vulkan.Error, message, fn -> use.(x) end
      assert %{kind: :node_down, details: %{node: ^node}} = error
    end

    assert_raise Nx.Vulkan.Error, message, fn -> Nx.backend_deallocate(x) end
    assert inspect(x) =~ "On a node that does not answer"
  end

  test "give their memory back when they are deallocated here", %{node: node} do
    in_use = fn -> :erpc.call(node, NativeV, :device_stats, []).in_use_bytes end
    x = there(node, {1_000_000}, type: :f32)
    before = in_use.()
    assert Nx.backend_deallocate(x) == :ok
    assert before - in_use.() >= 4_000_000
  end
end
