defmodule Nx.Vulkan.GGUF.Types do
  @moduledoc false

  # Types of tensors and of metadata by their numbers in files: `enum ggml_type` and `enum gguf_type` of ggml.

  alias Nx.Vulkan.Quantized.Formats

  @dense %{
    0 => {:f, 32},
    1 => {:f, 16},
    24 => {:s, 8},
    25 => {:s, 16},
    26 => {:s, 32},
    27 => {:s, 64},
    28 => {:f, 64},
    30 => {:bf, 16}
  }

  # Blocks whose place is known, and no values: those of grids, of one bit, and of the other side of products.
  @closed %{
    9 => {:q8_1, 32, 36},
    16 => {:iq2_xxs, 256, 66},
    17 => {:iq2_xs, 256, 74},
    18 => {:iq3_xxs, 256, 98},
    19 => {:iq1_s, 256, 50},
    21 => {:iq3_s, 256, 110},
    22 => {:iq2_s, 256, 82},
    29 => {:iq1_m, 256, 56},
    41 => {:q1_0, 128, 18}
  }

  @blocks Map.new(Formats.blocks(), fn {format, {number, weights, bytes}} -> {number, {format, weights, bytes}} end)

  @tensors @dense
           |> Map.new(fn {number, {_, bits} = type} -> {number, {type, 1, div(bits, 8)}} end)
           |> Map.merge(@closed)
           |> Map.merge(@blocks)

  @numbers Map.new(@tensors, fn {number, {format, _, _}} -> {format, number} end)

  # A type's name and the bytes that a value takes at least.
  @values %{
    0 => {:u8, 1},
    1 => {:s8, 1},
    2 => {:u16, 2},
    3 => {:s16, 2},
    4 => {:u32, 4},
    5 => {:s32, 4},
    6 => {:f32, 4},
    7 => {:bool, 1},
    8 => {:string, 8},
    9 => {:array, 12},
    10 => {:u64, 8},
    11 => {:s64, 8},
    12 => {:f64, 8}
  }

  @value_numbers Map.new(@values, fn {number, {type, _}} -> {type, number} end)

  @doc "Of a number: the format, weights of a block and its bytes."
  def tensor(number), do: Map.fetch(@tensors, number)

  @doc "The number of a format."
  def tensor_number(format), do: Map.fetch(@numbers, format)

  @doc "Of a number: the type of metadata, and the bytes that a value takes at least."
  def value(number), do: Map.fetch(@values, number)

  @doc "The number of a type of metadata."
  def value_number(type), do: Map.fetch(@value_numbers, type)
end
