defmodule Nx.Vulkan.QuantizedTest do
  # Quantised tensors on the host.
  use ExUnit.Case, async: true
  use ExUnitProperties

  import Nx.Vulkan.QuantizedData

  alias Nx.Vulkan.Quantized

  doctest Quantized

  setup do
    Nx.default_backend(Nx.BinaryBackend)
    Nx.Defn.default_options(compiler: Nx.Defn.Evaluator)
    :ok
  end

  for format <- Nx.Vulkan.QuantizedData.formats() do
    test "#{format} has the values of another decoder, to the bit" do
      {q, values} = decoded(unquote(format))
      assert Nx.to_binary(Quantized.dequantize(q)) == values
    end
  end

  test "floats of 8 bits have the values of another decoder" do
    for type <- [:f8, :f8_e4m3fn] do
      weight = Nx.bitcast(Nx.iota({1, 256}, type: :u8), type)
      got = weight |> Quantized.from_fp8(Nx.tensor([1.0])) |> Quantized.dequantize() |> Nx.to_flat_list()
      assert got == Nx.to_flat_list(floats(type))
    end
  end

  test "what is quantised has the bytes of another encoder" do
    for format <- [:q4_0, :q4_1, :q5_0, :q5_1, :q8_0, :mxfp4] do
      assert Nx.to_binary(Quantized.quantize(weights(), format).tensors.blocks) == encoded(format), inspect(format)
    end

    for type <- [:f8, :f8_e4m3fn] do
      assert Nx.to_binary(Quantized.quantize(weights(), {type, :tensor}).tensors.weight) == encoded(type)
    end

    # ggml leaves integers of another scale where the scale itself is rounded to zero: these may differ, no value does
    # but in the sign of zero.
    for {format, scales} <- [q4_k: 0..15, q6_k: 192..209] do
      {got, want} = {Quantized.quantize(weights(), format), encoded_blocks(format)}
      same = Nx.equal(Quantized.dequantize(got), Quantized.dequantize(want))
      assert Nx.all(same) == Nx.u8(1), inspect(format)
      assert got.tensors.blocks[[.., 0, scales]] == want.tensors.blocks[[.., 0, scales]], inspect(format)
    end

    # Sums in another order choose other scales in two of the eight blocks.
    [got, want] = for q <- [Quantized.quantize(weights(), :q5_k), encoded_blocks(:q5_k)], do: Quantized.dequantize(q)
    assert Nx.to_binary(got[0..5]) == Nx.to_binary(want[0..5])

    [got, want] =
      for values <- [got, want], do: values |> Nx.subtract(weights()) |> Nx.pow(2) |> Nx.sum() |> Nx.to_number()

    assert got < 1.01 * want
  end

  # What affine numbers are, integer by integer, in numbers of Elixir.
  defp affine_values(%{format: {:affine, bits, group}, tensors: tensors}) do
    integers = for <<q::little-size(bits) <- little(Nx.to_binary(tensors.weight), bits)>>, do: q
    scales = tensors.scales |> Nx.as_type(:f32) |> Nx.to_flat_list()
    biases = if tensors[:biases], do: tensors.biases |> Nx.as_type(:f32) |> Nx.to_flat_list()

    integers
    |> Enum.chunk_every(group)
    |> Enum.with_index()
    |> Enum.flat_map(fn {integers, i} ->
      {scale, bias} = {Enum.at(scales, i), biases && Enum.at(biases, i)}
      for q <- integers, do: if(bias, do: f32(f32(scale * q) + bias), else: f32(scale * (q - 2 ** (bits - 1))))
    end)
  end

  # The integers of each word from the lowest bits on.
  defp little(words, bits) do
    for <<word::little-32 <- words>>, i <- 0..(div(32, bits) - 1), into: <<>> do
      <<Bitwise.band(Bitwise.bsr(word, i * bits), 2 ** bits - 1)::little-size(bits)>>
    end
  end

  defp f32(x) do
    <<x::float-32>> = <<x::float-32>>
    x
  end

  test "affine values, with biases and without, for all bits, groups and types of scales" do
    for bits <- [2, 4, 8], group <- [32, 64, 128], type <- [:f32, :f16, :bf16], biases? <- [true, false] do
      q = affine({:affine, bits, group}, 3, 2, type, biases?)
      assert q.shape == {3, 2 * group}
      assert q |> Quantized.dequantize() |> Nx.to_flat_list() == affine_values(q)
    end
  end

  # The integer at a place of a word, as a number from 0 on.
  defp integer(words, row, column, place, bits) do
    word = Nx.to_number(words[row][column])
    Bitwise.band(Bitwise.bsr(word, place * bits), 2 ** bits - 1)
  end

  test "GPTQ has integers along k, and zero points along n, less one" do
    for {bits, n} <- [{2, 16}, {4, 16}, {4, 8}, {8, 16}, {8, 4}] do
      {k, per} = {64, div(32, bits)}
      qweight = Nx.reshape(tensor(:rand.bytes(4 * div(k, per) * n), :s32), {div(k, per), n})
      qzeros = Nx.reshape(tensor(:rand.bytes(4 * 2 * div(n, per)), :s32), {2, div(n, per)})
      scales = Nx.as_type(Nx.divide(Nx.iota({2, n}), 7), :f16)
      q = Quantized.from_gptq(qweight, qzeros, scales, bits: bits, group: 32)
      assert {q.format, q.shape} == {{:affine, bits, 32}, {n, k}}

      want =
        for j <- 0..(n - 1) do
          for i <- 0..(k - 1), group = div(i, 32) do
            zero = rem(integer(qzeros, group, div(j, per), rem(j, per), bits) + 1, 2 ** bits)
            Nx.to_number(scales[group][j]) * (integer(qweight, div(i, per), j, rem(i, per), bits) - zero)
          end
        end

      assert q |> Quantized.dequantize() |> Nx.equal(Nx.tensor(want, type: :f32)) |> Nx.all() == Nx.u8(1)
    end
  end

  test "AWQ has integers along n, even columns first" do
    {k, n} = {64, 16}
    qweight = Nx.reshape(tensor(:rand.bytes(4 * k * 2), :s32), {k, 2})
    qzeros = Nx.reshape(tensor(:rand.bytes(4 * 2 * 2), :s32), {2, 2})
    scales = Nx.as_type(Nx.divide(Nx.iota({2, n}), 7), :f16)
    q = Quantized.from_awq(qweight, qzeros, scales, group: 32)
    assert {q.format, q.shape} == {{:affine, 4, 32}, {n, k}}
    places = %{0 => 0, 2 => 1, 4 => 2, 6 => 3, 1 => 4, 3 => 5, 5 => 6, 7 => 7}

    want =
      for j <- 0..(n - 1), place = places[rem(j, 8)] do
        for i <- 0..(k - 1), group = div(i, 32) do
          zero = integer(qzeros, group, div(j, 8), place, 4)
          Nx.to_number(scales[group][j]) * (integer(qweight, i, div(j, 8), place, 4) - zero)
        end
      end

    assert q |> Quantized.dequantize() |> Nx.equal(Nx.tensor(want, type: :f32)) |> Nx.all() == Nx.u8(1)
  end

  test "scales of floats are of a tensor, of rows, or of blocks, which edges cut" do
    weight = Nx.remainder(Nx.iota({2, 130, 200}), 7) |> Nx.as_type(:f8_e4m3fn)
    wide = Nx.as_type(weight, :f32)

    for {part, shape} <- [tensor: {}, channel: {2, 130, 1}, block: {2, 2, 2}] do
      scales = Nx.add(Nx.iota(shape, type: :f32), 0.25)
      q = Quantized.from_fp8(weight, scales)
      assert q.format == {:f8_e4m3fn, part}

      spread =
        if part == :block do
          for b <- 0..1 do
            for i <- 0..129, do: for(j <- 0..199, do: Nx.to_number(scales[b][div(i, 128)][div(j, 128)]))
          end
          |> Nx.tensor(type: :f32)
        else
          scales
        end

      assert Quantized.dequantize(q) == Nx.multiply(wide, spread)
    end
  end

  test "other types are rounded once, from f32" do
    {q, _} = decoded(:q4_k)
    values = Quantized.dequantize(q)
    for type <- [:bf16, :f64], do: assert(Quantized.dequantize(q, type: type) == Nx.as_type(values, type))
    {q, _} = decoded(:mxfp4)
    tame = Quantized.from_blocks(q.tensors.blocks[4..4], :mxfp4)
    assert Quantized.dequantize(tame, type: :f16) == Nx.as_type(Quantized.dequantize(tame), :f16)

    assert_raise ArgumentError, ~r/expected :type to be one of f32, f16, bf16, f64, got: :s8/, fn ->
      Quantized.dequantize(q, type: :s8)
    end
  end

  property "minmax is off by half a step, and symmetric by one" do
    check all(
            bits <- member_of([2, 4, 8]),
            symmetric <- boolean(),
            type <- member_of([:f32, :f16, :bf16]),
            values <- list_of(float(min: -100.0, max: 100.0), length: 64),
            max_runs: 60
          ) do
      x = Nx.tensor([values], type: :f32)
      q = Quantized.quantize(x, {:affine, bits, 32}, symmetric: symmetric, scale_type: type)
      error = Nx.subtract(Quantized.dequantize(q), x) |> Nx.abs() |> Nx.reshape({2, 32}) |> Nx.reduce_max(axes: [1])
      scale = q.tensors.scales |> Nx.as_type(:f32) |> Nx.abs() |> Nx.reshape({2})
      half = Nx.multiply(scale, if(symmetric, do: 1, else: 0.5))
      # What the type of scales loses, of them and of biases, and f32 of the sum.
      rounding = %{f32: 2.0e-7, f16: 2 ** -11, bf16: 2 ** -8}[type]
      lost = Nx.add(Nx.multiply(scale, rounding * 2 ** bits), rounding * 101 + 3.0e-5)
      assert Nx.all(Nx.less_equal(error, Nx.add(half, lost))) == Nx.u8(1)
    end
  end

  test "least squares lose less than the extremes" do
    for bits <- [2, 4, 8], symmetric <- [true, false] do
      [minmax, least] =
        for scales <- [:minmax, :least_squares] do
          q = Quantized.quantize(weights(), {:affine, bits, 64}, symmetric: symmetric, scales: scales, scale_type: :f32)
          Nx.subtract(Quantized.dequantize(q), weights()) |> Nx.pow(2) |> Nx.sum() |> Nx.to_number()
        end

      assert least < minmax
    end
  end

  # Numbers {256} that a format has, as `count` integers along groups: the least and the largest of them are in each.
  defp integers(count, group, range) do
    for _ <- 1..div(count, group),
        do: Enum.shuffle([range.first, range.last | for(_ <- 3..group, do: Enum.random(range))])
  end

  @nonlinear [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
  @e2m1 [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]

  # Groups of integers and a factor for each.
  defp made(:q2_k, d) do
    # It has no negative scales.
    d = abs(d)
    factors = Enum.shuffle([{15, 15} | for(_ <- 2..16, do: {Enum.random(1..15), Enum.random(0..15)})])
    Enum.zip_with(integers(256, 16, 0..3), factors, fn q, {s, m} -> for q <- q, do: d * s * q - d / 4 * m end)
  end

  defp made(:q3_k, d) do
    factors = Enum.shuffle([-32 | for(_ <- 2..16, do: Enum.random([-31..-1, 1..31]) |> Enum.random())])
    Enum.zip_with(integers(256, 16, -4..3), factors, fn q, s -> for q <- q, do: d * s * q end)
  end

  defp made(:iq4_nl, d),
    do: for(_ <- 1..8, q <- integers(32, 32, 0..15), do: for(q <- q, do: d * Enum.at(@nonlinear, q)))

  defp made(:iq4_xs, d) do
    factors = Enum.shuffle([-32 | for(_ <- 2..8, do: Enum.random(1..31))])
    Enum.zip_with(integers(256, 32, 0..15), factors, fn q, s -> for q <- q, do: d * s * Enum.at(@nonlinear, q) end)
  end

  defp made(:nvfp4, d) do
    for q <- integers(256, 16, 0..7),
        s <- [Enum.random(8..15) / 8],
        do: for(q <- q, do: Enum.random([-1, 1]) * d * s * Enum.at(@e2m1, q))
  end

  test "MXFP8: a power of two for each 32 weights of a row" do
    # All bytes, and all exponents whose products with the largest numbers f32 has.
    for {type, bias, fraction} <- [{:f8_e4m3fn, 7, 3}, {:f8, 15, 2}] do
      bytes = for _ <- 1..6, do: for(_ <- 1..64, do: Enum.random(0..0x77) + Enum.random([0, 128]))
      exponents = for _ <- 1..6, do: for(_ <- 1..2, do: Enum.random(60..200))

      want =
        for {row, scales} <- Enum.zip(bytes, exponents) do
          for {byte, i} <- Enum.with_index(row), e = Enum.at(scales, div(i, 32)) do
            sign = if byte > 127, do: -1.0, else: 1.0
            magnitude = rem(byte, 128)
            {exponent, digits} = {div(magnitude, 2 ** fraction), rem(magnitude, 2 ** fraction) / 2 ** fraction}
            value = if exponent == 0, do: digits * 2.0 ** (1 - bias), else: (1 + digits) * 2.0 ** (exponent - bias)
            sign * value * 2.0 ** (e - 127)
          end
        end

      weight = Nx.bitcast(Nx.tensor(bytes, type: :u8), type)
      q = Quantized.from_fp8(weight, Nx.tensor(exponents, type: :u8))
      assert {q.format, q.shape} == {{type, :mx}, {6, 64}}
      assert Nx.equal(Quantized.dequantize(q), Nx.tensor(want, type: :f32)) |> Nx.all() == Nx.u8(1)

      # Half a step of the fraction, or what the largest number of the scale lacks; less than the least is lost.
      x = Nx.tensor(want, type: :f32)
      error = Quantized.dequantize(Quantized.quantize(x, {type, :mx})) |> Nx.subtract(x) |> Nx.abs()
      largest = x |> Nx.abs() |> Nx.reshape({6, 2, 32}) |> Nx.reduce_max(axes: [2], keep_axes: true)
      assert Nx.all(Nx.less_equal(Nx.reshape(error, {6, 2, 32}), Nx.multiply(largest, 0.125))) == Nx.u8(1)
    end

    special = Quantized.from_fp8(Nx.broadcast(Nx.tensor(1, type: :f8_e4m3fn), {1, 96}), Nx.u8([[0, 254, 255]]))
    assert [least, largest, nan] = Nx.to_flat_list(Quantized.dequantize(special)[[0, 0..64//32]])
    assert {least, largest, nan} == {2.0 ** -127, 2.0 ** 127, :nan}

    assert_raise ArgumentError, ~r/multiple of 32/, fn ->
      Quantized.quantize(Nx.iota({2, 40}, type: :f32), {:f8, :mx})
    end

    assert_raise ArgumentError,
                 ~r/expected scales of shape \{6, 2\} for a weight of shape \{6, 64\}, got shape \{6, 1\}/,
                 fn ->
                   Quantized.from_fp8(Nx.iota({6, 64}, type: :f8), Nx.iota({6, 1}, type: :u8))
                 end
  end

  test "numbers that a format has come back" do
    for format <- [:q2_k, :q3_k, :iq4_nl, :iq4_xs, :nvfp4], d <- [0.125, 1.0, -0.5, 4.0], _ <- 1..3 do
      x = Nx.tensor(made(format, d), type: :f32) |> Nx.reshape({1, 256})
      q = Quantized.quantize(x, format)
      error = Quantized.dequantize(q) |> Nx.subtract(x) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()
      # What the scale, an f16, loses: nothing of NVFP4, whose scales these are.
      most = if format == :nvfp4, do: 0.0, else: 2 ** -10 * Nx.to_number(Nx.reduce_max(Nx.abs(x)))
      assert error <= most, inspect({format, d})
    end
  end

  test "zeros, one number among zeros, and equal numbers" do
    for format <- formats() -- [:q8_k, :tq1_0, :tq2_0] do
      zeros = Nx.broadcast(Nx.f32(0), {1, 256})
      assert Nx.to_binary(Nx.abs(Quantized.dequantize(Quantized.quantize(zeros, format)))) == Nx.to_binary(zeros)
      one = Nx.put_slice(zeros, [0, 37], Nx.tensor([[-3.0]], type: :f32))

      for x <- [one, Nx.broadcast(Nx.f32(0.75), zeros), Nx.broadcast(Nx.f32(-0.75), zeros)] do
        error = Quantized.dequantize(Quantized.quantize(x, format)) |> Nx.subtract(x) |> Nx.abs() |> Nx.reduce_max()
        # MXFP4 has no number between 4 and 6 of a scale.
        assert Nx.to_number(error) <= 0.26 * Nx.to_number(Nx.reduce_max(Nx.abs(x))), inspect(format)
      end
    end
  end

  test "the errors of the table" do
    {x, _} = Nx.Random.normal(Nx.Random.key(1), shape: {16, 1024}, type: :f32)
    rms = fn x -> x |> Nx.pow(2) |> Nx.mean() |> Nx.sqrt() |> Nx.to_number() end
    doc = File.read!("lib/nx/vulkan/quantized.ex")
    rows = Regex.scan(~r/^  \| `(\{:affine, \d, \d+\}|:\w+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$/m, doc)
    assert length(rows) == 23

    for [_, format, bits, error, _largest] <- rows do
      {format, []} = Code.eval_string(format)
      q = Quantized.quantize(x, format)
      assert_in_delta Quantized.size_bytes(q) * 8 / Nx.size(x), String.to_float(bits), 0.005
      measured = rms.(Nx.subtract(Quantized.dequantize(q), x)) / rms.(x)
      assert_in_delta measured, String.to_float(error), 0.05 * measured, inspect(format)
    end
  end

  test "the documentation and the guide name all formats of blocks" do
    for file <- ["lib/nx/vulkan/quantized.ex", "guides/quantized.md"], text = File.read!(file), format <- formats() do
      assert text =~ "`#{inspect(format)}`", "#{file} lacks #{inspect(format)}"
    end
  end

  test "what does not fit is an ArgumentError that says what was expected" do
    x = Nx.iota({4, 96}, type: :f32)

    for {message, fun} <- [
          {~r/expected a format: one of :iq4_nl.*got: :q3_x/s, fn -> Quantized.quantize(x, :q3_x) end},
          {~r/got: \{:affine, 3, 64\}/, fn -> Quantized.quantize(x, {:affine, 3, 64}) end},
          {~r/multiple of 64, of which \{:affine, 4, 64\}.*\{4, 96\}: pad it/s,
           fn -> Quantized.quantize(x, {:affine, 4, 64}) end},
          {~r/expected a format that can be made.*got: :tq1_0/s,
           fn -> Quantized.quantize(Nx.iota({256}, type: :f32), :tq1_0) end},
          {~r/expected no options for :q4_0/, fn -> Quantized.quantize(x, :q4_0, symmetric: true) end},
          {~r/expected :scales to be one of \[:minmax, :least_squares\], got: :best/,
           fn -> Quantized.quantize(x, {:affine, 4, 32}, scales: :best) end},
          {~r/expected :scale_type to be one of f32, f16, bf16, got: :f64/,
           fn -> Quantized.quantize(x, {:affine, 4, 32}, scale_type: :f64) end},
          {~r/2 axes or more for \{:f8, :channel\}/,
           fn -> Quantized.quantize(Nx.iota({8}, type: :f32), {:f8, :channel}) end},
          {~r/last axis is 34, the bytes of a block, got u8 of shape \{4, 33\}/,
           fn -> Quantized.from_blocks(Nx.iota({4, 33}, type: :u8), :q8_0) end},
          {~r/expected a format of GGUF, got: \{:affine/,
           fn -> Quantized.from_blocks(Nx.iota({4, 34}, type: :u8), {:affine, 4, 64}) end},
          {~r/a multiple of 8, the words of a group of \{:affine, 4, 64\}, got u32 of shape \{2, 12\}/,
           fn -> Quantized.from_mlx(Nx.iota({2, 12}, type: :u32), x, nil, bits: 4, group: 64) end},
          {~r/expected scales f32, f16 or bf16 of shape \{2, 1\}, got f32 of shape \{4, 96\}/,
           fn -> Quantized.from_mlx(Nx.iota({2, 8}, type: :u32), x, nil, bits: 4, group: 64) end},
          {~r/expected a weight f8_e4m3fn or f8, got f32/, fn -> Quantized.from_fp8(x, Nx.f32(1)) end},
          {~r/expected scales of shape \{\}, \{4, 1\}, \{1, 1\} for a weight of shape \{4, 96\}, got shape \{2\}/,
           fn -> Quantized.from_fp8(Nx.as_type(x, :f8), Nx.f32([1, 2])) end},
          {~r/expected scales f32, f16 or bf16 of shape \{k \/ group, n\}.*got f32 of shape \{\}/,
           fn -> Quantized.from_awq(Nx.s32([[1]]), Nx.s32([[1]]), Nx.f32(1), group: 32) end},
          {~r/expected qweight s32 of shape \{16, 96\}, got s32 of shape \{1, 1\}/,
           fn -> Quantized.from_gptq(Nx.s32([[1]]), Nx.s32([[1]]), x, bits: 4, group: 32) end},
          {~r/n a multiple of 16, the integers of a word, got f32 of shape \{1, 8\}/,
           fn -> Quantized.from_gptq(Nx.s32([[1]]), Nx.s32([[1]]), x[[0..0, 0..7]], bits: 2, group: 32) end},
          {~r/n a multiple of 8, the integers of a word, got f32 of shape \{1, 12\}/,
           fn -> Quantized.from_gptq(Nx.s32([[1]]), Nx.s32([[1]]), x[[0..0, 0..11]], bits: 4, group: 32) end},
          {~r/expected qzeros s32 of shape \{4, 12\}, got s32 of shape \{1, 1\}/,
           fn -> Quantized.from_awq(Nx.iota({128, 12}, type: :s32), Nx.s32([[1]]), x, group: 32) end},
          {~r/expected an x whose last axis is 96/,
           fn -> Quantized.dot(Nx.f32([1, 2]), Quantized.quantize(x, :q8_0)) end},
          {~r/expected a quantised tensor of two axes, got shape \{1, 4, 96\}/,
           fn -> Quantized.dot(x, Quantized.quantize(Nx.new_axis(x, 0), :q8_0)) end}
        ] do
      assert_raise ArgumentError, message, fun
    end
  end

  test "is a container: functions, files, inspection" do
    for format <- [{:affine, 4, 64}, :q4_k, {:f8_e4m3fn, :block}] do
      q = Quantized.quantize(weights(), format)
      assert inspect(q) == "#Nx.Vulkan.Quantized<#{inspect(format)} {8, 256}>"
      assert Nx.deserialize(Nx.serialize(q)) == q
      assert Nx.Defn.jit_apply(& &1, [%{layer: q}]) == %{layer: q}
      assert Nx.backend_transfer(q, Nx.BinaryBackend) == q
    end
  end
end
