defmodule Nx.Vulkan.ServingTest do
  use ExUnit.Case, async: false

  import Nx.Defn
  import Nx.Vulkan.Versions, only: [hooked: 2]

  alias Nx.Vulkan.{RemoteNode, ServingNode, VulkanoBackend}

  @moduletag :device

  setup do
    Nx.default_backend(VulkanoBackend)
    :ok
  end

  defn(model(x), do: Nx.dot(x, Nx.tensor([[1.0, 0.0], [1.0, 1.0]])) |> Nx.add(1))

  defn told(x) do
    y = hooked(x * 2, :doubled)
    Nx.sum(y, axes: [1])
  end

  defp serving(fun), do: Nx.Serving.new(&Nx.Defn.jit(fun, &1), compiler: Nx.Vulkan)
  defp batch(rows), do: Nx.Batch.stack(Enum.map(rows, &Nx.tensor/1))

  test "runs in the caller" do
    assert Nx.to_list(Nx.Serving.run(serving(&model/1), batch([[1.0, 2.0], [3.0, 4.0]]))) == [[4.0, 3.0], [8.0, 5.0]]
  end

  test "many clients, batches that are padded to one size" do
    start_supervised!(
      {Nx.Serving, name: __MODULE__.Batched, serving: serving(&model/1), batch_size: 8, batch_timeout: 20}
    )

    1..24
    |> Enum.map(fn i ->
      Task.async(fn ->
        rows = for j <- 1..rem(i, 3)//1, do: [i * 1.0, j * 1.0]
        rows = [[i * 1.0, 0.0] | rows]
        {rows, Nx.Serving.batched_run(__MODULE__.Batched, batch(rows))}
      end)
    end)
    |> Task.await_many(60_000)
    |> Enum.each(fn {rows, result} ->
      assert %VulkanoBackend{} = result.data
      assert Nx.to_list(result) == for([a, b] <- rows, do: [a + b + 1, b + 1])
    end)
  end

  test "partitions share the device" do
    options = [compiler: Nx.Vulkan, max_concurrency: 2]
    serving = Nx.Serving.new(&Nx.Defn.jit(fn x -> model(x) end, &1), options)

    start_supervised!(
      {Nx.Serving, name: __MODULE__.Parts, serving: serving, batch_size: 2, batch_timeout: 5, partitions: true}
    )

    results =
      1..10
      |> Enum.map(fn i -> Task.async(fn -> Nx.Serving.batched_run(__MODULE__.Parts, batch([[i, i]])) end) end)
      |> Task.await_many(60_000)

    assert Enum.map(results, &Nx.to_list/1) == for(i <- 1..10, do: [[2.0 * i + 1, i + 1.0]])
  end

  test "streams batches and what hooks see" do
    serving =
      Nx.Serving.new(&Nx.Defn.jit(fn x -> told(x) end, &1), compiler: Nx.Vulkan)
      |> Nx.Serving.streaming(hooks: [:doubled])

    start_supervised!({Nx.Serving, name: __MODULE__.Streaming, serving: serving, batch_size: 2, batch_timeout: 20})
    events = Enum.to_list(Nx.Serving.batched_run(__MODULE__.Streaming, batch([[1, 2], [3, 4]])))
    assert [[[2, 4], [6, 8]]] = for({:doubled, tensor} <- events, do: Nx.to_list(tensor))
    assert [[6, 14]] = for({:batch, tensor, _} <- events, do: Nx.to_list(tensor))
  end

  describe "two nodes" do
    setup do
      RemoteNode.start_distribution()
    end

    test "a request goes to the node that has the serving" do
      {_peer, node} = start_node(__MODULE__.Remote, :serving)

      results =
        1..4
        |> Enum.map(fn i ->
          Task.async(fn -> Nx.Serving.batched_run({:distributed, __MODULE__.Remote}, rows(i)) end)
        end)
        |> Task.await_many(60_000)

      assert [{^node, first} | _] = results
      assert %Nx.BinaryBackend{} = first.data
      assert for({_, result} <- results, do: Nx.to_list(result)) == for(i <- 1..4, do: [[2 * i, 2 * i + 2]])
    end

    test "streams batches in and out, each as it is done" do
      {_peer, node} = start_node(__MODULE__.RemoteStream, :streaming)
      batches = for i <- 0..3, do: for(j <- 0..3, do: [10 * i + j])
      # The last one is padded.
      batches = batches ++ [[[40]]]

      # The node makes the next batch when it is told that this one's result is here: a stream that is gathered first
      # never ends.
      results =
        {:distributed, __MODULE__.RemoteStream}
        |> Nx.Serving.batched_run({self(), batches})
        |> Stream.with_index(1)
        |> Enum.map(fn {{from, {:batch, tensor, _}}, next} ->
          if next < length(batches), do: send(wanting(next), {:go, next})
          assert from == node
          assert %Nx.BinaryBackend{} = tensor.data
          Nx.to_list(tensor)
        end)

      assert results == for(rows <- batches, do: for([x] <- rows, do: [2 * x]))
    end

    test "each client's stream has what hooks see of its rows" do
      {_peer, node} = start_node(__MODULE__.RemoteHooks, :hooked_streaming)

      1..6
      |> Enum.map(fn i ->
        Task.async(fn -> Enum.to_list(Nx.Serving.batched_run({:distributed, __MODULE__.RemoteHooks}, rows(i))) end)
      end)
      |> Task.await_many(60_000)
      |> Enum.with_index(1)
      |> Enum.each(fn {events, i} ->
        assert [{^node, {:doubled, doubled}}, {^node, {:batch, sums, _}}] = events
        assert Nx.to_list(doubled) == [[2 * i, 2 * i + 2]]
        assert Nx.to_list(sums) == [4 * i + 2]
      end)
    end

    test "a stream from a node that stops exits" do
      {peer, node} = start_node(__MODULE__.RemoteStop, :streaming)
      events = Nx.Serving.batched_run({:distributed, __MODULE__.RemoteStop}, {self(), [[[1]], [[2]]]})

      exit =
        catch_exit(
          Enum.each(events, fn {^node, {:batch, tensor, _}} ->
            assert Nx.to_list(tensor) == [[2]]
            # The second batch, which has no leave, can't be done.
            wanting(1)
            :ok = :peer.stop(peer)
          end)
        )

      assert {_reason, {Nx.Serving, :streaming, []}} = exit
    end
  end

  defp start_node(name, serving) do
    {:ok, peer, node} = ServingNode.start_link(name, serving)
    RemoteNode.wait_for(fn -> :pg.get_members(Nx.Serving.PG, name) != [] end)
    {peer, node}
  end

  # What goes to another node must not be in this one's memory.
  defp rows(i), do: Nx.Batch.stack([Nx.tensor([i, i + 1], backend: Nx.BinaryBackend)])

  # The process of the other node that waits for leave to make this batch.
  defp wanting(index) do
    assert_receive {:wants, ^index, pid}, 30_000
    pid
  end
end
