defmodule Nx.Vulkan.Quantized.Formats do
  @moduledoc false

  # The formats of `Nx.Vulkan.Quantized`, and what each asks of shapes. Numbers, weights and bytes of blocks are those
  # of `enum ggml_type` and of the blocks in ggml-common.h.

  # format: {the number in GGUF files, weights of a block, its bytes}
  @blocks %{
    q4_0: {2, 32, 18},
    q4_1: {3, 32, 20},
    q5_0: {6, 32, 22},
    q5_1: {7, 32, 24},
    q8_0: {8, 32, 34},
    q2_k: {10, 256, 84},
    q3_k: {11, 256, 110},
    q4_k: {12, 256, 144},
    q5_k: {13, 256, 176},
    q6_k: {14, 256, 210},
    q8_k: {15, 256, 292},
    iq4_nl: {20, 32, 18},
    iq4_xs: {23, 256, 136},
    tq1_0: {34, 256, 54},
    tq2_0: {35, 256, 66},
    mxfp4: {39, 32, 17},
    nvfp4: {40, 64, 36}
  }

  @bits [2, 4, 8]
  @groups [32, 64, 128]
  @floats [:f8, :f8_e4m3fn]
  @parts [:tensor, :channel, :block, :mx]

  # Weights of a row that one scale of `:mx` is for (OCP Microscaling Formats 1.0).
  @mx 32

  # Rows and columns that one scale of `:block` is for.
  @float_block 128

  @doc "GGUF's formats of blocks, as a map: the number in files, weights of a block, its bytes."
  def blocks, do: @blocks

  @doc "Weights and bytes of a block."
  def block(format) do
    {_, weights, bytes} = Map.fetch!(@blocks, format)
    {weights, bytes}
  end

  def float_block, do: @float_block
  def mx, do: @mx

  @doc "The format, or an ArgumentError."
  def check!(format) when is_map_key(@blocks, format), do: format
  def check!({:affine, bits, group} = format) when bits in @bits and group in @groups, do: format
  def check!({type, part} = format) when type in @floats and part in @parts, do: format

  def check!(format) do
    names = @blocks |> Map.keys() |> Enum.sort() |> Enum.map_join(", ", &inspect/1)

    raise ArgumentError,
          "expected a format: one of #{names}, {:affine, bits, group} with bits of #{inspect(@bits)} and a group of " <>
            "#{inspect(@groups)}, or {type, part} with a type of #{inspect(@floats)} and a part of " <>
            "#{inspect(@parts)}, got: #{inspect(format)}"
  end

  @doc "How many weights along the last axis stand together."
  def unit({:affine, _bits, group}), do: group
  def unit({type, :mx}) when type in @floats, do: @mx
  def unit({type, _part}) when type in @floats, do: 1
  def unit(format), do: format |> block() |> elem(0)

  @doc "The shape, if tensors of it can have the format; an ArgumentError else."
  def check_shape!(shape, format) do
    rank = tuple_size(shape)
    unit = unit(format)
    least = if match?({_, part} when part in [:channel, :block], format), do: 2, else: 1

    if rank < least do
      raise ArgumentError,
            "expected a tensor of #{least} axes or more for #{inspect(format)}, got shape #{inspect(shape)}"
    end

    if rem(elem(shape, rank - 1), unit) != 0 do
      raise ArgumentError,
            "expected a last axis that is a multiple of #{unit}, of which #{inspect(format)} stores weights " <>
              "together, got shape #{inspect(shape)}: pad it with zeros, or choose a format of smaller groups"
    end

    shape
  end

  @doc "The shape without its last axis, then `last`."
  def ending(shape, last), do: List.to_tuple(Enum.drop(Tuple.to_list(shape), -1) ++ last)

  @doc "Shapes of the tensors of a format."
  def shapes(shape, {:affine, bits, group}) do
    k = elem(shape, tuple_size(shape) - 1)
    factors = ending(shape, [div(k, group)])
    %{weight: ending(shape, [div(k * bits, 32)]), scales: factors, biases: factors}
  end

  def shapes(shape, {type, part}) when type in @floats do
    %{weight: shape, scales: scales_shape(shape, part)}
  end

  def shapes(shape, format) do
    {weights, bytes} = block(format)
    %{blocks: ending(shape, [div(elem(shape, tuple_size(shape) - 1), weights), bytes])}
  end

  defp scales_shape(_shape, :tensor), do: {}
  defp scales_shape(shape, :channel), do: ending(shape, [1])

  defp scales_shape(shape, :mx), do: ending(shape, [div(elem(shape, tuple_size(shape) - 1), @mx)])

  defp scales_shape(shape, :block) do
    {leading, [n, k]} = shape |> Tuple.to_list() |> Enum.split(-2)
    List.to_tuple(leading ++ [ceil_div(n, @float_block), ceil_div(k, @float_block)])
  end

  defp ceil_div(a, b), do: div(a + b - 1, b)
end
