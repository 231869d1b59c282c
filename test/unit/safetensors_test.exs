defmodule Nx.Vulkan.SafetensorsTest do
  # Files of models on the host: what is written is read, quantised weights as one, and what is damaged is told.
  use ExUnit.Case, async: true

  import Nx.Vulkan.QuantizedData

  alias Nx.Vulkan.{Damage, Error, Quantized, Safetensors}

  @moduletag :tmp_dir

  setup do
    Nx.default_backend(Nx.BinaryBackend)
    :ok
  end

  @types [:u8, :s8, :f8, :f8_e4m3fn, :u16, :s16, :f16, :bf16, :u32, :s32, :f32, :u64, :s64, :f64, :c64]

  defp plain, do: for(type <- @types, do: {"of.#{type}", Nx.iota({2, 3, 5}, type: type)}) ++ [{"one", Nx.tensor(7.5)}]

  defp affine(bits, group), do: affine({:affine, bits, group}, 8, 2, :f16, true)

  defp write(path, tensors, opts \\ []) do
    assert Safetensors.write(path, tensors, opts) == :ok
    path
  end

  defp config(folder, config), do: File.write!(Path.join(folder, "config.json"), JSON.encode!(config))

  test "what is written is read", %{tmp_dir: folder} do
    path =
      write(Path.join(folder, "all.safetensors"), plain(), metadata: %{"format" => "pt", "\"\\\n\u0394" => "\u0001"})

    assert File.ls!(folder) == ["all.safetensors"]
    assert {:ok, %Safetensors{paths: [^path]} = file} = Safetensors.open(path)
    assert file.metadata == %{"format" => "pt", "\"\\\n\u0394" => "\u0001"}
    assert Enum.map(Safetensors.tensors(file), & &1.name) == Enum.map(plain(), &elem(&1, 0))

    for {name, tensor} <- plain(), info = Enum.find(file.tensors, &(&1.name == name)) do
      assert Safetensors.tensor(file, name) == {:ok, tensor}
      assert Safetensors.tensor!(file, name, backend: Nx.BinaryBackend) == tensor

      assert {info.format, info.shape, info.bytes, info.layout} ==
               {tensor.type, tensor.shape, Nx.byte_size(tensor), :plain}

      assert %{tensor: %{path: ^path, offset: offset}} = info.parts
      assert {:ok, binary_part(File.read!(path), offset, info.bytes)} == {:ok, Nx.to_binary(tensor)}
    end

    assert_raise ArgumentError, ~r/there is no tensor "w" in .*all.safetensors, which has 16 tensors/, fn ->
      Safetensors.tensor(file, "w")
    end
  end

  test "the bytes of a small file", %{tmp_dir: folder} do
    path = write(Path.join(folder, "small.safetensors"), %{"w" => Nx.tensor([[1.0, 2.0]])})
    json = ~s({"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})
    json = json <> String.duplicate(" ", 56 - byte_size(json))
    assert File.read!(path) == <<56::little-64, json::binary, 1.0::float-little-32, 2.0::float-little-32>>

    # As others write it.
    json = ~s( {\n"w" :\t{"shape": [ 1 , 2 ], "data_offsets": [0, 8],\r"dtype": "F\\u00332"} , "__metadata__":{} })
    File.write!(path, <<byte_size(json)::little-64, json::binary, 1.0::float-little-32, 2.0::float-little-32>>)
    assert path |> Safetensors.open!() |> Safetensors.tensor!("w") == Nx.tensor([[1.0, 2.0]])
  end

  ## Quantised weights

  test "MLX: three tensors are one, of the bits and group of the configuration", %{tmp_dir: folder} do
    for bits <- [2, 4, 8], group <- [32, 64, 128] do
      q = affine(bits, group)
      path = write(Path.join(folder, "model.safetensors"), [{"a.weight", q}, {"b.weight", Nx.iota({3}, type: :f32)}])
      config(folder, %{"quantization" => %{"bits" => bits, "group_size" => group}})
      assert %{tensors: [a, b]} = file = Safetensors.open!(folder)
      assert {a.name, a.format, a.shape, a.layout} == {"a.weight", q.format, q.shape, :mlx}
      assert a.bytes == Quantized.size_bytes(q)
      assert {b.name, b.layout} == {"b.weight", :plain}
      assert Safetensors.tensor!(file, "a.weight") == q

      # Said by the caller, or not at all.
      quantization = %{"bits" => bits, "group_size" => group}
      assert path |> Safetensors.open!(quantization: quantization) |> Safetensors.tensor!("a.weight") == q
      assert ["a.biases", "a.scales", "a.weight", "b.weight"] == names(Safetensors.open!(path, quantization: false))
    end
  end

  test "MLX: layers with formats of their own, and those that can't be read", %{tmp_dir: folder} do
    [a, b] = [affine(4, 64), affine(8, 32)]
    path = write(Path.join(folder, "model.safetensors"), [{"x.a.weight", a}, {"x.b.weight", b}])

    config(folder, %{
      "quantization_config" => %{"bits" => 4, "group_size" => 64, "x.b" => %{"bits" => 8, "group_size" => 32}}
    })

    file = Safetensors.open!(path)
    assert {Safetensors.tensor!(file, "x.a.weight"), Safetensors.tensor!(file, "x.b.weight")} == {a, b}

    for {config, message} <- [
          {%{}, "unknown bits and group"},
          {%{"bits" => 3, "group_size" => 64}, "affine of 3 bits in groups of 64"},
          {%{"bits" => 4, "group_size" => 64, "mode" => "mxfp4"}, ~s("mxfp4" of MLX)},
          {%{"bits" => 8, "group_size" => 64}, "not of 8 bits in groups of 64"}
        ] do
      file = Safetensors.open!(path, quantization: config)
      assert {:error, %Error{kind: :unsupported} = error} = Safetensors.tensor(file, "x.a.weight")
      assert error.message =~ message
      assert error.message =~ "x.a.weight in #{path}"
    end
  end

  test "MLX: symmetric ones have biases in files", %{tmp_dir: folder} do
    q = affine({:affine, 4, 64}, 8, 2, :f32, false)
    path = write(Path.join(folder, "a.safetensors"), [{"a.weight", q}])

    read =
      path |> Safetensors.open!(quantization: %{"bits" => 4, "group_size" => 64}) |> Safetensors.tensor!("a.weight")

    # scale * (q - 8), and scale * q - 8 * scale: one rounding more.
    [got, want] = for q <- [read, q], do: Quantized.dequantize(q)

    assert got
           |> Nx.subtract(want)
           |> Nx.abs()
           |> Nx.less_equal(Nx.multiply(Nx.abs(Nx.reduce_max(Nx.abs(want))), 2 ** -22))
           |> Nx.all() == Nx.u8(1)

    assert read.tensors.weight == q.tensors.weight
  end

  test "MLX: biases of symmetric ones that f16 does not have", %{tmp_dir: folder} do
    path = Path.join(folder, "model.safetensors")
    q = Quantized.quantize(Nx.multiply(Nx.iota({2, 64}, type: :f32), 4000), {:affine, 8, 64}, symmetric: true)
    assert q.tensors.scales.type == {:f, 16}
    :ok = Safetensors.write(path, %{"a.weight" => q})
    file = Safetensors.open!(path, quantization: %{"bits" => 8, "group_size" => 64})
    read = Safetensors.tensor!(file, "a.weight")
    assert read.tensors.biases.type == {:f, 32}
    # Zeros have another sign.
    assert Nx.to_number(Nx.all(Nx.equal(Quantized.dequantize(read), Quantized.dequantize(q)))) == 1
  end

  test "floats of 8 bits with scales of blocks, rows, and of all", %{tmp_dir: folder} do
    path = Path.join(folder, "model.safetensors")

    for type <- [:f8, :f8_e4m3fn], part <- [:tensor, :channel, :block, :mx] do
      q = Quantized.quantize(Nx.iota({130, 224}, type: :f32), {type, part})
      write(path, [{"a.weight", q}])
      assert %{tensors: [info]} = file = Safetensors.open!(path)
      assert {info.format, info.shape, info.layout} == {q.format, q.shape, :fp8}
      assert Safetensors.tensor!(file, "a.weight") == q

      # Of compressed-tensors.
      scales = if part == :tensor, do: Nx.reshape(q.tensors.scales, {1}), else: q.tensors.scales
      write(path, [{"a.weight", q.tensors.weight}, {"a.weight_scale", scales}])
      assert path |> Safetensors.open!() |> Safetensors.tensor!("a.weight") == q
    end

    # Without scales these are values.
    tensor = Nx.iota({2, 3}, type: :f8)
    write(path, [{"a.weight", tensor}])
    assert path |> Safetensors.open!() |> Safetensors.tensor!("a.weight") == tensor
  end

  # Integers {k, n} of some bits as words along an axis.
  defp words(integers, bits, axis) do
    per = div(32, bits)
    {k, n} = integers.shape
    shape = if axis == 0, do: {div(k, per), per, n}, else: {k, div(n, per), per}
    shifts = Nx.multiply(Nx.iota(shape, axis: axis + 1, type: :u32), bits)

    integers
    |> Nx.as_type(:u32)
    |> Nx.reshape(shape)
    |> Nx.left_shift(shifts)
    |> Nx.sum(axes: [axis + 1])
    |> Nx.as_type(:u32)
    |> Nx.bitcast(:s32)
  end

  defp random(shape, high) do
    values = for _ <- 1..Nx.size(shape), do: :rand.uniform(high + 1) - 1
    values |> Nx.tensor(type: :s32) |> Nx.reshape(shape)
  end

  # Integers, zero points, scales, and the group of each column.
  defp grouped(bits, k, n, group, g_idx \\ nil) do
    groups = div(k, group)
    integers = random({k, n}, 2 ** bits - 1)
    zeros = random({groups, n}, 2 ** bits - 1)
    scales = Nx.divide(random({groups, n}, 1000), 64) |> Nx.as_type(:f16)
    g_idx = g_idx || Nx.quotient(Nx.iota({k}, type: :s32), group)
    values = Nx.multiply(Nx.take(scales, g_idx) |> Nx.as_type(:f32), Nx.subtract(integers, Nx.take(zeros, g_idx)))
    {integers, zeros, scales, g_idx, Nx.transpose(values)}
  end

  defp equal!(q, values), do: assert(q |> Quantized.dequantize() |> Nx.equal(values) |> Nx.all() == Nx.u8(1))

  test "GPTQ: columns in order", %{tmp_dir: folder} do
    path = Path.join(folder, "model.safetensors")

    for bits <- [2, 4, 8], group <- [32, 64, 128], with_index? <- [true, false] do
      {integers, zeros, scales, g_idx, values} = grouped(bits, 2 * group, 16, group)
      stored = Nx.remainder(Nx.add(zeros, 2 ** bits - 1), 2 ** bits)
      index = if with_index?, do: [{"a.g_idx", g_idx}], else: []

      write(
        path,
        [{"a.qweight", words(integers, bits, 0)}, {"a.qzeros", words(stored, bits, 1)}, {"a.scales", scales}] ++
          index ++ [{"a.bias", Nx.iota({16}, type: :f16)}]
      )

      config(folder, %{"quantization_config" => %{"quant_method" => "gptq", "bits" => bits, "group_size" => group}})
      file = Safetensors.open!(folder)
      assert names(file) == ["a.bias", "a.weight"]

      assert %{format: {:affine, ^bits, ^group}, shape: {16, _}, layout: :gptq} =
               Enum.find(file.tensors, &(&1.name == "a.weight"))

      q = Safetensors.tensor!(file, "a.weight")
      refute is_map_key(q.tensors, :columns)
      equal!(q, values)
    end
  end

  test "GPTQ: columns in the order of their importance", %{tmp_dir: folder} do
    path = Path.join(folder, "model.safetensors")

    for bits <- [2, 4, 8], group <- [32, 128] do
      k = 3 * group
      g_idx = 0..(k - 1) |> Enum.map(&div(&1, group)) |> Enum.shuffle() |> Nx.tensor(type: :s32)
      {integers, zeros, scales, ^g_idx, values} = grouped(bits, k, 16, group, g_idx)
      stored = Nx.remainder(Nx.add(zeros, 2 ** bits - 1), 2 ** bits)

      write(path, [
        {"a.qweight", words(integers, bits, 0)},
        {"a.qzeros", words(stored, bits, 1)},
        {"a.scales", scales},
        {"a.g_idx", g_idx}
      ])

      q = path |> Safetensors.open!() |> Safetensors.tensor!("a.weight")
      assert q.tensors.columns.shape == {k}
      equal!(q, values)

      # What is multiplied is reordered: sums of multiples of 1 / 64 that f32 has, the same in any order.
      x = random({3, k}, 1) |> Nx.as_type(:f32)
      assert Quantized.dot(x, q) == Nx.dot(x, [-1], values, [-1])
      assert Quantized.take(q, Nx.tensor([5, 0, 5])) == Nx.take(values, Nx.tensor([5, 0, 5]))
    end

    write(path, [
      {"a.qweight", Nx.broadcast(Nx.s32(0), {8, 8})},
      {"a.qzeros", Nx.broadcast(Nx.s32(0), {2, 1})},
      {"a.scales", Nx.broadcast(Nx.f16(1), {2, 8})},
      {"a.g_idx", Nx.broadcast(Nx.s32(1), {64})}
    ])

    assert {:error, %Error{kind: :bad_file} = error} = path |> Safetensors.open!() |> Safetensors.tensor("a.weight")
    assert error.message =~ "tensors of a.qweight at byte"
    assert error.message =~ "expected a g_idx that has each of 0 to 1 32 times"
  end

  test "GPTQ: another version, and groups that there are not", %{tmp_dir: folder} do
    {integers, zeros, scales, _, _} = grouped(4, 256, 16, 128)
    tensors = &[{"a.qweight", words(integers, 4, 0)}, {"a.qzeros", words(&1, 4, 1)}, {"a.scales", &2}]
    path = write(Path.join(folder, "model.safetensors"), tensors.(zeros, scales))

    for {path, config, message} <- [
          {path, %{"checkpoint_format" => "gptq_v2"}, "gptq_v2 of GPTQ"},
          {write(Path.join(folder, "one.safetensors"), tensors.(zeros[0..0], scales[0..0])), %{},
           "4 bits of 256 columns in 1 groups"}
        ] do
      file = Safetensors.open!(path, quantization: config)
      assert {:error, %Error{kind: :unsupported} = error} = Safetensors.tensor(file, "a.weight")
      assert error.message =~ message
    end
  end

  test "AWQ: integers along n, even columns first", %{tmp_dir: folder} do
    for group <- [32, 64, 128] do
      {integers, zeros, scales, _, values} = grouped(4, 2 * group, 16, group)
      # Of eight neighbours, those at 0, 2, 4, 6 come first.
      awq = fn tensor ->
        {rows, n} = tensor.shape

        tensor
        |> Nx.reshape({rows, div(n, 8), 4, 2})
        |> Nx.transpose(axes: [0, 1, 3, 2])
        |> Nx.reshape({rows, n})
        |> words(4, 1)
      end

      path =
        write(Path.join(folder, "model.safetensors"), [
          {"a.qweight", awq.(integers)},
          {"a.qzeros", awq.(zeros)},
          {"a.scales", scales}
        ])

      assert %{tensors: [%{name: "a.weight", layout: :awq, format: {:affine, 4, ^group}}]} =
               file = Safetensors.open!(path)

      file |> Safetensors.tensor!("a.weight") |> equal!(values)
    end
  end

  test "a backend that is none is no damage of the file", %{tmp_dir: folder} do
    path = Path.join(folder, "model.safetensors")
    :ok = Safetensors.write(path, %{"x" => Nx.tensor([1, 2])})
    file = Safetensors.open!(path)
    assert_raise ArgumentError, ~r/backend must be/, fn -> Safetensors.tensor(file, "x", backend: 3) end
  end

  test "a model in several files, whose parts may lie in different ones", %{tmp_dir: folder} do
    [q, other] = [affine(4, 64), affine(4, 64)]
    [one, two] = for n <- 1..2, do: Path.join(folder, "model-0000#{n}-of-00002.safetensors")
    %{weight: weight, scales: scales, biases: biases} = q.tensors
    write(one, [{"a.weight", weight}, {"norm.weight", Nx.tensor([1.0])}])
    write(two, [{"a.scales", scales}, {"a.biases", biases}, {"b.weight", other}])

    map =
      for {file, names} <- [
            {one, ["a.weight", "norm.weight"]},
            {two, ["a.scales", "a.biases", "b.weight", "b.scales", "b.biases"]}
          ],
          name <- names,
          into: %{},
          do: {name, Path.basename(file)}

    index = Path.join(folder, "model.safetensors.index.json")
    File.write!(index, JSON.encode!(%{"weight_map" => map}))
    config(folder, %{"quantization" => %{"bits" => 4, "group_size" => 64}})
    file = Safetensors.open!(folder)
    assert file.paths == [one, two]
    assert names(file) == ["a.weight", "b.weight", "norm.weight"]
    assert Safetensors.tensor!(file, "a.weight") == q
    assert Safetensors.tensor!(Safetensors.open!([two, one]), "a.weight") == q

    # What Bumblebee is given: each file's own, read when it is asked for.
    read = Safetensors.read!(one)
    assert Enum.sort(Map.keys(read)) == ["a.weight", "norm.weight"]
    assert Nx.to_tensor(read["a.weight"]) == Quantized.dequantize(q)
    assert Nx.to_tensor(read["norm.weight"]) == Nx.tensor([1.0])
    assert %{"b.weight" => b} = Safetensors.read!(two, type: :bf16)
    assert Nx.to_tensor(b) == Quantized.dequantize(other, type: :bf16)
    assert Nx.Defn.jit_apply(&Nx.sum/1, [b]) == Nx.sum(Nx.to_tensor(b))

    File.write!(index, JSON.encode!(%{"weight_map" => %{"a" => "../x.safetensors"}}))
    assert {:error, %Error{kind: :bad_file, details: %{field: "weight_map"}}} = Safetensors.open(folder)
    write(two, [{"a.weight", weight}])
    assert {:error, %Error{kind: :bad_file} = error} = Safetensors.open([one, two])
    assert error.message =~ "a.weight at byte"
    assert error.message =~ "it is in another file, too"
  end

  defp names(file), do: file.tensors |> Enum.map(& &1.name) |> Enum.sort()

  ## Files by hand

  defp file(json, data \\ ""), do: <<byte_size(json)::little-64, json::binary, data::binary>>

  defp info(offsets, dtype \\ "F32", shape \\ "[1]"),
    do: ~s({"dtype":"#{dtype}","shape":#{shape},"data_offsets":#{offsets}})

  # {what is wrong, the field, its offset, the bytes}
  defp damaged do
    data = <<0::32>>
    deep = String.duplicate("[", 100_000)

    [
      {~r/expected 8 bytes, and 0 are left/, "length of the header", 0, ""},
      {~r/expected 8 bytes, and 3 are left/, "length of the header", 0, "abc"},
      {~r/expected 100000000 at most, got: #{2 ** 64 - 1}/, "length of the header", 0, <<2 ** 64 - 1::64>>},
      {~r/expected 9 bytes, and 2 are left/, "header", 8, <<9::little-64, "{}">>},
      {~r/expected {, got: the end of the header/, "header", 8, file("")},
      {~r/expected {, got: "\[\]"/, "header", 8, file("[]")},
      {~r/expected ", got: "}"/, "key of header", 28, file(~s({"__metadata__":{}, }))},
      {~r/expected its end, got: "x"/, "header", 10, file("{}x")},
      {~r/expected a comma or a closing brace, got: the end/, "header", 26, file(~s({"__metadata__":{}))},
      {~r/the header ends in a text/, "key of header", 12, file(~s({"ab))},
      {~r/expected UTF-8, got: <<255/, "key of header", 11, file(<<"{\"a", 255, "\":1}">>)},
      {~r/expected UTF-8, got: "\\n/, "key of header", 11, file("{\"a\n\":1}")},
      {~r/expected a text of JSON, got: "\\\\q"/, "key of header", 10, file(~S({"\q":{}}))},
      {~r/expected {, got: "1}"/, "w", 13, file(~s({"w":1}))},
      {~r/expected {, got: "\[\[\[/, "w", 13, file(~s({"w":) <> deep)},
      {~r/expected ", got: "1}}"/, "value of a", 29, file(~s({"__metadata__":{"a":1}}))},
      {~r/it stands there twice/, "__metadata__", 37, file(~s({"__metadata__":{"a":"b"},   "__metadata__":{}}))},
      {~r/it stands there twice/, "__metadata__", 27, file(~s({"__metadata__":{},"__metadata__":{}}))},
      {~r/it stands there twice/, "a", 32, file(~s({"__metadata__":{"a":"","a":""}}))},
      {~r/it stands there twice/, "w", 62, file(~s({"w":#{info("[0,4]")},"w":#{info("[4,8]")}}), <<0::64>>)},
      {~r/it stands there twice/, "dtype of w", 28, file(~s({"w":{"dtype":"F32","dtype":"F32"}}))},
      {~r/it is missing/, "dtype of w", 9, file(~s({"w":{}}))},
      {~r/it is missing/, "data_offsets of w", 9, file(~s({"w":{"dtype":"F32","shape":[]}}))},
      {~r/expected dtype, shape and data_offsets, got: "x"/, "w", 14, file(~s({"w":{"x":1}}))},
      {~r/expected ", got: "5/, "dtype of w", 22, file(~s({"w":{"dtype":5}}))},
      {~r/expected a number of up to 20 digits, got: "-1\]/, "shape of w", 23, file(~s({"w":{"shape":[-1]}}))},
      {~r/expected a number/, "shape of w", 23, file(~s({"w":{"shape":[01]}}))},
      {~r/expected a number/, "shape of w", 23, file(~s({"w":{"shape":[#{10 ** 20}]}}))},
      {~r/expected a comma or a closing bracket, got: "\.5/, "shape of w", 24, file(~s({"w":{"shape":[1.5]}}))},
      {~r/expected 64 numbers at most/, "shape of w", 151,
       file(~s({"w":{"shape":[#{Enum.map_join(1..65, ",", fn _ -> 1 end)}]}}))},
      {~r/expected two numbers, got: \[1\]/, "data_offsets of w", 29, file(~s({"w":{"data_offsets":[1]}}))},
      {~r/expected no end before its beginning, got: 0/, "data_offsets of w", 55,
       file(~s({"w":#{info("[4,0]")}}), data)},
      {~r/expected 4 bytes, got: 8/, "data_offsets of w", 55, file(~s({"w":#{info("[0,8]")}}), <<0::64>>)},
      {~r/expected #{4 * 10 ** 38} bytes, got: 4/, "data_offsets of w", 95,
       file(~s({"w":#{info("[0,4]", "F32", "[#{10 ** 19},#{10 ** 19}]")}}), data)},
      {~r/is beyond the file, which has/, "data_offsets of w", 55, file(~s({"w":#{info("[0,4]")}}), <<0::16>>)},
      {~r/expected a beginning of 0, got: 4/, "data_offsets of w", 55, file(~s({"w":#{info("[4,8]")}}), <<0::64>>)},
      {~r/expected a beginning of 4, got: 0/, "data_offsets of x", 108,
       file(~s({"w":#{info("[0,4]")},"x":#{info("[0,4]")}}), <<0::64>>)},
      {~r/data of tensors end at byte 66, and the file has 67 bytes/, "data_offsets", 55,
       file(~s({"w":#{info("[0,4]")}}), <<0::40>>)},
      {~r/expected 65535 bytes at most/, "key of header", 9, file(~s({"#{String.duplicate("k", 65_536)}":{}}))}
    ]
  end

  test "what is damaged is told by field and offset", %{tmp_dir: folder} do
    path = Path.join(folder, "damaged.safetensors")

    for {message, field, offset, bytes} <- damaged() do
      File.write!(path, bytes)

      assert {:error, %Error{kind: :bad_file, op: :safetensors} = error} = Safetensors.open(path),
             inspect({message, field})

      assert {error.details.field, error.details.offset, error.details.path} == {field, offset, path}, error.message
      assert error.message =~ message
      assert error.message =~ "#{path}: #{field} at byte #{offset}: "
      assert_raise Error, fn -> Safetensors.open!(path) end
    end
  end

  test "types that Nx does not have, and tensors of no elements, are listed and not read", %{tmp_dir: folder} do
    path = Path.join(folder, "unknown.safetensors")
    infos = ~s("a":#{info("[0,3]", "F8_E8M0", "[3]")},"b":#{info("[3,3]", "F32", "[0,2]")},"c":#{info("[3,4]", "BOOL")})
    File.write!(path, file("{#{infos}}", <<0, 0, 0, 1>>))
    assert %{tensors: [a, b, c]} = file = Safetensors.open!(path)
    assert {a.format, a.shape, a.bytes} == {{:unknown, "F8_E8M0"}, {3}, 3}
    assert {b.shape, b.bytes, c.format} == {{0, 2}, 0, {:u, 8}}
    assert Safetensors.tensor!(file, "c") == Nx.u8([1])

    for name <- ["a", "b"] do
      assert {:error, %Error{kind: :unsupported} = error} = Safetensors.tensor(file, name)
      assert error.message =~ "#{name} in #{path}"
    end
  end

  test "names in files become no atoms", %{tmp_dir: folder} do
    strings = [name, key, value] = for what <- ~w(name key value), do: "#{what} that is no atom of safetensors"
    path = write(Path.join(folder, "names.safetensors"), %{name => Nx.iota({4})}, metadata: %{key => value})
    assert {:ok, _} = path |> Safetensors.open!() |> Safetensors.tensor(name)
    for string <- strings, do: assert_raise(ArgumentError, fn -> String.to_existing_atom(string) end)
  end

  test "files that can't be read or written, and one that became shorter", %{tmp_dir: folder} do
    assert {:error, %Error{kind: :io, details: %{reason: :enoent}}} = Safetensors.open(Path.join(folder, "none"))
    assert {:error, %Error{kind: :io}} = Safetensors.open(folder)
    assert {:error, %Error{kind: :io}} = Safetensors.write(Path.join([folder, "none", "a"]), %{})
    path = write(Path.join(folder, "short.safetensors"), %{"w" => Nx.iota({64}, type: :f32)})
    file = Safetensors.open!(path)
    File.write!(path, binary_part(File.read!(path), 0, 200))
    assert {:error, %Error{kind: :bad_file, details: %{field: "data of w"}}} = Safetensors.tensor(file, "w")
    File.rm!(path)
    assert {:error, %Error{kind: :io}} = Safetensors.tensor(file, "w")
    File.write!(Path.join(folder, "config.json"), "[1,")
    write(path, %{"w" => Nx.iota({4})})
    assert {:error, %Error{kind: :bad_file, details: %{field: "JSON", offset: 3}}} = Safetensors.open(path)
    assert {:ok, _} = Safetensors.open(path, quantization: %{})
  end

  test "what a file can't have is an ArgumentError", %{tmp_dir: folder} do
    path = Path.join(folder, "wrong.safetensors")
    {q4_k, _} = decoded(:q4_k)

    for {message, tensors, metadata} <- [
          {~r/for w, got: :q4_k: Nx.Vulkan.GGUF writes/, [{"w", q4_k}], %{}},
          {~r/expected a tensor or a quantised one for w, got: 5/, [{"w", 5}], %{}},
          {~r/expected a name that ends in .weight/, [{"w", affine(4, 64)}], %{}},
          {~r/expected each name once, got twice: "w"/, [{"w", Nx.tensor(1)}, {"w", Nx.tensor(2)}], %{}},
          {~r/expected a name of 1 to 65,535 bytes/, [{"__metadata__", Nx.tensor(1)}], %{}},
          {~r/expected a name in UTF-8/, [{<<255>>, Nx.tensor(1)}], %{}},
          {~r/without vectorized axes for w, got: \[x: 2\]/, [{"w", Nx.vectorize(Nx.iota({2, 4}), :x)}], %{}},
          {~r/one of .*, got: c128/, [{"w", Nx.tensor(1, type: :c128)}], %{}},
          {~r/expected strings as keys and values/, [], %{a: 1}},
          {~r/expected metadata in UTF-8/, [], %{"a" => <<255>>}}
        ] do
      assert_raise ArgumentError, message, fn -> Safetensors.write(path, tensors, metadata: metadata) end
    end

    assert File.ls!(folder) == []
  end

  ## Random damage

  # Some bytes of the header are others, some are gone, some are there twice, some numbers are others.
  defp mutated(bytes, header) do
    Enum.reduce(1..:rand.uniform(4), bytes, fn _, bytes ->
      at = :rand.uniform(min(header, byte_size(bytes))) - 1
      <<before::binary-size(at), rest::binary>> = bytes
      some = min(:rand.uniform(8), byte_size(rest))

      case :rand.uniform(6) do
        1 ->
          before <> :rand.bytes(1) <> binary_part(rest, 1, byte_size(rest) - 1)

        2 ->
          before <> binary_part(rest, some, byte_size(rest) - some)

        3 ->
          before <> binary_part(rest, 0, some) <> rest

        4 ->
          before <> Enum.random(~w({ } [ ] , : " 9 0 \\ null 1e9 -1 __metadata__)) <> rest

        5 ->
          before <>
            String.replace(rest, ~r/\d+/, &Integer.to_string(String.to_integer(&1) * 2 ** 32 + 1), global: false)

        6 ->
          <<Enum.random([0, 1, 2 ** 31, 2 ** 63, 99_999_999])::little-64>> <>
            binary_part(bytes, 8, byte_size(bytes) - 8)
      end
    end)
  end

  defp damage(folder, count) do
    whole = Path.join(folder, "whole.safetensors")

    quantised = [
      {"a.weight", affine(4, 64)},
      {"b.weight", Quantized.quantize(Nx.iota({4, 8}, type: :f32), {:f8, :channel})}
    ]

    write(whole, Enum.take(plain(), 8) ++ quantised, metadata: %{"format" => "pt"})
    bytes = File.read!(whole)
    <<length::little-64, _::binary>> = bytes
    path = Path.join(folder, "mutated.safetensors")
    Damage.some_are_read(count, fn -> read?(path, mutated(bytes, length + 8)) end)
  end

  # Whether the file could be read, tensors too.
  defp read?(path, bytes) do
    File.write!(path, bytes)

    case Safetensors.open(path, quantization: %{"bits" => 4, "group_size" => 64}) do
      {:ok, file} ->
        for %{name: name, bytes: size} <- file.tensors do
          true = size <= byte_size(bytes)

          case Safetensors.tensor(file, name) do
            {:ok, _} -> :ok
            {:error, %Error{kind: kind}} -> true = kind in [:unsupported, :bad_file]
          end
        end

        true

      {:error, %Error{kind: :bad_file, details: %{field: field, offset: offset}}} ->
        true = is_binary(field) and offset in 0..byte_size(bytes)
        false
    end
  end

  test "headers damaged at random are read or told, in little memory", %{tmp_dir: folder} do
    damage(folder, 4_000)
  end

  @tag :gguf_damage
  @tag timeout: :infinity
  test "a million of them", %{tmp_dir: folder} do
    damage(folder, 1_000_000)
  end
end
