defmodule Posteriors.Large do
  @moduledoc """
  Posteriors whose data don't fit one workgroup, to measure samplers with. `bench/peers/large_posteriors.py` has the
  same.

  `model/2` gives `:log_density`, a function of the parameters and the data, `:template`, `:data`, and `:quantities`,
  which maps the draws to a map of tensors `{chains, draws}`. Numbers are hashes of their places, so that both make the
  same.
  """

  @names [:logistic, :hierarchical, :volatility, :gaussian_process]

  def names, do: @names

  @doc "`sizes` may say other ones: what a name has, smaller, is for tests."
  def model(name, type, sizes \\ [])

  # 50 coefficients, 100,000 observations.
  def model(:logistic, type, sizes) do
    [n, p] = sizes = sizes(sizes, [100_000, 50])
    x = normals(1, List.to_tuple(sizes), type)
    beta = Nx.multiply(Nx.cos(Nx.iota({p}, type: type)), 0.2)
    y = Nx.less(uniforms(2, {n}, type), Nx.sigmoid(Nx.dot(x, beta))) |> Nx.as_type(type)

    log_density = fn beta, %{x: x, y: y} ->
      eta = Nx.dot(x, beta)
      # log(1 + exp(eta)), without overflow.
      softplus = Nx.add(Nx.max(eta, 0), Nx.log1p(Nx.exp(Nx.negate(Nx.abs(eta)))))
      Nx.subtract(Nx.sum(Nx.subtract(Nx.multiply(y, eta), softplus)), half_squares(beta))
    end

    quantities = fn draws -> for j <- [0, 1, p - 1], into: %{}, do: {"beta[#{j}]", draws[[.., .., j]]} end
    %{log_density: log_density, template: Nx.template({p}, type), data: %{x: x, y: y}, quantities: quantities}
  end

  # 10,000 groups of 10 observations each.
  def model(:hierarchical, type, sizes) do
    [groups, each] = sizes = sizes(sizes, [10_000, 10])
    means = Nx.add(1.0, Nx.multiply(0.5, normals(3, {groups, 1}, type)))
    y = Nx.add(means, Nx.multiply(0.8, normals(4, List.to_tuple(sizes), type)))

    log_density = fn %{mu: mu, log_tau: log_tau, log_sigma: log_sigma, z: z}, y ->
      means = Nx.add(mu, Nx.multiply(Nx.exp(log_tau), z))
      residual = Nx.multiply(Nx.subtract(y, Nx.new_axis(means, 1)), Nx.exp(Nx.negate(log_sigma)))

      [half_squares(residual), Nx.multiply(groups * each, log_sigma), half_squares(z)]
      |> Kernel.++([half_squares(mu), half_squares(log_tau), half_squares(log_sigma)])
      |> Enum.reduce(&Nx.add/2)
      |> Nx.negate()
    end

    scalar = Nx.template({}, type)
    template = %{mu: scalar, log_tau: scalar, log_sigma: scalar, z: Nx.template({groups}, type)}

    quantities = fn draws ->
      %{"mu" => draws.mu, "tau" => Nx.exp(draws.log_tau), "sigma" => Nx.exp(draws.log_sigma)}
      |> Map.put("theta[0]", Nx.add(draws.mu, Nx.multiply(Nx.exp(draws.log_tau), draws.z[[.., .., 0]])))
    end

    %{log_density: log_density, template: template, data: y, quantities: quantities}
  end

  # A random walk of 2,000 steps, and returns of its exponential with heavy tails.
  def model(:volatility, type, sizes) do
    [n] = sizes(sizes, [2000])
    walk = Nx.cumulative_sum(Nx.multiply(0.05, normals(5, {n}, type)))
    y = Nx.multiply(Nx.exp(Nx.subtract(walk, 2)), normals(6, {n}, type))

    log_density = fn %{log_sigma: log_sigma, log_nu: log_nu, level: level, z: z}, y ->
      h = Nx.add(level, Nx.multiply(Nx.exp(log_sigma), Nx.cumulative_sum(z)))
      nu = Nx.exp(log_nu)
      scaled = Nx.multiply(y, Nx.exp(Nx.negate(h)))
      tails = Nx.log1p(Nx.divide(Nx.multiply(scaled, scaled), nu))
      # A scale near 0.05, ten degrees of freedom, give or take.
      priors = [
        half_squares(Nx.add(log_sigma, 3)),
        half_squares(Nx.subtract(log_nu, 2.3)),
        half_squares(Nx.add(level, 2))
      ]

      shared =
        Nx.subtract(
          Nx.subtract(log_gamma(Nx.divide(Nx.add(nu, 1), 2)), log_gamma(Nx.divide(nu, 2))),
          Nx.multiply(0.5, log_nu)
        )

      each = Nx.add(h, Nx.multiply(Nx.divide(Nx.add(nu, 1), 2), tails))
      Nx.subtract(Nx.multiply(n, shared), Enum.reduce([half_squares(z), Nx.sum(each) | priors], &Nx.add/2))
    end

    scalar = Nx.template({}, type)
    template = %{log_sigma: scalar, log_nu: scalar, level: scalar, z: Nx.template({n}, type)}

    quantities = fn draws ->
      %{"sigma" => Nx.exp(draws.log_sigma), "log_nu" => draws.log_nu, "level" => draws.level}
      |> Map.put("z[0]", draws.z[[.., .., 0]])
    end

    %{log_density: log_density, template: template, data: y, quantities: quantities}
  end

  # 500 points of a smooth function with noise.
  def model(:gaussian_process, type, sizes) do
    [n] = sizes(sizes, [500])
    x = Nx.multiply(Nx.iota({n}, type: type), 10 / n)
    y = Nx.add(Nx.sin(x), Nx.multiply(0.3, normals(7, {n}, type)))
    apart = Nx.subtract(Nx.new_axis(x, 1), x)

    log_density = fn q, %{y: y, squares: squares} ->
      scale = Nx.exp(Nx.multiply(2, q[0]))
      kernel = Nx.multiply(scale, Nx.exp(Nx.multiply(squares, Nx.multiply(-0.5, Nx.exp(Nx.multiply(-2, q[1]))))))
      noise = Nx.multiply(Nx.eye(n, type: type), Nx.exp(Nx.multiply(2, q[2])))
      factor = Nx.LinAlg.cholesky(Nx.add(kernel, noise))
      solved = Nx.LinAlg.triangular_solve(factor, y)
      diagonal = Nx.sum(Nx.log(Nx.take_diagonal(factor)))
      Nx.negate(Nx.add(Nx.add(half_squares(solved), diagonal), half_squares(q)))
    end

    quantities = fn draws ->
      for {name, j} <- Enum.with_index(~w(log_scale log_length log_noise)), into: %{}, do: {name, draws[[.., .., j]]}
    end

    data = %{y: y, squares: Nx.multiply(apart, apart)}
    %{log_density: log_density, template: Nx.template({3}, type), data: data, quantities: quantities}
  end

  defp sizes([], default), do: default
  defp sizes(sizes, default) when length(sizes) == length(default), do: sizes

  defp half_squares(x), do: Nx.multiply(0.5, Nx.sum(Nx.multiply(x, x)))

  # Stirling's series, after a step of eight.
  defp log_gamma(x) do
    shifted = Nx.add(x, 8)
    inverse = Nx.divide(1, shifted)
    square = Nx.multiply(inverse, inverse)

    series =
      Nx.multiply(inverse, Nx.subtract(1 / 12, Nx.multiply(square, Nx.subtract(1 / 360, Nx.divide(square, 1260)))))

    stirling = Nx.add(Nx.subtract(Nx.multiply(Nx.subtract(shifted, 0.5), Nx.log(shifted)), shifted), series)
    product = Enum.reduce(1..7, x, &Nx.multiply(&2, Nx.add(x, &1)))
    Nx.subtract(Nx.add(stirling, 0.5 * :math.log(2 * :math.pi())), Nx.log(product))
  end

  # Box and Muller's.
  defp normals(seed, shape, type) do
    radius = Nx.sqrt(Nx.multiply(-2, Nx.log(uniforms(2 * seed, shape, type))))
    Nx.multiply(radius, Nx.cos(Nx.multiply(2 * :math.pi(), uniforms(2 * seed + 1, shape, type))))
  end

  # Between 0 and 1, exclusively, of 23 bits: a hash of the place and the seed.
  defp uniforms(seed, shape, type) do
    word = &Nx.tensor(&1, type: :u32)

    mixed = fn x, bits, factor ->
      x |> Nx.bitwise_xor(Nx.right_shift(x, word.(bits))) |> Nx.multiply(word.(factor))
    end

    hash =
      Nx.iota(shape, type: :u32) |> Nx.multiply(word.(0x9E3779B1)) |> Nx.add(word.(rem(seed * 0x85EBCA6B, 0x100000000)))

    hash = hash |> mixed.(16, 0x7FEB352D) |> mixed.(15, 0x846CA68B) |> mixed.(16, 1)
    Nx.right_shift(hash, word.(9)) |> Nx.as_type(type) |> Nx.add(0.5) |> Nx.multiply(Nx.tensor(2 ** -23, type: type))
  end
end
