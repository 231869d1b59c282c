defmodule Nx.Vulkan.ChainGuaranteesTest do
  # What chains promise whatever their sizes: the same bits, gradients that are gradients, and energy kept to second
  # order. `mix test --only chain_sweep` takes many sizes.
  use ExUnit.Case, async: true

  alias Nx.Vulkan.Chain

  @moduletag :device

  defp uniform(low, high), do: low + (high - low) * :rand.uniform()
  defp numbers(shape, type, fun \\ fn -> uniform(-1, 1) end)

  defp numbers(shape, type, fun) do
    values = for _ <- 1..Tuple.product(shape), do: fun.()
    values |> Nx.tensor(type: type, backend: Nx.BinaryBackend) |> Nx.reshape(shape)
  end

  describe "the same bits" do
    # d parameters, of which each has a scale, and heavy-tailed observations of their mean.
    defp model(d, observations, type) do
      scales = numbers({d}, type, fn -> uniform(0.5, 2) end)
      prior = fn q -> Nx.multiply(-0.5, Nx.sum(Nx.multiply(scales, Nx.multiply(q, q)))) end

      if observations == 0 do
        prior
      else
        x = numbers({observations}, type)

        fn q ->
          z = Nx.subtract(x, Nx.mean(q))
          Nx.subtract(prior.(q), Nx.sum(Nx.log1p(Nx.multiply(z, z))))
        end
      end
    end

    defp mass(:diagonal, d, type), do: numbers({d}, type, fn -> uniform(0.5, 2) end)

    defp mass(:dense, d, type) do
      root = numbers({d, d}, type)
      Nx.add(Nx.eye(d, type: type), Nx.divide(Nx.dot(root, Nx.transpose(root)), 2 * d))
    end

    # Again, in part, and alone.
    defp check({form, type, mass, d, observations, steps, batch} = sizes) do
      chain = Chain.compile(model(d, observations, type), Nx.template({d}, type), mass: mass, form: form)
      [q, p] = for _ <- 1..2, do: numbers({batch, d}, type)
      step_size = numbers({batch}, type, fn -> uniform(-0.1, 0.1) end)
      inverse_mass = mass(mass, d, type)
      run = &Chain.run(chain, &1, &2, steps: &4, step_size: &3, inverse_mass: inverse_mass)
      trace = run.(q, p, step_size, steps)
      same = fn a, b, what -> assert Nx.to_binary(a) == Nx.to_binary(b), "#{what} of #{inspect(sizes)}" end
      again = run.(q, p, step_size, steps)
      for {name, tensor} <- trace, do: same.(tensor, again[name], "#{name} again")

      first = max(div(steps, 3), 1)
      prefix = run.(q, p, step_size, first)
      for {name, tensor} <- trace, do: same.(tensor[[.., 0..(first - 1)]], prefix[name], "the first #{name}")

      for i <- Enum.uniq([0, batch - 1]) do
        alone = run.(q[i..i], p[i..i], step_size[i..i], steps)
        for {name, tensor} <- trace, do: same.(tensor[i..i], alone[name], "#{name} of chain #{i}")
      end
    end

    test "again, in part and alone" do
      for sizes <- [
            {:auto, {:f, 64}, :diagonal, 1, 0, 1024, 3},
            {:auto, {:f, 32}, :dense, 7, 33, 50, 5},
            {:auto, {:f, 64}, :dense, 40, 1000, 4, 2},
            {:auto, {:f, 32}, :diagonal, 256, 10_000, 2, 2},
            {:auto, {:f, 64}, :diagonal, 33, 257, 31, 4},
            {:device, {:f, 64}, :dense, 3, 17, 20, 5},
            {:device, {:f, 32}, :diagonal, 33, 1000, 7, 3}
          ],
          do: check(sizes)
    end

    @tag :chain_sweep
    @tag timeout: to_timeout(minute: 60)
    test "again, in part and alone, of the most steps with many observations or parameters" do
      for form <- [:workgroup, :device],
          {type, d, observations} <- [{{:f, 64}, 2, 10_000}, {{:f, 32}, 256, 0}],
          do: check({form, type, :diagonal, d, observations, 1024, 2})
    end

    @tag :chain_sweep
    @tag timeout: to_timeout(minute: 60)
    test "again, in part and alone, at many sizes" do
      for form <- [:workgroup, :device],
          type <- [{:f, 32}, {:f, 64}],
          d <- [1, 2, 31, 32, 33, 64, 100, 255, 256],
          observations <- [0, 1, 100, 10_000] do
        # About as much work each.
        most = max(div(200_000, d + observations), 1)
        steps = Enum.random([1, 2, 3, 17, 64, 333, 1024])
        mass = if d <= 64, do: Enum.random([:diagonal, :dense]), else: :diagonal
        check({form, type, mass, d, observations, min(steps, most), Enum.random(1..4)})
      end
    end
  end

  describe "gradients" do
    # Stirling's series at x + 8. Nx has no such op.
    defp lgamma(x) do
      y = Nx.add(x, 8)
      shifted = Enum.reduce(1..7, x, &Nx.multiply(&2, Nx.add(x, &1)))
      z = Nx.divide(1, Nx.multiply(y, y))
      coefficients = for c <- [-1 / 1680, 1 / 1260, -1 / 360, 1 / 12], do: like(c, x)
      series = Enum.reduce(coefficients, &Nx.add(Nx.multiply(&2, z), &1))
      main = Nx.subtract(Nx.multiply(Nx.subtract(y, like(0.5, x)), Nx.log(y)), y)
      rest = Nx.add(Nx.divide(series, y), like(0.5 * :math.log(2 * :math.pi()), x))
      Nx.subtract(Nx.add(main, rest), Nx.log(shifted))
    end

    # Nx takes a number as f32.
    defp like(x, tensor), do: Nx.tensor(x, type: tensor.type, backend: Nx.BinaryBackend)

    defp positive(x), do: Nx.add(Nx.exp(Nx.tanh(x)), like(0.1, x))

    defp unary(x) do
      Enum.random([
        &Nx.sin/1,
        &Nx.tanh/1,
        &Nx.sigmoid/1,
        &Nx.erf/1,
        &Nx.erfc/1,
        &Nx.atan/1,
        &Nx.exp(Nx.tanh(&1)),
        &Nx.expm1(Nx.sin(&1)),
        &Nx.log1p(Nx.multiply(&1, &1)),
        &Nx.log(positive(&1)),
        &Nx.sqrt(positive(&1)),
        &Nx.rsqrt(positive(&1)),
        &Nx.cbrt(positive(&1)),
        &Nx.pow(positive(&1), like(1.7, &1)),
        &Nx.cosh(Nx.sin(&1)),
        &lgamma(positive(&1)),
        &Nx.abs(Nx.add(&1, like(3.3, &1))),
        &Nx.reverse/1,
        &Nx.divide(like(1, &1), positive(&1))
      ]).(x)
    end

    defp binary(x, y) do
      Enum.random([
        &Nx.add/2,
        &Nx.subtract/2,
        &Nx.multiply/2,
        &Nx.divide(&1, positive(&2)),
        &Nx.atan2(&1, positive(&2)),
        &Nx.max(&1, Nx.add(&2, like(0.01, &2))),
        &Nx.min/2,
        &Nx.select(Nx.greater(Nx.sum(&1), like(0.2, &1)), &1, &2),
        # log(exp(x) + exp(y))
        fn x, y -> Nx.logsumexp(Nx.stack([x, y]), axes: [0]) end
      ]).(x, y)
    end

    # A vector of d, from one of d.
    defp vector(q, 0, _data), do: Enum.random([q, Nx.multiply(q, Nx.sum(q)), Nx.tanh(q)])

    defp vector(q, depth, data) do
      case :rand.uniform(5) do
        1 -> binary(vector(q, depth - 1, data), vector(q, depth - 1, data))
        2 -> Nx.dot(data.square, vector(q, depth - 1, data))
        3 -> Nx.multiply(vector(q, depth - 1, data), Nx.mean(unary(q)))
        _ -> unary(vector(q, depth - 1, data))
      end
    end

    # A sum over observations, a scalar.
    defp likelihood(q, data) do
      eta = Nx.dot(data.x, q)

      Enum.random([
        fn -> Nx.sum(Nx.subtract(Nx.multiply(data.y, eta), Nx.log1p(Nx.exp(eta)))) end,
        fn -> Nx.negate(Nx.sum(Nx.log1p(Nx.multiply(Nx.subtract(data.y, eta), Nx.subtract(data.y, eta))))) end,
        fn -> Nx.sum(Nx.logsumexp(Nx.stack([eta, Nx.multiply(data.y, eta), Nx.negate(eta)]), axes: [0])) end,
        fn -> Nx.sum(lgamma(Nx.add(positive(eta), data.y))) end,
        fn -> Nx.sum(Nx.take(q, data.groups)) end
      ]).()
    end

    defp density(q, data, seed) do
      # The same function at each trace.
      :rand.seed(:exsss, seed)
      tail = Nx.multiply(like(-0.5, q), Nx.sum(Nx.multiply(q, q)))
      q |> vector(3, data) |> Nx.sum() |> Nx.add(likelihood(q, data)) |> Nx.add(tail)
    end

    # How far values and gradients may be off, relative to the largest: of f64's rounding, and of differences over so
    # small a way.
    @rounding 1.0e-9
    @way 1.0e-5
    @differences 1.0e-6
    # Of f32's rounding, against the same function of the same numbers in f64: some hundred roundings of 6.0e-8 each,
    # which quotients and powers in between make up to ten times larger.
    @single_rounding 1.0e-4

    test "are the evaluator's and those of differences" do
      for i <- 1..5, do: check_gradient({ExUnit.configuration()[:seed], i})
    end

    test "in f32 are those of f64 to the rounding" do
      for i <- 1..3, do: check_single({ExUnit.configuration()[:seed], i})
    end

    @tag :chain_sweep
    @tag timeout: to_timeout(minute: 60)
    test "are the evaluator's and those of differences, of 50 random log-densities" do
      for i <- 1..50, do: check_gradient({ExUnit.configuration()[:seed], i})
    end

    @tag :chain_sweep
    @tag timeout: to_timeout(minute: 60)
    test "in f32 are those of f64 to the rounding, of 50 random log-densities" do
      for i <- 1..50, do: check_single({ExUnit.configuration()[:seed], i})
    end

    # A log-density by its number, its data, and where to look at it.
    defp random_density({seed, i}, type) do
      :rand.seed(:exsss, {seed, i, 0})
      d = :rand.uniform(12)
      n = :rand.uniform(40)

      data = %{
        square: numbers({d, d}, type),
        x: numbers({n, d}, type),
        y: numbers({n}, type, fn -> :rand.uniform(2) - 1 end),
        groups: numbers({n}, :s64, fn -> :rand.uniform(d) - 1 end)
      }

      {data, numbers({d}, type), &density(&1, &2, {seed, i, 1})}
    end

    defp evaluated(q, fun) do
      Nx.Defn.jit(&Nx.Defn.value_and_grad(&1, fun), compiler: Nx.Defn.Evaluator).(q)
    end

    defp largest(value, gradient), do: Enum.max([1.0, abs(value) | Enum.map(gradient, &abs/1)])

    defp check_gradient(number) do
      {data, q, density} = random_density(number, :f64)
      fun = &density.(&1, data)
      d = Nx.size(q)
      # Where it is, and a little to both sides along each parameter: chains that stay where they are.
      ways = Nx.multiply(Nx.eye(d, type: :f64), like(@way, q))
      places = Nx.concatenate([Nx.new_axis(q, 0), Nx.add(q, ways), Nx.subtract(q, ways)])
      trace = fun |> Chain.compile(Nx.template({d}, :f64)) |> Chain.run(places, places, steps: 1, step_size: 0.0)
      [value | values] = Nx.to_flat_list(trace.log_density)
      gradient = Nx.to_flat_list(trace.gradient[0])
      {above, below} = Enum.split(values, d)
      differences = Enum.zip_with(above, below, &((&1 - &2) / (2 * @way)))

      {expected, other} = evaluated(q, fun)
      scale = largest(value, gradient)
      assert_in_delta value, Nx.to_number(expected), @rounding * scale, "value of #{inspect(number)}"

      for {got, want, slope} <- Enum.zip([gradient, Nx.to_flat_list(other), differences]) do
        assert_in_delta got, want, @rounding * scale, "gradient of #{inspect(number)}"
        assert_in_delta got, slope, @differences * scale, "slope of #{inspect(number)}"
      end
    end

    defp check_single(number) do
      {data, q, density} = random_density(number, :f32)
      d = Nx.size(q)

      wide =
        Map.new(data, fn {name, tensor} -> {name, if(name == :groups, do: tensor, else: Nx.as_type(tensor, :f64))} end)

      {expected, other} = evaluated(Nx.as_type(q, :f64), &density.(&1, wide))
      [expected, other] = [Nx.to_number(expected), Nx.to_flat_list(other)]
      delta = @single_rounding * largest(expected, other)

      for form <- [:workgroup, :device] do
        chain = Chain.compile(&density.(&1, data), Nx.template({d}, :f32), form: form)
        trace = Chain.run(chain, q, q, steps: 1, step_size: 0.0)

        off =
          largest_difference([Nx.to_number(trace.log_density[0]) | Nx.to_flat_list(trace.gradient[0])], [
            expected | other
          ])

        assert off <= delta, "#{off} of #{delta}, #{inspect(number)} in the form #{form}"
      end
    end

    defp largest_difference(got, want), do: Enum.zip_with(got, want, &abs(&1 - &2)) |> Enum.max()
  end

  test "the error of the energy falls with the square of the step" do
    for form <- [:workgroup, :device], mass <- [:diagonal, :dense] do
      :rand.seed(:exsss, {1, 2, 3})
      chain = Chain.compile(model(5, 20, {:f, 64}), Nx.template({5}, :f64), mass: mass, form: form)
      [q, p] = for _ <- 1..2, do: numbers({5}, :f64)
      inverse_mass = mass(mass, 5, {:f, 64})

      errors =
        for halvings <- 0..4 do
          steps = 16 * 2 ** halvings
          trace = Chain.run(chain, q, p, steps: steps, step_size: 1.6 / steps, inverse_mass: inverse_mass)
          # Over the same time; against the energy that the finest steps begin with.
          {trace.energy |> Nx.reduce_max() |> Nx.to_number(), trace.energy |> Nx.reduce_min() |> Nx.to_number()}
        end

      spans = for {high, low} <- errors, do: high - low
      for [coarse, fine] <- Enum.chunk_every(spans, 2, 1, :discard), do: assert_in_delta(coarse / fine, 4, 0.6)
    end
  end
end
