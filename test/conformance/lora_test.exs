defmodule Nx.Vulkan.Conformance.LoraTest do
  # Adapters beside packed weights, beside those of the same values.
  use ExUnit.Case, async: true

  alias Nx.Vulkan.{Lora, PackedLayers, Quantized, VulkanoBackend}

  @moduletag :device
  @compile {:no_warn_undefined, [Axon, Axon.Loop, Axon.Losses, Axon.ModelState, Polaris.Optimizers]}
  @moduletag :capture_log
  if not Code.ensure_loaded?(Axon), do: @moduletag(skip: "there is no Axon")

  # Products of f32 that are added in other orders, relative to the largest.
  @tolerance 2.0e-5

  setup do
    Nx.default_backend(VulkanoBackend)
    :rand.seed(:exsss, System.unique_integer())
    :ok
  end

  # Layers without names and with them, with biases and without.
  defp model do
    Axon.input("ids", shape: {nil, nil})
    |> Axon.embedding(40, 256, name: "tokens")
    |> Axon.dense(256, activation: :tanh)
    |> Axon.dense(256, name: "middle", use_bias: false)
    |> Axon.tanh()
    |> Axon.dense(4)
  end

  defp random(shape, scale) do
    values = for _ <- 1..Nx.size(shape), do: scale * :rand.normal()
    values |> Nx.tensor(type: :f32) |> Nx.reshape(shape)
  end

  defp params do
    Axon.ModelState.new(%{
      "tokens" => %{"kernel" => random({40, 256}, 1.0)},
      "dense_0" => %{"kernel" => random({256, 256}, 0.06), "bias" => random({256}, 0.1)},
      "middle" => %{"kernel" => random({256, 256}, 0.06)},
      "dense_2" => %{"kernel" => random({256, 4}, 0.06), "bias" => random({4}, 0.1)}
    })
  end

  defp ids, do: Nx.tensor(for(_ <- 1..6, do: for(_ <- 1..5, do: :rand.uniform(40) - 1)))

  # The packed model, and the same with the values.
  defp both(format, opts \\ []) do
    {model, params} = {model(), params()}
    {packed, packed_params} = PackedLayers.quantize(model, params, format, opts)
    kernels = PackedLayers.kernels(packed, packed_params)

    data =
      Enum.reduce(kernels, params.data, fn {name, q}, data ->
        values = Quantized.dequantize(q)
        put_in(data[name]["kernel"], if(name == "tokens", do: values, else: Nx.transpose(values)))
      end)

    {packed, packed_params, model, %{params | data: data}}
  end

  defp near!(got, want, message) do
    largest = want |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()
    error = got |> Nx.subtract(want) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()
    assert largest > 0.0
    assert error <= @tolerance * largest, "#{message}: #{error / largest} of the largest"
  end

  for format <- [:q4_k, :q8_0, {:affine, 4, 64}, {:f8_e4m3fn, :block}] do
    test "#{inspect(format)}: a packed model gives what its values give" do
      {packed, packed_params, model, params} = both(unquote(Macro.escape(format)))
      names = for {name, _} <- PackedLayers.kernels(packed, packed_params), do: name
      assert Enum.sort(names) == ["dense_0", "dense_2", "middle", "tokens"]
      inputs = %{"ids" => ids()}

      for compiler <- [Nx.Defn.Evaluator, Nx.Vulkan] do
        near!(
          Axon.predict(packed, packed_params, inputs, compiler: compiler),
          Axon.predict(model, params, inputs, compiler: compiler),
          compiler
        )
      end
    end
  end

  # Adapters that are no zeros, so that all of them have gradients.
  defp initialized(adapted, params) do
    {init, _} = Axon.build(adapted, compiler: Nx.Vulkan)
    state = init.(%{"ids" => ids()}, params)

    data =
      Map.new(state.data, fn {name, tensors} ->
        if name =~ ".lora_b", do: {name, %{"kernel" => random(Nx.shape(tensors["kernel"]), 0.1)}}, else: {name, tensors}
      end)

    %{state | data: data}
  end

  defp gradients(adapted, state, inputs, wanted) do
    {_, forward} = Axon.build(adapted, mode: :train)

    loss = fn trained, state, inputs, wanted ->
      data = Map.merge(state.data, trained)
      %{prediction: y} = forward.(%{state | data: data}, inputs)
      Nx.mean(Nx.pow(Nx.subtract(y, wanted), 2))
    end

    Nx.Defn.jit_apply(
      fn trained, state, inputs, wanted -> Nx.Defn.grad(trained, &loss.(&1, state, inputs, wanted)) end,
      [Axon.ModelState.trainable_parameters(state), state, inputs, wanted],
      compiler: Nx.Vulkan
    )
  end

  test "gradients of adapters are those beside the values" do
    for format <- [:q4_k, {:affine, 4, 64}, {:f8_e4m3fn, :channel}] do
      {packed, packed_params, model, params} = both(format)
      adapted = Lora.adapt(packed, 3, alpha: 6)
      reference = Lora.adapt(model, 3, alpha: 6)
      state = initialized(adapted, packed_params)

      assert Enum.sort(Map.keys(Axon.ModelState.trainable_parameters(state))) ==
               Enum.sort(Map.keys(Lora.adapters(state)))

      of_reference = initialized(reference, params) |> Lora.put(Lora.adapters(state))
      inputs = %{"ids" => ids()}
      wanted = random({6, 5, 4}, 1.0)
      got = gradients(adapted, state, inputs, wanted)
      want = gradients(reference, of_reference, inputs, wanted)
      assert map_size(want) == 6
      for {name, %{"kernel" => g}} <- want, do: near!(got[name]["kernel"], g, "#{inspect(format)} #{name}")

      # And those beside numbers: each adapter is y + 2 (x A) B.
      %{"kernel" => a} = state.data["dense_2.lora_a"]
      %{"kernel" => b} = state.data["dense_2.lora_b"]
      merged = update_in(of_reference.data["dense_2"]["kernel"], &Nx.add(&1, Nx.multiply(2, Nx.dot(a, b))))
      zero = put_in(merged.data["dense_2.lora_b"]["kernel"], Nx.broadcast(0.0, b))
      near!(Axon.predict(reference, zero, inputs), Axon.predict(reference, of_reference, inputs), "merged")
    end
  end

  test "a model of 4 bits learns, and its weights keep their bits" do
    for {format, type} <- [{:q4_k, :f32}, {{:affine, 4, 64}, :f32}, {:q4_0, :bf16}] do
      params = %{params() | data: Nx.Defn.Composite.traverse(params().data, &Nx.as_type(&1, type))}
      {model, type} = {model(), Nx.Type.normalize!(type)}
      policy = Axon.MixedPrecision.create_policy(params: type, compute: type, output: type)
      model = if type == {:bf, 16}, do: Axon.MixedPrecision.apply_policy(model, policy), else: model
      {packed, packed_params} = PackedLayers.quantize(model, params, format)
      before = Nx.backend_copy(packed_params.data, Nx.BinaryBackend)
      adapted = packed |> Lora.adapt(4) |> Axon.nx(&Nx.as_type(&1, :f32))
      {init, _} = Axon.build(adapted, compiler: Nx.Vulkan)
      batches = for _ <- 1..4, do: {%{"ids" => ids()}, random({6, 5, 4}, 0.5)}
      state = init.(elem(hd(batches), 0), packed_params)

      # Adapters begin with no change.
      inputs = elem(hd(batches), 0)
      start = Axon.predict(adapted, state, inputs, compiler: Nx.Vulkan)
      near!(start, Nx.as_type(Axon.predict(packed, packed_params, inputs, compiler: Nx.Vulkan), :f32), "at first")

      loss = fn state ->
        Enum.sum_by(batches, fn {x, y} ->
          y
          |> Axon.Losses.mean_squared_error(Axon.predict(adapted, state, x, compiler: Nx.Vulkan))
          |> Nx.mean()
          |> Nx.to_number()
        end)
      end

      trained =
        adapted
        |> Axon.Loop.trainer(:mean_squared_error, Polaris.Optimizers.adam(learning_rate: 0.01), log: 0)
        |> Axon.Loop.run(batches, state, epochs: 30, compiler: Nx.Vulkan)

      assert loss.(trained) < 0.5 * loss.(state), inspect({format, type})

      for {name, tensors} <- before do
        assert Nx.backend_copy(trained.data[name], Nx.BinaryBackend) == tensors, "#{inspect(format)} #{name}"
      end

      # What is saved, put back into a model that was packed anew.
      adapters = trained |> Lora.adapters() |> Nx.serialize() |> IO.iodata_to_binary() |> Nx.deserialize()
      assert map_size(adapters) == 6
      again = Lora.put(packed_params, Nx.backend_copy(adapters, VulkanoBackend))
      assert loss.(again) == loss.(trained)
    end
  end

  test "layers that are chosen, and what is refused" do
    model = model()
    adapted = Lora.adapt(model, 2, layers: &(&1 == "middle"))
    {init, _} = Axon.build(adapted)
    state = init.(%{"ids" => Nx.template({1, 1}, :s64)}, Axon.ModelState.empty())
    assert Enum.sort(Map.keys(Lora.adapters(state))) == ["middle.lora_a", "middle.lora_b"]
    assert Nx.shape(state.data["middle.lora_a"]["kernel"]) == {256, 2}
    assert Nx.shape(state.data["middle.lora_b"]["kernel"]) == {2, 256}

    assert Enum.sort(Map.keys(state.data) -- Map.keys(Lora.adapters(state))) == [
             "dense_0",
             "dense_2",
             "middle",
             "tokens"
           ]

    assert_raise ArgumentError, ~r/holds for no dense layer, of which there are .*"middle"/, fn ->
      Lora.adapt(model, 2, layers: &(&1 == "x"))
    end

    assert_raise ArgumentError, ~r/expected a positive integer as the rank/, fn -> Lora.adapt(model, 0) end
    assert_raise ArgumentError, ~r/expected a model of Axon, got: 5/, fn -> Lora.adapt(5, 2) end

    assert_raise ArgumentError, ~r/expected a model of Axon, got: 5/, fn ->
      PackedLayers.quantize(5, params(), :q4_k)
    end

    assert_raise ArgumentError, ~r/expected a format/, fn -> PackedLayers.quantize(model, params(), :q9) end
  end

  test "adapters that do not belong to a model are told" do
    model = model()
    names = &(&1 in ["middle", "dense_2"])
    {packed, state} = PackedLayers.quantize(model, params(), :q4_k, layers: &(&1 == "middle"))
    adapted = Lora.adapt(packed, 2, layers: names)

    assert_raise ArgumentError, ~r/expected a model without adapters, got one with (middle|dense_2)\.lora_/, fn ->
      Lora.adapt(adapted, 2)
    end

    for rank <- [257, 10_000], layers <- [names, &(&1 == "middle")] do
      assert_raise ArgumentError, ~r/expected a rank of \d+ at most, the size of .*, got: #{rank}/, fn ->
        Lora.adapt(packed, rank, layers: layers)
      end
    end

    assert_raise ArgumentError, ~r/:layers to be a function of a layer's name, got: \["middle"\]/, fn ->
      Lora.adapt(model, 2, layers: ["middle"])
    end

    assert_raise ArgumentError, ~r/:alpha to be a number, got: "2"/, fn -> Lora.adapt(model, 2, alpha: "2") end

    {init, _} = Axon.build(adapted)
    ids = %{"ids" => Nx.template({1, 1}, :s64)}
    adapters = Lora.adapters(init.(ids, state))
    assert Map.keys(Lora.put(state, adapters).data) -- Map.keys(adapters) == Map.keys(state.data)

    {b, a} = {"middle.lora_b", "middle.lora_a"}
    wide = %{"kernel" => Nx.broadcast(0.0, {3, 256})}
    other = %{"kernel" => Nx.broadcast(0.0, {2, 255})}

    for {wrong, message} <- [
          {%{"none.lora_a" => adapters[a]}, ~r/layers that there are.*got: "none.lora_a", and layers are .*"middle"/},
          {%{"middle" => adapters[a]}, ~r/names that end in .lora_a or .lora_b, got: "middle"/},
          {Map.delete(adapters, b), ~r/middle.lora_b \{rank, n\} beside its packed kernel.* \{256, 2\} and nil/},
          {%{adapters | b => wide}, ~r/got: \{256, 2\} and \{3, 256\}/},
          {%{adapters | b => other}, ~r/got: \{256, 2\} and \{2, 255\}/},
          {%{adapters | "dense_2.lora_b" => other}, ~r/dense_2.lora_b .* beside a kernel \{256, \d+\} of k by n/},
          {[1], ~r/expected a map of adapters, got: \[1\]/}
        ] do
      assert_raise ArgumentError, message, fn -> Lora.put(state, wrong) end
    end
  end

  test "parameters that are not those of a packed model are told" do
    {model, params} = {model(), params()}
    {packed, state} = PackedLayers.quantize(model, params, :q4_k)
    assert_raise ArgumentError, ~r/expected the packed kernel .* blocks/, fn -> PackedLayers.kernels(packed, params) end

    for wrong <- [%{}, state.data] do
      assert_raise ArgumentError, ~r/an Axon.ModelState, got/, fn -> PackedLayers.quantize(model, wrong, :q4_k) end
      assert_raise ArgumentError, ~r/an Axon.ModelState, got/, fn -> PackedLayers.pack(model, wrong, %{}) end
      assert_raise ArgumentError, ~r/an Axon.ModelState, got/, fn -> PackedLayers.kernels(packed, wrong) end
    end

    assert_raise ArgumentError, ~r/:layers to be a function of a layer's name, got: "middle"/, fn ->
      PackedLayers.quantize(model, params, :q4_k, layers: "middle")
    end
  end

  test "kernels that do not fit a format stay as they are, and chosen ones alone are packed" do
    {model, params} = {model(), params()}
    small = put_in(params.data["dense_2"]["kernel"], random({256, 4}, 1.0))
    {packed, state} = PackedLayers.quantize(model, small, :q4_0, layers: &(&1 != "middle"))
    assert Enum.sort(Map.keys(PackedLayers.kernels(packed, state))) == ["dense_0", "dense_2", "tokens"]
    assert state.data["middle"] == params.data["middle"]
    {again, state} = PackedLayers.quantize(packed, state, :q8_0)
    assert %{"middle" => %{format: :q8_0}, "tokens" => %{format: :q4_0}} = PackedLayers.kernels(again, state)

    # Rows of 40 are no blocks of 32.
    narrow = Axon.input("x", shape: {nil, 40}) |> Axon.dense(8)
    state = Axon.ModelState.new(%{"dense_0" => %{"kernel" => random({40, 8}, 1.0), "bias" => random({8}, 1.0)}})
    assert PackedLayers.quantize(narrow, state, :q4_0) == {narrow, state}
  end
end
