defmodule Nx.Vulkan.Recurrences.Scan do
  @moduledoc false

  # A loop over steps whose gradient is another loop, from the last step to the first.

  import Nx.Defn

  # Loops have tuples of tensors. Parameters may be none, and tuples of a loop have to have elements.
  @doc "`Nx.Vulkan.Recurrences.scan/4`, within a numerical definition."
  @spec run(Nx.Container.t(), Nx.Container.t(), Nx.Container.t(), fun) :: {Nx.Container.t(), Nx.Container.t()}
  def run(sequence, state, parameters, step) do
    [xs, states, weights] = for t <- [sequence, state, parameters], do: t |> flat() |> Enum.map(&argument!/1)
    {xs, states, weights} = inputs = {to_tuple(xs), to_tuple(states), to_tuple(weights ++ [Nx.u8(0)])}
    count = length!(xs)

    call = fn xs, states, weights ->
      {y, next} = pair!(step.(filled(sequence, xs), filled(state, states), filled(parameters, weights)))
      {y, next |> flat() |> to_tuple() |> same!(states)}
    end

    {y, _states} = call.(at(xs, 0, 1), states, weights)
    call = fn xs, states, weights -> then(call.(xs, states, weights), fn {y, next} -> {to_tuple(flat(y)), next} end) end
    ys = for y <- flat(y), axes!(y), do: zeros(Tuple.insert_at(y.shape, 1, count), y.type)

    {ys, lasts} = forwards(xs, states, weights, to_tuple(ys), count: count, step: call)
    results = Tuple.to_list(ys) ++ Tuple.to_list(lasts)

    {ys, lasts} =
      results
      |> to_tuple()
      |> Nx.Defn.Kernel.custom_grad(Enum.filter(flat(inputs), &float?/1), fn cotangents ->
        # Of results that nobody uses they are an f32 of 0, whatever type these have.
        cotangents = cotangents |> flat() |> Enum.zip_with(results, &(&1 |> wide(&2) |> Nx.broadcast(&2)))
        {of_ys, of_lasts} = Enum.split(cotangents, tuple_size(ys))
        gradients_of_steps(inputs, to_tuple(of_ys), of_lasts, count, call)
      end)
      |> Tuple.to_list()
      |> Enum.split(tuple_size(ys))

    {filled(y, to_tuple(ys)), filled(state, to_tuple(lasts))}
  end

  defnp forwards(xs, states, weights, ys, opts \\ []) do
    {_, states, ys, _, _} =
      while {t = 0, states, ys, xs, weights}, t < opts[:count] do
        {y, states} = called(opts[:step], at(xs, t, 1), states, weights)
        {t + 1, states, put(ys, t, y, 1), xs, weights}
      end

    {ys, states}
  end

  # The states before all steps.
  defnp kept(xs, states, weights, all, opts \\ []) do
    {_, _, all, _, _} =
      while {t = 0, states, all, xs, weights}, t < opts[:count] do
        {_, next} = called(opts[:step], at(xs, t, 1), states, weights)
        {t + 1, next, put(all, t, states, 0), xs, weights}
      end

    all
  end

  defp gradients_of_steps({xs, states, weights} = inputs, of_ys, of_lasts, count, step) do
    all = for s <- Tuple.to_list(states), do: zeros(Tuple.insert_at(s.shape, 0, count), s.type)
    all = kept(xs, states, weights, to_tuple(all), count: count, step: step)
    [of_xs, of_weights] = for ts <- [xs, weights], do: each(ts, &no_gradient/1)

    {of_xs, of_states, of_weights} =
      backwards({xs, all, weights, of_ys}, to_tuple(of_lasts), of_xs, of_weights, count: count, step: step)

    for {input, of} <- Enum.zip(flat(inputs), flat({of_xs, of_states, of_weights})), float?(input) do
      Nx.as_type(of, input.type)
    end
  end

  defnp backwards(given, of_states, of_xs, of_weights, opts \\ []) do
    {_, of_states, of_xs, of_weights, _} =
      while {i = 0, of_states, of_xs, of_weights, given}, i < opts[:count] do
        t = opts[:count] - 1 - i
        {of_x, of_states, of_weights} = backward(given, t, of_states, of_weights, opts[:step])
        {i + 1, of_states, put(of_xs, t, of_x, 1), of_weights, given}
      end

    {of_xs, of_states, of_weights}
  end

  deftransformp backward({xs, all, weights, of_ys}, t, of_states, of_weights, step) do
    inputs = {at(xs, t, 1), at(all, t, 0), weights}
    floats = inputs |> flat() |> Enum.filter(&float?/1)
    of_y = at(of_ys, t, 1)

    gradients =
      floats
      |> to_tuple()
      |> Nx.Defn.grad(fn floats ->
        {xs, states, weights} = filled(inputs, refilled(flat(inputs), Tuple.to_list(floats)))
        {y, next} = step.(xs, states, weights)

        for {result, of} <- Enum.zip(flat({y, next}), flat({of_y, of_states})), float?(result), reduce: 0 do
          sum -> Nx.add(sum, Nx.sum(Nx.multiply(result, Nx.as_type(of, result.type))))
        end
      end)
      |> Tuple.to_list()

    {of_x, of_state, of_weight} = filled(inputs, refilled(flat(inputs), gradients))
    added = for {sum, of, t} <- zip([of_weights, of_weight, weights]), do: if(float?(t), do: Nx.add(sum, of), else: sum)
    next = for {old, of, t} <- zip([of_states, of_state, elem(inputs, 1)]), do: if(float?(t), do: wide(of), else: old)
    {of_x, to_tuple(next), to_tuple(added)}
  end

  # Those of a list that are floats are others.
  defp refilled(all, floats) do
    {all, []} =
      Enum.map_reduce(all, floats, fn t, floats -> if float?(t), do: {hd(floats), tl(floats)}, else: {t, floats} end)

    to_tuple(all)
  end

  deftransformp(called(step, xs, states, weights), do: step.(xs, states, weights))

  # The step at a place along an axis, and what takes it, of every tensor in a tuple.
  deftransformp at(ts, t, axis) do
    each(ts, &(&1 |> Nx.slice_along_axis(t, 1, axis: axis) |> Nx.squeeze(axes: [axis])))
  end

  deftransformp put(ts, t, parts, axis) do
    for {all, part} <- zip([ts, parts]) do
      if Nx.rank(all) == 0 do
        all
      else
        Nx.put_slice(
          all,
          List.replace_at(List.duplicate(0, Nx.rank(all)), axis, t),
          Nx.as_type(Nx.new_axis(part, axis), all.type)
        )
      end
    end
    |> to_tuple()
  end

  # What a gradient is added to; a number that stays what it is for tensors that have none.
  defp no_gradient(t), do: if(float?(t), do: zeros(t.shape, t.type) |> wide(), else: Nx.f32(0))
  defp wide(t), do: wide(t, t)
  defp wide(t, like), do: Nx.as_type(t, Nx.Type.merge(like.type, {:f, 32}))

  defp same!(next, states) do
    kinds = fn ts -> for t <- Tuple.to_list(ts), do: {t.type, t.shape} end

    kinds.(next) == kinds.(states) or
      raise ArgumentError,
            "expected a state as that before the step, #{inspect(kinds.(states))}, got: #{inspect(kinds.(next))}"

    next
  end

  @doc "An argument as an expression: a captured tensor is none, and `custom_grad` has to have them."
  @spec argument!(Nx.Tensor.t() | number) :: Nx.Tensor.t()
  def argument!(t) do
    t = Nx.Defn.Expr.tensor(t)
    t.vectorized_axes == [] or raise ArgumentError, "expected tensors without vectorized axes, got: #{inspect(t)}"
    not Nx.Type.complex?(t.type) or raise ArgumentError, "expected real numbers, got: #{Nx.Type.to_string(t.type)}"
    t
  end

  defp pair!({y, state}), do: {y, state}
  defp pair!(other), do: raise(ArgumentError, "expected steps to give {y, state}, got: #{inspect(other)}")

  defp length!(xs) do
    lengths = for x <- Tuple.to_list(xs), do: if(Nx.rank(x) > 1, do: Nx.axis_size(x, 1))

    case Enum.uniq(lengths) do
      [length] when length != nil ->
        length

      _ ->
        raise ArgumentError,
              "expected sequences {batch, length, ..} of one length, got: #{inspect(each(xs, & &1.shape))}"
    end
  end

  defp axes!(%{shape: {}}),
    do: raise(ArgumentError, "expected steps to give tensors with an axis at least, got a number")

  defp axes!(_y), do: true

  # Containers, and tuples of their tensors.
  defp flat(container), do: [container] |> Nx.Defn.Composite.flatten_list() |> Enum.map(&Nx.to_tensor/1)
  defp to_tuple(list), do: List.to_tuple(list)
  defp each(ts, fun), do: ts |> Tuple.to_list() |> Enum.map(fun) |> List.to_tuple()
  defp zip(tuples), do: tuples |> Enum.map(&Tuple.to_list/1) |> Enum.zip()

  defp filled(container, tensors) do
    {container, _rest} =
      Nx.Defn.Composite.traverse(container, Tuple.to_list(tensors), fn _, [t | rest] -> {t, rest} end)

    container
  end

  defp float?(t), do: Nx.Type.float?(Nx.type(t))

  @doc "Zeros of a shape and a type."
  @spec zeros(tuple, Nx.Type.t()) :: Nx.Tensor.t()
  def zeros(shape, type), do: Nx.broadcast(Nx.tensor(0, type: type), shape)
end
