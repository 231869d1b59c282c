defmodule Nx.Vulkan.Quantized.Blocks do
  @moduledoc false

  # The values of GGUF's blocks, u8 {blocks, bytes}, as f32 {blocks, ...}. Each format is an elementwise expression of
  # views: the axes of a block are split so that every part of it, bits by shifts along an axis, broadcasts to all
  # others. No axis is then merged before the last reshape, and the compiler makes one kernel of the whole.
  #
  # Layouts are those of ggml-common.h, values those of ggml's dequantize_row_*: all products of a scale and an integer
  # are exact in f32, so that what is rounded is the last sum alone.

  import Nx.Defn

  # kvalues_iq4nl
  @nonlinear [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
  # Twice the values of E2M1 (OCP Microscaling Formats 1.0): scales are halved for it.
  @e2m1 [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]

  deftransform(decode(blocks, format), do: apply(__MODULE__, format, [blocks]))

  defn(q4_0(b), do: half(b, 0, 2) * (real(bits(bytes(b, 2, {1, 16}), {2, 1}, 4)) - 8))
  defn(q4_1(b), do: half(b, 0, 2) * real(bits(bytes(b, 4, {1, 16}), {2, 1}, 4)) + half(b, 2, 2))

  defn(q5_0(b), do: half(b, 0, 3) * (real(five(b, 2)) - 16))
  defn(q5_1(b), do: half(b, 0, 3) * real(five(b, 4)) + half(b, 2, 3))

  # {2, 2, 8}: four bits each, and the fifth ones before them.
  deftransformp five(b, at) do
    low = bits(bytes(b, at + 4, {1, 2, 8}), {2, 1, 1}, 4)
    high = bits(bytes(b, at, {2, 2, 1}), {1, 1, 8}, 1)
    Nx.bitwise_or(low, Nx.left_shift(high, 4))
  end

  defn(q8_0(b), do: half(b, 0, 1) * real(signed(bytes(b, 2, {32}))))

  # {half of the block, pair of bits, 16 of 32, 16}
  defn q2_k(b) do
    q = real(bits(bytes(b, 16, {2, 1, 2, 16}), {1, 4, 1, 1}, 2))
    factors = bytes(b, 0, {2, 4, 2, 1})
    half(b, 80, 4) * real(factors &&& 15) * q - half(b, 82, 4) * real(factors >>> 4)
  end

  # {half of the block, upper and lower bit of its quarter, 16 of 32, 16}
  defn q3_k(b) do
    low = bits(bytes(b, 32, {2, 1, 1, 2, 16}), {1, 2, 2, 1, 1}, 2)
    high = bits(bytes(b, 0, {1, 1, 1, 2, 16}), {2, 2, 2, 1, 1}, 1)
    low_factor = bits(bytes(b, 96, {1, 2, 2, 2, 1}), {2, 1, 1, 1, 1}, 4)
    high_factor = bits(bytes(b, 104, {1, 1, 2, 2, 1}), {2, 2, 1, 1, 1}, 2)
    factor = real(low_factor ||| high_factor <<< 4) - 32
    half(b, 108, 5) * factor * (real(low ||| high <<< 2) - 4)
  end

  # {half of the block, half of that, nibble, 32}
  defn q4_k(b) do
    {scale, bias} = factors_k(b)
    scale * real(bits(bytes(b, 16, {2, 2, 1, 32}), {1, 1, 2, 1}, 4)) - bias
  end

  defn q5_k(b) do
    {scale, bias} = factors_k(b)
    low = bits(bytes(b, 48, {2, 2, 1, 32}), {1, 1, 2, 1}, 4)
    high = bits(bytes(b, 16, {1, 1, 1, 32}), {2, 2, 2, 1}, 1)
    scale * real(low ||| high <<< 4) - bias
  end

  # Eight scales and biases of six bits: those of the second half have their lower four bits in bytes of their own, and
  # the upper two beside those of the first half.
  defn factors_k(b) do
    s = bytes(b, 4, {1, 2, 2, 1})
    second = Nx.iota({Nx.axis_size(b, 0), 2, 2, 2, 1}, axis: 1, type: :u8)
    m = bytes(b, 8, {1, 2, 2, 1})
    low = bytes(b, 12, {1, 2, 2, 1})
    scale = Nx.select(second, (low &&& 15) ||| (s >>> 2 &&& 48), s &&& 63)
    bias = Nx.select(second, low >>> 4 ||| (m >>> 2 &&& 48), m &&& 63)
    {half(b, 0, 4) * real(scale), half(b, 2, 4) * real(bias)}
  end

  # {half of the block, nibble, half of 64, half of 32, 16}
  defn q6_k(b) do
    low = bits(bytes(b, 0, {2, 1, 2, 2, 16}), {1, 2, 1, 1, 1}, 4)
    high = bits(bytes(b, 128, {2, 1, 1, 2, 16}), {1, 2, 2, 1, 1}, 2)
    factor = real(signed(bytes(b, 192, {2, 2, 2, 2, 1})))
    half(b, 208, 5) * factor * (real(low ||| high <<< 4) - 32)
  end

  defn(q8_k(b), do: single(b) * real(signed(bytes(b, 4, {256}))))

  defn(iq4_nl(b), do: half(b, 0, 2) * real(entry(bits(bytes(b, 2, {1, 16}), {2, 1}, 4), @nonlinear)))

  # {half of the block, half of that, half of that, nibble, 16}
  defn iq4_xs(b) do
    low = bits(bytes(b, 4, {2, 2, 1, 1, 1}), {1, 1, 2, 1, 1}, 4)
    high = bits(bytes(b, 2, {2, 1, 1, 1, 1}), {1, 2, 2, 1, 1}, 2)
    q = entry(bits(bytes(b, 8, {2, 2, 2, 1, 16}), {1, 1, 1, 2, 1}, 4), @nonlinear)
    half(b, 0, 5) * (real(low ||| high <<< 4) - 32) * real(q)
  end

  # Digits of three: five of a byte, which is the fraction of 256 that they are, or four, of the last bytes.
  defn tq1_0(b) do
    {places, powers} = digits()
    fractions = Nx.as_type(Nx.take(b, places, axis: 1) * powers, :u16)
    half(b, 52, 1) * (real((fractions * 3) >>> 8) - 1)
  end

  defn(tq2_0(b), do: half(b, 64, 3) * (real(bits(bytes(b, 0, {2, 1, 32}), {1, 4, 1}, 2)) - 1))

  # A scale is half of 2^(e - 127), of which the smallest two are denormal.
  defn mxfp4(b) do
    e = Nx.as_type(bytes(b, 0, {1, 1}), :u32)
    scale = Nx.bitcast(Nx.select(e < 2, 0x00200000 <<< e, (Nx.max(e, 1) - 1) <<< 23), :f32)
    scale * real(entry(bits(bytes(b, 1, {1, 16}), {2, 1}, 4), @e2m1))
  end

  # Scales are E4M3 without a sign, in which NaN counts as zero.
  defn nvfp4(b) do
    s = bytes(b, 0, {4, 1, 1}) &&& 127
    scale = real(Nx.bitcast(s * (s != 127), :f8_e4m3fn)) * 0.5
    scale * real(entry(bits(bytes(b, 4, {4, 1, 8}), {1, 2, 1}, 4), @e2m1))
  end

  ## Parts of blocks

  # Bytes of each block from one on, with the axes of `dims`.
  deftransformp bytes(b, at, dims) do
    b
    |> Nx.slice_along_axis(at, Tuple.product(dims), axis: 1)
    |> Nx.reshape(Tuple.insert_at(dims, 0, Nx.axis_size(b, 0)))
  end

  # Numbers of `width` bits, the lowest first along the axes of `dims` that are not 1.
  deftransformp bits(bytes, dims, width) do
    shifts = Nx.multiply(Nx.iota(Tuple.insert_at(dims, 0, 1), type: :u8), width)
    bytes |> Nx.right_shift(shifts) |> Nx.bitwise_and(2 ** width - 1)
  end

  # The f16 at a byte of each block, with `rank` axes of 1.
  deftransformp half(b, at, rank) do
    [low, high] = for at <- [at, at + 1], do: b |> Nx.slice_along_axis(at, 1, axis: 1) |> Nx.as_type(:u16)
    ones = Tuple.duplicate(1, rank)

    Nx.bitwise_or(low, Nx.left_shift(high, 8))
    |> Nx.bitcast(:f16)
    |> real()
    |> Nx.reshape(Tuple.insert_at(ones, 0, :auto))
  end

  # The f32 that a block begins with.
  deftransformp single(b) do
    for(at <- 0..3, do: b |> Nx.slice_along_axis(at, 1, axis: 1) |> Nx.as_type(:u32) |> Nx.left_shift(8 * at))
    |> Enum.reduce(&Nx.bitwise_or/2)
    |> Nx.bitcast(:f32)
  end

  deftransformp(real(x), do: Nx.as_type(x, :f32))
  deftransformp(signed(x), do: Nx.bitcast(x, :s8))

  # Entries of a table of 16 numbers of eight bits: bytes of four words, which a kernel has in registers.
  deftransformp entry(q, table) do
    [a, b, c, d] =
      for four <- Enum.chunk_every(table, 4) do
        <<word::signed-little-32>> = for n <- four, into: <<>>, do: <<n::8>>
        word
      end

    word = Nx.select(Nx.less(q, 8), Nx.select(Nx.less(q, 4), a, b), Nx.select(Nx.less(q, 12), c, d))
    shift = q |> Nx.bitwise_and(3) |> Nx.left_shift(3)
    word |> Nx.right_shift(shift) |> Nx.bitwise_and(255) |> Nx.as_type(:u8) |> signed()
  end

  # Of each of 256 digits the byte that it is in, and the power of three that shifts those before it out.
  deftransformp digits() do
    parts = [{0, 32, 5}, {32, 16, 5}, {48, 4, 4}]
    digits = for {at, bytes, count} <- parts, i <- 0..(count - 1), byte <- 0..(bytes - 1), do: {at + byte, 3 ** i}
    {places, powers} = Enum.unzip(digits)
    {Nx.tensor(places, type: :u8), Nx.tensor([powers], type: :u8)}
  end
end
