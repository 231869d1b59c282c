defmodule Nx.Vulkan.ProgramInterpreter do
  @moduledoc """
  Runs a Program in wire form op by op, each as an eager op: what an executable of it must give, to the bit.
  """

  alias Nx.Vulkan.NativeV
  alias Nx.Vulkan.VulkanoBackend, as: B

  @doc "The references of the results."
  def run([_inputs, instructions, outputs], references) do
    inputs = List.to_tuple(references)

    {results, _count} =
      Enum.reduce(instructions, {%{}, 0}, fn [op, attrs, operands, types], {results, count} ->
        given = instruction(op, Map.new(attrs, &List.to_tuple/1), Enum.map(operands, &find(&1, inputs, results)), types)
        results = given |> Enum.with_index(count) |> Enum.into(results, fn {reference, i} -> {i, reference} end)
        {results, count + length(given)}
      end)

    Enum.map(outputs, &find(&1, inputs, results))
  end

  defp find([:input, i], inputs, _results), do: elem(inputs, i)
  defp find([:result, i], _inputs, results), do: Map.fetch!(results, i)

  defp instruction(:cond, attrs, [predicate | captured], _types) do
    run(if(true?(predicate), do: attrs.on_true, else: attrs.on_false), captured)
  end

  defp instruction(:while, attrs, operands, types) do
    {state, captured} = Enum.split(operands, length(types))
    loop(state, captured, attrs)
  end

  defp instruction(op, attrs, operands, types) do
    types = for [type, shape] <- types, do: {type, List.to_tuple(shape)}
    run = fn -> NativeV.program_run_all_compile(op, Enum.to_list(attrs), operands, types) end
    B.settle(run.(), run)
  end

  defp loop(state, captured, attrs) do
    [predicate] = run(attrs.condition, state ++ captured)
    if true?(predicate), do: loop(run(attrs.body, state ++ captured), captured, attrs), else: state
  end

  defp true?(reference) do
    Nx.to_number(B.holding(Nx.template({}, :u8), reference)) != 0
  end
end
