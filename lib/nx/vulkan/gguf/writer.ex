defmodule Nx.Vulkan.GGUF.Writer do
  @moduledoc false

  # The bytes of a GGUF file, version 3, and their way to the disk.

  alias Nx.Vulkan.GGUF.Types
  alias Nx.Vulkan.{Quantized, WholeFile}

  @version 3
  @alignment 32

  # GGML_MAX_DIMS, and GGML_MAX_NAME with the byte that ends a name of C.
  @most_axes 4
  @most_name 63

  @doc """
  Writes the file, beside its place first, so that there is never half of one.
  """
  def write(path, metadata, tensors) do
    metadata = Enum.map(metadata, fn {key, value} -> {key!(key), typed(value, key)} end)
    tensors = Enum.map(tensors, fn {name, tensor} -> {name!(name), stored(tensor, name)} end)
    unique!(metadata)
    unique!(tensors)
    alignment = alignment(metadata)
    header = header(metadata, tensors, alignment)

    WholeFile.write(path, fn file ->
      with :ok <- :file.write(file, [header, padding(IO.iodata_length(header), alignment)]),
           do: data(file, tensors, alignment)
    end)
  end

  defp data(file, tensors, alignment) do
    Enum.reduce_while(tensors, :ok, fn {_, %{bytes: bytes, tensor: tensor}}, :ok ->
      case :file.write(file, [Nx.to_binary(tensor), padding(bytes, alignment)]) do
        :ok -> {:cont, :ok}
        error -> {:halt, error}
      end
    end)
  end

  defp header(metadata, tensors, alignment) do
    {infos, _} =
      Enum.map_reduce(tensors, 0, fn {name, %{number: number, shape: shape, bytes: bytes}}, offset ->
        sizes = for size <- shape |> Tuple.to_list() |> Enum.reverse(), do: <<size::little-64>>
        info = [string(name), <<tuple_size(shape)::little-32>>, sizes, <<number::little-32, offset::little-64>>]
        {info, offset + bytes + left(bytes, alignment)}
      end)

    pairs = for {key, {type, value}} <- metadata, do: [string(key), number(type), value(type, value)]
    ["GGUF", <<@version::little-32, length(tensors)::little-64, length(metadata)::little-64>>, pairs, infos]
  end

  defp padding(bytes, alignment), do: <<0::size(left(bytes, alignment) * 8)>>
  defp left(bytes, alignment), do: rem(alignment - rem(bytes, alignment), alignment)

  ## Tensors

  defp stored(%Quantized{format: format, tensors: %{blocks: blocks}, shape: shape}, name) do
    {:ok, number} = Types.tensor_number(format)
    not_vectorized!(blocks, name)
    axes!(shape, name)
    %{number: number, shape: shape, bytes: Nx.byte_size(blocks), tensor: blocks}
  end

  defp stored(%Quantized{format: format}, name) do
    raise ArgumentError, "expected a format that GGUF has for #{name}, got: #{inspect(format)}"
  end

  defp stored(%Nx.Tensor{type: type, shape: shape} = tensor, name) do
    case Types.tensor_number(type) do
      {:ok, number} ->
        not_vectorized!(tensor, name)
        axes!(shape, name)
        %{number: number, shape: shape, bytes: Nx.byte_size(tensor), tensor: tensor}

      :error ->
        raise ArgumentError,
              "expected a type that GGUF has for #{name}, one of f16, bf16, f32, f64, s8, s16, s32, s64, " <>
                "got: #{Nx.Type.to_string(type)}"
    end
  end

  defp stored(other, name) do
    raise ArgumentError, "expected a tensor or a quantised one for #{name}, got: #{inspect(other)}"
  end

  defp not_vectorized!(%Nx.Tensor{vectorized_axes: []}, _name), do: :ok

  defp not_vectorized!(%Nx.Tensor{vectorized_axes: axes}, name) do
    raise ArgumentError, "expected a tensor without vectorized axes for #{name}, got: #{inspect(axes)}: devectorize it"
  end

  defp axes!(shape, name) do
    if tuple_size(shape) > @most_axes do
      raise ArgumentError, "expected #{@most_axes} axes at most for #{name}, got shape #{inspect(shape)}"
    end
  end

  defp name!(name) when is_binary(name) and byte_size(name) in 1..@most_name, do: valid!(name)

  defp name!(name) do
    raise ArgumentError, "expected a name of 1 to #{@most_name} bytes for a tensor, got: #{inspect(name)}"
  end

  defp key!(key) when is_binary(key) and byte_size(key) in 1..65_535, do: valid!(key)
  defp key!(key), do: raise(ArgumentError, "expected a key of 1 to 65,535 bytes for metadata, got: #{inspect(key)}")

  defp valid!(name) do
    if String.valid?(name), do: name, else: raise(ArgumentError, "expected a name in UTF-8, got: #{inspect(name)}")
  end

  defp unique!(pairs) do
    names = Enum.map(pairs, &elem(&1, 0))

    case names -- Enum.uniq(names) do
      [] -> :ok
      [name | _] -> raise ArgumentError, "expected each name once, got twice: #{inspect(name)}"
    end
  end

  ## Metadata

  defp alignment(metadata) do
    case List.keyfind(metadata, "general.alignment", 0) do
      nil ->
        @alignment

      {_, {:u32, value}} when value > 0 and Bitwise.band(value, value - 1) == 0 ->
        value

      {_, {_, value}} ->
        raise ArgumentError, "expected a power of two of the type u32 for general.alignment, got: #{inspect(value)}"
    end
  end

  # The value with its type; an array is `{:array, {type, values}}`.
  defp typed({:array, {type, values}} = array, key) when is_atom(type) and is_list(values) do
    if Types.value_number(type) == :error or List.improper?(values), do: wrong(key, array)
    {:array, {type, Enum.map(values, &of_type(type, &1, key))}}
  end

  defp typed({type, value}, key) when is_atom(type), do: {type, of_type(type, value, key)}
  defp typed(value, _key) when is_binary(value), do: {:string, value}
  defp typed(value, _key) when is_boolean(value), do: {:bool, value}

  defp typed(value, key) when is_float(value) or value in [:nan, :infinity, :neg_infinity],
    do: {:f32, if(float?(value, 32), do: value, else: wrong(key, value))}

  defp typed(value, key) when is_integer(value),
    do: {integer_type([value], [:u32, :s32, :u64, :s64]) || wrong(key, value), value}

  defp typed(values, key) when is_list(values) do
    type =
      cond do
        List.improper?(values) -> nil
        values == [] or Enum.all?(values, &is_integer/1) -> integer_type(values, [:s32, :u32, :s64, :u64])
        Enum.all?(values, &is_binary/1) -> :string
        Enum.all?(values, &is_boolean/1) -> :bool
        Enum.all?(values, &float?(&1, 32)) -> :f32
        Enum.all?(values, &is_list/1) -> :array
        true -> nil
      end || wrong(key, values)

    if type == :array,
      do: {:array, {:array, Enum.map(values, &elem(typed(&1, key), 1))}},
      else: {:array, {type, values}}
  end

  defp typed(value, key), do: wrong(key, value)

  # The first type that has all values, or nil.
  defp integer_type(values, types) do
    Enum.find(types, fn type -> Enum.all?(values, &(&1 in range(type))) end)
  end

  defp range(type) do
    case Atom.to_string(type) do
      "u" <> bits -> 0..(2 ** String.to_integer(bits) - 1)
      "s" <> bits -> -(2 ** (String.to_integer(bits) - 1))..(2 ** (String.to_integer(bits) - 1) - 1)
    end
  end

  # Whether a float of so many bits has the number, or the nearest to it.
  defp float?(value, bits) when is_number(value) do
    match?(<<_::float-size(bits)>>, <<value::float-size(bits)>>)
  rescue
    ArgumentError -> false
  end

  defp float?(value, _bits), do: value in [:nan, :infinity, :neg_infinity]

  defp of_type(:string, value, _key) when is_binary(value), do: value
  defp of_type(:bool, value, _key) when is_boolean(value), do: value

  defp of_type(:array, value, key) do
    case typed(value, key) do
      {:array, array} -> array
      _ -> wrong(key, {:array, value})
    end
  end

  defp of_type(type, value, key) when type in [:f32, :f64] do
    if float?(value, if(type == :f32, do: 32, else: 64)), do: value, else: wrong(key, {type, value})
  end

  defp of_type(type, value, key) when type in [:u8, :s8, :u16, :s16, :u32, :s32, :u64, :s64] and is_integer(value) do
    if value in range(type), do: value, else: wrong(key, {type, value})
  end

  defp of_type(type, value, key), do: wrong(key, {type, value})

  @spec wrong(String.t(), term) :: no_return
  defp wrong(key, value) do
    raise ArgumentError,
          "expected a string, a boolean, a number, a list of these of one type, or {type, value} for #{key}, " <>
            "got: #{inspect(value)}"
  end

  defp number(type) do
    {:ok, number} = Types.value_number(type)
    <<number::little-32>>
  end

  defp value(:string, value), do: string(value)
  defp value(:bool, value), do: <<if(value, do: 1, else: 0)>>
  defp value(:f32, value), do: float(value, 32)
  defp value(:f64, value), do: float(value, 64)

  defp value(:array, {type, values}) do
    [number(type), <<length(values)::little-64>>, Enum.map(values, &value(type, &1))]
  end

  defp value(type, value) do
    <<_, bits::binary>> = Atom.to_string(type)
    <<value::little-size(String.to_integer(bits))>>
  end

  defp float(value, bits) when is_number(value), do: <<value::float-little-size(bits)>>

  defp float(value, bits) do
    binary =
      case value do
        :nan -> Nx.Type.nan_binary({:f, bits})
        :infinity -> Nx.Type.infinity_binary({:f, bits})
        :neg_infinity -> Nx.Type.neg_infinity_binary({:f, bits})
      end

    <<word::native-size(bits)>> = binary
    <<word::little-size(bits)>>
  end

  defp string(value), do: [<<byte_size(value)::little-64>>, value]
end
