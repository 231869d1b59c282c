defmodule EightSchools.HMC do
  @moduledoc """
  Hamiltonian Monte Carlo over K-step leapfrog chains: many Markov chains side by side, one dispatch per transition.

  All chains share the step size and the diagonal of the inverse mass matrix. The warm-up adapts both from all chains
  together: the step size by dual averaging towards an acceptance rate, the mass by the variance of the draws of a
  window.
  """

  alias Nx.Vulkan.NUTS.Diagnostics

  # Part of the step size that is drawn anew for each transition, so that no trajectory length resonates with the
  # posterior.
  @jitter 0.3
  # Starting points are uniform in a cube of this half width, as in Stan.
  @start_radius 2.0

  @type trajectories ::
          (q :: [[float]], p :: [[float]], inv_mass :: [float], eps :: float, k_steps :: pos_integer ->
             [{q :: [float], p :: [float], logp :: float} | :diverged])

  @doc """
  Draws from the density that `trajectories` moves in: it runs `k_steps` leapfrog steps of every chain and returns the
  last states.

  Options: `:chains`, `:d`, `:warmup`, `:draws` (per chain), `:k_steps`, `:target_accept`, `:seed`. Returns the draws as
  `[chain][draw][coordinate]`, the acceptance rate, the step size and the inverse mass matrix.
  """
  @spec sample(trajectories, keyword, (non_neg_integer -> any)) :: map
  def sample(trajectories, options, progress \\ fn _ -> :ok end) do
    options = Map.new(options)
    :rand.seed(:exsss, options.seed)

    start =
      for _ <- 1..options.chains do
        for _ <- 1..options.d, do: @start_radius * (2 * :rand.uniform() - 1)
      end

    state = %{run: trajectories, options: options, inv_mass: List.duplicate(1.0, options.d), chains: nil}
    # A step of size 0 leaves q where it is and gives the density there.
    still = List.duplicate(List.duplicate(0.0, options.d), options.chains)
    ends = trajectories.(start, still, state.inv_mass, 0.0, 1)
    state = %{state | chains: for({q, _p, logp} <- ends, do: {q, logp})}

    {state, eps} = warm_up(state, progress)

    {draws, {_state, accepted}} =
      Enum.map_reduce(1..options.draws, {state, 0.0}, fn draw, {state, accepted} ->
        {state, accept} = transition(state, eps)
        progress.(options.warmup + draw)
        {positions(state), {state, accepted + accept}}
      end)

    %{
      draws: Enum.zip_with(draws, & &1),
      accept_rate: accepted / options.draws,
      eps: eps,
      inv_mass: state.inv_mass
    }
  end

  defp positions(state), do: for({q, _logp} <- state.chains, do: q)

  # The first eighth only finds the step size; then come windows of a length that doubles, after each of which the mass
  # is set from the window's draws and the step size is sought anew; the last eighth polishes the step size.
  defp warm_up(%{options: options} = state, progress) do
    first = div(options.warmup, 8)
    last = options.warmup - first
    ends = window_ends(first, max(div(options.warmup, 16), 1), last)
    step = new_step(0.1, options.target_accept)

    {state, step, _window, _ends} =
      Enum.reduce(1..options.warmup, {state, step, [], ends}, fn iteration, {state, step, window, ends} ->
        {state, accept} = transition(state, :math.exp(step.log_eps))
        step = update_step(step, accept)
        window = if iteration > first and iteration <= last, do: [positions(state) | window], else: window
        progress.(iteration)

        case ends do
          [^iteration | ends] ->
            state = %{state | inv_mass: shrunk_variance(Enum.concat(window))}
            {state, new_step(:math.exp(step.log_eps_mean), options.target_accept), [], ends}

          ends ->
            {state, step, window, ends}
        end
      end)

    {state, :math.exp(step.log_eps_mean)}
  end

  # A window that the next one would not fit behind takes all that is left.
  defp window_ends(from, length, last) when from + 3 * length > last, do: [last]
  defp window_ends(from, length, last), do: [from + length | window_ends(from + length, 2 * length, last)]

  # Moves every chain by one trajectory; returns the mean acceptance probability.
  defp transition(%{options: options, inv_mass: inv_mass} = state, eps) do
    eps = eps * (1 + @jitter * (2 * :rand.uniform() - 1))
    momenta = for _ <- 1..options.chains, do: Enum.map(inv_mass, &(:rand.normal() / :math.sqrt(&1)))
    ends = state.run.(positions(state), momenta, inv_mass, eps, options.k_steps)

    moved =
      Enum.zip_with([state.chains, momenta, ends], fn [{q, logp}, p, chain_end] ->
        {accept, proposal} = judge(logp - kinetic(p, inv_mass), chain_end, inv_mass)
        {accept, if(:rand.uniform() < accept, do: proposal, else: {q, logp})}
      end)

    {accepts, chains} = Enum.unzip(moved)
    {%{state | chains: chains}, Enum.sum(accepts) / options.chains}
  end

  defp judge(_before, :diverged, _inv_mass), do: {0.0, nil}

  defp judge(before, {q, p, logp}, inv_mass) do
    gain = logp - kinetic(p, inv_mass) - before
    {if(gain >= 0, do: 1.0, else: :math.exp(gain)), {q, logp}}
  end

  defp kinetic(p, inv_mass), do: Enum.zip_reduce(p, inv_mass, 0.0, fn p, m, sum -> sum + 0.5 * m * p * p end)

  # Hoffman and Gelman, "The No-U-Turn Sampler", JMLR 15, 2014, section 3.2, with their constants.
  @gamma 0.05
  @t0 10
  @kappa 0.75

  defp new_step(eps, target) do
    log_eps = :math.log(eps)
    %{target: target, centre: :math.log(10 * eps), t: 0, error_sum: 0.0, log_eps: log_eps, log_eps_mean: log_eps}
  end

  defp update_step(step, accept) do
    t = step.t + 1
    weight = 1 / (t + @t0)
    error_sum = (1 - weight) * step.error_sum + weight * (step.target - accept)
    log_eps = step.centre - :math.sqrt(t) / @gamma * error_sum
    weight = :math.pow(t, -@kappa)
    log_eps_mean = weight * log_eps + (1 - weight) * step.log_eps_mean
    %{step | t: t, error_sum: error_sum, log_eps: log_eps, log_eps_mean: log_eps_mean}
  end

  # Variance of each coordinate, shrunk towards 0.001 by the weight of five draws, as in Stan.
  defp shrunk_variance(draws) do
    n = length(draws)

    for coordinate <- Enum.zip_with(draws, & &1) do
      Diagnostics.sd(coordinate) ** 2 * n / (n + 5) + 1.0e-3 * 5 / (n + 5)
    end
  end
end
