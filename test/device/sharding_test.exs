defmodule Nx.Vulkan.ShardingTest do
  # A mesh may have one device in several places, so that this needs no others; with `NX_VULKAN_TEST_DEVICE=several` the
  # places are different devices. What each function gives on a mesh is what it gives on one device.
  use ExUnit.Case, async: true

  import Nx.Defn

  alias Nx.Vulkan.Compiler
  alias Nx.Vulkan.Compiler.Lowering.Plan
  alias Nx.Vulkan.Compiler.Sharding.{Exchange, Layout, Partition}
  alias Nx.Vulkan.{Sharding, TwinDevices}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @moduletag :device

  doctest Sharding

  setup do
    Nx.default_backend(B)
    Process.put(:devices, TwinDevices.all())
    :ok
  end

  defp devices(count), do: :devices |> Process.get() |> TwinDevices.take(count)
  defp mesh(shape), do: %Nx.Mesh{name: "mesh", shape: shape}

  defp on_mesh(fun, args, shape, shardings, opts \\ []) do
    opts = [compiler: Nx.Vulkan, input_shardings: shardings, devices: devices(Tuple.product(shape))] ++ opts
    args = Sharding.split(args, mesh(shape), shardings)
    Nx.Defn.shard_jit(fun, mesh(shape), opts).(args)
  end

  # A function gives on a mesh what it gives on one device, up to `within`. Whether its results are left as they come,
  # whose shapes are the answer, or are asked to be whole on each device.
  defp check(fun, args, shape, shardings, opts \\ []) do
    expected = apply(Nx.Defn.jit(fun, compiler: Nx.Vulkan), args) |> listed()
    whole = Enum.map(expected, fn _ -> %{} end)
    results = on_mesh(fun, args, shape, shardings, output_shardings: whole)
    assert length(results) == Tuple.product(shape)

    for result <- results, {got, expected} <- Enum.zip(listed(result), expected) do
      assert {got.shape, got.type} == {expected.shape, expected.type}
      same!(got, expected, opts[:within] || 0)
    end

    assert results
           |> Enum.map(fn result -> result |> listed() |> Enum.map(&Nx.to_binary/1) end)
           |> Enum.uniq()
           |> length() == 1

    [first | _] = pieces = on_mesh(fun, args, shape, shardings)
    for piece <- pieces, do: assert(Enum.map(listed(piece), & &1.shape) == Enum.map(listed(first), & &1.shape))
    Enum.map(listed(first), & &1.shape)
  end

  defp listed(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> Enum.flat_map(&listed/1)
  defp listed(tensor), do: [tensor]

  defp same!(got, expected, 0), do: assert(Nx.to_binary(got) == Nx.to_binary(expected))

  defp same!(got, expected, within) do
    [got, expected] = for tensor <- [got, expected], do: Nx.backend_copy(tensor, B)
    difference = Nx.subtract(Nx.as_type(got, :f64), Nx.as_type(expected, :f64)) |> Nx.abs() |> Nx.reduce_max()
    assert Nx.to_number(difference) <= within
  end

  defp random(shape, type \\ :f32) do
    size = Tuple.product(shape)
    {numbers, _} = Nx.Random.uniform(Nx.Random.key(size), -1, 1, shape: shape, type: :f32)

    if match?({kind, _} when kind in [:s, :u], Nx.Type.normalize!(type)),
      do: numbers |> Nx.multiply(100) |> Nx.as_type(type),
      else: Nx.as_type(numbers, type)
  end

  # How often devices tell each other something, loops that the host drives as `:while`.
  defp exchanges(fun, args, shape, shardings) do
    mesh = Tuple.to_list(shape)

    {%Plan{steps: [{:run, program, inputs, _}]}, _, _, _} = Compiler.lower_for(fun, args, %{})
    layouts = Layout.arguments!(:shardings, shardings, args, mesh)
    partition = Partition.new(program, for([:input, i] <- inputs, do: Enum.at(layouts, i)), mesh)
    for {exchange, _} <- partition.steps, do: elem(exchange, 0)
  end

  describe "ops" do
    test "of elements keep their pieces, and bits" do
      {x, y, row} = {random({8, 6}), random({8, 6}), random({6})}
      fun = fn x, y, row -> Nx.select(Nx.greater(x, y), Nx.sin(x) |> Nx.multiply(row) |> Nx.add(1), Nx.pow(y, 2)) end
      assert check(fun, [x, y, row], {2}, [%{0 => [0]}, %{0 => [0]}, %{}]) == [{4, 6}]
      assert check(fun, [x, y, row], {2}, [%{1 => [0]}, %{}, %{0 => [0]}]) == [{8, 3}]
      assert check(fun, [x, y, row], {2, 3}, [%{0 => [0], 1 => [1]}, %{}, %{}]) == [{4, 2}]
      assert check(fun, [x, y, row], {2, 2}, [%{0 => [1, 0]}, %{0 => [0]}, %{}]) == [{2, 6}]
      # Both along one axis of the mesh: the second operand has to move.
      assert check(fun, [x, y, row], {2}, [%{0 => [0]}, %{1 => [0]}, %{}]) == [{4, 6}]
      assert exchanges(fun, [x, y, row], {2}, [%{0 => [0]}, %{0 => [0]}, %{}]) == []
      assert exchanges(fun, [x, y, row], {2}, [%{0 => [0]}, %{1 => [0]}, %{}]) == [:gather, :gather]
    end

    test "of types, constants and counters have the bits of the whole" do
      for type <- [:u8, :s16, :s64, :bf16, :f16, :f64, :c64] do
        fun = fn x ->
          Nx.add(x, Nx.iota({8, 6}, axis: 0, type: type))
          |> Nx.add(Nx.iota({8, 6}, type: type))
          |> Nx.multiply(Nx.broadcast(Nx.tensor(3, type: type), {8, 6}))
          |> Nx.add(Nx.eye({8, 6}, type: type))
        end

        assert check(fun, [random({8, 6}, type)], {4}, [%{0 => [0]}]) == [{2, 6}]
        assert check(fun, [random({8, 6}, type)], {2, 3}, [%{0 => [0], 1 => [1]}]) == [{4, 2}]
      end
    end

    test "that reduce combine what devices have" do
      x = random({8, 6}, :s32)

      for op <- [
            &Nx.sum/2,
            &Nx.product/2,
            &Nx.reduce_max/2,
            &Nx.reduce_min/2,
            &Nx.any/2,
            &Nx.all/2,
            &Nx.argmax/2,
            &Nx.argmin/2
          ] do
        axis = fn opts ->
          if op in [&Nx.argmax/2, &Nx.argmin/2],
            do: Keyword.put(Keyword.delete(opts, :axes), :axis, hd(opts[:axes])),
            else: opts
        end

        check(&op.(&1, axis.(axes: [0])), [x], {2}, [%{0 => [0]}])
        assert check(&op.(&1, axis.(axes: [1])), [x], {2}, [%{0 => [0]}]) == [{4}]

        check(&op.(&1, axis.(axes: [0], keep_axes: true) |> Keyword.delete(:keep_axes)), [x], {2, 3}, [
          %{0 => [0], 1 => [1]}
        ])
      end

      assert check(&Nx.sum(&1, axes: [1], keep_axes: true), [x], {2, 3}, [%{0 => [0], 1 => [1]}]) == [{4, 1}]
      # In any order, up to rounding.
      check(&{Nx.mean(&1), Nx.logsumexp(&1, axes: [0]), Nx.variance(&1)}, [random({8, 6})], {4}, [%{0 => [0]}],
        within: 1.0e-6
      )

      assert exchanges(&Nx.sum/1, [x], {2, 3}, [%{0 => [0], 1 => [1]}]) == [:combine]
    end

    test "on large tensors are combined in shares" do
      # More than a device combines for all, and no multiple of the devices.
      x = random({4, 300_001})
      check(&Nx.sum(&1, axes: [0]), [x], {4}, [%{0 => [0]}], within: 1.0e-6)
      check(&Nx.reduce_max(&1, axes: [0]), [x], {2, 2}, [%{0 => [1]}])
    end

    test "that multiply matrices are cut along every axis" do
      {a, b} = {random({4, 8, 6}, :s32), random({4, 6, 12}, :s32)}
      fun = &Nx.dot(&1, [2], [0], &2, [1], [0])
      assert check(fun, [a, b], {2}, [%{0 => [0]}, %{0 => [0]}]) == [{2, 8, 12}]
      assert check(fun, [a, b], {2}, [%{1 => [0]}, %{}]) == [{4, 4, 12}]
      assert check(fun, [a, b], {2}, [%{}, %{2 => [0]}]) == [{4, 8, 6}]
      assert check(fun, [a, b], {2}, [%{2 => [0]}, %{1 => [0]}]) == [{4, 8, 12}]
      assert check(fun, [a, b], {2}, [%{2 => [0]}, %{}]) == [{4, 8, 12}]
      assert check(fun, [a, b], {2, 3}, [%{1 => [0], 2 => [1]}, %{1 => [1], 2 => [0]}]) == [{4, 4, 12}]
      assert check(fun, [a, b], {2, 2}, [%{0 => [1]}, %{2 => [0]}]) == [{2, 8, 6}]
      assert exchanges(fun, [a, b], {2}, [%{1 => [0]}, %{}]) == []
      assert exchanges(fun, [a, b], {2}, [%{2 => [0]}, %{1 => [0]}]) == [:combine]
      # What is cut along rows and contracted elements: the second operand becomes whole.
      assert exchanges(fun, [a, b], {2}, [%{1 => [0]}, %{1 => [0]}]) == [:gather]
      check(&Nx.dot/2, [random({8, 6}), random({6, 4})], {2, 2}, [%{1 => [0]}, %{1 => [1]}], within: 1.0e-6)
    end

    test "of convolutions and windows" do
      {image, kernel} = {random({4, 6, 9, 9}), random({8, 6, 3, 3})}
      fun = &Nx.conv(&1, &2, padding: :same, strides: [2, 1])
      assert check(fun, [image, kernel], {2}, [%{0 => [0]}, %{}], within: 1.0e-5) == [{2, 8, 5, 9}]
      assert check(fun, [image, kernel], {2, 2}, [%{0 => [1]}, %{0 => [0]}], within: 1.0e-5) == [{2, 4, 5, 9}]
      assert check(fun, [image, kernel], {3}, [%{1 => [0]}, %{1 => [0]}], within: 1.0e-5) == [{4, 8, 5, 9}]

      permuted =
        &Nx.conv(&1, &2,
          input_permutation: [3, 1, 2, 0],
          kernel_permutation: [3, 2, 0, 1],
          output_permutation: [1, 3, 0, 2]
        )

      arguments = [random({9, 6, 9, 4}), random({3, 3, 6, 8})]
      check(permuted, arguments, {2}, [%{3 => [0]}, %{}], within: 1.0e-5)
      check(permuted, arguments, {2, 2}, [%{3 => [0]}, %{3 => [1]}], within: 1.0e-5)
      check(permuted, arguments, {2}, [%{0 => [0]}, %{}] |> List.replace_at(0, %{1 => [0]}), within: 1.0e-5)

      check(&Nx.conv(&1, &2, feature_group_size: 2), [image, random({8, 3, 3, 3})], {2}, [%{0 => [0]}, %{0 => [0]}],
        within: 1.0e-5
      )

      check(&Nx.conv(&1, &2, batch_group_size: 2), [image, random({8, 6, 3, 3})], {2}, [%{0 => [0]}, %{}],
        within: 1.0e-5
      )

      assert check(&Nx.window_max(&1, {1, 1, 2, 2}), [image], {2, 3}, [%{0 => [0], 1 => [1]}]) == [{2, 2, 8, 8}]
      check(&Nx.window_sum(&1, {1, 2, 1, 1}), [image], {2, 3}, [%{0 => [0], 1 => [1]}], within: 1.0e-6)
      check(&Nx.cumulative_sum(&1, axis: 1), [random({4, 6}, :s32)], {2, 3}, [%{0 => [0], 1 => [1]}])
    end

    test "that move elements" do
      x = random({8, 6, 4}, :s32)
      shardings = [%{0 => [0], 1 => [1]}]
      assert check(&Nx.transpose(&1, axes: [1, 2, 0]), [x], {2, 3}, shardings) == [{2, 4, 4}]
      assert check(&Nx.reshape(&1, {48, 4}), [x], {2}, [%{0 => [0]}]) == [{24, 4}]
      assert check(&Nx.reshape(&1, {2, 4, 1, 24}), [x], {2}, [%{0 => [0]}]) == [{1, 4, 1, 24}]
      assert check(&Nx.reshape(&1, {1, 8, 24}), [x], {2, 3}, shardings) == [{1, 4, 8}]
      assert check(&Nx.reshape(&1, {3, 64}), [x], {2}, [%{0 => [0]}]) == [{3, 64}]
      assert check(&Nx.new_axis(&1, 1), [x], {2, 3}, shardings) == [{4, 1, 2, 4}]
      assert check(&Nx.squeeze(Nx.new_axis(&1, 0)), [x], {2, 3}, shardings) == [{4, 2, 4}]
      assert check(&Nx.slice(&1, [0, 2, 1], [8, 3, 2]), [x], {2, 3}, shardings) == [{4, 3, 2}]
      assert check(&Nx.slice_along_axis(&1, Nx.tensor(1), 2, axis: 2), [x], {2}, [%{0 => [0]}]) == [{4, 6, 2}]

      assert check(&Nx.put_slice(&1, [0, 1, 0], &2), [x, random({8, 2, 4}, :s32)], {2}, [%{0 => [0]}, %{}]) == [
               {4, 6, 4}
             ]

      assert check(&Nx.pad(&1, 7, [{0, 0, 0}, {1, 2, 1}, {0, 0, 0}]), [x], {2, 3}, shardings) == [{4, 14, 4}]
      assert check(&Nx.reverse(&1, axes: [1]), [x], {2, 3}, shardings) == [{4, 6, 4}]
      assert check(&Nx.concatenate([&1, &2], axis: 1), [x, x], {2, 3}, shardings ++ [%{0 => [0]}]) == [{4, 12, 4}]
      assert check(&Nx.stack([&1, &2], axis: 1), [x, x], {2, 3}, shardings ++ [%{}]) == [{4, 2, 2, 4}]

      assert check(&Nx.broadcast(Nx.sum(&1, axes: [1]), {3, 8, 4}, axes: [1, 2]), [x], {2}, [%{0 => [0]}]) == [
               {3, 4, 4}
             ]

      assert check(&Nx.bitcast(&1, :f32), [x], {2, 3}, shardings) == [{4, 2, 4}]
    end

    test "that take elements by indices" do
      table = random({10, 6}, :s32)
      tokens = Nx.remainder(Nx.iota({4, 3}), 10)
      assert check(&Nx.take/2, [table, tokens], {2}, [%{}, %{0 => [0]}]) == [{2, 3, 6}]
      assert check(&Nx.take/2, [table, tokens], {2, 3}, [%{1 => [1]}, %{0 => [0]}]) == [{2, 3, 2}]
      assert check(&Nx.take/2, [table, tokens], {2}, [%{0 => [0]}, %{}]) == [{4, 3, 6}]

      assert check(&Nx.take_along_axis(&1, &2, axis: 0), [table, Nx.remainder(Nx.iota({4, 6}), 10)], {3}, [
               %{1 => [0]},
               %{}
             ]) == [{4, 2}]

      indices = Nx.remainder(Nx.iota({4, 1}), 10)
      assert check(&Nx.gather(&1, &2, axes: [0]), [table, indices], {2, 3}, [%{1 => [1]}, %{0 => [0]}]) == [{2, 2}]

      check(&Nx.indexed_add(&1, &2, &3, axes: [0]), [table, indices, random({4, 6}, :s32)], {2}, [
        %{},
        %{0 => [0]},
        %{0 => [0]}
      ])
    end

    test "along axes and of matrices" do
      x = random({4, 6, 6})

      for fun <- [&Nx.sort(&1, axis: 1), &Nx.argsort(&1, axis: 2), &Nx.cumulative_max(&1, axis: 1)],
          do: check(fun, [x], {2, 3}, [%{0 => [0], 1 => [1]}])

      assert check(&Nx.sort(&1, axis: 1), [x], {2, 3}, [%{0 => [0], 2 => [1]}]) == [{2, 6, 2}]
      assert [{2, 6, 2}, {2, 6, 2}] = check(&Nx.top_k(&1, k: 2), [x], {2}, [%{0 => [0]}])
      assert check(&Nx.fft/1, [x], {2}, [%{0 => [0]}]) == [{2, 6, 6}]
      assert [{2, 6, 6}, {2, 6, 6}] = check(&Nx.LinAlg.qr/1, [x], {2}, [%{0 => [0]}])
      assert check(&Nx.LinAlg.determinant/1, [x], {2}, [%{0 => [0]}]) == [{2}]

      assert check(&Nx.LinAlg.solve(&1, &2), [Nx.add(x, Nx.eye(6)), random({4, 6})], {2}, [%{0 => [0]}, %{}]) == [
               {2, 6}
             ]

      check(&Nx.LinAlg.cholesky(Nx.add(Nx.dot(&1, [2], [0], &1, [2], [0]), Nx.eye(6))), [x], {2}, [%{1 => [0]}],
        within: 1.0e-5
      )
    end
  end

  defn halving(x) do
    {x, _} =
      while {x, n = 0}, n < 5 do
        {x / 2, n + 1}
      end

    x
  end

  # Devices have to ask each other whether to go on, and for what they add.
  defn centring(x) do
    {x, n} =
      while {x, n = 0}, Nx.reduce_max(Nx.abs(x)) > 0.05 and n < 20 do
        {(x - Nx.mean(x, axes: [0])) / 2, n + 1}
      end

    {x, n}
  end

  defn choosing(x) do
    cond do
      Nx.sum(x) > 1.0e6 -> x * 2
      Nx.any(x > 0) -> x - Nx.mean(x, axes: [0])
      true -> -x
    end
  end

  describe "loops and branches" do
    test "run on each device alone where they can" do
      x = random({8, 6})
      assert check(&halving/1, [x], {2, 3}, [%{0 => [0], 1 => [1]}]) == [{4, 2}]
      assert exchanges(&halving/1, [x], {2, 3}, [%{0 => [0], 1 => [1]}]) == []
    end

    test "are driven by the host where devices tell each other something on the way" do
      x = random({8, 6})
      assert check(&centring/1, [x], {4}, [%{0 => [0]}], within: 1.0e-6) == [{2, 6}, {}]
      assert exchanges(&centring/1, [x], {4}, [%{0 => [0]}]) == [:while]
      assert check(&choosing/1, [x], {2}, [%{0 => [0]}], within: 1.0e-6) == [{4, 6}]
      assert :cond in exchanges(&choosing/1, [x], {2}, [%{0 => [0]}])
    end
  end

  # A network with its gradients and steps of gradient descent.
  defn(logits(x, {w1, b1, w2, b2}), do: Nx.dot(Nx.max(Nx.dot(x, w1) + b1, 0), w2) + b2)

  defn loss(parameters, x, y) do
    z = logits(x, parameters)
    shifted = z - stop_grad(Nx.reduce_max(z, axes: [1], keep_axes: true))
    Nx.mean(Nx.log(Nx.sum(Nx.exp(shifted), axes: [1])) - Nx.sum(shifted * y, axes: [1]))
  end

  defn step(parameters, x, y) do
    {loss, gradients} = value_and_grad(parameters, &loss(&1, x, y))
    {w1, b1, w2, b2} = parameters
    {g1, c1, g2, c2} = gradients
    {loss, w1 - 0.5 * g1, b1 - 0.5 * c1, w2 - 0.5 * g2, b2 - 0.5 * c2}
  end

  describe "training" do
    setup do
      parameters = {random({6, 16}), random({16}), random({16, 4}), random({4})}
      y = Nx.equal(Nx.remainder(Nx.iota({24, 1}), 4), Nx.iota({1, 4}))
      %{parameters: parameters, x: random({24, 6}), y: y}
    end

    test "with the batch cut has its gradients combined once", %{parameters: parameters, x: x, y: y} do
      shardings = [%{}, %{0 => [0]}, %{0 => [0]}]
      assert check(&step/3, [parameters, x, y], {4}, shardings, within: 1.0e-6) == [{}, {6, 16}, {16}, {16, 4}, {4}]

      exchanged = exchanges(&step/3, [parameters, x, y], {4}, shardings)
      assert exchanged == List.duplicate(:combine, 5)
    end

    test "with weights cut, too", %{parameters: parameters, x: x, y: y} do
      weights = [%{1 => [1]}, %{0 => [1]}, %{0 => [1]}, %{}]
      shapes = check(&step/3, [parameters, x, y], {3, 2}, [weights, %{0 => [0]}, %{0 => [0]}], within: 1.0e-6)
      assert shapes == [{}, {6, 8}, {8}, {8, 4}, {4}]
    end

    test "over several steps is that of one device", %{parameters: parameters, x: x, y: y} do
      shardings = [%{}, %{0 => [0]}, %{0 => [0]}]

      opts = [
        compiler: Nx.Vulkan,
        input_shardings: shardings,
        devices: devices(2),
        output_shardings: List.duplicate(%{}, 5)
      ]

      sharded = Nx.Defn.shard_jit(&step/3, mesh({2}), opts)
      [_, _] = pieces = Sharding.split([parameters, x, y], mesh({2}), shardings)
      single = Nx.Defn.jit(&step/3, compiler: Nx.Vulkan)

      {losses, _} =
        Enum.map_reduce(1..20, {pieces, parameters}, fn _, {pieces, parameters} ->
          results = sharded.(pieces)
          {loss, w1, b1, w2, b2} = single.(parameters, x, y)
          [{first, _, _, _, _} | _] = results
          next = for {{_, w1, b1, w2, b2}, [_, x, y]} <- Enum.zip(results, pieces), do: [{w1, b1, w2, b2}, x, y]
          {{Nx.to_number(first), Nx.to_number(loss)}, {next, {w1, b1, w2, b2}}}
        end)

      for {sharded, single} <- losses, do: assert_in_delta(sharded, single, 1.0e-5)
      assert elem(List.last(losses), 0) < elem(hd(losses), 0)
    end
  end

  test "a training step of Axon is that of one device" do
    model =
      Axon.input("x", shape: {nil, 6})
      |> Axon.dense(16, activation: :relu)
      |> Axon.batch_norm()
      |> Axon.dense(4, activation: :softmax)

    {init, step} = Axon.Loop.train_step(model, :categorical_cross_entropy, Polaris.Optimizers.adam(learning_rate: 0.01))
    {x, y} = {random({24, 6}), Nx.equal(Nx.remainder(Nx.iota({24, 1}), 4), Nx.iota({1, 4}))}
    batch = %{0 => [0]}
    shardings = [[batch, batch], %{}]
    opts = [compiler: Nx.Vulkan, input_shardings: shardings, output_shardings: [%{}], devices: devices(2)]
    sharded = Nx.Defn.shard_jit(step, mesh({2}), opts)
    single = Nx.Defn.jit(step, compiler: Nx.Vulkan)
    state = Nx.Defn.jit(init, compiler: Nx.Vulkan).({x, y}, Axon.ModelState.empty())
    pieces = [{x, y}] |> Sharding.split(mesh({2}), [[batch, batch]])
    run = fn states -> pieces |> Enum.zip_with(states, fn [xy], state -> [xy, state] end) |> sharded.() end

    {[one, other], expected} =
      Enum.reduce(1..3, {[state, state], state}, fn _, {states, state} -> {run.(states), single.({x, y}, state)} end)

    flat = &Nx.Defn.Composite.flatten_list([&1])
    for {a, b} <- Enum.zip(flat.(one), flat.(other)), do: assert(Nx.to_binary(a) == Nx.to_binary(b))
    for {a, b} <- Enum.zip(flat.(one), flat.(expected)), do: same!(a, b, 1.0e-4)
  end

  describe "EXLA's examples" do
    test "results that are cut in different ways" do
      args = [
        [Nx.tensor([[0], [1], [2], [3]]), Nx.tensor([[100], [101], [102], [103]])],
        [Nx.tensor([[10], [11], [12], [13]]), Nx.tensor([[100], [101], [102], [103]])],
        [Nx.tensor([[4], [5], [6], [7]]), Nx.tensor([[104], [105], [106], [107]])],
        [Nx.tensor([[14], [15], [16], [17]]), Nx.tensor([[104], [105], [106], [107]])]
      ]

      fun = fn x, y -> {Nx.add(x, y), Nx.multiply(y, 2)} end
      opts = [compiler: Nx.Vulkan, input_shardings: [%{0 => [0], 1 => [1]}, %{0 => [0]}], devices: devices(4)]
      results = Nx.Defn.shard_jit(fun, mesh({2, 2}), opts).(args)

      assert for({sum, double} <- results, do: {Nx.to_list(sum), Nx.to_list(double)}) == [
               {[[100], [102], [104], [106]], [[200], [202], [204], [206]]},
               {[[110], [112], [114], [116]], [[200], [202], [204], [206]]},
               {[[108], [110], [112], [114]], [[208], [210], [212], [214]]},
               {[[118], [120], [122], [124]], [[208], [210], [212], [214]]}
             ]
    end

    test "an axis that two axes of the mesh cut" do
      opts = [compiler: Nx.Vulkan, input_shardings: [%{0 => [0, 1], 1 => []}], devices: devices(4)]
      args = for i <- 0..3, do: [Nx.iota({4, 4})[i..i]]
      results = Nx.Defn.shard_jit(&Nx.transpose/1, mesh({2, 2}), opts).(args)
      assert Enum.map(results, &Nx.to_list/1) == for(i <- 0..3, do: for(j <- 0..3, do: [4 * i + j]))
    end

    test "a mesh of three axes, one of them of one device" do
      opts = [compiler: Nx.Vulkan, input_shardings: [%{0 => [0], 1 => [1], 2 => [2]}], devices: devices(4)]
      args = for i <- 0..3, do: [Nx.add(Nx.iota({2, 2, 2}), 8 * i)]
      results = Nx.Defn.shard_jit(&Nx.multiply(&1, 2), mesh({2, 1, 2}), opts).(args)
      assert Enum.map(results, &Nx.to_flat_list/1) == for(i <- 0..3, do: for(j <- 0..7, do: 2 * (8 * i + j)))
    end
  end

  test "no messages are left with a caller that traps exits" do
    Process.flag(:trap_exit, true)
    {x, y} = {Nx.iota({8, 16}, type: :f32), Nx.iota({16, 4}, type: :f32)}
    before = Process.info(self(), :links)
    on_mesh(&Nx.dot/2, [x, y], {2}, [%{1 => [0]}, %{0 => [0]}], output_shardings: [%{}])
    assert Process.info(self(), :links) == before
    # Ends of processes may come later than their results.
    refute_receive _any, 200
  end

  test "what a quick item raises comes after the others have ended" do
    slow = fn -> Process.sleep(50) end

    assert_raise RuntimeError, "no luck", fn ->
      Exchange.parallel([slow, fn -> raise "no luck" end, slow], &(&1 != slow), & &1.())
    end

    refute_receive _any, 200
  end

  test "results are where their devices are" do
    [one, other] = devices(2)
    [x, y] = on_mesh(&Nx.sum/1, [random({4})], {2}, [%{0 => [0]}])
    for {result, index} <- [{x, one}, {y, other}], do: assert({^index, _} = Nx.Vulkan.Devices.of(result.data.ref))
  end

  test "random numbers are those of one device" do
    fun = fn key, x ->
      {numbers, _} = Nx.Random.normal(key, shape: {8, 6})
      Nx.add(numbers, x)
    end

    assert check(fun, [Nx.Random.key(3), random({8, 6})], {2}, [%{}, %{0 => [0]}]) == [{4, 6}]
  end

  test "names and containers stay" do
    x = Nx.iota({4, 2}, names: [:rows, :columns])

    [first, _] =
      on_mesh(&%{sum: Nx.sum(&1.x, axes: [:columns]), y: &1.y}, [%{x: x, y: Nx.tensor(3)}], {2}, [[%{rows: [0]}, %{}]])

    assert %{sum: %{names: [:rows], shape: {2}}, y: %{shape: {}}} = first
  end

  test "containers of the same tensors are functions of their own" do
    add = fn map -> Map.new(map, fn {key, value} -> {key, Nx.add(value, 1)} end) end
    for key <- [:a, :b], do: assert([%{^key => _}, _] = on_mesh(add, [%{key => random({4})}], {2}, [%{0 => [0]}]))

    sums = fn x, y -> {Nx.sum(Nx.stack(Tuple.to_list(x))), Nx.sum(Nx.stack(Tuple.to_list(y)))} end
    [one, two, three] = Enum.map(1..3, &Nx.tensor/1)
    numbers = fn args -> on_mesh(sums, args, {2}, [%{}, %{}]) |> hd() |> listed() |> Enum.map(&Nx.to_number/1) end
    assert numbers.([{one, two}, {three}]) == [3, 3]
    assert numbers.([{one}, {two, three}]) == [1, 5]
  end

  test "what computes nothing is cut and put together" do
    x = random({4, 6})
    assert check(& &1, [x], {2}, [%{0 => [0]}]) == [{2, 6}]
    assert [piece, _] = on_mesh(& &1, [x], {2}, [%{}], output_shardings: [%{1 => [0]}])
    assert piece.shape == {4, 3}
    constant = fn _ -> Nx.tensor([1, 2, 3]) end
    for result <- on_mesh(constant, [x], {2}, [%{}]), do: assert(Nx.to_list(result) == [1, 2, 3])
  end

  defn growing(x) do
    {y, _} =
      while {y = x, i = 0}, i < 2 do
        {y * 1.5, i + 1}
      end

    y
  end

  test "gradients of loops that are wider than Nx says have their types" do
    gradient = fn x -> Nx.Defn.grad(x, &Nx.sum(growing(&1))) end
    x = Nx.tensor([1.0, 2.0], type: :f64)
    expected = Nx.Defn.jit(gradient, compiler: Nx.Vulkan).(x)
    [result, _] = on_mesh(gradient, [x], {2}, [%{0 => [0]}], output_shardings: [%{}])
    assert {result.type, Nx.to_list(result)} == {expected.type, Nx.to_list(expected)}
  end

  test "along an axis of one device nothing is cut" do
    assert exchanges(&Nx.sum/1, [random({4})], {1}, [%{0 => [0]}]) == []
  end

  describe "errors" do
    test "name the device and the tensor that are not as the others" do
      opts = [compiler: Nx.Vulkan, devices: devices(2), input_shardings: [%{0 => [0]}]]
      jit = Nx.Defn.shard_jit(&Nx.sum/1, mesh({2}), opts)
      message = ~r/tensor 1 of the arguments of device 1 to be f32\[2\] as that of the others, got: /
      assert_raise ArgumentError, message, fn -> jit.([[random({2})], [random({3})]]) end
      assert_raise ArgumentError, ~r/got: none/, fn -> jit.([[random({2})], []]) end
    end

    test "of what devices tell each other can be rescued" do
      opts = [compiler: Nx.Vulkan, devices: devices(2), input_shardings: [%{0 => [0]}]]
      jit = Nx.Defn.shard_jit(&Nx.sort(&1, axis: 0), mesh({2}), opts)
      [x, y] = [random({2}), random({2})]
      Nx.backend_deallocate(y)
      assert_raise Nx.Vulkan.Error, ~r/released/, fn -> jit.([[x], [y]]) end
    end

    test "of options and layouts that a mesh does not have" do
      x = random({4, 5})
      cut = fn -> on_mesh(&Nx.sin/1, [x], {2}, [%{0 => [0]}], output_shardings: [%{1 => [0]}]) end
      assert_raise ArgumentError, ~r/axis 1 of \{4, 5\} can't be cut into 2 pieces/, cut

      for {name, value} <- [device: 0, memory: 1, raise_on: :nan] do
        message = ~r/a function on a mesh has no option :#{name}/
        assert_raise ArgumentError, message, fn -> on_mesh(&Nx.sin/1, [x], {2}, [%{}], [{name, value}]) end
      end
    end

    test "tell what was expected" do
      opts = [compiler: Nx.Vulkan, devices: devices(2)]
      jit = fn fun, more -> Nx.Defn.shard_jit(fun, mesh({2}), opts ++ more) end
      args = [[random({4})], [random({4})]]

      assert_raise ArgumentError, ~r/:input_shardings to be a list of 1 shardings, got: nil/, fn ->
        jit.(&Nx.sum/1, []).(args)
      end

      assert_raise ArgumentError, ~r/list of 1 shardings, got: \[\]/, fn ->
        jit.(&Nx.sum/1, input_shardings: []).(args)
      end

      assert_raise ArgumentError, ~r/expected axes of a mesh of 1 axes, got \[1\]/, fn ->
        jit.(&Nx.sum/1, input_shardings: [%{0 => [1]}]).(args)
      end

      assert_raise ArgumentError, ~r/an axis of the mesh cuts twice/, fn ->
        jit.(&Nx.sum/1, input_shardings: [%{0 => [0, 0]}]).(args)
      end

      assert_raise ArgumentError, ~r/expected a map from axes to lists/, fn ->
        jit.(&Nx.sum/1, input_shardings: [[0]]).(args)
      end

      assert_raise ArgumentError, ~r/axis/, fn -> jit.(&Nx.sum/1, input_shardings: [%{3 => [0]}]).(args) end

      assert_raise ArgumentError, ~r/expected the arguments of 2 devices, got those of 1/, fn ->
        jit.(&Nx.sum/1, input_shardings: [%{}]).([[random({4})]])
      end

      assert_raise ArgumentError, ~r/a mesh of \{2, 64\} takes 128 devices/, fn ->
        Nx.Defn.shard_jit(&Nx.sum/1, mesh({2, 64}), compiler: Nx.Vulkan, input_shardings: [%{}]).(args)
      end

      assert_raise ArgumentError, ~r/can't be cut into 2 pieces/, fn ->
        Sharding.split([random({3})], mesh({2}), [%{0 => [0]}])
      end

      assert_raise ArgumentError, ~r/vectorized/, fn ->
        jit.(&Nx.sum/1, input_shardings: [%{}]).(for [x] <- args, do: [Nx.vectorize(x, :rows)])
      end

      called = fn x -> Nx.runtime_call(Nx.template({}, :f32), x, [], fn x, [] -> Nx.sum(x) end) end
      assert_raise Nx.Vulkan.Error, ~r/calls the host/, fn -> jit.(called, input_shardings: [%{}]).(args) end
    end
  end
end
