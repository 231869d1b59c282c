defmodule Nx.Vulkan.Checkpoint do
  @moduledoc false

  # Values whose gradient computes them again. Each is a custom gradient of what it depends on, the *leaves*: a copy of
  # its expression, with fenced leaves in the place of these, is differentiated by Nx itself. The fence is a custom
  # gradient, too, an identity of leaves and cotangents, of which `Nx.Vulkan.Compiler.Lowering` makes the op that keeps
  # the copy from being the same as the first one, and from being computed before the cotangents are there. Other
  # compilers see an identity.

  alias Nx.Defn.{Composite, Expr, Tree}
  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Closure

  # Whatever goes into these has no gradient (Nx.Defn.Grad).
  @flat [:all, :any, :argmax, :argmin, :argsort, :bitwise_and, :bitwise_or, :bitwise_xor, :bitwise_not] ++
          [:logical_and, :logical_or, :logical_xor, :logical_not, :left_shift, :right_shift] ++
          [:count_leading_zeros, :population_count, :floor, :round, :ceil, :sign, :is_nan, :is_infinity] ++
          [:equal, :greater, :greater_equal, :less, :less_equal, :not_equal]

  # As many arguments as layers of Axon have inputs at most.
  @arguments 128

  @doc """
  `Nx.Vulkan.checkpoint/1`.
  """
  @spec of(fun) :: fun
  @spec of(Nx.Container.t()) :: Nx.Container.t()
  def of(fun) when is_function(fun) do
    {:arity, arity} = Function.info(fun, :arity)
    taking(arity, &__MODULE__.apply(fun, &1))
  end

  def of(values), do: keep(values)

  @doc """
  What `fun` gives for `args`, of which nothing is kept for the gradient but what it captured and `args`.
  """
  @spec apply(fun, list) :: term
  def apply(fun, args) do
    leaves = Closure.tensors([fun | args])
    result = Kernel.apply(fun, args)
    if Enum.any?(leaves, &expression?/1), do: again(result, MapSet.new(leaves, &id/1)), else: result
  end

  @doc """
  `values`, of which nothing is kept for the gradient but themselves, and what was given to this function before.
  """
  @spec keep(Nx.Container.t()) :: Nx.Container.t()
  def keep(values) do
    if [values] |> Composite.flatten_list() |> Enum.any?(&expression?/1),
      do: again(values, MapSet.new()),
      else: values
  end

  @doc """
  A model of Axon that keeps what goes into the layers for whose names `first?` holds.
  """
  @spec rewrite(struct, (String.t() -> as_boolean(term))) :: struct
  def rewrite(%{__struct__: Axon} = model, first?) when is_function(first?, 1) do
    layers = layers(model)
    firsts = for {name, node} <- layers, first?.(name), do: node

    if firsts == [] do
      raise ArgumentError,
            "no layer of the model begins a block: the function of a checkpoint holds for none of the names " <>
              Enum.map_join(layers, ", ", &inspect(elem(&1, 0)))
    end

    %{model | nodes: kept(model.nodes, for(node <- firsts, id <- node.parent, do: made(id, model.nodes)))}
  end

  def rewrite(%{__struct__: Axon}, first?) do
    raise ArgumentError, "expected a function that takes the name of a layer, got: #{inspect(first?)}"
  end

  def rewrite(other, _first?), do: raise(ArgumentError, "expected a model of Axon, got: #{inspect(other)}")

  @doc """
  The layers of a model, inputs first, with the names that they have in training: Axon counts the layers of an op.
  """
  @spec layers(struct) :: [{String.t(), struct}]
  def layers(model) do
    {layers, _} =
      model
      |> axon().reduce_nodes([], &[&1 | &2])
      |> Enum.reject(&(&1.op == :optional or &1.mode == :inference))
      |> Enum.map_reduce(%{}, fn %{op_name: op} = node, counts ->
        {{node.name.(op, counts), node}, Map.update(counts, op, 1, &(&1 + 1))}
      end)

    layers
  end

  # The layer that makes what comes from here.
  defp made(id, nodes) do
    case nodes[id] do
      %{op: :optional, parent: [parent]} -> made(parent, nodes)
      node -> node
    end
  end

  # Nodes whose ops keep what they give. Nodes stay as many and have the same ids: the numbers with which parameters
  # begin depend on their order, and on their names, in which Axon counts the nodes of an op.
  defp kept(nodes, made) do
    blocks = for %{op: :block, opts: opts} <- made, into: MapSet.new(), do: opts[:block_id]

    ops =
      for %{op: op} = node when op not in [:input, :constant, :block] <- made, into: %{}, do: {node.id, keeping(node)}

    of_kept = Map.new(ops, fn {id, op} -> {op, nodes[id].op} end)

    Map.new(nodes, fn
      {id, %{op: :block, opts: [block_fun: fun, block_id: block]} = node} ->
        fun = if block in blocks, do: keeping_block(fun), else: fun
        {id, %{node | name: name(node.name, of_kept), opts: [block_fun: fun, block_id: block]}}

      {id, node} ->
        {id, %{node | op: Map.get(ops, id, node.op), name: name(node.name, of_kept)}}
    end)
  end

  defp name(name, of_kept) do
    plain = &Map.get(of_kept, &1, &1)

    fn op, counts ->
      counts = Enum.reduce(counts, %{}, fn {op, count}, sums -> Map.update(sums, plain.(op), count, &(&1 + count)) end)
      name.(plain.(op), counts)
    end
  end

  # Equal functions for equal ops and as many arguments, the last of which are the options.
  defp keeping(%{op: op, args: args}), do: taking(length(args) + 1, &keep_output(op, &1))

  # All uses of a block share its function, as they share its parameters.
  defp keeping_block(fun) do
    {:arity, arity} = Function.info(fun, :arity)
    taking(arity, fn inputs -> axon().layer(fn x, _ -> keep(x) end, [Kernel.apply(fun, inputs)]) end)
  end

  defp keep_output(op, args) do
    case if(is_atom(op), do: Kernel.apply(Module.concat(["Axon", "Layers"]), op, args), else: Kernel.apply(op, args)) do
      # Axon takes a container apart by its op.
      output when is_struct(hd(args), Axon) -> output
      %{__struct__: Axon.StatefulOutput, output: output} = stateful -> %{stateful | output: keep(output)}
      output -> keep(output)
    end
  end

  # The library does not depend on Axon: who gives a model of it has it.
  defp axon, do: Module.concat(["Axon"])

  # A function of so many arguments, of which `fun` gets the list.
  for arity <- 0..@arguments do
    arguments = Macro.generate_arguments(arity, __MODULE__)
    defp taking(unquote(arity), fun), do: fn unquote_splicing(arguments) -> fun.(unquote(arguments)) end
  end

  defp taking(_arity, _fun) do
    raise ArgumentError,
          "the function of a checkpoint takes #{@arguments} arguments at most: put some into a tuple or a map"
  end

  defp expression?(%T{data: %Expr{}}), do: true
  defp expression?(_other), do: false

  defp id(%T{data: %Expr{id: id}}), do: id
  defp id(%T{}), do: nil

  # The leaves of a container that can have a gradient, as one custom gradient.
  defp again(container, given) do
    case [container] |> Composite.flatten_list() |> Enum.filter(&differentiable?/1) do
      [] ->
        container

      values ->
        {leaves, _} = Enum.reduce(values, {%{}, %{}}, &leaves(&1, true, &2, given))
        {inputs, others} = leaves |> Map.values() |> Enum.split_with(&elem(&1, 1))
        [inputs, others] = for list <- [inputs, others], do: Enum.map(list, &Nx.devectorize(elem(&1, 0)))
        marked = marked(values, inputs, others)

        {container, []} =
          Composite.traverse(container, marked, fn leaf, marked ->
            if differentiable?(leaf), do: {hd(marked), tl(marked)}, else: {leaf, marked}
          end)

        container
    end
  end

  defp differentiable?(%T{type: {kind, _}, data: %Expr{}}), do: kind in [:f, :bf, :c]
  defp differentiable?(_other), do: false

  defp marked(values, [], _others), do: values

  defp marked(values, inputs, others) do
    plain = Enum.map(values, &Nx.devectorize/1)
    metadata = %{custom_grad: {inputs, &gradients(&1, plain, inputs, others)}, nx_vulkan: :kept}

    case values do
      [value] -> [Expr.metadata(value, metadata)]
      values -> values |> List.to_tuple() |> Expr.metadata(metadata) |> Tuple.to_list()
    end
  end

  # The gradients of the inputs, for those of the values.
  defp gradients(cotangents, values, inputs, others) do
    cotangents = if is_tuple(cotangents), do: Tuple.to_list(cotangents), else: [cotangents]
    pairs = values |> Enum.zip(cotangents) |> Enum.reject(fn {_, cotangent} -> zero?(cotangent) end)
    {values, cotangents} = Enum.unzip(pairs)
    Enum.each(pairs, &same_shape!/1)
    {leaves, cotangents} = fenced(inputs ++ others, cotangents)
    {fenced, others_fenced} = Enum.split(leaves, length(inputs))
    known = Map.new(Enum.zip(others, others_fenced), fn {other, fenced} -> {id(other), fenced.data} end)
    ids = Enum.map(inputs, &id/1)

    fenced
    |> List.to_tuple()
    |> Nx.Defn.grad(fn variables ->
      variables = Enum.zip_with(ids, Tuple.to_list(variables), &{&1, &2.data})
      {values, _} = Enum.map_reduce(values, Enum.into(variables, known), &replaced/2)
      # Its gradient gives the values their cotangents as they are.
      Nx.Defn.Kernel.custom_grad(Expr.tensor(0.0), values, fn _one -> cotangents end)
    end)
    |> Tuple.to_list()
  end

  defp zero?(%T{data: %Expr{op: :constant, args: [number]}}), do: number == 0
  defp zero?(_cotangent), do: false

  defp same_shape!({%T{shape: shape}, %T{shape: shape}}), do: :ok

  defp same_shape!({value, cotangent}) do
    raise ArgumentError,
          "the gradient of a checkpoint has the shape #{inspect(cotangent.shape)}, and the value " <>
            "#{inspect(value.shape)}: give the function of a checkpoint what is vectorized as an argument"
  end

  defp fenced(leaves, []), do: {leaves, []}

  defp fenced(leaves, cotangents) do
    all = leaves ++ cotangents
    metadata = %{custom_grad: {all, &Tuple.to_list/1}, nx_vulkan: {:after, length(cotangents)}}
    all |> List.to_tuple() |> Expr.metadata(metadata) |> Tuple.to_list() |> Enum.split(length(leaves))
  end

  ## Leaves

  # Those below an expression, by id, each with whether a gradient may get there; and what was seen, likewise.
  defp leaves(%T{data: %Expr{id: id, op: op}} = tensor, flows?, {leaves, seen}, given) do
    cond do
      (op in [:constant, :tensor] or seen[id]) || (not flows? && is_map_key(seen, id)) ->
        {leaves, seen}

      leaf?(tensor, given) ->
        {Map.update(leaves, id, {tensor, flows?}, fn {_, before} -> {tensor, before or flows?} end), seen}

      true ->
        seen = Map.put(seen, id, flows?)
        flows? = flows? and op not in @flat
        {_, acc} = arguments(tensor, {leaves, seen}, &{&1, leaves(&1, flows?, &2, given)})
        acc
    end
  end

  defp leaf?(%T{data: %Expr{op: :parameter}}, _given), do: true

  # What Nx differentiates by, and what is kept anyway.
  defp leaf?(%T{data: %Expr{id: id, op: :metadata, args: [_, metadata]}}, given) do
    MapSet.member?(given, id) or is_map_key(metadata, Nx.Defn.Grad) or kept?(metadata, given)
  end

  # Several values are kept by one expression, which is no tensor.
  defp leaf?(%T{data: %Expr{id: id, op: :elem, args: [%T{data: %Expr{op: :metadata, args: [_, metadata]}}, _]}}, given) do
    MapSet.member?(given, id) or kept?(metadata, given)
  end

  defp leaf?(%T{data: %Expr{id: id}}, given), do: MapSet.member?(given, id)

  defp kept?(metadata, given), do: MapSet.size(given) == 0 and metadata[:nx_vulkan] == :kept

  # What custom gradients take counts as well as what they are of.
  defp arguments(%T{data: %Expr{op: :metadata, args: [_, %{custom_grad: {inputs, _}}]}} = tensor, acc, fun) do
    {[expr, metadata], acc} = Tree.apply_args(tensor, :scope, acc, fun)
    {inputs, acc} = Enum.map_reduce(inputs, acc, fun)
    {[expr, put_in(metadata, [:custom_grad], {inputs, elem(metadata.custom_grad, 1)})], acc}
  end

  defp arguments(tensor, acc, fun), do: Tree.apply_args(tensor, :scope, acc, fun)

  ## The copy

  # The expression with others in the place of known ids.
  defp replaced(%T{data: %Expr{id: id}} = tensor, known) do
    case known do
      %{^id => data} ->
        {%{tensor | data: data}, known}

      %{} ->
        {args, {known, changed?}} =
          arguments(tensor, {known, false}, fn argument, {known, changed?} ->
            {new, known} = replaced(argument, known)
            {new, {known, changed? or id(new) != id(argument)}}
          end)

        data = if changed?, do: %{tensor.data | id: Expr.id(), args: following(args, known)}, else: tensor.data
        {%{tensor | data: data}, Map.put(known, id, data)}
    end
  end

  defp replaced(other, known), do: {other, known}

  # What custom gradients captured are expressions of the first computation. Their cotangents stay what they are.
  defp following([expr, %{custom_grad: {inputs, fun}} = metadata], known) do
    fun = fn cotangent ->
      cotangents = Map.new(Composite.flatten_list([cotangent]), &{id(&1), &1.data})
      {gradients, _} = Enum.map_reduce(fun.(cotangent), Map.merge(known, cotangents), &replaced/2)
      gradients
    end

    [expr, %{metadata | custom_grad: {inputs, fun}}]
  end

  defp following(args, _known), do: args
end
