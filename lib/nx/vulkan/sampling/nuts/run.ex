defmodule Nx.Vulkan.NUTS.Run do
  @moduledoc false

  # A run of the sampler: starts, searches for step sizes, the warm-up's windows, and draws, in calls of the engine that
  # each take all chains some draws further, in one dispatch or several. The state stays on the device; the host reads
  # one number for each call, to wait for it, or for each dispatch which chains have ended a draw (Batched).

  require Logger

  alias Nx.Vulkan.NUTS.{Adaptation, Random, Transition}

  # How many times more draws than the call before each may take: trees may grow. The first one, and that after a change
  # of scales, takes one.
  @growth 2
  # Draws whose moments are taken at once. They don't depend on where calls ended, which the clock decides.
  @block 64
  # Memory for what one call leaves, in bytes.
  @call_bytes 67_108_864
  # Workgroups that every device takes.
  @max_groups 65_535

  # Factors of two to either side of a step in a search, and how often it goes on from the last of them.
  @doublings 3
  @searches 34
  # Way of a search, as a logarithm, that no log-density should need.
  @far 40 * :math.log(2)
  # Starts that are tried where the log-density is not finite, each parameter between -2 and 2, as Stan does.
  @starts 100
  @start_radius 2.0
  # exp(this) is a step of 0.
  @no_step -1.0e6

  @enforce_keys [:transition, :opts, :chains, :type, :d]
  defstruct @enforce_keys ++
              [:state, :own, first_draw: 0, dispatches: 0, divergent: 0, pace: 1] ++
              [draws: [], statistics: [], warmup: []]

  @doc "A run that has not started: keys, and masses of one."
  def new(%Transition{type: type, parameters: d} = transition, opts) do
    run = %__MODULE__{transition: transition, opts: opts, chains: opts.num_chains, type: type, d: d}
    [high, low] = opts.key
    keys = for chain <- 1..run.chains, do: words(:rand.seed_s(:exsss, {high, low, chain}))
    one = Nx.tensor(1.0, type: type)

    mass =
      case opts.mass_matrix do
        :diagonal -> Nx.broadcast(one, {run.chains, d})
        :dense -> Nx.broadcast(Nx.eye(d, type: type), {run.chains, d, d})
      end

    own = %{key: Nx.tensor(keys, type: :u32), mu: numbers(run, 0.0), inverse_mass: mass, momentum_scale: mass}
    %{run | own: own}
  end

  defp words(seed) do
    {words, _seed} = Enum.map_reduce(1..2, seed, fn _, seed -> :rand.uniform_s(0x100000000, seed) end)
    Enum.map(words, &(&1 - 1))
  end

  defp numbers(run, number), do: Nx.broadcast(Nx.tensor(number, type: run.type), {run.chains})

  ## Starts

  @doc "Puts all chains to the vector `:init`, or each somewhere (nil), with the log-density and its gradient there."
  def start(%{opts: %{init: nil}} = run), do: try_starts(run, places(run, 1), 1)

  def start(%{opts: %{init: init}} = run) do
    {run, finite} = evaluate(run, Nx.broadcast(init, {run.chains, run.d}))
    if false in finite, do: raise(ArgumentError, "the log-density or its gradient is not finite at :init")
    run
  end

  defp try_starts(run, places, tried) do
    {run, finite} = evaluate(run, places)

    cond do
      false not in finite ->
        run

      tried == @starts ->
        raise ArgumentError,
              "the log-density or its gradient is not finite at any of #{@starts} starts between " <>
                "-#{@start_radius} and #{@start_radius}; give the option :init"

      true ->
        keep = finite |> Enum.map(&if(&1, do: 1, else: 0)) |> Nx.tensor(type: :u8) |> Nx.new_axis(1)
        try_starts(run, Nx.select(Nx.broadcast(keep, places), places, places(run, tried + 1)), tried + 1)
    end
  end

  # What a chain tries depends on its key and on how often it tried.
  defp places(run, tried) do
    like = Nx.broadcast(Nx.tensor(0.0, type: run.type), {run.d})
    arguments = [run.own.key, Nx.tensor(tried, type: :u32), like]
    starts = Nx.Defn.jit_apply(&Random.starts/3, arguments, compiler: Nx.Vulkan.Compiler)
    Nx.multiply(starts, @start_radius)
  end

  # A step of no length gives the log-density and the gradient where the chains are. Answers for each whether they are
  # finite.
  defp evaluate(run, q) do
    zero = numbers(run, 0.0)

    state = %{
      q: q,
      gradient: Nx.broadcast(Nx.tensor(0.0, type: run.type), {run.chains, run.d}),
      log_density: zero,
      log_step: numbers(run, @no_step),
      mean_log_step: zero,
      error: zero,
      updates: zero
    }

    {run, state, _, statistics} = take(%{run | state: state}, shared(run, max_depth: 1, force: 1), 1)

    # The energy is what a gradient that is not finite leaves. How far the log-density is below 0 says nothing.
    finite =
      for [log_density, energy] <- Nx.to_list(statistics[[.., 0, 0..1]]) do
        is_float(log_density) and is_float(energy)
      end

    {%{run | state: state, pace: 1}, finite}
  end

  defp shared(run, more) do
    Map.merge(
      %{
        first_draw: run.first_draw,
        max_depth: run.opts.max_tree_depth,
        adapt: 0,
        force: 0,
        target_accept: run.opts.target_accept
      },
      Map.new(more)
    )
  end

  ## Step sizes

  # Doubles or halves the step size of each chain until one leapfrog step crosses the acceptance that is aimed at, as
  # Stan does, and lets adaptation begin there. Candidates to both sides are tried at once.
  defp search(run, log_steps) do
    log_steps = search(run, Enum.map(log_steps, &{&1, false}), @searches)
    mu = Enum.map(log_steps, &(&1 + :math.log(10)))
    zero = numbers(run, 0.0)
    adapted = %{log_step: vector(run, log_steps), mean_log_step: zero, error: zero, updates: zero}
    own = %{run.own | mu: vector(run, mu)}
    %{run | state: Map.merge(run.state, adapted), own: own, dispatches: run.dispatches + 1, pace: 1}
  end

  # Of each chain how far its search came, and whether it has ended.
  defp search(run, searches, left) do
    reach = min(@doublings, div(div(@max_groups, run.chains) - 1, 2))
    candidates = for {log_step, _} <- searches, do: for(k <- -reach..reach, do: log_step + k * :math.log(2))
    accepted = accepted(run, candidates)

    searches =
      Enum.zip_with([searches, candidates, accepted], fn
        [{_, true} = ended, _, _] -> ended
        [_, candidates, accepted] -> crossing(candidates, accepted, reach, run.opts.target_accept)
      end)

    if left > 1 and not Enum.all?(searches, &elem(&1, 1)) do
      search(run, searches, left - 1)
    else
      warn(run, searches)
      Enum.map(searches, &elem(&1, 0))
    end
  end

  # How each candidate of each chain is accepted.
  defp accepted(%{transition: %{batched: nil}} = run, [candidates | _] = all) do
    count = length(candidates)

    repeated = fn tensor ->
      [chains | rest] = tensor |> Nx.shape() |> Tuple.to_list()
      wide = tensor |> Nx.new_axis(1) |> Nx.broadcast(List.to_tuple([chains, count | rest]))
      Nx.reshape(wide, List.to_tuple([chains * count | rest]))
    end

    state = Map.new(run.state, fn {name, tensor} -> {name, repeated.(tensor)} end)
    own = Map.new(run.own, fn {name, tensor} -> {name, repeated.(tensor)} end)
    wide = %{run | chains: run.chains * count, state: %{state | log_step: vector(run, List.flatten(all))}, own: own}
    {_, _, _, statistics} = take(wide, shared(run, max_depth: 1), 1)
    statistics[[.., 0, 2]] |> Nx.reshape({run.chains, count}) |> Nx.to_list()
  end

  # Chains that are taken together stay as many.
  defp accepted(run, all) do
    columns =
      for candidates <- Enum.zip_with(all, & &1) do
        {_, _, _, statistics} = take(put_in(run.state.log_step, vector(run, candidates)), shared(run, max_depth: 1), 1)
        Nx.to_list(statistics[[.., 0, 2]])
      end

    Enum.zip_with(columns, & &1)
  end

  # Many chains search a shorter way, whose end says nothing.
  defp warn(run, searches) do
    ways = for {log_step, false} <- searches, do: log_step - :math.log(run.opts.step_size)
    far = Enum.filter(ways, &(abs(&1) > @far))

    reason =
      if Enum.any?(far, &(&1 > 0)) do
        "every step is accepted: the log-density does not fall far out, so that it may be improper, " <>
          "or its gradient is wrong"
      else
        "no step is accepted: the log-density may not be differentiable, or its gradient is wrong"
      end

    if far != [],
      do: Logger.warning("NUTS found no first step size for #{length(far)} of #{run.chains} chains: #{reason}")
  end

  # The first step upwards that is accepted too seldom, or the first downwards that is not; and whether there is one.
  defp crossing(candidates, accepted, middle, target) do
    # NaN counts as not accepted.
    high? = fn {_, prob} -> is_float(prob) and prob > target end
    {below, [at | above]} = candidates |> Enum.zip(accepted) |> Enum.split(middle)

    {way, crossed?} =
      if high?.(at), do: {above, &(not high?.(&1))}, else: {Enum.reverse(below), high?}

    case Enum.find(way, crossed?) do
      {log_step, _} -> {log_step, true}
      nil -> {way |> List.last() |> elem(0), false}
    end
  end

  defp vector(run, list), do: Nx.tensor(list, type: run.type)

  ## Draws

  @doc "Adapts step sizes and masses."
  def warm_up(%{opts: %{num_warmup: 0}} = run) do
    %{run | state: %{run.state | log_step: numbers(run, :math.log(run.opts.step_size))}}
  end

  def warm_up(run) do
    run = search(run, List.duplicate(:math.log(run.opts.step_size), run.chains))
    run = run.opts.num_warmup |> Adaptation.windows() |> Enum.reduce(run, &window/2)
    %{run | state: %{run.state | log_step: run.state.mean_log_step}, warmup: Enum.reverse(run.warmup)}
  end

  defp window({draws, false}, run), do: elem(adapt(run, draws), 0)

  defp window({draws, true}, run) do
    mass = run.opts.mass_matrix

    {run, moments} =
      draws
      |> blocks()
      |> Enum.reduce({run, nil}, fn draws, {run, moments} ->
        {run, qs} = adapt(run, draws)
        {run, Adaptation.moments(moments, Nx.concatenate(qs, axis: 1), mass)}
      end)

    inverse_mass = Adaptation.inverse_mass(moments, mass)
    own = %{run.own | inverse_mass: inverse_mass, momentum_scale: Adaptation.momentum_scale(inverse_mass, mass)}
    search(%{run | own: own}, Nx.to_list(run.state.log_step))
  end

  defp blocks(draws) when draws <= @block, do: [draws]
  defp blocks(draws), do: [@block | blocks(draws - @block)]

  # Draws of the warm-up. Answers where the chains were.
  defp adapt(run, draws) do
    {run, parts} = dispatches(run, draws, adapt: 1)
    {qs, statistics} = Enum.unzip(parts)
    {%{run | warmup: Enum.reverse(statistics, run.warmup)}, qs}
  end

  @doc "Takes the draws that are kept."
  def draw(run) do
    {run, parts} = dispatches(%{run | divergent: 0}, run.opts.num_samples, [])
    {draws, statistics} = Enum.unzip(parts)
    %{run | draws: draws, statistics: statistics}
  end

  # Takes `left` draws of every chain. Answers positions and statistics that calls left, in their order.
  defp dispatches(run, left, shared), do: dispatches(run, left, shared, [])

  defp dispatches(run, 0, _shared, parts), do: {run, Enum.reverse(parts)}

  defp dispatches(run, left, shared, parts) do
    draws = Enum.min([pace(run), left, most_draws(run)])
    {run, state, positions, statistics} = take(run, shared(run, shared), draws)
    run = %{run | state: state, first_draw: run.first_draw + draws}
    run |> progress(statistics) |> dispatches(left - draws, shared, [{positions, statistics} | parts])
  end

  # Takes all chains `draws` draws further, and waits for it. The pace is how many draws a call should take.
  defp take(run, shared, draws) do
    us = run.opts.dispatch_us
    started = System.monotonic_time(:microsecond)

    {state, positions, statistics} =
      Transition.take(run.transition, run.state, run.own, shared, run.chains, draws, us)

    # Any element comes when all are there.
    _ = Nx.to_binary(statistics, limit: 1)
    took = max(System.monotonic_time(:microsecond) - started, 1)
    pace = div(draws * us, took) |> max(1) |> min(max(draws, run.pace) * @growth)
    {%{run | dispatches: run.dispatches + 1, pace: pace}, state, positions, statistics}
  end

  # Chains that are taken together wait for each other at the end of a call, which is parts of its own: as long as it
  # may be, or short enough to see it go on.
  @draws_of_progress 20

  defp pace(%{transition: %{batched: nil}, pace: pace}), do: pace
  defp pace(%{opts: %{progress: none, num_samples: most}}) when none in [nil, false], do: max(most, @block)
  defp pace(_run), do: @draws_of_progress

  # A vector and a gradient for each draw, and fewer than twenty numbers.
  defp most_draws(%{chains: chains, d: d, type: {_, bits}}) do
    max(div(@call_bytes, chains * (2 * d + 20) * div(bits, 8)), 1)
  end

  ## Progress

  defp progress(%{opts: %{progress: none}} = run, _statistics) when none in [nil, false], do: run

  defp progress(%{opts: opts} = run, statistics) do
    divergent = run.divergent + (statistics[[.., .., 6]] |> Nx.sum() |> Nx.to_number() |> round())
    run = %{run | divergent: divergent}

    {phase, done, total} =
      if run.first_draw <= opts.num_warmup,
        do: {:warmup, run.first_draw, opts.num_warmup},
        else: {:sampling, run.first_draw - opts.num_warmup, opts.num_samples}

    step_size = statistics[[.., -1, 3]] |> Nx.mean() |> Nx.to_number()
    report = %{phase: phase, done: done, total: total, step_size: step_size, divergent: divergent}
    if is_function(opts.progress), do: opts.progress.(report), else: if(IO.ANSI.enabled?(), do: bar(report))
    run
  end

  # It writes over itself: for terminals, and for notebooks, which say that they take their codes.
  @bar_width 40

  defp bar(%{phase: phase, done: done, total: total, divergent: divergent}) do
    filled = div(@bar_width * done, total)
    bar = String.duplicate("#", filled) <> String.duplicate(".", @bar_width - filled)
    IO.write("\r#{String.pad_trailing("#{phase}", 8)} [#{bar}] #{done}/#{total}, #{divergent} divergent")
    if done == total, do: IO.write("\n")
  end
end
