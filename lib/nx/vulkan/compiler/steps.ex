defmodule Nx.Vulkan.Compiler.Steps do
  @moduledoc false

  # Runs a plan of several steps: executables, and what the host does between them. Slots are a map from operands to
  # references.

  alias Nx.Defn.Composite
  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Compiler.Lowering.Plan
  alias Nx.Vulkan.NativeV
  alias Nx.Vulkan.VulkanoBackend, as: B

  @doc """
  The references of the plan's results.
  """
  @spec run(Plan.t(), %{Plan.operand() => reference}, map) :: [reference]
  def run(%Plan{steps: steps, outputs: outputs}, slots, hooks) do
    slots = Enum.reduce(steps, slots, &step(&1, &2, hooks))
    read(outputs, slots)
  end

  @doc """
  The references of an executable's results.
  """
  @spec execute(reference, [reference]) :: [reference]
  def execute(executable, inputs) do
    B.settle(NativeV.executable_run(executable, inputs), fn -> NativeV.executable_run_dirty(executable, inputs) end)
  end

  defp step({:run, executable, inputs, outputs}, slots, _hooks) do
    write(outputs, execute(executable, read(inputs, slots)), slots)
  end

  defp step({:hook, spec, template, inputs}, slots, hooks) do
    callback = callback(spec, hooks)
    callback.(container(template, read(inputs, slots)))
    slots
  end

  defp step({:call, fun, opts, arguments, template, inputs, outputs}, slots, _hooks) do
    result = fun.(container(arguments, read(inputs, slots)), opts)

    if not Nx.compatible?(template, result) do
      raise "expected the runtime_call function to match the given output template, in #{inspect(fun)}: " <>
              "expected #{inspect(template)}, got #{inspect(result)}"
    end

    write(outputs, Enum.map(Composite.flatten_list([result]), &B.reference_here/1), slots)
  end

  defp step({:while, state, condition, body, inputs, outputs}, slots, hooks) do
    {initial, captured} = Enum.split(read(inputs, slots), state)
    write(outputs, loop(initial, captured, condition, body, hooks), slots)
  end

  defp step({:cond, on_true, on_false, [predicate | captured], outputs}, slots, hooks) do
    branch = if true?(Map.fetch!(slots, predicate)), do: on_true, else: on_false
    write(outputs, run(branch, inputs(read(captured, slots)), hooks), slots)
  end

  defp loop(state, captured, condition, body, hooks) do
    slots = inputs(state ++ captured)
    [predicate] = run(condition, slots, hooks)
    if true?(predicate), do: loop(run(body, slots, hooks), captured, condition, body, hooks), else: state
  end

  defp inputs(references),
    do: for({reference, i} <- Enum.with_index(references), into: %{}, do: {[:input, i], reference})

  defp read(operands, slots), do: Enum.map(operands, &Map.fetch!(slots, &1))

  defp write(operands, references, slots), do: operands |> Enum.zip(references) |> Enum.into(slots)

  # A predicate is a u8 scalar.
  defp true?(reference) do
    Nx.to_number(B.holding(Nx.template({}, :u8), reference)) != 0
  end

  # Only hooks with a callback are in a plan.
  defp callback({:fn, callback}, _hooks), do: callback
  defp callback({:named, name, callback}, hooks), do: hooks[name] || callback

  defp container(template, references) do
    {container, []} =
      Composite.traverse(template, references, fn
        %T{} = leaf, [reference | references] -> {B.holding(leaf, reference), references}
        # A number of the container is its own value.
        number, [_ | references] -> {number, references}
      end)

    container
  end
end
