defmodule Posteriors do
  @moduledoc """
  Posteriors of which much is known, to test samplers with: log-densities, their data, and reference values.

  `reference.json` says for each quantity its mean, standard deviation and quantiles, each with a Monte Carlo standard
  error (0 where it is exact), and where they come from; `bench/peers/posteriors.py` wrote it. Both make the data by the
  same generator.
  """

  @names [:eight_schools, :logistic, :regime, :hierarchical, :funnel, :walk]
  @reference Path.join(__DIR__, "reference.json")
  @external_resource @reference

  def names, do: @names

  @doc """
  What a posterior is drawn with: `:log_density`, `:template`, `:options` for `Nx.Vulkan.NUTS.sample/3`, and
  `:quantities`, which maps the draws to a map of tensors `{chains, draws}` with the names of the reference. All is of
  `type`, `:f64` or `:f32`.
  """
  def model(name, type \\ :f64)

  def model(:eight_schools, type) do
    [y, sigma] =
      for values <- [[28, 8, -3, 7, -1, 1, 18, 12], [15, 10, 16, 11, 9, 11, 10, 18]], do: tensor(values, type)

    log_density = fn %{mu: mu, log_tau: log_tau, effects: t} ->
      tau = Nx.exp(log_tau)
      residual = Nx.divide(Nx.subtract(y, Nx.add(mu, Nx.multiply(tau, t))), sigma)
      sum([normal(mu, 0, 5), half_cauchy(tau, 5), log_tau, squares(t), squares(residual)])
    end

    quantities = fn draws ->
      tau = Nx.exp(draws.log_tau)

      for j <- [1, 3, 8], into: %{"mu" => draws.mu, "tau" => tau} do
        {"theta[#{j}]", Nx.add(draws.mu, Nx.multiply(tau, draws.effects[[.., .., j - 1]]))}
      end
    end

    template = %{mu: Nx.template({}, type), log_tau: Nx.template({}, type), effects: Nx.template({8}, type)}
    %{log_density: log_density, template: template, options: [target_accept: 0.9], quantities: quantities}
  end

  # 21 coefficients, 500 observations.
  def model(:logistic, type) do
    {rows, _} =
      Enum.map_reduce(1..500, 21, fn _, state ->
        {values, state} = Enum.map_reduce(1..20, state, fn _, state -> normal_number(state) end)
        row = [1.0 | values]
        eta = row |> Enum.with_index() |> Enum.reduce(0, fn {v, j}, sum -> sum + :math.cos(j) * v end)
        {u, state} = uniform_number(state)
        {{row, if(u < 1 / (1 + :math.exp(-eta)), do: 1, else: 0)}, state}
      end)

    {x, y} = Enum.unzip(rows)
    {x, y} = {tensor(x, type), tensor(y, type)}

    log_density = fn beta ->
      eta = Nx.dot(x, beta)
      # log(1 + exp(eta)), without overflow.
      softplus = Nx.add(Nx.max(eta, 0), Nx.log1p(Nx.exp(Nx.negate(Nx.abs(eta)))))
      Nx.add(Nx.sum(Nx.subtract(Nx.multiply(y, eta), softplus)), squares(beta))
    end

    quantities = fn draws -> for j <- [1, 2, 8, 21], into: %{}, do: {"beta[#{j}]", draws[[.., .., j - 1]]} end
    %{log_density: log_density, template: Nx.template({21}, type), options: [], quantities: quantities}
  end

  # Returns are a mixture of a trend, reversion to a mean, and noise: 8 parameters, 200 observations. Means are drawn in
  # hundredths.
  def model(:regime, type) do
    {returns, _} =
      Enum.map_reduce(1..200, {8, 0.0}, fn _, {state, before} ->
        {u, state} = uniform_number(state)
        {z, state} = normal_number(state)

        value =
          cond do
            u < 0.45 -> 0.008 + 0.002 * z
            u < 0.8 -> before + 0.7 * (-0.004 - before) + 0.001 * z
            true -> 0.03 * z
          end

        {value, {state, value}}
      end)

    {r, before} = {tensor(returns, type), tensor([0.0 | Enum.drop(returns, -1)], type)}

    log_density = fn q ->
      [trend, reverting, volatile, theta] = for i <- [1, 3, 4, 5], do: Nx.exp(q[i])
      [w1, w2] = for i <- [6, 7], do: Nx.exp(Nx.min(q[i], 10))
      total = sum([w1, w2, 1])
      [mu_trend, mu_mr] = for i <- [0, 2], do: Nx.multiply(q[i], tensor(0.01, type))
      reverted = Nx.add(before, Nx.multiply(theta, Nx.subtract(mu_mr, before)))

      likelihood =
        [
          Nx.add(normal(r, mu_trend, trend), Nx.log(Nx.divide(w1, total))),
          Nx.add(normal(r, reverted, reverting), Nx.log(Nx.divide(w2, total))),
          Nx.subtract(normal(r, 0, volatile), Nx.log(total))
        ]
        |> Nx.stack()
        |> Nx.logsumexp(axes: [0])
        |> Nx.sum()

      sum([
        likelihood,
        normal(mu_trend, 0.001, 0.01),
        normal(mu_mr, 0.001, 0.01),
        normal(q[6], 0, 1),
        normal(q[7], 0, 1),
        half_cauchy(trend, 0.02),
        half_cauchy(reverting, 0.02),
        half_cauchy(volatile, 0.05),
        half_cauchy(theta, 0.5),
        q[1],
        q[3],
        q[4],
        q[5]
      ])
    end

    names = ~w(mu_trend log_sigma_trend mu_mr log_sigma_mr log_sigma_vol log_theta logit_w1 logit_w2)

    quantities = fn draws ->
      for {name, j} <- Enum.with_index(names), into: %{} do
        {name, if(j in [0, 2], do: Nx.multiply(draws[[.., .., j]], tensor(0.01, type)), else: draws[[.., .., j]])}
      end
    end

    # The regimes could change places; the reference starts here, too.
    init = tensor([0.8, -6.0, -0.4, -7.0, -3.5, -0.4, 0.8, 0.5], type)
    options = [target_accept: 0.9, init: init]
    %{log_density: log_density, template: Nx.template({8}, type), options: options, quantities: quantities}
  end

  # Ten groups with means theta = mu + tau z and known errors.
  def model(:hierarchical, type) do
    errors = for j <- 0..9, do: 0.5 + 0.05 * j

    {means, state} =
      Enum.map_reduce(errors, 3, fn _, state ->
        {z, state} = normal_number(state)
        {2.0 + 1.5 * z, state}
      end)

    {y, _} =
      Enum.map_reduce(Enum.zip(means, errors), state, fn {mean, error}, state ->
        {z, state} = normal_number(state)
        {mean + error * z, state}
      end)

    {y, errors} = {tensor(y, type), tensor(errors, type)}

    log_density = fn %{mu: mu, log_tau: log_tau, z: z} ->
      tau = Nx.exp(log_tau)
      residual = Nx.divide(Nx.subtract(y, Nx.add(mu, Nx.multiply(tau, z))), errors)
      sum([normal(mu, 0, 5), squares(Nx.divide(tau, 3)), log_tau, squares(z), squares(residual)])
    end

    template = %{mu: Nx.template({}, type), log_tau: Nx.template({}, type), z: Nx.template({10}, type)}
    quantities = fn draws -> %{"mu" => draws.mu, "log_tau" => draws.log_tau} end
    %{log_density: log_density, template: template, options: [target_accept: 0.95], quantities: quantities}
  end

  # Neal's funnel: nine normals x whose standard deviation is exp(v / 2). Drawn as v and z = x / exp(v / 2), the
  # non-centred parametrisation of the same distribution (Stan's user's guide, "Reparameterization"): its density has no
  # narrow neck.
  def model(:funnel, type) do
    log_density = fn %{v: v, z: z} -> Nx.add(Nx.multiply(-0.5, Nx.pow(Nx.divide(v, 3), 2)), squares(z)) end

    quantities = fn draws ->
      x = Nx.multiply(Nx.new_axis(Nx.exp(Nx.divide(draws.v, 2)), -1), draws.z)
      of_funnel(draws.v, x)
    end

    template = %{v: Nx.template({}, type), z: Nx.template({9}, type)}
    %{log_density: log_density, template: template, options: [], quantities: quantities}
  end

  # The same as it is written down, v and x. No step size suits both the neck and the mouth: chains diverge where v is
  # small and stay away from there, so that what they draw is wrong. `stats.divergent` says so.
  def model(:centered_funnel, type) do
    log_density = fn %{v: v, x: x} ->
      sum([
        Nx.multiply(-0.5, Nx.pow(Nx.divide(v, 3), 2)),
        squares(Nx.divide(x, Nx.exp(Nx.divide(v, 2)))),
        Nx.multiply(v, -4.5)
      ])
    end

    template = %{v: Nx.template({}, type), x: Nx.template({9}, type)}
    %{log_density: log_density, template: template, options: [], quantities: &of_funnel(&1.v, &1.x)}
  end

  # A path of 20 normal steps, seen with errors of 0.5.
  def model(:walk, type) do
    {y, _} =
      Enum.map_reduce(1..20, {5, 0.0}, fn _, {state, x} ->
        {step, state} = normal_number(state)
        {error, state} = normal_number(state)
        x = x + 0.4 * step
        {x + 0.5 * error, {state, x}}
      end)

    y = tensor(y, type)
    sums = Nx.tril(Nx.broadcast(tensor(1.0, type), {20, 20}))

    log_density = fn %{log_sigma: log_sigma, z: z} ->
      sigma = Nx.exp(log_sigma)
      x = Nx.dot(sums, Nx.multiply(sigma, z))
      sum([squares(sigma), log_sigma, squares(z), squares(Nx.divide(Nx.subtract(y, x), 0.5))])
    end

    quantities = fn draws ->
      x = Nx.multiply(Nx.new_axis(Nx.exp(draws.log_sigma), 2), Nx.dot(draws.z, [2], Nx.backend_copy(sums), [1]))
      for t <- [1, 10, 20], into: %{"log_sigma" => draws.log_sigma}, do: {"x[#{t}]", x[[.., .., t - 1]]}
    end

    template = %{log_sigma: Nx.template({}, type), z: Nx.template({20}, type)}
    %{log_density: log_density, template: template, options: [target_accept: 0.9], quantities: quantities}
  end

  @doc """
  Where the draws come from in the reference, and `[{quantity, statistic, value, standard error}]`.
  """
  def reference(name) do
    %{"source" => source, "quantities" => quantities} =
      @reference |> File.read!() |> JSON.decode!() |> Map.fetch!("#{name}")

    values =
      for {quantity, statistics} <- quantities, {statistic, [value, error]} <- statistics do
        {quantity, statistic, value, error}
      end

    {source, values}
  end

  defp of_funnel(v, x) do
    x = Nx.slice_along_axis(x, 0, 1, axis: -1) |> Nx.squeeze(axes: [-1])
    %{"v" => v, "x[1]" => x, "log |x[1]|" => Nx.log(Nx.abs(x))}
  end

  ## Log-densities, without constants

  defp normal(x, mu, sigma) do
    # Nx would take a number as f32.
    [mu, sigma] = for c <- [mu, sigma], do: if(is_number(c), do: tensor(c, x.type), else: c)
    Nx.subtract(squares_of(Nx.divide(Nx.subtract(x, mu), sigma)), Nx.log(sigma))
  end

  defp half_cauchy(x, scale), do: Nx.negate(Nx.log1p(Nx.pow(Nx.divide(x, tensor(scale, x.type)), 2)))
  defp squares_of(x), do: Nx.multiply(-0.5, Nx.multiply(x, x))
  defp squares(x), do: Nx.sum(squares_of(x))
  defp sum(terms), do: Enum.reduce(terms, &Nx.add/2)

  ## Data

  defp tensor(values, type), do: Nx.tensor(values, type: type, backend: Nx.BinaryBackend)

  # A linear congruential generator (Numerical Recipes), and sums of twelve as normals.
  defp uniform_number(state) do
    state = rem(1_664_525 * state + 1_013_904_223, 0x100000000)
    {state / 0x100000000, state}
  end

  defp normal_number(state) do
    {values, state} = Enum.map_reduce(1..12, state, fn _, state -> uniform_number(state) end)
    {Enum.sum(values) - 6, state}
  end
end
