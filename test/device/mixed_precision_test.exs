Code.require_file("../../examples/digits/data.exs", __DIR__)

defmodule Nx.Vulkan.MixedPrecisionTest do
  # The code of guides/mixed_precision.md, on the digits of the demo: curves in mixed precision beside those of f32.
  use ExUnit.Case, async: true

  @moduletag :device
  @moduletag timeout: to_timeout(minute: 10)
  if not Code.ensure_loaded?(Axon), do: @moduletag(skip: "Axon is none of the packages")

  @guide Path.expand("../../guides/mixed_precision.md", __DIR__)
  @external_resource @guide
  @train 1437
  @batch 64
  @epochs 4

  setup_all do: Nx.Vulkan.Guides.run(@guide)

  setup do
    Nx.default_backend(Nx.Vulkan.VulkanoBackend)
    Nx.Defn.default_options(compiler: Nx.Vulkan)
    {train, {images, labels}} = Digits.Data.split(@train, 42)
    %{train: train, images: Nx.divide(images, 16), labels: labels}
  end

  defp batches({images, labels}) do
    order = Nx.tensor(Digits.Data.permutation(@train, 1))
    [images, labels] = for tensor <- [Nx.divide(images, 16), labels], do: Nx.take(tensor, order)

    for i <- 0..(div(@train, @batch) - 1), range = (i * @batch)..((i + 1) * @batch - 1) do
      {images[range], labels[range]}
    end
  end

  defp accuracy(logits, labels), do: logits |> Nx.argmax(axis: 1) |> Nx.equal(labels) |> Nx.mean() |> Nx.to_number()

  # The largest difference of losses, relative to the reference's.
  defp apart(losses, reference), do: Enum.zip_with(losses, reference, &(abs(&1 - &2) / &2)) |> Enum.max()

  describe "a defn and Polaris" do
    defp train_defn(context, opts, epochs) do
      {w1, key} = Nx.Random.normal(Nx.Random.key(42), 0.0, :math.sqrt(2 / 64), shape: {64, 128})
      {w2, _key} = Nx.Random.normal(key, 0.0, :math.sqrt(2 / 128), shape: {128, 10})
      parameters = %{w1: w1, b1: Nx.broadcast(0.0, {128}), w2: w2, b2: Nx.broadcast(0.0, {10})}
      {init, update} = Polaris.Optimizers.adam(learning_rate: 0.003)
      step = &apply(Mixed, :step, [&1, &2, &3, &4, [update: update] ++ opts])

      {losses, {parameters, _state}} =
        Enum.map_reduce(1..epochs, {parameters, init.(parameters)}, fn _epoch, state ->
          {losses, state} =
            Enum.map_reduce(batches(context.train), state, fn {images, labels}, {parameters, state} ->
              {loss, parameters, state} = step.(parameters, state, images, labels)
              {loss, {parameters, state}}
            end)

          {losses |> Nx.stack() |> Nx.mean() |> Nx.to_number(), state}
        end)

      assert Enum.all?(Map.values(parameters), &(Nx.type(&1) == {:f, 32}))
      {losses, accuracy(apply(Mixed, :logits, [parameters, context.images]), context.labels)}
    end

    test "follow the curve of f32", context do
      {reference, exact} = train_defn(context, [type: {:f, 32}], 15)
      assert exact > 0.95

      for {type, scale, bound} <- [{{:bf, 16}, 1, 0.03}, {{:f, 16}, 1, 0.01}, {{:f, 16}, 1024, 0.01}] do
        {losses, accuracy} = train_defn(context, [type: type, scale: scale], 15)
        assert apart(losses, reference) < bound
        assert losses != reference
        assert_in_delta accuracy, exact, 0.01
      end
    end
  end

  describe "a recurrent layer of Axon" do
    test "goes backwards in bf16 with narrow cells", context do
      {states, _} = "rows" |> Axon.input(shape: {nil, 8, 8}) |> Axon.lstm(32, unroll: :static)
      model = states |> Axon.nx(& &1[[.., -1, ..]]) |> Axon.dense(10)
      cast = context.narrow.(model, {:bf, 16})
      narrow = model |> context.narrow_cells.() |> context.narrow.({:bf, 16})
      {init, _} = Axon.build(model, seed: 42, compiler: Nx.Vulkan)
      initial = init.(Nx.template({@batch, 8, 8}, :f32), Axon.ModelState.empty())

      batches =
        for {images, labels} <- batches(context.train), do: {Nx.reshape(images, {:auto, 8, 8}), Nx.new_axis(labels, 1)}

      losses = fn model ->
        {init, step} = Axon.Loop.train_step(model, &loss/2, Polaris.Optimizers.adam(learning_rate: 0.01))
        step = Nx.Defn.jit(step)

        {losses, _} =
          for _ <- 1..3, batch <- batches, reduce: {[], init.(hd(batches), initial)} do
            {losses, state} -> then(step.(batch, state), &{[&1.loss | losses], &1})
          end

        # The running mean of the whole training.
        Nx.to_number(hd(losses))
      end

      [exact, cast, narrow] = Enum.map([model, cast, narrow], losses)
      # That of chance is 2.3.
      assert exact < 1.5
      assert abs(narrow - exact) < 0.05 * exact
      assert abs(cast - exact) < 0.05 * exact
      assert Enum.uniq([exact, cast, narrow]) == [exact, cast, narrow]
    end

    defp loss(labels, logits) do
      Axon.Losses.categorical_cross_entropy(labels, logits, from_logits: true, reduction: :mean, sparse: true)
    end
  end

  describe "a transformer of Axon" do
    # Images are sequences of 8 rows.
    defp reader do
      positions = Axon.param("positions", {8, 32}, initializer: Axon.Initializers.normal(scale: 0.02))

      "images"
      |> Axon.input(shape: {nil, 8, 8})
      |> Axon.dense(32)
      |> then(&Axon.layer(fn x, positions, _opts -> Nx.add(x, positions) end, [&1, positions], op_name: :positions))
      |> block()
      |> block()
      |> Axon.layer_norm()
      |> Axon.nx(&Nx.mean(&1, axes: [1]))
      |> Axon.dense(10)
    end

    defp block(x) do
      normed = Axon.layer_norm(x)
      projections = for _ <- 1..3, do: Axon.dense(normed, 32, use_bias: false)
      x = Axon.add(x, (&attention/4) |> Axon.layer(projections, op_name: :attention) |> Axon.dense(32))
      Axon.add(x, x |> Axon.layer_norm() |> Axon.dense(64, activation: :gelu) |> Axon.dense(32))
    end

    # Two heads of 16.
    defp attention(query, key, value, _opts) do
      [query, key, value] =
        for x <- [query, key, value], do: x |> Nx.reshape({:auto, 8, 2, 16}) |> Nx.transpose(axes: [0, 2, 1, 3])

      scores = query |> Nx.dot([3], [0, 1], key, [3], [0, 1]) |> Nx.divide(4)
      scores = Nx.exp(Nx.subtract(scores, Nx.reduce_max(scores, axes: [3], keep_axes: true)))
      weights = Nx.divide(scores, Nx.sum(scores, axes: [3], keep_axes: true))

      weights
      |> Nx.dot([3], [0, 1], value, [2], [0, 1])
      |> Nx.transpose(axes: [0, 2, 1, 3])
      |> Nx.reshape({:auto, 8, 32})
    end

    defp sequences(batches) do
      for {images, labels} <- batches do
        {Nx.reshape(images, {:auto, 8, 8}), Nx.as_type(Nx.equal(Nx.new_axis(labels, 1), Nx.iota({1, 10})), :f32)}
      end
    end

    # The mean loss so far after each epoch, the accuracy, and the last state of training.
    defp train_reader(context, policy, loss_scale, opts \\ []) do
      me = self()
      optimizer = Polaris.Optimizers.adam(learning_rate: 0.004)
      optimizer = if opts[:guarded], do: apply(Overflow, :optimizer, [optimizer]), else: optimizer
      model = policy.(reader())

      report = fn %{step_state: state} = loop ->
        send(me, {:epoch, Nx.to_number(state.loss), state.loss_scale_state})
        {:continue, loop}
      end

      state =
        model
        |> context.trainer.(optimizer, loss_scale)
        |> Axon.Loop.handle_event(:epoch_completed, report)
        |> Axon.Loop.run(sequences(batches(context.train)), context.initial, epochs: @epochs, compiler: Nx.Vulkan)

      types = for {_layer, parameters} <- state.data, {_name, tensor} <- parameters, uniq: true, do: Nx.type(tensor)
      assert types == [{:f, 32}]

      reports =
        for _ <- 1..@epochs do
          receive do
            {:epoch, loss, scale} -> {loss, scale}
          end
        end

      {losses, scales} = Enum.unzip(reports)
      logits = Axon.predict(model, state, Nx.reshape(context.images, {:auto, 8, 8}), compiler: Nx.Vulkan)
      assert Nx.type(logits) == {:f, 32}
      %{losses: losses, accuracy: accuracy(logits, context.labels), scales: scales}
    end

    setup do
      {init, _predict} = Axon.build(reader(), seed: 42, compiler: Nx.Vulkan)
      state = init.(Nx.template({@batch, 8, 8}, :f32), Axon.ModelState.empty())
      # Which numbers Axon draws for which layer depends on what was built before: those of f16 overflow for some.
      data = Map.new(state.data, fn {layer, parameters} -> {layer, Map.new(parameters, &drawn(layer, &1))} end)
      %{initial: %{state | data: data}}
    end

    defp drawn(layer, {name, %Nx.Tensor{shape: {rows, columns}} = tensor}) do
      bound = :math.sqrt(6 / (rows + columns))
      key = Nx.Random.key(:erlang.phash2({layer, name}))
      {numbers, _} = Nx.Random.uniform(key, -bound, bound, shape: Nx.shape(tensor), type: Nx.type(tensor))
      {name, numbers}
    end

    defp drawn(_layer, parameter), do: parameter

    test "follows the curve of f32", context do
      exact = train_reader(context, & &1, :identity)
      assert exact.accuracy > 0.75

      for {policy, loss_scale, bound} <- [
            {&context.mixed.(&1, {:bf, 16}), :identity, 0.03},
            {&context.narrow.(&1, {:bf, 16}), :identity, 0.03},
            {&context.mixed.(&1, {:f, 16}), :identity, 0.01},
            {&context.narrow.(&1, {:f, 16}), :static, 0.01}
          ] do
        got = train_reader(context, policy, loss_scale)
        assert apart(got.losses, exact.losses) < bound
        assert got.losses != exact.losses
        assert_in_delta got.accuracy, exact.accuracy, 0.02
      end
    end

    test "has products of narrow types alone where gradients are narrow", context do
      model = fn ->
        Axon.input("x", shape: {nil, 8})
        |> Axon.dense(8)
        |> Axon.layer_norm()
        |> Axon.dense(8)
        |> Axon.dropout(rate: 0.1)
        |> Axon.batch_norm()
        |> Axon.dense(8)
      end

      products = fn model ->
        {init, step} = Axon.Loop.train_step(model, :mean_squared_error, Polaris.Optimizers.sgd(learning_rate: 0.1))
        data = {Nx.iota({4, 8}, type: :f32), Nx.iota({4, 8}, type: :f32)}
        state = init.(data, Axon.ModelState.empty())
        {%{steps: [{:run, [inputs, ops, _], _, _}]}, _, _, _} = Nx.Vulkan.Compiler.lower_for(step, [data, state], %{})
        values = %{input: inputs, result: Enum.flat_map(ops, &List.last/1)}
        type = fn [place, i] -> values[place] |> Enum.at(i) |> hd() end
        for [:dot, _, operands, _] <- ops, do: Enum.map(operands, type)
      end

      assert Enum.frequencies(products.(model.())) == %{[:f32, :f32] => 8}
      assert Enum.frequencies(products.(context.narrow.(model.(), {:bf, 16}))) == %{[:bf16, :bf16] => 8}
      assert %{[:bf16, :bf16] => 3} = Enum.frequencies(products.(context.mixed.(model.(), {:bf, 16})))
    end

    test "lowers the scale until gradients are finite", context do
      exact = train_reader(context, & &1, :identity)
      narrow = &context.narrow.(&1, {:f, 16})
      # Without the guard parameters are NaN from the first step on.
      scale = Axon.LossScale.dynamic(init_scale: 2.0 ** 30)
      assert train_reader(context, narrow, scale).losses == List.duplicate(:nan, @epochs)
      got = train_reader(context, narrow, apply(Overflow, :loss_scale, [scale]), guarded: true)
      # A later step may have larger gradients; the scale grows after 2,000 steps only.
      scales = Enum.map(got.scales, &Nx.to_number(&1.loss_scale))
      assert scales == Enum.sort(scales, :desc)
      assert hd(scales) < 2.0 ** 25 and List.last(scales) >= 1
      # Some of its steps are missing.
      assert_in_delta got.accuracy, exact.accuracy, 0.1
    end
  end
end
