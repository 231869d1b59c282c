defmodule Nx.Vulkan.ScalarFunction do
  @moduledoc false

  # Traces the function of `Nx.reduce/4` and `Nx.window_reduce/5` to the steps that a kernel runs.
  #
  # The function is called with scalars of `Nx.Vulkan.Tracer` that have no memory: an elementwise op on one of them adds
  # a step and returns the next. Numbers become constants of the kernel, scalars that the function captured become
  # operands, and ops without a traced operand run as always. What reads a traced value raises, but for predicates, on
  # which `cond` branches: the function is called once per branch, and the results are selected from.
  #
  # ## Errors
  #
  # `Nx.Vulkan.Error` with the kind `:unsupported` for a function that uses an op that is not elementwise, captures a
  # tensor that is no scalar, reads a value, or has more than 64 branches, 4096 steps or 62 captured scalars; what the
  # function raises, also in a branch that no element takes; and `Nx.Defn.IncompatibleBackendsError` where it takes a
  # tensor of the device from elsewhere than its arguments and what it captured. `Nx.Vulkan.Fold` runs such functions.

  @behaviour Nx.Vulkan.Tracer

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.{Fold, Ops, Tracer}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @max_branches 64
  # What the engine takes: `MAX_STEPS` of its functions, and their inputs less the element and the accumulator.
  @max_steps 4096
  @max_captured 62

  # These change nothing about one element but, at most, its type.
  @moves (Ops.views() -- [:bitcast, :slice]) ++ [:sum, :product, :reduce_max, :reduce_min]

  # The value of a traced tensor is `{:traced, id, value}` with the id of the trace and a `t:value/0`,
  # `{:constant, number}`, or the data of a tensor on the device.

  @typedoc "What a traced value is: an argument of the function, or the result of a step."
  @type value :: {:input | :step, non_neg_integer}

  @doc """
  As `trace/4`, with the tensors of the device that `fun` captured, or nil where no kernel can run the function.
  """
  @spec kernel(atom, (T.t(), T.t() -> term), Nx.Type.t(), Nx.Type.t()) :: {list, [T.t()]} | nil
  def kernel(op, fun, element_type, type) do
    fun = if Fold.evaluated?(fun), do: fun, else: Tracer.capture(fun, __MODULE__)
    trace(op, fun, element_type, type)
  catch
    # Also what a branch raises or throws: some element may take it, or none.
    _kind, _reason -> nil
  end

  @doc """
  The steps of `fun`, a function of an element of type `element_type` and the accumulator of type `type`, as an
  attribute of the op, and the scalars that it captured.
  """
  @spec trace(atom, (T.t(), T.t() -> term), Nx.Type.t(), Nx.Type.t()) :: {list, [T.t()]}
  def trace(op, fun, element_type, type) do
    id = make_ref()
    arguments = [scalar(id, 0, element_type), scalar(id, 1, type)]
    outer = state()
    # A compiler would want memory behind the arguments of the defn functions that the function calls.
    options = Nx.Defn.default_options(compiler: Nx.Defn.Evaluator)

    put(%{
      id: id,
      op: op,
      steps: %{},
      numbers: %{},
      captured: [],
      path: [],
      ahead: [],
      runs: 0,
      refused: nil
    })

    try do
      result = traced(fn -> explore(fun, arguments, type, []) end)
      finish(state(), result)
    after
      Nx.Defn.default_options(options)
      put(outer)
    end
  end

  # Tensors that the function makes on the device are traced.
  defp traced(fun) do
    {backend, _opts} = Nx.default_backend()
    if backend in [B, Nx.Vulkan.Backend, Tracer], do: Tracer.trace(__MODULE__, fun), else: fun.()
  end

  defp scalar(id, i, type) do
    %T{data: %Tracer{by: __MODULE__, value: {:traced, id, {:input, i}}}, type: type, shape: {}, names: []}
  end

  # The result where the first decisions are those of `prefix`. Every other decision is true at first.
  defp explore(fun, arguments, type, prefix) do
    state = state()
    if state.runs == @max_branches, do: refuse("has more than #{@max_branches} branches")
    put(%{state | path: [], ahead: prefix, runs: state.runs + 1})
    result = result(apply(fun, arguments), type)
    %{path: decided, refused: refused} = state()
    # The function may have rescued the exception.
    if refused, do: refuse(refused)

    {_, result} =
      decided
      |> Enum.take(length(decided) - length(prefix))
      |> Enum.reduce({decided, result}, fn {predicate, true}, {[_ | before], result} ->
        before_taken = before |> Enum.map(&elem(&1, 1)) |> Enum.reverse()
        other = explore(fun, arguments, type, before_taken ++ [false])
        {before, if(other == result, do: result, else: step(:select, [predicate, result, other], type))}
      end)

    result
  end

  defp result(value, type) do
    tensor = Fold.scalar!(value, type, {Tracer, by: __MODULE__})
    value = argument(tensor)
    if tensor.type == type, do: value, else: step(:as_type, [value], type)
  end

  defp finish(state, result) do
    captured = for {_ref, tensor} <- Enum.reverse(state.captured), do: tensor
    count = length(captured)

    number = fn
      {:input, i} -> i
      {:captured, i} -> 2 + i
      {:step, i} -> 2 + count + i
    end

    steps =
      for i <- 0..(map_size(state.numbers) - 1)//1 do
        case state.numbers[i] do
          {:constant, value, type} -> [:constant, value, type]
          {op, arguments, type} -> [op, Enum.map(arguments, number), type]
        end
      end

    {[steps, number.(result)], captured}
  end

  ## Values

  @impl true
  def constant(_out, number), do: {:constant, number}

  @impl true
  def leaf(%T{data: %B{} = data}), do: data

  @impl true
  def on_device(%T{data: %Tracer{value: %B{} = data}} = tensor), do: %{tensor | data: data}
  def on_device(%T{data: %Tracer{value: {:constant, number}}} = tensor), do: B.constant(tensor, number, [])
  def on_device(%T{data: %Tracer{value: {:traced, _id, _value}}}), do: nil

  @impl true
  def run(steps, operands, device) do
    if Enum.any?(operands, &traced?/1),
      do: [{:traced, state!().id, step_of(steps, operands)}],
      else: Enum.map(device.(), &leaf/1)
  end

  defp traced?(operand), do: match?(%T{data: %Tracer{by: __MODULE__, value: {:traced, _, _}}}, operand)

  defp step_of([{op, _attrs, [out]}], operands) do
    for %T{shape: shape} <- [out | operands], Nx.size(shape) != 1 do
      refuse("uses #{op} of tensors that are no scalars, shape #{inspect(shape)}")
    end

    arguments = Enum.map(operands, &argument/1)

    cond do
      Ops.elementwise?(op) -> step(op, arguments, out.type)
      op in @moves -> moved(arguments, operands, out)
      op in [:all, :any] -> step(:logical_or, arguments ++ arguments, {:u, 8})
      true -> no_scalars(op)
    end
  end

  defp step_of([{op, _attrs, _outs} | _steps], _operands), do: no_scalars(op)

  @spec no_scalars(atom) :: no_return
  defp no_scalars(op), do: refuse("uses #{op}, which is no function of scalars")

  defp moved([value], [%T{type: type}], %T{type: type}), do: value
  defp moved([value], _operands, out), do: step(:as_type, [value], out.type)

  # What an operand is to the function.
  defp argument(%T{data: %Tracer{by: __MODULE__, value: value}, type: type} = tensor) do
    case value do
      {:traced, id, value} ->
        if state!().id == id, do: value, else: refuse("uses a value of another function")

      {:constant, number} ->
        constant_step(number, type)

      %B{ref: ref} ->
        captured(ref, on_device(tensor))
    end
  end

  defp argument(%T{data: %Tracer{}} = tensor), do: captured(Tracer.on_device!(tensor, "uses a value").data.ref, tensor)
  defp argument(%T{data: %B{ref: ref}} = tensor), do: captured(ref, tensor)
  defp argument(%T{shape: {}} = scalar), do: constant_step(Nx.to_number(scalar), scalar.type)
  defp argument(%T{} = tensor), do: tensor |> Nx.backend_copy(B) |> argument()
  defp argument(other), do: other |> Nx.to_tensor() |> argument()

  defp captured(ref, tensor) do
    %{captured: captured} = state = state!()

    case Enum.find_index(captured, &(elem(&1, 0) == ref)) do
      nil ->
        if length(captured) == @max_captured, do: refuse("captures more than #{@max_captured} scalars")
        put(%{state | captured: [{ref, tensor} | captured]})
        {:captured, length(captured)}

      place ->
        {:captured, length(captured) - 1 - place}
    end
  end

  defp constant_step(number, type), do: step({:constant, Ops.number(number, type), Ops.type_name(type)})

  defp step(op, arguments, type), do: step({op, arguments, Ops.type_name(type)})

  # Equal steps are one.
  defp step(step) do
    state = state!()

    case state.steps do
      %{^step => number} ->
        {:step, number}

      steps ->
        number = map_size(steps)
        if number == @max_steps, do: refuse("has more than #{@max_steps} steps")
        put(%{state | steps: Map.put(steps, step, number), numbers: Map.put(state.numbers, number, step)})
        {:step, number}
    end
  end

  # The value of a predicate is the one in the branch that is being followed.
  @impl true
  def read(traced) do
    state = state!()
    value = argument(traced)

    with {:step, number} <- value, {op, _, :u8} <- state.numbers[number], true <- Ops.predicate?(op) do
      case List.keyfind(state.path, value, 0) do
        {_, known} -> bit(known)
        nil -> bit(decide(state, value))
      end
    else
      _ -> refuse("reads a value that only the device will know")
    end
  end

  defp bit(true), do: <<1>>
  defp bit(false), do: <<0>>

  defp decide(state, value) do
    if length(state.path) == @max_branches, do: refuse("has more than #{@max_branches} branches")
    {decision, ahead} = if state.ahead == [], do: {true, []}, else: {hd(state.ahead), tl(state.ahead)}
    put(%{state | path: [{value, decision} | state.path], ahead: ahead})
    decision
  end

  # The function does what no kernel can.
  @impl true
  def refuse(what) do
    state = state()
    if state, do: put(%{state | refused: what})
    raise Nx.Vulkan.Error, kind: :unsupported, op: state && state.op, message: "the function #{what}"
  end

  ## What the trace has gathered

  # It is in the process, since Nx gives callbacks of a backend nothing but tensors.
  defp state, do: Process.get(__MODULE__)

  defp state!, do: state() || refuse("is over, its values are no tensors")

  defp put(nil), do: Process.delete(__MODULE__)
  defp put(state), do: Process.put(__MODULE__, state)
end
