defmodule Nx.Vulkan.Conformance.ElementwiseTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance
  alias Nx.Vulkan.Conformance.OpTable
  alias Nx.Vulkan.Ops

  @moduletag :device
  @moduletag timeout: 600_000

  # Units in the last place allowed where two are not enough, with the reason.
  @loose %{
    # It computes exp(x) - 1 and log(1 + x), which loses digits near zero.
    {:expm1, {:f, 64}} => 16,
    {:log1p, {:f, 64}} => 16
  }

  for {op, low, high, complex?} <- OpTable.unary() do
    test "#{op}" do
      for type <- reals(), values_between?(type, unquote(low), unquote(high)) do
        ulp = Map.get(@loose, {unquote(op), type}, 2)
        assert_same([random({41}, type, unquote(low), unquote(high))], &call(unquote(op), [&1]), ulp: ulp)
      end
    end

    if complex? do
      test "#{op} of complex numbers" do
        for type <- complexes() do
          assert_same([random({41}, type, 0.2, 1.5)], &apply(Nx, unquote(op), [&1]), ulp: 16)
        end
      end
    end
  end

  test "ops on the bits of integers" do
    for type <- integers(), {op, 1, :integer} <- Ops.Table.elementwise() do
      assert_same([random_bits({41}, type)], &apply(Nx, op, [&1]))
    end
  end

  test "parts of complex numbers" do
    for type <- complexes(), op <- [:abs | Ops.elementwise(:complex)] do
      assert_same([random({41}, type)], &apply(Nx, op, [&1]))
    end
  end

  test "each op of the table is among those with arguments, or in a test of its own" do
    with_arguments = for row <- OpTable.unary() ++ OpTable.binary(), do: elem(row, 0)
    own = [:as_type, :select, :clip]

    others =
      for {op, 1, kind} <- Ops.Table.elementwise(), kind in [:integer, :complex], op not in with_arguments, do: op

    assert Enum.sort(Enum.uniq(with_arguments ++ others ++ own)) == Enum.sort(Ops.elementwise())
  end

  @mixed [
    {{:u, 8}, {:s, 16}},
    {{:s, 64}, {:f, 32}},
    {{:bf, 16}, {:f, 16}},
    {{:s, 8}, {:u, 64}},
    {{:f, 8}, {:s, 8}},
    {{:u, 32}, {:s, 32}},
    {{:f, 64}, {:u, 16}}
  ]

  for {op, types, {l0, l1}, {r0, r1}} <- OpTable.binary() do
    test "#{op}" do
      types = apply(Nx.Vulkan.Conformance, unquote(types), []) -- complexes()

      for {a, b} <- Enum.map(types, &{&1, &1}) ++ @mixed, a in types, b in types do
        # Whole numbers that also an operand cast to the result's type of 8 bits holds.
        most = if a == b, do: 100, else: 7

        tensors = [
          random({41}, a, max(unquote(l0), -most), min(unquote(l1), most)),
          random({41}, b, max(unquote(r0), -most), min(unquote(r1), most))
        ]

        assert_same(tensors, &apply(Nx, unquote(op), [&1, &2]))
      end
    end

    if types == :types do
      test "#{op} of complex numbers" do
        for {a, b} <- [{{:c, 64}, {:c, 64}}, {{:c, 128}, {:c, 128}}, {{:f, 32}, {:c, 64}}, {{:c, 128}, {:s, 32}}] do
          tensors = [random({41}, a, unquote(l0), unquote(l1)), random({41}, b, unquote(r0), unquote(r1))]
          assert_same(tensors, &apply(Nx, unquote(op), [&1, &2]), ulp: 16)
        end
      end
    end
  end

  test "integers wrap" do
    for type <- integers(), op <- [:add, :subtract, :multiply, :min, :max, :bitwise_xor, :equal, :less] do
      assert_same([random_bits({64}, type), random_bits({64}, type)], &apply(Nx, op, [&1, &2]))
    end
  end

  test "sub-byte integers wrap" do
    for {class, bits} = type <- sub_byte(), op <- [:add, :subtract, :multiply, :min, :max] do
      all = Enum.to_list(0..(2 ** bits - 1))
      shift = if class == :s, do: 2 ** (bits - 1), else: 0
      values = for a <- all, b <- all, do: {a - shift, b - shift}
      {a, b} = Enum.unzip(values)

      place = fn list, type, backend -> Nx.tensor(list, type: type, backend: backend) end
      on_device = &place.(&1, type, Nx.Vulkan.VulkanoBackend)
      wide = &place.(&1, {class, 8}, Nx.BinaryBackend)
      actual = apply(Nx, op, [on_device.(a), on_device.(b)])
      assert actual.type == type

      wrapped =
        for x <- Nx.to_flat_list(apply(Nx, op, [wide.(a), wide.(b)])) do
          <<y::unsigned-size(^bits)>> = <<x::size(bits)>>
          if class == :s and y >= 2 ** (bits - 1), do: y - 2 ** bits, else: y
        end

      assert Nx.to_flat_list(actual) == wrapped
    end
  end

  test "NaN, infinities and signed zeros" do
    special = [:nan, :infinity, :neg_infinity, 0.0, -0.0, 1.0, -1.0, 2.5]
    pairs = for a <- special, b <- special, do: {a, b}
    {a, b} = Enum.unzip(pairs)

    for type <- [:f32, :f64, :f16, :bf16], op <- [:add, :subtract, :multiply, :min, :max] ++ comparisons() do
      tensors = [Nx.tensor(a, type: type), Nx.tensor(b, type: type)]
      assert_same(tensors, &apply(Nx, op, [&1, &2]))
    end

    for type <- [:f32, :f64], op <- [:negate, :abs, :sqrt, :exp, :is_nan, :is_infinity] do
      finite_or_positive = if op == :sqrt, do: [:nan, :infinity, 0.0, 1.0], else: special
      assert_same([Nx.tensor(finite_or_positive, type: type)], &apply(Nx, op, [&1]))
    end
  end

  defp comparisons, do: [:equal, :not_equal, :greater, :less, :greater_equal, :less_equal]

  test "select and clip" do
    for type <- types(), pred <- [{:u, 8}, {:f, 32}] do
      tensors = [random({41}, pred, 0, 1) |> Nx.round() |> Nx.as_type(pred), random({41}, type), random({41}, type)]
      assert_same(tensors, &Nx.select/3)
    end

    assert_same([random({3, 4}, {:f, 32}), random({4}, {:s, 32})], fn a, b -> Nx.select(Nx.greater(a, 0), a, b) end)
    assert_same([random({3, 4}, {:f, 32})], fn a -> Nx.select(1, a, 0) end)
    for type <- reals(), do: assert_same([random({41}, type)], &Nx.clip(&1, 2, 9))
  end

  test "operands of every layout" do
    views = [
      fn t -> t end,
      &Nx.transpose/1,
      &Nx.reverse(&1, axes: [0]),
      & &1[[1..3, 1..3]],
      &Nx.slice(&1, [0, 1], [6, 5], strides: [2, 1]),
      &Nx.broadcast(Nx.slice(&1, [0, 2], [6, 1]), {6, 4}),
      &Nx.reshape(Nx.transpose(&1), {3, 12}),
      &Nx.squeeze(Nx.slice(&1, [2, 0], [1, 6])),
      & &1[2][3]
    ]

    for type <- [{:f, 32}, {:s, 64}, {:u, 8}, {:f, 16}], {view, i} <- Enum.with_index(views) do
      a = random({6, 6}, type)
      assert_same([a], fn a -> Nx.add(view.(a), view.(a)) end)
      assert_same([a], fn a -> Nx.add(view.(a), i) end)
      assert_same([a], fn a -> Nx.multiply(2, Nx.negate(view.(a))) end)
    end
  end

  test "operands that broadcast against each other" do
    shapes = [{}, {1}, {4}, {3, 1}, {1, 4}, {3, 4}, {2, 1, 4}, {2, 3, 1}, {5, 1, 1, 1}]

    for a <- shapes, b <- shapes do
      assert_same([random(a, {:f, 32}), random(b, {:f, 32})], &Nx.subtract/2)
      assert_same([random(a, {:s, 16}), random(b, {:s, 16})], &Nx.max/2)
    end
  end

  test "sizes around the limits of vectors, workgroups and dispatches" do
    for size <- [1, 2, 3, 4, 5, 63, 64, 65, 255, 256, 257, 1023, 1025, 65_537, 300_001] do
      bytes = :rand.bytes(size * 4)
      tensor = from_bits(bytes, {:s, 32})
      copy = Nx.backend_copy(tensor, Nx.Vulkan.VulkanoBackend)
      expected = for <<x::32-signed-native <- bytes>>, into: <<>>, do: <<x + 1::32-native>>
      assert Nx.to_binary(Nx.add(copy, 1)) == expected
    end
  end
end
