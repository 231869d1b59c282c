defmodule Nx.Vulkan.NUTSDataTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.{Chain, NUTS}
  alias Nx.Vulkan.NUTS.Diagnostics

  @moduletag :device

  @covariance [[2.0, 0.6], [0.6, 0.5]]
  @mean [1.0, -2.0]

  defp tensor(values, type), do: Nx.tensor(values, type: type, backend: Nx.BinaryBackend)
  defp square(z), do: Nx.multiply(-0.5, Nx.sum(Nx.multiply(z, z)))

  defp by_cholesky(x, covariance),
    do: square(Nx.LinAlg.triangular_solve(Nx.LinAlg.cholesky(covariance), Nx.subtract(x, tensor(@mean, x.type))))

  defp by_solve(x, covariance) do
    x = Nx.subtract(x, tensor(@mean, x.type))
    Nx.multiply(-0.5, Nx.dot(x, Nx.LinAlg.solve(covariance, x)))
  end

  defp by_inverse(x, covariance) do
    x = Nx.subtract(x, tensor(@mean, x.type))
    Nx.multiply(-0.5, Nx.dot(x, Nx.dot(Nx.LinAlg.invert(covariance), x)))
  end

  # A block that one workgroup can run.
  defp by_places(x, values), do: square(Nx.subtract(x, Nx.take(values, Nx.tensor([2, 0]))))

  defp assert_normal(draws, sds) do
    for {{mean, sd}, i} <- @mean |> Enum.zip(sds) |> Enum.with_index() do
      x = draws[[.., .., i]]
      {got, error} = Diagnostics.mean_error(x)
      assert abs(got - mean) < 4 * error
      {got, error} = Diagnostics.sd_error(x)
      assert abs(got - sd) < 4 * error
      assert Diagnostics.rhat(x) < 1.1
    end
  end

  # Nx alone differentiates none of these but the first.
  test "factorizations of captured tensors alone are constants in gradients" do
    matrix = tensor([[2.0, 0.5, 0.0], [0.5, 2.0, 0.1], [0.0, 0.1, 3.0]], :f64)
    q = tensor([0.3, -0.2, 0.5], :f64)

    for {factor, i} <-
          Enum.with_index([
            &Nx.cumulative_sum/1,
            &Nx.LinAlg.cholesky/1,
            &Nx.LinAlg.invert/1,
            &elem(Nx.LinAlg.qr(&1), 1),
            &elem(Nx.LinAlg.lu(&1), 2),
            &elem(Nx.LinAlg.eigh(&1), 1),
            &elem(Nx.LinAlg.svd(&1), 2),
            &Nx.LinAlg.invert(Nx.LinAlg.cholesky(&1))
          ]) do
      constant = Nx.backend_copy(factor.(matrix), Nx.BinaryBackend)
      want = Nx.Defn.grad(q, &square(Nx.dot(constant, &1)))
      density = fn x -> square(Nx.dot(factor.(matrix), x)) end
      chain = Chain.compile(density, Nx.template({3}, :f64))
      trace = Chain.run(chain, q, Nx.multiply(q, 0.0), steps: 1, step_size: 0.0)
      got = Nx.backend_copy(trace.gradient[0], Nx.BinaryBackend)
      assert got |> Nx.subtract(want) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number() < 1.0e-8
      opts = [num_chains: 1, num_warmup: 2, num_samples: 2, max_tree_depth: 2]
      # The others take long on CPU devices.
      if i < 2, do: assert(%{form: _} = NUTS.sample(density, Nx.template({3}, :f64), opts))
    end
  end

  for type <- [:f32, :f64] do
    test "factorizations of data and of captured tensors, in #{type}" do
      type = unquote(type)
      covariance = tensor(@covariance, type)
      template = Nx.template({2}, type)
      opts = [num_samples: 100, num_warmup: 150, num_chains: 2, key: 5]

      for {fun, more} <- [
            {&by_cholesky/2, [data: Nx.backend_copy(covariance, Nx.Vulkan.VulkanoBackend)]},
            {&by_inverse/2, [data: covariance]},
            {&by_solve/2, [data: covariance]},
            {&by_solve(&1, covariance), []}
          ] do
        result = NUTS.sample(fun, template, opts ++ more)
        assert result.form == :workgroup
        assert Nx.type(result.draws) == Nx.Type.normalize!(type)
        assert_normal(result.draws, [:math.sqrt(2.0), :math.sqrt(0.5)])
      end

      # Of what the parameters change, every leapfrog step has its own.
      changing = fn x -> by_solve(x, Nx.add(covariance, Nx.multiply(Nx.exp(x[0]), Nx.eye(2, type: type)))) end
      opts = [num_samples: 2, num_warmup: 2, num_chains: 1, max_tree_depth: 2]
      assert NUTS.sample(changing, template, opts).form == :workgroup
      assert NUTS.sample(changing, template, [form: :device] ++ opts).form == :device
    end

    for form <- [:workgroup, :device] do
      test "blocks of data are part of the log-density, in #{type}, #{form}" do
        data = tensor([-2.0, 0.0, 1.0], unquote(type))
        opts = [num_samples: 100, num_warmup: 100, num_chains: 2, key: 5, form: unquote(form)]
        result = NUTS.sample(&by_places/2, Nx.template({2}, unquote(type)), [data: data] ++ opts)
        assert_normal(result.draws, [1.0, 1.0])
      end
    end
  end
end
