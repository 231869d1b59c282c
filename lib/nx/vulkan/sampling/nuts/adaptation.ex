defmodule Nx.Vulkan.NUTS.Adaptation do
  @moduledoc false

  # The warm-up's schedule and what it learns of the posterior's scales, as Stan does it (reference manual, "HMC
  # algorithm parameters"): steps adapt all the time; between a first and a last part the mass matrix is estimated anew
  # from each of several windows, each about twice as long as the one before.

  alias Nx.Vulkan.VulkanoBackend, as: B

  # Draws before the first window, in the first one, and after the last.
  @before 75
  @first 25
  @final 50
  # The warm-up that has fewer draws is parted by shares; so few learn no scales.
  @shares_below @before + @first + @final
  @steps_alone_below 20

  # A prior of the variances: so many draws, with this variance.
  @prior_draws 5
  @prior_variance 1.0e-3

  @doc """
  The parts of a warm-up in order: `{draws, true}` where the scales are learned from these draws.
  """
  @spec windows(non_neg_integer) :: [{pos_integer, boolean}]
  def windows(0), do: []
  def windows(draws) when draws < @steps_alone_below, do: [{draws, false}]

  def windows(draws) when draws < @shares_below do
    {start, final} = {trunc(0.15 * draws), trunc(0.1 * draws)}
    [{start, false}, {draws - start - final, true}, {final, false}]
  end

  def windows(draws), do: [{@before, false}] ++ slow(draws - @before - @final, @first) ++ [{@final, false}]

  # A window takes what is left where that is too short for the next.
  defp slow(left, length) when left >= 3 * length, do: [{length, true} | slow(left - length, 2 * length)]
  defp slow(left, _length), do: [{left, true}]

  @doc """
  Adds draws `{chains, n, d}` to the moments of those before, or of none (nil).
  """
  def moments(before, draws, mass) do
    n = Nx.axis_size(draws, 1)
    mean = Nx.mean(draws, axes: [1])
    centred = Nx.subtract(draws, Nx.new_axis(mean, 1))

    squares =
      case mass do
        :diagonal -> Nx.sum(Nx.multiply(centred, centred), axes: [1])
        :dense -> Nx.dot(centred, [1], [0], centred, [1], [0])
      end

    merge(before, {n, mean, squares}, mass)
  end

  defp merge(nil, moments, _mass), do: moments

  defp merge({n, mean, squares}, {m, other, more}, mass) do
    apart = Nx.subtract(other, mean)
    [share, weight] = for x <- [m / (n + m), n * m / (n + m)], do: number(x, mean)

    between =
      case mass do
        :diagonal -> Nx.multiply(apart, apart)
        :dense -> Nx.multiply(Nx.new_axis(apart, 2), Nx.new_axis(apart, 1))
      end

    squares = squares |> Nx.add(more) |> Nx.add(Nx.multiply(between, weight))
    {n + m, Nx.add(mean, Nx.multiply(apart, share)), squares}
  end

  @doc """
  The inverse mass, which is the covariance of the draws or its diagonal, drawn a little to small variances.
  """
  def inverse_mass({n, _mean, squares}, mass) do
    share = n / (n + @prior_draws)
    prior = number(@prior_variance * (1 - share), squares)
    scaled = Nx.multiply(squares, number(share / max(n - 1, 1), squares))

    case mass do
      :diagonal ->
        Nx.add(scaled, prior)

      :dense ->
        Nx.add(scaled, Nx.multiply(Nx.eye(Nx.axis_size(squares, 1), type: squares.type, backend: B), prior))
    end
  end

  # Nx would take it as f32.
  defp number(x, like), do: Nx.tensor(x, type: like.type)

  @doc """
  What makes momenta of standard normals: a root of the mass.
  """
  def momentum_scale(inverse_mass, :diagonal), do: Nx.rsqrt(inverse_mass)

  # Of the inverse mass L L^T, the momenta L^-T z have the covariance (L L^T)^-1.
  def momentum_scale(inverse_mass, :dense) do
    eye = Nx.broadcast(Nx.eye(Nx.axis_size(inverse_mass, 1), type: inverse_mass.type, backend: B), inverse_mass)
    upper = inverse_mass |> Nx.LinAlg.cholesky() |> Nx.transpose(axes: [0, 2, 1])
    Nx.LinAlg.triangular_solve(upper, eye, lower: false)
  end
end
