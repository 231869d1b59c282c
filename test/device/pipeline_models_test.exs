defmodule Nx.Vulkan.PipelineModelsTest do
  # Models of Axon that are cut between layers, wherever that may be. Those of Bumblebee: test/models/pipeline_test.exs.
  use ExUnit.Case, async: true

  alias Nx.Vulkan.{Devices, Pipeline, TwinDevices}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @compile {:no_warn_undefined, [Axon, Axon.Losses, Axon.ModelState, Polaris.Optimizers, Polaris.Updates]}
  @moduletag :device
  if not Code.ensure_loaded?(Axon), do: @moduletag(skip: "Axon is none of the packages")

  setup do
    Nx.default_backend(B)
    %{devices: TwinDevices.all()}
  end

  defp on(%{devices: devices}, count), do: TwinDevices.take(devices, count)
  defp place(%Nx.Tensor{data: %B{ref: ref}}), do: ref |> Devices.of() |> elem(0)

  defp random(shape, key) do
    {numbers, _} = Nx.Random.uniform(Nx.Random.key(key), -1, 1, shape: shape, type: :f32)
    numbers
  end

  defp leaves(containers), do: containers |> List.wrap() |> Nx.Defn.Composite.flatten_list()
  defp bits(containers), do: containers |> leaves() |> Enum.map(&{&1.shape, &1.type, Nx.to_binary(&1)})

  defp initial(model, input) do
    {init, _} = Axon.build(model, compiler: Nx.Vulkan, seed: 7)
    init.(input, Axon.ModelState.empty())
  end

  defp predict(model, state, input, opts \\ []) do
    {_, predict} = Axon.build(model, [compiler: Nx.Vulkan] ++ opts)
    predict.(state, input)
  end

  # The names of all layers, as Axon counts them.
  defp names(model) do
    message = assert_raise ArgumentError, fn -> Pipeline.from_model(model, %{}, devices: [0], first: [""]) end
    [_, names] = Regex.run(~r/it has (.*)/, Exception.message(message))
    for [_, name] <- Regex.scan(~r/"([^"]*)"/, names), do: name
  end

  # A residual connection across most layers, and layers without names of their own.
  defp residual do
    x = Axon.input("x") |> Axon.dense(8)

    deep =
      Enum.reduce(1..4, x, fn _, x -> x |> Axon.dense(8, activation: :tanh) |> Axon.layer_norm() |> Axon.add(x) end)

    deep |> Axon.dropout(rate: 0.5) |> Axon.add(x) |> Axon.dense(3)
  end

  defp normalized do
    Axon.input("x")
    |> Axon.dense(8)
    |> Axon.batch_norm()
    |> Axon.relu()
    |> Axon.dense(8)
    |> Axon.batch_norm()
    |> Axon.dense(3)
  end

  # Two inputs, of which one comes in late and one may be missing; a container between layers and as the result.
  defp branched do
    x = Axon.input("x")
    late = Axon.input("late")
    maybe = Axon.input("maybe", optional: true)
    {sequence, {cell, hidden}} = x |> Axon.embedding(11, 8) |> Axon.lstm(8, name: "lstm")
    pooled = Axon.nx(sequence, &Nx.mean(&1, axes: [1]))
    scaled = Axon.layer(&scale/3, [Axon.dense(pooled, 8), Axon.optional(Axon.dense(maybe, 8))])
    block = Axon.block(fn x -> x |> Axon.dense(8) |> Axon.tanh() end)
    merged = Axon.concatenate([block.(scaled), block.(Axon.dense(late, 8)), cell, hidden])
    Axon.container(%{logits: Axon.dense(merged, 3), pooled: pooled, missing: Axon.optional(maybe), late: late})
  end

  defp scale(x, %{__struct__: Axon.None}, _opts), do: x
  defp scale(x, by, _opts), do: Nx.multiply(x, by)

  # One layer that is used early and late.
  defp tied do
    shared = Axon.block(fn x -> Axon.dense(x, 8, name: "inner") end, name: "tied")
    Axon.input("x") |> shared.() |> Axon.tanh() |> Axon.dense(8) |> Axon.tanh() |> shared.() |> Axon.dense(3)
  end

  test "a cut anywhere gives the bits of the model", context do
    ids = Nx.remainder(Nx.iota({4, 5}), 11)
    branched = %{"x" => ids, "late" => random({4, 6}, 2)}

    for {model, input} <- [
          {residual(), random({4, 6}, 1)},
          {normalized(), %{"x" => random({4, 6}, 1)}},
          {tied(), random({4, 8}, 1)},
          {branched(), branched},
          {branched(), Map.put(branched, "maybe", random({4, 6}, 3))}
        ] do
      state = initial(model, input)
      expected = bits(predict(model, state, input))
      names = names(model)

      for name <- names do
        pipeline = Pipeline.from_model(model, state, devices: on(context, 2), first: [name])
        result = Pipeline.run(pipeline, input)
        assert {name, bits(result)} == {name, expected}
        for leaf <- leaves(result), do: assert(place(leaf) == List.last(on(context, 2)))
      end

      # As many stages as there are layers.
      [_ | all] = names
      pipeline = Pipeline.from_model(model, state, devices: on(context, length(names)), first: all)
      assert bits(Pipeline.run(pipeline, input)) == expected
      assert bits(Pipeline.run(pipeline, input, micro_batches: 2)) == bits(halves(model, state, input))
    end
  end

  # The results of both halves of a batch.
  defp halves(model, state, input) do
    [first, second] =
      for half <- 0..1 do
        part = fn t -> Nx.slice_along_axis(t, half * 2, 2) end

        predict(
          model,
          state,
          if(is_struct(input), do: part.(input), else: Map.new(input, fn {k, t} -> {k, part.(t)} end))
        )
      end

    Enum.zip_with(leaves(first), leaves(second), &Nx.concatenate([&1, &2]))
  end

  test "layers keep the names of the model, and each stage has its own", context do
    model = residual()
    state = initial(model, random({2, 6}, 1))
    pipeline = Pipeline.from_model(model, state, devices: on(context, 3), first: ["dense_2", "dense_5"])
    layers = for %{data: data} <- Pipeline.parameters(pipeline), do: data |> Map.keys() |> Enum.sort()

    assert layers == [
             ["dense_0", "dense_1", "layer_norm_0"],
             ["dense_2", "dense_3", "dense_4", "layer_norm_1", "layer_norm_2", "layer_norm_3"],
             ["dense_5"]
           ]

    assert Enum.map(pipeline.stages, & &1.device) == on(context, 3)
  end

  test "parameters are divided by their bytes", context do
    model = Axon.input("x") |> Axon.dense(4) |> Axon.dense(100) |> Axon.dense(4) |> Axon.dense(100) |> Axon.dense(4)
    state = initial(model, random({2, 100}, 1))

    bytes = fn count ->
      pipeline = Pipeline.from_model(model, state, devices: on(context, count))
      input = random({2, 100}, 1)
      assert bits(Pipeline.run(pipeline, input)) == bits(predict(model, state, input))
      for p <- Pipeline.parameters(pipeline), do: [p] |> leaves() |> Enum.map(&Nx.byte_size/1) |> Enum.sum()
    end

    [d0, d1] = [4 * (100 * 4 + 4), 4 * (4 * 100 + 100)]
    assert bytes.(1) == [3 * d0 + 2 * d1]
    assert bytes.(2) == [d0 + d1 + d0, d1 + d0]
    assert bytes.(3) == [d0 + d1, d0 + d1, d0]
    assert bytes.(5) == [d0, d1, d0, d1, d0]
    # No more stages than there are layers with parameters.
    assert bytes.(9) == [d0, d1, d0, d1, d0]
  end

  test "options are those of Axon", context do
    x = Axon.input("x") |> Axon.dense(4)
    told = Axon.layer(fn x, opts -> if opts[:told], do: Nx.add(x, 100), else: x end, [x], global_options: [:told])
    model = Axon.dense(told, 2)
    input = random({2, 3}, 1)
    state = initial(model, input)
    opts = [global_layer_options: [told: true]]
    expected = predict(model, state, input, opts)
    assert bits(expected) != bits(predict(model, state, input))
    pipeline = Pipeline.from_model(%{model: model, params: state}, [devices: on(context, 2)] ++ opts)
    assert bits(Pipeline.run(pipeline, input)) == bits(expected)
    # Maps are parameters as well.
    pipeline = Pipeline.from_model(model, state.data, devices: on(context, 2))
    assert bits(Pipeline.run(pipeline, input)) == bits(predict(model, state, input))
  end

  test "errors say what can't be cut", context do
    model = residual()
    state = initial(model, random({2, 6}, 1))
    cut = fn opts -> Pipeline.from_model(model, state, opts) end

    assert_raise ArgumentError, ~r/the model has no layer "dense_9"; it has "x", "dense_0", "dense_1",/, fn ->
      cut.(devices: on(context, 2), first: ["dense_9"])
    end

    assert_raise ArgumentError, ~r/in the order of the model, each once; "dense_1" comes too late/, fn ->
      cut.(devices: on(context, 3), first: ["dense_3", "dense_1"])
    end

    assert_raise ArgumentError, ~r/3 stages take as many devices, got 2/, fn ->
      cut.(devices: on(context, 2), first: ["dense_1", "dense_3"])
    end

    assert_raise ArgumentError, ~r/:first to be a list of names/, fn ->
      cut.(devices: on(context, 2), first: "dense_1")
    end

    assert_raise ArgumentError, ~r/:mode to be :inference or :train, got: :both/, fn ->
      cut.(devices: on(context, 2), mode: :both)
    end

    assert_raise ArgumentError, ~r/expected :devices to be a list/, fn -> cut.(devices: 0) end
    assert_raise Nx.Vulkan.Error, ~r/no usable device matches "99"/, fn -> cut.(devices: [99]) end
    assert_raise ArgumentError, ~r/expected a model of Axon, got: :model/, fn -> Pipeline.from_model(:model, state) end
    assert_raise ArgumentError, ~r/unknown keys \[:frist\]/, fn -> cut.(devices: on(context, 2), frist: ["dense_1"]) end

    for wrong <- [nil, Nx.tensor(1), [devices: on(context, 2)]] do
      assert_raise ArgumentError, ~r/expected the parameters of a model of Axon, .*, got: /, fn ->
        Pipeline.from_model(model, wrong)
      end
    end

    # Errors of Axon that have no message of their own.
    assert_raise RuntimeError, ~r/^stage 1 on .*: \(Axon.CompileError\) .* named dense_5/, fn ->
      wrong = put_in(state.data["dense_5"]["kernel"], random({5, 3}, 1))
      model |> Pipeline.from_model(wrong, devices: on(context, 2)) |> Pipeline.run(random({2, 6}, 1))
    end

    pipeline = cut.(devices: on(context, 2), first: ["dense_2"])
    wrong = update_in(Pipeline.parameters(pipeline), [Access.at(1), Access.key!(:data)], &Map.delete(&1, "dense_3"))
    # Axon says which layer it is.
    assert_raise ArgumentError, ~r/stage 1 on .*parameter "kernel" for layer: "dense_3"/, fn ->
      pipeline |> Pipeline.put_parameters(wrong) |> Pipeline.run(random({2, 6}, 1))
    end
  end

  describe "training" do
    defp loss, do: &Axon.Losses.mean_squared_error(&1, &2, reduction: :mean)

    # The gradients of all layers by their names.
    defp whole(model, state, x, y) do
      {_, predict} = Axon.build(model, mode: :inference)

      fun = fn data, x, y ->
        Nx.Defn.value_and_grad(data, fn data -> loss().(y, predict.(%{state | data: data}, x)) end)
      end

      Nx.Defn.jit_apply(fun, [state.data, x, y], compiler: Nx.Vulkan)
    end

    defp near!(got, expected) do
      got = Nx.backend_copy(got, B)
      assert {got.shape, got.type} == {expected.shape, expected.type}
      assert Nx.to_number(Nx.reduce_max(Nx.abs(Nx.subtract(got, expected)))) <= 2.0e-6
    end

    test "has the gradients of the model", context do
      for {model, x} <- [{residual(), random({8, 6}, 1)}, {tied(), random({8, 8}, 1)}] do
        y = random({8, 3}, 2)
        state = initial(model, x)
        {value, gradients} = whole(model, state, x, y)
        pipeline = Pipeline.from_model(model, state, devices: on(context, 3), micro_batches: 4)
        {got, of_stages, _pipeline} = Pipeline.value_and_grad(pipeline, x, y, loss())
        near!(got, value)
        layers = for %{data: data} <- of_stages, {layer, parameters} <- data, do: {layer, parameters}
        assert layers |> Enum.map(&elem(&1, 0)) |> Enum.uniq() |> Enum.sort() == gradients |> Map.keys() |> Enum.sort()
        # Of layers in several stages, each has the whole.
        for {layer, parameters} <- layers,
            {got, expected} <- Enum.zip(leaves(parameters), leaves(gradients[layer])),
            do: near!(got, expected)
      end
    end

    test "keeps layers of several stages the same", context do
      model = tied()
      {x, y} = {random({8, 8}, 1), random({8, 3}, 2)}

      pipeline =
        Pipeline.from_model(model, initial(model, x), devices: on(context, 2), first: ["dense_0"], micro_batches: 2)

      assert pipeline.shared == [{"tied", [0, 1]}]
      {init, update} = Polaris.Optimizers.adam(learning_rate: 0.05)
      states = Pipeline.map(pipeline, init)

      step = fn parameters, gradients, state ->
        {updates, state} = update.(gradients, state, parameters)
        {Polaris.Updates.apply_updates(parameters, updates), state}
      end

      {pipeline, _states, losses} =
        Enum.reduce(1..8, {pipeline, states, []}, fn _, {pipeline, states, losses} ->
          {loss, gradients, pipeline} = Pipeline.value_and_grad(pipeline, x, y, loss())
          {parameters, states} = pipeline |> Pipeline.map([gradients, states], step) |> Enum.unzip()
          {Pipeline.put_parameters(pipeline, parameters), states, [Nx.to_number(loss) | losses]}
        end)

      assert hd(losses) < List.last(losses) / 2
      [%{data: %{"tied" => first}}, %{data: %{"tied" => second}}] = Pipeline.parameters(pipeline)
      assert bits(first) == bits(second)
    end

    # Dropout in all stages, and statistics of batches.
    defp stateful do
      Axon.input("x")
      |> Axon.dense(16)
      |> Axon.batch_norm()
      |> Axon.relu()
      |> Axon.dropout(rate: 0.3, seed: 1)
      |> Axon.dense(16)
      |> Axon.batch_norm()
      |> Axon.dropout(rate: 0.3, seed: 2)
      |> Axon.dense(3)
    end

    # The mean of the gradients of parts of a batch, and the state after them: what the pipeline is to give.
    defp one_after_the_other(model, state, parts) do
      {_, predict} = Axon.build(model, mode: :train)

      fun = fn state, x, y ->
        gradient = fn data ->
          %{prediction: prediction, state: kept} = predict.(%{state | data: data}, x)
          {loss().(y, prediction), kept}
        end

        Nx.Defn.value_and_grad(state.data, gradient, &elem(&1, 0))
      end

      {results, state} =
        Enum.map_reduce(parts, state, fn {x, y}, state ->
          {{value, kept}, gradients} = Nx.Defn.jit_apply(fun, [state, x, y], compiler: Nx.Vulkan)
          {{value, gradients}, Axon.ModelState.update(state, %{}, kept)}
        end)

      mean = fn [first | _] = all ->
        all |> Enum.reduce(&Nx.add(&2, &1)) |> Nx.divide(Nx.as_type(length(all), first.type))
      end

      {values, gradients} = Enum.unzip(results)
      names = for {layer, parameters} <- Enum.sort(hd(gradients)), {name, _} <- Enum.sort(parameters), do: [layer, name]
      {mean.(values), Map.new(names, fn path -> {path, mean.(Enum.map(gradients, &get_in(&1, path)))} end), state}
    end

    test "as Axon trains hands the state of layers on", context do
      model = stateful()
      {x, y} = {random({8, 6}, 1), random({8, 3}, 2)}
      {init, _} = Axon.build(model, compiler: Nx.Vulkan, seed: 7, mode: :train)
      state = init.(x, Axon.ModelState.empty())

      for n <- [1, 2, 4] do
        pipeline = Pipeline.from_model(model, state, devices: on(context, 3), micro_batches: n, mode: :train)
        parts = Enum.zip(Nx.to_batched(x, div(8, n)), Nx.to_batched(y, div(8, n)))

        # Two steps, of which the second goes on with the state of the first.
        Enum.reduce(1..2, {pipeline, state}, fn _, {pipeline, state} ->
          {value, gradients, state} = one_after_the_other(model, state, parts)
          {got, of_stages, pipeline} = Pipeline.value_and_grad(pipeline, x, y, loss())
          near!(got, value)

          for %{data: data} <- of_stages, {layer, parameters} <- data, {name, gradient} <- parameters do
            if Nx.Type.float?(gradient.type) and name not in ["mean", "var"],
              do: near!(gradient, gradients[[layer, name]])
          end

          for %{data: data} <- Pipeline.parameters(pipeline), {layer, parameters} <- data, {name, got} <- parameters do
            near!(got, state.data[layer][name])
          end

          {pipeline, state}
        end)
        |> then(fn {pipeline, state} ->
          # Inference has no dropout, and the averages.
          [got, expected] = [Pipeline.run(pipeline, x, micro_batches: 1), predict(model, state, x)]
          near!(got, expected)
        end)
      end

      # Another mask each time.
      pipeline = Pipeline.from_model(model, state, devices: on(context, 3), mode: :train)
      {first, _, pipeline} = Pipeline.value_and_grad(pipeline, x, y, loss())
      {second, _, _} = Pipeline.value_and_grad(pipeline, x, y, loss())
      assert bits(first) != bits(second)
      # Without the mode nothing of it.
      plain = Pipeline.from_model(model, state, devices: on(context, 3))
      {value, _, same} = Pipeline.value_and_grad(plain, x, y, loss())
      near!(value, loss().(y, predict(model, state, x)))
      assert bits(Pipeline.parameters(same)) == bits(Pipeline.parameters(plain))
    end

    test "refuses one layer with state in several stages", context do
      shared = Axon.block(fn x -> x |> Axon.dense(8) |> Axon.batch_norm() end, name: "tied")
      model = Axon.input("x") |> shared.() |> Axon.dense(8) |> shared.()
      x = random({4, 8}, 1)
      options = [devices: on(context, 2), first: ["dense_0"]]
      state = initial(model, x)
      assert bits(Pipeline.run(Pipeline.from_model(model, state, options), x)) == bits(predict(model, state, x))

      assert_raise ArgumentError, ~r/layer "tied", which has state, is in several stages/, fn ->
        Pipeline.from_model(model, state, [mode: :train] ++ options)
      end
    end

    test "leaves state and frozen parameters as they are", context do
      model = normalized()
      x = random({8, 6}, 1)
      state = model |> initial(x) |> Axon.ModelState.freeze(&match?(["dense_1", "kernel"], &1))
      assert state.frozen_parameters == %{"dense_1" => ["kernel"]}
      pipeline = Pipeline.from_model(model, state, devices: on(context, 2), micro_batches: 2)
      {_, gradients, _} = Pipeline.value_and_grad(pipeline, x, random({8, 3}, 2), loss())
      gradients = for %{data: data} <- gradients, layer <- data, into: %{}, do: layer
      zero? = fn t -> t |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number() |> Kernel.==(0.0) end
      assert zero?.(gradients["dense_1"]["kernel"])
      refute zero?.(gradients["dense_1"]["bias"])
      for layer <- ["batch_norm_0", "batch_norm_1"], name <- ["mean", "var"], do: assert(zero?.(gradients[layer][name]))
      refute zero?.(gradients["batch_norm_1"]["gamma"])
    end
  end
end
