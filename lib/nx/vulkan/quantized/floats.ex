defmodule Nx.Vulkan.Quantized.Floats do
  @moduledoc false

  # Floats of 8 bits, with a scale for the tensor, for each row, for each block of 128 x 128, or for each 32 of a row, a
  # power of two.

  import Nx.Defn

  alias Nx.Vulkan.Quantized.{Fit, Formats}

  # Bits of the fraction, the exponent of the least normal number, the largest number.
  @types %{f8_e4m3fn: {3, -6, 448.0}, f8: {2, -14, 57_344.0}}

  # The exponent of the largest numbers.
  @most %{f8_e4m3fn: 8, f8: 15}

  deftransform decode(%{weight: weight, scales: scales}, :mx) do
    group = Formats.mx()
    {leading, [k]} = weight.shape |> Tuple.to_list() |> Enum.split(-1)
    groups = List.to_tuple(leading ++ [div(k, group), group])
    values = Nx.multiply(number(Nx.reshape(weight, groups)), Nx.new_axis(power(scales), -1))
    Nx.reshape(values, weight.shape)
  end

  deftransform decode(%{weight: weight, scales: scales}, part) do
    scaled(weight, Nx.as_type(scales, :f32), part)
  end

  # 2 ** (e - 127), of which the least is denormal, and NaN.
  defnp power(e) do
    e = Nx.as_type(e, :u32)
    word = Nx.select(e == 0, 0x00400000, Nx.select(e == 255, 0x7FC00000, e <<< 23))
    Nx.bitcast(Nx.as_type(word, :u32), :f32)
  end

  # Weights are padded to whole blocks, and not scales spread to all weights and cut, which would be a copy of them.
  defp scaled(weight, scales, :block) do
    edge = Formats.float_block()
    {leading, [n, k]} = weight.shape |> Tuple.to_list() |> Enum.split(-2)
    {^leading, [rows, columns]} = scales.shape |> Tuple.to_list() |> Enum.split(-2)
    rank = length(leading)
    shape = &List.to_tuple(leading ++ &1)
    padding = List.duplicate({0, 0, 0}, rank) ++ [{0, rows * edge - n, 0}, {0, columns * edge - k, 0}]

    weight
    |> Nx.bitcast(:u8)
    |> Nx.pad(0, padding)
    |> Nx.bitcast(weight.type)
    |> Nx.reshape(shape.([rows, edge, columns, edge]))
    |> number()
    |> Nx.multiply(Nx.reshape(scales, shape.([rows, 1, columns, 1])))
    |> Nx.reshape(shape.([rows * edge, columns * edge]))
    |> Nx.slice_along_axis(0, n, axis: rank)
    |> Nx.slice_along_axis(0, k, axis: rank + 1)
  end

  defp scaled(weight, scales, _part), do: Nx.multiply(number(weight), scales)

  # E5M2 is the upper half of f16. Nx.BinaryBackend has other values for its denormals (Nx.Floating.load_f8).
  defp number(%Nx.Tensor{type: {:f, 8}} = weight) do
    weight |> Nx.bitcast(:u8) |> Nx.as_type(:u16) |> Nx.left_shift(8) |> Nx.bitcast(:f16) |> Nx.as_type(:f32)
  end

  defp number(weight), do: Nx.as_type(weight, :f32)

  # Scales for all weights.
  defp spread(scales, shape, :block) do
    edge = Formats.float_block()
    {leading, [rows, columns]} = scales.shape |> Tuple.to_list() |> Enum.split(-2)
    rank = length(leading)
    ones = List.to_tuple(leading ++ [rows, 1, columns, 1])
    wide = List.to_tuple(leading ++ [rows, edge, columns, edge])

    scales
    |> Nx.reshape(ones)
    |> Nx.broadcast(wide)
    |> Nx.reshape(List.to_tuple(leading ++ [rows * edge, columns * edge]))
    |> Nx.slice_along_axis(0, elem(shape, rank), axis: rank)
    |> Nx.slice_along_axis(0, elem(shape, rank + 1), axis: rank + 1)
  end

  defp spread(scales, _shape, _part), do: scales

  @doc """
  The tensors of f32 `{..., n, k}`: the largest number of each part becomes the largest of the type.
  """
  defn(encode(tensor, opts), do: encode_parts(tensor, opts))

  deftransformp encode_parts(tensor, opts) do
    if opts[:part] == :mx, do: encode_mx(tensor, opts[:type]), else: encode_scaled(tensor, opts)
  end

  # The scale with which the largest number has the exponent of the type's largest; what is beyond these becomes them.
  defp encode_mx(tensor, type) do
    {fraction, exponent, most} = Map.fetch!(@types, type)
    group = Formats.mx()
    {leading, [k]} = tensor.shape |> Tuple.to_list() |> Enum.split(-1)
    x = Nx.reshape(tensor, List.to_tuple(leading ++ [div(k, group), group]))
    largest = x |> Nx.abs() |> Nx.reduce_max(axes: [-1])
    e = largest |> Nx.bitcast(:u32) |> Nx.right_shift(23) |> Nx.as_type(:s32) |> Nx.subtract(@most[type]) |> Nx.max(1)
    x = x |> Nx.divide(Nx.new_axis(power(e), -1)) |> Nx.clip(-most, most)
    weight = x |> rounded(fraction: fraction, exponent: exponent) |> Nx.as_type(type) |> Nx.reshape(tensor.shape)
    %{weight: weight, scales: Nx.as_type(e, :u8)}
  end

  defp encode_scaled(tensor, opts) do
    {fraction, exponent, most} = Map.fetch!(@types, opts[:type])
    scales = Nx.divide(largest(Nx.abs(tensor), opts[:part]), most)
    x = tensor |> Fit.quotient(spread(scales, tensor.shape, opts[:part])) |> Nx.clip(-most, most)
    %{weight: x |> rounded(fraction: fraction, exponent: exponent) |> Nx.as_type(opts[:type]), scales: scales}
  end

  defp largest(x, :tensor), do: Nx.reduce_max(x)
  defp largest(x, :channel), do: Nx.reduce_max(x, axes: [-1], keep_axes: true)

  defp largest(x, :block) do
    edge = Formats.float_block()
    {leading, [n, k]} = x.shape |> Tuple.to_list() |> Enum.split(-2)
    [rows, columns] = for size <- [n, k], do: div(size + edge - 1, edge)
    padding = List.duplicate({0, 0, 0}, length(leading)) ++ [{0, rows * edge - n, 0}, {0, columns * edge - k, 0}]
    rank = length(leading)

    x
    |> Nx.pad(0, padding)
    |> Nx.reshape(List.to_tuple(leading ++ [rows, edge, columns, edge]))
    |> Nx.reduce_max(axes: [rank + 1, rank + 3])
  end

  @doc """
  The nearest number that a type has whose fraction has `:fraction` bits, and whose least normal number is
  `2 ** exponent`, even ones halfway, so that a cast changes nothing.
  """
  defn rounded(x, opts) do
    {fraction, exponent} = {opts[:fraction], opts[:exponent]}
    dropped = 23 - fraction
    word = Nx.bitcast(x, :u32)
    half = (1 <<< (dropped - 1)) - 1
    normal = Nx.bitcast(((word + half + (word >>> dropped &&& 1)) >>> dropped) <<< dropped, :f32)
    steps = 2 ** (fraction - exponent)
    sign = word &&& 0x80000000
    denormal = Nx.bitcast(Nx.bitcast(Fit.even(Nx.abs(x) * steps) / steps, :u32) ||| sign, :f32)
    Nx.select(Nx.abs(x) < 2 ** exponent, denormal, normal)
  end
end
