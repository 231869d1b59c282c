defmodule Nx.Vulkan.Conformance.RandomTest do
  # Draws of Nx.Random are those of Nx.BinaryBackend, to the bit. Two kinds of draws can't be: f64 ones that go through
  # a logarithm, whose last bit depends on the C library under Nx.BinaryBackend, and bf16 ones that round, which
  # Nx.BinaryBackend cuts off.
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance

  @moduletag :device
  @n 3001

  defp seed, do: :rand.uniform(2 ** 64) - 1

  defp shape, do: Enum.random([{@n}, {61, 53}, {7, 1, 431}, {1, 5, 11, 57}])

  # `fun` gets a key, and its result is a tensor or a container of tensors.
  defp assert_same_bits(fun) do
    seed = seed()
    draw = fn backend -> on(backend, [], fn -> fun.(Nx.Random.key(seed)) end) end

    for {expected, actual} <- Enum.zip(draw.(Nx.BinaryBackend), draw.(Nx.Vulkan.VulkanoBackend)) do
      assert actual.type == expected.type and actual.shape == expected.shape
      bits = to_bits(expected)
      different = Enum.count(Enum.zip(bits, to_bits(actual)), fn {e, a} -> e != a end)
      assert different == 0, "#{different} of #{length(bits)} draws differ with the seed #{seed}"
    end
  end

  defp to_bits(%{type: {:c, size}} = tensor), do: words(tensor, div(size, 2))
  defp to_bits(%{type: {_, size}} = tensor), do: words(tensor, size)
  defp words(tensor, size), do: for(<<w::signed-native-size(size) <- Nx.to_binary(tensor)>>, do: w)

  test "keys" do
    for seed <- [0, 1, -1, 2 ** 63, 2 ** 64 - 1, -(2 ** 63)] do
      assert_same_bits(fn _ -> Nx.Random.key(rem(seed, 2 ** 63)) end)
    end

    assert_same_bits(fn key -> [key, Nx.Random.split(key), Nx.Random.split(key, parts: 57)] |> List.to_tuple() end)
    assert_same_bits(fn key -> Nx.Random.fold_in(key, Nx.iota({9, 13}, type: :u32)) end)
    assert_same_bits(fn key -> Nx.Random.fold_in(key, 2 ** 40 + 7) end)
  end

  for type <- [f: 32, f: 64, f: 16, bf: 16, c: 64, c: 128] do
    test "uniform #{Nx.Type.to_string(type)}" do
      shape = shape()
      assert_same_bits(&Nx.Random.uniform(&1, shape: shape, type: unquote(type)))
    end
  end

  for type <- [f: 32, f: 64, f: 16] do
    test "uniform #{Nx.Type.to_string(type)} between bounds" do
      {low, high} = {-10 * :rand.uniform(), 10 * :rand.uniform()}
      shape = shape()
      assert_same_bits(&Nx.Random.uniform(&1, low, high, shape: shape, type: unquote(type)))
    end
  end

  for type <- [f: 32, f: 16, c: 64] do
    test "normal #{Nx.Type.to_string(type)}" do
      shape = shape()
      assert_same_bits(&Nx.Random.normal(&1, shape: shape, type: unquote(type)))
      assert_same_bits(&Nx.Random.normal(&1, 3.7, 0.3, shape: shape, type: unquote(type)))
    end
  end

  test "bf16 draws are finite, though they can be rounded" do
    {seed, shape} = {seed(), shape()}

    [draws] =
      on(Nx.Vulkan.VulkanoBackend, [], fn ->
        Nx.Random.normal_split(Nx.Random.key(seed), 0, 1, shape: shape, type: :bf16)
      end)

    assert Nx.to_number(Nx.reduce_max(Nx.abs(draws))) < 4, "seed #{seed}"
  end

  test "f64 by way of logarithms" do
    {seed, shape} = {seed(), shape()}
    assert_same([], fn -> Nx.Random.normal(Nx.Random.key(seed), shape: shape, type: :f64) end, ulp: 4)
    assert_same([], fn -> Nx.Random.normal(Nx.Random.key(seed), shape: shape, type: :c128) end, ulp: 4)
    # the logarithm of a number near 1 keeps the absolute error of that number
    assert_same([], fn -> Nx.Random.gumbel(Nx.Random.key(seed), shape: shape, type: {:f, 64}) end,
      ulp: 4,
      absolute: 1.0e-15
    )
  end

  for type <- [f: 32, f: 16] do
    test "gumbel #{Nx.Type.to_string(type)}" do
      shape = shape()
      assert_same_bits(&Nx.Random.gumbel(&1, shape: shape, type: unquote(type)))
    end
  end

  test "randint" do
    for type <- integers() do
      {low, high} = {Enum.random(0..50), Enum.random(51..127)}
      shape = shape()
      assert_same_bits(&Nx.Random.randint(&1, low, high, shape: shape, type: type))
    end

    assert_same_bits(&Nx.Random.randint(&1, -(2 ** 31), 2 ** 31 - 1, shape: {@n}, type: :s32))
    wide = fn key -> Nx.Random.randint(key, Nx.s64(-(2 ** 60)), Nx.s64(2 ** 61), shape: {@n}, type: :s64) end
    assert_same_bits(wide)
  end

  test "choice with replacement" do
    assert_same_bits(&Nx.Random.choice(&1, Nx.iota({101}), samples: 500))
    assert_same_bits(&Nx.Random.choice(&1, Nx.iota({7, 31}), samples: 50, axis: 1))
    weights = random({101}, {:f, 32}, 0, 1)
    p = Nx.divide(weights, Nx.sum(weights))
    assert_same_bits(&Nx.Random.choice(&1, Nx.iota({101}), p, samples: 500))
  end

  test "choice without replacement" do
    assert_same_bits(&Nx.Random.choice(&1, Nx.iota({101}), samples: 60, replace: false))
    assert_same_bits(&Nx.Random.choice(&1, Nx.iota({5, 31}, type: :f32), samples: 9, replace: false, axis: 1))
    weights = random({101}, {:f, 32}, 0.1, 1)
    p = Nx.divide(weights, Nx.sum(weights))
    assert_same_bits(&Nx.Random.choice(&1, Nx.iota({101}), p, samples: 60, replace: false))
  end

  test "shuffle" do
    assert_same_bits(&Nx.Random.shuffle(&1, Nx.iota({1009})))
    assert_same_bits(&Nx.Random.shuffle(&1, Nx.iota({23, 17, 3}), axis: 1))
    assert_same_bits(&Nx.Random.shuffle(&1, Nx.iota({23, 17}, type: :f32), axis: 1, independent: true))
  end

  test "multivariate_normal" do
    covariance = [[2.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 3.0]]
    seed = seed()

    # Iterations of svd and eigh end where their steps no longer change the result by much.
    for {method, absolute} <- [cholesky: 1.0e-6, svd: 1.0e-4, eigh: 1.0e-4] do
      draw = fn ->
        {mean, covariance} = {Nx.tensor([1.0, 2.0, 3.0]), Nx.tensor(covariance)}
        Nx.Random.multivariate_normal(Nx.Random.key(seed), mean, covariance, method: method, shape: {500})
      end

      assert_same([], draw, ulp: 1, absolute: absolute)
    end
  end
end
