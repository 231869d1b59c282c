# Training steps and small functions that bench/jit_latency.exs measures, and test/recordings.exs records in small.

defmodule Models do
  @moduledoc false

  import Nx.Defn

  @rate 0.001
  @beta1 0.9
  @beta2 0.999
  @epsilon 1.0e-8

  defn(tiny(x), do: x * 2 + 1)

  defn(chain(x), do: Nx.tanh(Nx.exp(x * 0.5 + 1) * x - 0.1))

  defn mlp(images, parameters) do
    {w1, b1, w2, b2, w3, b3} = parameters
    hidden = Nx.max(Nx.dot(images, w1) + b1, 0)
    hidden = Nx.max(Nx.dot(hidden, w2) + b2, 0)
    Nx.dot(hidden, w3) + b3
  end

  defn cnn(images, parameters) do
    {k1, c1, k2, c2, w1, b1, w2, b2} = parameters
    x = Nx.conv(images, k1, padding: :same) + Nx.reshape(c1, {1, Nx.size(c1), 1, 1})
    x = Nx.window_max(Nx.max(x, 0), {1, 1, 2, 2}, strides: [1, 1, 2, 2])
    x = Nx.conv(x, k2, padding: :same) + Nx.reshape(c2, {1, Nx.size(c2), 1, 1})
    x = Nx.window_max(Nx.max(x, 0), {1, 1, 2, 2}, strides: [1, 1, 2, 2])
    x = Nx.flatten(x, axes: [1, 2, 3])
    Nx.dot(Nx.max(Nx.dot(x, w1) + b1, 0), w2) + b2
  end

  defn cross_entropy(logits, labels) do
    shifted = logits - stop_grad(Nx.reduce_max(logits, axes: [1], keep_axes: true))
    Nx.mean(Nx.log(Nx.sum(Nx.exp(shifted), axes: [1])) - Nx.sum(shifted * labels, axes: [1]))
  end

  defn mlp_step(state, images, labels) do
    {parameters, _, _, _} = state
    {loss, gradients} = value_and_grad(parameters, &cross_entropy(mlp(images, &1), labels))
    {loss, adam(state, gradients)}
  end

  defn cnn_step(state, images, labels) do
    {parameters, _, _, _} = state
    {loss, gradients} = value_and_grad(parameters, &cross_entropy(cnn(images, &1), labels))
    {loss, adam(state, gradients)}
  end

  deftransformp adam({parameters, means, squares, t}, gradients) do
    t = Nx.add(t, 1)
    scale1 = Nx.subtract(1.0, Nx.pow(@beta1, t))
    scale2 = Nx.subtract(1.0, Nx.pow(@beta2, t))

    [parameters, means, squares] =
      [parameters, means, squares, gradients]
      |> Enum.map(&Tuple.to_list/1)
      |> Enum.zip_with(fn [p, m, s, g] -> Tuple.to_list(update(p, m, s, g, scale1, scale2)) end)
      |> Enum.zip_with(&List.to_tuple/1)

    {parameters, means, squares, t}
  end

  defnp update(p, m, s, g, scale1, scale2) do
    m = @beta1 * m + (1 - @beta1) * g
    s = @beta2 * s + (1 - @beta2) * g * g
    {p - @rate * (m / scale1) / (Nx.sqrt(s / scale2) + @epsilon), m, s}
  end

  defn thousand(x) do
    while x, _ <- 0..999 do
      x * 0.99 + Nx.sin(x) * 0.01
    end
  end

  defn softmax(x) do
    e = Nx.exp(x - Nx.reduce_max(x, axes: [1], keep_axes: true))
    e / Nx.sum(e, axes: [1], keep_axes: true)
  end

  defn layer_norm(x) do
    centred = x - Nx.mean(x, axes: [1], keep_axes: true)
    centred * Nx.rsqrt(Nx.mean(centred * centred, axes: [1], keep_axes: true) + 1.0e-5)
  end
end
