defmodule Nx.Vulkan.NUTS.Diagnostics do
  @moduledoc """
  Convergence and precision of what several chains drew.

  Draws are lists of chains, lists of numbers in the order in which they were drawn, or a tensor `{chains, draws}`: as
  many of each chain, and at least 4. Anything else is an `ArgumentError`.

  Where a draw is not finite, or larger than 1.0e150, whose square overflows, the answer is `:nan`. R-hat is `:infinity`
  where every half of a chain stays at a number, but not all at the same. (`:nan` and `:infinity` are larger than any
  number, so that no comparison takes them for converged.) Where all draws are equal, R-hat is 1.0, each counts as
  effective, and errors are 0.0.

  Source: Vehtari, Gelman, Simpson, Carpenter, Bürkner, "Rank-normalization, folding, and localization: an improved
  R-hat for assessing convergence of MCMC", Bayesian Analysis 16(2), 2021. R-hat is the rank-normalised, split one.

  ## Examples

      iex> chains = for c <- 1..4, do: for(i <- 1..100, do: :math.sin(i * i + 0.1 * c))
      iex> Nx.Vulkan.NUTS.Diagnostics.rhat(chains) < 1.01
      true
  """

  @typedoc "Draws of one quantity."
  @type draws :: [[number | :nan | :infinity | :neg_infinity]] | Nx.Tensor.t()

  # Squares of larger numbers may overflow, once some thousands are added up.
  @largest 1.0e150
  @not_finite [:nan, :infinity, :neg_infinity]

  @doc """
  The larger of the R-hats of the rank-normalised and of the folded rank-normalised draws. Chains that agree have one
  below 1.01.
  """
  @spec rhat(draws) :: float | :nan | :infinity
  def rhat(draws) do
    finite(draws, :nan, fn chains ->
      halves = split(chains)
      centre = median(Enum.concat(halves))
      folded = for half <- halves, do: Enum.map(half, &abs(&1 - centre))
      max(split_rhat(rank_normalise(halves)), split_rhat(rank_normalise(folded)))
    end)
  end

  @doc "Effective sample size of the rank-normalised draws, by Geyer's initial monotone sequence."
  @spec ess_bulk(draws) :: float | :nan
  def ess_bulk(draws), do: finite(draws, :nan, &(&1 |> split() |> rank_normalise() |> ess()))

  @doc "Effective sample size for the mean of the draws themselves."
  @spec ess_mean(draws) :: float | :nan
  def ess_mean(draws), do: finite(draws, :nan, &(&1 |> split() |> ess()))

  @doc """
  The mean of the draws and its Monte Carlo standard error.

  ## Examples

      iex> {mean, error} = Nx.Vulkan.NUTS.Diagnostics.mean_error([[1, 3, 1, 3, 2, 2], [2, 2, 3, 1, 3, 1]])
      iex> mean == 2.0 and error < 0.5
      true
  """
  @spec mean_error(draws) :: {float, float} | {:nan, :nan}
  def mean_error(draws) do
    finite(draws, {:nan, :nan}, fn chains ->
      all = Enum.concat(chains)
      error = if constant?(all), do: 0.0, else: sd(all) / :math.sqrt(ess_mean(chains))
      {mean(all), error}
    end)
  end

  @doc """
  The standard deviation of the draws and its Monte Carlo standard error, by the delta method from squares of the
  centred draws.
  """
  @spec sd_error(draws) :: {float, float} | {:nan, :nan}
  def sd_error(draws) do
    finite(draws, {:nan, :nan}, fn chains ->
      all = Enum.concat(chains)
      centre = mean(all)
      # In units of the largest, whose squares neither overflow nor vanish.
      scale = all |> Enum.map(&abs(&1 - centre)) |> Enum.max()

      if constant?(all) or scale == 0 do
        {0.0, 0.0}
      else
        squares = for chain <- chains, do: Enum.map(chain, &((&1 - centre) / scale * ((&1 - centre) / scale)))
        count = length(all)
        sd = :math.sqrt(Enum.sum(Enum.concat(squares)) / (count - 1))
        {scale * sd, scale * sd(Enum.concat(squares)) / :math.sqrt(ess(split(squares))) / (2 * sd)}
      end
    end)
  end

  @doc """
  The quantile of the draws at `probability`, between 0 and 1, and its Monte Carlo standard error: half the distance
  between the quantiles one standard error of the share of draws below to either side.

  ## Examples

      iex> chains = for c <- 1..4, do: for(i <- 1..100, do: :math.sin(i * i + 0.1 * c))
      iex> {median, error} = Nx.Vulkan.NUTS.Diagnostics.quantile_error(chains, 0.5)
      iex> abs(median) < 3 * error
      true
  """
  @spec quantile_error(draws, float) :: {float, float} | {:nan, :nan}
  def quantile_error(draws, probability) when is_number(probability) and probability >= 0 and probability <= 1 do
    finite(draws, {:nan, :nan}, fn chains ->
      sorted = chains |> Enum.concat() |> Enum.sort() |> List.to_tuple()
      value = quantile(sorted, probability)
      below = for chain <- chains, do: Enum.map(chain, &if(&1 <= value, do: 1.0, else: 0.0))
      error = :math.sqrt(probability * (1 - probability) / ess_mean(below))
      {value, (quantile(sorted, min(probability + error, 1.0)) - quantile(sorted, max(probability - error, 0.0))) / 2}
    end)
  end

  def quantile_error(_draws, probability) do
    raise ArgumentError, "expected a probability between 0 and 1, got: #{inspect(probability)}"
  end

  # Between the two nearest draws, linearly.
  defp quantile(sorted, probability) do
    place = probability * (tuple_size(sorted) - 1)
    low = trunc(place)
    high = min(low + 1, tuple_size(sorted) - 1)
    elem(sorted, low) + (place - low) * (elem(sorted, high) - elem(sorted, low))
  end

  defp chains(%Nx.Tensor{} = draws) do
    if Nx.rank(draws) != 2 do
      raise ArgumentError, "expected draws of the shape {chains, draws}, got: #{inspect(Nx.shape(draws))}"
    end

    draws |> Nx.backend_copy(Nx.BinaryBackend) |> Nx.to_list() |> chains()
  end

  defp chains([first | _] = draws) when is_list(first) do
    if not Enum.all?(draws, &(is_list(&1) and Enum.all?(&1, fn x -> is_number(x) or x in @not_finite end))) do
      raise ArgumentError, "expected chains to be lists of real numbers"
    end

    case draws |> Enum.map(&length/1) |> Enum.uniq() do
      [length] when length >= 4 -> draws
      [length] -> raise ArgumentError, "expected at least 4 draws of each chain, got: #{length}"
      lengths -> raise ArgumentError, "expected as many draws of each chain, got lengths: #{inspect(lengths)}"
    end
  end

  defp chains(other) do
    raise ArgumentError, "expected a list of chains or a tensor {chains, draws}, got: #{inspect(other)}"
  end

  defp finite(draws, otherwise, fun) do
    chains = chains(draws)
    finite? = Enum.all?(chains, &Enum.all?(&1, fn x -> is_number(x) and abs(x) <= @largest end))
    if finite?, do: fun.(chains), else: otherwise
  end

  defp constant?([first | rest]), do: Enum.all?(rest, &(&1 == first))

  @doc "The mean of numbers."
  @spec mean([number]) :: float
  def mean(values), do: Enum.sum(values) / length(values)

  defp variance(values) do
    centre = mean(values)
    Enum.reduce(values, 0.0, fn x, sum -> sum + (x - centre) * (x - centre) end) / max(length(values) - 1, 1)
  end

  @doc "The sample standard deviation of numbers."
  @spec sd([number]) :: float
  def sd(values), do: :math.sqrt(variance(values))

  @doc "The median of numbers."
  @spec median([number]) :: float
  def median(values) do
    sorted = List.to_tuple(Enum.sort(values))
    n = tuple_size(sorted)
    (elem(sorted, div(n - 1, 2)) + elem(sorted, div(n, 2))) / 2
  end

  # First and second halves as chains of their own; the middle draw of an odd number is left out.
  defp split(chains) do
    Enum.flat_map(chains, fn chain ->
      half = div(length(chain), 2)
      [Enum.take(chain, half), Enum.take(chain, -half)]
    end)
  end

  # Replaces draws by the normal quantiles of their ranks among all chains; ties share their average rank.
  defp rank_normalise(chains) do
    all = Enum.concat(chains)
    count = length(all)

    {score_of, _} =
      all
      |> Enum.frequencies()
      |> Enum.sort()
      |> Enum.reduce({%{}, 0}, fn {value, ties}, {score_of, before} ->
        rank = before + (ties + 1) / 2
        {Map.put(score_of, value, normal_quantile((rank - 0.375) / (count + 0.25))), before + ties}
      end)

    for chain <- chains, do: Enum.map(chain, &Map.fetch!(score_of, &1))
  end

  # Mean variance within the chains, and the estimate of the posterior's variance from within and between.
  defp variances(chains) do
    n = length(hd(chains))
    within = mean(Enum.map(chains, &variance/1))
    {within, within * (n - 1) / n + variance(Enum.map(chains, &mean/1))}
  end

  defp split_rhat(chains) do
    cond do
      # A quantity that never changes has no variance.
      constant?(Enum.concat(chains)) ->
        1.0

      Enum.all?(chains, &constant?/1) ->
        :infinity

      true ->
        {within, total} = variances(chains)
        :math.sqrt(total / within)
    end
  end

  defp ess(chains) do
    n = length(hd(chains))
    draws = n * length(chains)
    {within, total} = variances(chains)

    centred =
      for chain <- chains do
        centre = mean(chain)
        Enum.map(chain, &(&1 - centre))
      end

    correlation = fn lag ->
      covariances =
        for chain <- centred do
          Enum.zip_reduce(chain, Enum.drop(chain, lag), 0.0, fn a, b, sum -> sum + a * b end) / n
        end

      1 - (within - mean(covariances)) / total
    end

    # Antithetic chains can beat independent draws; the bound keeps noise from claiming without limit.
    if total == 0.0 or constant?(Enum.concat(chains)) do
      draws / 1
    else
      draws / max(correlation_time(correlation, 0, n, nil, -1.0), 1 / :math.log10(draws))
    end
  end

  # Sums of neighbouring pairs are positive and falling for a reversible chain: noise starts where they are not.
  defp correlation_time(correlation, lag, n, last_pair, time) when lag + 1 < n do
    even = if lag == 0, do: 1.0, else: correlation.(lag)
    pair = even + correlation.(lag + 1)
    pair = if last_pair, do: min(pair, last_pair), else: pair
    if pair <= 0, do: time, else: correlation_time(correlation, lag + 2, n, pair, time + 2 * pair)
  end

  defp correlation_time(_correlation, _lag, _n, _last_pair, time), do: time

  # Quantile of the standard normal to about 1e-9. Source: P. Acklam's rational approximation, 2003, and one step of
  # Halley's method.
  defp normal_quantile(p) do
    x = rough_quantile(p)
    error = 0.5 * :math.erfc(-x / :math.sqrt(2)) - p
    u = error * :math.sqrt(2 * :math.pi()) * :math.exp(x * x / 2)
    x - u / (1 + x * u / 2)
  end

  @a [
    -3.969683028665376e1,
    2.209460984245205e2,
    -2.759285104469687e2,
    1.383577518672690e2,
    -3.066479806614716e1,
    2.506628277459239
  ]
  @b [-5.447609879822406e1, 1.615858368580409e2, -1.556989798598866e2, 6.680131188771972e1, -1.328068155288572e1, 1.0]
  @c [
    -7.784894002430293e-3,
    -3.223964580411365e-1,
    -2.400758277161838,
    -2.549732539343734,
    4.374664141464968,
    2.938163982698783
  ]
  @d [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416, 1.0]

  defp rough_quantile(p) when p < 0.02425 do
    q = :math.sqrt(-2 * :math.log(p))
    horner(@c, q) / horner(@d, q)
  end

  defp rough_quantile(p) when p > 1 - 0.02425, do: -rough_quantile(1 - p)

  defp rough_quantile(p) do
    q = p - 0.5
    q * horner(@a, q * q) / horner(@b, q * q)
  end

  defp horner(coefficients, x), do: Enum.reduce(coefficients, 0.0, fn c, sum -> sum * x + c end)
end
