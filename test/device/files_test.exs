defmodule Nx.Vulkan.FilesTest do
  # Tensors of parts of files, whose bytes go to the device without a binary of them.
  use ExUnit.Case, async: true

  alias Nx.Vulkan.{Error, GGUF, NativeV, Quantized, Safetensors, TensorFile, VulkanoBackend}

  @moduletag :tmp_dir
  @moduletag :device

  defp file!(folder, name \\ "tensors.bin", bytes) do
    path = Path.join(folder, name)
    File.write!(path, bytes)
    path
  end

  test "parts of a file are the tensors of their bytes", %{tmp_dir: folder} do
    bytes = :crypto.strong_rand_bytes(9 * 1024 * 1024 + 77)
    path = file!(folder, bytes)

    # Small ones, and ones of several portions, which begin and end anywhere.
    for {offset, size} <- [
          {0, 1},
          {5, 16},
          {77, 65_536},
          {1, 65_537},
          {3, 1_048_576},
          {13, 5_000_011},
          {77, 9 * 1024 * 1024}
        ] do
      tensor = Nx.Vulkan.from_file(path, :u8, {size}, offset: offset)
      assert %Nx.Tensor{data: %VulkanoBackend{}, type: {:u, 8}, shape: {^size}} = tensor
      assert Nx.to_binary(tensor) == binary_part(bytes, offset, size)
    end

    tensor = Nx.Vulkan.from_file(path, :f32, {3, 1000}, offset: 1001, names: [:x, :y])
    assert tensor.names == [:x, :y]
    assert Nx.to_binary(tensor) == binary_part(bytes, 1001, 12_000)
    assert Nx.to_binary(Nx.Vulkan.from_file(path, {:c, 64}, {}, offset: 8)) == binary_part(bytes, 8, 8)

    host = Nx.Vulkan.from_file(path, :s16, {20}, offset: 3, backend: Nx.BinaryBackend)
    assert %Nx.BinaryBackend{} = host.data
    assert Nx.to_binary(host) == binary_part(bytes, 3, 40)
  end

  test "elements of less than a byte are packed in files, too", %{tmp_dir: folder} do
    path = file!(folder, <<0xFF, 0x12, 0x34, 0x5F>>)

    for backend <- [VulkanoBackend, Nx.BinaryBackend] do
      assert Nx.to_flat_list(Nx.Vulkan.from_file(path, :u4, {5}, offset: 1, backend: backend)) == [1, 2, 3, 4, 5]
    end
  end

  test "no binary of the bytes is made on the way", %{tmp_dir: folder} do
    path = file!(folder, :binary.copy(<<7>>, 48 * 1024 * 1024))
    {:binary, before} = Process.info(self(), :binary)
    tensor = Nx.Vulkan.from_file(path, :u8, {48 * 1024 * 1024})
    {:binary, binaries} = Process.info(self(), :binary)
    assert Enum.all?(binaries -- before, fn {_, size, _} -> size < 1024 * 1024 end)
    assert Nx.to_number(Nx.reduce_max(tensor)) == 7
  end

  test "what is no file, or too short a one, is an error", %{tmp_dir: folder} do
    path = file!(folder, :binary.copy(<<1, 2>>, 100_000))

    for {offset, size} <- [
          {200_000, 1},
          {199_999, 2},
          {0, 200_001},
          {2 ** 40, 8},
          {2 ** 63, 1},
          {2 ** 70, 4},
          {0, 2 ** 70},
          {1, 2 ** 40}
        ] do
      error = assert_raise Error, fn -> Nx.Vulkan.from_file(path, :u8, {size}, offset: offset) end
      assert %{kind: :bad_file, op: :from_file, details: %{path: ^path, offset: ^offset}} = error
    end

    missing = Path.join(folder, "missing")
    error = assert_raise Error, fn -> Nx.Vulkan.from_file(missing, :u8, {1}) end
    assert %{kind: :io, details: %{path: ^missing, reason: :enoent}} = error
    assert %{kind: :io} = assert_raise(Error, fn -> Nx.Vulkan.from_file(folder, :u8, {1}) end)

    for offset <- [-1, 1.0, nil] do
      assert_raise ArgumentError, ~r/:offset/, fn -> Nx.Vulkan.from_file(path, :u8, {1}, offset: offset) end
    end

    for type <- [:u9, nil, "u8", {:u, 9}, 8] do
      assert_raise ArgumentError, ~r/type/, fn -> Nx.Vulkan.from_file(path, type, {1}) end
    end

    for shape <- [{0}, {-1}, {2, 0}, {1.5}, {nil}, 4, [4], nil, {:auto}] do
      assert_raise ArgumentError, ~r/expected a shape of positive integers.*got: /, fn ->
        Nx.Vulkan.from_file(path, :u8, shape)
      end
    end

    for none <- [nil, :path, 5, "", ~c"", "a" <> <<0>>, [0xD800], %{}, {path}, [path | :tail]] do
      assert_raise ArgumentError, ~r/expected a path.*got: /, fn -> Nx.Vulkan.from_file(none, :u8, {1}) end
    end

    for names <- [[:x, :y], [], :x, ["x"], [1]] do
      assert_raise ArgumentError, ~r/expected :names.*got: /, fn ->
        Nx.Vulkan.from_file(path, :u8, {1}, names: names)
      end
    end

    for backend <- [nil, :no_such, "backend", {VulkanoBackend, 1}, Enum] do
      assert_raise ArgumentError, ~r/expected :backend.*got: /, fn ->
        Nx.Vulkan.from_file(path, :u8, {1}, backend: backend)
      end
    end

    assert_raise ArgumentError, fn -> Nx.Vulkan.from_file(path, :u8, {1}, offset: 0, place: 1) end
    assert Nx.to_number(Nx.Vulkan.from_file(to_charlist(path), :u8, {})) == 1
    # The device is well.
    assert Nx.to_flat_list(Nx.Vulkan.from_file(path, :u8, {4})) == [1, 2, 1, 2]
  end

  test "the library itself refuses what is no regular file and what ends too early", %{tmp_dir: folder} do
    path = file!(folder, <<1, 2, 3>>)
    fifo = Path.join(folder, "fifo")
    {_, 0} = System.cmd("mkfifo", [fifo])

    # A pipe without a writer is not waited for.
    for {path, offset} <- [{fifo, 0}, {folder, 0}, {path, 3}, {path, 2 ** 63}, {path, 2 ** 64 - 1}, {"a" <> <<0>>, 0}] do
      assert {:error, :io, :tensor_from_file, _message, %{path: _}} = NativeV.tensor_from_file(:u8, {1}, path, offset)
    end
  end

  test "a file that is cut short while it is read is an error or whole", %{tmp_dir: folder} do
    size = 24 * 1024 * 1024
    bytes = :crypto.strong_rand_bytes(size)
    part = %{name: "x", offset: 0, bytes: size}

    for round <- 1..4 do
      path = file!(folder, "cut#{round}.bin", bytes)

      cutter =
        Task.async(fn ->
          Process.sleep(round)
          {:ok, file} = :file.open(path, [:read, :write, :raw])
          {:ok, _} = :file.position(file, div(size, 2))
          :ok = :file.truncate(file)
          :file.close(file)
        end)

      case TensorFile.tensor(path, :from_file, part, {:u, 8}, {size}, backend: VulkanoBackend) do
        {:ok, tensor} -> assert Nx.to_binary(tensor) == bytes
        {:error, error} -> assert %Error{kind: :bad_file} = error
      end

      assert :ok = Task.await(cutter)
    end
  end

  test "safetensors and GGUF go to the device by the same way, with the same values", %{tmp_dir: folder} do
    weights = Nx.as_type(Nx.iota({512, 768}, backend: Nx.BinaryBackend), :f32)
    path = Path.join(folder, "model.safetensors")
    :ok = Safetensors.write(path, [{"w", weights}, {"b", Nx.tensor([1, 2, 3], type: :s8, backend: Nx.BinaryBackend)}])
    file = Safetensors.open!(path)

    for backend <- [VulkanoBackend, Nx.BinaryBackend] do
      assert Nx.to_binary(Safetensors.tensor!(file, "w", backend: backend)) == Nx.to_binary(weights)
      assert Nx.to_flat_list(Safetensors.tensor!(file, "b", backend: backend)) == [1, 2, 3]
    end

    quantised = Quantized.quantize(Nx.backend_copy(weights, VulkanoBackend), :q8_0)
    path = Path.join(folder, "model.gguf")
    :ok = GGUF.write(path, [], [{"w", quantised}, {"f", weights}])
    file = GGUF.open!(path)
    read = GGUF.tensor!(file, "w", backend: VulkanoBackend)
    assert Nx.to_binary(Quantized.dequantize(read)) == Nx.to_binary(Quantized.dequantize(quantised))
    assert Nx.to_binary(GGUF.tensor!(file, "f", backend: VulkanoBackend)) == Nx.to_binary(weights)

    # Shorter than its header says.
    File.write!(path, binary_part(File.read!(path), 0, 600_000))
    assert {:error, %Error{kind: :bad_file}} = GGUF.tensor(file, "f", backend: VulkanoBackend)
  end
end
