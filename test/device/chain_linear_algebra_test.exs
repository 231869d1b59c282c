defmodule Nx.Vulkan.ChainLinearAlgebraTest do
  # Scans, Cholesky factors and triangular systems of parameters, in both forms.
  use ExUnit.Case, async: true

  import Nx.Vulkan.Numbers

  alias Nx.Vulkan.{Chain, NUTS}

  @moduletag :device

  setup do
    :rand.seed(:exsss, {5, 8, 13})
    :ok
  end

  # The evaluator adds 1.0e-10 to the diagonal of Cholesky factors that it divides by.
  @factors 1.0e-9

  # Both forms have the values and gradients of the evaluator, and chains the same bits alone, in part and among others.
  defp check(fun, d, type, tolerance, opts \\ []) do
    [q, p] = for _ <- 1..2, do: numbers({3, d}, type)
    from_evaluated = max(tolerance, Keyword.get(opts, :evaluated, 0))
    evaluated = Nx.Defn.jit(&Nx.Defn.value_and_grad(&1, fun), compiler: Nx.Defn.Evaluator)

    traces =
      for form <- [:workgroup, :device] do
        chain = Chain.compile(fun, Nx.template({d}, type), form: form)
        assert chain.form == form
        run = fn rows, steps -> Chain.run(chain, q[rows], p[rows], steps: steps, step_size: 1.0e-3) end
        trace = run.(0..2, 3)

        for {chain, step} <- [{0, 0}, {2, 2}] do
          {value, gradient} = evaluated.(cpu(trace.q[[chain, step]]))
          assert apart(trace.log_density[[chain, step]], value) <= from_evaluated * max(1, most(value))
          assert apart(trace.gradient[[chain, step]], gradient) <= from_evaluated * max(1, most(gradient))
        end

        for {name, tensor} <- run.(1..1, 2) do
          assert Nx.to_binary(tensor) == Nx.to_binary(trace[name][[1..1, 0..1]])
        end

        if type == :f64, do: slope?(chain, q[0], Keyword.get(opts, :slope, 1.0e-6))
        trace
      end

    [one, other] = traces
    for {name, tensor} <- one, do: assert(apart(other[name], tensor) <= 4 * tolerance * max(1, most(tensor)))
    traces
  end

  # The gradient along one direction, by differences.
  defp slope?(chain, q, tolerance) do
    way = Nx.multiply(numbers({chain.parameters}, :f64), like(1.0e-5, q))
    places = Nx.stack([q, Nx.add(q, way), Nx.subtract(q, way)])
    still = Chain.run(chain, places, places, steps: 1, step_size: 0.0)
    [_, high, low] = Nx.to_flat_list(still.log_density)
    slope = still.gradient[[0, 0]] |> Nx.dot(way) |> Nx.to_number()
    assert_in_delta (high - low) / 2, slope, tolerance * max(abs(slope), 1.0e-5)
  end

  @scans [
    sum: &Nx.cumulative_sum/2,
    product: &Nx.cumulative_product/2,
    max: &Nx.cumulative_max/2,
    min: &Nx.cumulative_min/2
  ]

  for {name, _} <- @scans, {type, tolerance} <- [f64: 1.0e-12, f32: 1.0e-4] do
    test "cumulative #{name}s in #{type}" do
      {type, scan} = {unquote(type), @scans[unquote(name)]}

      for {shape, axis, reverse} <- [{{7}, 0, false}, {{41}, 0, true}, {{3, 18}, 1, false}, {{2, 5, 3}, 1, true}] do
        d = Tuple.product(shape)
        weights = numbers(shape, type)

        fun = fn q ->
          # Of products that stay near 1.
          a = Nx.add(like(1, q), Nx.multiply(like(0.3, q), Nx.sin(q)))
          scanned = a |> Nx.reshape(shape) |> scan.(axis: axis, reverse: reverse)
          Nx.sum(Nx.multiply(weights, Nx.multiply(scanned, scanned)))
        end

        check(fun, d, type, unquote(tolerance))
      end
    end
  end

  test "NaN and infinities stay where they are" do
    weights = numbers({20}, :f64)
    fun = fn q -> Nx.sum(Nx.multiply(weights, Nx.slice(Nx.cumulative_sum(Nx.log(q)), [0], [20]))) end
    q = Nx.add(Nx.iota({40}, type: :f64, backend: Nx.BinaryBackend), 1.0)

    for {place, finite} <- [{19, 0}, {20, 1}], x <- [0.0, -1.0], form <- [:workgroup, :device] do
      chain = Chain.compile(fun, Nx.template({40}, :f64), form: form)
      q = Nx.indexed_put(q, Nx.tensor([place], backend: Nx.BinaryBackend), like(x, q))
      value = Chain.run(chain, q, q, steps: 1, step_size: 0.0).log_density
      unfinite = Nx.logical_or(Nx.is_nan(value), Nx.is_infinity(value))
      assert Nx.to_flat_list(Nx.logical_not(unfinite)) == [finite]
    end
  end

  # A random walk of n steps of a scale, and observations of all of its places.
  defp walk(n, type) do
    observed = 0 |> List.duplicate(n) |> Enum.scan(fn _, at -> at + :rand.normal() end)
    y = Nx.tensor(observed, type: type, backend: Nx.BinaryBackend)

    fn q ->
      path = Nx.cumulative_sum(Nx.multiply(Nx.exp(q[n]), q[0..(n - 1)//1]))
      error = Nx.subtract(y, path)
      Nx.multiply(like(-0.5, q), Nx.add(Nx.sum(Nx.multiply(error, error)), Nx.sum(Nx.multiply(q, q))))
    end
  end

  test "a random walk" do
    for {type, tolerance} <- [f64: 1.0e-11, f32: 1.0e-4], n <- [50, 130] do
      fun = walk(n, type)
      assert Chain.compile(fun, Nx.template({n + 1}, type)).form == :workgroup
      check(fun, n + 1, type, tolerance)
    end
  end

  # A Gaussian process at n places with a length, a scale and a noise.
  defp process(n, type) do
    at = for i <- 0..(n - 1)//1, do: i / 4
    [x, y] = for list <- [at, Enum.map(at, &:math.sin/1)], do: Nx.tensor(list, type: type, backend: Nx.BinaryBackend)
    unit = Nx.eye(n, type: type, backend: Nx.BinaryBackend)

    fn q ->
      [length, scale, noise] = for i <- 0..2, do: Nx.exp(q[i])
      far = Nx.divide(Nx.subtract(Nx.new_axis(x, 1), x), length)
      smooth = Nx.multiply(scale, Nx.exp(Nx.multiply(like(-0.5, q), Nx.multiply(far, far))))
      factor = Nx.LinAlg.cholesky(Nx.add(smooth, Nx.multiply(noise, unit)))
      z = Nx.LinAlg.triangular_solve(factor, y)
      half = Nx.multiply(like(-0.5, q), Nx.add(Nx.sum(Nx.multiply(z, z)), Nx.sum(Nx.multiply(q, q))))
      Nx.subtract(half, Nx.sum(Nx.log(Nx.take_diagonal(factor))))
    end
  end

  test "a Gaussian process of which all is learned" do
    for {type, tolerance, n} <- [{:f64, 1.0e-11, 1}, {:f64, 1.0e-11, 7}, {:f64, 1.0e-11, 33}, {:f32, 3.0e-4, 20}] do
      fun = process(n, type)
      assert Chain.compile(fun, Nx.template({3}, type)).form == :workgroup
      check(fun, 3, type, tolerance, evaluated: @factors)
    end
  end

  test "triangular systems of all forms, in batches, too" do
    for batch <- [[], [2]],
        columns <- [nil, 3],
        lower <- [true, false],
        left_side <- [true, false],
        transform_a <- [:none, :transpose] do
      n = 4
      shape = List.to_tuple(batch ++ [n, n])

      right =
        List.to_tuple(batch ++ if(columns == nil, do: [n], else: if(left_side, do: [n, columns], else: [columns, n])))

      [d, e] = Enum.map([shape, right], &Tuple.product/1)
      weights = numbers(right, :f64)
      opts = [lower: lower, left_side: left_side, transform_a: transform_a]

      fun = fn q ->
        a = q[0..(d - 1)] |> Nx.reshape(shape) |> Nx.add(Nx.multiply(like(3, q), Nx.eye({n, n}, type: :f64)))
        b = Nx.reshape(q[d..(d + e - 1)], right)
        Nx.sum(Nx.multiply(weights, Nx.LinAlg.triangular_solve(a, b, opts)))
      end

      check(fun, d + e, :f64, 1.0e-12)
    end
  end

  test "factors of matrices in batches, and of those that are not positive definite" do
    for type <- [:f64, :f32] do
      weights = numbers({2, 5, 5}, type)

      fun = fn q ->
        a = Nx.reshape(q, {2, 5, 5})
        square = Nx.dot(a, [2], [0], a, [2], [0])
        Nx.sum(Nx.multiply(weights, Nx.LinAlg.cholesky(Nx.add(square, Nx.eye({5, 5}, type: type)))))
      end

      check(fun, 50, type, if(type == :f64, do: 1.0e-12, else: 2.0e-5), evaluated: @factors, slope: 1.0e-5)
    end

    fun = fn q -> Nx.sum(Nx.LinAlg.cholesky(Nx.multiply(q, Nx.eye({3, 3}, type: :f64)))) end

    for form <- [:workgroup, :device] do
      chain = Chain.compile(fn q -> fun.(q[0]) end, Nx.template({1}, :f64), form: form)
      q = Nx.tensor([[4.0], [-1.0]], type: :f64, backend: Nx.BinaryBackend)
      values = Chain.run(chain, q, q, steps: 1, step_size: 0.0).log_density
      assert [6.0, :nan] = Nx.to_flat_list(values)
    end
  end

  test "solutions, determinants and inverses" do
    for {type, tolerance} <- [f64: 1.0e-10, f32: 1.0e-3], n <- [2, 3, 6] do
      [weights, b] = for _ <- 1..2, do: numbers({2, n, n}, type)
      shifted = fn q -> q |> Nx.reshape({2, n, n}) |> Nx.add(Nx.multiply(like(2, q), Nx.eye({n, n}, type: type))) end
      check(fn q -> Nx.sum(Nx.multiply(weights, Nx.LinAlg.solve(shifted.(q), b))) end, 2 * n * n, type, tolerance)
      check(fn q -> Nx.sum(Nx.log(Nx.abs(Nx.LinAlg.determinant(shifted.(q))))) end, 2 * n * n, type, tolerance)

      alone = fn q ->
        a = q |> shifted.() |> Nx.slice_along_axis(0, 1) |> Nx.reshape({n, n})
        x = Nx.LinAlg.solve(a, b[[0, 0]])
        Nx.sum(Nx.add(Nx.multiply(weights[0], Nx.LinAlg.invert(a)), x))
      end

      check(alone, 2 * n * n, type, tolerance)
    end
  end

  test "the determinant of one number is that number" do
    for form <- [:workgroup, :device] do
      fun = fn q -> Nx.multiply(3, Nx.LinAlg.determinant(Nx.reshape(q, {1, 1}))) end
      chain = Chain.compile(fun, Nx.template({1}, :f64), form: form)
      q = Nx.tensor([[0.5]], type: :f64, backend: Nx.BinaryBackend)
      trace = Chain.run(chain, q, q, steps: 1, step_size: 0.0)
      assert Nx.to_flat_list(trace.log_density) == [1.5]
      assert Nx.to_flat_list(trace.gradient) == [3.0]
    end
  end

  # Order statistics, and the values where the parameters have their ranks.
  test "sorts" do
    for type <- [:f64, :f32], {shape, axis, direction} <- [{{9}, 0, :asc}, {{40}, 0, :desc}, {{3, 4, 2}, 1, :asc}] do
      weights = numbers(shape, type)

      fun = fn q ->
        a = Nx.reshape(q, shape)
        sorted = Nx.sort(a, axis: axis, direction: direction)
        ranked = Nx.take_along_axis(weights, Nx.argsort(a, axis: axis, direction: direction), axis: axis)
        Nx.sum(Nx.add(Nx.multiply(weights, Nx.multiply(sorted, sorted)), Nx.multiply(ranked, a)))
      end

      check(fun, Tuple.product(shape), type, if(type == :f64, do: 1.0e-13, else: 1.0e-5))
    end
  end

  test "what is too large for a workgroup has the whole device" do
    n = 80
    fun = fn q -> Nx.sum(Nx.LinAlg.cholesky(Nx.multiply(Nx.exp(q[0]), Nx.eye({n, n}, type: :f32)))) end
    assert Chain.compile(fun, Nx.template({1}, :f32)).form == :device

    error = assert_raise Nx.Vulkan.Error, fn -> Chain.compile(fun, Nx.template({1}, :f32), form: :workgroup) end
    assert error.message =~ "cholesky"
  end

  test "draws of a random walk" do
    n = 12
    fun = walk(n, :f64)
    opts = [num_samples: 20, num_warmup: 20, num_chains: 2, key: 3, max_tree_depth: 5]

    [one, other] =
      for form <- [:workgroup, :device] do
        result = NUTS.sample(fun, Nx.template({n + 1}, :f64), Keyword.put(opts, :form, form))
        assert result.form == form
        result
      end

    assert NUTS.sample(fun, Nx.template({n + 1}, :f64), opts).form == :workgroup
    assert apart(one.draws, other.draws) < 1.0e-6
    assert Nx.to_binary(other.stats.leapfrog_steps) == Nx.to_binary(one.stats.leapfrog_steps)
  end
end
