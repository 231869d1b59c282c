defmodule Nx.Vulkan.PrefetchTest do
  # Batches that are loaded ahead by another process.
  use ExUnit.Case, async: true

  alias Nx.Vulkan.VulkanoBackend

  @moduletag :device

  defp batch(i), do: Nx.broadcast(Nx.tensor(i, type: :s32, backend: Nx.BinaryBackend), {3, 5})

  defp processes, do: MapSet.new(Process.list())

  # Processes that a test has left behind, which may be ending.
  defp left(before, tries \\ 200) do
    now = MapSet.difference(processes(), before) |> Enum.filter(&loader?/1)
    if now == [] or tries == 0, do: now, else: Process.sleep(5) && left(before, tries - 1)
  end

  defp loader?(pid) do
    case Process.info(pid, [:dictionary, :current_function]) do
      [dictionary: dictionary, current_function: {module, _, _}] ->
        module == Nx.Vulkan.Prefetch or self() in (dictionary[:"$callers"] || [])

      nil ->
        false
    end
  end

  test "batches come in order, on the device, in their containers" do
    before = processes()
    batches = Stream.map(1..20, &{batch(&1), %{label: batch(-&1), weight: 0.5}})

    taken = batches |> Nx.Vulkan.prefetch() |> Enum.to_list()
    assert length(taken) == 20

    for {{x, %{label: label, weight: weight}}, i} <- Enum.with_index(taken, 1) do
      assert %VulkanoBackend{} = x.data
      assert %VulkanoBackend{} = label.data
      assert Nx.to_flat_list(x) == List.duplicate(i, 15)
      assert Nx.to_flat_list(label) == List.duplicate(-i, 15)
      assert Nx.to_number(weight) == 0.5
    end

    # A stream may be walked again.
    stream = Nx.Vulkan.prefetch([batch(1), batch(2)], ahead: 7)
    for _ <- 1..3, do: assert(Enum.map(stream, &Nx.to_number(&1[0][0])) == [1, 2])
    assert Enum.to_list(Nx.Vulkan.prefetch([])) == []
    assert left(before) == []
  end

  test "no more are loaded than may be ahead" do
    parent = self()
    batches = Stream.map(1..10, fn i -> send(parent, {:made, i}) && batch(i) end)

    batches
    |> Nx.Vulkan.prefetch(ahead: 3)
    |> Enum.each(fn x ->
      i = Nx.to_number(x[0][0])
      Process.sleep(20)
      # Three ahead of the one that is taken, and one that waits for leave, on the host.
      assert Enum.max(for {:made, i} <- elem(Process.info(self(), :messages), 1), do: i) <= i + 4
    end)

    for i <- 1..10, do: assert_received({:made, ^i})
  end

  test "what is taken halts what is walked, and leaves no process behind" do
    before = processes()
    parent = self()
    source = Stream.resource(fn -> 1 end, &{[batch(&1)], &1 + 1}, fn _ -> send(parent, :closed) end)

    assert source |> Nx.Vulkan.prefetch() |> Enum.take(3) |> length() == 3
    assert_received :closed

    assert_raise RuntimeError, "of the taker", fn ->
      source |> Nx.Vulkan.prefetch() |> Enum.each(fn _ -> raise "of the taker" end)
    end

    assert_received :closed
    assert catch_throw(source |> Nx.Vulkan.prefetch() |> Enum.each(&throw/1))
    assert_received :closed
    assert source |> Nx.Vulkan.prefetch() |> Stream.zip([:a, :b]) |> Enum.map(&elem(&1, 1)) == [:a, :b]
    assert_received :closed
    assert left(before) == []
    assert Process.info(self(), :messages) == {:messages, []}
  end

  test "errors of what is walked come to who takes, after the batches before them" do
    before = processes()
    parent = self()
    failing = fn fail -> Stream.map(1..5, fn i -> if i == 4, do: fail.(), else: batch(i) end) end
    take = fn stream -> stream |> Nx.Vulkan.prefetch() |> Enum.each(&send(parent, {:taken, Nx.to_number(&1[0][0])})) end

    assert_raise ArithmeticError, fn -> take.(failing.(fn -> raise ArithmeticError end)) end
    for i <- 1..3, do: assert_received({:taken, ^i})
    refute_received {:taken, _}
    assert catch_throw(take.(failing.(fn -> throw(:away) end))) == :away
    assert catch_exit(take.(failing.(fn -> exit(:over) end))) == :over
    assert {:killed, _} = catch_exit(take.(failing.(fn -> Process.exit(self(), :kill) end)))
    assert_raise Protocol.UndefinedError, fn -> take.([:no_batch]) end
    assert left(before) == []
  end

  test "a taker that is killed takes the loader with it" do
    parent = self()

    taker =
      spawn(fn ->
        Stream.repeatedly(fn -> send(parent, {:loader, self()}) && batch(1) end)
        |> Nx.Vulkan.prefetch()
        |> Enum.each(fn _ -> Process.sleep(:infinity) end)
      end)

    assert_receive {:loader, loader}, 5_000
    monitor = Process.monitor(loader)
    Process.exit(taker, :kill)
    assert_receive {:DOWN, ^monitor, :process, ^loader, :killed}, 5_000
  end

  test "loops of Axon take them" do
    data =
      for i <- 1..12,
          do: {Nx.multiply(batch(i), 0.01), Nx.broadcast(Nx.tensor(i * 0.02, backend: Nx.BinaryBackend), {3, 1})}

    batches = for {x, y} <- data, do: {Nx.Batch.concatenate([x[0..1], x[2..2]]), y}

    model = Axon.input("x", shape: {nil, 5}) |> Axon.dense(1)

    train = fn data ->
      model
      |> Axon.Loop.trainer(:mean_squared_error, Polaris.Optimizers.sgd(learning_rate: 0.01), log: 0, seed: 7)
      |> Axon.Loop.run(data, Axon.ModelState.empty(), epochs: 2, iterations: 12, compiler: Nx.Vulkan)
    end

    [plain | ahead] = Enum.map([data, Nx.Vulkan.prefetch(data), Nx.Vulkan.prefetch(batches)], train)
    bits = &Nx.to_binary(&1.data["dense_0"]["kernel"])
    for state <- ahead, do: assert(bits.(state) == bits.(plain))
  end

  @mega 1024 * 1024

  defp megabytes(count, value),
    do: Nx.broadcast(Nx.tensor(value, type: :u8, backend: Nx.BinaryBackend), {count * @mega})

  defp bytes_of(pid), do: Enum.find_value(Nx.Vulkan.memory().processes, 0, &(&1.pid == pid && &1.bytes))

  test "memory of batches is the taker's" do
    task =
      Task.async(fn ->
        stream = Stream.map(1..3, &megabytes(2, &1))
        held = stream |> Nx.Vulkan.prefetch(ahead: 3) |> Enum.to_list()
        {bytes_of(self()), Enum.map(held, &Nx.to_number(&1[0]))}
      end)

    assert {bytes, [1, 2, 3]} = Task.await(task, 60_000)
    assert bytes >= 6 * @mega
    owners = for %{pid: pid} <- Nx.Vulkan.memory().processes, do: pid
    assert Enum.all?(owners, &(Process.alive?(&1) or &1 != task.pid))
  end

  test "batches keep within the limit of the taker, whose garbage makes room" do
    task =
      Task.async(fn ->
        Nx.Vulkan.memory_limit(12 * @mega)
        # Every batch is garbage once the next one is taken, on a heap that is rarely collected.
        ballast = Enum.to_list(1..500_000)
        stream = Stream.map(1..20, &megabytes(3, &1))
        sums = for x <- Nx.Vulkan.prefetch(stream, ahead: 1), do: Nx.to_number(x[hd(ballast)])
        error = catch_error(stream |> Nx.Vulkan.prefetch() |> Enum.to_list())
        # A prefetch in a prefetch.
        Nx.Vulkan.memory_limit(:infinity)
        nested = stream |> Nx.Vulkan.prefetch(ahead: 1) |> Nx.Vulkan.prefetch(ahead: 1) |> Enum.take(2)
        {sums, {error.kind, error.details.limit_bytes}, length(nested), bytes_of(self()) >= 6 * @mega}
      end)

    limit = 12 * @mega
    assert {sums, {:out_of_memory, ^limit}, 2, true} = Task.await(task, 120_000)
    assert sums == Enum.to_list(1..20)
  end

  test "batches of Nx.Batch are loaded as one tensor each" do
    host = &Nx.tensor(&1, type: :s32, backend: Nx.BinaryBackend)

    batches = [
      Nx.Batch.stack([host.([1, 2]), host.([3, 4])]),
      Nx.Batch.concatenate([host.([[1, 2]]), host.([[3, 4], [5, 6]])]) |> Nx.Batch.pad(2) |> Nx.Batch.key(:other),
      Nx.Batch.stack([%{x: host.(1), y: {host.([2]), 5}}, %{x: host.(3), y: {host.([4]), 6}}]),
      Nx.Batch.concatenate([host.([1, 2, 3]), host.([4])]) |> Nx.Batch.split(2) |> elem(1),
      Nx.Batch.new()
    ]

    taken = batches |> Nx.Vulkan.prefetch() |> Enum.to_list()
    run = &Nx.Defn.jit(fn x -> x end, compiler: &2).(&1)

    for {batch, before} <- Enum.zip(taken, batches), batch.size > 0 do
      assert {batch.size, batch.pad, batch.key} == {before.size, before.pad, before.key}
      assert [{_one, _size}] = batch.stack

      Nx.LazyContainer.traverse(Nx.Batch.pad(batch, 0), :ok, fn template, tensor, :ok ->
        assert %Nx.Tensor{data: %VulkanoBackend{}} = tensor.()
        {template, :ok}
      end)

      [here, there] =
        for {batch, compiler} <- [{batch, Nx.Vulkan}, {before, Nx.Defn.Evaluator}], do: run.(batch, compiler)

      assert inspect(Nx.backend_copy(here)) == inspect(Nx.backend_copy(there))
    end

    assert List.last(taken) == Nx.Batch.new()

    # Within containers, and for a serving.
    [first | _] = batches

    assert [{%Nx.Batch{size: 2}, %Nx.Tensor{data: %VulkanoBackend{}}}] =
             Enum.to_list(Nx.Vulkan.prefetch([{first, host.([1])}]))

    serving = Nx.Serving.jit(&Nx.multiply(&1, 2), compiler: Nx.Vulkan)

    for {batch, expected} <-
          Enum.zip(Nx.Vulkan.prefetch(Enum.take(batches, 2)), [[[2, 4], [6, 8]], [[2, 4], [6, 8], [10, 12]]]),
        do: assert(serving |> Nx.Serving.run(batch) |> Nx.to_list() == expected)
  end

  test "options are checked" do
    for ahead <- [0, -1, 1.5, nil] do
      assert_raise ArgumentError, ~r/:ahead/, fn -> Nx.Vulkan.prefetch([], ahead: ahead) end
    end

    assert_raise ArgumentError, fn -> Nx.Vulkan.prefetch([], behind: 1) end
    assert [%{data: %Nx.BinaryBackend{}}] = Enum.to_list(Nx.Vulkan.prefetch([batch(1)], backend: Nx.BinaryBackend))
  end
end
