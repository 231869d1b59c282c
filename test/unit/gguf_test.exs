defmodule Nx.Vulkan.GGUFTest do
  # Files of models on the host: what is written is read, and what is damaged is told.
  use ExUnit.Case, async: true

  import Nx.Vulkan.QuantizedData

  alias Nx.Vulkan.{Damage, Error, GGUF, Quantized}

  @moduletag :tmp_dir

  setup do
    Nx.default_backend(Nx.BinaryBackend)
    :ok
  end

  @metadata [
    {"general.architecture", "llama"},
    {"general.alignment", {:u32, 64}},
    {"u8", {:u8, 255}},
    {"s8", {:s8, -128}},
    {"u16", {:u16, 65_535}},
    {"s16", {:s16, -32_768}},
    {"u32", 4_294_967_295},
    {"s32", -1},
    {"u64", 18_446_744_073_709_551_615},
    {"s64", -9_223_372_036_854_775_808},
    {"f32", 0.5},
    {"f64", {:f64, 0.1}},
    {"odd", [:nan, :infinity, :neg_infinity, 1, -0.5]},
    {"odd64", {:array, {:f64, [:nan, :infinity, :neg_infinity, 1.0e300]}}},
    {"true", true},
    {"tokens", ["<s>", "", "\u0394", <<255, 0>>]},
    {"types", [1, 2, -3]},
    {"flags", [true, false]},
    {"nested", [["a"], [1, 2], [[true]]]},
    {"none", []}
  ]

  defp tensors do
    dense =
      for type <- [:f16, :bf16, :f32, :f64, :s8, :s16, :s32, :s64] do
        {"dense.#{type}", Nx.iota({2, 3, 5}, type: type)}
      end

    blocks =
      for format <- formats() do
        {q, _} = decoded(format)
        {"blocks.#{format}", q}
      end

    dense ++ blocks ++ [{"scalar", Nx.tensor(7.5, type: :f32)}]
  end

  defp write(path, metadata \\ @metadata, tensors \\ tensors()) do
    assert GGUF.write(path, metadata, tensors) == :ok
    path
  end

  test "what is written is read", %{tmp_dir: folder} do
    path = write(Path.join(folder, "all.gguf"))
    assert File.ls!(folder) == ["all.gguf"]
    assert {:ok, gguf} = GGUF.open(path)
    assert %GGUF{version: 3, alignment: 64, path: ^path} = GGUF.open!(path)

    for {key, value} <- @metadata do
      want =
        case value do
          {:array, {_type, values}} -> values
          {_type, value} -> value
          value -> value
        end

      assert gguf.metadata[key] == want, key
    end

    assert map_size(gguf.metadata) == length(@metadata)
    assert Enum.map(GGUF.tensors(gguf), & &1.name) == Enum.map(tensors(), &elem(&1, 0))

    for {name, tensor} <- tensors(), info = Enum.find(gguf.tensors, &(&1.name == name)) do
      assert GGUF.tensor(gguf, name) == {:ok, tensor}
      assert GGUF.tensor!(gguf, name, backend: Nx.BinaryBackend) == tensor
      assert info.shape == tensor.shape
      assert rem(info.offset, 64) == 0

      case tensor do
        %Quantized{} -> assert {info.format, info.bytes} == {tensor.format, Quantized.size_bytes(tensor)}
        _ -> assert {info.format, info.bytes} == {tensor.type, Nx.byte_size(tensor)}
      end
    end
  end

  test "the bytes of a small file", %{tmp_dir: folder} do
    path = write(Path.join(folder, "small.gguf"), %{"a" => 1}, %{"w" => Nx.tensor([[1.0, 2.0, 3.0]], type: :f32)})

    header =
      <<"GGUF", 3::little-32, 1::little-64, 1::little-64>> <>
        <<1::little-64, "a", 4::little-32, 1::little-32>> <>
        <<1::little-64, "w", 2::little-32, 3::little-64, 1::little-64, 0::little-32, 0::little-64>>

    assert byte_size(header) == 82
    floats = for x <- [1.0, 2.0, 3.0], into: <<>>, do: <<x::float-little-32>>
    assert File.read!(path) == header <> <<0::size(14 * 8)>> <> floats <> <<0::size(20 * 8)>>
  end

  test "version 2, blocks that have no values here, and files without tensors", %{tmp_dir: folder} do
    path = Path.join(folder, "two.gguf")
    File.write!(path, file([], [info("w", [256, 2], 16, 0)], version: 2, data: <<0::size(132 * 8)>>))
    assert {:ok, %GGUF{version: 2} = gguf} = GGUF.open(path)
    assert [%{format: :iq2_xxs, shape: {2, 256}, bytes: 132}] = GGUF.tensors(gguf)
    assert {:error, %Error{kind: :unsupported, message: message}} = GGUF.tensor(gguf, "w")
    assert message =~ "w in #{path} has the format iq2_xxs"

    assert_raise ArgumentError, ~r/there is no tensor "v" in .*two.gguf, which has 1 tensors/, fn ->
      GGUF.tensor(gguf, "v")
    end

    File.write!(path, file([], []))
    assert {:ok, %GGUF{tensors: [], alignment: 32}} = GGUF.open(path)
  end

  ## Files by hand

  defp string(bytes), do: <<byte_size(bytes)::little-64>> <> bytes
  defp pair(key, type, value), do: string(key) <> <<type::little-32>> <> value

  defp info(name, sizes, type, offset) do
    sizes = for size <- sizes, into: <<length(sizes)::little-32>>, do: <<size::little-64>>
    string(name) <> sizes <> <<type::little-32, offset::little-64>>
  end

  defp file(pairs, infos, opts \\ []) do
    opts = Keyword.merge([version: 3, pairs: length(pairs), infos: length(infos), data: "", align: 32], opts)

    header =
      <<"GGUF", opts[:version]::little-32, opts[:infos]::little-64, opts[:pairs]::little-64>> <>
        Enum.join(pairs) <> Enum.join(infos)

    header <> <<0::size(rem(opts[:align] - rem(byte_size(header), opts[:align]), opts[:align]) * 8)>> <> opts[:data]
  end

  @huge 0xFFFFFFFFFFFFFFFF
  @u32 4
  @string 8
  @array 9

  # {what is wrong, the field, its offset, the bytes}
  defp damaged do
    value = <<1::little-32>>
    good = pair("k", @u32, value)
    w = info("w", [4], 0, 0)
    data = <<0::128>>

    [
      {~r/expected the bytes GGUF, got: "GGML"/, "magic", 0, "GGML" <> <<0::256>>},
      {~r/expected the bytes GGUF, got: ""/, "magic", 0, ""},
      {~r/expected 4 bytes, and 2 are left/, "version", 4, "GGUF" <> <<3::little-16>>},
      {~r/expected 2 or 3, got: 1$/, "version", 4, file([], [], version: 1)},
      {~r/got: 50331648, of a file of big-endian numbers/, "version", 4, file([], [], version: 0x03000000)},
      {~r/#{@huge} of 24 bytes or more are longer than the/, "count of tensors", 8, file([], [], infos: @huge)},
      {~r/#{@huge} of 13 bytes or more/, "count of metadata", 16, file([], [], pairs: @huge)},
      {~r/expected 8 bytes, and 4 are left/, "k", 37, file([pair("k", 12, <<0::32>>)], [], align: 1)},
      {~r/#{@huge} of 1 bytes or more are longer than the 9 bytes/, "length of key of metadata", 24,
       file([<<@huge::little-64, 0::72>>], [], align: 1)},
      {~r/expected UTF-8, got: <<255>>/, "key of metadata", 24, file([pair(<<255>>, @u32, value)], [])},
      {~r/"k" stands there twice/, "key of metadata", 41, file([good, good], [])},
      {~r/expected a number from 0 to 12, got: 13/, "type of k", 33, file([pair("k", 13, value)], [])},
      {~r/expected 0 or 1, false or true, got: 2/, "k", 37, file([pair("k", 7, <<2>>)], [])},
      {~r/#{@huge} of 1 bytes or more/, "length of k", 37, file([pair("k", @string, <<@huge::little-64>>)], [])},
      {~r/expected a number from 0 to 12, got: 99/, "type of the elements of k", 37,
       file([pair("k", @array, <<99::little-32, 0::64>>)], [])},
      {~r/#{@huge} of 8 bytes or more/, "length of k", 41,
       file([pair("k", @array, <<@string::little-32, @huge::little-64>>)], [])},
      {~r/arrays are nested more than 8 deep/, "k", 37 + 8 * 12,
       file(
         [pair("k", @array, String.duplicate(<<@array::little-32, 1::little-64>>, 8) <> <<@u32::little-32, 0::64>>)],
         []
       )},
      {~r/expected a power of two, got: 48/, "general.alignment", 53,
       file([pair("general.alignment", @u32, <<48::little-32>>)], [])},
      {~r/expected a power of two, got: "x"/, "general.alignment", 53,
       file([pair("general.alignment", @string, string("x"))], [])},
      {~r/"w" stands there twice/, "name of a tensor", 57, file([], [w, w], data: data)},
      {~r/expected UTF-8/, "name of a tensor", 24, file([], [info(<<254>>, [4], 0, 0)], data: data)},
      {~r/expected 4 at most, got: 5/, "count of axes of w", 33,
       file([], [info("w", [1, 1, 1, 1, 1], 0, 0)], data: data)},
      {~r/expected sizes of 1 and more, got: \[4, 0\]/, "shape of w", 37,
       file([], [info("w", [4, 0], 0, 0)], data: data)},
      {~r/expected 65535 bytes at most, got: 65536/, "length of key of metadata", 24,
       file([pair(String.duplicate("k", 65_536), @u32, value)], [])},
      {~r/expected 65535 bytes at most, got: 65536/, "length of name of a tensor", 24,
       file([], [info(String.duplicate("w", 65_536), [4], 0, 0)], data: data)},
      {~r/unknown bytes from 96 on end beyond the file, which has 80 bytes/, "offset of w", 49,
       file([], [info("w", [4], 4, 32)], data: <<0::128>>)},
      {~r/rows of a multiple of 32, the weights of a block, got: 4/, "shape of w", 37,
       file([], [info("w", [4], 8, 0)], data: data)},
      {~r/expected a multiple of the alignment, 32, got: 8/, "offset of w", 49,
       file([], [info("w", [2], 0, 8)], data: data)},
      {~r/16 bytes from 96 on end beyond the file, which has 80 bytes/, "offset of w", 49,
       file([], [info("w", [4], 0, 32)], data: data)},
      {~r/end beyond the file/, "offset of w", 73,
       file([], [info("w", [@huge, @huge, @huge, @huge], 0, 0)], data: data)},
      {~r/end beyond the file/, "offset of w", 49, file([], [info("w", [4], 0, 0xFFFFFFFFFFFFFFE0)], data: data)}
    ]
  end

  test "what is damaged is told by field and offset", %{tmp_dir: folder} do
    path = Path.join(folder, "damaged.gguf")

    for {message, field, offset, bytes} <- damaged() do
      File.write!(path, bytes)
      assert {:error, %Error{kind: :bad_file, op: :gguf} = error} = GGUF.open(path), inspect({message, field})
      assert {error.details.field, error.details.offset, error.details.path} == {field, offset, path}, error.message
      assert error.message =~ message
      assert error.message =~ "#{path}: #{field} at byte #{offset}: "
      assert_raise Error, fn -> GGUF.open!(path) end
    end
  end

  # What stands before the data of a file as large as those of models, of which nothing more is on the disk.
  defp opened(folder, header, size) do
    path = Path.join(folder, "sparse.gguf")
    {:ok, file} = :file.open(path, [:write, :raw, :binary])
    :ok = :file.write(file, header)
    {:ok, _} = :file.position(file, size)
    :ok = :file.truncate(file)
    :ok = :file.close(file)
    opened = GGUF.open(path)
    File.rm!(path)
    opened
  end

  test "a header has limits that the size of the file is none of", %{tmp_dir: folder} do
    array = fn key, type, count -> pair(key, @array, <<type::little-32, count::little-64>>) end
    {u8, few, most} = {0, array.("a", 0, 1000) <> <<0::8000>>, 2 ** 24}

    for {message, field, offset, header} <- [
          {~r/1073741824 of 1 bytes or more end beyond 1073741824, where headers have to end/, "length of k", 37,
           file([pair("k", @string, <<2 ** 30::little-64>>)], [], align: 1)},
          {~r/end beyond/, "length of k", 41, file([array.("k", @string, 2 ** 27)], [], align: 1)},
          {~r/end beyond/, "count of tensors", 8, file([], [], infos: 2 ** 26)},
          {~r/end beyond/, "count of metadata", 16, file([], [], pairs: 2 ** 27)},
          {~r/16777217 are more than the 16777215 that are left of the 16777216 keys, tensors and elements of a header/,
           "length of k", 41, file([array.("k", u8, most + 1)], [], align: 1)},
          {~r/are more than the \d+ that are left/, "length of k", 1066,
           file([few, array.("k", u8, most - 1001)], [], align: 1)},
          {~r/are more than the \d+ that are left/, "count of tensors", 8, file([], [], infos: most + 1)},
          {~r/are more than the \d+ that are left/, "count of metadata", 16, file([], [], pairs: most, infos: 1)}
        ] do
      assert {:error, %Error{kind: :bad_file} = error} = opened(folder, header, 2 ** 31)
      assert {error.details.field, error.details.offset} == {field, offset}, error.message
      assert error.message =~ message
    end
  end

  test "types of tensors that are not known are listed, and not read", %{tmp_dir: folder} do
    path = Path.join(folder, "unknown.gguf")
    infos = [info("w", [36], 99, 0), info("x", [2], 0, 32), info("y", [64], 9, 64)]
    File.write!(path, file([], infos, data: <<0::256, 1.0::float-little-32, 2.0::float-little-32, 0::192, 0::576>>))
    assert {:ok, gguf} = GGUF.open(path)
    assert [w, x, y] = GGUF.tensors(gguf)
    assert {w.format, w.shape, w.bytes, w.offset} == {{:unknown, 99}, {36}, nil, x.offset - 32}
    assert {y.format, y.shape, y.bytes} == {:q8_1, {64}, 72}
    assert GGUF.tensor(gguf, "x") == {:ok, Nx.tensor([1.0, 2.0], type: :f32)}

    for {name, message} <- [{"w", "w in #{path} has the type 99, which is unknown"}, {"y", "has the format q8_1"}] do
      assert {:error, %Error{kind: :unsupported} = error} = GGUF.tensor(gguf, name)
      assert error.message =~ message
    end
  end

  test "names in files become no atoms", %{tmp_dir: folder} do
    path = Path.join(folder, "names.gguf")
    [key, name, value, odd] = for what <- ~w(key name value odd), do: "#{what} that is no atom"
    write(path, %{key => value}, [{name, Nx.iota({4}, type: :f32)}])
    assert {:ok, gguf} = GGUF.open(path)
    assert {:ok, _} = GGUF.tensor(gguf, name)
    File.write!(path, file([pair(odd, 13, "")], []))
    assert {:error, %Error{kind: :bad_file}} = GGUF.open(path)

    for string <- [key, name, value, odd] do
      assert_raise ArgumentError, fn -> String.to_existing_atom(string) end
    end
  end

  # Files of the folder that this system process has open, where the system tells.
  defp open_files(folder) do
    with {:ok, links} <- File.ls("/proc/self/fd") do
      for link <- links, {:ok, path} <- [File.read_link("/proc/self/fd/#{link}")], path =~ folder, do: path
    else
      _ -> []
    end
  end

  defmodule NoBackend do
    def init(_opts), do: raise("no backend")
    def from_binary(_out, _binary, _opts), do: raise("no backend")
  end

  test "what raises leaves no file open, and none half written", %{tmp_dir: folder} do
    path = write(Path.join(folder, "raises.gguf"), %{}, %{"w" => Nx.iota({4}, type: :f32)})
    bytes = File.read!(path)
    gguf = GGUF.open!(path)

    for _ <- 1..3 do
      # Such tensors have no data, as those that were deallocated.
      assert_raise RuntimeError, fn -> GGUF.write(path, %{}, %{"w" => Nx.template({4}, :f32)}) end
      assert_raise RuntimeError, "no backend", fn -> GGUF.tensor(gguf, "w", backend: NoBackend) end
    end

    assert open_files(folder) == []
    assert File.ls!(folder) == ["raises.gguf"]
    assert File.read!(path) == bytes
  end

  test "writers of one path at once leave the file of one of them", %{tmp_dir: folder} do
    path = Path.join(folder, "one.gguf")

    1..8
    |> Enum.map(fn i ->
      Task.async(fn ->
        :rand.seed(:exsss, 1)
        tensors = for name <- 1..50, do: {"w#{name}", Nx.broadcast(Nx.f32(i), {100 * i})}
        for _ <- 1..5, do: assert(GGUF.write(path, %{}, tensors) == :ok)
      end)
    end)
    |> Task.await_many(60_000)

    assert File.ls!(folder) == ["one.gguf"]
    gguf = GGUF.open!(path)
    [%{shape: {size}} | _] = GGUF.tensors(gguf)

    for %{name: name} <- gguf.tensors,
        do: assert(GGUF.tensor!(gguf, name) == Nx.broadcast(Nx.f32(div(size, 100)), {size}))
  end

  test "each beginning of a file is an error", %{tmp_dir: folder} do
    bytes = File.read!(write(Path.join(folder, "whole.gguf"), @metadata, [{"w", Nx.iota({4}, type: :f32)}]))
    path = Path.join(folder, "part.gguf")
    # The padding after the data is none of it.
    for size <- 0..(byte_size(bytes) - 49) do
      File.write!(path, binary_part(bytes, 0, size))
      assert {:error, %Error{kind: :bad_file}} = GGUF.open(path), "#{size} bytes"
    end
  end

  test "files that can't be read or written, and one that became shorter", %{tmp_dir: folder} do
    assert {:error, %Error{kind: :io, details: %{reason: :enoent}} = error} = GGUF.open(Path.join(folder, "none"))
    assert Exception.message(error) =~ "no such file or directory (io)"
    assert {:error, %Error{kind: :io}} = GGUF.open(folder)
    assert {:error, %Error{kind: :io}} = GGUF.write(Path.join([folder, "none", "a.gguf"]), %{}, %{})
    File.mkdir!(Path.join(folder, "taken"))
    assert {:error, %Error{kind: :io}} = GGUF.write(Path.join(folder, "taken"), %{}, %{})
    assert File.ls!(folder) == ["taken"]

    path = write(Path.join(folder, "short.gguf"), %{}, %{"w" => Nx.iota({64}, type: :f32)})
    gguf = GGUF.open!(path)
    File.write!(path, binary_part(File.read!(path), 0, 200))
    assert {:error, %Error{kind: :bad_file, details: %{field: "data of w"}}} = GGUF.tensor(gguf, "w")
    assert_raise Error, fn -> GGUF.tensor!(gguf, "w") end
    File.rm!(path)
    assert {:error, %Error{kind: :io}} = GGUF.tensor(gguf, "w")
  end

  test "what a file can't have is an ArgumentError", %{tmp_dir: folder} do
    path = Path.join(folder, "wrong.gguf")
    x = Nx.iota({4}, type: :f32)

    for {message, metadata, tensors} <- [
          {~r/expected a type that GGUF has for w.*got: u8/, [], [{"w", Nx.u8([1])}]},
          {~r/expected a format that GGUF has for w, got: \{:affine, 4, 32\}/, [],
           [{"w", Quantized.quantize(Nx.iota({2, 32}, type: :f32), {:affine, 4, 32})}]},
          {~r/expected a tensor or a quantised one for w, got: 5/, [], [{"w", 5}]},
          {~r/expected 4 axes at most for w/, [], [{"w", Nx.reshape(x, {4, 1, 1, 1, 1})}]},
          {~r/expected a name of 1 to 63 bytes/, [], [{String.duplicate("w", 64), x}]},
          {~r/expected each name once, got twice: "w"/, [], [{"w", x}, {"w", x}]},
          {~r/expected a name in UTF-8/, [{<<255>>, 1}], []},
          {~r/expected a key of 1 to 65,535 bytes/, [{:key, 1}], []},
          {~r/expected a power of two of the type u32/, [{"general.alignment", 24}], []},
          {~r/\{type, value\} for a, got: %\{\}/, [{"a", %{}}], []},
          {~r/for a, got: \{:u8, 256\}/, [{"a", {:u8, 256}}], []},
          {~r/for a, got: \[1, "b"\]/, [{"a", [1, "b"]}], []},
          {~r/for a, got: #{2 ** 64}/, [{"a", 2 ** 64}], []},
          {~r/for a, got: \{:complex, 1\}/, [{"a", {:complex, 1}}], []},
          {~r/for a, got: \{:array, 5\}/, [{"a", {:array, 5}}], []},
          {~r/for a, got: \{:array, true\}/, [{"a", {:array, true}}], []},
          {~r/for a, got: \{:array, "x"\}/, [{"a", {:array, "x"}}], []},
          {~r/for a, got: \{:array, 5\}/, [{"a", {:array, {:array, [5]}}}], []},
          {~r/for a, got: \{:array, \{:u8, 5\}\}/, [{"a", {:array, {:u8, 5}}}], []},
          {~r/for a, got: \{:array, \{:foo, \[\]\}\}/, [{"a", {:array, {:foo, []}}}], []},
          {~r/for a, got: \[1 \| 2\]/, [{"a", [1 | 2]}], []},
          {~r/for a, got: \{:array, \{:u8, \[1 \| 2\]\}\}/, [{"a", {:array, {:u8, [1 | 2]}}}], []},
          {~r/for a, got: 1.0e300/, [{"a", 1.0e300}], []},
          {~r/for a, got: \[0.5, 1.0e300\]/, [{"a", [0.5, 1.0e300]}], []},
          {~r/for a, got: \{:f32, -1.0e300\}/, [{"a", {:f32, -1.0e300}}], []},
          {~r/for a, got: \{:f64, 1000/, [{"a", {:array, {:f64, [10 ** 400]}}}], []},
          {~r/without vectorized axes for w, got: \[x: 2\]/, [],
           [{"w", Nx.vectorize(Nx.iota({2, 4}, type: :f32), :x)}]},
          {~r/without vectorized axes for w, got: \[x: 2\]/, [],
           [{"w", Quantized.from_blocks(Nx.vectorize(Nx.broadcast(Nx.u8(0), {2, 3, 1, 34}), :x), :q8_0)}]}
        ] do
      assert_raise ArgumentError, message, fn -> GGUF.write(path, metadata, tensors) end
    end

    assert File.ls!(folder) == []
  end

  ## Random damage

  # Some bytes of the header are others, some are gone, some are there twice, some lengths are huge.
  defp mutated(bytes, header) do
    Enum.reduce(1..:rand.uniform(4), bytes, fn _, bytes ->
      at = :rand.uniform(min(header, byte_size(bytes))) - 1
      <<before::binary-size(at), rest::binary>> = bytes

      case :rand.uniform(5) do
        1 -> before <> :rand.bytes(1) <> binary_part(rest, 1, byte_size(rest) - 1)
        2 -> before <> flipped(rest)
        3 -> before <> binary_part(rest, min(8, byte_size(rest)), byte_size(rest) - min(8, byte_size(rest)))
        4 -> before <> binary_part(rest, 0, min(8, byte_size(rest))) <> rest
        5 -> before <> numbers(rest)
      end
    end)
  end

  defp flipped(<<byte, rest::binary>>), do: <<Bitwise.bxor(byte, 2 ** (:rand.uniform(8) - 1)), rest::binary>>

  defp numbers(<<_::64, rest::binary>>) do
    <<Enum.random([0, 1, 2 ** 31, 2 ** 32 - 1, 2 ** 63, 2 ** 64 - 1])::little-64, rest::binary>>
  end

  defp numbers(rest), do: rest

  defp damage(folder, count) do
    bytes = File.read!(write(Path.join(folder, "whole.gguf"), Enum.take(@metadata, 16), Enum.take(tensors(), 12)))
    header = GGUF.open!(Path.join(folder, "whole.gguf")).tensors |> Enum.map(& &1.offset) |> Enum.min()
    path = Path.join(folder, "mutated.gguf")
    Damage.some_are_read(count, fn -> read?(path, mutated(bytes, header)) end)
  end

  # Whether the file could be read, tensors too.
  defp read?(path, bytes) do
    File.write!(path, bytes)

    case GGUF.open(path) do
      {:ok, gguf} ->
        for %{name: name, bytes: size} <- gguf.tensors do
          true = is_nil(size) or size <= byte_size(bytes)

          case GGUF.tensor(gguf, name) do
            {:ok, _} -> :ok
            {:error, %Error{kind: :unsupported}} -> :ok
          end
        end

        true

      {:error, %Error{kind: :bad_file, details: %{field: field, offset: offset}}} ->
        true = is_binary(field) and offset in 0..byte_size(bytes)
        false
    end
  end

  test "headers damaged at random are read or told, in little memory", %{tmp_dir: folder} do
    damage(folder, 2_000)
  end

  @tag :gguf_damage
  @tag timeout: :infinity
  test "a million of them", %{tmp_dir: folder} do
    damage(folder, 1_000_000)
  end
end
