defmodule Nx.Vulkan.ChainFormsTest do
  # Log-densities that are too large for one workgroup, or have ops that it lacks.
  use ExUnit.Case, async: true

  import Nx.Vulkan.Numbers

  alias Nx.Vulkan.{Chain, NUTS}

  @moduletag :device

  setup do
    :rand.seed(:exsss, {3, 1, 4})
    :ok
  end

  defp close?(got, want, tolerance) do
    for {got, want} <- Enum.zip(Nx.to_flat_list(got), Nx.to_flat_list(want)) do
      assert_in_delta got, want, tolerance * max(1, abs(want))
    end
  end

  # A logistic regression.
  defp logistic(n, d, type) do
    x = numbers({n, d}, type)
    y = Nx.as_type(Nx.greater(numbers({n}, type), 0), type)

    fn beta ->
      eta = Nx.dot(x, beta)
      softplus = Nx.add(Nx.max(eta, 0), Nx.log1p(Nx.exp(Nx.negate(Nx.abs(eta)))))

      Nx.subtract(
        Nx.sum(Nx.subtract(Nx.multiply(y, eta), softplus)),
        Nx.multiply(like(0.5, beta), Nx.sum(Nx.multiply(beta, beta)))
      )
    end
  end

  test "a logistic regression of 300 coefficients and 5000 observations" do
    for {type, tolerance} <- [{:f64, 1.0e-9}, {:f32, 2.0e-3}] do
      fun = logistic(5000, 300, type)
      chain = Chain.compile(fun, Nx.template({300}, type))
      assert chain.form == :device
      [q, p] = for _ <- 1..2, do: numbers({2, 300}, type)
      trace = Chain.run(chain, q, p, steps: 3, step_size: 0.01)
      # Where the first chain is after two steps.
      {value, gradient} =
        Nx.Defn.jit(&Nx.Defn.value_and_grad(&1, fun), compiler: Nx.Defn.Evaluator).(
          Nx.backend_copy(trace.q[[0, 1]], Nx.BinaryBackend)
        )

      close?(trace.log_density[[0, 1]], value, tolerance)
      close?(trace.gradient[[0, 1]], gradient, tolerance)
      part = Chain.run(chain, q[1..1], p[1..1], steps: 2, step_size: 0.01)
      for {name, tensor} <- part, do: assert(Nx.to_binary(tensor) == Nx.to_binary(trace[name][[1..1, 0..1]]))

      if type == :f64 do
        # Along one direction, by differences.
        way = Nx.multiply(numbers({300}, type), like(1.0e-5, q))
        [above, below] = for op <- [&Nx.add/2, &Nx.subtract/2], do: op.(q[0], way)
        places = Nx.stack([q[0], above, below])
        still = Chain.run(chain, places, places, steps: 1, step_size: 0.0)
        [_, high, low] = Nx.to_flat_list(still.log_density)
        slope = still.gradient[[0, 0]] |> Nx.dot(way) |> Nx.to_number()
        assert_in_delta (high - low) / 2, slope, 1.0e-6 * abs(slope)
      end
    end
  end

  test "300 and 1000 parameters, with both forms and masses" do
    for {type, tolerance} <- [{:f64, 1.0e-11}, {:f32, 1.0e-4}], {d, mass} <- [{300, :dense}, {1000, :diagonal}] do
      scale = Nx.add(numbers({d}, type), 1.5)
      fun = fn q -> Nx.negate(Nx.sum(Nx.log(Nx.add(1, Nx.multiply(scale, Nx.multiply(q, q)))))) end
      [q, p] = for _ <- 1..2, do: numbers({2, d}, type)

      inverse_mass =
        case mass do
          :diagonal -> scale
          :dense -> Nx.add(Nx.eye(d, type: type, backend: Nx.BinaryBackend), Nx.divide(numbers({d, d}, type), d))
        end

      [one, other] =
        for form <- [:workgroup, :device] do
          chain = Chain.compile(fun, Nx.template({d}, type), mass: mass, form: form)
          assert chain.form == form
          Chain.run(chain, q, p, steps: 3, step_size: 0.05, inverse_mass: inverse_mass)
        end

      for {name, tensor} <- one, do: close?(other[name], tensor, tolerance)
    end
  end

  test "ops that one workgroup lacks, and divergences of one chain" do
    fun = fn q -> Nx.negate(Nx.exp(Nx.sum(Nx.pow(Nx.window_sum(q, {1}), 2)))) end
    chain = Chain.compile(fun, Nx.template({3}, :f32))
    assert chain.form == :device
    q = Nx.tensor([[0.1, 0.3, 0.2], [1.0, 1.0, 2.0]], backend: Nx.BinaryBackend)
    trace = Chain.run(chain, q, q, steps: 3, step_size: Nx.tensor([0.01, 100.0]))
    finite = Nx.logical_not(Nx.logical_or(Nx.is_nan(trace.energy), Nx.is_infinity(trace.energy)))
    assert Nx.to_flat_list(finite[0]) == [1, 1, 1]
    assert 0 in Nx.to_flat_list(finite[1])
  end

  test "draws with the whole device" do
    scale = Nx.tensor([0.5, 1.0, 2.0], type: :f64, backend: Nx.BinaryBackend)
    fun = fn x -> Nx.multiply(like(-0.5, x), Nx.sum(Nx.pow(Nx.divide(x, scale), 2))) end
    opts = [num_samples: 20, num_warmup: 20, num_chains: 2, key: 3]

    [one, other] =
      for form <- [:workgroup, :device] do
        result = NUTS.sample(fun, Nx.template({3}, :f64), Keyword.put(opts, :form, form))
        assert result.form == form
        result
      end

    close?(other.draws, one.draws, 1.0e-6)
    assert Nx.to_binary(other.stats.leapfrog_steps) == Nx.to_binary(one.stats.leapfrog_steps)

    large = logistic(2000, 300, :f32)

    result =
      NUTS.sample(large, Nx.template({300}, :f32), num_samples: 3, num_warmup: 4, num_chains: 1, max_tree_depth: 4)

    assert result.form == :device
    assert Nx.shape(result.draws) == {1, 3, 300}
    assert result.draws |> Nx.is_nan() |> Nx.any() |> Nx.to_number() == 0
  end
end
