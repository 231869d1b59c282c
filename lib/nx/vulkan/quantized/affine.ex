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
    shifts = Nx.multiply(Nx.iota({1, 1, per}, type: :u32), bits)
    q = words |> Nx.right_shift(shifts) |> Nx.bitwise_and(2 ** bits - 1) |> Nx.as_type(:f32)
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
      scales = stored(Fit.symmetric(x, half: half, scales: opts[:scales]), type)
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

  defp bounded(x, levels, :minmax), do: Fit.extremes(x, levels: levels)

  defp bounded(x, levels, :least_squares) do
    Fit.least_squares(x, Nx.broadcast(Nx.tensor(1, type: :f32), x), levels: levels, first: -1.0, step: 0.1, count: 21)
  end

  # As the type has it, in f32.
  defp stored(tensor, type), do: tensor |> Nx.as_type(type) |> Nx.as_type(:f32)

  defp part(tensor, type, shapes), do: tensor |> Nx.as_type(type) |> Nx.reshape(shapes.scales)

  defp pack(q, levels, bits, shape) do
    per = div(32, bits)
    shifts = Nx.multiply(Nx.iota({1, per}, type: :u32), bits)

    q
    |> Fit.integers(levels)
    |> Nx.as_type(:u32)
    |> Nx.reshape({:auto, per})
    |> Nx.left_shift(shifts)
    |> Nx.sum(axes: [1])
    |> Nx.as_type(:u32)
    |> Nx.reshape(shape)
  end
end
