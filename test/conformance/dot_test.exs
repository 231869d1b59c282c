defmodule Nx.Vulkan.Conformance.DotTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance

  @moduletag :device
  @moduletag timeout: 600_000

  # Sums of up to 40 products of at most 16, added in another order.
  defp absolute({:f, 64}), do: 1.0e-12
  defp absolute({:c, 128}), do: 1.0e-12
  defp absolute(_), do: 1.0e-3

  # Whole numbers whose products and sums are exact also in the coarse types.
  defp values(shape, type) do
    case type do
      {_, 8} -> Nx.as_type(random(shape, {:u, 8}, 0, 1), type)
      {_, 16} -> Nx.as_type(random(shape, {:u, 8}, 0, 3), type)
      _ -> random(shape, type, -4, 4)
    end
  end

  test "matrices of every type" do
    for type <- types() do
      assert_same([values({5, 7}, type), values({7, 3}, type)], &Nx.dot/2, absolute: absolute(type))
    end
  end

  test "vectors and scalars" do
    for type <- [s: 32, f: 64], {a, b} <- [{{7}, {7}}, {{5, 7}, {7}}, {{7}, {7, 3}}, {{}, {2, 3}}] do
      assert_same([values(a, type), values(b, type)], &Nx.dot/2, absolute: absolute(type))
    end
  end

  test "any contraction and batch axes" do
    cases = [
      {{3, 4, 5}, [2], [], {5, 6}, [0], []},
      {{3, 4, 5}, [0], [], {3, 6}, [0], []},
      {{3, 4, 5}, [0, 2], [], {5, 3, 2}, [1, 0], []},
      {{3, 4, 5}, [1], [0], {3, 4, 6}, [1], [0]},
      {{3, 4, 5}, [2], [0, 1], {3, 4, 5}, [2], [0, 1]},
      {{2, 3, 4, 5}, [3], [0, 1], {2, 3, 5, 6}, [2], [0, 1]},
      {{3, 4}, [], [], {2, 2}, [], []},
      {{3, 4}, [0, 1], [], {3, 4}, [0, 1], []}
    ]

    for {a, ca, ba, b, cb, bb} <- cases, type <- [s: 32, f: 32, f: 64, c: 64] do
      tensors = [values(a, type), values(b, type)]
      assert_same(tensors, &Nx.dot(&1, ca, ba, &2, cb, bb), absolute: absolute(type))
    end
  end

  test "mixed types" do
    for {a, b} <- [{{:u, 8}, {:f, 32}}, {{:s, 8}, {:s, 64}}, {{:f, 32}, {:f, 64}}, {{:s, 32}, {:c, 64}}] do
      assert_same([values({4, 6}, a), values({6, 3}, b)], &Nx.dot/2, absolute: 1.0e-3)
    end
  end

  test "views" do
    assert_same([random({6, 5}, {:s, 32}), random({6, 4}, {:s, 32})], fn a, b ->
      {
        Nx.dot(Nx.transpose(a), b),
        Nx.dot(a[[1..3, 0..4//2]], Nx.slice(b, [2, 0], [3, 4])),
        Nx.dot(Nx.broadcast(a[0], {2, 5}), Nx.reverse(Nx.slice(b, [0, 0], [5, 4]))),
        Nx.dot(Nx.reshape(Nx.transpose(a), {5, 2, 3}), [2], Nx.reshape(b, {3, 8}), [0])
      }
    end)
  end

  test "sizes around the limits of tiles" do
    for {m, k, n} <- [{1, 1, 1}, {1, 300, 1}, {16, 16, 16}, {17, 33, 65}, {64, 64, 64}, {65, 129, 63}, {128, 3, 130}] do
      assert_same([random({m, k}, {:s, 32}, -9, 9), random({k, n}, {:s, 32}, -9, 9)], &Nx.dot/2)
      assert_same([random({m, k}, {:f, 32}, -1, 1), random({k, n}, {:f, 32}, -1, 1)], &Nx.dot/2, absolute: 1.0e-4)
    end
  end
end
