defmodule Nx.Vulkan.Quantized.Encoder do
  @moduledoc false

  # GGUF's blocks of f32 `{..., k}`, as u8 `{..., k / weights, bytes}`, in the steps of ggml's quantize_row_*_ref. Those
  # of Q2_K, Q3_K, IQ4_NL and IQ4_XS find their scales by least squares in ways of their own, in ggml's layouts.

  import Nx.Defn

  alias Nx.Vulkan.Quantized.{Fit, Floats, Formats}

  @formats [:q4_0, :q4_1, :q5_0, :q5_1, :q8_0, :q2_k, :q3_k, :q4_k, :q5_k, :q6_k] ++
             [:iq4_nl, :iq4_xs, :mxfp4, :nvfp4]

  deftransform encode(tensor, format) do
    if format not in @formats do
      raise ArgumentError,
            "expected a format that can be made, one of #{inspect(@formats)}, an affine one or one of floats of " <>
              "8 bits, got: #{inspect(format)}"
    end

    {weights, _bytes} = Formats.block(format)
    x = Nx.reshape(tensor, {:auto, weights})
    apply(__MODULE__, format, [x]) |> Nx.reshape(Formats.shapes(tensor.shape, format).blocks)
  end

  defn q4_0(x) do
    {d, q} = around(x, half: 8)
    join([f16(d), nibbles(q)])
  end

  defn q4_1(x) do
    {d, m, q} = above(x, levels: 15)
    join([f16(d), f16(m), nibbles(q)])
  end

  defn q5_0(x) do
    {d, q} = around(x, half: 16)
    join([f16(d), fifth_bits(q), nibbles(q &&& 15)])
  end

  defn q5_1(x) do
    {d, m, q} = above(x, levels: 31)
    join([f16(d), f16(m), fifth_bits(q), nibbles(q &&& 15)])
  end

  defn q8_0(x) do
    d = Nx.reduce_max(Nx.abs(x), axes: [1], keep_axes: true) / 127
    q = Nx.as_type(Nx.round(x * Fit.reciprocal(d)), :s8)
    join([f16(d), Nx.bitcast(q, :u8)])
  end

  defn q4_k(x) do
    {d, m, factors, q} = with_six_bits(x, levels: 15, first: -1.0, count: 21)
    join([f16(d), f16(m), factors, pairs(q)])
  end

  defn q5_k(x) do
    {d, m, factors, q} = with_six_bits(x, levels: 31, first: -0.5, count: 16)
    high = Nx.reshape(q >>> 4, {:auto, 8, 32}) <<< Nx.iota({1, 8, 1}, type: :u8)
    join([f16(d), f16(m), factors, Nx.as_type(Nx.sum(high, axes: [1]), :u8), pairs(q &&& 15)])
  end

  # Scales and biases of 16 have four bits, as shares of the largest ones of 256.
  defn q2_k(x) do
    x = Nx.reshape(x, {:auto, 16})
    fitted = fit(x, Nx.abs(x), levels: 3, first: -0.5, count: 16)
    {d, m, scale_levels, bias_levels, q} = with_shares(x, fitted, groups: 16, most: 15, levels: 3)
    factors = Nx.as_type(scale_levels, :u8) ||| Nx.as_type(bias_levels, :u8) <<< 4
    join([factors, quarters(q), f16(d), f16(m)])
  end

  # Scales of 16 have six bits, as shares of the one of 256 with the largest magnitude, which is -32.
  defn q3_k(x) do
    x = Nx.reshape(x, {:auto, 16})
    scales = Nx.reshape(Fit.symmetric_least_squares(x, x * x, half: 4), {:auto, 16})
    {d, levels} = shares(scales)
    q = Fit.quotient(x, Nx.reshape(stored(d) * levels, {:auto, 1}))
    q = Nx.as_type(Nx.clip(Fit.even(q), -4, 3) + 4, :u8)
    high = Nx.reshape(q >>> 2, {:auto, 8, 32}) <<< Nx.iota({1, 8, 1}, type: :u8)
    factors = Nx.as_type(levels + 32, :u8)
    low_factors = (factors[[.., 0..7]] &&& 15) ||| (factors[[.., 8..15]] &&& 15) <<< 4
    high_factors = Nx.reshape(factors >>> 4, {:auto, 4, 4}) <<< (2 * Nx.iota({1, 4, 1}, type: :u8))
    join([total(high), quarters(q &&& 3), low_factors, total(high_factors), f16(d)])
  end

  # Six bits with a sign, and the scale of them.
  defnp shares(scales) do
    inverse = -32 * Fit.reciprocal(Fit.extreme(scales))
    {Fit.reciprocal(inverse), Nx.clip(Fit.even(scales * inverse), -32, 31)}
  end

  # Two bits each of 256: those of four times 32 in a byte.
  defnp quarters(q) do
    q = Nx.reshape(q, {:auto, 2, 4, 32}) <<< (2 * Nx.iota({1, 1, 4, 1}, type: :u8))
    Nx.reshape(Nx.as_type(Nx.sum(q, axes: [2]), :u8), {:auto, 64})
  end

  # Bits along the second axis.
  defnp(total(bits), do: Nx.as_type(Nx.sum(bits, axes: [1]), :u8))

  defn iq4_nl(x) do
    d = Fit.nonlinear(x)
    join([f16(d), nibbles(Nx.as_type(elem(Fit.nearest(Fit.quotient(x, stored(d))), 0), :u8))])
  end

  defn iq4_xs(x) do
    x = Nx.reshape(x, {:auto, 32})
    {d, levels} = shares(Nx.reshape(Fit.nonlinear(x), {:auto, 8}))
    {q, _} = Fit.nearest(Fit.quotient(x, Nx.reshape(stored(d) * levels, {:auto, 1})))
    factors = Nx.as_type(levels + 32, :u8)
    high = Nx.reshape(factors >>> 4, {:auto, 2, 4}) <<< (2 * Nx.iota({1, 1, 4}, type: :u8))
    low = Nx.reshape(factors &&& 15, {:auto, 4, 2})
    low = low[[.., .., 0]] ||| low[[.., .., 1]] <<< 4
    q = Nx.reshape(nibbles(Nx.as_type(q, :u8)), {:auto, 128})
    join([f16(d), Nx.as_type(Nx.sum(high, axes: [2]), :u8), low, q])
  end

  # Scales and biases of 32 have six bits, as shares of the largest ones of 256.
  defnp with_six_bits(x, opts) do
    x = Nx.reshape(x, {:auto, 32})
    weights = Nx.sqrt(Nx.sum(x * x, axes: [1], keep_axes: true) / 32) + Nx.abs(x)
    fitted = fit(x, weights, opts)
    {d, m, scale_levels, bias_levels, q} = with_shares(x, fitted, groups: 8, most: 63, levels: opts[:levels])
    {d, m, factors(scale_levels, bias_levels), q}
  end

  # Scales and biases of so many groups as integers up to `:most`, what these are shares of, and the integers of x.
  defnp with_shares(x, {scales, biases}, opts) do
    {d, scale_levels} = unsigned_shares(Nx.reshape(scales, {:auto, opts[:groups]}), opts[:most])
    {m, bias_levels} = unsigned_shares(Nx.reshape(-biases, {:auto, opts[:groups]}), opts[:most])
    scale = Nx.reshape(stored(d) * scale_levels, {:auto, 1})
    bias = Nx.reshape(stored(m) * bias_levels, {:auto, 1})
    q = Nx.as_type(Fit.integers(Fit.quotient(x + bias, scale), opts[:levels]), :u8)
    {d, m, scale_levels, bias_levels, q}
  end

  deftransformp(fit(x, weights, opts), do: Fit.least_squares(x, weights, [step: 0.1, most: 0] ++ opts))

  deftransformp unsigned_shares(x, levels) do
    most = x |> Nx.reduce_max(axes: [1], keep_axes: true) |> Nx.max(0)
    {Nx.divide(most, levels), Fit.integers(Nx.multiply(x, Nx.multiply(Fit.reciprocal(most), levels)), levels)}
  end

  # Scales of 16 have eight bits, as shares of the one of 256 with the largest magnitude, which is -128.
  defn q6_k(x) do
    x = Nx.reshape(x, {:auto, 16})
    scales = Nx.reshape(Fit.symmetric_least_squares(x, x * x, half: 32), {:auto, 16})
    inverse = -128 * Fit.reciprocal(Fit.extreme(scales))
    levels = Nx.min(Fit.even(scales * inverse), 127)
    d = Fit.reciprocal(inverse)
    q = Fit.quotient(x, Nx.reshape(stored(d) * levels, {:auto, 1}))
    q = Nx.as_type(Nx.clip(Fit.even(q), -32, 31) + 32, :u8)
    high = Nx.reshape(q >>> 4, {:auto, 2, 4, 32}) <<< (2 * Nx.iota({1, 1, 4, 1}, type: :u8))
    high = Nx.reshape(Nx.as_type(Nx.sum(high, axes: [2]), :u8), {:auto, 64})
    low = Nx.reshape(q &&& 15, {:auto, 2, 2, 64})
    low = Nx.reshape(low[[.., .., 0]] ||| low[[.., .., 1]] <<< 4, {:auto, 128})
    join([low, high, Nx.bitcast(Nx.as_type(levels, :s8), :u8), f16(d)])
  end

  # Between the values of E2M1, twice as large as they are.
  @halfway [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0]

  # The scale is a power of two with which the largest number is from 4 to 8.
  defn mxfp4(x) do
    most = Nx.reduce_max(Nx.abs(x), axes: [1], keep_axes: true)
    e = Nx.max(Nx.as_type(Nx.bitcast(most, :u32) >>> 23, :s32) - 2, 0)
    scale = Nx.bitcast(Nx.select(e < 2, 0x00200000 <<< e, (Nx.max(e, 1) - 1) <<< 23), :f32)
    q = nearest(Nx.abs(x), scale)
    sign = (x < 0 and q > 0) <<< 3
    join([Nx.as_type(e, :u8), nibbles(Nx.as_type(q ||| sign, :u8))])
  end

  # Scales of 16 are E4M3, with which the largest number is 6.
  defn nvfp4(x) do
    x = Nx.reshape(x, {:auto, 16})
    most = Nx.reduce_max(Nx.abs(x), axes: [1], keep_axes: true)
    scale = Floats.rounded(Nx.min(most / 6, 448), fraction: 3, exponent: -6)
    q = nearest(Nx.abs(x), scale / 2) * (scale > 0)
    q = Nx.as_type(q ||| (x < 0 and q > 0) <<< 3, :u8)
    scales = Nx.bitcast(Nx.as_type(scale, :f8_e4m3fn), :u8)
    join([Nx.reshape(scales, {:auto, 4}), Nx.reshape(q[[.., 0..7]] ||| q[[.., 8..15]] <<< 4, {:auto, 32})])
  end

  deftransformp nearest(x, scale) do
    @halfway |> Enum.map(&Nx.greater(x, Nx.multiply(scale, &1))) |> Enum.reduce(&Nx.add/2)
  end

  # Scale and integers, of which the middle is 0.
  defnp around(x, opts) do
    d = Fit.extreme(x) / -opts[:half]
    q = x * Fit.reciprocal(d) + (opts[:half] + 0.5)
    {d, Nx.as_type(Nx.clip(Nx.floor(q), 0, 2 * opts[:half] - 1), :u8)}
  end

  # Scale, least number and integers.
  defnp above(x, opts) do
    {d, min} = Fit.extremes(x, opts)
    q = (x - min) * Fit.reciprocal(d) + 0.5
    {d, min, Nx.as_type(Nx.clip(Nx.floor(q), 0, opts[:levels]), :u8)}
  end

  ## Parts of blocks

  deftransformp(join(parts), do: Nx.concatenate(parts, axis: 1))

  defnp(stored(x), do: Nx.as_type(Nx.as_type(x, :f16), :f32))

  defnp f16(x) do
    word = Nx.bitcast(Nx.as_type(x, :f16), :u16)
    Nx.concatenate([Nx.as_type(word &&& 255, :u8), Nx.as_type(word >>> 8, :u8)], axis: 1)
  end

  # The first 16 in the lower bits.
  defnp(nibbles(q), do: q[[.., 0..15]] ||| q[[.., 16..31]] <<< 4)

  defnp fifth_bits(q) do
    bits = Nx.reshape(q >>> 4, {:auto, 4, 8}) <<< Nx.iota({1, 1, 8}, type: :u8)
    Nx.as_type(Nx.sum(bits, axes: [2]), :u8)
  end

  # Of {8 * blocks, 32}: 32 in the lower bits, the next 32 in the upper ones.
  defnp pairs(q) do
    q = Nx.reshape(q, {:auto, 4, 2, 32})
    Nx.reshape(q[[.., .., 0]] ||| q[[.., .., 1]] <<< 4, {:auto, 128})
  end

  defnp factors(scales, biases) do
    {scales, biases} = {Nx.as_type(scales, :u8), Nx.as_type(biases, :u8)}
    {s, s_second} = {scales[[.., 0..3]], scales[[.., 4..7]]}
    {m, m_second} = {biases[[.., 0..3]], biases[[.., 4..7]]}

    Nx.concatenate(
      [
        s ||| (s_second >>> 4) <<< 6,
        m ||| (m_second >>> 4) <<< 6,
        (s_second &&& 15) ||| (m_second &&& 15) <<< 4
      ],
      axis: 1
    )
  end
end
