defmodule Nx.Vulkan.GGUF.Header do
  @moduledoc false

  # Reads what stands before the data of a GGUF file. Lengths and counts are held against the bytes that the file has
  # left before anything is made of them, so that no more is allocated than the file is long, but for the terms of
  # lists, and against limits, as files may be large. Names of fields are iodata until one is told. What is wrong is
  # thrown as `{:bad_file, offset, field, what}`.

  alias Nx.Vulkan.GGUF.Types

  # Bytes that are read ahead.
  @ahead 65_536

  # ggml's GGML_MAX_DIMS.
  @most_axes 4

  # Files nest no arrays at all so far.
  @most_nested 8

  # Where a header has to end, and how many keys, tensors and elements of arrays it may have together. Vocabularies have
  # up to 2 ** 18 tokens, in three or four arrays.
  @most_bytes 2 ** 30
  @most_entries 2 ** 24

  # Bytes of a key, as docs/gguf.md says, and of a name, of which ggml takes 63 and may take more.
  @most_name 65_535

  @alignment 32

  # Where the next value is, the bytes that were read from there on, the size of the file, and how many entries it may
  # have from there on.
  defstruct [:file, :size, at: 0, ahead: <<>>, entries: @most_entries]

  @doc """
  The header of an open file of a size.
  """
  def read(file, size) do
    {:ok, header(%__MODULE__{file: file, size: size})}
  catch
    {:bad_file, offset, field, what} -> {:error, {:bad_file, offset, field, what}}
    {:io, reason} -> {:error, {:io, reason}}
  end

  defp header(reader) do
    {magic, reader} = take(reader, min(4, reader.size), "magic")
    if magic != "GGUF", do: bad(0, "magic", "expected the bytes GGUF, got: #{inspect(magic)}")
    {version, reader} = unsigned(reader, 32, "version")
    version!(version)
    {tensors, reader} = entries(reader, "count of tensors", 24)
    {pairs, reader} = entries(reader, "count of metadata", 13)
    {metadata, reader} = pairs(reader, pairs, %{})
    {infos, reader} = infos(reader, tensors)
    alignment = Map.get(metadata, "general.alignment", @alignment)
    start = reader.at + rem(alignment - rem(reader.at, alignment), alignment)

    %{
      version: version,
      metadata: metadata,
      alignment: alignment,
      tensors: placed(infos, start, alignment, reader.size)
    }
  end

  defp version!(version) when version in [2, 3], do: :ok

  defp version!(version) do
    <<swapped::big-32>> = <<version::little-32>>
    order = if swapped in 1..3, do: ", of a file of big-endian numbers", else: ""
    bad(4, "version", "expected 2 or 3, got: #{version}#{order}")
  end

  ## Metadata

  defp pairs(reader, 0, metadata), do: {metadata, reader}

  defp pairs(%{at: at} = reader, left, metadata) do
    {key, reader} = name(reader, "key of metadata")
    if is_map_key(metadata, key), do: bad(at, "key of metadata", "#{inspect(key)} stands there twice")
    {number, reader} = unsigned(reader, 32, ["type of ", key])
    value_at = reader.at
    {value, reader} = value(reader, type!(number, value_at - 4, ["type of ", key]), key, 0)
    check!(key, value, value_at)
    pairs(reader, left - 1, Map.put(metadata, key, value))
  end

  defp type!(number, at, field) do
    case Types.value(number) do
      {:ok, {type, _}} -> type
      :error -> bad(at, field, "expected a number from 0 to 12, got: #{number}")
    end
  end

  defp value(reader, :string, key, _depth), do: string(reader, key)

  defp value(%{at: at} = reader, :array, key, depth) do
    if depth == @most_nested, do: bad(at, key, "arrays are nested more than #{@most_nested} deep")
    field = ["type of the elements of ", key]
    {number, reader} = unsigned(reader, 32, field)
    type = type!(number, at, field)
    {:ok, {_, least}} = Types.value(number)
    {count, reader} = entries(reader, ["length of ", key], least)

    case bits(type) do
      nil ->
        Enum.map_reduce(1..count//1, reader, fn _, reader -> value(reader, type, key, depth + 1) end)

      bits ->
        {bytes, after_them} = take(reader, div(count * bits, 8), key)
        {numbers(bytes, type, key, reader.at), after_them}
    end
  end

  defp value(%{at: at} = reader, type, key, _depth) do
    {bytes, reader} = take(reader, div(bits(type), 8), key)
    [value] = numbers(bytes, type, key, at)
    {value, reader}
  end

  defp bits(type) when type in [:u8, :s8, :bool], do: 8
  defp bits(type) when type in [:u16, :s16], do: 16
  defp bits(type) when type in [:u32, :s32, :f32], do: 32
  defp bits(type) when type in [:u64, :s64, :f64], do: 64
  defp bits(type) when type in [:string, :array], do: nil

  defp numbers(bytes, type, _key, _at) when type in [:u8, :u16, :u32, :u64] do
    bits = bits(type)
    for <<n::unsigned-little-size(bits) <- bytes>>, do: n
  end

  defp numbers(bytes, type, _key, _at) when type in [:s8, :s16, :s32, :s64] do
    bits = bits(type)
    for <<n::signed-little-size(bits) <- bytes>>, do: n
  end

  defp numbers(bytes, :f32, _key, _at), do: for(<<word::binary-4 <- bytes>>, do: float(word))
  defp numbers(bytes, :f64, _key, _at), do: for(<<word::binary-8 <- bytes>>, do: float(word))

  defp numbers(bytes, :bool, key, at) do
    for {byte, i} <- Enum.with_index(:binary.bin_to_list(bytes)) do
      if byte not in [0, 1], do: bad(at + i, key, "expected 0 or 1, false or true, got: #{byte}")
      byte == 1
    end
  end

  # Numbers that the BEAM does not have are atoms, as in Nx.
  defp float(<<x::float-little-32>>), do: x
  defp float(<<x::float-little-64>>), do: x
  defp float(word) when word in [<<0x7F800000::little-32>>, <<0x7FF0000000000000::little-64>>], do: :infinity
  defp float(word) when word in [<<0xFF800000::little-32>>, <<0xFFF0000000000000::little-64>>], do: :neg_infinity
  defp float(_word), do: :nan

  defp check!("general.alignment" = key, value, at) do
    if not is_integer(value) or value < 1 or Bitwise.band(value, value - 1) != 0 do
      bad(at, key, "expected a power of two, got: #{inspect(value, limit: 8)}")
    end
  end

  defp check!(_key, _value, _at), do: :ok

  ## Tensors

  defp infos(reader, count) do
    {infos, {reader, _names}} =
      Enum.map_reduce(1..count//1, {reader, MapSet.new()}, fn _, {reader, names} ->
        {info, after_it} = info(reader)

        if info.name in names do
          bad(reader.at, "name of a tensor", "#{inspect(info.name)} stands there twice")
        end

        {info, {after_it, MapSet.put(names, info.name)}}
      end)

    {infos, reader}
  end

  defp info(reader) do
    {name, reader} = name(reader, "name of a tensor")
    {axes, reader} = unsigned(reader, 32, ["count of axes of ", name])

    if axes > @most_axes do
      bad(reader.at - 4, ["count of axes of ", name], "expected #{@most_axes} at most, got: #{axes}")
    end

    {sizes, reader} = Enum.map_reduce(1..axes//1, reader, fn _, reader -> unsigned(reader, 64, ["shape of ", name]) end)
    shape_at = reader.at - 8 * axes
    if 0 in sizes, do: bad(shape_at, ["shape of ", name], "expected sizes of 1 and more, got: #{inspect(sizes)}")
    {number, reader} = unsigned(reader, 32, ["type of ", name])

    {format, weights, bytes} =
      case Types.tensor(number) do
        {:ok, type} -> type
        :error -> {{:unknown, number}, 1, nil}
      end

    row = List.first(sizes, 1)

    if rem(row, weights) != 0 do
      bad(
        shape_at,
        ["shape of ", name],
        "expected rows of a multiple of #{weights}, the weights of a block, got: #{row}"
      )
    end

    {offset, reader} = unsigned(reader, 64, ["offset of ", name])

    info = %{
      name: name,
      format: format,
      shape: sizes |> Enum.reverse() |> List.to_tuple(),
      bytes: bytes && div(Enum.product(sizes), weights) * bytes,
      offset: offset,
      offset_at: reader.at - 8
    }

    {info, reader}
  end

  defp placed(infos, start, alignment, size) do
    for %{name: name, offset_at: at, offset: offset, bytes: bytes} = info <- infos do
      if rem(offset, alignment) != 0 do
        bad(at, ["offset of ", name], "expected a multiple of the alignment, #{alignment}, got: #{offset}")
      end

      # Of an unknown type there is a byte at least.
      if start + offset + (bytes || 1) > size do
        bad(
          at,
          ["offset of ", name],
          "#{bytes || "unknown"} bytes from #{start + offset} on end beyond the file, which has #{size} bytes"
        )
      end

      info |> Map.delete(:offset_at) |> Map.put(:offset, start + offset)
    end
  end

  ## Bytes

  defp name(%{at: at} = reader, field) do
    {name, reader} = string(reader, field, @most_name)
    if not String.valid?(name), do: bad(at, field, "expected UTF-8, got: #{inspect(name, limit: 16)}")
    {name, reader}
  end

  # A copy, so that what was read with it is let go.
  defp string(%{at: at} = reader, field, most \\ @most_bytes) do
    {length, reader} = count(reader, ["length of ", field], 1)
    if length > most, do: bad(at, ["length of ", field], "expected #{most} bytes at most, got: #{length}")
    {bytes, reader} = take(reader, length, field)
    {:binary.copy(bytes), reader}
  end

  # A number of things of `least` bytes or more.
  defp count(%{at: at} = reader, field, least) do
    {count, reader} = unsigned(reader, 64, field)
    left = reader.size - reader.at

    if count * least > left do
      bad(at, field, "#{count} of #{least} bytes or more are longer than the #{left} bytes that are left")
    end

    if reader.at + count * least > @most_bytes do
      bad(at, field, "#{count} of #{least} bytes or more end beyond #{@most_bytes}, where headers have to end")
    end

    {count, reader}
  end

  # The same of what becomes terms.
  defp entries(%{at: at, entries: entries} = reader, field, least) do
    {count, reader} = count(reader, field, least)

    if count > entries do
      left = "the #{entries} that are left of the #{@most_entries} keys, tensors and elements of a header"
      bad(at, field, "#{count} are more than #{left}")
    end

    {count, %{reader | entries: entries - count}}
  end

  defp unsigned(reader, bits, field) do
    {<<value::unsigned-little-size(bits)>>, reader} = take(reader, div(bits, 8), field)
    {value, reader}
  end

  defp take(%{at: at, size: size}, count, field) when count > size - at do
    bad(at, field, "expected #{count} bytes, and #{size - at} are left")
  end

  defp take(%{ahead: ahead} = reader, count, _field) when byte_size(ahead) >= count do
    <<bytes::binary-size(count), rest::binary>> = ahead
    {bytes, %{reader | at: reader.at + count, ahead: rest}}
  end

  defp take(%{at: at, ahead: ahead, size: size} = reader, count, field) do
    from = at + byte_size(ahead)
    wanted = min(max(count - byte_size(ahead), @ahead), size - from)

    case :file.pread(reader.file, from, wanted) do
      {:ok, more} when byte_size(more) == wanted -> take(%{reader | ahead: ahead <> more}, count, field)
      {:ok, more} -> bad(from + byte_size(more), field, "the file ends here, and had #{size} bytes when it was opened")
      :eof -> bad(from, field, "the file ends here, and had #{size} bytes when it was opened")
      {:error, reason} -> throw({:io, reason})
    end
  end

  @spec bad(non_neg_integer | nil, iodata, String.t()) :: no_return
  defp bad(offset, field, what), do: throw({:bad_file, offset, IO.iodata_to_binary(field), what})
end
