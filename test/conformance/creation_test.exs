defmodule Nx.Vulkan.Conformance.CreationTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance
  alias Nx.Vulkan.VulkanoBackend

  @moduletag :device

  test "binaries of every type come back as they went" do
    for type <- types() ++ sub_byte(), shape <- [{}, {1}, {3}, {8}, {5, 7}, {300}] do
      tensor = random_bits(shape, type)
      copy = Nx.backend_copy(tensor, VulkanoBackend)
      assert Nx.to_binary(copy) == Nx.to_binary(tensor), "#{inspect(type)} #{inspect(shape)}"
      assert Nx.to_binary(Nx.backend_transfer(copy, Nx.BinaryBackend)) == Nx.to_binary(tensor)
    end
  end

  test "reading a part" do
    tensor = Nx.iota({5, 4}, type: :s16, backend: VulkanoBackend)
    assert Nx.to_binary(tensor, limit: 3) == <<0::16-native, 1::16-native, 2::16-native>>
    assert Nx.to_binary(Nx.transpose(tensor), limit: 2) == <<0::16-native, 4::16-native>>
    assert Nx.to_binary(Nx.as_type(tensor, :u4), limit: 3) == <<0::4, 1::4, 2::4>>
  end

  test "constants of every type" do
    for type <- types(), value <- [0, 1, 100, 2.5, -0.0, -3, :nan, :infinity, :neg_infinity, Complex.new(1.5, -2)] do
      kind = Nx.Type.infer(if is_atom(value), do: 1.0, else: value)

      if Nx.Type.merge(kind, type) == type and not (match?({:u, _}, type) and value == -3) do
        assert_same([], fn -> Nx.broadcast(Nx.tensor(value, type: type), {2, 3}) end)
      end
    end
  end

  test "numbers are written as Nx writes them, which cuts bits off in bf16 and f8" do
    # Powers of two in the range of each type, times what has more bits than it.
    ranges = [{{:bf, 16}, -125..127//6}, {{:f, 8}, -13..15}, {{:f, 16}, -13..15}, {{:f, 32}, -125..127//6}]

    for {type, range} <- ranges do
      reals = for power <- range, x <- [1.0, 0.69993, 0.7001, 0.9995], do: x * 2.0 ** power

      values =
        Enum.flat_map(
          reals ++ [257, 1025, 4097, 5000] ++ if(type == {:f, 8}, do: [65_519, 65_519.9], else: []),
          &[&1, -&1]
        )

      tensors = fn values, backend -> Enum.map(values, &Nx.tensor(&1, type: type, backend: backend)) end

      expected = Enum.map(tensors.(values, Nx.BinaryBackend), &Nx.to_binary/1)
      assert Enum.map(tensors.(values, VulkanoBackend), &Nx.to_binary/1) == expected, inspect(type)
      compiled = Nx.Defn.jit(fn -> List.to_tuple(Enum.map(values, &Nx.tensor(&1, type: type))) end, compiler: Nx.Vulkan)
      assert Enum.map(Tuple.to_list(compiled.()), &Nx.to_binary/1) == expected, "#{inspect(type)}, compiled"
    end

    assert Nx.to_number(Nx.tensor(1.0e39, type: :bf16, backend: VulkanoBackend)) == :infinity
  end

  test "integer constants wrap to their type" do
    for type <- integers(), value <- [-1, 255, 256, -129, 2 ** 31, 2 ** 63, 2 ** 64 - 1, -(2 ** 63), 2 ** 70 + 3] do
      assert_same([], fn -> Nx.tensor(value, type: type) end)
    end
  end

  test "iota and eye" do
    for type <- types() do
      limit = if type in floats(8), do: {2, 3}, else: {4, 6}
      assert_same([], fn -> Nx.iota(limit, type: type) end)
      assert_same([], fn -> {Nx.iota({2, 3, 4}, type: type, axis: 1), Nx.iota({5, 3}, type: type, axis: -1)} end)
      assert_same([], fn -> {Nx.eye(3, type: type), Nx.eye({2, 3, 5}, type: type)} end)
    end

    assert_same([], fn -> {Nx.iota({}), Nx.iota({70_001}), Nx.iota({1, 1})} end)
  end

  test "casts between all types" do
    for from <- types(), to <- types() ++ sub_byte() do
      # Values that every type holds; Nx.BinaryBackend raises or differs by version for those out of range.
      {low, high} = if match?({:u, _}, from) or match?({:u, _}, to), do: {0, 1}, else: {-1, 1}
      assert_same([random({17}, from, low, high)], &Nx.as_type(&1, to), ulp: 1)
    end
  end

  test "casts of floats clamp to the range of integers" do
    # Nx.BinaryBackend does so for infinities, and leaves finite numbers out of range to wrap.
    values = [300.5, -300.5, 1.0e10, -1.0e10, 1.0e30, -1.0e30, :infinity, :neg_infinity, :nan, 0.75, -0.75, 1.5]

    for {class, size} = to <- integers(), from <- [:f32, :f64] do
      {low, high} = if class == :s, do: {-(2 ** (size - 1)), 2 ** (size - 1) - 1}, else: {0, 2 ** size - 1}

      expected =
        Enum.map(values, fn
          :nan -> 0
          :infinity -> high
          :neg_infinity -> low
          x -> x |> trunc() |> max(low) |> min(high)
        end)

      tensor = Nx.tensor(values, type: from, backend: VulkanoBackend)
      assert Nx.to_flat_list(Nx.as_type(tensor, to)) == expected
    end
  end

  test "casts of integers wrap" do
    for from <- integers(), to <- integers(), do: assert_same([random_bits({64}, from)], &Nx.as_type(&1, to))
  end

  test "bitcast keeps the bits" do
    for {from, to} <- [f32: :s32, f32: :u32, f64: :s64, u8: :s8, bf16: :u16, f16: :s16, f8: :u8] do
      tensor = random_bits({9}, Nx.Type.normalize!(from))
      assert_same([tensor], &Nx.bitcast(&1, to))
      assert_same([tensor], &(&1 |> Nx.reverse() |> Nx.bitcast(to)))
    end
  end
end
