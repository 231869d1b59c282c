defmodule Digits.Network do
  @moduledoc """
  A classifier with one hidden layer, 64 pixels - 128 units - 10 digits, and its training by Adam (Kingma and Ba, 2015).

  Parameters are `{w1, b1, w2, b2}`. The state of a training is `{parameters, means, squares, t}`: running averages of
  the gradients and of their squares, shaped like the parameters, and the number of steps so far.
  """

  import Nx.Defn

  @pixels 64
  @hidden 128
  @digits 10

  @rate 0.003
  @mean_decay 0.9
  @square_decay 0.999
  @epsilon 1.0e-8

  @doc "The state before the first step: weights by He et al. (2015), everything else zero."
  defn init(key) do
    {w1, key} = Nx.Random.normal(key, 0.0, Nx.sqrt(2 / @pixels), shape: {@pixels, @hidden})
    {w2, _key} = Nx.Random.normal(key, 0.0, Nx.sqrt(2 / @hidden), shape: {@hidden, @digits})
    parameters = {w1, Nx.broadcast(0.0, {@hidden}), w2, Nx.broadcast(0.0, {@digits})}
    zeros = {Nx.broadcast(0.0, w1), Nx.broadcast(0.0, {@hidden}), Nx.broadcast(0.0, w2), Nx.broadcast(0.0, {@digits})}
    {parameters, zeros, zeros, Nx.tensor(0.0)}
  end

  @doc "One step on a batch of images, `{n, 64}`, and their digits, `{n}`: `{loss, state}`."
  defn step({parameters, means, squares, t}, images, labels) do
    {loss, gradients} = value_and_grad(parameters, &loss(&1, images, labels))
    means = zip(means, gradients, fn old, g -> @mean_decay * old + (1 - @mean_decay) * g end)
    squares = zip(squares, gradients, fn old, g -> @square_decay * old + (1 - @square_decay) * g * g end)
    t = t + 1
    # Both averages start at zero, which this makes up for.
    rate = @rate * Nx.sqrt(1 - Nx.pow(@square_decay, t)) / (1 - Nx.pow(@mean_decay, t))
    changes = zip(means, squares, fn mean, square -> rate * mean / (Nx.sqrt(square) + @epsilon) end)
    {loss, {zip(parameters, changes, &Nx.subtract/2), means, squares, t}}
  end

  @doc "The digits that the network sees in the images."
  defn(classify(parameters, images), do: parameters |> logits(images) |> Nx.argmax(axis: 1, type: :u8))

  # The mean cross-entropy between the digits and the softmax of the logits.
  defnp loss(parameters, images, labels) do
    logits = logits(parameters, images)
    shifted = logits - stop_grad(Nx.reduce_max(logits, axes: [1], keep_axes: true))
    right = Nx.equal(Nx.new_axis(labels, 1), Nx.iota({1, @digits}))
    Nx.mean(Nx.log(Nx.sum(Nx.exp(shifted), axes: [1])) - Nx.sum(shifted * right, axes: [1]))
  end

  defnp logits({w1, b1, w2, b2}, images) do
    (images / 16)
    |> Nx.dot(w1)
    |> Nx.add(b1)
    |> Nx.max(0)
    |> Nx.dot(w2)
    |> Nx.add(b2)
  end

  # Applies `fun` to each pair of tensors in two tuples.
  deftransformp zip(left, right, fun) do
    [Tuple.to_list(left), Tuple.to_list(right)] |> Enum.zip_with(fn [l, r] -> fun.(l, r) end) |> List.to_tuple()
  end
end
