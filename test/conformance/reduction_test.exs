defmodule Nx.Vulkan.Conformance.ReductionTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance

  @moduletag :device
  @moduletag timeout: 600_000

  @axes [nil, [0], [1], [2], [0, 1], [0, 2], [1, 2]]

  # Every type over rows and over columns, and every choice of axes in one type of each size.
  defp types_and_axes(types) do
    for(type <- types, axes <- [[2], [0, 1]], do: {type, axes}) ++
      for type <- [u: 8, f: 32, s: 64], axes <- @axes, do: {type, axes}
  end

  # Terms are added in another order, so the error grows with the sum of their magnitudes: `absolute` is for 60 terms of
  # at most 4 in types as coarse as they come.
  defp absolute({:f, 64}), do: 1.0e-12
  defp absolute({:c, 128}), do: 1.0e-12
  defp absolute({:f, 32}), do: 1.0e-4
  defp absolute({:c, 64}), do: 1.0e-4
  defp absolute(_), do: 0.0

  test "sum" do
    for {type, axes} <- types_and_axes(types()), keep <- [false, true] do
      # Small whole numbers are exact in every float type that the sum fits.
      {low, high} = if type in floats(16), do: {0, 1}, else: {-4, 4}
      tensor = random({3, 4, 5}, type, low, high)
      tensor = if absolute(type) == 0.0, do: Nx.as_type(Nx.as_type(tensor, :s32), type), else: tensor
      assert_same([tensor], &Nx.sum(&1, axes: axes, keep_axes: keep), absolute: absolute(type))
    end
  end

  test "product" do
    for {type, axes} <- types_and_axes(integers() ++ [f: 32, f: 64, c: 64]) do
      assert_same([random({2, 3, 2}, type, 1, 3)], &Nx.product(&1, axes: axes), ulp: 32)
    end
  end

  test "reduce_max and reduce_min" do
    for {type, axes} <- types_and_axes(reals()), op <- [:reduce_max, :reduce_min] do
      assert_same([random({3, 4, 5}, type)], &apply(Nx, op, [&1, [axes: axes]]))
    end

    for type <- [:f32, :f64, :bf16], value <- [:nan, :infinity, :neg_infinity], op <- [:reduce_max, :reduce_min] do
      assert_same([Nx.tensor([[1, 2], [3, 4]], type: type)], fn t ->
        t = Nx.put_slice(t, [1, 0], Nx.tensor([[value]], type: type))
        apply(Nx, op, [t, [axes: [1]]])
      end)
    end
  end

  test "all and any" do
    for {type, axes} <- types_and_axes(types()) do
      tensor = random({3, 4, 2}, type, 0, 1)
      tensor = if match?({:c, _}, type), do: tensor, else: Nx.as_type(Nx.round(tensor), type)
      assert_same([tensor], &{Nx.all(&1, axes: axes), Nx.any(&1, axes: axes, keep_axes: true)})
    end
  end

  test "argmax and argmin" do
    every = for type <- reals(), tie <- [:low, :high], do: {type, 2, tie}
    axes = for type <- [u: 8, f: 32, s: 64], axis <- [nil, 0, 1], tie <- [:low, :high], do: {type, axis, tie}

    for {type, axis, tie} <- every ++ axes, op <- [:argmax, :argmin] do
      tensor = random({3, 4, 5}, type, 0, 3)
      assert_same([tensor], &apply(Nx, op, [&1, [axis: axis, tie_break: tie, keep_axis: axis == 1]]))
    end

    assert_same([random({9, 2}, {:f, 32})], &Nx.argmax(&1, axis: 0, type: :u8))
  end

  test "reductions of views and of sizes around the limits of workgroups" do
    for shape <- [{1}, {3}, {255}, {256}, {257}, {4097}, {3, 257}, {257, 3}, {65, 66}, {2, 1030}] do
      tensor = random(shape, {:s, 32})

      assert_same([tensor], fn t ->
        {Nx.sum(t), Nx.sum(t, axes: [-1]), Nx.reduce_max(t, axes: [0]), Nx.argmin(Nx.reverse(t), axis: -1)}
      end)
    end

    assert_same([random({6, 7}, {:s, 32})], fn t ->
      {
        Nx.sum(Nx.transpose(t), axes: [0]),
        Nx.sum(t[[1..4, 2..5]], axes: [1]),
        Nx.sum(Nx.broadcast(t[0], {5, 7}), axes: [0]),
        Nx.mean(Nx.reverse(t), axes: [0])
      }
    end)
  end

  test "a scalar reduces to itself" do
    assert_same([Nx.tensor(3.5)], &{Nx.sum(&1), Nx.reduce_max(&1), Nx.argmax(&1), Nx.all(&1)})
  end

  test "a sum of many terms is as exact as its type" do
    tensor = random({100_000}, {:f, 32}, 0, 1)
    [exact] = on(Nx.BinaryBackend, [tensor], &Nx.sum(Nx.as_type(&1, :f64)))
    [sum] = on(Nx.Vulkan.VulkanoBackend, [tensor], &Nx.sum/1)
    # A tree adds 100,000 terms in 17 levels, each within half a unit.
    assert_in_delta Nx.to_number(sum), Nx.to_number(exact), Nx.to_number(exact) * 17 * 2.0 ** -24
  end
end
