defmodule Nx.Vulkan.Compiler.Lowering do
  @moduledoc false

  # Nx.Defn.Expr -> scopes, in one pass over the graph with a memo by id. A scope is a function's or branch's own flat
  # list of items, and what `Nx.Vulkan.Compiler.Lowering.Plan` makes Programs of. It needs no device, but for the
  # functions of `reduce`.
  #
  # A value is `{operand, type}`, the operand `[:input, n]` or `[:result, n]` of its scope and the type
  # `[:f32, [2, 3]]`, both in the engine's wire form. A node with several results is a list of values.

  alias Nx.Defn.{Composite, Expr, Tree}
  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Compiler.Lowering.{Counting, Widening}
  alias Nx.Vulkan.{Ops, ScalarFunction}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @others Keyword.keys(Ops.others())
  @plain Ops.unary() ++ Ops.binary() ++ @others

  # Numbers of a tensor that a Program spells out: each is an instruction.
  @spelled 8

  defmodule Scope do
    @moduledoc false
    # A finished scope: the types of its inputs, its items in order, its outputs (operands), and of a function the types
    # of those.
    #
    # Items: `{:op, op, attrs, operands, types}`, `{:while, state, condition, body, operands, types}` with the number of
    # values of the state, `{:cond, on_true, on_false, operands, types}` whose first operand is the predicate,
    # `{:hook, callback_spec, template, operands}` and
    # `{:call, fun, opts, argument_template, template, operands, types}`.
    defstruct inputs: [], items: [], outputs: [], types: []
  end

  # What is under construction. `outer` is the state of the scope around this one, whose values are captured: `captured`
  # lists them as operands there, the last first, `inputs` counts those before them. `ids` are the nodes that belong to
  # this scope or to one around it; `parameters` the values of the function's arguments, or :outer within a branch.
  @enforce_keys [:hooks, :ids, :parameters]
  defstruct [:hooks, :ids, :parameters, :outer, kind: :root, memo: %{}, items: [], results: 0, inputs: []] ++
              [captured: %{}, tensors: []]

  @type wire_type :: [atom | [non_neg_integer]]

  @doc """
  Lowers the result of a numerical definition: a container of expressions whose leaves are not vectorized.

  `parameters` are the templates of its arguments. `hooks` are the names of hooks that have a callback whatever the
  expression says. Returns the scope and its constants, tensors of any backend that are its inputs after the arguments.

  ## Errors

  `Nx.Vulkan.Error` with the kind `:unsupported` for what the engine has no op for.
  """
  @spec lower(term, [T.t()], [atom]) :: {Scope.t(), [T.t()]}
  def lower(expr, parameters, hooks) do
    types = Enum.map(parameters, &type/1)
    values = types |> Enum.with_index() |> Enum.map(fn {type, i} -> {[:input, i], type} end) |> List.to_tuple()
    state = %__MODULE__{hooks: hooks, ids: Tree.scope_ids(expr), parameters: values, inputs: Enum.reverse(types)}
    {outputs, state} = composite(expr, state)
    {finish(state, outputs), Enum.reverse(state.tensors)}
  end

  defp finish(state, outputs) do
    %Scope{
      inputs: Enum.reverse(state.inputs),
      items: Enum.reverse(state.items),
      outputs: operands(outputs),
      types: Enum.map(outputs, &elem(&1, 1))
    }
  end

  # The values of the leaves of a container.
  defp composite(container, state, value \\ &node/2) do
    {values, state} =
      Composite.reduce(container, {[], state}, fn leaf, {values, state} ->
        {value, state} = value.(leaf, state)
        {[value | values], state}
      end)

    {Enum.reverse(values), state}
  end

  defp nodes(tensors, state), do: Enum.map_reduce(tensors, state, &node/2)

  # The value of a node of one result.
  defp node(%T{vectorized_axes: [_ | _]} = tensor, state), do: node(Nx.devectorize(tensor), state)

  defp node(%T{data: %Expr{id: id, op: op}} = tensor, state) do
    case state do
      %{memo: %{^id => value}} ->
        {value, state}

      # Constants have the same id everywhere and cost nothing.
      %{outer: outer} when outer != nil and op != :constant ->
        if elsewhere?(op, id, state) and not counts?(tensor),
          do: capture(state, &node(tensor, &1)),
          else: memoize(tensor, state)

      _ ->
        memoize(tensor, state)
    end
  end

  # A number where a container holds no tensor.
  defp node(number, state) when is_number(number) or is_struct(number, Complex), do: node(Expr.tensor(number), state)

  defp node(%T{} = tensor, state), do: tensor |> Nx.backend_copy(Nx.BinaryBackend) |> Expr.tensor() |> node(state)

  # Numbers that count are no inputs.
  defp counts?(%T{data: %Expr{op: :tensor, args: [constant]}}), do: Counting.columns(constant) != nil
  defp counts?(_tensor), do: false

  defp elsewhere?(:tensor, _id, _state), do: true
  defp elsewhere?(:parameter, _id, state), do: state.parameters == :outer
  defp elsewhere?(_op, id, %{kind: :branch, outer: outer}), do: is_map_key(outer.ids, id)
  defp elsewhere?(_op, _id, _state), do: false

  defp memoize(%T{data: %Expr{id: id, op: op, args: args}} = tensor, state) do
    {value, state} = lower_node(op, args, tensor, state)
    {value, %{state | memo: Map.put(state.memo, id, value)}}
  end

  # The values of a node of several results, or some: `pick` gets all of them.
  defp several(%T{data: %Expr{id: id, op: op}} = tensor, state, pick) do
    case state do
      %{memo: %{^id => values}} ->
        {pick.(values), state}

      %{outer: outer} when outer != nil ->
        if elsewhere?(op, id, state) do
          capture(state, &several(tensor, &1, pick))
        else
          {values, state} = memoize(tensor, state)
          {pick.(values), state}
        end

      _ ->
        {values, state} = memoize(tensor, state)
        {pick.(values), state}
    end
  end

  # A value of the scope around this one, as an input of this one.
  defp capture(state, fun) do
    {{operand, type}, outer} = fun.(state.outer)

    case state.captured do
      %{^operand => input} ->
        {{input, type}, %{state | outer: outer}}

      captured ->
        input = [:input, length(state.inputs)]
        captured = Map.put(captured, operand, input)
        {{input, type}, %{state | outer: outer, captured: captured, inputs: [type | state.inputs]}}
    end
  end

  ## Nodes

  defp lower_node(:parameter, [i], _tensor, state), do: {elem(state.parameters, i), state}

  defp lower_node(:constant, [number], tensor, state) do
    emit(:constant, [value: Ops.number(number, tensor.type)], [], tensor, state)
  end

  # One whole number is a constant, as that with which `Nx.Random` pads its counters.
  defp lower_node(:tensor, [%T{type: {kind, _}, data: %Nx.BinaryBackend{}} = one], tensor, state)
       when kind in [:s, :u] and one.vectorized_axes == [] and one.shape in [{}, {1}] do
    number = one |> Nx.reshape({}) |> Nx.to_number()
    emit(:constant, [value: Ops.number(number, one.type)], [], tensor, state)
  end

  defp lower_node(:tensor, [constant], _tensor, state) do
    if columns = Counting.columns(constant), do: counted(columns, constant, state), else: constant(constant, state)
  end

  # The fence of a checkpoint.
  defp lower_node(:metadata, [inner, %{nx_vulkan: {:after, count}}], _tensor, state) do
    {values, state} = composite(inner, state)
    {fenced, others} = Enum.split(values, -count)

    {fenced, state} =
      Enum.map_reduce(fenced, state, fn {_, type} = value, state ->
        one(emit_all(:after, [], [value | others], [type], state))
      end)

    {fenced ++ others, state}
  end

  defp lower_node(:metadata, [inner, _metadata], tensor, state), do: results(inner, tensor, state)

  defp lower_node(:elem, [tuple, i], _tensor, state), do: several(tuple, state, &Enum.at(&1, i))

  defp lower_node(op, args, tensor, state) when op in @plain do
    {attrs, operands} = Ops.instruction(op, args)
    {values, state} = nodes(operands, state)

    case Widening.wide(operands, values) do
      [] -> emit(op, attrs, values, tensor, state)
      wide -> widened(op, attrs, {operands, values}, tensor, wide, state)
    end
  end

  defp lower_node(:reduce, [a, acc, opts, fun], tensor, state) do
    fold(:reduce, Ops.fold(:reduce, [a, opts]), a, acc, fun, tensor, state)
  end

  defp lower_node(:window_reduce, [a, acc, window, opts, fun], tensor, state) do
    fold(:window_reduce, Ops.fold(:window_reduce, [a, window, opts]), a, acc, fun, tensor, state)
  end

  defp lower_node(:block, [struct, args, default, _callback], tensor, state) do
    outs = if is_tuple(default), do: Enum.map(Tuple.to_list(default), &Nx.devectorize/1), else: [tensor]
    {tensors, _options} = Enum.split_while(args, &(not is_list(&1)))
    {operands, state} = nodes(tensors, state)
    wide = Widening.wide(tensors, operands)

    case Ops.block(struct, outs, args) do
      :default ->
        with_parameters(operands, default, tensor, state)

      {:default_or, steps} ->
        {others, state} = steps(steps, operands, wide, state)
        {near, state} = near(Enum.at(others, 1), state)
        {values, state} = with_parameters(operands, default, tensor, state)

        Enum.zip(values, others)
        |> Enum.map_reduce(state, fn {value, {_, type} = other}, state ->
          one(emit_all(:select, [], [near, value, other], [type], state))
        end)

      steps ->
        {values, state} = steps(steps, operands, wide, state)
        if is_tuple(default), do: {values, state}, else: {hd(values), state}
    end
  end

  defp lower_node(:cond, [clauses, last], tensor, state) do
    {values, state} = conditional(clauses, last, state)
    shaped(values, tensor, state)
  end

  defp lower_node(:while, [initial, _arguments, condition, body], tensor, state) do
    {initial, state} = composite(initial, state, &initial/2)
    {values, state} = loop(initial, condition, body, state)
    shaped(values, tensor, state)
  end

  # What Nx 0.13 makes of a token: `data` passes through, and the callback gets `hooked`.
  defp lower_node(:hook, [data, {:token_hook, hooked, callback_spec}, _template, _ref], tensor, state) do
    {values, state} = traced_composite(data, state)
    {seen, state} = traced_composite(hooked, state)
    shaped(values, tensor, hook(callback_spec, Nx.to_template(hooked), seen, state))
  end

  # Nx 0.13 calls it :hook.
  defp lower_node(op, [data, callback_spec, template, _ref], tensor, state) when op in [:io_call, :hook] do
    {values, state} = traced_composite(data, state)
    shaped(values, tensor, hook(callback_spec, template, values, state))
  end

  defp lower_node(:runtime_call, [argument, fun, template, opts], tensor, state) do
    {operands, state} = traced_composite(argument, state)
    types = Enum.map(Composite.flatten_list([template]), &type(Nx.devectorize(&1)))
    item = {:call, fun, opts, Nx.to_template(argument), template, operands(operands), types}
    {values, state} = add(item, types, state)
    shaped(values, tensor, state)
  end

  defp lower_node(op, _args, tensor, _state) do
    raise Nx.Vulkan.Error,
      kind: :unsupported,
      op: op,
      message: "the expression has a node that Nx.Vulkan.Compiler does not know",
      details: %{type: tensor.type, shape: tensor.shape}
  end

  # The ops of a block.
  defp steps(steps, operands, wide, state) do
    Enum.reduce(steps, {operands, state}, fn {op, attrs, outs}, {operands, state} ->
      emit_all(op, attrs, operands, outs |> Widening.results(wide) |> Enum.map(&type/1), state)
    end)
  end

  # Whether singular values lie near each other.
  defp near({_, [name, _]} = values, state) do
    op = fn op, attrs, operands, name, state -> one(emit_all(op, attrs, operands, [[name, []]], state)) end
    {largest, state} = op.(:reduce_max, [axes: [0]], [values], name, state)
    {smallest, state} = op.(:reduce_min, [axes: [0]], [values], name, state)
    {ratio, state} = op.(:constant, [value: Ops.near()], [], name, state)
    {limit, state} = op.(:multiply, [], [smallest, ratio], name, state)
    op.(:less, [], [largest, limit], :u8, state)
  end

  # One value for a tensor, a list for a tuple.
  defp shaped(values, %T{type: {:tuple, _}}, state), do: {values, state}
  defp shaped([value], _tensor, state), do: {value, state}

  # The results of an expression that stands for the node `tensor`.
  defp results(expr, %T{type: {:tuple, _}}, state), do: composite(expr, state)

  defp results(expr, _tensor, state) do
    {[value], state} = composite(expr, state)
    {value, state}
  end

  # Nx traces the default implementation of a block with parameters of the block's own, whose ids may come again in
  # another block; so what was lowered there is forgotten.
  defp with_parameters(values, expr, tensor, state) do
    %{memo: memo, parameters: parameters, ids: ids} = state
    state = %{state | parameters: List.to_tuple(values), ids: Tree.scope_ids(expr, ids)}
    {value, state} = results(expr, tensor, state)
    {value, %{state | memo: memo, parameters: parameters, ids: ids}}
  end

  ## Types

  # An op on operands wider than its expression says.
  defp widened(op, attrs, {operands, values}, tensor, wide, state) do
    case Widening.result(op, tensor, wide) do
      :narrow ->
        {values, state} = cast(values, Enum.map(operands, &type/1), state)
        emit(op, attrs, values, tensor, state)

      out ->
        {values, state} = operands |> Enum.map(&Widening.operand(&1, out.type)) |> nodes(state)
        emit(op, attrs, values, out, state)
    end
  end

  # Values of the types that the expression says.
  defp traced_nodes(tensors, state) do
    {values, state} = nodes(tensors, state)
    cast(values, Enum.map(tensors, &type/1), state)
  end

  defp traced_composite(container, state) do
    {values, state} = composite(container, state)
    cast(values, [container] |> Composite.flatten_list() |> Enum.map(&type(Nx.devectorize(&1))), state)
  end

  defp cast(values, types, state) do
    Enum.zip(values, types)
    |> Enum.map_reduce(state, fn
      {{_, [name, _]} = value, [name, _]}, state -> {value, state}
      {{_, [_, shape]} = value, [name, _]}, state -> one(emit_all(:as_type, [], [value], [[name, shape]], state))
    end)
  end

  # The same with outputs of these types.
  defp giving(%{items: items, outputs: outputs, results: results} = scope, types) do
    {outputs, state} = cast(outputs, types, %__MODULE__{hooks: [], ids: %{}, parameters: :outer, results: results})
    %{scope | items: items ++ Enum.reverse(state.items), outputs: outputs, results: state.results}
  end

  defp merged(types, values), do: Enum.zip_with(types, values, fn type, {_, given} -> Widening.merge(type, given) end)

  # The function is traced as that of an eager op is, with the evaluator in the place of the function.
  defp fold(op, attrs, a, acc, %T{data: %Expr{op: :fun, args: [_, body, _]}}, tensor, state) do
    {operands, state} = traced_nodes([a, acc], state)
    run = Nx.Defn.Evaluator.__compile__(op, [], fn _ -> body end, [])

    fun = fn element, acc ->
      arguments = for argument <- [element, acc], do: fn -> Nx.as_type(argument, tensor.type) end
      hd(run.([arguments]))
    end

    {function, captured} = Nx.with_default_backend(B, fn -> traced(op, fun, a, tensor) end)
    {captured, state} = Enum.map_reduce(captured, state, &constant_operand/2)
    emit(op, [function: function] ++ attrs, operands ++ captured, tensor, state)
  end

  defp traced(op, fun, a, tensor) do
    ScalarFunction.trace(op, fun, a.type, tensor.type)
  rescue
    error in Nx.Vulkan.Error ->
      message = "#{error.message}. Compiled, it must be a function of scalars; compiler: Nx.Defn.Evaluator runs any"
      reraise %{error | op: op, message: message, details: %{type: tensor.type, shape: tensor.shape}}, __STACKTRACE__
  end

  # A tensor that a traced function closed over.
  defp constant_operand(captured, state) do
    tensor = Nx.backend_copy(captured, Nx.BinaryBackend)
    node(%{tensor | data: %Expr{id: make_ref(), op: :tensor, args: [tensor], context: nil}}, state)
  end

  ## Control flow

  # The first clause's predicate belongs to this scope; the other clauses are the false branch.
  defp conditional([{predicate, body} | clauses], last, state) do
    {predicate, state} = node(predicate, state)
    {predicate, state} = truth(predicate, state)
    {on_true, branch} = branch(state, Tree.scope_ids(body, state.ids), &composite(body, &1))

    {on_false, branch} =
      case clauses do
        [] ->
          branch(branch, Tree.scope_ids(last, state.ids), &composite(last, &1))

        [{next, _} | _] ->
          # Clauses after the next may use what several of them share.
          ids = Tree.scope_ids(next, state.ids)
          branch(branch, ids, &conditional(clauses, last, &1))
      end

    {captured, state} = leave(branch, 0)
    inputs = Enum.map(captured, &elem(&1, 1))
    types = on_true.outputs |> Enum.map(&elem(&1, 1)) |> merged(on_false.outputs)
    [on_true, on_false] = for scope <- [on_true, on_false], do: scope |> giving(types) |> close(inputs)
    add({:cond, on_true, on_false, operands([predicate | captured]), types}, types, state)
  end

  # Runs `fun` in a new scope within `state`, or beside the last one, whose captured values it shares. The scope's
  # values are kept until all inputs are known.
  defp branch(%__MODULE__{kind: {:left, _}} = left, ids, fun), do: enter(left.outer, left, ids, :branch, :outer, fun)
  defp branch(outer, ids, fun), do: enter(outer, %__MODULE__{fresh(outer) | inputs: []}, ids, :branch, :outer, fun)

  defp fresh(state), do: %__MODULE__{hooks: state.hooks, ids: %{}, parameters: :outer}

  defp enter(outer, before, ids, kind, parameters, fun) do
    state = %{fresh(outer) | outer: outer, ids: ids, kind: kind, parameters: parameters}
    state = %{state | inputs: before.inputs, captured: before.captured}
    {values, state} = fun.(state)
    {%{items: Enum.reverse(state.items), outputs: values, results: state.results}, %{state | kind: {:left, kind}}}
  end

  # The captured values in the order of the inputs that they became, and the state around.
  defp leave(state, own) do
    types = state.inputs |> Enum.reverse() |> Enum.drop(own)
    operands = state.captured |> Enum.sort_by(fn {_, [:input, i]} -> i end) |> Enum.map(&elem(&1, 0))
    {Enum.zip(operands, types), state.outer}
  end

  defp close(%{items: items, outputs: outputs}, inputs) do
    %Scope{inputs: inputs, items: items, outputs: operands(outputs)}
  end

  # Where the body gives wider types than it begins with, the state has those that hold both.
  defp loop(initial, condition, body, state), do: loop(initial, Enum.map(initial, &elem(&1, 1)), condition, body, state)

  defp loop(initial, types, condition, body, outer) do
    {operands, state} = cast(initial, types, outer)
    parameters = types |> Enum.with_index() |> Enum.map(fn {type, i} -> {[:input, i], type} end) |> List.to_tuple()
    ids = Tree.scope_ids({condition, body})
    before = %{fresh(state) | inputs: Enum.reverse(types)}

    {until, left} =
      enter(state, before, ids, :function, parameters, fn state ->
        {predicate, state} = node(condition, state)
        {predicate, state} = truth(predicate, state)
        {[predicate], state}
      end)

    {steps, left} = enter(left.outer, left, ids, :function, parameters, &composite(body, &1))

    case merged(types, steps.outputs) do
      ^types ->
        {captured, state} = leave(left, length(types))
        inputs = types ++ Enum.map(captured, &elem(&1, 1))
        [until, steps] = for scope <- [until, giving(steps, types)], do: close(scope, inputs)
        add({:while, length(types), until, steps, operands(operands ++ captured), types}, types, state)

      wider ->
        loop(initial, wider, condition, body, outer)
    end
  end

  # Where a loop begins with a few whole numbers, as `Nx.Random` does with its rotations, the Program says which, so
  # that what unrolled iterations pick from them is known.
  defp initial(
         %T{type: {kind, _}, data: %Expr{op: :tensor, args: [%T{data: %Nx.BinaryBackend{}} = constant]}} = leaf,
         state
       )
       when kind in [:s, :u] do
    constant = Nx.devectorize(constant)

    if Nx.rank(constant) == 1 and Nx.size(constant) <= @spelled do
      one = Nx.template({1}, constant.type)

      {numbers, state} =
        constant
        |> Nx.to_flat_list()
        |> Enum.map_reduce(state, &emit(:constant, [value: Ops.number(&1, constant.type)], [], one, &2))

      emit(:concatenate, [axis: 0], numbers, constant, state)
    else
      node(leaf, state)
    end
  end

  defp initial(leaf, state), do: node(leaf, state)

  # Branches and bodies capture it, so this is the outermost scope.
  defp constant(constant, state) do
    constant = Nx.devectorize(constant)
    type = type(constant)
    value = {[:input, length(state.inputs)], type}
    {value, %{state | inputs: [type | state.inputs], tensors: [constant | state.tensors]}}
  end

  # Columns side by side, of which each row is the one before and a number.
  defp counted(columns, constant, state) do
    column = Nx.template({elem(constant.shape, 0), 1}, constant.type)
    number = &emit(:constant, [value: Ops.number(&1, constant.type)], [], column, &2)

    {columns, state} =
      Enum.map_reduce(columns, state, fn
        {first, 0}, state ->
          number.(first, state)

        {first, step}, state ->
          {value, state} = emit(:iota, [axis: 0], [], column, state)

          Enum.reduce([multiply: {step, 1}, add: {first, 0}], {value, state}, fn
            {_op, {same, same}}, acc ->
              acc

            {op, {by, _none}}, {value, state} ->
              {by, state} = number.(by, state)
              emit(op, [], [value, by], column, state)
          end)
      end)

    if match?([_], columns),
      do: {hd(columns), state},
      else: emit(:concatenate, [axis: 1], columns, constant, state)
  end

  # A predicate is a u8 scalar, true unless it is 0.
  defp truth({_, [:u8, []]} = value, state), do: {value, state}

  defp truth(value, state) do
    {[zero], state} = emit_all(:constant, [value: 0], [], [[:u8, []]], state)
    one(emit_all(:not_equal, [], [value, zero], [[:u8, []]], state))
  end

  defp one({[value], state}), do: {value, state}

  # A hook that has no callback and gets none does nothing.
  defp hook({:named, name, nil} = spec, template, values, state) do
    if name in state.hooks, do: hook_item(spec, template, values, state), else: state
  end

  defp hook(spec, template, values, state), do: hook_item(spec, template, values, state)

  defp hook_item(spec, template, values, state) do
    {[], state} = add({:hook, spec, template, operands(values)}, [], state)
    state
  end

  ## Items

  defp emit(op, attrs, operands, tensor, state), do: one(emit_all(op, attrs, operands, [type(tensor)], state))

  defp emit_all(op, attrs, operands, types, state), do: add({:op, op, attrs, operands(operands), types}, types, state)

  defp add(item, types, %{results: results} = state) do
    values = types |> Enum.with_index(results) |> Enum.map(fn {type, i} -> {[:result, i], type} end)
    {values, %{state | items: [item | state.items], results: results + length(types)}}
  end

  defp operands(values), do: Enum.map(values, &elem(&1, 0))

  @doc """
  The type of a tensor in wire form. Sizes that 64 bits don't hold are the largest there is: the engine refuses both.
  """
  @spec type(T.t()) :: wire_type
  def type(%T{type: type, shape: shape}) do
    [Ops.type_name(type), for(size <- Tuple.to_list(shape), do: min(size, 0xFFFFFFFFFFFFFFFF))]
  end
end
