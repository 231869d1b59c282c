defmodule Nx.Vulkan.QuantizedData do
  @moduledoc """
  Blocks and weights of `test/data/quantized`, whose README says where they are from. All on the host.
  """

  alias Nx.Vulkan.Quantized
  alias Nx.Vulkan.Quantized.Formats

  @folder Path.expand("../data/quantized", __DIR__)

  @doc "GGUF's formats."
  def formats, do: Formats.blocks() |> Map.keys() |> Enum.sort()

  @doc "Blocks of a format, a row each, and the bits of their values."
  def decoded(format) do
    {weights, bytes} = Formats.block(format)
    data = read("#{format}.bin")
    count = div(byte_size(data), bytes + 4 * weights)
    <<blocks::binary-size(count * bytes), values::binary>> = data
    blocks = blocks |> tensor(:u8) |> Nx.reshape({count, 1, bytes}) |> Quantized.from_blocks(format)
    {blocks, values}
  end

  @doc "The numbers that were quantised, {8, 256}."
  def weights, do: "weights.bin" |> read() |> tensor(:f32) |> Nx.reshape({8, 256})

  @doc "What became of `weights/0` in a format."
  def encoded(format), do: read("weights_#{format}.bin")

  @doc "The same as a quantised tensor, of formats whose blocks have 256 weights."
  def encoded_blocks(format) do
    {256, bytes} = Formats.block(format)
    format |> encoded() |> tensor(:u8) |> Nx.reshape({8, 1, bytes}) |> Quantized.from_blocks(format)
  end

  @doc "The values of all bytes as floats of 8 bits."
  def floats(type), do: "#{type}.bin" |> read() |> tensor(:f32)

  @doc "A random affine tensor; scales of some groups are zero, denormal and the largest that there are."
  def affine({:affine, bits, group} = format, rows, groups, type, biases?) do
    shapes = Formats.shapes({rows, groups * group}, format)
    words = Tuple.product(shapes.weight)
    weight = Nx.reshape(tensor(:rand.bytes(4 * words), :u32), shapes.weight)
    [scales, biases] = for odd <- [[0.0, -0.0, 6.0e-8, 6.0e4], [1.0e-3, 0.0]], do: factors(odd, shapes.scales, type)
    Quantized.from_mlx(weight, scales, if(biases?, do: biases), bits: bits, group: group)
  end

  defp factors(odd, shape, type) do
    count = Tuple.product(shape)
    values = Enum.take(odd ++ for(_ <- 1..count, do: :rand.normal() * 0.01), count)
    values |> Nx.tensor(type: type, backend: Nx.BinaryBackend) |> Nx.reshape(shape)
  end

  @doc "A tensor of bytes."
  def tensor(bytes, type), do: Nx.from_binary(bytes, type, backend: Nx.BinaryBackend)

  defp read(name), do: File.read!(Path.join(@folder, name))
end
