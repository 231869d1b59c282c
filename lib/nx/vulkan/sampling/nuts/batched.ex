defmodule Nx.Vulkan.NUTS.Batched do
  @moduledoc false

  # Transitions of all chains together, each kernel for all of them, with the whole device. A chain whose tree has ended
  # begins its next draw with the next leaf, so that none waits for the others' trees but in the last draws of a call.
  #
  # What one chain does is written for one, and the program of it is made one for all (`batched` of nx_vulkan_ir). An
  # execution of it takes every chain a number of leaves further, without the host, and leaves a row for each leaf:
  # where the chain is then, the statistics of its tree, and whether that has ended. Of these the host picks those of
  # draws.

  import Nx.Defn

  alias Nx.Defn.Composite
  alias Nx.Tensor, as: T
  alias Nx.Vulkan.{Chain, Devices, NativeV}
  alias Nx.Vulkan.NUTS.Transition
  alias Nx.Vulkan.VulkanoBackend, as: B

  # Leaves of one execution, and bytes of what these leave.
  @most_leaves 64
  @rows_bytes 67_108_864

  @enforce_keys [:executable, :inputs, :template, :chains, :type, :parameters, :leaves, :leaf_ns]
  defstruct @enforce_keys

  @doc """
  Compiles the transitions of so many chains: `sampler`, `own` and `shared` are templates of what one has, of its own
  and with all. `:unsupported` where the log-density has an op that can't run for several chains at once, or values of
  all chains are larger than any tensor.
  """
  def compile(value_and_grad, {sampler, own, shared}, max_tree_depth, chains) do
    %{shape: {d}, type: type} = sampler.q
    {_, bits} = type
    leaves = (@rows_bytes / (chains * (d + 8) * div(bits, 8))) |> trunc() |> max(1) |> min(@most_leaves)
    number = Nx.template({}, :u32)
    begin = &Transition.begin(&1, &2, &3, max_tree_depth: max_tree_depth)
    {tree, _} = Nx.Defn.debug_expr(begin).(number, sampler, Map.merge(own, shared))
    tree = Composite.traverse(tree, &Nx.to_template/1)
    state = %{sampler: sampler, tree: tree, fresh: number, draw: number, left: number}

    traced = fn count, state, own, shared ->
      grown(count, state, own, shared, value_and_grad, max_tree_depth: max_tree_depth, leaves: leaves)
    end

    arguments = [number, state, own, shared]
    {program, inputs} = Chain.program(traced, arguments)
    {program, inputs} = Chain.constants(program, inputs)
    # Of the leaves of all arguments, those that each chain has.
    count = length(Composite.flatten_list([state, own]))
    owns = for input <- inputs, do: is_integer(input) and input in 1..count
    again = fn -> NativeV.program_compile_batched(program, owns, chains, Devices.current()) end

    case again.() do
      {:error, kind, _op, _message, _details} when kind in [:unsupported, :too_large] ->
        :unsupported

      answer ->
        {:ok,
         %__MODULE__{
           executable: B.settle(answer, again),
           inputs: inputs,
           template: state,
           chains: chains,
           type: type,
           parameters: d,
           leaves: leaves,
           leaf_ns: :atomics.new(1, [])
         }}
    end
  end

  ## Leaves

  # `count` leaves more.
  defn grown(count, state, own, shared, value_and_grad, opts \\ []) do
    opts = keyword!(opts, [:max_tree_depth, :leaves])
    type = Nx.type(state.sampler.q)
    positions = Nx.broadcast(Nx.tensor(0, type: type), {opts[:leaves], Nx.size(state.sampler.q)})
    statistics = Nx.broadcast(Nx.tensor(0, type: type), {opts[:leaves], 8})

    {_, state, positions, statistics, _, _, _} =
      while {i = Nx.tensor(0, type: :u32), state, positions, statistics, count, own, shared}, i < count do
        {state, row} = leaf(state, merged(own, shared), value_and_grad, max_tree_depth: opts[:max_tree_depth])
        positions = Nx.put_slice(positions, [i, 0], Nx.new_axis(state.sampler.q, 0))
        statistics = Nx.put_slice(statistics, [i, 0], Nx.new_axis(row, 0))
        {i + Nx.tensor(1, type: :u32), state, positions, statistics, count, own, shared}
      end

    {state, positions, statistics}
  end

  # A leaf, before which a draw begins where none is under way. The last column says whether one has ended.
  defnp leaf(state, chain, value_and_grad, opts \\ []) do
    opts = keyword!(opts, [:max_tree_depth])
    # What a draw began with is computed again, since it began with what the sampler is at.
    {begun, fixed} = Transition.begin(state.draw, state.sampler, chain, max_tree_depth: opts[:max_tree_depth])
    tree = state.fresh |> started(begun, state.tree) |> Transition.grow(fixed, value_and_grad)
    {next, statistics} = Transition.finish(tree, fixed, state.sampler, chain)
    {zero, one} = {Nx.tensor(0, type: :u32), Nx.tensor(1, type: :u32)}
    is_active = state.left > zero
    has_ended = Nx.as_type(is_active and tree.going == zero, :u32)

    next = %{
      sampler: Transition.choose(has_ended, next, state.sampler),
      tree: tree,
      fresh: Nx.select(is_active, has_ended, one),
      draw: state.draw + has_ended,
      left: state.left - has_ended
    }

    {next, row(statistics, has_ended, fixed.energy)}
  end

  # Scalars side by side, as choices that one kernel makes.
  deftransformp row(statistics, has_ended, like) do
    columns = Tuple.to_list(statistics) ++ [has_ended]
    place = Nx.iota({length(columns)}, type: :u32)

    for {value, column} <- Enum.with_index(columns), reduce: Nx.tensor(0, type: like.type) do
      row -> Nx.select(Nx.equal(place, column), Nx.as_type(value, like.type), row)
    end
  end

  deftransformp(merged(own, shared), do: Map.merge(own, shared))

  # What is written before it is read needs no beginning.
  @written_first [:first_v, :first_sum]

  deftransformp started(fresh, begun, tree) do
    Map.new(begun, fn
      {name, _} when name in @written_first -> {name, tree[name]}
      {name, %T{} = value} -> {name, Nx.select(fresh, value, tree[name])}
      {name, values} -> {name, Transition.choose(fresh, values, tree[name])}
    end)
  end

  ## Runs

  @doc """
  Takes `draws` draws of every chain, in executions of about `part_us` microseconds. Returns the states after them, and
  positions `{chains, draws, d}` and statistics `{chains, draws, 7}` of each.
  """
  def run(%__MODULE__{chains: chains} = batched, sampler, own, %{max_depth: max_depth} = shared, draws, part_us) do
    number = &Nx.broadcast(Nx.tensor(&1, type: :u32, backend: B), {chains})

    tree =
      Composite.traverse(batched.template.tree, fn leaf ->
        shape = List.to_tuple([chains | Tuple.to_list(leaf.shape)])
        Nx.broadcast(Nx.tensor(0, type: leaf.type, backend: B), shape)
      end)

    state = %{
      sampler: sampler,
      tree: tree,
      fresh: number.(1),
      draw: number.(shared.first_draw),
      left: number.(draws)
    }

    shared =
      Map.new(shared, fn {name, value} ->
        type = if name == :target_accept, do: batched.type, else: {:u, 32}
        {name, Nx.tensor(value, type: type, backend: B)}
      end)

    most = draws * (2 ** max_depth - 1)
    {state, parts} = executions(batched, state, {own, shared}, {chains * draws, most}, part_us, [])
    {positions, statistics} = gathered(parts, chains, draws)
    {state.sampler, positions, statistics}
  end

  # Until `left` draws have ended, for which no chain takes more than `most` leaves. Parts are the chains whose draws
  # ended, in order, and rows of these draws.
  defp executions(_batched, state, _fixed, {0, _most}, _part_us, parts), do: {state, Enum.reverse(parts)}

  defp executions(batched, state, fixed, {left, most}, part_us, parts) do
    count = batched |> count(part_us) |> min(most)
    started = System.monotonic_time(:nanosecond)
    {state, positions, statistics} = execute(batched, state, fixed, count)
    ended = statistics[[.., 0..(count - 1), 7]] |> Nx.as_type(:u8) |> Nx.to_binary()
    took = System.monotonic_time(:nanosecond) - started
    :atomics.put(batched.leaf_ns, 1, max(div(took, count), 1))

    rows =
      for {1, place} <- ended |> :binary.bin_to_list() |> Enum.with_index(), do: {div(place, count), rem(place, count)}

    parts = if rows == [], do: parts, else: [part(batched, rows, positions, statistics) | parts]
    executions(batched, state, fixed, {left - length(rows), most - count}, part_us, parts)
  end

  # As many leaves as take about a part, as far as that is known.
  defp count(batched, part_us) do
    case :atomics.get(batched.leaf_ns, 1) do
      0 -> 1
      ns -> (part_us * 1000) |> div(ns) |> max(1) |> min(batched.leaves)
    end
  end

  defp execute(batched, state, {own, shared}, count) do
    count = Nx.tensor(count, type: :u32, backend: B)
    leaves = [count, state, own, shared] |> Composite.flatten_list() |> List.to_tuple()

    inputs =
      for input <- batched.inputs, do: if(is_integer(input), do: B.reference_here(elem(leaves, input)), else: input)

    again = fn -> NativeV.executable_run_dirty(batched.executable, inputs) end
    refs = B.settle(NativeV.executable_run(batched.executable, inputs), again)
    {state, refs} = Composite.traverse(batched.template, refs, &held(&1, &2, batched.chains))
    {positions, refs} = held(Nx.template({batched.leaves, batched.parameters}, batched.type), refs, batched.chains)
    {statistics, []} = held(Nx.template({batched.leaves, 8}, batched.type), refs, batched.chains)
    {state, positions, statistics}
  end

  defp held(template, [ref | refs], chains) do
    shape = List.to_tuple([chains | Tuple.to_list(template.shape)])
    {shape |> Nx.template(template.type) |> B.holding(ref), refs}
  end

  defp part(batched, rows, positions, statistics) do
    places = for {chain, leaf} <- rows, do: chain * batched.leaves + leaf
    places = Nx.tensor(places, type: :s64, backend: B)
    taken = fn tensor -> tensor |> Nx.flatten(axes: [0, 1]) |> Nx.take(places) end
    {Enum.map(rows, &elem(&1, 0)), taken.(positions), taken.(statistics)}
  end

  # Rows of all parts, chain by chain.
  defp gathered(parts, chains, draws) do
    order = parts |> Enum.flat_map(&elem(&1, 0)) |> Enum.with_index() |> Enum.sort() |> Enum.map(&elem(&1, 1))
    order = Nx.tensor(order, type: :s64, backend: B)

    [positions, statistics] =
      for i <- [1, 2] do
        all = parts |> Enum.map(&elem(&1, i)) |> Nx.concatenate() |> Nx.take(order)
        Nx.reshape(all, {chains, draws, Nx.axis_size(all, 1)})
      end

    {positions, statistics[[.., .., 0..6]]}
  end
end
