defmodule Nx.Vulkan.PipelineTest do
  # A device may have several stages, so that this needs no others; with `NX_VULKAN_TEST_DEVICE=several` the stages
  # are on different devices. Alone, as some of it counts what devices do.
  use ExUnit.Case, async: false

  import Nx.Defn

  alias Nx.Vulkan.{Devices, NativeV, Pipeline, PipelineNode, RemoteNode, TwinDevices}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @moduletag :device

  doctest Pipeline

  setup do
    Nx.default_backend(B)
    %{devices: TwinDevices.all()}
  end

  defp on(%{devices: devices}, count), do: TwinDevices.take(devices, count)
  defp place(%Nx.Tensor{data: %B{ref: ref}}), do: ref |> Devices.of() |> elem(0)

  defp random(shape, key, type \\ :f32) do
    {numbers, _} = Nx.Random.uniform(Nx.Random.key(key), -1, 1, shape: shape, type: :f32)
    Nx.as_type(numbers, type)
  end

  defp bits(container) when is_struct(container, Nx.Tensor), do: Nx.to_binary(container)

  defn(layer(%{w: w, b: b}, x), do: Nx.tanh(Nx.dot(x, w) + b))
  defn(layer_and_skip(%{w: w, b: b}, {x, skip}), do: {Nx.tanh(Nx.dot(x, w) + b), skip})
  defn(fork(%{w: w, b: b}, x), do: {Nx.tanh(Nx.dot(x, w) + b), x})
  defn(meet(%{w: w, b: b}, {x, skip}), do: Nx.dot(x, w) + b + skip)
  defn(embed(table, %{ids: ids, mask: mask}), do: {Nx.take(table, ids), mask})
  defn(masked(%{w: w, b: b}, {x, mask}), do: {Nx.tanh(Nx.dot(x, w) + b), mask})
  defn(pooled(%{w: w, b: b}, {x, mask}), do: Nx.dot(Nx.sum(x * Nx.new_axis(mask, -1), axes: [1]), w) + b)
  defn(squares(y, x), do: Nx.mean((x - y) ** 2))

  defp parameters(n, m, key), do: %{w: Nx.divide(random({n, m}, key), 4), b: random({m}, key + 100)}

  # Three stages, and the same as one function.
  defp mlp do
    parameters = [parameters(16, 32, 1), parameters(32, 32, 2), parameters(32, 8, 3)]
    whole = fn [p, q, r], x -> layer(r, layer(q, layer(p, x))) end
    {[&layer/2, &layer/2, &layer/2], parameters, whole}
  end

  defp pipeline({funs, parameters, _whole}, devices, opts \\ []),
    do: [funs, parameters, devices] |> Enum.zip() |> Pipeline.new(opts)

  describe "run/3" do
    test "gives the bits of the stages one after the other, and of the uncut function", context do
      {_, parameters, whole} = mlp = mlp()
      x = random({12, 16}, 9)
      expected = Nx.Defn.jit(fn p, x -> whole.(List.wrap(Tuple.to_list(p)), x) end, compiler: Nx.Vulkan)
      parts = fn n -> x |> Nx.to_batched(div(12, n)) |> Enum.map(&expected.(List.to_tuple(parameters), &1)) end

      for n <- [1, 2, 3, 12] do
        [_, _, last] = devices = on(context, 3)
        result = mlp |> pipeline(devices, micro_batches: n) |> Pipeline.run(x)
        assert {result.shape, place(result)} == {{12, 8}, last}
        assert bits(result) == n |> parts.() |> Nx.concatenate() |> bits()
      end

      # So that rows are the same kernels' whatever the batch is.
      assert bits(Nx.concatenate(parts.(2))) == bits(expected.(List.to_tuple(parameters), x))
    end

    test "passes containers of any shapes, integers and scalars on", context do
      table = random({11, 8}, 1)
      stages = [{&embed/2, table}, {&masked/2, parameters(8, 8, 2)}, {&pooled/2, parameters(8, 3, 3)}]
      stages = for {{fun, parameters}, device} <- Enum.zip(stages, on(context, 3)), do: {fun, parameters, device}
      ids = Nx.remainder(Nx.iota({6, 5}, type: :u8), 11)
      mask = Nx.greater(Nx.iota({6, 5}, axis: 1), Nx.iota({6, 5}, axis: 0)) |> Nx.as_type(:f32)
      one = stages |> Pipeline.new() |> Pipeline.run(%{ids: ids, mask: mask})
      [first | parameters] = for {_, parameters, _} <- stages, do: parameters
      embedded = Nx.Defn.jit(&embed/2, compiler: Nx.Vulkan).(first, %{ids: ids, mask: mask})
      [second, third] = parameters
      whole = Nx.Defn.jit(fn p, q, x -> pooled(q, masked(p, x)) end, compiler: Nx.Vulkan).(second, third, embedded)
      assert bits(one) == bits(whole)

      for n <- [2, 3],
          do:
            assert(
              bits(stages |> Pipeline.new() |> Pipeline.run(%{ids: ids, mask: mask}, micro_batches: n)) == bits(whole)
            )

      scaled = Pipeline.new([{&__MODULE__.scaled/2, 2.0, hd(on(context, 1))}], micro_batches: 2)
      assert {a, {b}} = Pipeline.run(scaled, {Nx.tensor([1.0, 2.0]), 3.0})
      assert {Nx.to_list(a), Nx.to_list(b)} == {[3.0, 6.0], [3.0, 4.0]}
    end

    test "takes tensors of other backends and devices, and batches of a serving", context do
      devices = on(context, 3)
      pipeline = pipeline(mlp(), devices, micro_batches: 2)
      x = random({4, 16}, 9)
      expected = bits(Pipeline.run(pipeline, x))
      assert bits(Pipeline.run(pipeline, Nx.backend_copy(x, Nx.BinaryBackend))) == expected

      for device <- devices,
          do: assert(bits(Pipeline.run(pipeline, Nx.backend_copy(x, {B, device: device}))) == expected)

      serving = Nx.Serving.new(fn _opts -> &Pipeline.run(pipeline, &1) end)
      batch = Nx.Batch.concatenate([x[0..0], x[1..3]])
      assert bits(Nx.Serving.run(serving, batch)) == expected
    end

    test "has several micro-batches under way at once", context do
      # Each stage waits for the other to have begun: the first one in its second micro-batch, the second one in its
      # first.
      here = self()
      stages = for number <- 0..1, do: {met(here, number), 1.0, Enum.at(on(context, 2), number)}
      pipeline = Pipeline.new(stages, micro_batches: 3)
      run = Task.async(fn -> Pipeline.run(pipeline, Nx.tensor([10.0, 20.0, 30.0])) end)
      assert_receive {0, [10.0], first}, 60_000
      send(first, :go)
      # Neither goes on before both are there.
      assert_receive {0, [20.0], first}, 60_000
      assert_receive {1, [11.0], second}, 60_000
      for pid <- [first, second], do: send(pid, :go)
      assert_receive {0, [30.0], first}, 60_000
      assert_receive {1, [21.0], second}, 60_000
      for pid <- [first, second], do: send(pid, :go)
      assert_receive {1, [31.0], second}, 60_000
      send(second, :go)
      assert Nx.to_list(Task.await(run, 60_000)) == [12.0, 22.0, 32.0]
    end

    test "has one micro-batch wait before a stage at most", context do
      here = self()
      [first, second] = on(context, 2)
      pipeline = Pipeline.new([{telling(here), 1.0, first}, {met(here, 1), 1.0, second}], micro_batches: 6)
      run = Task.async(fn -> Pipeline.run(pipeline, Nx.iota({6}, type: :f32)) end)
      assert_receive {1, [1.0], stage}, 60_000
      # The second stage has one, another waits there, and the first stage has computed the next one.
      assert told(3) == [0.0, 1.0, 2.0]
      refute_receive {:told, _}, 300
      send(stage, :go)
      assert told(1) == [3.0]

      for i <- 2..6 do
        number = i * 1.0
        assert_receive {1, [^number], ^stage}, 60_000
        send(stage, :go)
      end

      assert Nx.to_list(Task.await(run, 60_000)) == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    end

    test "of many processes at once", context do
      pipeline = pipeline(mlp(), on(context, 3), micro_batches: 2)
      inputs = for key <- 1..6, do: random({4, 16}, key)
      expected = Enum.map(inputs, &bits(Pipeline.run(pipeline, &1)))

      tasks =
        for x <- inputs, do: Task.async(fn -> for(_ <- 1..5, do: bits(Pipeline.run(pipeline, x))) |> Enum.uniq() end)

      assert Task.await_many(tasks, 120_000) == Enum.map(expected, &[&1])
    end

    test "and trainings leave donated tensors and parameters their memory", context do
      {funs, parameters, whole} = mlp()

      donated = fn container ->
        container |> Nx.backend_copy(Nx.BinaryBackend) |> Nx.backend_copy(B) |> Nx.donatable()
      end

      {x, y} = {random({4, 16}, 9), random({4, 8}, 10)}
      expected = pipeline({funs, parameters, whole}, on(context, 3))
      pipeline = pipeline({funs, Enum.map(parameters, donated), whole}, on(context, 3))
      assert bits(Pipeline.run(pipeline, donated.(x))) == bits(Pipeline.run(expected, x))
      pipeline = Pipeline.put_parameters(pipeline, Enum.map(parameters, donated))

      for n <- [1, 2] do
        loss = fn pipeline, x, y -> elem(Pipeline.value_and_grad(pipeline, x, y, &squares/2, micro_batches: n), 0) end
        for _ <- 1..2, do: assert(bits(loss.(pipeline, donated.(x), donated.(y))) == bits(loss.(expected, x, y)))
      end
    end

    test "and trainings need no more memory for more micro-batches", context do
      devices = on(context, 3)
      summed = fn p, x -> Nx.multiply(Nx.sum(x, axes: [1]), p) end
      pipeline = Pipeline.new(Enum.zip([[&Nx.add/2, &Nx.add/2, summed], [1.0, 2.0, 0.5], devices]), micro_batches: 64)
      x = Nx.broadcast(Nx.tensor(1.0, backend: Nx.BinaryBackend), {64 * 64, 1024})
      y = Nx.broadcast(Nx.tensor(1.0, backend: Nx.BinaryBackend), {64 * 64})
      part = 64 * 1024 * 4
      train = &Pipeline.value_and_grad(&1, x, y, fn y, x -> squares(y, x) end)

      # The inputs and results of the stages, and what waits between them: 7 of these, and 12 in a training.
      for {call, most} <- [{&Pipeline.run(&1, x), 10}, {train, 15}] do
        call.(pipeline)
        assert most_bytes(devices, fn -> call.(pipeline) end) < most * part
      end
    end

    test "gives the memory of what passes through back", context do
      devices = on(context, 3)
      pipeline = pipeline(mlp(), devices, micro_batches: 4)
      x = random({4096, 16}, 9)
      in_use = fn -> for device <- Enum.uniq(devices), do: settled(device) end
      Pipeline.run(pipeline, x)
      before = in_use.()
      for _ <- 1..5, do: Pipeline.run(pipeline, x)
      for {now, before} <- Enum.zip(in_use.(), before), do: assert(now <= before)
    end
  end

  # The most bytes that are in use on devices while `fun` runs, beyond those before.
  defp most_bytes(devices, fun) do
    in_use = fn -> for(device <- Enum.uniq(devices), do: NativeV.device_stats(device).in_use_bytes) |> Enum.sum() end
    for device <- devices, do: settled(device)
    before = in_use.()
    watch = Task.async(fn -> most(in_use, 0) end)
    fun.()
    send(watch.pid, :stop)
    Task.await(watch) - before
  end

  defp most(in_use, most) do
    receive do
      :stop -> most
    after
      0 -> most(in_use, max(most, in_use.()))
    end
  end

  # Bytes that are in use on a device, once that does not change any more.
  defp settled(device, last \\ nil, equal \\ 0) do
    :erlang.garbage_collect()
    Process.sleep(10)
    now = NativeV.device_stats(device).in_use_bytes
    if equal == 20, do: now, else: settled(device, now, if(now == last, do: equal + 1, else: 0))
  end

  def tell(_event, _measurements, %{name: name}, here), do: send(here, {:compiled, name})
  def scaled(p, {x, by}), do: {Nx.multiply(x, by), {Nx.add(x, p)}}

  # Adds the parameter, and tells a process of the input.
  defp telling(here) do
    fn p, x ->
      x =
        Nx.runtime_call(Nx.template(x.shape, :f32), x, [], fn x, [] ->
          send(here, {:told, Nx.to_list(x)})
          x
        end)

      Nx.add(x, p)
    end
  end

  defp told(count) do
    for _ <- 1..count do
      assert_receive {:told, [number]}, 60_000
      number
    end
  end

  # Adds the parameter, once the process that is told of it says so.
  defp met(here, number) do
    fn p, x ->
      x =
        Nx.runtime_call(Nx.template(x.shape, :f32), x, [], fn x, [] ->
          send(here, {number, Nx.to_list(x), self()})

          receive do
            :go -> x
          after
            60_000 -> raise "nobody came"
          end
        end)

      Nx.add(x, p)
    end
  end

  describe "devices" do
    test "have the parameters of their stages alone", context do
      [first, second] = devices = on(context, 2)
      parameters = for key <- 1..2, do: %{w: random({512, 512}, key), b: random({512}, key)}
      pipeline = Pipeline.new(Enum.zip([[&layer/2, &layer/2], parameters, devices]))
      assert [%{w: w}, %{w: v}] = Pipeline.parameters(pipeline)
      assert {place(w), place(v)} == {first, second}
      host = for p <- parameters, do: Map.new(p, fn {k, t} -> {k, Nx.backend_copy(t, Nx.BinaryBackend)} end)
      before = for device <- devices, do: settled(device)
      again = Pipeline.new(Enum.zip([[&layer/2, &layer/2], host, devices]))
      grown = for {device, before} <- Enum.zip(devices, before), do: settled(device) - before
      # Of one device both stages.
      each = if first == second, do: 2 * 512 * 513 * 4, else: 512 * 513 * 4
      for bytes <- grown, do: assert(bytes in each..(each + 8192))
      assert inspect(again) =~ "micro_batches: 1"
    end

    @tag :several_devices
    test "together have what is too large for one", context do
      RemoteNode.start_distribution()
      # A limit that each device has: two layers fit, four don't.
      {:ok, _peer, node} = RemoteNode.start_link(%{"NX_VULKAN_MEMORY_LIMIT" => "#{48 * 1024 * 1024}"})
      [first, second] = on(context, 2)
      assert {:error, error} = :erpc.call(node, PipelineNode, :products, [2048, [first, first, first, first]], 120_000)
      assert %Nx.Vulkan.Error{kind: :out_of_memory, details: %{stage: stage, device: ^first}} = error
      assert stage in 2..3
      assert Exception.message(error) =~ "stage #{stage} on #{Devices.name(first)}: "
      assert {:ok, numbers} = :erpc.call(node, PipelineNode, :products, [2048, [first, first, second, second]], 120_000)
      assert numbers == PipelineNode.expected(4)
    end

    @tag :several_devices
    test "of other kinds compute within the bounds of numerics", context do
      {_, parameters, whole} = mlp = mlp()
      x = random({8, 16}, 9)

      expected =
        Nx.Defn.jit(fn p, x -> whole.(Tuple.to_list(p), x) end, compiler: Nx.Vulkan).(List.to_tuple(parameters), x)

      all = for %{usable: true, index: index} <- Nx.Vulkan.devices(), do: index
      devices = all |> Enum.reverse() |> Stream.cycle() |> Enum.take(3)

      result =
        mlp
        |> pipeline(devices, micro_batches: 4)
        |> Pipeline.run(x)
        |> Nx.backend_copy({B, device: hd(on(context, 1))})

      assert Nx.to_number(Nx.reduce_max(Nx.abs(Nx.subtract(result, expected)))) < 1.0e-5
    end
  end

  describe "compile/3" do
    test "compiles all that a run needs, and says what it gives", context do
      {_, parameters, _} = mlp()
      # No other test has compiled these.
      funs = for i <- 1..3, do: fn p, x -> Nx.add(layer(p, x), i / 7) end
      pipeline = pipeline({funs, parameters, nil}, on(context, 3), micro_batches: 2)
      assert Pipeline.compile(pipeline, Nx.template({6, 16}, :f32)) == Nx.template({6, 8}, :f32)
      here = self()

      :telemetry.attach(here, [:nx_vulkan, :compiler, :compile, :start], &__MODULE__.tell/4, here)
      assert Pipeline.run(pipeline, random({6, 16}, 1)).shape == {6, 8}
      :telemetry.detach(here)
      refute_received {:compiled, _}
    end
  end

  describe "errors" do
    test "say what is no pipeline", context do
      [device] = on(context, 1)
      assert_raise ArgumentError, ~r/expected a list of one stage or more, got: \[\]/, fn -> Pipeline.new([]) end

      assert_raise ArgumentError, ~r/expected stage 1 to be {fun, parameters, device}/, fn ->
        Pipeline.new([{&layer/2, %{}, device}, {&Nx.sin/1, %{}, device}])
      end

      assert_raise ArgumentError, ~r/expected stage 0 to be/, fn -> Pipeline.new([{&layer/2, %{}, nil}]) end

      assert_raise ArgumentError, ~r/unknown keys \[:micro\]/, fn ->
        Pipeline.new([{&layer/2, %{}, device}], micro: 2)
      end

      for n <- [0, 1.5, nil],
          do:
            assert_raise(ArgumentError, ~r/:micro_batches to be a positive integer/, fn ->
              Pipeline.new([{&layer/2, %{}, device}], micro_batches: n)
            end)

      error =
        assert_raise Nx.Vulkan.Error, ~r/stage 1 on device 99: .*no usable device matches "99"/, fn ->
          Pipeline.new([{&layer/2, %{}, device}, {&layer/2, %{}, 99}])
        end

      assert %{kind: :no_device, details: %{stage: 1, device: 99}} = error
    end

    test "say what batch can't be cut", context do
      pipeline = pipeline(mlp(), on(context, 3), micro_batches: 4)

      for call <- [&Pipeline.run/2, &Pipeline.compile/2] do
        assert_raise ArgumentError, ~r/a batch of 6 rows to be a multiple of the 4 micro-batches/, fn ->
          call.(pipeline, random({6, 16}, 1))
        end

        assert_raise ArgumentError, ~r/first axis of all tensors of the batch to be that of its rows, got: 4, 8/, fn ->
          call.(pipeline, {random({4, 16}, 1), random({8}, 1)})
        end

        assert_raise ArgumentError, ~r/got scalars/, fn -> call.(pipeline, 1.0) end
      end

      assert_raise ArgumentError, ~r/:micro_batches to be a positive integer, got: 0/, fn ->
        Pipeline.run(pipeline, random({6, 16}, 1), micro_batches: 0)
      end

      [device] = on(context, 1)
      summed = Pipeline.new([{fn _, x -> Nx.sum(x) end, {}, device}], micro_batches: 2)

      for call <- [&Pipeline.run/2, &Pipeline.compile/2] do
        assert_raise ArgumentError, ~r/expected the last stage to give tensors of 2 rows/, fn ->
          call.(summed, random({4, 16}, 1))
        end
      end

      assert Pipeline.run(summed, Nx.tensor([1.0, 2.0]), micro_batches: 1) |> Nx.to_number() == 3.0
    end

    test "of a stage name it, its device and what it got", context do
      devices = on(context, 2)
      [_, second] = devices

      pipeline =
        Pipeline.new(Enum.zip([[&layer/2, &layer/2], [parameters(16, 8, 1), parameters(9, 4, 2)], devices]),
          micro_batches: 2
        )

      name = Regex.escape(Devices.name(second))
      x = random({4, 16}, 1)

      assert_raise ArgumentError,
                   ~r/stage 1 on #{name}: dot\/zip expects shapes to be compatible.*\n\nstage 0 gave: .*f32\[2\]\[8\]/s,
                   fn -> Pipeline.run(pipeline, x) end

      assert_raise ArgumentError, ~r/stage 1 on #{name}: dot/, fn -> Pipeline.compile(pipeline, x) end

      assert_raise ArgumentError, ~r/stage 0 on .*: dot.*\n\nthe batch has: .*f32\[2\]\[15\]/s, fn ->
        Pipeline.run(pipeline, random({4, 15}, 1))
      end

      # The other stages end, and the next batch is as any other one.
      raising = fn p, x ->
        Nx.runtime_call(Nx.template(x.shape, :f32), Nx.add(x, p), [], fn _x, [] -> raise "no luck" end)
      end

      pipeline =
        Pipeline.new([{&Nx.add/2, 1.0, hd(devices)}, {raising, 1.0, second}, {&Nx.add/2, 1.0, hd(devices)}],
          micro_batches: 4
        )

      before = Process.info(self(), :links)

      assert_raise RuntimeError, ~r/^stage 1 on #{name}: no luck/, fn ->
        Pipeline.run(pipeline, Nx.tensor([1.0, 2.0, 3.0, 4.0]))
      end

      assert Process.info(self(), :links) == before
      refute_received _any
    end

    test "of any kind name the stage", context do
      [first, second] = on(context, 2)
      name = Regex.escape("stage 1 on #{Devices.name(second)}: ")
      v = Nx.tensor([1.0, 2.0])

      for {kind, message, fun} <- [
            {KeyError, "key :b not found in: ", fn p, x -> Nx.add(x, Map.fetch!(%{a: p}, :b)) end},
            {RuntimeError, "\\(MatchError\\) no match of right hand side value: ", fn p, x -> {:ok, _} = {p, x} end},
            {RuntimeError, "\\(Protocol.UndefinedError\\) protocol Nx.Container not implemented", fn _, _ -> :none end}
          ] do
        pipeline = Pipeline.new([{&Nx.add/2, 1.0, first}, {fun, 1.0, second}])

        for call <- [&Pipeline.run/2, &Pipeline.compile/2],
            do: assert_raise(kind, ~r/^#{name}#{message}/, fn -> call.(pipeline, v) end)
      end
    end

    test "and results leave no messages with a caller that traps exits", context do
      Process.flag(:trap_exit, true)
      pipeline = pipeline(mlp(), on(context, 3), micro_batches: 2)
      x = random({4, 16}, 1)
      before = Process.info(self(), :links)
      Pipeline.run(pipeline, x)
      Pipeline.map(pipeline, & &1.w)
      assert_raise ArgumentError, fn -> Pipeline.run(pipeline, random({4, 15}, 1)) end
      assert Process.info(self(), :links) == before
      # Ends of processes may come later than their results.
      refute_receive _any, 200
    end

    test "of parameters that were deallocated say whose they were", context do
      pipeline = pipeline(mlp(), on(context, 3))
      Nx.backend_deallocate(Enum.at(Pipeline.parameters(pipeline), 1))
      error = assert_raise Nx.Vulkan.Error, ~r/stage 1 on /, fn -> Pipeline.run(pipeline, random({4, 16}, 1)) end
      assert %{kind: :released, details: %{stage: 1}} = error
    end

    test "are none where the caller is killed: all stages end", context do
      here = self()
      stages = for number <- 0..1, do: {met(here, number), 1.0, Enum.at(on(context, 2), number)}
      pipeline = Pipeline.new(stages, micro_batches: 2)
      caller = spawn(fn -> Pipeline.run(pipeline, Nx.tensor([10.0, 20.0])) end)
      assert_receive {0, [10.0], first}, 60_000
      send(first, :go)
      assert_receive {0, [20.0], first}, 60_000
      assert_receive {1, [11.0], second}, 60_000
      monitors = for pid <- [first, second], do: Process.monitor(pid)
      Process.exit(caller, :kill)
      for monitor <- monitors, do: assert_receive({:DOWN, ^monitor, :process, _, :killed}, 60_000)
    end
  end

  describe "value_and_grad/5" do
    defp whole_gradient({_, parameters, whole}, x, y) do
      fun = fn parameters, x, y -> value_and_grad(parameters, &squares(y, whole.(Tuple.to_list(&1), x))) end
      Nx.Defn.jit(fun, compiler: Nx.Vulkan).(List.to_tuple(parameters), x, y)
    end

    defp near!(got, expected, within) do
      assert length(leaves(got)) == length(leaves(expected))

      for {got, expected} <- Enum.zip(leaves(got), leaves(expected)) do
        got = Nx.backend_copy(got, B)
        assert {got.shape, got.type} == {expected.shape, expected.type}
        assert Nx.to_number(Nx.reduce_max(Nx.abs(Nx.subtract(got, expected)))) <= within
      end
    end

    defp leaves(containers), do: containers |> List.wrap() |> Nx.Defn.Composite.flatten_list()

    test "is the gradient of the whole, but for the order of sums", context do
      mlp = mlp()
      {x, y} = {random({12, 16}, 9), random({12, 8}, 10)}
      {value, gradients} = whole_gradient(mlp, x, y)

      for n <- [1, 2, 4, 12] do
        devices = on(context, 3)
        pipeline = pipeline(mlp, devices, micro_batches: n)
        {got, of_stages, _pipeline} = Pipeline.value_and_grad(pipeline, x, y, &squares/2)
        near!(got, value, 1.0e-6)
        near!(of_stages, Tuple.to_list(gradients), 1.0e-6)

        for {gradient, device} <- Enum.zip(of_stages, devices),
            leaf <- leaves(gradient),
            do: assert(place(leaf) == device)

        # The same bits each time.
        {again, of_stages_again, _pipeline} = Pipeline.value_and_grad(pipeline, x, y, &squares/2)
        assert bits(again) == bits(got)
        assert Enum.map(leaves(of_stages_again), &bits/1) == Enum.map(leaves(of_stages), &bits/1)
      end
    end

    test "adds up the micro-batches in their order", context do
      mlp = mlp()
      {x, y} = {random({6, 16}, 9), random({6, 8}, 10)}
      pipeline = pipeline(mlp, on(context, 3))
      {value, gradients, _pipeline} = Pipeline.value_and_grad(pipeline, x, y, &squares/2, micro_batches: 3)

      parts =
        for {x, y} <- Enum.zip(Nx.to_batched(x, 2), Nx.to_batched(y, 2)),
            do: Pipeline.value_and_grad(pipeline, x, y, &squares/2)

      mean = fn [a, b, c] -> a |> Nx.add(b) |> Nx.add(c) |> Nx.divide(3) |> bits() end
      assert bits(value) == mean.(Enum.map(parts, &elem(&1, 0)))
      expected = parts |> Enum.map(&leaves(elem(&1, 1))) |> Enum.zip_with(mean)
      assert Enum.map(leaves(gradients), &bits/1) == expected
    end

    test "goes through containers, tables and skips, and past integers", context do
      table = random({11, 8}, 1)
      funs = [&embed/2, &masked/2, &pooled/2]
      parameters = [table, parameters(8, 8, 2), parameters(8, 3, 3)]
      ids = Nx.remainder(Nx.iota({6, 5}, type: :u8), 11)
      mask = Nx.greater(Nx.iota({6, 5}, axis: 1), 1)
      whole = fn [p, q, r], x -> pooled(r, masked(q, embed(p, x))) end
      mlp = {funs, parameters, whole}
      {x, y} = {%{ids: ids, mask: mask}, random({6, 3}, 4)}
      {value, gradients} = whole_gradient(mlp, x, y)

      {got, of_stages, _pipeline} =
        mlp |> pipeline(on(context, 3), micro_batches: 3) |> Pipeline.value_and_grad(x, y, &squares/2)

      near!(got, value, 1.0e-5)
      near!(of_stages, Tuple.to_list(gradients), 1.0e-5)

      skip =
        {[&fork/2, &layer_and_skip/2, &meet/2], for(key <- 1..3, do: parameters(16, 16, key)),
         fn [p, q, r], x -> meet(r, layer_and_skip(q, fork(p, x))) end}

      {x, y} = {random({8, 16}, 9), random({8, 16}, 10)}
      {value, gradients} = whole_gradient(skip, x, y)

      {got, of_stages, _pipeline} =
        skip |> pipeline(on(context, 3), micro_batches: 4) |> Pipeline.value_and_grad(x, y, &squares/2)

      near!(got, value, 1.0e-6)
      near!(of_stages, Tuple.to_list(gradients), 1.0e-6)
    end

    test "trains, with an optimizer on each device", context do
      {_, parameters, whole} = mlp = mlp()
      {x, y} = {random({12, 16}, 9), Nx.divide(random({12, 8}, 10), 2)}
      step = fn p, g -> Nx.subtract(p, Nx.multiply(0.5, g)) end
      update = fn p, g -> Map.new(p, fn {name, p} -> {name, step.(p, g[name])} end) end
      pipeline = pipeline(mlp, on(context, 3), micro_batches: 3)

      {pipeline, losses} =
        Enum.reduce(1..10, {pipeline, []}, fn _, {pipeline, losses} ->
          {loss, gradients, pipeline} = Pipeline.value_and_grad(pipeline, x, y, &squares/2)
          parameters = Pipeline.map(pipeline, [gradients], update)
          {Pipeline.put_parameters(pipeline, parameters), [Nx.to_number(loss) | losses]}
        end)

      {trained, expected} =
        Enum.reduce(1..10, {parameters, []}, fn _, {parameters, losses} ->
          {loss, gradients} = whole_gradient({nil, parameters, whole}, x, y)
          {Enum.zip_with(parameters, Tuple.to_list(gradients), update), [Nx.to_number(loss) | losses]}
        end)

      for {got, expected} <- Enum.zip(losses, expected), do: assert_in_delta(got, expected, 1.0e-5)
      assert hd(losses) < List.last(losses) / 2
      near!(Pipeline.parameters(pipeline), trained, 1.0e-5)
    end

    test "goes as many micro-batches ahead of a backward pass as there are stages from there on", context do
      here = self()
      [first, second, third] = on(context, 3)
      # Nothing asks for the gradients of the batch and of the targets, so that callbacks may have these.
      stages = [{telling(here), 1.0, first}, {&Nx.add/2, 1.0, second}, {&Nx.add/2, 1.0, third}]
      wait = met(here, :loss)
      loss = fn y, x -> Nx.mean(Nx.subtract(x, wait.(0.0, y))) end
      pipeline = Pipeline.new(stages, micro_batches: 6)
      zeros = Nx.broadcast(0.0, {6})
      run = Task.async(fn -> Pipeline.value_and_grad(pipeline, Nx.iota({6}, type: :f32), zeros, loss) end)
      assert_receive {:loss, [+0.0], stage}, 60_000
      assert told(3) == [0.0, 1.0, 2.0]
      refute_receive {:told, _}, 300
      send(stage, :go)

      for _ <- 2..6 do
        assert_receive {:loss, [+0.0], ^stage}, 60_000
        send(stage, :go)
      end

      {value, gradients, _} = Task.await(run, 60_000)
      assert Enum.map([value | gradients], &Nx.to_number/1) == [5.5, 1.0, 1.0, 1.0]
    end

    test "takes targets with the rows of the batch, and scalars", context do
      pipeline = pipeline(mlp(), on(context, 3), micro_batches: 2)
      {x, y} = {random({4, 16}, 9), random({4, 8}, 10)}

      # Two rows for four would be broadcast in each micro-batch.
      for {rows, targets} <- [{"2", random({2, 8}, 10)}, {"4, 8", {y, random({8, 8}, 10)}}] do
        assert_raise ArgumentError, ~r/of the targets to be that of the 4 rows of the batch, got: #{rows}$/, fn ->
          Pipeline.value_and_grad(pipeline, x, targets, fn _y, x -> Nx.mean(x) end)
        end
      end

      {value, _, _} = Pipeline.value_and_grad(pipeline, x, 0.5, &squares/2)
      {expected, _, _} = Pipeline.value_and_grad(pipeline, x, Nx.broadcast(0.5, {4, 8}), &squares/2)
      assert bits(value) == bits(expected)
    end

    test "takes no loss of several numbers, and says what the last stage got", context do
      [_, second] = devices = on(context, 2)
      pipeline = Pipeline.new(Enum.zip([[&Nx.add/2, &Nx.add/2], [1.0, 2.0], devices]), micro_batches: 2)
      v = Nx.tensor([1.0, 2.0, 3.0, 4.0])
      message = ~r/^stage 1 on #{Regex.escape(Devices.name(second))}: expected the loss to give a scalar.*f32\[2\]/s
      assert_raise ArgumentError, message, fn -> Pipeline.value_and_grad(pipeline, v, v, &Nx.subtract/2) end

      assert_raise ArgumentError, ~r/^stage 1 .*\n\nstage 0 gave: .*f32\[2\]/s, fn ->
        Pipeline.value_and_grad(pipeline, v, v, fn _y, x -> Nx.sum(Nx.dot(x, Nx.iota({3}))) end)
      end
    end

    test "says what has none", context do
      [device] = on(context, 1)
      pipeline = Pipeline.new([{fn _, x -> Nx.as_type(x, :s32) end, {}, device}, {&Nx.multiply/2, 2.0, device}])

      assert_raise ArgumentError, ~r/stage 1 on .*: no gradient goes to the stage before, which gives no float/, fn ->
        Pipeline.value_and_grad(pipeline, Nx.tensor([1.0]), Nx.tensor([1.0]), &squares/2)
      end

      assert_raise ArgumentError, ~r/expected the loss to be a function/, fn ->
        Pipeline.value_and_grad(pipeline, Nx.tensor([1.0]), Nx.tensor([1.0]), :mse)
      end

      assert_raise ArgumentError, ~r/a list with an element for each of the 2 stages, got: one of 1/, fn ->
        Pipeline.put_parameters(pipeline, [1])
      end

      assert_raise ArgumentError, ~r/expected a function of parameters and 1 more/, fn ->
        Pipeline.map(pipeline, [[1, 2]], &Nx.sin/1)
      end
    end
  end
end
