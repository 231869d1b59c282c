defmodule Nx.Vulkan.Compiler.Origin do
  @moduledoc false

  # Where NaN and infinities begin that are in the results of a call.
  #
  # The function runs again, op by op, and after each op the host looks at what it gave. A value that has NaN has the
  # origin of its operands' NaN, the earliest where several have one, and where none has any, the op itself is the
  # origin. So what is masked on the way to the results, as by a `select`, is not what is told. Infinities likewise.
  # That is why results are not lowered with a flag for each op instead: masks make NaN on purpose, so a flag alone says
  # nothing, flags would have to be carried through loops, and every intermediate result would be kept for them.

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Compiler.{Arguments, Steps}
  alias Nx.Vulkan.Compiler.Lowering.{Plan, Scope}
  alias Nx.Vulkan.{Devices, NativeV}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @tests [nan: :is_nan, infinity: :is_infinity]

  # A value of a run: its reference and type, the origins of its NaN and its infinities, or nil, and the argument that
  # was used last before it as `{number, alone?, elements, order}`, where `alone?` is whether it comes of nothing else.
  @enforce_keys [:reference, :type]
  defstruct [:reference, :type, :nan, :infinity, :argument]

  # `order` counts ops, `executables` are those of single ops, `within` the loops and branches around.
  defmodule Run do
    @moduledoc false
    defstruct order: 1, executables: %{}, within: []
  end

  @doc """
  A Program that says of values of these types whether any has NaN, for `:nan` in `kinds`, and an infinity, and which
  of the values it reads; nil where none can have any.
  """
  @spec test([list], [:nan | :infinity]) :: {Plan.program(), [non_neg_integer]} | nil
  def test(types, kinds) do
    read = for {type, i} <- Enum.with_index(types), inexact?(type), do: i

    if read != [] do
      types = Enum.map(read, &Enum.at(types, &1))
      values = for {type, i} <- Enum.with_index(types), do: {[:input, i], type}
      {program, _} = program(types, [], [], for(kind <- kinds, do: for(value <- values, do: {kind, value})))
      {program, read}
    end
  end

  @doc "Which of `kinds` an executable of `test/2` finds."
  @spec found(reference, [reference], [:nan | :infinity]) :: [:nan | :infinity]
  def found(executable, references, kinds) do
    [flags] = Steps.execute(executable, references)
    for {kind, flag} <- Enum.zip(kinds, flags(flags, length(kinds))), flag != 0, do: kind
  end

  @doc """
  The error of results that have `kind`. `scope` is the function's, `inputs` are those that it uses with their numbers:
  the arguments that `templates` describe, and after them what it captured.
  """
  @spec error(:nan | :infinity, %Scope{}, [{non_neg_integer, reference}], [T.t() | Nx.Container.t()]) ::
          Nx.Vulkan.Error.t()
  def error(kind, scope, inputs, templates) do
    leaves = Arguments.leaves(templates)

    case origin(kind, scope, inputs, length(leaves)) do
      nil ->
        message = "the results have #{noun(kind)}, and the ops one by one give none"
        %Nx.Vulkan.Error{kind: kind, message: message}

      {_, {:input, i, type}} ->
        leaf = Enum.at(leaves, i)
        what = if leaf, do: Arguments.describe(leaf), else: "a tensor that the function captured (#{show(type)})"
        details = if leaf, do: %{arguments: [leaf]}, else: %{}
        %Nx.Vulkan.Error{kind: kind, message: "#{what} has #{noun(kind)} already", details: details}

      {_, {:op, op, found}} ->
        argument = with {i, _, _, _} <- found.argument, do: Enum.at(leaves, i)

        %Nx.Vulkan.Error{
          kind: kind,
          op: op,
          message: message(kind, found, argument),
          details: found |> Map.take([:operands, :outs, :within]) |> Map.put(:argument, argument)
        }
    end
  rescue
    error in Nx.Vulkan.Error ->
      message = "the results have #{noun(kind)}, and to find where it begins failed: #{Exception.message(error)}"
      %Nx.Vulkan.Error{kind: kind, message: message}
  end

  defp message(kind, found, argument) do
    operands =
      case found.operands do
        [] -> "of no operands"
        [type] -> "of the operand #{show(type)}, which has none"
        types -> "of the operands #{Enum.map_join(types, ", ", &show/1)}, which have none"
      end

    infinities =
      case found.infinity do
        {_, {:op, op, %{outs: outs}}} when kind == :nan ->
          "; their infinities begin with #{op}, whose result is #{Enum.map_join(outs, ", ", &show/1)}"

        {_, {:input, _, type}} when kind == :nan ->
          "; their infinities come with an argument, #{show(type)}"

        _ ->
          ""
      end

    within = for place <- Enum.reverse(found.within), do: ", in #{place}"
    argument = if argument, do: "; the argument used last before is #{Arguments.describe(argument)}", else: ""
    outs = Enum.map_join(found.outs, ", ", &show/1)
    "the #{word(kind)} in the results begins here#{within}, in the result #{outs} #{operands}#{infinities}#{argument}"
  end

  defp word(:nan), do: "NaN"
  defp word(:infinity), do: "infinity"

  defp noun(:nan), do: "NaN"
  defp noun(:infinity), do: "an infinity"

  defp show([name, sizes]), do: "#{name}#{Enum.map(sizes, &"[#{&1}]")}"

  ## The run

  defp origin(kind, scope, inputs, arguments) do
    {slots, run} =
      Enum.map_reduce(inputs, %Run{}, fn {i, reference}, run ->
        type = Enum.at(scope.inputs, i)
        value = %__MODULE__{reference: reference, type: type}
        value = if i < arguments, do: %{value | argument: {i, true, elements(type), 0}}, else: value
        {[{nan?, infinity?}], run} = look([reference], [type], run)
        origin = {{0, i}, {:input, i, type}}
        {{[:input, i], %{value | nan: if(nan?, do: origin), infinity: if(infinity?, do: origin)}}, run}
      end)

    {outputs, _run} = scope(scope, Map.new(slots), run)
    outputs |> Enum.map(&Map.fetch!(&1, kind)) |> earliest()
  end

  defp scope(scope, values, run) when is_list(values) do
    scope(scope, for({value, i} <- Enum.with_index(values), into: %{}, do: {[:input, i], value}), run)
  end

  defp scope(%Scope{items: items, outputs: outputs}, slots, run) do
    last = for {item, i} <- Enum.with_index(items), operand <- Plan.used(item), into: %{}, do: {operand, i}
    dead = last |> Map.drop(outputs) |> Enum.group_by(&elem(&1, 1), &elem(&1, 0))

    {slots, _results, run} =
      items
      |> Enum.with_index()
      |> Enum.reduce({slots, 0, run}, fn {item, i}, {slots, results, run} ->
        {values, run} = item(item, Enum.map(Plan.used(item), &Map.fetch!(slots, &1)), run)
        named = for {value, k} <- Enum.with_index(values, results), into: %{}, do: {[:result, k], value}
        # What nothing reads any more would stay on the device.
        {slots |> Map.merge(named) |> Map.drop(Map.get(dead, i, [])), results + length(values), run}
      end)

    {Enum.map(outputs, &Map.fetch!(slots, &1)), run}
  end

  defp item({:op, op, attrs, _, types}, operands, run) do
    given = Enum.map(operands, & &1.type)
    places = for i <- 0..(length(given) - 1)//1, do: [:input, i]
    {references, flags, run} = one([{:op, op, attrs, places, types}], given, Enum.map(operands, & &1.reference), run)
    {taken, run} = taken(op, attrs, operands, types, run)
    values(op, operands, taken, references, types, flags, run)
  end

  defp item({:while, state, condition, body, _, _}, operands, run) do
    {initial, captured} = Enum.split(operands, state)
    within = run.within
    {values, run} = loop(initial, captured, condition, body, 1, run)
    {values, %{run | within: within}}
  end

  defp item({:cond, on_true, on_false, _, _}, [predicate | captured], run) do
    {branch, name} = if true?(predicate), do: {on_true, "true"}, else: {on_false, "false"}
    within = run.within
    {values, run} = scope(branch, captured, %{run | within: within ++ ["the #{name} branch of a cond"]})
    {values, %{run | within: within}}
  end

  # The callback has seen it.
  defp item({:hook, _, _, _}, _operands, run), do: {[], run}

  defp item({:call, fun, opts, arguments, template, _, types}, operands, run) do
    inputs = for i <- 0..(length(operands) - 1)//1, do: [:input, i]
    outputs = for i <- 0..(length(types) - 1)//1, do: [:result, i]
    plan = %Plan{steps: [{:call, fun, opts, arguments, template, inputs, outputs}], outputs: outputs}
    references = Steps.run(plan, Map.new(Enum.zip(inputs, Enum.map(operands, & &1.reference))), %{})

    {flags, run} = look(references, types, run)
    values(:runtime_call, operands, operands, references, types, flags, run)
  end

  defp loop(state, captured, condition, body, i, run) do
    within = run.within

    {[predicate], run} =
      scope(condition, state ++ captured, %{run | within: within ++ ["the condition of iteration #{i} of a while"]})

    if true?(predicate) do
      {state, run} = scope(body, state ++ captured, %{run | within: within ++ ["iteration #{i} of a while"]})
      loop(state, captured, condition, body, i + 1, %{run | within: within})
    else
      {state, %{run | within: within}}
    end
  end

  defp true?(%__MODULE__{reference: reference}), do: hd(flags(reference, 1)) != 0

  # The operands whose NaN and infinities may be in the results. Of a `select` of two that have some, what it takes of
  # each is looked at beside zeros.
  defp taken(:select, attrs, [predicate, on_true, on_false], [type], run)
       when (on_true.nan != nil and on_false.nan != nil) or (on_true.infinity != nil and on_false.infinity != nil) do
    {taken, run} =
      Enum.map_reduce([{on_true, [[:input, 1], [:result, 0]]}, {on_false, [[:result, 0], [:input, 1]]}], run, fn
        {value, [first, second]}, run ->
          zeros = {:op, :constant, [value: 0], [], [type]}
          select = {:op, :select, attrs, [[:input, 0], first, second], [type]}
          given = [predicate, value]

          {_, [_, {nan?, infinity?}], run} =
            one([zeros, select], Enum.map(given, & &1.type), Enum.map(given, & &1.reference), run)

          {%{value | nan: if(nan?, do: value.nan), infinity: if(infinity?, do: value.infinity)}, run}
      end)

    {taken, run}
  end

  defp taken(_op, _attrs, operands, _types, run), do: {operands, run}

  # What an op or a callback gave.
  defp values(op, operands, taken, references, types, flags, run) do
    infinity = operands |> Enum.map(& &1.infinity) |> earliest()
    argument = argument(operands, run.order)
    given = Enum.map(operands, & &1.type)
    found = %{operands: given, outs: types, within: run.within, infinity: infinity, argument: argument}
    here = {{run.order, 0}, {:op, op, found}}
    [nan, infinity] = for kind <- [:nan, :infinity], do: taken |> Enum.map(&Map.fetch!(&1, kind)) |> earliest() || here

    values =
      for {reference, type, {nan?, infinity?}} <- Enum.zip([references, types, flags]) do
        %__MODULE__{
          reference: reference,
          type: type,
          nan: if(nan?, do: nan),
          infinity: if(infinity?, do: infinity),
          argument: argument
        }
      end

    {values, %{run | order: run.order + 1}}
  end

  defp earliest(origins), do: origins |> Enum.reject(&is_nil/1) |> Enum.min_by(&elem(&1, 0), fn -> nil end)

  # Of arguments that come in here, the largest, unless it is a number beside something that others made; of these, the
  # one that was made last.
  defp argument(operands, order) do
    known = for %{argument: {_, _, _, _} = argument} <- operands, do: argument
    {alone, mixed} = Enum.split_with(known, fn {_, alone?, _, _} -> alone? end)

    case {Enum.max_by(alone, &elem(&1, 2), fn -> nil end), Enum.max_by(mixed, &elem(&1, 3), fn -> nil end)} do
      {nil, nil} -> nil
      {{i, _, elements, _}, nil} -> {i, match?([_], Enum.uniq_by(alone, &elem(&1, 0))), elements, order}
      {{i, _, elements, _}, _} when elements > 1 -> {i, false, elements, order}
      {_, {i, _, elements, _}} -> {i, false, elements, order}
    end
  end

  defp elements([_, sizes]), do: Enum.product(sizes)

  ## Single ops

  # The results of items whose operands are inputs of these types, and of each whether it has NaN and an infinity. That
  # is a Program of its own: in one kernel with the op it would be another kernel for each op, and there are many.
  defp one(items, given, references, run) do
    types = Enum.flat_map(items, &elem(&1, 4))
    outputs = for i <- 0..(length(types) - 1)//1, do: [:result, i]
    {results, run} = run({items, given}, references, run, fn -> program(given, items, outputs, []) end)
    {flags, run} = look(results, types, run)
    {results, flags, run}
  end

  # Whether values of these types have NaN and an infinity.
  defp look(references, types, run) do
    Enum.zip(references, types)
    |> Enum.map_reduce(run, fn {reference, type}, run ->
      if inexact?(type) do
        {[flags], run} =
          run(type, [reference], run, fn ->
            program([type], [], [], for({kind, _} <- @tests, do: [{kind, {[:input, 0], type}}]))
          end)

        [nan, infinity] = flags(flags, 2)
        {{nan != 0, infinity != 0}, run}
      else
        {{false, false}, run}
      end
    end)
  end

  # Runs what `program` makes, which is compiled once for a key.
  defp run(key, references, run, program) do
    {executable, inputs} =
      with nil <- run.executables[key] do
        {program, inputs} = program.()
        {compile(program), inputs}
      end

    results = Steps.execute(executable, Enum.map(inputs, &Enum.at(references, &1)))
    {results, put_in(run.executables[key], {executable, inputs})}
  end

  # The Program of items with `outputs`, after which comes a vector of flags, and the inputs that it reads. A flag is a
  # list of kinds and values, and set where any of the values has its kind.
  defp program(inputs, items, outputs, flags) do
    state = {Enum.reverse(items), items |> Enum.flat_map(&elem(&1, 4)) |> length()}

    {flags, state} =
      Enum.map_reduce(flags, state, fn values, state ->
        {flags, state} = Enum.map_reduce(values, state, &any/2)

        {flag, state} =
          Enum.reduce(tl(flags), {hd(flags), state}, fn b, {a, state} -> add(:logical_or, [], [a, b], [], state) end)

        add(:reshape, [], [flag], [1], state)
      end)

    {vector, {items, _}} =
      case flags do
        [_, _ | _] ->
          {vector, state} = add(:concatenate, [axis: 0], flags, [length(flags)], state)
          {[vector], state}

        _one_or_none ->
          {flags, state}
      end

    plan = Plan.new(%Scope{inputs: inputs, items: Enum.reverse(items), outputs: outputs ++ vector})
    %Plan{steps: [{:run, program, inputs, _}]} = plan
    {program, for([:input, i] <- inputs, do: i)}
  end

  defp any({kind, {operand, [_, sizes]}}, state) do
    {flags, state} = add(@tests[kind], [], [operand], sizes, state)
    add(:any, [axes: Enum.to_list(0..(length(sizes) - 1)//1)], [flags], [], state)
  end

  defp add(op, attrs, operands, sizes, {items, results}) do
    {[:result, results], {[{:op, op, attrs, operands, [[:u8, sizes]]} | items], results + 1}}
  end

  defp inexact?([name, _]), do: not Nx.Type.integer?(Nx.Type.normalize!(name))

  defp compile(program) do
    compile = fn -> NativeV.program_compile(program, [], nil, Devices.current()) end
    B.settle(compile.(), compile)
  end

  defp flags(reference, 1) do
    # A scalar or a vector of one.
    [Nx.to_binary(B.holding(Nx.template({1}, :u8), reference)) |> :binary.first()]
  end

  defp flags(reference, n), do: Nx.to_flat_list(B.holding(Nx.template({n}, :u8), reference))
end
