Code.require_file("../../examples/posteriors/large.exs", __DIR__)

defmodule Nx.Vulkan.NUTSBatchedTest.Root do
  @moduledoc false
  import Nx.Defn

  # The square root of what is positive, by as many steps of Newton as it takes.
  defn newton(x) do
    {root, _} =
      while {root = x, x}, Nx.abs(root * root - x) > 1.0e-9 * x do
        {0.5 * (root + x / root), x}
      end

    root
  end
end

defmodule Nx.Vulkan.NUTSBatchedTest do
  # Chains that are taken together take the trees that each takes in a workgroup of its own.
  use ExUnit.Case, async: true

  import Nx.Vulkan.Numbers, only: [cpu: 1]

  alias Nx.Vulkan.{Chain, NUTS}
  alias Nx.Vulkan.NUTS.{Batched, Transition}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @moduletag :device

  defp tensor(values, type), do: Nx.tensor(values, type: type, backend: B)

  # Three chains that have not drawn yet, with steps that differ.
  defp beginning(value_and_grad, d, type, mass) do
    q = for(i <- 1..3, do: for(j <- 1..d, do: :math.sin(5 * i + j))) |> tensor(type)
    at = Nx.Defn.jit(value_and_grad, compiler: Nx.Vulkan.Compiler)
    {values, gradients} = Enum.unzip(for i <- 0..2, do: at.(q[i]))
    zeros = tensor([0.0, 0.0, 0.0], type)

    state = %{
      q: q,
      gradient: Nx.stack(gradients),
      log_density: Nx.stack(values),
      log_step: tensor(for(step <- [0.3, 0.2, 0.05], do: :math.log(step)), type),
      mean_log_step: zeros,
      error: zeros,
      updates: zeros
    }

    inverse_mass =
      case mass do
        :diagonal -> tensor(for(i <- 1..3, do: for(j <- 1..d, do: 0.5 + rem(i + j, 3) / 2)), type)
        :dense -> Nx.add(Nx.broadcast(Nx.eye(d, type: type, backend: B), {3, d, d}), Nx.tensor(0.1, type: type))
      end

    own = %{
      key: Nx.tensor([[1, 2], [3, 4], [5, 6]], type: :u32, backend: B),
      mu: tensor([0.5, 0.1, 0.2], type),
      inverse_mass: inverse_mass,
      momentum_scale: NUTS.Adaptation.momentum_scale(inverse_mass, mass)
    }

    {state, own, %{first_draw: 7, max_depth: 5, adapt: 1, force: 0, target_accept: 0.8}}
  end

  defp error(a, b) do
    [a, b] = Enum.map([a, b], &cpu/1)
    Nx.divide(Nx.abs(Nx.subtract(a, b)), Nx.add(1, Nx.abs(b))) |> Nx.reduce_max() |> Nx.to_number()
  end

  defp compare(density, d, type, mass, draws, tolerance) do
    value_and_grad = &Chain.value_and_grad(&1, type, density)
    traced = Chain.traced(value_and_grad, Nx.template({d}, type))
    {state, own, shared} = beginning(value_and_grad, d, type, mass)
    alone = Transition.compile(traced, d, type, mass, 5, :workgroup)
    together = Transition.compile(traced, d, type, mass, 5, :device, 3)
    assert %Batched{} = together.batched
    {last, positions, statistics} = Transition.take(together, state, own, shared, 3, draws, 50_000)
    {expected, expected_positions, expected_statistics} = Transition.take(alone, state, own, shared, 3, draws, 50_000)
    assert Nx.shape(positions) == {3, draws, d}
    steps = cpu(expected_statistics)[[.., .., 5]]
    # Trees grow, and differ in depth.
    assert Nx.to_number(Nx.reduce_max(steps)) >= 3
    assert steps |> Nx.to_flat_list() |> Enum.uniq() |> length() > 1
    assert Nx.to_flat_list(cpu(statistics)[[.., .., 5]]) == Nx.to_flat_list(steps)
    assert error(positions, expected_positions) < tolerance
    assert error(statistics, expected_statistics) < tolerance
    for name <- Map.keys(expected), do: assert(error(last[name], expected[name]) < tolerance)
    # Again, to the bit, from executions of other lengths.
    {_, again, _} = Transition.take(together, state, own, shared, 3, draws, 1)
    assert Nx.to_binary(again) == Nx.to_binary(positions)
  end

  defp funnel(q) do
    scale = Nx.exp(Nx.multiply(-0.5, q[0]))
    rest = Nx.multiply(q[1..-1//1], scale)
    squares = Nx.add(Nx.multiply(q[0], q[0]), Nx.sum(Nx.multiply(rest, rest)))
    Nx.subtract(Nx.multiply(-0.5, squares), Nx.multiply(q[0], 0.5 * (Nx.size(q) - 1)))
  end

  test "trees and step sizes are those of chains alone" do
    compare(&funnel/1, 5, {:f, 64}, :dense, 4, 1.0e-9)
    compare(&funnel/1, 5, {:f, 32}, :diagonal, 4, 1.0e-3)
  end

  test "as are those of densities that index, sort, branch, loop and solve" do
    picks = Nx.tensor([3, 0, 3, 1], backend: Nx.BinaryBackend)

    density = fn q ->
      gathered = Nx.take(q, picks)
      sorted = Nx.sort(q)
      matrix = Nx.add(Nx.multiply(Nx.outer(q, q), 0.1), Nx.multiply(Nx.eye(4), 2))
      factor = Nx.LinAlg.cholesky(matrix)
      solved = Nx.LinAlg.triangular_solve(factor, q)
      picked = q[Nx.argmax(q)]
      steep = Nx.select(Nx.greater(q[0], 0), Nx.multiply(q[0], 2), q[0])

      [
        Nx.multiply(gathered, gathered),
        Nx.multiply(Nx.subtract(sorted, Nx.iota({4})), 0.3),
        Nx.multiply(solved, solved)
      ]
      |> Enum.map(&Nx.sum/1)
      |> Enum.concat([Nx.sum(Nx.log(Nx.take_diagonal(factor))), Nx.multiply(picked, 0.1), Nx.multiply(steep, steep)])
      |> Enum.reduce(&Nx.add/2)
      |> Nx.multiply(-0.5)
    end

    compare(density, 4, {:f, 64}, :diagonal, 4, 1.0e-8)
  end

  # Chains whose leaf is not a leapfrog step would run it from numbers that have no root.
  test "as are those of densities with loops that only some chains may run" do
    alias Nx.Vulkan.NUTSBatchedTest.Root

    density = fn q ->
      squares = Nx.sum(Nx.multiply(q, q))
      heavy = Nx.Defn.Kernel.stop_grad(Root.newton(Nx.add(Nx.multiply(squares, 0.01), 1)))
      Nx.multiply(Nx.divide(squares, heavy), -0.5)
    end

    compare(density, 3, {:f, 64}, :diagonal, 4, 1.0e-8)
  end

  test "large models are taken together, and their draws are of the posterior" do
    for {name, sizes} <- [logistic: [60, 3], volatility: [12]] do
      model = Posteriors.Large.model(name, :f64, sizes)
      opts = [data: model.data, num_chains: 3, num_samples: 60, num_warmup: 60, key: 5]
      both = for form <- [:device, :workgroup], do: NUTS.sample(model.log_density, model.template, opts ++ [form: form])
      assert Enum.map(both, & &1.form) == [:device, :workgroup]
      [together, alone] = for result <- both, do: model.quantities.(result.draws)

      for {quantity, draws} <- together do
        [{mean, error}, {expected, other}] = for x <- [draws, alone[quantity]], do: NUTS.Diagnostics.mean_error(x)
        assert abs(mean - expected) < 5 * :math.sqrt(error ** 2 + other ** 2), "#{name} #{quantity}"
      end
    end
  end

  test "a log-density with an op that can't run for several chains is drawn from chain by chain" do
    images = Nx.iota({1, 1, 6}, type: :f32, backend: Nx.BinaryBackend)

    density = fn q ->
      filtered = Nx.conv(images, Nx.reshape(q, {1, 1, 3}))
      Nx.multiply(-0.01, Nx.sum(Nx.multiply(filtered, filtered)))
    end

    opts = [num_chains: 2, num_samples: 20, num_warmup: 20, key: 2, form: :device]
    assert %{form: :device, draws: draws} = NUTS.sample(density, Nx.template({3}, :f32), opts)
    assert Nx.shape(draws) == {2, 20, 3}
    assert Nx.to_number(Nx.any(Nx.is_nan(draws))) == 0
  end
end
