defmodule Nx.Vulkan.Conformance.QuantizedTest do
  # Quantised tensors on the device, op by op and compiled, beside those of the host.
  use ExUnit.Case, async: true

  import Nx.Defn
  import Nx.Vulkan.{Numbers, QuantizedData}

  alias Nx.Vulkan.{Compiler, Quantized, VulkanoBackend}

  @moduletag :device

  @affine for bits <- [2, 4, 8], group <- [32, 64, 128], do: {:affine, bits, group}

  setup do
    Nx.default_backend(VulkanoBackend)
    :rand.seed(:exsss, 33)
    :ok
  end

  defp device(container), do: Nx.backend_copy(container, VulkanoBackend)
  defp host(container), do: Nx.backend_copy(container, Nx.BinaryBackend)

  # Computed by the host alone: constants are made there, too.
  defp on_host(fun, args) do
    Nx.with_default_backend(Nx.BinaryBackend, fn -> Nx.Defn.jit_apply(fun, args, compiler: Nx.Defn.Evaluator) end)
  end

  # The values in every way: the same bits.
  defp values(q, opts \\ [type: :f32]) do
    for compiler <- [Nx.Defn.Evaluator, Nx.Vulkan] do
      Nx.to_binary(Nx.Defn.jit_apply(&Quantized.dequantize(&1, opts), [device(q)], compiler: compiler))
    end
  end

  # Blocks and the bits of their values as products of the device give them: some devices flush denormal numbers. There
  # the first two blocks of MXFP4, whose scales are denormal themselves, are left out.
  defp of_device({q, values}) do
    least = Nx.Constants.smallest_positive_normal(:f32)

    if Nx.to_number(Nx.multiply(device(least), Nx.tensor(0.5, type: :f32))) == 0.0 do
      first = if q.format == :mxfp4, do: 2, else: 0
      words = Enum.drop(for(<<word::little-32 <- values>>, do: flushed(word)), first * 32)
      blocks = Quantized.from_blocks(q.tensors.blocks[first..-1//1], q.format)
      {blocks, for(word <- words, into: <<>>, do: <<word::little-32>>)}
    else
      {q, values}
    end
  end

  defp flushed(word) when Bitwise.band(word, 0x7F800000) == 0, do: Bitwise.band(word, 0x80000000)
  defp flushed(word), do: word

  defp launches(fun, args) do
    %{steps: [run: %{launches: launches}]} = Compiler.explain(fun, args)
    for %{kernel: kernel} <- launches, do: kernel |> String.split(".") |> hd()
  end

  for format <- Nx.Vulkan.QuantizedData.formats() do
    test "#{format}: the values of another decoder, to the bit" do
      {q, values} = of_device(decoded(unquote(format)))
      assert values(q) == [values, values]
    end
  end

  test "affine values are those of the host" do
    for format <- @affine, type <- [:f32, :f16, :bf16], biases? <- [true, false] do
      q = affine(format, 3, 2, type, biases?)
      values = Nx.to_binary(on_host(&Quantized.dequantize/1, [q]))
      assert values(q) == [values, values], inspect({format, type, biases?})
    end
  end

  test "values of floats of 8 bits are those of the host" do
    for type <- [:f8, :f8_e4m3fn], shape <- [{}, {130, 1}, {2, 2}] do
      bytes = Nx.iota({130, 250}, type: :u8, backend: Nx.BinaryBackend)
      # No NaN, which has many forms.
      finite = Nx.select(Nx.greater(Nx.bitwise_and(bytes, 127), 123), 1, bytes) |> Nx.as_type(:u8)
      q = Quantized.from_fp8(Nx.bitcast(finite, type), numbers(shape, :f32))
      values = Nx.to_binary(on_host(&Quantized.dequantize/1, [q]))
      assert values(q) == [values, values], inspect({type, shape})
    end
  end

  test "other types are rounded from f32" do
    for format <- [:q6_k, :mxfp4], type <- [:f16, :bf16, :f64] do
      {q, values} = of_device(decoded(format))
      want = values |> Nx.from_binary(:f32) |> Nx.as_type(type) |> Nx.to_binary()
      assert values(q, type: type) == [want, want]
    end
  end

  test "each format is one kernel" do
    for format <- formats(), format != :tq1_0 do
      {q, _} = decoded(format)
      assert launches(&Quantized.dequantize/1, [device(q)]) == ["map"], inspect(format)
      assert launches(&Quantized.dequantize(&1, type: :bf16), [device(q)]) == ["map"], inspect(format)
    end

    for format <- @affine, biases? <- [true, false] do
      q = affine(format, 3, 2, :bf16, biases?)
      assert launches(&Quantized.dequantize/1, [device(q)]) == ["map"], inspect(format)
    end

    for type <- [:f8, :f8_e4m3fn], part <- [:tensor, :channel, :block, :mx] do
      q = Quantized.quantize(Nx.iota({128, 256}, type: :f32), {type, part})
      assert launches(&Quantized.dequantize/1, [q]) == ["map"], inspect({type, part})
    end

    # Blocks that an edge cuts, and those that both do: the second slice is a copy.
    for {shape, want} <- [{{130, 256}, ["map"]}, {{128, 200}, ["map"]}, {{130, 200}, ["map", "map"]}] do
      q = Quantized.quantize(Nx.iota(shape, type: :f32), {:f8_e4m3fn, :block})
      assert launches(&Quantized.dequantize/1, [q]) == want, inspect(shape)
    end

    # Digits of three have no axes of their own: bytes are repeated first.
    {q, _} = decoded(:tq1_0)
    assert launches(&Quantized.dequantize/1, [device(q)]) == ["take", "map"]
  end

  test "what is quantised has the bytes of another encoder, and of the host" do
    for compiler <- [Nx.Defn.Evaluator, Nx.Vulkan] do
      quantize = fn format, opts ->
        Nx.Defn.jit_apply(&Quantized.quantize(&1, format, opts), [device(weights())], compiler: compiler)
      end

      for format <- [:q4_0, :q4_1, :q5_0, :q5_1, :q8_0, :mxfp4] do
        assert Nx.to_binary(quantize.(format, []).tensors.blocks) == encoded(format), inspect(format)
      end

      for format <- [:q4_k, :q6_k] do
        [got, want] = for q <- [quantize.(format, []), encoded_blocks(format)], do: Nx.from_binary(hd(values(q)), :f32)
        assert Nx.to_number(Nx.all(Nx.equal(got, want))) == 1, inspect(format)
      end

      # Sums in another order choose other scales at times.
      [got, want] =
        for q <- [quantize.(:q5_k, []), encoded_blocks(:q5_k)] do
          error = Nx.subtract(Nx.from_binary(hd(values(q)), :f32), Nx.flatten(weights()))
          error |> Nx.pow(2) |> Nx.sum() |> Nx.to_number()
        end

      assert got < 1.01 * want

      for format <- [:nvfp4, {:f8, :mx}, {:f8_e4m3fn, :mx}] do
        host = on_host(&Quantized.quantize(&1, format), [weights()])
        assert host(quantize.(format, [])) == host, inspect(format)
      end

      for format <- [:q2_k, :q3_k, :iq4_nl, :iq4_xs] do
        host = on_host(&Quantized.quantize(&1, format), [weights()])
        [got, want] = for q <- [host(quantize.(format, [])), host], do: lost(q)
        assert_in_delta got, want, 0.01 * want
      end

      for type <- [:f8, :f8_e4m3fn] do
        assert Nx.to_binary(quantize.({type, :tensor}, []).tensors.weight) == encoded(type)
      end

      for format <- [{:affine, 4, 64}, {:affine, 8, 32}], symmetric <- [true, false] do
        opts = [symmetric: symmetric]
        host = on_host(&Quantized.quantize(&1, format, opts), [weights()])
        assert host(quantize.(format, opts)) == host, inspect({format, opts})
      end
    end
  end

  defp lost(q) do
    error = Nx.subtract(on_host(&Quantized.dequantize/1, [q]), weights())
    error |> Nx.pow(2) |> Nx.sum() |> Nx.to_number()
  end

  test "least squares on the device lose as little as on the host" do
    for symmetric <- [true, false] do
      opts = [scales: :least_squares, symmetric: symmetric]
      lost = &Nx.sum(Nx.pow(Nx.subtract(Quantized.dequantize(Quantized.quantize(&1, {:affine, 4, 64}, opts)), &1), 2))
      host = on_host(lost, [weights()]) |> Nx.to_number()
      compiled = Nx.Defn.jit_apply(lost, [device(weights())], compiler: Nx.Vulkan) |> Nx.to_number()
      assert_in_delta compiled, host, 1.0e-3 * host
    end
  end

  # Every product is within this of the exact one of the same values: of the type's own rounding of the result, and of
  # sums of f32 of k terms in any order.
  defp bound(x, w, type) do
    absolute = Nx.dot(Nx.abs(x), [-1], Nx.abs(w), [-1])
    k = Nx.axis_size(x, -1)
    Nx.multiply(absolute, k * 2 ** -24 + %{f32: 0, f64: 0, f16: 2 ** -10, bf16: 2 ** -7}[type])
  end

  test "products are those of the values, in the type of x" do
    for format <- [:q4_0, :q4_k, :q6_k, :iq4_nl, {:affine, 4, 64}, {:f8_e4m3fn, :block}, {:f8_e4m3fn, :mx}],
        type <- [:f32, :f16, :bf16, :f64],
        shape <- [{256}, {1, 256}, {3, 5, 256}],
        compiler <- [Nx.Defn.Evaluator, Nx.Vulkan] do
      q = quantized(format)
      x = numbers(shape, type)
      y = Nx.Defn.jit_apply(&Quantized.dot/2, [device(x), device(q)], compiler: compiler)
      assert y.type == Nx.Type.normalize!(type)
      assert y.shape == shape |> Tuple.delete_at(tuple_size(shape) - 1) |> Tuple.insert_at(tuple_size(shape) - 1, 8)

      # Compiled, a GPU does not round values to 16 bits that one product by up to four rows alone takes.
      types = if compiler == Nx.Vulkan and Nx.size(x) <= 4 * 256, do: [type, :f32], else: [type]

      is_near =
        for type_of_values <- types do
          w = on_host(&Quantized.dequantize(&1, type: if(type == :f64, do: :f32, else: type_of_values)), [q])
          [x, w] = for t <- [x, w], do: Nx.as_type(t, :f64)
          error = Nx.abs(Nx.subtract(Nx.as_type(host(y), :f64), Nx.dot(x, [-1], w, [-1])))
          Nx.to_number(Nx.all(Nx.less_equal(error, bound(x, w, type)))) == 1
        end

      assert Enum.any?(is_near), inspect({format, type, shape})
    end
  end

  # A quantised tensor {8, 256} with tame values.
  defp quantized(format) when format in [:q6_k, :iq4_nl] do
    {q, _} = decoded(format)
    blocks = q.tensors.blocks
    {_, bytes} = Nx.Vulkan.Quantized.Formats.block(format)
    rows = if format == :q6_k, do: 1, else: 8
    tame = blocks[(Nx.axis_size(blocks, 0) - rows)..-1//1]

    blocks =
      if format == :q6_k, do: Nx.tile(tame, [8, 1, 1]), else: tame |> Nx.reshape({1, 8, bytes}) |> Nx.tile([8, 1, 1])

    Quantized.from_blocks(blocks, format)
  end

  defp quantized(format), do: host(Quantized.quantize(device(weights()), format))

  defn(loss(x, q), do: Nx.sum(Nx.sin(Quantized.dot(x, q))))
  defn(gradient(x, q), do: grad(x, &loss(&1, q)))
  defn(gradients(x, q), do: grad({x, q.tensors}, fn {x, tensors} -> loss(x, with_tensors(q, tensors)) end))
  deftransformp(with_tensors(q, tensors), do: %{q | tensors: tensors})

  test "gradients go to x, through the same values, and not to what is stored" do
    for format <- [:q4_k, :q8_0, {:affine, 4, 64}, {:f8_e4m3fn, :channel}],
        compiler <- [Nx.Defn.Evaluator, Nx.Vulkan] do
      q = quantized(format)
      x = numbers({5, 256}, :f32)
      got = Nx.Defn.jit_apply(&gradient/2, [device(x), device(q)], compiler: compiler)

      [x64, w] = for t <- [x, on_host(&Quantized.dequantize/1, [q])], do: Nx.as_type(cpu(t), :f64)
      y = Nx.dot(x64, [-1], w, [-1])
      want = Nx.dot(Nx.cos(y), w)
      # sin's argument is off by the error of the product, its gradient by that and the second product's.
      off = Nx.dot(bound(x64, w, :f32), Nx.abs(w)) |> Nx.add(Nx.multiply(Nx.dot(Nx.abs(Nx.cos(y)), Nx.abs(w)), 2.0e-6))
      error = Nx.abs(Nx.subtract(Nx.as_type(host(got), :f64), want))
      assert Nx.to_number(Nx.all(Nx.less_equal(error, off))) == 1, inspect({format, compiler})

      {_, of_q} = Nx.Defn.jit_apply(&gradients/2, [device(x), device(q)], compiler: compiler)
      for {name, g} <- of_q, do: assert(most(Nx.as_type(g, :f32)) == 0.0, "#{inspect(format)} #{name}")
    end
  end

  test "rows of packed weights are those of the values" do
    formats =
      [:q4_0, :q4_k, {:affine, 4, 64}, {:affine, 2, 32}] ++ for(p <- [:tensor, :channel, :block, :mx], do: {:f8, p})

    for format <- formats, compiler <- [Nx.Defn.Evaluator, Nx.Vulkan] do
      q = Quantized.quantize(device(numbers({130, 256}, :f32)), format)
      indices = device(Nx.tensor([[129, 0, 7], [128, 7, 64]]))
      rows = Nx.Defn.jit_apply(&Quantized.take/2, [q, indices], compiler: compiler)
      want = Nx.take(Quantized.dequantize(q), indices)
      assert {rows.shape, Nx.to_binary(rows)} == {{2, 3, 256}, Nx.to_binary(want)}, inspect({format, compiler})
    end
  end

  test "GPTQ's columns in the order of their groups" do
    {k, n, group} = {128, 16, 32}
    words = &device(Nx.reshape(tensor(:rand.bytes(4 * Tuple.product(&1)), :s32), &1))
    g_idx = 0..(k - 1) |> Enum.map(&div(&1, group)) |> Enum.shuffle() |> Nx.tensor(type: :s32)
    scales = Nx.as_type(device(numbers({div(k, group), n}, :f32)), :f16)
    q = Quantized.from_gptq(words.({div(k, 8), n}), words.({4, 2}), scales, bits: 4, group: group, g_idx: g_idx)
    w = on_host(&Quantized.dequantize/1, [host(q)])
    assert values(q) == [Nx.to_binary(w), Nx.to_binary(w)]

    for rows <- [1, 7], compiler <- [Nx.Defn.Evaluator, Nx.Vulkan] do
      x = numbers({rows, k}, :f32)
      y = Nx.Defn.jit_apply(&Quantized.dot/2, [device(x), q], compiler: compiler)
      g = Nx.Defn.jit_apply(&gradient/2, [device(x), q], compiler: compiler)
      [x, w] = for t <- [cpu(x), w], do: Nx.as_type(t, :f64)
      want = Nx.dot(x, [-1], w, [-1])
      off = bound(x, w, :f32)
      assert_within(y, want, off)
      of_gradient = Nx.add(Nx.dot(off, Nx.abs(w)), Nx.multiply(Nx.dot(Nx.abs(Nx.cos(want)), Nx.abs(w)), 2.0e-6))
      assert_within(g, Nx.dot(Nx.cos(want), w), of_gradient)
    end
  end

  @tag :tmp_dir
  test "what is repacked from files goes to the backend that is asked for", %{tmp_dir: folder} do
    path = Path.join(folder, "model.safetensors")
    [qweight, qzeros, other] = for shape <- [{16, 8}, {1, 1}, {128, 1}], do: Nx.broadcast(Nx.s32(7), shape)
    scales = Nx.broadcast(Nx.f16(1), {1, 8})
    gptq = [{"a.qweight", qweight}, {"a.qzeros", qzeros}, {"a.scales", scales}]
    awq = [{"b.qweight", other}, {"b.qzeros", qzeros}, {"b.scales", scales}]
    :ok = Nx.Vulkan.Safetensors.write(path, gptq ++ awq)
    file = Nx.Vulkan.Safetensors.open!(path)

    for name <- ["a.weight", "b.weight"], backend <- [Nx.BinaryBackend, VulkanoBackend] do
      q = Nx.Vulkan.Safetensors.tensor!(file, name, backend: backend)
      for {part, tensor} <- q.tensors, do: assert({name, part, tensor.data.__struct__} == {name, part, backend})
    end
  end

  defp assert_within(got, want, off) do
    error = Nx.abs(Nx.subtract(Nx.as_type(host(got), :f64), want))
    assert Nx.to_number(Nx.all(Nx.less_equal(error, off))) == 1
  end

  defn(loss_of_rounded(w, x, y),
    do: Nx.mean((Nx.dot(x, [1], Quantized.straight_through(w, format: :q4_0), [1]) - y) ** 2)
  )

  defn(step_of_rounded(w, x, y), do: value_and_grad(w, &loss_of_rounded(&1, x, y)))

  test "weights that are trained as they will be quantised" do
    [x, wanted, start] = for shape <- [{64, 256}, {16, 256}, {16, 256}], do: device(numbers(shape, :f32))
    y = Nx.dot(x, [1], wanted, [1])

    for compiler <- [Nx.Defn.Evaluator, Nx.Vulkan], format <- [:q4_0, {:affine, 4, 64}, :mxfp4] do
      options = [format: format]
      values = Nx.Defn.jit_apply(&Quantized.straight_through(&1, options), [start], compiler: compiler)
      want = Nx.Defn.jit_apply(&Quantized.dequantize(Quantized.quantize(&1, format)), [start], compiler: compiler)
      assert Nx.to_binary(values) == Nx.to_binary(want)
      double = &Nx.Defn.grad(&1, fn w -> Nx.sum(Nx.multiply(Quantized.straight_through(w, options), 2)) end)
      g = Nx.Defn.jit_apply(double, [start], compiler: compiler)
      assert Nx.to_binary(g) == Nx.to_binary(Nx.broadcast(2.0, g))
    end

    {losses, trained} =
      Enum.map_reduce(1..60, start, fn _, w ->
        {loss, g} = Nx.Defn.jit_apply(&step_of_rounded/3, [w, x, y], compiler: Nx.Vulkan)
        {Nx.to_number(loss), Nx.subtract(w, Nx.multiply(g, 1.0))}
      end)

    # What is quantised then has the loss that the training saw.
    q = Quantized.quantize(trained, :q4_0)
    loss = Nx.to_number(Nx.mean(Nx.pow(Nx.subtract(Quantized.dot(x, q), y), 2)))
    assert loss < hd(losses) / 4
    assert_in_delta loss, Enum.min(losses), 2 * Enum.min(losses)
  end

  test "arguments, results and donated arguments of compiled functions" do
    {q, values} = decoded(:q4_k)
    doubled = &%{q: &1, twice: Nx.multiply(Quantized.dequantize(&1), 2)}
    %{q: same, twice: twice} = Nx.Defn.jit_apply(doubled, [device(q)], compiler: Nx.Vulkan)
    assert host(same) == q
    assert Nx.to_binary(Nx.divide(twice, 2)) == values

    given = device(Quantized.quantize(weights(), {:affine, 8, 32}))
    want = host(Quantized.dequantize(given))
    assert host(Nx.Defn.jit_apply(&Quantized.dequantize/1, [Nx.donatable(given)], compiler: Nx.Vulkan)) == want
    assert_raise Nx.Vulkan.Error, ~r/released/, fn -> Nx.to_binary(given.tensors.weight) end
  end

  if Code.ensure_loaded?(Axon) do
    test "a parameter of Axon" do
      q = quantized(:q4_k)
      x = numbers({3, 256}, :f32)

      model =
        Axon.layer(fn x, w, _opts -> Quantized.dot(x, w) end, [Axon.input("x"), Axon.param("kernel", {8, 256})],
          name: "dense"
        )

      {_init, predict} = Axon.build(model, compiler: Nx.Vulkan)
      state = Axon.ModelState.new(%{"dense" => %{"kernel" => Nx.broadcast(0.0, {8, 256})}})
      state = put_in(state.data["dense"]["kernel"], device(q))
      got = predict.(state, %{"x" => device(x)})
      assert host(got) == host(Nx.Defn.jit_apply(&Quantized.dot/2, [device(x), device(q)], compiler: Nx.Vulkan))
    end
  end

  if Code.ensure_loaded?(Axon) do
    # Axon's options.
    @tag :capture_log
    test "what the guide shows" do
      guide = Path.expand("../../guides/quantized.md", __DIR__)
      Nx.Defn.default_options(compiler: Nx.Vulkan)
      %{losses: losses} = Nx.Vulkan.Guides.run(guide)
      assert List.last(losses) < 1.0e-3 * hd(losses)
    end
  end
end
