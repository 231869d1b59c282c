defmodule Nx.Vulkan.Compiler.Sharding.Partition do
  @moduledoc false

  # A Program for a mesh: Programs that all devices run on their pieces, with what devices have to tell each other
  # between them. One pass goes through the instructions in their order and asks `Rules` for layouts. A stage is a
  # Program; a value that devices exchange is there one stage after it was made. Values are numbers; `values` says of
  # each what type a device has of it, and in which stage it is there first.

  alias Nx.Vulkan.Compiler.Sharding.{Layout, Rules}

  @typedoc "A value: its number, the type of the whole in wire form, and how that is spread."
  @type value :: {non_neg_integer, list, Layout.t()}

  @type exchange ::
          {:gather, value :: non_neg_integer, axis :: non_neg_integer, mesh_axes :: [non_neg_integer]}
          | {:combine, value :: non_neg_integer, op :: atom, mesh_axes :: [non_neg_integer]}
          | {:while, t, t, operands :: [non_neg_integer]}
          | {:cond, t, t, operands :: [non_neg_integer]}

  @typedoc """
  What runs in order: Programs on values, and exchanges, each with the values that it makes. `inputs` are the values of
  the arguments, `offsets` those that say where the piece of a device begins: so many times the piece that it has along
  axes of the mesh.
  """
  @type t :: %{
          inputs: [non_neg_integer],
          offsets: [{non_neg_integer, [non_neg_integer], non_neg_integer}],
          steps: [{:run, list, [non_neg_integer], [non_neg_integer]} | {exchange, [non_neg_integer]}],
          types: %{non_neg_integer => list},
          outputs: [value]
        }

  @sources [:constant, :eye, :iota]

  # `nodes` are instructions and exchanges as they came, the last first; `made` are values by what they are made of, so
  # that nothing is exchanged twice. `sources` are values that need no operands, which every stage makes for itself, and
  # `spread` those that a scalar was repeated to.
  defstruct [:mesh, next: 0, values: %{}, nodes: [], made: %{}, sources: %{}, spread: %{}, offsets: []]

  @doc """
  Partitions a Program in wire form, whose inputs have these layouts. `wanted` are the layouts of its outputs, or nil
  where any will do.
  """
  @spec new(list, [Layout.t()], Layout.mesh(), [Layout.t()] | nil) :: t
  def new([types, instructions, outputs], layouts, mesh, wanted \\ nil) do
    state = %__MODULE__{mesh: mesh}

    {inputs, state} =
      Enum.map_reduce(Enum.zip(types, layouts), state, fn {type, layout}, state -> value(type, layout, 0, state) end)

    env = inputs |> Enum.with_index() |> Map.new(fn {value, i} -> {[:input, i], value} end)
    {env, _count, state} = Enum.reduce(instructions, {env, 0, state}, &instruction/2)
    outputs = Enum.map(outputs, &Map.fetch!(env, &1))

    {outputs, state} =
      case wanted do
        nil ->
          {outputs, state}

        layouts ->
          Enum.map_reduce(Enum.zip(outputs, layouts), state, fn {value, layout}, state -> laid(value, layout, state) end)
      end

    finish(Enum.map(inputs, &elem(&1, 0)), outputs, state)
  end

  defp value([name, sizes] = type, layout, stage, state) do
    id = state.next
    local = [name, Layout.local(sizes, layout, state.mesh)]
    {{id, type, layout}, %{state | next: id + 1, values: Map.put(state.values, id, {local, stage})}}
  end

  defp stage(id, state), do: state.values |> Map.fetch!(id) |> elem(1)

  ## Instructions

  defp instruction([op, attrs, operands, types], {env, count, state}) do
    operands = Enum.map(operands, &Map.fetch!(env, &1))
    {results, state} = made(op, attrs, operands, types, state)

    env =
      results |> Enum.with_index(count) |> Enum.reduce(env, fn {value, i}, env -> Map.put(env, [:result, i], value) end)

    {env, count + length(types), state}
  end

  defp made(op, attrs, [], [[_, sizes]] = types, state) when op in @sources do
    {[{id, _, _}] = results, state} = emit(op, attrs, [], types, [Layout.whole(sizes)], state)
    {results, %{state | sources: Map.put(state.sources, id, {op, attrs})}}
  end

  defp made(:while, attrs, operands, types, state), do: loop(attrs, operands, types, state)
  defp made(:cond, attrs, operands, types, state), do: branch(attrs, operands, types, state)

  defp made(op, attrs, operands, types, state) do
    rule = Rules.of(op, attrs, Enum.map(operands, fn {_, type, layout} -> {type, layout} end), types, state.mesh)

    {ids, state} =
      Enum.map_reduce(Enum.zip(operands, rule.operands), state, fn {value, layout}, state ->
        id(laid(value, layout, state))
      end)

    attrs = for [name, given] <- attrs, do: [name, Keyword.get(rule.attrs, name, given)]
    {results, state} = emit(op, attrs, ids, types, rule.results, state)
    state = spread(op, attrs, ids, operands, results, state)

    case rule.combine do
      nil ->
        {results, state}

      {combine, mesh_axes} ->
        [{id, type, layout}] = results
        {value, state} = exchanged({:combine, id, combine, mesh_axes}, type, layout, state)
        {[value], state}
    end
  end

  defp id({{id, _, _}, state}), do: {id, state}

  # What was repeated can be repeated to fewer elements.
  defp spread(:broadcast, attrs, [id], [{_, [_, sizes], _}], [{result, _, layout}], state) do
    if layout == Layout.whole(layout),
      do: %{state | spread: Map.put(state.spread, result, {attrs, id, sizes})},
      else: state
  end

  defp spread(_op, _attrs, _ids, _operands, _results, state), do: state

  # An instruction on pieces.
  defp emit(op, attrs, ids, types, layouts, state) do
    stage = ids |> Enum.map(&stage(&1, state)) |> Enum.max(fn -> 0 end)

    {results, state} =
      Enum.map_reduce(Enum.zip(types, layouts), state, fn {type, layout}, state -> value(type, layout, stage, state) end)

    node = {:op, op, attrs, ids, Enum.map(results, &elem(&1, 0)), stage}
    {results, %{state | nodes: [node | state.nodes]}}
  end

  defp exchanged(exchange, type, layout, state) do
    from = stage(elem(exchange, 1), state)
    {{id, _, _} = value, state} = value(type, layout, from + 1, state)
    {value, %{state | nodes: [{:exchange, exchange, [id], from} | state.nodes]}}
  end

  ## Layouts

  # A value in another layout. Axes that are to be cut otherwise become whole first.
  defp laid({_, _, layout} = value, layout, state), do: {value, state}

  defp laid({id, _, _} = value, layout, state) do
    case state.made do
      %{{^id, ^layout} => laid} ->
        {laid, state}

      _ ->
        {gathered, state} = gather(value, layout, state)
        {laid, state} = cut(gathered, layout, state)
        {laid, %{state | made: Map.put(state.made, {id, layout}, laid)}}
    end
  end

  defp gather({_, [_, sizes] = type, layout} = value, wanted, state) do
    Enum.zip([0..(length(sizes) - 1)//1, layout, wanted])
    |> Enum.reduce({value, state}, fn {axis, own, other}, {{id, _, layout} = value, state} ->
      if own == other or own == [] do
        {value, state}
      else
        exchanged({:gather, id, axis, own}, type, List.replace_at(layout, axis, []), state)
      end
    end)
  end

  # The piece of each device of what all have, along axes that are whole.
  defp cut({_, _, layout} = value, layout, state), do: {value, state}

  defp cut({id, type, _layout} = value, wanted, state) do
    case state do
      %{sources: %{^id => {:constant, attrs}}} ->
        source(:constant, attrs, type, wanted, state)

      %{sources: %{^id => {:iota, [[:axis, axis]]}}} when axis != nil ->
        iota(axis, type, wanted, state)

      %{spread: %{^id => {[[:axes, axes]] = attrs, from, own}}} ->
        # Only where what is cut is what was repeated.
        if Enum.all?(Enum.zip(axes, own), fn {axis, size} -> size == 1 or Enum.at(wanted, axis) == [] end) do
          {[repeated], state} = emit(:broadcast, attrs, [from], [type], [wanted], state)
          {repeated, state}
        else
          sliced(value, wanted, state)
        end

      _ ->
        sliced(value, wanted, state)
    end
  end

  defp source(op, attrs, type, layout, state) do
    {[{id, _, _} = value], state} = emit(op, attrs, [], [type], [layout], state)
    {value, %{state | sources: Map.put(state.sources, id, {op, attrs})}}
  end

  # Counted from where the piece begins. Whole numbers of 64 bits, since sums of others may round.
  defp iota(axis, [name, sizes] = type, layout, state) do
    case Enum.at(layout, axis) do
      [] ->
        source(:iota, [[:axis, axis]], type, layout, state)

      mesh_axes ->
        {{counted, _, _}, state} = source(:iota, [[:axis, axis]], [:s64, sizes], layout, state)
        {offset, state} = offset(mesh_axes, div(Enum.at(sizes, axis), Layout.pieces(state.mesh, mesh_axes)), state)
        {[{sum, _, _}], state} = emit(:add, [], [counted, offset], [[:s64, sizes]], [layout], state)
        {[value], state} = emit(:as_type, [], [sum], [[name, sizes]], [layout], state)
        {value, state}
    end
  end

  defp sliced({id, [_, sizes] = type, layout}, wanted, state) do
    {starts, state} =
      Enum.map_reduce(Enum.zip([sizes, layout, wanted]), state, fn {size, own, cut}, state ->
        if own == cut, do: {nil, state}, else: offset(cut, div(size, Layout.pieces(state.mesh, cut)), state)
      end)

    attrs = [
      [:starts, Enum.map(starts, &if(&1, do: nil, else: 0))],
      [:strides, Enum.map(sizes, fn _ -> 1 end)],
      [:lengths, Layout.local(sizes, wanted, state.mesh)]
    ]

    {[value], state} = emit(:slice, attrs, [id | Enum.reject(starts, &is_nil/1)], [type], [wanted], state)
    {value, state}
  end

  defp offset(mesh_axes, size, state) do
    case Enum.find(state.offsets, &match?({_, ^mesh_axes, ^size}, &1)) do
      {id, _, _} ->
        {id, state}

      nil ->
        {{id, _, _}, state} = value([:s64, []], [], 0, state)
        {id, %{state | offsets: [{id, mesh_axes, size} | state.offsets]}}
    end
  end

  ## Loops and branches

  defp loop([[:condition, condition], [:body, body]], operands, types, state) do
    layouts = Enum.map(operands, &elem(&1, 2))
    own = Enum.take(layouts, length(types))
    until = new(condition, layouts, state.mesh, [[]])
    steps = new(body, layouts, state.mesh, own)

    parts(:while, {until, steps}, operands, types, own, state, fn [condition, body] ->
      [[:condition, condition], [:body, body]]
    end)
  end

  defp branch([[:on_true, on_true], [:on_false, on_false]], [predicate | captured], types, state) do
    {predicate, state} = laid(predicate, [], state)
    layouts = Enum.map(captured, &elem(&1, 2))
    first = new(on_true, layouts, state.mesh)
    own = Enum.map(first.outputs, &elem(&1, 2))
    second = new(on_false, layouts, state.mesh, own)

    parts(:cond, {first, second}, [predicate | captured], types, own, state, fn [on_true, on_false] ->
      [[:on_true, on_true], [:on_false, on_false]]
    end)
  end

  # One instruction where devices need not tell each other anything on the way, else the host drives it.
  defp parts(op, {first, second}, operands, types, layouts, state, attrs) do
    ids = Enum.map(operands, &elem(&1, 0))

    case {program(first), program(second)} do
      {[_ | _] = first, [_ | _] = second} ->
        emit(op, attrs.([first, second]), ids, types, layouts, state)

      _ ->
        from = ids |> Enum.map(&stage(&1, state)) |> Enum.max(fn -> 0 end)

        {results, state} =
          Enum.map_reduce(Enum.zip(types, layouts), state, fn {type, layout}, state ->
            value(type, layout, from + 1, state)
          end)

        node = {:exchange, {op, first, second, ids}, Enum.map(results, &elem(&1, 0)), from}
        {results, %{state | nodes: [node | state.nodes]}}
    end
  end

  @doc """
  A partition as one Program in wire form on the pieces of its inputs, or nil where devices tell each other something.
  """
  @spec program(t) :: list | nil
  def program(%{offsets: [_ | _]}), do: nil

  def program(%{steps: [], inputs: inputs, outputs: outputs, types: types}) do
    places = inputs |> Enum.with_index() |> Map.new(fn {id, i} -> {id, [:input, i]} end)
    [Enum.map(inputs, &types[&1]), [], for({id, _, _} <- outputs, do: Map.fetch!(places, id))]
  end

  def program(
        %{steps: [{:run, [_, instructions, _], read, _}], inputs: inputs, outputs: outputs, types: types} = partition
      ) do
    # Its inputs are some of the partition's, in another order.
    places = inputs |> Enum.with_index() |> Map.new(fn {id, i} -> {id, [:input, i]} end)
    order = read |> Enum.with_index() |> Map.new(fn {id, i} -> {[:input, i], Map.fetch!(places, id)} end)

    instructions =
      for [op, attrs, operands, types] <- instructions,
          do: [op, attrs, Enum.map(operands, &Map.get(order, &1, &1)), types]

    results = Map.merge(partition.places, places)
    [Enum.map(inputs, &types[&1]), instructions, for({id, _, _} <- outputs, do: Map.fetch!(results, id))]
  end

  def program(_partition), do: nil

  ## Stages

  defp finish(inputs, outputs, state) do
    nodes = Enum.reverse(state.nodes)
    read = MapSet.new(Enum.map(outputs, &elem(&1, 0)))
    last = Enum.reduce(nodes, 0, &max(elem(&1, tuple_size(&1) - 1), &2))
    {steps, places, _read} = Enum.reduce(last..0//-1, {[], %{}, read}, &staged(&1, nodes, state, &2))

    %{
      inputs: inputs,
      offsets: Enum.reverse(state.offsets),
      steps: steps,
      types: Map.new(state.values, fn {id, {type, _stage}} -> {id, type} end),
      outputs: outputs,
      # Of one stage, where its values are in its Program.
      places: places
    }
  end

  # The last stage comes first, so that each knows what later ones read.
  defp staged(stage, nodes, state, {steps, _places, read}) do
    exchanges =
      for {:exchange, exchange, results, ^stage} <- nodes, Enum.any?(results, &(&1 in read)), do: {exchange, results}

    read = Enum.reduce(exchanges, read, fn {exchange, _}, read -> MapSet.union(read, MapSet.new(used(exchange))) end)
    ops = for {:op, op, attrs, ids, results, ^stage} <- nodes, do: {op, attrs, ids, results}
    {step, places, read} = run(ops, state, read)
    {step ++ exchanges ++ steps, places, read}
  end

  defp used({:gather, id, _, _}), do: [id]
  defp used({:combine, id, _, _}), do: [id]
  defp used({_loop_or_branch, _, _, ids}), do: ids

  # One Program of ops: of those that something reads, with the sources that they need.
  defp run(ops, state, read) do
    {ops, needed} = needed(Enum.reverse(ops), read)
    made = MapSet.new(Enum.flat_map(ops, &elem(&1, 3)))
    # Sources of earlier stages, which cost less to make anew.
    sources = for id <- needed, id not in made, is_map_key(state.sources, id), do: id
    ops = Enum.map(Enum.uniq(sources), fn id -> source_op(state.sources[id], id) end) ++ ops
    made = MapSet.union(made, MapSet.new(sources))
    inputs = needed |> Enum.reject(&(&1 in made)) |> Enum.uniq()
    outputs = for {_, _, _, results} <- ops, id <- results, id in read, do: id

    if outputs == [] do
      {[], %{}, read}
    else
      results = ops |> Enum.flat_map(&elem(&1, 3)) |> Enum.with_index() |> Map.new(fn {id, i} -> {id, [:result, i]} end)
      places = inputs |> Enum.with_index() |> Map.new(fn {id, i} -> {id, [:input, i]} end) |> Map.merge(results)
      type = fn id -> state.values |> Map.fetch!(id) |> elem(0) end
      place = &Map.fetch!(places, &1)

      instructions =
        for {op, attrs, ids, results} <- ops, do: [op, attrs, Enum.map(ids, place), Enum.map(results, type)]

      program = [Enum.map(inputs, type), instructions, Enum.map(outputs, place)]
      {[{:run, program, inputs, outputs}], places, MapSet.union(read, MapSet.new(inputs))}
    end
  end

  defp source_op({op, attrs}, id), do: {op, attrs, [], [id]}

  # Of ops, the last first, those of which something is read, in their order, and all that they read.
  defp needed(ops, read) do
    {ops, _read, needed} =
      Enum.reduce(ops, {[], read, []}, fn {_, _, ids, results} = op, {ops, read, needed} ->
        if Enum.any?(results, &(&1 in read)),
          do: {[op | ops], MapSet.union(read, MapSet.new(ids)), ids ++ needed},
          else: {ops, read, needed}
      end)

    {ops, needed}
  end
end
