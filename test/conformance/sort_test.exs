defmodule Nx.Vulkan.Conformance.SortTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance

  @moduletag :device
  @moduletag timeout: 600_000

  @directions [:asc, :desc]

  defp both(tensor, opts), do: {Nx.sort(tensor, opts), Nx.argsort(tensor, [stable: true] ++ opts)}

  test "all types, axes and directions" do
    for type <- reals(), axis <- 0..2, direction <- @directions do
      assert_same([random({4, 5, 6}, type, -3, 3)], &both(&1, axis: axis, direction: direction))
    end
  end

  test "all bits of the narrow types and of integers" do
    # Nx.BinaryBackend takes the denormals of f8 for other numbers.
    for type <- integers() ++ [bf: 16, f: 16], direction <- @directions do
      assert_same([random_bits({3, 400}, type)], &both(&1, axis: 1, direction: direction))
    end
  end

  test "NaN, infinities and zeros of both signs" do
    values = [:nan, 0.0, -0.0, :infinity, 1.5, :neg_infinity, -0.0, 0.0, :nan, -2]

    for type <- floats() -- [f8_e4m3fn: 8], direction <- @directions do
      assert_same([Nx.tensor(values, type: type)], &both(&1, direction: direction))
      assert_same([Nx.tensor([values, Enum.reverse(values)], type: type)], &Nx.top_k(&1, k: 7))
    end
  end

  test "lengths of rows" do
    for {shape, axis} <- [
          {{1}, 0},
          {{2}, 0},
          {{1000, 3}, 1},
          {{5, 2048}, 1},
          {{2049}, 0},
          {{2, 4100}, 1},
          {{2100, 2}, 0}
        ] do
      for direction <- @directions, type <- [{:f, 32}, {:s, 64}] do
        assert_same([random(shape, type)], &both(&1, axis: axis, direction: direction))
      end
    end
  end

  test "views, names, vectorized axes, types of places" do
    assert_same([random({4, 5, 6}, {:s, 16})], fn t ->
      {
        Nx.sort(Nx.transpose(t), axis: 1),
        Nx.argsort(Nx.reverse(t), axis: 2, stable: true),
        Nx.sort(Nx.broadcast(t[0], {3, 5, 6}), axis: 0),
        Nx.sort(Nx.rename(t, [:x, :y, :z]), axis: :y, direction: :desc),
        t |> Nx.vectorize(:x) |> Nx.argsort(axis: 1, stable: true) |> Nx.devectorize(),
        Nx.argsort(t, axis: 1, type: :u8, stable: true),
        Nx.argsort(t, axis: 0, type: :s64, stable: true),
        Nx.argsort(t, axis: 0, type: :f32, stable: true)
      }
    end)
  end

  test "what is made of sorts" do
    for shape <- [{7}, {3, 8}], type <- [{:f, 32}, {:s, 32}, {:u, 8}] do
      assert_same([random(shape, type, 0, 9)], fn t ->
        {Nx.median(t), Nx.mode(t), Nx.median(t, axis: -1), Nx.mode(t, axis: 0)}
      end)
    end
  end

  test "top_k" do
    for type <- reals(), k <- [1, 3, 20] do
      assert_same([random({3, 20}, type, -3, 3)], &Nx.top_k(&1, k: k))
    end

    for {n, k} <- [{2048, 2048}, {2049, 5}, {5000, 4999}] do
      assert_same([random({n}, {:f, 32})], &Nx.top_k(&1, k: k))
    end

    assert_raise ArgumentError, fn -> Nx.top_k(Nx.tensor([Complex.new(1, 2)], backend: Nx.Vulkan.VulkanoBackend)) end
  end
end
