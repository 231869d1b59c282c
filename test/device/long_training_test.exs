defmodule Nx.Vulkan.LongTrainingTest do
  # What a training of days rests on, in short ones: nothing that grows, the same bits after a pause, and steps that no
  # reading holds up. Alone: it looks at the counters of the one device.
  use ExUnit.Case, async: false

  import Nx.Vulkan.DeviceMemory, only: [in_use_bytes: 0]

  alias Nx.Vulkan.{Compiler, NativeV, VulkanoBackend}

  @moduletag :device
  @moduletag timeout: to_timeout(minute: 10)
  if not Code.ensure_loaded?(Axon), do: @moduletag(skip: "Axon is none of the packages")

  @guide Path.expand("../../guides/training.livemd", __DIR__)
  @external_resource @guide
  @compile {:no_warn_undefined,
            [Axon, Axon.Loop, Axon.ModelState, Polaris.Optimizers, Polaris.Schedules, Accumulate, Checkpoint]}
  @batch 8
  @features 12

  setup_all do
    # The code of the guide.
    for module <- [Accumulate, Checkpoint] do
      Code.eval_string(guided(module), [], file: @guide)
      on_exit(fn -> {:code.purge(module), :code.delete(module)} end)
    end

    Nx.Vulkan.DeviceMemory.await_idle()
  end

  setup do
    Nx.default_backend(VulkanoBackend)
    Nx.Defn.default_options(compiler: Nx.Vulkan)
    :ok
  end

  defp guided(module) do
    [code] = Regex.run(~r/^defmodule #{inspect(module)} do$.*?^end$/ms, File.read!(@guide))
    code
  end

  # Dropout draws from a key in the state; a norm keeps means.
  defp model do
    Axon.input("x", shape: {nil, @features})
    |> Axon.dense(32, activation: :gelu)
    |> Axon.batch_norm()
    |> Axon.dropout(rate: 0.5, seed: 3)
    |> Axon.dense(3)
  end

  # Made on the host as they are asked for, as a loader does it.
  defp batches(n) do
    Stream.map(1..n, fn i ->
      {x, key} = Nx.Random.normal(Nx.Random.key(i), shape: {@batch, @features})
      {y, _key} = Nx.Random.normal(key, shape: {@batch, 3})
      {x, y}
    end)
  end

  defp adam, do: Polaris.Optimizers.adam(learning_rate: Polaris.Schedules.cosine_decay(0.01, decay_steps: 30))

  defp trainer(model, optimizer, opts \\ []) do
    Axon.Loop.trainer(model, :mean_squared_error, optimizer, Keyword.merge([log: 0, seed: 7], opts))
  end

  # The state of steps in place of the model's.
  defp whole(loop), do: %{loop | output_transform: & &1.step_state}

  defp bits(state) do
    for {name, tensor} <- leaves(state, []), do: {name, Nx.type(tensor), Nx.to_binary(tensor)}
  end

  # The names of tensors that are not the same.
  defp differing(state, other) do
    {bits, others} = {bits(state), bits(other)}
    assert length(bits) == length(others)
    for {one, other} <- Enum.zip(bits, others), one != other, do: elem(one, 0)
  end

  defp leaves(%Nx.Tensor{} = tensor, path), do: [{Enum.reverse(path), tensor}]
  defp leaves(%_{} = struct, path), do: struct |> Map.from_struct() |> leaves(path)

  defp leaves(%{} = map, path),
    do: map |> Enum.sort() |> Enum.flat_map(fn {key, value} -> leaves(value, [key | path]) end)

  defp leaves(tuple, path) when is_tuple(tuple),
    do: tuple |> Tuple.to_list() |> Enum.with_index() |> Enum.flat_map(fn {value, i} -> leaves(value, [i | path]) end)

  defp leaves(_other, _path), do: []

  describe "hundreds of steps" do
    test "take the memory, the kernels and the launches of fifty" do
      me = self()

      look = fn %{event_counts: %{iteration_completed: %{total: total}}} = state ->
        if total in [50, 100, 250, 400] do
          send(me, {total, %{NativeV.device_stats() | in_use_bytes: in_use_bytes()}})
        end

        {:continue, state}
      end

      run = fn ->
        model()
        |> trainer(adam())
        |> Axon.Loop.metric(:mean_absolute_error)
        |> Axon.Loop.handle_event(:iteration_completed, look)
        |> Axon.Loop.run(batches(400), Axon.ModelState.empty())

        for total <- [50, 100, 250, 400], do: assert_received({^total, counted}) && counted
      end

      # Numbers are kept by their value, the first 4,096 of them, and Axon's numbers of iterations are such. So those of
      # the second run are there.
      run.()
      [early, next, middle, late] = run.()
      assert early.in_use_bytes > 0
      assert late.in_use_bytes == early.in_use_bytes
      assert middle.in_use_bytes == early.in_use_bytes
      assert late.pipelines == early.pipelines
      assert late.reserved_bytes == early.reserved_bytes
      assert late.allocations == early.allocations
      steps = next.dispatches - early.dispatches
      assert middle.dispatches - next.dispatches == 3 * steps
      assert late.dispatches - middle.dispatches == 3 * steps
    end

    test "are waited for where progress is printed, and nowhere else" do
      tracer = spawn_link(&count_reads/0)
      :erlang.trace_pattern({VulkanoBackend, :to_binary, 2}, true, [])
      :erlang.trace(self(), true, [:call, {:tracer, tracer}])
      # Batches are there before: what makes them may read, too.
      loop = model() |> trainer(adam(), log: 25) |> Axon.Loop.metric(:mean_absolute_error)
      data = Enum.to_list(batches(100))
      before = reads(tracer)
      printed = ExUnit.CaptureIO.capture_io(fn -> Axon.Loop.run(loop, data, Axon.ModelState.empty()) end)
      :erlang.trace(self(), false, [:call])
      assert ~w(0 25 50 75) == for([_, batch] <- Regex.scan(~r/Batch: (\d+)/, printed), do: batch)
      # The loss and the metric, each time.
      assert reads(tracer) - before == 4 * 2
    after
      :erlang.trace_pattern({VulkanoBackend, :to_binary, 2}, false, [])
    end

    defp reads(tracer) do
      send(tracer, {:reads, self()})
      assert_receive {:reads, count}
      count
    end

    defp count_reads(reads \\ 0) do
      receive do
        {:trace, _pid, :call, {VulkanoBackend, :to_binary, _}} -> count_reads(reads + 1)
        {:reads, pid} -> send(pid, {:reads, reads}) && count_reads(reads)
      end
    end
  end

  describe "a training that goes on from a checkpoint has the bits of one that was not stopped" do
    @describetag :tmp_dir

    test "after an epoch, as the guide saves it", %{tmp_dir: folder} do
      path = Path.join(folder, "checkpoint")
      loop = fn -> model() |> trainer(adam()) |> whole() end
      {data, empty} = {batches(10), Axon.ModelState.empty()}
      expected = Axon.Loop.run(loop.(), data, empty, epochs: 4)
      stopped = loop.() |> Checkpoint.save(path) |> Axon.Loop.run(data, empty, epochs: 2)
      assert bits(stopped) != bits(expected)
      # What was compiled is compiled again, as in a new VM.
      assert Compiler.clear_cache() > 0
      resumed = loop.() |> Checkpoint.resume(path) |> Axon.Loop.run(data, empty, epochs: 2)
      assert differing(resumed, expected) == []
      # Dropout and the norm took part.
      names = for {name, _, _} <- bits(expected), do: List.last(name)
      assert "key" in names and "mean" in names
    end

    # Both VMs run this.
    @training """
    Nx.default_backend(Nx.Vulkan.VulkanoBackend)
    Nx.Defn.default_options(compiler: Nx.Vulkan)

    model =
      Axon.input("x", shape: {nil, 6})
      |> Axon.dense(16, activation: :tanh)
      |> Axon.dropout(rate: 0.5, seed: 3)
      |> Axon.dense(1)

    data = for i <- 1..5, do: {Nx.sin(Nx.add(Nx.iota({4, 6}), i)), Nx.cos(Nx.add(Nx.iota({4, 1}), i))}
    optimizer = Polaris.Optimizers.adam(learning_rate: Polaris.Schedules.cosine_decay(0.01, decay_steps: 20))

    loop =
      model
      |> Axon.Loop.trainer(:mean_squared_error, optimizer, log: 0, seed: 7)
      |> Axon.Loop.early_stop("loss", mode: :min, patience: 9)

    run = fn loop, epochs ->
      Axon.Loop.run(%{loop | output_transform: & &1.step_state}, data, Axon.ModelState.empty(), epochs: epochs)
    end
    """

    test "in another VM", %{tmp_dir: folder} do
      [path, result] = for name <- ["checkpoint", "result"], do: Path.join(folder, name)
      {_, bindings} = Code.eval_string(@training)
      expected = bindings[:run].(bindings[:loop], 4)
      bindings[:loop] |> Checkpoint.save(path) |> bindings[:run].(2)

      elixir("""
      {:ok, _} = Application.ensure_all_started(:nx_vulkan)
      #{guided(Checkpoint)}
      #{@training}
      state = loop |> Checkpoint.resume(#{inspect(path)}) |> run.(2)
      File.write!(#{inspect(result)}, Nx.serialize(state))
      """)

      assert differing(result |> File.read!() |> Nx.deserialize(), expected) == []
    end

    defp elixir(code) do
      paths = Path.wildcard("#{Mix.Project.build_path()}/lib/*/ebin")
      arguments = Enum.flat_map(paths, &["-pa", &1]) ++ ["-e", code]
      {output, status} = System.cmd("elixir", arguments, stderr_to_stdout: true)
      assert status == 0, output
    end

    test "amid an epoch, by Axon's checkpoints", %{tmp_dir: folder} do
      loop = fn -> model() |> trainer(adam()) |> whole() end
      empty = Axon.ModelState.empty()
      expected = Axon.Loop.run(loop.(), batches(20), empty)

      loop.()
      |> Axon.Loop.checkpoint(event: :iteration_completed, filter: [every: 7], path: folder)
      |> Axon.Loop.run(batches(13), empty)

      assert [file] = File.ls!(folder) |> Enum.sort() |> Enum.take(-1)
      %{iteration: last} = state = Path.join(folder, file) |> File.read!() |> Axon.Loop.deserialize_state()
      done = last + 1
      assert done > 1 and done < 20
      rest = batches(20) |> Enum.drop(done)
      resumed = loop.() |> Axon.Loop.from_state(%{state | iteration: done}) |> Axon.Loop.run(rest, empty)
      assert differing(resumed, expected) == []
    end

    test "with what early stopping knows", %{tmp_dir: folder} do
      path = Path.join(folder, "checkpoint")
      # A loss that does not fall: learning by nothing.
      me = self()

      loop = fn ->
        model()
        |> trainer(Polaris.Optimizers.sgd(learning_rate: 0.0))
        |> Axon.Loop.metric(fn _, _ -> Nx.tensor(1.0) end, "constant")
        |> Axon.Loop.handle_event(:epoch_started, &{send(me, {:epoch, &1.epoch}) && :continue, &1})
        |> Axon.Loop.early_stop("constant", patience: 2)
        |> Checkpoint.save(path)
      end

      {data, empty} = {batches(3), Axon.ModelState.empty()}
      Axon.Loop.run(loop.(), data, empty, epochs: 20)
      # The first is the best, and three more are no better.
      assert epochs() == [0, 1, 2, 3]
      File.rm!(path)
      Axon.Loop.run(loop.(), data, empty, epochs: 2)
      assert epochs() == [0, 1]
      # Nothing of it lies on the device.
      for {_, %{} = known} <- Axon.Loop.deserialize_state(File.read!(path)).handler_metadata,
          {_, %Nx.Tensor{} = tensor} <- known,
          do: assert(%Nx.BinaryBackend{} = tensor.data)

      loop.() |> Checkpoint.resume(path) |> Axon.Loop.run(data, empty, epochs: 20)
      assert epochs() == [2, 3]
    end

    defp epochs do
      receive do
        {:epoch, epoch} -> [epoch | epochs()]
      after
        0 -> []
      end
    end
  end

  describe "optimizers" do
    # The gradient of the mean of (x w - y)^2 for w of {1}.
    defp linear, do: Axon.input("x", shape: {nil, 1}) |> Axon.dense(1, use_bias: false, name: "only")
    defp weight(state), do: Nx.to_number(state.model_state.data["only"]["kernel"][0][0])

    defp pairs(n), do: for(i <- 1..n, do: {Nx.tensor([[i / n], [0.5]]), Nx.tensor([[1.0], [-i / n]])})

    defp gradient(w, {x, y}) do
      [xs, ys] = for t <- [x, y], do: Nx.to_flat_list(t)
      Enum.zip_with(xs, ys, fn x, y -> 2 * (x * w - y) * x end) |> Enum.sum() |> Kernel./(length(xs))
    end

    defp first(loop), do: Axon.Loop.run(loop, pairs(1), Axon.ModelState.empty(), iterations: 1)

    test "follow a schedule, without compiling it again" do
      rates = for step <- 0..11, do: 0.5 * 0.9 ** step
      schedule = Polaris.Schedules.exponential_decay(0.5, decay_rate: 0.9, transition_steps: 1)
      loop = linear() |> trainer(Polaris.Optimizers.sgd(learning_rate: schedule)) |> whole()
      still = linear() |> trainer(Polaris.Optimizers.sgd(learning_rate: 0.0)) |> whole() |> first() |> weight()
      expected = Enum.zip_reduce(rates, pairs(12), still, fn rate, pair, w -> w - rate * gradient(w, pair) end)
      me = self()
      look = &{send(me, {:kernels, NativeV.device_stats().pipelines}) && :continue, &1}
      loop = Axon.Loop.handle_event(loop, :iteration_completed, look)
      got = loop |> Axon.Loop.run(pairs(12), Axon.ModelState.empty()) |> weight()
      # Rounding in f32 over twelve steps.
      assert_in_delta got, expected, 1.0e-5
      assert_received {:kernels, first}
      for _ <- 2..12, do: assert_received({:kernels, ^first})
    end

    test "accumulate the gradients of several batches, as the guide does it" do
      sgd = Polaris.Optimizers.sgd(learning_rate: 0.1)
      still = linear() |> trainer(Polaris.Optimizers.sgd(learning_rate: 0.0)) |> whole() |> first() |> weight()
      batches = pairs(12)

      expected =
        batches
        |> Enum.chunk_every(4)
        |> Enum.scan(still, fn four, w ->
          w - 0.1 * (four |> Enum.map(&gradient(w, &1)) |> Enum.sum() |> Kernel./(4))
        end)

      me = self()
      look = &{send(me, {:weight, weight(&1.step_state)}) && :continue, &1}

      linear()
      |> trainer(Accumulate.every(sgd, 4))
      |> Axon.Loop.handle_event(:iteration_completed, look)
      |> Axon.Loop.run(batches, Axon.ModelState.empty())

      weights = for _ <- 1..12, do: assert_received({:weight, w}) && w
      # Nothing changes but at each fourth batch.
      assert [[w, w, w, a], [a, a, a, b], [b, b, b, c]] = Enum.chunk_every(weights, 4)
      assert w != a and a != b and b != c
      for {got, expected} <- Enum.zip([a, b, c], expected), do: assert_in_delta(got, expected, 1.0e-6)
    end

    test "accumulated gradients are those of the large batch, in Adam, too" do
      large = fn n -> for i <- 1..n, do: hd(Enum.to_list(batches(i)) |> Enum.take(-1)) end
      model = Axon.input("x", shape: {nil, @features}) |> Axon.dense(3)
      joined = for four <- Enum.chunk_every(large.(12), 4), do: Enum.unzip(four) |> then(&join/1)
      run = fn optimizer, data -> model |> trainer(optimizer) |> Axon.Loop.run(data, Axon.ModelState.empty()) end
      adam = Polaris.Optimizers.adam(learning_rate: 0.01)
      expected = run.(adam, joined)
      got = run.(Accumulate.every(adam, 4), large.(12))

      for {{name, _, _}, {name, _, _}} <- Enum.zip(bits(got.data), bits(expected.data)) do
        [got, expected] = for state <- [got, expected], do: get_in(state.data, name)
        # Three steps of 0.01, whose directions differ by the rounding of the means.
        assert Nx.to_number(Nx.all_close(got, expected, atol: 1.0e-5)) == 1
      end
    end

    defp join({xs, ys}), do: {Nx.concatenate(xs), Nx.concatenate(ys)}
  end

  test "clipping and loss scaling are part of the kernels that update parameters" do
    width = 64
    layer = fn _, x -> Axon.dense(x, width, activation: :relu) end
    model = Enum.reduce(1..6, Axon.input("x", shape: {nil, width}), layer)
    data = {Nx.divide(Nx.iota({@batch, width}, type: :f32), 512), Nx.broadcast(1 / width, {@batch, width})}
    adam = Polaris.Optimizers.adam(learning_rate: 1.0e-3)
    clipped = Polaris.Updates.compose(Polaris.Updates.clip_by_global_norm(max_norm: 1.0), adam)

    # How many launches a step has, and how much they write.
    step = fn optimizer, options ->
      {init, step} = Axon.Loop.train_step(model, :mean_squared_error, optimizer, options)
      state = init.(data, Axon.ModelState.empty())
      %{steps: [run: %{launches: launches}]} = Compiler.explain(step, [data, state])
      {length(launches), launches |> Enum.map(& &1.written_bytes) |> Enum.sum()}
    end

    # Biases' gradients, which wait for the norm, are stored; nothing of a weight is stored once more.
    {_launches, bytes} = step.(adam, [])
    {scaled, scaled_bytes} = step.(adam, loss_scale: :static)
    assert scaled_bytes - bytes < 4 * width * width
    {launches, clipped_bytes} = step.(clipped, [])
    assert clipped_bytes - bytes < 4 * width * width
    # A sum of squares for each of twelve parameters, biases' gradients, and the norm.
    assert launches <= scaled + 12 + 6 + 1
  end
end
