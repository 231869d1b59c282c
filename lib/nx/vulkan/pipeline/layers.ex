defmodule Nx.Vulkan.Pipeline.Layers do
  @moduledoc false

  # Stages of a model of Axon. Its nodes are in one order, in which a node comes after all that it takes; so any two
  # places of that order are the ends of a stage. What crosses a cut are results of nodes, in a map by their ids. In a
  # later stage such a node is an input. Names are those that the whole model gives, since Axon counts the layers of
  # an op.

  alias Nx.Defn.Composite
  alias Nx.Vulkan.Devices

  @doc """
  The stages of a model, for `Nx.Vulkan.Pipeline.new/2`; their functions in a training, nil where these are the same;
  and the names of layers that several have, with their numbers.
  """
  @spec stages(struct, Nx.Container.t(), [Devices.selector()], [String.t()] | nil, keyword) ::
          {[tuple], [fun | nil], [{String.t(), [non_neg_integer]}]}
  def stages(%{__struct__: Axon} = model, parameters, devices, first, build) do
    build = Keyword.validate!(build, [:mode, :global_layer_options, :debug, :print_values, :raise_on_none, :seed])
    {mode, build} = Keyword.pop(build, :mode, :inference)

    if mode not in [:inference, :train],
      do: raise(ArgumentError, "expected :mode to be :inference or :train, got: #{inspect(mode)}")

    state = state(parameters)
    order = order(model)
    numbers = if first, do: cut_at(order, first), else: cut_by_bytes(order, bytes(state), length(devices))
    count = 1 + (numbers |> Map.values() |> Enum.max())
    # The first stage gets the inputs of the model.
    numbers = Map.new(numbers, fn {id, number} -> {id, if(model.nodes[id].op == :input, do: 0, else: number)} end)

    if first != nil and count != length(devices) do
      raise ArgumentError,
            "#{count} stages take as many devices, got #{length(devices)}: name them by devices: [0, 1, ...], where " <>
              "one may stand several times"
    end

    graph = %{nodes: named(order, model.nodes), numbers: numbers, order: Enum.map(order, &elem(&1, 0)), build: build}
    states = for number <- 0..(count - 1), do: of_stage(state, names(order, numbers, number))
    of_layers = for {state, number} <- Enum.with_index(states), {name, _} <- state.data, do: {name, number}

    shared =
      for {name, [_, _ | _] = numbers} <- Enum.group_by(of_layers, &elem(&1, 0), &elem(&1, 1)), do: {name, numbers}

    function = fn mode, number -> function(graph, mode, number, count, model.output) end

    stages =
      for {{state, device}, number} <- states |> Enum.zip(devices) |> Enum.with_index(),
          do: {function.(:inference, number), state, device}

    trains = for number <- 0..(count - 1), do: if(mode == :train, do: function.(:train, number))
    if mode == :train, do: one_state!(shared, states)
    {stages, trains, Enum.sort(shared)}
  end

  def stages(other, _parameters, _devices, _first, _build),
    do: raise(ArgumentError, "expected a model of Axon, got: #{inspect(other)}")

  # Two stages can't go on with the state of one layer.
  defp one_state!(shared, states) do
    for {name, _numbers} <- shared, %{state: %{^name => _}} <- states do
      raise ArgumentError, "layer #{inspect(name)}, which has state, is in several stages, where it can't be trained"
    end
  end

  # The library does not depend on Axon: who gives a model of it has it.
  defp axon(module \\ "Axon"), do: Module.concat([module])

  defp state(%{__struct__: Axon.ModelState} = state), do: state
  defp state(%{} = parameters) when not is_struct(parameters), do: axon("Axon.ModelState").new(parameters)

  defp state(other) do
    raise ArgumentError,
          "expected the parameters of a model of Axon, an Axon.ModelState or a map of layers, got: #{inspect(other)}"
  end

  ## Order and names

  # The nodes as `{id, name}`, each after those that it takes, as Axon comes by them. Those of one op are all in
  # training, in inference, or in both, so that Axon counts them alike.
  defp order(model) do
    {order, _} = visit(model.output, model.nodes, {[], %{seen: MapSet.new(), counts: %{}, blocks: %{}}})
    Enum.reverse(order)
  end

  defp visit(id, nodes, {_order, seen} = acc) do
    if id in seen.seen do
      acc
    else
      {order, seen} = Enum.reduce(nodes[id].parent, acc, &visit(&1, nodes, &2))
      {name, seen} = name(nodes[id], seen)
      {[{id, name} | order], %{seen | seen: MapSet.put(seen.seen, id)}}
    end
  end

  # What gives what its parent gives, such as dropout in inference.
  defp left_out?(%{mode: of_node, parent: parent}, mode), do: of_node not in [:both, mode] and parent != []

  defp name(%{op: :optional}, seen), do: {nil, seen}

  # Uses of a block have the name of the first one.
  defp name(%{op: :block, opts: opts} = node, seen) do
    case seen.blocks do
      %{^opts => name} ->
        {name, seen}

      %{} ->
        {name, seen} = counted(node, :block, seen)
        {name, put_in(seen.blocks[opts], name)}
    end
  end

  defp name(%{op: op} = node, seen) when op in [:constant, :input], do: counted(node, op, seen)
  defp name(%{op_name: op} = node, seen), do: counted(node, op, seen)

  defp counted(node, op, %{counts: counts} = seen),
    do: {node.name.(op, counts), %{seen | counts: Map.update(counts, op, 1, &(&1 + 1))}}

  defp named(order, nodes) do
    names = Map.new(order)

    Map.new(nodes, fn {id, node} ->
      name = names[id]
      {id, if(name, do: %{node | name: fn _op, _counts -> name end}, else: node)}
    end)
  end

  ## Where to cut

  # The number of the stage of each node.
  defp cut_at(order, first) do
    if not (is_list(first) and Enum.all?(first, &is_binary/1)),
      do: raise(ArgumentError, "expected :first to be a list of names of layers, got: #{inspect(first)}")

    names = for {_id, name} <- order, name != nil, do: name

    for name <- first, name not in names do
      raise ArgumentError, "the model has no layer #{inspect(name)}; it has #{Enum.map_join(names, ", ", &inspect/1)}"
    end

    {numbers, {_number, left}} =
      Enum.map_reduce(order, {0, first}, fn
        {id, name}, {number, [name | left]} -> {{id, number + 1}, {number + 1, left}}
        {id, _name}, {number, left} -> {{id, number}, {number, left}}
      end)

    if left != [] do
      raise ArgumentError,
            "expected :first to have names in the order of the model, each once; #{inspect(hd(left))} comes too late"
    end

    Map.new(numbers)
  end

  # Bytes of parameters by the names of layers.
  defp bytes(state) do
    Map.new(state.data, fn {name, parameters} ->
      {name, [parameters] |> Composite.flatten_list() |> Enum.map(&Nx.byte_size/1) |> Enum.sum()}
    end)
  end

  # Stages in which the one of most bytes has as few as can be. A layer counts where it comes first.
  defp cut_by_bytes(order, bytes, count) do
    {sizes, _} = Enum.map_reduce(order, bytes, fn {_id, name}, bytes -> Map.pop(bytes, name, 0) end)
    most = least(Enum.max([1 | sizes]), Enum.sum(sizes), &(sizes |> fill(&1) |> List.last() |> Kernel.<(count)))
    order |> Enum.map(&elem(&1, 0)) |> Enum.zip(fill(sizes, most)) |> Map.new()
  end

  # The numbers of the stages where each gets as much as fits.
  defp fill(sizes, most) do
    {numbers, _} =
      Enum.map_reduce(sizes, {0, 0}, fn size, {number, sum} ->
        if sum + size > most, do: {number + 1, {number + 1, size}}, else: {number, {number, sum + size}}
      end)

    numbers
  end

  defp least(low, high, fits?) when low < high do
    middle = div(low + high, 2)
    if fits?.(middle), do: least(low, middle, fits?), else: least(middle + 1, high, fits?)
  end

  defp least(low, _high, _fits?), do: low

  ## Stages

  defp names(order, numbers, number), do: for({id, name} <- order, name != nil, numbers[id] == number, do: name)

  defp of_stage(state, names) do
    [data, parameters, kept, frozen] =
      for map <- [state.data, state.parameters, state.state, state.frozen_parameters], do: Map.take(map || %{}, names)

    %{state | data: data, parameters: parameters, state: kept, frozen_parameters: frozen}
  end

  # The function of a stage: of its parameters, and of the input of the model or what crosses the cut before it. In a
  # training it gives the new state of its layers as well.
  defp function(graph, mode, number, count, output) do
    graph = Map.put(graph, :mode, mode)
    last? = number == count - 1
    entering = if number > 0, do: crossing(graph, number, output)
    leaving = if last?, do: [made(output, graph)], else: crossing(graph, number + 1, output)
    passing = if number > 0, do: leaving -- (leaving -- entering), else: []
    nodes = if number > 0, do: Enum.reduce(entering, graph.nodes, &Map.put(&2, &1, input(&1))), else: graph.nodes
    {_init, predict} = axon().build(collected(leaving -- passing, nodes), [mode: mode] ++ graph.build)

    result = fn input, values ->
      made = (leaving -- passing) |> Enum.zip(listed(values)) |> Map.new()
      all = input |> passed(passing) |> Map.merge(made)
      if last?, do: Map.fetch!(all, hd(leaving)), else: all
    end

    given = fn input -> if number > 0, do: inputs(input), else: input end

    case mode do
      :inference ->
        fn state, input -> result.(input, predict.(still(state), given.(input))) end

      :train ->
        fn state, input ->
          %{prediction: values, state: kept} = predict.(still(state), given.(input))
          {result.(input, values), kept}
        end
    end
  end

  @doc "Parameters with the new state of their layers."
  @spec updated(Nx.Container.t(), map | {}) :: Nx.Container.t()
  def updated(parameters, {}), do: parameters
  def updated(%{data: data} = state, kept), do: %{state | data: merge(data, kept)}

  defp merge(%{} = old, new) when not is_struct(old), do: Map.merge(old, new, fn _name, old, new -> merge(old, new) end)
  defp merge(_old, new), do: new

  defp passed(_input, []), do: %{}
  defp passed(input, passing), do: Map.take(input, passing)

  # What stages before this one make that it or those after it take. Nodes without work of their own are made anew.
  defp crossing(graph, number, output) do
    later = for id <- graph.order, graph.numbers[id] >= number, node = graph.nodes[id], own?(node, graph.mode), do: node
    taken = for node <- later, parent <- node.parent, do: made(parent, graph)

    [made(output, graph) | taken]
    |> Enum.uniq()
    |> Enum.filter(&(graph.numbers[&1] < number and graph.nodes[&1].op != :constant))
    |> Enum.sort()
  end

  defp own?(%{op: op} = node, mode), do: op not in [:optional, :constant] and not left_out?(node, mode)

  # The node whose result this is.
  defp made(id, %{nodes: nodes, mode: mode} = graph) do
    node = nodes[id]
    if node.op == :optional or left_out?(node, mode), do: made(hd(node.parent), graph), else: id
  end

  # An input in the place of a node.
  defp input(id) do
    model = axon().input("#{id}", optional: true)
    %{model.nodes[model.output] | id: id}
  end

  defp inputs(crossing), do: Map.new(crossing, fn {id, value} -> {"#{id}", value} end)

  # A model that gives the results of several nodes as `{first, {second, ... {}}}`, whatever each may be. Nodes that it
  # does not need are left out, as the inputs that Axon asks for are those of all nodes.
  defp collected(ids, nodes) do
    none = axon().constant(Nx.tensor(0, type: :u8, backend: Nx.BinaryBackend))

    ids
    |> Enum.reverse()
    |> Enum.reduce(none, fn id, rest ->
      result = %{none | output: id, nodes: reached(id, nodes, %{})}
      axon().layer(&collect/3, [axon().optional(result), rest], op_name: :collect)
    end)
  end

  defp reached(id, _nodes, reached) when is_map_key(reached, id), do: reached

  defp reached(id, nodes, reached),
    do: Enum.reduce(nodes[id].parent, Map.put(reached, id, nodes[id]), &reached(&1, nodes, &2))

  defp collect(%{__struct__: Axon.None = none}, rest, _opts), do: {struct(none), rest}
  defp collect(result, rest, _opts), do: {result, rest}

  defp listed({result, rest}), do: [result | listed(rest)]
  defp listed(_none), do: []

  # State and frozen parameters have no gradient.
  defp still(state) do
    %{state | data: state.data |> stopped(state.state) |> stopped(state.frozen_parameters)}
  end

  defp stopped(parameters, %{} = names) do
    Enum.reduce(names, parameters, fn {name, of_it}, parameters ->
      if is_map_key(parameters, name), do: Map.update!(parameters, name, &stopped(&1, of_it)), else: parameters
    end)
  end

  defp stopped(parameters, names) when is_list(names) do
    Enum.reduce(names, parameters, fn name, parameters ->
      Map.replace_lazy(parameters, name, &Composite.traverse(&1, fn leaf -> Nx.Defn.Kernel.stop_grad(leaf) end))
    end)
  end

  defp stopped(parameters, _other), do: parameters
end
