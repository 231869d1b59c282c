defmodule Nx.Vulkan.Pipeline.Gradient do
  @moduledoc false

  # Backward passes of the stages of a pipeline. The last stage computes both passes of a micro-batch at once and gives
  # the gradient of its input back; the others go on with what comes first, a micro-batch or a gradient.

  alias Nx.Defn.Composite
  alias Nx.Vulkan.Pipeline.{Flow, MicroBatches}

  @doc "The loss, and the gradients of all stages."
  @spec run([Flow.stage()], Nx.Container.t(), Nx.Container.t(), fun, pos_integer) ::
          {Nx.Tensor.t(), [Nx.Container.t()]}
  def run(stages, batch, targets, loss, count) do
    last = length(stages) - 1

    sums =
      Flow.together(stages, fn stage, place ->
        # How far a stage goes ahead.
        depth = last - place.number + 1
        state = %{stage: stage, place: place, count: count, batch: batch, depth: depth, inputs: :queue.new()}
        state = Map.merge(state, %{forward: 0, backward: 0, sum: nil})
        if place.next, do: turn(state), else: last(Map.merge(state, %{targets: targets, loss: loss}))
      end)

    {gradients, [{value, last}]} = Enum.split(sums, last)
    {value, gradients ++ [last]}
  end

  ## The last stage

  defp last(%{backward: count, count: count} = state), do: mean(state)

  defp last(%{stage: stage, place: place, backward: number, count: count} = state) do
    :erlang.garbage_collect()
    input = if place.previous, do: await_input(place), else: part(state, number)

    {sum, cotangents} =
      named(state, fn ->
        targets = state.targets |> MicroBatches.part(number, count) |> Flow.place(stage.device)
        fun = last_pass(stage.fun, state.loss, place.previous == nil)
        {value, {parameters, cotangents}} = Flow.call(stage, fun, [stage.parameters, input, targets])
        {add(state.sum, {value, parameters}, stage), Flow.wait(cotangents)}
      end)

    if place.previous, do: Flow.give(:previous, cotangents, place)
    last(%{state | backward: number + 1, sum: sum})
  end

  defp await_input(%{mark: mark}) do
    receive do
      {^mark, :next, input} -> input
    end
  end

  ## The others

  defp turn(%{backward: count, count: count} = state), do: mean(state)

  defp turn(%{place: %{mark: mark} = place, forward: forward, backward: backward} = state) do
    :erlang.garbage_collect()
    ahead? = forward < state.count and forward - backward < state.depth

    cond do
      ahead? and place.previous == nil ->
        receive do
          {^mark, :previous, cotangents} -> backward(state, cotangents)
        after
          0 -> forward(state, part(state, forward))
        end

      ahead? ->
        receive do
          {^mark, :previous, cotangents} -> backward(state, cotangents)
          {^mark, :next, input} -> forward(state, input)
        end

      true ->
        receive do
          {^mark, :previous, cotangents} -> backward(state, cotangents)
        end
    end
  end

  defp forward(%{stage: stage, place: place} = state, input) do
    input |> Flow.result(stage, place) |> then(&Flow.give(:next, &1, place))
    turn(%{state | forward: state.forward + 1, inputs: :queue.in(input, state.inputs)})
  end

  defp backward(%{stage: stage, place: place} = state, cotangents) do
    {{:value, input}, inputs} = :queue.out(state.inputs)

    {sum, before} =
      named(state, fn ->
        fun = pass(stage.fun, place.previous == nil)
        {parameters, before} = Flow.call(stage, fun, [stage.parameters, input, cotangents])
        {add(state.sum, parameters, stage), Flow.wait(before)}
      end)

    if place.previous, do: Flow.give(:previous, before, place)
    turn(%{state | backward: state.backward + 1, inputs: inputs, sum: sum})
  end

  defp part(%{stage: stage, batch: batch, count: count} = state, number),
    do: named(state, fn -> batch |> MicroBatches.part(number, count) |> Flow.place(stage.device) end)

  defp named(%{stage: stage, place: place}, fun), do: Flow.named(place.number, stage.device, fun)

  ## Sums

  defp add(nil, gradients, _stage), do: gradients
  defp add(sum, gradients, stage), do: Flow.call(stage, &sum/2, [sum, gradients])

  defp sum(left, right) do
    {sum, []} = Composite.traverse(left, leaves(right), fn leaf, [other | rest] -> {Nx.add(leaf, other), rest} end)
    sum
  end

  defp mean(%{count: 1, sum: sum} = state), do: named(state, fn -> Flow.wait(sum) end)

  defp mean(%{count: count, sum: sum, stage: stage} = state),
    do: named(state, fn -> stage |> Flow.call(&mean/2, [sum, count]) |> Flow.wait() end)

  # Gradients keep their types, whatever that of the count is.
  defp mean(sum, count), do: Composite.traverse(sum, &Nx.as_type(Nx.divide(&1, Nx.as_type(count, &1.type)), &1.type))

  ## What is compiled

  # Equal functions for equal stages, so that each is compiled once. A gradient is that of the sum of the results, each
  # times what its own gradient is. The first stage has no stage before it that would ask for the gradient of its input.
  defp pass(fun, first?) do
    fn parameters, input, cotangents ->
      gradient(parameters, input, first?, &Nx.Defn.grad/2, fn parameters, input ->
        parameters |> fun.(input) |> product(Tuple.to_list(cotangents))
      end)
    end
  end

  defp product(results, cotangents) do
    [first | rest] =
      for {leaf, cotangent} <- Enum.zip(floats(results), cotangents), do: Nx.sum(Nx.multiply(leaf, cotangent))

    Enum.reduce(rest, first, &Nx.add(&2, &1))
  end

  defp last_pass(fun, loss, first?) do
    fn parameters, input, targets ->
      gradient(parameters, input, first?, &Nx.Defn.value_and_grad/2, fn parameters, input ->
        loss.(targets, fun.(parameters, input))
      end)
    end
  end

  # The gradients of the parameters and of the floats of the input, as a tuple.
  defp gradient(parameters, input, first?, grad, fun) do
    floats = if first?, do: [], else: floats(input)

    if not first? and floats == [],
      do: raise(ArgumentError, "no gradient goes to the stage before, which gives no float")

    grad.({parameters, List.to_tuple(floats)}, fn {parameters, floats} ->
      fun.(parameters, if(first?, do: input, else: put_floats(input, Tuple.to_list(floats))))
    end)
  end

  defp floats(container), do: container |> leaves() |> Enum.filter(&float?/1)
  defp float?(tensor), do: Nx.Type.float?(tensor.type) or Nx.Type.complex?(tensor.type)

  defp put_floats(container, floats) do
    {container, []} =
      Composite.traverse(container, floats, fn leaf, floats ->
        if float?(leaf), do: {hd(floats), tl(floats)}, else: {leaf, floats}
      end)

    container
  end

  defp leaves(container), do: Composite.flatten_list([container])

  ## Layers of several stages

  @doc "Gradients in which layers that several stages share have the sum of theirs, in the order of the stages."
  @spec shared([Nx.Container.t()], [Flow.stage()], [{String.t(), [non_neg_integer]}]) :: [Nx.Container.t()]
  def shared(gradients, _stages, []), do: gradients

  def shared(gradients, stages, shared) do
    Enum.reduce(shared, gradients, fn {name, numbers}, gradients ->
      [first | _] = devices = for number <- numbers, do: Enum.at(stages, number).device
      [sum | others] = for number <- numbers, do: Enum.at(gradients, number).data[name] |> Flow.place(first)
      sum = Enum.reduce(others, sum, &sum(&2, &1))

      for {number, device} <- Enum.zip(numbers, devices), reduce: gradients do
        gradients ->
          List.update_at(gradients, number, fn state ->
            %{state | data: Map.put(state.data, name, Flow.place(sum, device))}
          end)
      end
    end)
  end
end
