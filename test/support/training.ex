defmodule Nx.Vulkan.Training do
  @moduledoc """
  A classifier with one hidden layer and the Adam update, written with `Nx.Defn` and run by `Nx.Defn.Evaluator`.
  """

  import Nx.Defn
  import Nx.Vulkan.Conformance, only: [random: 4]

  @rate 0.01
  @beta1 0.9
  @beta2 0.999
  @epsilon 1.0e-8

  @doc "Random parameters, images and one-hot labels."
  def problem(features, hidden, samples, classes) do
    parameters = {
      random({features, hidden}, {:f, 32}, -0.5, 0.5),
      random({hidden}, {:f, 32}, -0.1, 0.1),
      random({hidden, classes}, {:f, 32}, -0.5, 0.5),
      random({classes}, {:f, 32}, -0.1, 0.1)
    }

    digits = random({samples, 1}, {:s, 64}, 0, classes - 1)
    labels = Nx.as_type(Nx.equal(digits, Nx.iota({1, classes}, backend: Nx.BinaryBackend)), :f32)
    {parameters, random({samples, features}, {:f, 32}, 0, 1), labels}
  end

  def flatten(parameters), do: Tuple.to_list(parameters)

  @doc "Loss, gradients, and the parameters and moments after the first Adam update."
  def step(w1, b1, w2, b2, images, labels) do
    parameters = {w1, b1, w2, b2}
    Nx.Defn.jit_apply(&update/5, [parameters, moments(parameters), 1, images, labels], compiler: Nx.Defn.Evaluator)
  end

  @doc "The losses of `count` steps."
  def losses(w1, b1, w2, b2, images, labels, count) do
    parameters = {w1, b1, w2, b2}

    {losses, _} =
      Enum.map_reduce(1..count, {parameters, moments(parameters)}, fn i, {parameters, moments} ->
        {loss, parameters, moments} =
          Nx.Defn.jit_apply(&update/5, [parameters, moments, i, images, labels], compiler: Nx.Defn.Evaluator)

        {loss, {parameters, moments}}
      end)

    Nx.stack(losses)
  end

  defp moments(parameters) do
    zeros = parameters |> Tuple.to_list() |> Enum.map(&Nx.broadcast(Nx.tensor(0.0), &1)) |> List.to_tuple()
    {zeros, zeros}
  end

  defn loss({w1, b1, w2, b2}, images, labels) do
    hidden = Nx.max(Nx.dot(images, w1) + b1, 0)
    logits = Nx.dot(hidden, w2) + b2
    highest = stop_grad(Nx.reduce_max(logits, axes: [1], keep_axes: true))
    shifted = logits - highest
    log_softmax = shifted - Nx.log(Nx.sum(Nx.exp(shifted), axes: [1], keep_axes: true))
    -Nx.mean(Nx.sum(labels * log_softmax, axes: [1]))
  end

  defn update(parameters, {first, second}, i, images, labels) do
    {loss, gradients} = value_and_grad(parameters, &loss(&1, images, labels))
    {w1, m1, v1} = adam(elem(parameters, 0), elem(gradients, 0), elem(first, 0), elem(second, 0), i)
    {b1, m2, v2} = adam(elem(parameters, 1), elem(gradients, 1), elem(first, 1), elem(second, 1), i)
    {w2, m3, v3} = adam(elem(parameters, 2), elem(gradients, 2), elem(first, 2), elem(second, 2), i)
    {b2, m4, v4} = adam(elem(parameters, 3), elem(gradients, 3), elem(first, 3), elem(second, 3), i)
    {loss, {w1, b1, w2, b2}, {{m1, m2, m3, m4}, {v1, v2, v3, v4}}}
  end

  defnp adam(parameter, gradient, first, second, i) do
    first = @beta1 * first + (1 - @beta1) * gradient
    second = @beta2 * second + (1 - @beta2) * gradient * gradient
    unbiased = first / (1 - Nx.pow(@beta1, i))
    scale = Nx.sqrt(second / (1 - Nx.pow(@beta2, i))) + @epsilon
    {parameter - @rate * unbiased / scale, first, second}
  end

  @doc "The gradient through gather, indexed_add, pad and a cumulative sum."
  defn spread_grad(x, indices) do
    value_and_grad(x, fn x ->
      spread = Nx.indexed_add(x * 2, indices, Nx.log(Nx.gather(x, indices)))
      Nx.sum(Nx.pad(spread, 1.0, [{1, 2, 0}]) * Nx.cumulative_sum(Nx.iota({8}, type: :f32)))
    end)
  end

  @doc "The gradient through a while that updates slices, and a cond."
  defn loop_grad(x) do
    value_and_grad(x, fn x ->
      {_, powers, _} =
        while {i = 0, powers = Nx.broadcast(x * 0, {3, 4}), x}, i < 3 do
          {i + 1, Nx.put_slice(powers, [i, 0], Nx.new_axis(Nx.exp(x * (i + 1) / 4), 0)), x}
        end

      total = Nx.sum(Nx.select(powers > 1.5, powers, Nx.log1p(powers)))
      if total > 0, do: total * 2, else: total
    end)
  end
end
