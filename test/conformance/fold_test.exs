defmodule Nx.Vulkan.Conformance.FoldTest do
  use ExUnit.Case, async: true

  import Nx.Defn
  import Nx.Vulkan.Conformance

  @moduletag :device
  @moduletag timeout: 600_000

  defn clamped(x, acc) do
    cond do
      x > acc -> acc + 1
      x < -acc -> acc - x
      true -> acc
    end
  end

  defn(folded(t, start), do: Nx.reduce(t, start, [axes: [0]], fn x, acc -> Nx.subtract(x, acc) end))

  defn endless(x, acc) do
    while {acc, x}, acc < x do
      {acc + 1, x}
    end
    |> elem(0)
  end

  # Neither order nor grouping is free.
  defp difference(x, acc), do: Nx.subtract(x, acc)

  test "every type along every axis" do
    for type <- types() do
      # Small whole numbers are exact in the coarse types.
      coarse = type in [f: 8, f8_e4m3fn: 8, bf: 16, f: 16]
      tensor = if coarse, do: Nx.as_type(random({3, 4, 2}, {:s, 8}, -1, 1), type), else: random({3, 4, 2}, type, -5, 5)
      start = Nx.tensor(1, type: type, backend: Nx.BinaryBackend)

      for axes <- if(coarse, do: [[0], [1]], else: [nil, [0], [1], [2, 0]]) do
        assert_same([tensor, start], fn t, start ->
          Nx.reduce(t, start, [axes: axes, keep_axes: axes == [1]], &difference/2)
        end)
      end
    end
  end

  test "functions of other types than the tensor's" do
    assert_same([random({5, 3}, {:s, 32})], fn t ->
      Nx.reduce(t, 0.5, [axes: [0]], fn x, acc -> Nx.add(Nx.multiply(Nx.quotient(x, 3), 0.25), acc) end)
    end)

    assert_same([random({5, 3}, {:f, 32})], fn t ->
      Nx.reduce(t, Nx.tensor(0, type: :u8), [type: :u8, axes: [1]], fn x, acc ->
        Nx.add(Nx.as_type(Nx.greater(x, 0), :u8), acc)
      end)
    end)
  end

  test "captured scalars and constants" do
    factor = Nx.tensor(0.5, backend: Nx.BinaryBackend)

    assert_same([random({4, 6}, {:f, 32}), Nx.tensor(1.25)], fn t, captured ->
      Nx.reduce(t, 0, [axes: [1]], fn x, acc ->
        x |> Nx.multiply(factor) |> Nx.add(captured) |> Nx.subtract(Nx.multiply(acc, Nx.tensor(0.75)))
      end)
    end)

    assert_same([random({4}, {:s, 32})], &Nx.reduce(&1, 0, fn _, _ -> Nx.tensor(7) end))
    assert_same([random({4}, {:s, 32})], &Nx.reduce(&1, 0, fn _, _ -> 7 end))
    assert_same([random({4}, {:s, 32})], &Nx.reduce(&1, 3, fn _, acc -> acc end))
  end

  test "conditions" do
    assert_same([random({40}, {:s, 32})], &Nx.reduce(&1, 1, fn x, acc -> clamped(x, acc) end))

    assert_same([random({40}, {:f, 32})], fn t ->
      Nx.reduce(t, 0.0, fn x, acc -> Nx.select(Nx.logical_and(Nx.greater(x, acc), Nx.less(x, 50)), x, acc) end)
    end)
  end

  test "inside defn" do
    assert_same([random({4, 5}, {:s, 64}), Nx.tensor(2, type: :s64)], &folded/2)
  end

  test "windows" do
    for shape <- [{7}, {4, 5}, {2, 3, 4}], padding <- [:valid, :same, nil] do
      rank = tuple_size(shape)
      padding = padding || List.duplicate({1, -1}, rank)
      window = List.to_tuple(List.duplicate(2, rank))
      opts = [padding: padding, strides: for(i <- 1..rank, do: rem(i, 2) + 1)]

      assert_same(
        [random(shape, {:s, 32})],
        &Nx.window_reduce(&1, 3, window, opts, fn x, acc -> difference(x, acc) end)
      )

      dilated = [window_dilations: List.duplicate(2, rank), padding: List.duplicate({1, 1}, rank)]

      assert_same(
        [random(shape, {:f, 32})],
        &Nx.window_reduce(&1, 0.5, window, dilated, fn x, acc -> difference(x, acc) end),
        ulp: 8
      )
    end
  end

  test "many results, and a long fold" do
    assert_same([random({3, 70_000}, {:s, 32})], &Nx.reduce(&1, 0, [axes: [0]], fn x, acc -> difference(x, acc) end))
    assert_same([random({20_000}, {:s, 32})], &Nx.reduce(&1, 0, fn x, acc -> difference(x, acc) end))
  end

  test "what has no scalar form raises" do
    Nx.default_backend(Nx.Vulkan.VulkanoBackend)
    tensor = Nx.tensor([1, 2, 3])

    refused = fn fun ->
      error = assert_raise(Nx.Vulkan.Error, fn -> Nx.reduce(tensor, 0, fun) end)
      assert {error.kind, error.op} == {:unsupported, :reduce}
      error.message
    end

    assert refused.(fn x, _ -> Nx.add(tensor, x) |> Nx.sum() end) =~ "no scalars"
    assert refused.(fn x, acc -> Nx.add(Nx.to_number(x), acc) end) =~ "reads a value"
    assert refused.(fn x, acc -> Nx.reduce(Nx.reshape(x, {1}), acc, &Nx.add/2) end) =~ "uses reduce"
    assert refused.(fn x, acc -> endless(x, acc) end) =~ "branches"
    assert refused.(fn x, acc -> Nx.argmax(Nx.reshape(x, {1})) |> Nx.add(acc) end) =~ "uses argmax"

    # Nothing of it stays behind.
    assert_same([tensor], &Nx.reduce(&1, 0, fn x, acc -> Nx.add(x, acc) end))
  end
end
