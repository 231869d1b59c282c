defmodule Nx.Vulkan.Quantized.Affine do
  @moduledoc false

  # Integers of 2, 4 or 8 bits in words, with a scale and a bias for each group.

  import Nx.Defn

  alias Nx.Vulkan.Quantized.{Fit, Formats}

  @doc """
  The values, f32 `{groups, words of a group, integers of a word}`.
  """
  deftransform decode(tensors, bits, group) do
    per = div(32, bits)
    words = Nx.reshape(tensors.weight, {:auto, div(group, per), 1})
    q = words |> Nx.right_shift(shifts(bits)) |> Nx.bitwise_and(2 ** bits - 1) |> Nx.as_type(:f32)
    scales = factors(tensors.scales)

    case tensors do
      %{biases: biases} -> Nx.add(Nx.multiply(scales, q), factors(biases))
      %{} -> Nx.multiply(scales, Nx.subtract(q, 2 ** (bits - 1)))
    end
  end

  defp factors(tensor), do: tensor |> Nx.as_type(:f32) |> Nx.reshape({:auto, 1, 1})

  @doc """
  The tensors of f32 `{..., k}`. Integers are chosen for the scales as they are stored.
  """
  defn encode(tensor, opts) do
    encode_groups(tensor, opts)
  end

  deftransformp encode_groups(tensor, opts) do
    {bits, group, type} = {opts[:bits], opts[:group], opts[:scale_type]}
    levels = 2 ** bits - 1
    x = Nx.reshape(tensor, {:auto, group})
    shapes = Formats.shapes(tensor.shape, {:affine, bits, group})

    if opts[:symmetric] do
      half = 2 ** (bits - 1)
      scales = x |> around_zero(half, opts[:scales]) |> stored(type)
      q = x |> Fit.quotient(scales) |> Nx.add(half)
      %{weight: pack(q, levels, bits, shapes.weight), scales: part(scales, type, shapes)}
    else
      {scales, biases} = bounded(x, levels, opts[:scales])
      {scales, biases} = {stored(scales, type), stored(biases, type)}
      q = x |> Nx.subtract(biases) |> Fit.quotient(scales)

      %{
        weight: pack(q, levels, bits, shapes.weight),
        scales: part(scales, type, shapes),
        biases: part(biases, type, shapes)
      }
    end
  end

  defp around_zero(x, half, :minmax), do: Fit.symmetric(x, half: half)
  defp around_zero(x, half, :least_squares), do: Fit.symmetric_least_squares(x, ones(x), half: half)

  defp bounded(x, levels, :minmax), do: Fit.extremes(x, levels: levels)

  defp bounded(x, levels, :least_squares) do
    Fit.least_squares(x, ones(x), levels: levels, first: -1.0, step: 0.1, count: 21)
  end

  defp ones(x), do: Nx.broadcast(Nx.tensor(1, type: :f32), x)

  # As the type has it, in f32.
  defp stored(tensor, type), do: tensor |> Nx.as_type(type) |> Nx.as_type(:f32)

  defp part(tensor, type, shapes), do: tensor |> Nx.as_type(type) |> Nx.reshape(shapes.scales)

  defp pack(q, levels, bits, shape) do
    q |> Fit.integers(levels) |> Nx.as_type(:u32) |> words(bits) |> Nx.reshape(shape)
  end

  @doc """
  The tensors of what GPTQ stores: words of integers along k, `{k * bits / 32, n}`, words of zero points along n, of
  which 1 was taken away, `{k / group, n * bits / 32}`, and scales `{k / group, n}`.
  """
  defn from_gptq(qweight, qzeros, scales, opts) do
    bits = opts[:bits]
    zeros = zeros_of_gptq(integers(qzeros, bits: bits), opts)
    %{weight: Nx.transpose(Nx.bitcast(qweight, :u32)), scales: Nx.transpose(scales), biases: biases(zeros, scales)}
  end

  defnp zeros_of_gptq(zeros, opts) do
    mask = 2 ** opts[:bits] - 1
    Nx.reshape(zeros, {Nx.axis_size(zeros, 0), :auto}) + 1 &&& mask
  end

  @doc """
  Words of integers along k, `{k * bits / 32, n}`, with the columns in another order.
  """
  defn ordered(qweight, columns, opts) do
    {rows, n} = Nx.shape(qweight)
    # {words, n, integers of a word} as {k, n}.
    integers = qweight |> integers(bits: opts[:bits]) |> Nx.transpose(axes: [0, 2, 1]) |> Nx.reshape({:auto, n})

    integers
    |> Nx.take(columns)
    |> Nx.transpose()
    |> words(opts[:bits])
    |> Nx.reshape({n, rows})
    |> Nx.transpose()
    |> Nx.bitcast(:s32)
  end

  @doc """
  The tensors of what AWQ stores: words of integers along n, `{k, n / 8}`, those of zero points, `{k / group, n / 8}`,
  and scales `{k / group, n}`.
  """
  defn from_awq(qweight, qzeros, scales) do
    integers = qweight |> integers(bits: 4) |> in_order()
    zeros = qzeros |> integers(bits: 4) |> in_order()
    weight = Nx.reshape(words(Nx.transpose(integers), 4), {Nx.axis_size(integers, 1), :auto})
    %{weight: weight, scales: Nx.transpose(scales), biases: biases(zeros, scales)}
  end

  # A word of AWQ has the even columns first.
  defnp in_order(integers) do
    {rows, words, _} = Nx.shape(integers)

    integers
    |> Nx.reshape({rows, words, 2, 4})
    |> Nx.transpose(axes: [0, 1, 3, 2])
    |> Nx.reshape({rows, :auto})
  end

  # Exact in f32 where scales are f16 or bf16.
  defnp(biases(zeros, scales), do: Nx.transpose(-Nx.as_type(scales, :f32) * zeros))

  # {..., words} as {..., words, integers of a word}.
  defnp integers(words, opts) do
    words = Nx.new_axis(Nx.bitcast(words, :u32), -1)
    words >>> shifts(opts[:bits]) &&& 2 ** opts[:bits] - 1
  end

  # Words of u32 integers, {words}.
  deftransformp words(integers, bits) do
    integers
    |> Nx.reshape({:auto, div(32, bits)})
    |> Nx.left_shift(shifts(bits))
    |> Nx.sum(axes: [1])
    |> Nx.as_type(:u32)
  end

  deftransformp(shifts(bits), do: Nx.multiply(Nx.iota({div(32, bits)}, type: :u32), bits))
end
