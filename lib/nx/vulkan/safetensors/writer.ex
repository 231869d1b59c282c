defmodule Nx.Vulkan.Safetensors.Writer do
  @moduledoc false

  # The bytes of a safetensors file, and their way to the disk.

  alias Nx.Vulkan.Safetensors.Types
  alias Nx.Vulkan.{Quantized, WholeFile}

  # Data begin at a multiple of it, as the reference has it.
  @alignment 8

  @most_f16 65_504

  @doc """
  Writes the file. Tensors are read from their backend one after the other.
  """
  def write(path, tensors, metadata) do
    metadata = Map.new(metadata, &pair!/1)
    tensors = Enum.flat_map(tensors, fn {name, tensor} -> parts(name!(name), tensor) end)
    unique!(tensors)

    {entries, _} =
      Enum.map_reduce(tensors, 0, fn {name, tensor}, first ->
        last = first + Nx.byte_size(tensor)
        {{name, entry(tensor, first, last)}, last}
      end)

    WholeFile.write(path, fn file ->
      with :ok <- :file.write(file, header(entries, metadata)), do: data(file, tensors)
    end)
  end

  defp header(entries, metadata) do
    entries = if metadata == %{}, do: entries, else: [{"__metadata__", JSON.encode!(metadata)} | entries]
    pairs = for {name, json} <- entries, do: [JSON.encode!(name), ?:, json]
    json = IO.iodata_to_binary(["{", Enum.intersperse(pairs, ","), "}"])
    padding = rem(@alignment - rem(byte_size(json), @alignment), @alignment)
    [<<byte_size(json) + padding::little-64>>, json, String.duplicate(" ", padding)]
  end

  defp entry(tensor, first, last) do
    {:ok, dtype} = Types.name(tensor.type)
    sizes = tensor.shape |> Tuple.to_list() |> Enum.join(",")
    ~s({"dtype":"#{dtype}","shape":[#{sizes}],"data_offsets":[#{first},#{last}]})
  end

  defp data(file, tensors) do
    Enum.reduce_while(tensors, :ok, fn {_, tensor}, :ok ->
      case :file.write(file, Nx.to_binary(tensor)) do
        :ok -> {:cont, :ok}
        error -> {:halt, error}
      end
    end)
  end

  # The tensors that a quantised one is in files, by the names that MLX and DeepSeek give them.
  defp parts(name, %Quantized{format: {:affine, bits, _}, tensors: %{weight: weight, scales: scales} = tensors})
       when not is_map_key(tensors, :columns) do
    {scales, biases} = with_biases(scales, tensors[:biases], bits)
    layer = layer!(name)
    for {part, tensor} <- [weight: weight, scales: scales, biases: biases], do: checked("#{layer}.#{part}", tensor)
  end

  defp parts(name, %Quantized{format: {_, _}, tensors: %{weight: weight, scales: scales}}) do
    [checked(name, weight), checked(name <> "_scale_inv", scales)]
  end

  defp parts(name, %Quantized{format: format}) do
    raise ArgumentError,
          "expected a quantised tensor of affine integers whose columns are in order, or of floats of 8 bits, for " <>
            "#{name}, got: #{inspect(format)}: Nx.Vulkan.GGUF writes those of blocks"
  end

  defp parts(name, %Nx.Tensor{} = tensor), do: [checked(name, tensor)]

  defp parts(name, other) do
    raise ArgumentError, "expected a tensor or a quantised one for #{name}, got: #{inspect(other)}"
  end

  # MLX knows none without biases. Those of f16 may be beyond its range: then both are f32, of the same values.
  defp with_biases(scales, nil, bits) do
    biases = scales |> Nx.as_type(:f32) |> Nx.multiply(-(2 ** (bits - 1)))
    beyond? = scales.type == {:f, 16} and Nx.to_number(Nx.reduce_max(Nx.abs(biases))) > @most_f16

    if beyond?, do: {Nx.as_type(scales, :f32), biases}, else: {scales, Nx.as_type(biases, scales.type)}
  end

  defp with_biases(scales, biases, _bits), do: {scales, biases}

  defp layer!(name) do
    case String.split(name, ~r/\.weight$/) do
      [layer, ""] ->
        layer

      _ ->
        raise ArgumentError,
              "expected a name that ends in .weight for a quantised tensor of integers, got: #{inspect(name)}"
    end
  end

  defp checked(name, %Nx.Tensor{vectorized_axes: [], type: type} = tensor) do
    if Types.name(type) == :error do
      types = Types.types() |> Enum.sort() |> Enum.map_join(", ", &Nx.Type.to_string/1)

      raise ArgumentError,
            "expected a type that safetensors have for #{name}, one of #{types}, got: #{Nx.Type.to_string(type)}"
    end

    {name, tensor}
  end

  defp checked(name, %Nx.Tensor{vectorized_axes: axes}) do
    raise ArgumentError, "expected a tensor without vectorized axes for #{name}, got: #{inspect(axes)}: devectorize it"
  end

  defp name!(name) when is_binary(name) and name != "__metadata__" and byte_size(name) in 1..65_535 do
    if String.valid?(name), do: name, else: raise(ArgumentError, "expected a name in UTF-8, got: #{inspect(name)}")
  end

  defp name!(name) do
    raise ArgumentError, "expected a name of 1 to 65,535 bytes for a tensor, not __metadata__, got: #{inspect(name)}"
  end

  defp pair!({key, value}) when is_binary(key) and is_binary(value) do
    if not String.valid?(key <> value),
      do: raise(ArgumentError, "expected metadata in UTF-8, got: #{inspect({key, value})}")

    {key, value}
  end

  defp pair!(other), do: raise(ArgumentError, "expected strings as keys and values of metadata, got: #{inspect(other)}")

  defp unique!(tensors) do
    names = Enum.map(tensors, &elem(&1, 0))

    case names -- Enum.uniq(names) do
      [] -> :ok
      [name | _] -> raise ArgumentError, "expected each name once, got twice: #{inspect(name)}"
    end
  end
end
