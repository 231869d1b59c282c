defmodule Nx.Vulkan.ScalarFunction do
  @moduledoc """
  Traces the function of `Nx.reduce/4` and `Nx.window_reduce/5` to the steps that a kernel runs.

  The function is called with scalars of `Nx.Vulkan.VulkanoBackend` that have no memory: an elementwise op on one of them adds a
  step and returns the next. Numbers become constants of the kernel, scalars that the function captured become operands, and
  ops without a traced operand run as always. What reads a traced value raises, but for predicates, on which `cond` branches:
  the function is called once per branch, and the results are selected from.

  ## Errors

  `Nx.Vulkan.Error` with the kind `:unsupported` for a function that uses an op that is not elementwise, captures a tensor that
  is no scalar, reads a value, or has more than 64 branches, 4096 steps or 62 captured scalars; and what the function raises, also in
  a branch that no element takes. `Nx.Vulkan.Fold` runs such functions.
  """

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Fold
  alias Nx.Vulkan.VulkanoBackend, as: B

  @key __MODULE__
  @max_branches 64
  # What the engine takes: `MAX_STEPS` of its functions, and their inputs less the element and the accumulator.
  @max_steps 4096
  @max_captured 62

  @predicates [
                :equal,
                :not_equal,
                :greater,
                :less,
                :greater_equal,
                :less_equal,
                :logical_and,
                :logical_or,
                :logical_xor
              ] ++
                [:is_nan, :is_infinity]

  @elementwise @predicates ++
                 [:exp, :expm1, :log, :log1p, :sigmoid, :cos, :sin, :tan, :cosh, :sinh, :tanh, :acos, :asin, :atan] ++
                 [:acosh, :asinh, :atanh, :sqrt, :rsqrt, :cbrt, :erf, :erfc, :erf_inv, :abs, :bitwise_not, :ceil] ++
                 [:conjugate, :floor, :negate, :round, :sign, :count_leading_zeros, :population_count, :real, :imag] ++
                 [:as_type, :add, :subtract, :multiply, :pow, :remainder, :divide, :atan2, :min, :max, :quotient] ++
                 [:bitwise_and, :bitwise_or, :bitwise_xor, :left_shift, :right_shift, :select, :clip]

  # These change nothing about one element but, at most, its type.
  @moves [:reshape, :squeeze, :broadcast, :transpose, :reverse, :sum, :product, :reduce_max, :reduce_min]

  @typedoc "What a traced value is: an argument of the function, or the result of a step."
  @type value :: {:input | :step, non_neg_integer}

  @doc """
  Whether a function is being traced in this process.
  """
  @spec tracing? :: boolean
  def tracing?, do: Process.get(@key) != nil

  @doc """
  The steps of `fun`, a function of an element of type `element_type` and the accumulator of type `type`, as an attribute of
  the op, and the scalars that it captured.
  """
  @spec trace(atom, (T.t(), T.t() -> term), Nx.Type.t(), Nx.Type.t()) :: {list, [T.t()]}
  def trace(op, fun, element_type, type) do
    id = make_ref()
    arguments = [scalar({id, {:input, 0}}, element_type), scalar({id, {:input, 1}}, type)]
    state = %{id: id, op: op, steps: %{}, numbers: %{}, captured: [], constants: %{}}
    state = Map.merge(state, %{path: [], ahead: [], runs: 0, refused: nil})
    outer = Process.put(@key, state)
    # A compiler would want memory behind the arguments of the defn functions that the function calls.
    options = Nx.Defn.default_options(compiler: Nx.Defn.Evaluator)

    try do
      result = explore(fun, arguments, type, [])
      finish(Process.get(@key), result)
    after
      Nx.Defn.default_options(options)
      if outer, do: Process.put(@key, outer), else: Process.delete(@key)
    end
  end

  defp scalar(ref, type), do: %T{data: %B{ref: ref}, type: type, shape: {}, names: []}

  # The result where the first decisions are those of `prefix`. Every other decision is true at first.
  defp explore(fun, arguments, type, prefix) do
    state = Process.get(@key)
    if state.runs == @max_branches, do: refuse("has more than #{@max_branches} branches")
    Process.put(@key, %{state | path: [], ahead: prefix, runs: state.runs + 1})
    result = result(apply(fun, arguments), type)
    %{path: decided, refused: refused} = Process.get(@key)
    # The function may have rescued the exception.
    if refused, do: refuse(refused)

    {_, result} =
      decided
      |> Enum.take(length(decided) - length(prefix))
      |> Enum.reduce({decided, result}, fn {predicate, true}, {[_ | before], result} ->
        before_taken = before |> Enum.map(&elem(&1, 1)) |> Enum.reverse()
        other = explore(fun, arguments, type, before_taken ++ [false])
        {before, if(other == result, do: result, else: step(:select, [predicate, result, other], B.type_name(type)))}
      end)

    result
  end

  defp result(value, type) do
    tensor = Fold.scalar!(value, type)
    value = argument(tensor.data.ref, tensor)
    if tensor.type == type, do: value, else: step(:as_type, [value], B.type_name(type))
  end

  defp finish(state, result) do
    captured = Enum.reverse(state.captured)
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

  @doc """
  Adds the step of an op with a traced operand.
  """
  @spec apply_op(atom, [T.t()], [term], T.t()) :: T.t()
  def apply_op(op, operands, refs, out) do
    for %T{shape: shape} <- [out | operands], Nx.size(shape) != 1 do
      refuse("uses #{op} of tensors that are no scalars, shape #{inspect(shape)}")
    end

    arguments = Enum.zip_with(refs, operands, &argument/2)

    value =
      cond do
        op in @elementwise -> step(op, arguments, B.type_name(out.type))
        op in @moves -> moved(arguments, operands, out)
        op in [:all, :any] -> step(:logical_or, arguments ++ arguments, :u8)
        true -> refuse("uses #{op}, which is no function of scalars")
      end

    %{out | data: %B{ref: {state!().id, value}}}
  end

  defp moved([value], [%T{type: type}], %T{type: type}), do: value
  defp moved([value], _operands, out), do: step(:as_type, [value], B.type_name(out.type))

  # What an operand is to the function.
  defp argument({id, value}, _tensor) do
    case state!() do
      %{id: ^id} -> value
      _ -> refuse("uses a value of another function")
    end
  end

  defp argument(ref, tensor) do
    state = state!()

    case state.constants do
      %{^ref => {value, type}} -> step({:constant, value, type})
      _ -> captured(state, ref, tensor)
    end
  end

  defp captured(state, ref, tensor) do
    case Enum.find_index(Enum.reverse(state.captured), &(&1.data.ref == ref)) do
      nil ->
        if length(state.captured) == @max_captured, do: refuse("captures more than #{@max_captured} scalars")
        Process.put(@key, %{state | captured: [%{tensor | data: %B{ref: ref}} | state.captured]})
        {:captured, length(state.captured)}

      index ->
        {:captured, index}
    end
  end

  defp step(op, arguments, type), do: step({op, arguments, type})

  # Equal steps are one.
  defp step(step) do
    state = state!()

    case state.steps do
      %{^step => number} ->
        {:step, number}

      steps ->
        number = map_size(steps)
        if number == @max_steps, do: refuse("has more than #{@max_steps} steps")
        numbers = Map.put(state.numbers, number, step)
        Process.put(@key, %{state | steps: Map.put(steps, step, number), numbers: numbers})
        {:step, number}
    end
  end

  @doc """
  Remembers the number that a tensor holds, so that it becomes a constant.
  """
  @spec constant(T.t(), term, atom) :: :ok
  def constant(%T{data: %B{ref: ref}}, value, type) do
    state = state!()
    Process.put(@key, %{state | constants: Map.put(state.constants, ref, {value, type})})
    :ok
  end

  @doc """
  The value of a predicate in the branch that is being followed, as a binary.
  """
  @spec read({reference, value}) :: binary
  def read(traced) do
    state = state!()
    value = argument(traced, nil)

    with {:step, number} <- value, {op, _, :u8} when op in @predicates <- state.numbers[number] do
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
    Process.put(@key, %{state | path: [{value, decision} | state.path], ahead: ahead})
    decision
  end

  @doc """
  Raises: the function does what no kernel can.
  """
  @spec refuse(String.t()) :: no_return
  def refuse(what) do
    op =
      with %{op: op} = state <- Process.get(@key) do
        Process.put(@key, %{state | refused: what})
        op
      end

    raise Nx.Vulkan.Error, kind: :unsupported, op: op, message: "the function #{what}"
  end

  defp state! do
    Process.get(@key) || refuse("is over, its values are no tensors")
  end
end
