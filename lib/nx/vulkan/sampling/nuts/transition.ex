defmodule Nx.Vulkan.NUTS.Transition do
  @moduledoc false

  # One transition of the No-U-Turn sampler as a numerical definition, and what makes many of them: a kernel in which
  # every chain is a workgroup, or a program that has the whole device (the forms of Nx.Vulkan.Chain), for all chains
  # together (Batched) where its ops can be that.
  #
  # The tree grows leaf by leaf in one loop (Phan et al. 2019, appendix A): a sub-tree of 2^k leaves needs the momenta
  # of at most k of them for its checks, since a leaf with an even number n is the first of sub-trees until the last of
  # those ends, and row popcount(n / 2) holds it that long. Leaves are chosen by their weights within a sub-tree, and
  # sub-trees with a bias to the new one (Betancourt 2017, appendix A.3.2). The criterion of a U-turn is the generalized
  # one with half of the momenta at both ends left out, as NumPyro has it, because of orbits of a period of the length
  # of a sub-tree. (Stan takes whole sums, and checks across the border of joined sub-trees besides.)

  import Nx.Defn

  alias Nx.Vulkan.{Chain, Devices, NativeV}
  alias Nx.Vulkan.NUTS.{Batched, Random}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @enforce_keys [:ref, :form, :captured, :type, :parameters, :mass]
  defstruct @enforce_keys ++ [:batched]

  # Energy that a leaf may have above the start's: Stan's and NumPyro's. One that is not finite is a divergence,
  # whatever its sign.
  @divergence 1000.0

  # Of dual averaging (Hoffman and Gelman 2014): how strongly steps shrink to mu, how early draws count, how fast they
  # are forgotten.
  @gamma 0.05
  @t0 10.0
  @kappa 0.75

  # What passes from draw to draw, in the order of the program's inputs and of its first outputs.
  @states [:q, :gradient, :log_density, :log_step, :mean_log_step, :error, :updates]
  # What stays the same, of each chain and of all.
  @own [:key, :mu, :inverse_mass, :momentum_scale]
  @shared [:first_draw, :max_depth, :adapt, :force, :target_accept]
  # The columns of the output after the states.
  @statistics [:log_density, :energy, :accept_prob, :step_size, :tree_depth, :leapfrog_steps, :divergent]

  def statistics, do: @statistics

  @doc """
  Compiles the transitions of a log-density of one vector: `value_and_grad` maps it to the value and the gradient.
  Where they have the whole device, they are those of so many `chains` together, if that is a number.
  """
  def compile(value_and_grad, parameters, type, mass, max_tree_depth, form, chains \\ nil) do
    {state, own, shared} = templates = templates(parameters, type, mass)
    number = Nx.template({}, :u32)

    flat =
      [number] ++ for {of, names} <- [{state, @states}, {own, @own}, {shared, @shared}], name <- names, do: of[name]

    traced = fn inputs ->
      [counter | rest] = Tuple.to_list(inputs)
      {state, rest} = named(@states, rest)
      {own, rest} = named(@own, rest)
      {shared, []} = named(@shared, rest)
      {next, statistics} = draw(counter, state, Map.merge(own, shared), value_and_grad, max_tree_depth: max_tree_depth)
      List.to_tuple(Enum.map(@states, &next[&1]) ++ [statistics])
    end

    arguments = List.to_tuple(flat)
    {program, inputs} = Chain.program(traced, [arguments])
    {program, inputs} = Chain.constants(program, inputs)
    form = form(form, program)
    made = %__MODULE__{ref: nil, form: form, captured: [], type: type, parameters: parameters, mass: mass}

    case (form == :device and chains != nil) && Batched.compile(value_and_grad, templates, max_tree_depth, chains) do
      {:ok, batched} ->
        %{made | batched: batched}

      # Each chain by itself.
      _ ->
        # The arguments, all of which are used, and then references.
        captured = Enum.drop(inputs, length(flat))
        own = for i <- 1..(length(flat) - 1), do: i <= length(@states ++ @own)
        own = own ++ List.duplicate(false, length(captured))
        again = fn -> NativeV.transition_compile(program, length(@states), own, form, Devices.current()) end
        {ref, form} = B.settle(again.(), again)
        %{made | ref: ref, form: form, captured: captured}
    end
  end

  # What one chain has: what passes from draw to draw, what is its own besides, and what all share.
  defp templates(parameters, type, mass) do
    [vector, scalar, number] = [Nx.template({parameters}, type), Nx.template({}, type), Nx.template({}, :u32)]
    matrix = if mass == :dense, do: Nx.template({parameters, parameters}, type), else: vector

    {Map.new(@states, &{&1, scalar}) |> Map.merge(%{q: vector, gradient: vector}),
     %{key: Nx.template({2}, :u32), mu: scalar, inverse_mass: matrix, momentum_scale: matrix},
     %{first_draw: number, max_depth: number, adapt: number, force: number, target_accept: scalar}}
  end

  defp form(:auto, program) do
    again = fn -> NativeV.transition_form(program, Devices.current()) end
    B.settle(again.(), again)
  end

  defp form(form, _program), do: form

  defp named(names, values) do
    {mine, rest} = Enum.split(values, length(names))
    {Map.new(Enum.zip(names, mine)), rest}
  end

  @doc """
  Takes `draws` draws of every chain. Returns the states after them, and positions and statistics of all, `{chains,
  draws, ..}`. Where chains are taken together, they are as many as they were compiled for.
  """
  def take(%__MODULE__{batched: nil} = transition, state, own, shared, chains, draws, part_us) do
    {states, statistics} = run(transition, state, own, shared, chains, draws, part_us)
    {Map.new(states, fn {name, tensor} -> {name, tensor[[.., -1]]} end), states.q, statistics}
  end

  def take(%__MODULE__{batched: batched}, state, own, shared, _chains, draws, part_us) do
    Batched.run(batched, state, own, shared, draws, part_us)
  end

  @doc """
  Takes `draws` draws of every chain, in parts of about `part_us` microseconds, each a dispatch: a part takes all chains
  or some of them so many leaves further. `state` and `own` are maps of tensors with the chains as the first axis,
  `shared` is one of numbers.

  Returns the states after every draw and their statistics, `{chains, draws, ..}`, which the device may fill later.
  """
  def run(%__MODULE__{ref: ref, type: type} = transition, state, own, shared, chains, draws, part_us \\ 50_000) do
    numbers =
      for name <- @shared do
        type = if name == :target_accept, do: type, else: {:u, 32}
        Nx.tensor(shared[name], type: type, backend: B)
      end

    tensors = Enum.map(@states, &state[&1]) ++ Enum.map(@own, &own[&1]) ++ numbers
    inputs = Enum.map(tensors, &B.reference_here/1) ++ transition.captured

    refs =
      B.settle(NativeV.transition_run(ref, inputs, chains, draws, part_us), fn ->
        Chain.whole(NativeV.transition_run_dirty(ref, inputs, chains, draws, part_us))
      end)

    {refs, [statistics]} = Enum.split(refs, -1)
    vectors = [:q, :gradient]

    states =
      for {name, ref} <- Enum.zip(@states, refs), into: %{} do
        rest = if name in vectors, do: [transition.parameters], else: []
        {name, result(type, [chains, draws | rest], ref)}
      end

    {states, result(type, [chains, draws, length(@statistics)], statistics)}
  end

  defp result(type, shape, ref), do: shape |> List.to_tuple() |> Nx.template(type) |> B.holding(ref)

  ## One draw

  defn draw(counter, state, chain, value_and_grad, opts \\ []) do
    opts = keyword!(opts, [:max_tree_depth])
    {tree, fixed} = begin(chain.first_draw + counter, state, chain, max_tree_depth: opts[:max_tree_depth])

    {tree, _} =
      while {tree, fixed}, tree.going do
        {grow(tree, fixed, value_and_grad), fixed}
      end

    {next, statistics} = finish(tree, fixed, state, chain)
    {next, Nx.as_type(stack(statistics), Nx.type(state.q))}
  end

  deftransformp(stack(statistics), do: statistics |> Tuple.to_list() |> Nx.stack())

  @doc """
  The tree of a draw before its first leaf, and what stays while it grows.
  """
  defn begin(draw, state, chain, opts \\ []) do
    opts = keyword!(opts, [:max_tree_depth])
    rows = opts[:max_tree_depth]
    step_size = Nx.exp(state.log_step)
    p = velocity(chain.momentum_scale, Random.normals(chain.key, draw, state.q))
    v = velocity(chain.inverse_mass, p)
    energy = 0.5 * Nx.sum(p * v) - state.log_density
    directions = Random.directions(chain.key, draw)
    none = Nx.tensor(0, type: :u32)

    fixed = %{
      inverse_mass: chain.inverse_mass,
      key: chain.key,
      draw: draw,
      directions: directions,
      max_depth: chain.max_depth,
      force: chain.force,
      step_size: step_size,
      energy: energy
    }

    tree = %{
      # Where the leaf before was; gradients are those of the log-density.
      q: state.q,
      p: p,
      gradient: state.gradient,
      # The ends of the tree, the earlier one on the left.
      left: %{q: state.q, p: p, v: v, gradient: state.gradient},
      right: %{q: state.q, p: p, v: v, gradient: state.gradient},
      # What was chosen from the tree, and from the new sub-tree. Weights are logarithms, relative to the start's.
      chosen: %{q: state.q, gradient: state.gradient, log_density: state.log_density, energy: energy},
      candidate: %{q: state.q, gradient: state.gradient, log_density: state.log_density, energy: energy},
      weight: none_of(energy),
      new_weight: none_of(energy),
      # Sums of momenta.
      sum: p,
      new_sum: p * 0.0,
      # Of the first leaves of sub-trees: the velocity, and the sum up to there less half of the momentum.
      first_v: Nx.broadcast(v, {rows, Nx.size(p)}) * 0.0,
      first_sum: Nx.broadcast(p, {rows, Nx.size(p)}) * 0.0,
      leaf: none,
      leaves: none,
      depth: none,
      accepted: none_of(energy),
      divergent: none,
      going: Nx.tensor(1, type: :u32)
    }

    {tree, fixed}
  end

  @doc """
  The states after a draw whose tree has ended, and its statistics, a tuple of scalars.
  """
  defn finish(tree, fixed, state, chain) do
    accept_prob = tree.accepted / tree.leaves

    statistics =
      {tree.chosen.log_density, tree.chosen.energy, accept_prob, fixed.step_size, tree.depth, tree.leaves,
       tree.divergent}

    {next_state(tree.chosen, adapt(state, chain, accept_prob)), statistics}
  end

  deftransformp(next_state(chosen, adapted),
    do: chosen |> Map.take([:q, :gradient, :log_density]) |> Map.merge(adapted)
  )

  deftransformp(none_of(like), do: Nx.tensor(0.0, type: like.type, backend: Nx.BinaryBackend))

  # M^-1 p, or what makes momenta of standard normals.
  deftransformp velocity(mass, p) do
    if Nx.rank(mass) == 1, do: Nx.multiply(mass, p), else: Nx.dot(mass, p)
  end

  @doc """
  One leaf more.
  """
  defn grow(tree, fixed, value_and_grad) do
    # Words beside words: Nx computes in s64 where one meets a number.
    {zero, one} = {word(0), word(1)}
    is_right = (fixed.directions >>> tree.depth &&& one) == one
    is_first = tree.leaf == zero
    from = choose(is_right, tree.right, tree.left)

    from =
      choose(is_first, %{q: from.q, p: from.p, gradient: from.gradient}, %{
        q: tree.q,
        p: tree.p,
        gradient: tree.gradient
      })

    time = Nx.select(is_right, fixed.step_size, -fixed.step_size)
    {q, p, v, gradient, log_density} = leapfrog(from, time, fixed.inverse_mass, value_and_grad)
    energy = 0.5 * Nx.sum(p * v) - log_density
    change = fixed.energy - energy
    change = Nx.select(Nx.is_nan(change) or Nx.is_infinity(change), Nx.Constants.neg_infinity(Nx.type(q)), change)
    divergent = change < -@divergence

    # Whether this leaf stands for the sub-tree.
    {leaf_number, tree_number} = Random.leaf(fixed.key, fixed.draw, tree.leaves, q)
    new_weight = Nx.select(is_first, change, log_add(tree.new_weight, change))
    here = %{q: q, gradient: gradient, log_density: log_density, energy: energy}
    candidate = choose(is_first or Nx.log(leaf_number) < change - new_weight, here, tree.candidate)

    # U-turns of the sub-trees that end here.
    new_sum = Nx.select(is_first, p, tree.new_sum + p)
    row = Nx.population_count(tree.leaf >>> one)
    rows = Nx.iota({Nx.axis_size(tree.first_v, 0)}, type: :u32)
    is_kept = (rows == row and (tree.leaf &&& one) == zero) |> Nx.new_axis(1) |> Nx.broadcast(tree.first_v)
    first_v = Nx.select(is_kept, v, tree.first_v)
    first_sum = Nx.select(is_kept, new_sum - 0.5 * p, tree.first_sum)
    turned = turned(tree, rows, row, new_sum - 0.5 * p, v)

    # The end of the sub-tree.
    leaf = tree.leaf + one
    failed = turned or divergent
    joined = leaf == one <<< tree.depth and not failed
    better = Nx.log(tree_number) < new_weight - tree.weight
    chosen = choose((joined and better) or fixed.force, candidate, tree.chosen)
    # Whether the whole has turned back, as it is where both are joined: not for what decides that.
    last = %{q: q, p: p, v: v, gradient: gradient}
    {new_left, new_right} = {choose(is_right, tree.left, last), choose(is_right, last, tree.right)}
    new_whole = tree.sum + new_sum
    middle = new_whole - 0.5 * (new_left.p + new_right.p)
    is_long = Nx.sum(middle * new_left.v) <= 0 or Nx.sum(middle * new_right.v) <= 0
    {left, right} = {choose(joined, new_left, tree.left), choose(joined, new_right, tree.right)}
    sum = Nx.select(joined, new_whole, tree.sum)
    depth = tree.depth + joined

    %{
      q: q,
      p: p,
      gradient: gradient,
      left: left,
      right: right,
      chosen: chosen,
      candidate: candidate,
      weight: Nx.select(joined, log_add(tree.weight, new_weight), tree.weight),
      new_weight: new_weight,
      sum: sum,
      new_sum: new_sum,
      first_v: first_v,
      first_sum: first_sum,
      leaf: Nx.select(joined, zero, leaf),
      leaves: tree.leaves + one,
      depth: depth,
      accepted: tree.accepted + Nx.min(Nx.exp(change), 1.0),
      divergent: Nx.as_type(divergent, :u32),
      going: Nx.as_type(not failed and not (joined and (is_long or depth >= fixed.max_depth)), :u32)
    }
  end

  # A leapfrog step, of a negative time where it goes back.
  defnp leapfrog(from, time, inverse_mass, value_and_grad) do
    p = from.p + 0.5 * time * from.gradient
    q = from.q + time * velocity(inverse_mass, p)
    {log_density, gradient} = value_and_grad.(q)
    p = p + 0.5 * time * gradient
    {q, p, velocity(inverse_mass, p), gradient, log_density}
  end

  # Whether one of the sub-trees that end with this leaf has turned back, the leaf's row being the last that holds a
  # start of them.
  defnp turned(tree, rows, row, sum, v) do
    one = word(1)
    # As many sub-trees end as the number has ones at its end.
    ending = Nx.population_count(Nx.bitwise_xor(tree.leaf, tree.leaf + one)) - one
    is_start = rows <= row and rows + ending > row
    between = sum - tree.first_sum
    is_back = Nx.sum(between * tree.first_v, axes: [1]) <= 0 or Nx.sum(between * v, axes: [1]) <= 0
    Nx.any(is_start and is_back)
  end

  deftransformp(word(number), do: Nx.tensor(number, type: :u32, backend: Nx.BinaryBackend))

  deftransform choose(condition, a, b) do
    Map.new(a, fn {name, value} -> {name, Nx.select(condition, value, b[name])} end)
  end

  # log(exp(a) + exp(b)), where both may be minus infinity.
  defnp log_add(a, b) do
    high = Nx.max(a, b)
    apart = -Nx.abs(a - b)
    Nx.select(high == Nx.Constants.neg_infinity(Nx.type(high)), high, high + Nx.log1p(Nx.exp(apart)))
  end

  # Dual averaging of the logarithm of the step.
  defnp adapt(state, chain, accept_prob) do
    updates = state.updates + 1.0
    part = 1.0 / (updates + @t0)
    error = (1.0 - part) * state.error + part * (chain.target_accept - accept_prob)
    log_step = chain.mu - Nx.sqrt(updates) / @gamma * error
    part = Nx.exp(-@kappa * Nx.log(updates))
    mean_log_step = part * log_step + (1.0 - part) * state.mean_log_step

    %{
      log_step: Nx.select(chain.adapt, log_step, state.log_step),
      mean_log_step: Nx.select(chain.adapt, mean_log_step, state.mean_log_step),
      error: Nx.select(chain.adapt, error, state.error),
      updates: Nx.select(chain.adapt, updates, state.updates)
    }
  end
end
