defmodule Nx.Vulkan.Conformance.ScanTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance

  @moduletag :device
  @moduletag timeout: 600_000

  @ops [:cumulative_sum, :cumulative_product, :cumulative_min, :cumulative_max]

  # Whole numbers whose sums and products every type holds, so that the order of the terms does not show.
  defp whole(shape, type, op) do
    {low, high} = if op == :cumulative_product, do: {1, 2}, else: {-3, 3}
    shape |> random({:s, 32}, low, high) |> Nx.max(if match?({:u, _}, type), do: 0, else: -3) |> Nx.as_type(type)
  end

  test "all types, axes and directions" do
    for op <- @ops,
        type <- types(),
        axis <- 0..2,
        not (match?({:c, _}, type) and op in [:cumulative_min, :cumulative_max]) do
      tensor = whole({2, 3, 4}, type, op)
      assert_same([tensor], &{apply(Nx, op, [&1, [axis: axis]]), apply(Nx, op, [&1, [axis: axis, reverse: true]])})
    end
  end

  test "integers wrap" do
    for type <- integers(), op <- [:cumulative_sum, :cumulative_product] do
      assert_same([random_bits({3, 50}, type)], &apply(Nx, op, [&1, [axis: 1]]))
    end
  end

  test "lengths around those of one step" do
    for n <- [1, 2, 255, 2047, 2048, 2049, 5000], reverse <- [false, true] do
      assert_same([random({n, 2}, {:s, 64})], &Nx.cumulative_sum(&1, axis: 0, reverse: reverse))
      assert_same([random({2, n}, {:f, 32})], &Nx.cumulative_max(&1, axis: 1, reverse: reverse))
    end
  end

  test "views, names and vectorized axes" do
    assert_same([random({4, 5, 6}, {:s, 32})], fn t ->
      {
        Nx.cumulative_sum(Nx.transpose(t), axis: 1),
        Nx.cumulative_min(Nx.reverse(t), axis: 2),
        Nx.cumulative_max(Nx.broadcast(t[0], {3, 5, 6}), axis: 0),
        Nx.cumulative_sum(Nx.rename(t, [:x, :y, :z]), axis: :y),
        t |> Nx.vectorize(:x) |> Nx.cumulative_product(axis: 1) |> Nx.devectorize()
      }
    end)
  end

  test "NaN and infinities" do
    for type <- [{:f, 32}, {:f, 64}, {:bf, 16}, {:f, 16}], op <- @ops do
      tensor = Nx.tensor([[1, :nan, 2, 3], [0.5, :infinity, 1, :neg_infinity], [-0.0, 0.0, -1, 1]], type: type)
      assert_same([tensor], &{apply(Nx, op, [&1, [axis: 1]]), apply(Nx, op, [&1, [axis: 0, reverse: true]])})
    end
  end

  test "complex numbers have no smallest and no largest" do
    for op <- [:cumulative_min, :cumulative_max] do
      complex = Nx.tensor([Complex.new(1, 2), 3], backend: Nx.Vulkan.VulkanoBackend)
      assert_raise ArgumentError, ~r/complex/, fn -> apply(Nx, op, [complex]) end
    end
  end
end
