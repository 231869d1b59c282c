defmodule Nx.Vulkan.Safetensors.Header do
  @moduledoc false

  # Reads the header of a safetensors file: 64 bits of a length, and JSON of the one form that such files have. It is
  # read by hand, for that form alone: so that what is wrong has an offset, keys that stand there twice are seen, and
  # nothing is nested. What is wrong is thrown as `{:bad_file, offset, field, what}`.

  alias Nx.Vulkan.Safetensors.Types

  # MAX_HEADER_SIZE of the reference.
  @most_bytes 100_000_000

  # Tensors and pairs of metadata. Files of the largest models have some ten thousands.
  @most_entries 2 ** 20
  @most_axes 64
  @most_name 65_535

  # Of 64 bits.
  @most_digits 20

  @metadata "__metadata__"

  @doc """
  The header of an open file of a size: `:metadata` and `:tensors`, in the order of their data.
  """
  def read(file, size) do
    {:ok, header(file, size)}
  catch
    {:bad_file, offset, field, what} -> {:error, {:bad_file, offset, field, what}}
    {:io, reason} -> {:error, {:io, reason}}
  end

  defp header(file, size) do
    <<length::unsigned-little-64>> = bytes(file, 0, 8, size, "length of the header")

    if length > @most_bytes do
      bad(0, "length of the header", "expected #{@most_bytes} at most, got: #{length}")
    end

    json = bytes(file, 8, length, size, "header")
    start = 8 + length
    {{metadata, tensors}, rest, at} = object(json, 8, "header", {nil, %{}}, &entry/4)
    {rest, at} = space(rest, at)
    if rest != "", do: bad(at, "header", "expected its end, got: #{shown(rest)}")
    %{metadata: metadata || %{}, tensors: placed(Map.values(tensors), start, size)}
  end

  defp bytes(_file, at, count, size, field) when at + count > size do
    bad(at, field, "expected #{count} bytes, and #{size - at} are left")
  end

  defp bytes(_file, _at, 0, _size, _field), do: ""

  defp bytes(file, at, count, size, field) do
    case :file.pread(file, at, count) do
      {:ok, bytes} when byte_size(bytes) == count -> bytes
      {:error, reason} -> throw({:io, reason})
      _ -> bad(at, field, "the file ends before #{count} bytes of it, and had #{size} when it was opened")
    end
  end

  ## Entries

  defp entry({@metadata, key_at}, rest, at, {metadata, tensors}) do
    if metadata != nil, do: twice(key_at, @metadata)

    {metadata, rest, at} =
      object(rest, at, @metadata, %{}, fn {key, key_at}, rest, at, metadata ->
        if is_map_key(metadata, key), do: twice(key_at, key)
        {value, rest, at} = string(rest, at, ["value of ", key])
        {Map.put(metadata, key, value), rest, at}
      end)

    {{metadata, tensors}, rest, at}
  end

  defp entry({name, key_at}, rest, at, {metadata, tensors}) do
    if is_map_key(tensors, name), do: twice(key_at, name)

    {found, rest, at} =
      object(rest, at, name, %{}, fn {key, key_at}, rest, at, found ->
        if is_map_key(found, key), do: twice(key_at, [key, " of ", name])
        {rest, at} = space(rest, at)
        {value, rest, next} = value(key, key_at, rest, at, name)
        {Map.put(found, key, {value, at}), rest, next}
      end)

    for key <- ["dtype", "shape", "data_offsets"], not is_map_key(found, key) do
      bad(key_at, [key, " of ", name], "it is missing")
    end

    {{metadata, Map.put(tensors, name, info(name, key_at, found))}, rest, at}
  end

  defp value("dtype" = key, _key_at, rest, at, name), do: string(rest, at, [key, " of ", name])
  defp value("shape" = key, _key_at, rest, at, name), do: naturals(rest, at, [key, " of ", name])

  defp value("data_offsets" = key, _key_at, rest, at, name) do
    case naturals(rest, at, [key, " of ", name]) do
      {[first, last], rest, next} -> {{first, last}, rest, next}
      {other, _, _} -> bad(at, [key, " of ", name], "expected two numbers, got: #{inspect(other, limit: 8)}")
    end
  end

  defp value(key, key_at, _rest, _at, name) do
    bad(key_at, name, "expected dtype, shape and data_offsets, got: #{inspect(key, printable_limit: 16)}")
  end

  defp info(name, key_at, %{"dtype" => {dtype, _}, "shape" => {sizes, _}, "data_offsets" => {{first, last}, at}}) do
    if last < first, do: bad(at, ["data_offsets of ", name], "expected no end before its beginning, got: #{last}")

    type =
      case Types.type(dtype) do
        {:ok, type} ->
          bytes = Enum.product(sizes) * Types.bytes(type)

          if bytes != last - first,
            do: bad(at, ["data_offsets of ", name], "expected #{bytes} bytes, got: #{last - first}")

          type

        :error ->
          {:unknown, dtype}
      end

    %{name: name, type: type, shape: List.to_tuple(sizes), first: first, last: last, at: key_at, offsets_at: at}
  end

  # Each tensor begins where another one ends, as the reference asks for: so no two share bytes, and none are hidden.
  defp placed(infos, start, size) do
    {infos, {end_of_data, last_at}} =
      infos
      |> Enum.sort_by(&{&1.first, &1.last})
      |> Enum.map_reduce({0, 8}, fn %{first: first, last: last, offsets_at: at, name: name} = info, {previous, _} ->
        if first != previous,
          do: bad(at, ["data_offsets of ", name], "expected a beginning of #{previous}, got: #{first}")

        if start + last > size do
          bad(at, ["data_offsets of ", name], "#{start + last} is beyond the file, which has #{size} bytes")
        end

        info =
          info |> Map.drop([:first, :last, :offsets_at]) |> Map.merge(%{offset: start + first, bytes: last - first})

        {info, {last, at}}
      end)

    if start + end_of_data != size do
      bad(last_at, "data_offsets", "data of tensors end at byte #{start + end_of_data}, and the file has #{size} bytes")
    end

    infos
  end

  ## JSON

  # Folds the pairs of an object: `fun` is given the key and its offset, what follows the colon, and the accumulator.
  defp object(rest, at, field, acc, fun) do
    {rest, at} = expect(rest, at, "{", field)

    case space(rest, at) do
      {"}" <> rest, at} -> {acc, rest, at + 1}
      {rest, at} -> pairs(rest, at, field, acc, fun, @most_entries)
    end
  end

  defp pairs(_rest, at, field, _acc, _fun, 0), do: bad(at, field, "expected #{@most_entries} keys at most")

  defp pairs(rest, at, field, acc, fun, left) do
    {rest, key_at} = space(rest, at)
    {key, rest, at} = string(rest, key_at, ["key of ", field])
    if byte_size(key) > @most_name, do: bad(key_at, ["key of ", field], "expected #{@most_name} bytes at most")
    {rest, at} = expect(rest, at, ":", field)
    {acc, rest, at} = fun.({key, key_at}, rest, at, acc)

    case space(rest, at) do
      {"," <> rest, at} -> pairs(rest, at + 1, field, acc, fun, left - 1)
      {"}" <> rest, at} -> {acc, rest, at + 1}
      {rest, at} -> bad(at, field, "expected a comma or a closing brace, got: #{shown(rest)}")
    end
  end

  defp naturals(rest, at, field) do
    {rest, at} = expect(rest, at, "[", field)

    case space(rest, at) do
      {"]" <> rest, at} -> {[], rest, at + 1}
      {rest, at} -> naturals(rest, at, field, [])
    end
  end

  defp naturals(_rest, at, field, numbers) when length(numbers) == @most_axes do
    bad(at, field, "expected #{@most_axes} numbers at most")
  end

  defp naturals(rest, at, field, numbers) do
    {rest, at} = space(rest, at)
    {number, rest, at} = natural(rest, at, field)

    case space(rest, at) do
      {"," <> rest, at} -> naturals(rest, at + 1, field, [number | numbers])
      {"]" <> rest, at} -> {Enum.reverse([number | numbers]), rest, at + 1}
      {rest, at} -> bad(at, field, "expected a comma or a closing bracket, got: #{shown(rest)}")
    end
  end

  defp natural(rest, at, field) do
    digits = digits(rest, 0)
    text = binary_part(rest, 0, digits)

    if digits == 0 or digits > @most_digits or (digits > 1 and String.starts_with?(text, "0")) do
      bad(at, field, "expected a number of up to #{@most_digits} digits, got: #{shown(rest)}")
    end

    {String.to_integer(text), binary_part(rest, digits, byte_size(rest) - digits), at + digits}
  end

  # One more than are allowed are enough to tell.
  defp digits(<<digit, rest::binary>>, count) when digit in ?0..?9 and count <= @most_digits,
    do: digits(rest, count + 1)

  defp digits(_rest, count), do: count

  # A copy, so that the header is let go.
  defp string(rest, at, field) do
    {<<rest::binary>>, at} = expect(rest, at, "\"", field)
    {length, plain?} = quoted(rest, 0, true, at, field)
    <<text::binary-size(length), ?", rest::binary>> = rest
    {if(plain?, do: :binary.copy(text), else: unescaped(text, at, field)), rest, at + length + 1}
  end

  defp quoted(<<?", _::binary>>, count, plain?, _at, _field), do: {count, plain?}
  defp quoted(<<?\\, _, rest::binary>>, count, _plain?, at, field), do: quoted(rest, count + 2, false, at, field)

  defp quoted(<<byte::utf8, rest::binary>>, count, plain?, at, field) when byte >= 32 do
    quoted(rest, count + utf8_bytes(byte), plain?, at, field)
  end

  defp quoted("", count, _plain?, at, field), do: bad(at + count, field, "the header ends in a text")
  defp quoted(rest, count, _plain?, at, field), do: bad(at + count, field, "expected UTF-8, got: #{shown(rest)}")

  defp utf8_bytes(code) when code < 0x80, do: 1
  defp utf8_bytes(code) when code < 0x800, do: 2
  defp utf8_bytes(code) when code < 0x10000, do: 3
  defp utf8_bytes(_code), do: 4

  defp unescaped(text, at, field) do
    case JSON.decode(<<?", text::binary, ?">>) do
      {:ok, text} -> text
      {:error, _} -> bad(at, field, "expected a text of JSON, got: #{shown(text)}")
    end
  end

  defp expect(rest, at, <<byte>> = wanted, field) do
    case space(rest, at) do
      {<<^byte, rest::binary>>, at} -> {rest, at + 1}
      {rest, at} -> bad(at, field, "expected #{wanted}, got: #{shown(rest)}")
    end
  end

  defp space(<<byte, rest::binary>>, at) when byte in [?\s, ?\n, ?\r, ?\t], do: space(rest, at + 1)
  defp space(rest, at), do: {rest, at}

  defp shown(""), do: "the end of the header"
  defp shown(rest), do: rest |> binary_part(0, min(16, byte_size(rest))) |> inspect()

  defp twice(at, field), do: bad(at, field, "it stands there twice")

  @spec bad(non_neg_integer, iodata, String.t()) :: no_return
  defp bad(offset, field, what), do: throw({:bad_file, offset, IO.iodata_to_binary(field), what})
end
