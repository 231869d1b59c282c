defmodule Nx.Vulkan.Pipeline.Gradient do
  @moduledoc false

  # Backward passes of the stages of a pipeline. The last stage computes both passes of a micro-batch at once and gives
  # the gradient of its input back; the others go on with what comes first, a micro-batch or a gradient.

  alias Nx.Defn.Composite
  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Pipeline.{Flow, Layers, MicroBatches}

  @doc "The loss, the gradients of all stages, and the parameters of all with the state that their layers have then."
  @spec run([Flow.stage()], Nx.Container.t(), Nx.Container.t(), fun, pos_integer) ::
          {Nx.Tensor.t(), [Nx.Container.t()], [Nx.Container.t()]}
  def run(stages, batch, targets, loss, count) do
    last = length(stages) - 1

    {sums, parameters} =
      stages
      |> Flow.together(fn stage, place ->
        # How far a stage goes ahead.
        depth = last - place.number + 1
        state = %{stage: stage, place: place, count: count, batch: batch, depth: depth, under_way: :queue.new()}
        state = Map.merge(state, %{forward: 0, backward: 0, sum: nil, parameters: stage.parameters})
        if place.next, do: turn(state), else: last(Map.merge(state, %{targets: targets, loss: loss}))
      end)
      |> Enum.unzip()

    {gradients, [{value, last}]} = Enum.split(sums, last)
    {value, gradients ++ [last], parameters}
  end

  ## The last stage

  defp last(%{backward: count, count: count} = state), do: mean(state)

  defp last(%{stage: stage, place: place, backward: number, count: count, parameters: parameters} = state) do
    :erlang.garbage_collect()
    input = if place.previous, do: await_input(place), else: part(state, number)

    targets = named(state, fn -> state.targets |> MicroBatches.part(number, count) |> Flow.place(stage.device) end)
    fun = last_pass(training(stage), state.loss, place.previous == nil)

    {sum, cotangents, kept} =
      Flow.of_input(input, place, fn ->
        named(state, fn ->
          {{value, kept}, {gradients, cotangents}} = Flow.call(stage, fun, [parameters, input, targets])
          {add(state.sum, {value, gradients}, stage), Flow.wait(cotangents), kept}
        end)
      end)

    if place.previous, do: Flow.give(:previous, cotangents, place)
    last(%{state | backward: number + 1, sum: sum, parameters: Layers.updated(parameters, kept)})
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

  # The backward pass of a micro-batch computes it again from the state that layers have now.
  defp forward(%{stage: stage, place: place, parameters: parameters} = state, input) do
    {result, kept} = Flow.result(input, stage, place, training(stage), parameters)
    Flow.give(:next, result, place)
    under_way = :queue.in({input, parameters}, state.under_way)
    parameters = Layers.updated(parameters, kept)
    turn(%{state | forward: state.forward + 1, under_way: under_way, parameters: parameters})
  end

  defp backward(%{stage: stage, place: place} = state, cotangents) do
    {{:value, {input, parameters}}, under_way} = :queue.out(state.under_way)

    {sum, before} =
      named(state, fn ->
        fun = pass(training(stage), place.previous == nil)
        {gradients, before} = Flow.call(stage, fun, [parameters, input, cotangents])
        {add(state.sum, gradients, stage), Flow.wait(before)}
      end)

    if place.previous, do: Flow.give(:previous, before, place)
    turn(%{state | backward: state.backward + 1, under_way: under_way, sum: sum})
  end

  # A function that gives the result, and the new state of layers.
  defp training(%{train: nil, fun: fun}), do: fn parameters, input -> {fun.(parameters, input), {}} end
  defp training(%{train: train}), do: train

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

  # What a stage ends with.
  defp mean(%{count: 1, sum: sum} = state), do: named(state, fn -> {Flow.wait(sum), state.parameters} end)

  defp mean(%{count: count, sum: sum, stage: stage} = state),
    do: named(state, fn -> {stage |> Flow.call(&mean/2, [sum, count]) |> Flow.wait(), state.parameters} end)

  # Gradients keep their types, whatever that of the count is.
  defp mean(sum, count), do: Composite.traverse(sum, &Nx.as_type(Nx.divide(&1, Nx.as_type(count, &1.type)), &1.type))

  ## What is compiled

  # Equal functions for equal stages, so that each is compiled once. A gradient is that of the sum of the results, each
  # times what its own gradient is. The first stage has no stage before it that would ask for the gradient of its input.
  defp pass(fun, first?) do
    fn parameters, input, cotangents ->
      gradient(parameters, input, first?, &Nx.Defn.grad/2, fn parameters, input ->
        parameters |> fun.(input) |> elem(0) |> product(Tuple.to_list(cotangents))
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
      gradient(parameters, input, first?, &value_and_grad/2, fn parameters, input ->
        {result, kept} = fun.(parameters, input)
        {targets |> loss.(result) |> scalar!(), kept}
      end)
    end
  end

  # Of more than one number Nx takes the gradient of the sum, which is not what a mean over micro-batches has.
  defp scalar!(number) when is_number(number), do: number
  defp scalar!(%T{shape: {}} = scalar), do: scalar

  defp scalar!(other) do
    other = if is_struct(other, T), do: Nx.to_template(other), else: other
    raise ArgumentError, "expected the loss to give a scalar, such as a mean over the rows, got: #{inspect(other)}"
  end

  defp value_and_grad(vars, fun), do: Nx.Defn.value_and_grad(vars, fun, fn {value, _kept} -> value end)

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
