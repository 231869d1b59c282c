defmodule Nx.Vulkan.Compiler.Lowering.Plan do
  @moduledoc false

  # Scopes -> Programs, and steps of the host around them where there are any. Most plans are one Program.
  #
  # Hooks and `runtime_call` are work for the host, and so is a `while` or `cond` that holds one. Everything else goes
  # into Programs: an op runs in the first one after the host's calls that it depends on. Calls keep their order.
  #
  # At run time a plan has slots, each a reference to a tensor: the operands `[:input, n]` and `[:result, n]` of its
  # scope, and `[:output, n]` of its only Program.

  alias Nx.Vulkan.Compiler.Lowering.Scope

  @type operand :: list
  @type program :: list
  @type step ::
          {:run, program | term, inputs :: [operand], outputs :: [operand]}
          | {:hook, spec :: tuple, template :: term, inputs :: [operand]}
          | {:call, fun, opts :: keyword, arguments :: term, template :: term, inputs :: [operand],
             outputs :: [operand]}
          | {:while, state :: non_neg_integer, t, t, inputs :: [operand], outputs :: [operand]}
          | {:cond, t, t, inputs :: [operand], outputs :: [operand]}
  @type t :: %__MODULE__{steps: [step], outputs: [operand]}
  defstruct [:steps, :outputs]

  @doc """
  The plan of a scope. Its programs are `[inputs, instructions, outputs]` in wire form.
  """
  @spec new(%Scope{}) :: t
  def new(%Scope{} = scope) do
    if scope.items == [] or host?(scope) do
      %__MODULE__{steps: steps(scope), outputs: scope.outputs}
    else
      whole(scope)
    end
  end

  # Inputs that nothing uses stay out of the Program.
  defp whole(%Scope{items: items, outputs: outputs} = scope) do
    read = MapSet.new(outputs ++ Enum.flat_map(items, &used/1))
    kept = for {type, i} <- Enum.with_index(scope.inputs), [:input, i] in read, do: {[:input, i], type}
    places = kept |> Enum.with_index() |> Map.new(fn {{operand, _type}, i} -> {operand, [:input, i]} end)
    place = &Map.get(places, &1, &1)
    program = [Enum.map(kept, &elem(&1, 1)), Enum.map(items, &instruction(&1, place)), Enum.map(outputs, place)]
    slots = for i <- 0..(length(outputs) - 1)//1, do: [:output, i]
    %__MODULE__{steps: [{:run, program, Enum.map(kept, &elem(&1, 0)), slots}], outputs: slots}
  end

  @doc "The inputs of the plan that its steps or its results need, in their order."
  @spec inputs(t) :: [non_neg_integer]
  def inputs(%__MODULE__{steps: steps, outputs: outputs}) do
    (outputs ++ Enum.flat_map(steps, &reads/1))
    |> Enum.flat_map(fn
      [:input, i] -> [i]
      _ -> []
    end)
    |> Enum.uniq()
    |> Enum.sort()
  end

  defp reads({:run, _, inputs, _}), do: inputs
  defp reads({:hook, _, _, inputs}), do: inputs
  defp reads({:call, _, _, _, _, inputs, _}), do: inputs
  defp reads({:while, _, _, _, inputs, _}), do: inputs
  defp reads({:cond, _, _, inputs, _}), do: inputs

  @doc "The programs of a plan, with those of the parts of its loops and branches."
  @spec programs(t) :: [program | term]
  def programs(plan) do
    Enum.flat_map(plan.steps, fn
      {:run, program, _, _} -> [program]
      {:while, _, condition, body, _, _} -> programs(condition) ++ programs(body)
      {:cond, on_true, on_false, _, _} -> programs(on_true) ++ programs(on_false)
      _ -> []
    end)
  end

  @doc "The plan with `fun` applied to every program."
  @spec map_programs(t, (program -> term)) :: t
  def map_programs(plan, fun) do
    steps =
      Enum.map(plan.steps, fn
        {:run, program, inputs, outputs} ->
          {:run, fun.(program), inputs, outputs}

        {:while, state, condition, body, inputs, outputs} ->
          {:while, state, map_programs(condition, fun), map_programs(body, fun), inputs, outputs}

        {:cond, on_true, on_false, inputs, outputs} ->
          {:cond, map_programs(on_true, fun), map_programs(on_false, fun), inputs, outputs}

        other ->
          other
      end)

    %{plan | steps: steps}
  end

  defp host?(%Scope{items: items}), do: Enum.any?(items, &host_item?/1)

  defp host_item?({:while, _, condition, body, _, _}), do: host?(condition) or host?(body)
  defp host_item?({:cond, on_true, on_false, _, _}), do: host?(on_true) or host?(on_false)
  defp host_item?({:op, _, _, _, _}), do: false
  defp host_item?(_hook_or_call), do: true

  ## Instructions

  defp instruction({:op, op, attrs, operands, types}, place) do
    attrs = for {name, value} <- attrs, do: [name, value]
    [op, attrs, Enum.map(operands, place), types]
  end

  defp instruction({:while, _state, condition, body, operands, types}, place) do
    attrs = [[:condition, program(condition)], [:body, program(body)]]
    [:while, attrs, Enum.map(operands, place), types]
  end

  defp instruction({:cond, on_true, on_false, operands, types}, place) do
    attrs = [[:on_true, program(on_true)], [:on_false, program(on_false)]]
    [:cond, attrs, Enum.map(operands, place), types]
  end

  defp program(%Scope{inputs: inputs, items: items, outputs: outputs}) do
    [inputs, Enum.map(items, &instruction(&1, fn operand -> operand end)), outputs]
  end

  ## Steps

  defp steps(%Scope{} = scope) do
    types = scope.inputs |> Enum.with_index() |> Map.new(fn {type, i} -> {[:input, i], type} end)
    {items, types} = number(scope.items, types)
    items = levels(items)
    # What the host, a later step or the caller reads.
    read = MapSet.new(scope.outputs)

    {steps, _read} =
      items
      |> Enum.group_by(&elem(&1, 0), &Tuple.delete_at(&1, 0))
      |> Enum.sort(:desc)
      |> Enum.reduce({[], read}, fn {_level, items}, {steps, read} ->
        {host, device} = Enum.split_with(items, fn {item, _} -> host_item?(item) end)
        read = Enum.reduce(host, read, fn {item, _}, read -> MapSet.union(read, MapSet.new(used(item))) end)
        {run, read} = run_step(device, types, read)
        {run ++ Enum.map(host, &host_step/1) ++ steps, read}
      end)

    steps
  end

  # Items with the operands that they give.
  defp number(items, types) do
    {items, {types, _}} =
      Enum.map_reduce(items, {types, 0}, fn item, {types, count} ->
        numbered = item |> given() |> Enum.with_index(count) |> Enum.map(fn {type, i} -> {[:result, i], type} end)
        {{item, Enum.map(numbered, &elem(&1, 0))}, {Map.merge(types, Map.new(numbered)), count + length(numbered)}}
      end)

    {items, types}
  end

  defp levels(items) do
    {items, _} =
      Enum.map_reduce(items, {%{}, 0}, fn {item, outs}, {levels, last_call} ->
        level = item |> used() |> Enum.map(&Map.get(levels, &1, 0)) |> Enum.max(fn -> 0 end)

        if host_item?(item) do
          level = max(level, last_call)
          {{level, item, outs}, {Map.merge(levels, Map.new(outs, &{&1, level + 1})), level}}
        else
          {{level, item, outs}, {Map.merge(levels, Map.new(outs, &{&1, level})), last_call}}
        end
      end)

    items
  end

  @doc "The operands of an item."
  @spec used(tuple) :: [operand]
  def used({:op, _, _, operands, _}), do: operands
  def used({:while, _, _, _, operands, _}), do: operands
  def used({:cond, _, _, operands, _}), do: operands
  def used({:hook, _, _, operands}), do: operands
  def used({:call, _, _, _, _, operands, _}), do: operands

  defp given({:hook, _, _, _}), do: []
  defp given(item), do: elem(item, tuple_size(item) - 1)

  # A Program of the items that something reads, and what must be there before it.
  defp run_step(items, types, read) do
    inside = for {_, outs} <- items, out <- outs, into: MapSet.new(), do: out
    outputs = for {_, outs} <- items, out <- outs, out in read, do: out

    if outputs == [] do
      {[], read}
    else
      inputs = for({item, _} <- items, operand <- used(item), operand not in inside, do: operand) |> Enum.uniq()
      inputs_places = inputs |> Enum.with_index() |> Map.new(fn {operand, i} -> {operand, [:input, i]} end)

      result_places =
        for({_, outs} <- items, out <- outs, do: out)
        |> Enum.with_index()
        |> Map.new(fn {operand, i} -> {operand, [:result, i]} end)

      places = Map.merge(inputs_places, result_places)
      place = &Map.fetch!(places, &1)
      instructions = Enum.map(items, fn {item, _} -> instruction(item, place) end)
      program = [Enum.map(inputs, &Map.fetch!(types, &1)), instructions, Enum.map(outputs, place)]
      {[{:run, program, inputs, outputs}], MapSet.union(read, MapSet.new(inputs))}
    end
  end

  defp host_step({{:hook, spec, template, operands}, []}), do: {:hook, spec, template, operands}

  defp host_step({{:call, fun, opts, arguments, template, operands, _types}, outs}) do
    {:call, fun, opts, arguments, template, operands, outs}
  end

  defp host_step({{:while, state, condition, body, operands, _types}, outs}) do
    {:while, state, new(condition), new(body), operands, outs}
  end

  defp host_step({{:cond, on_true, on_false, operands, _types}, outs}) do
    {:cond, new(on_true), new(on_false), operands, outs}
  end
end
