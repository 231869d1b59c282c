# What bench/jit_latency.exs measures besides small steps, and test/recordings.exs records in small.

defmodule Workloads do
  @moduledoc false

  import Nx.Defn

  @half_log_2pi 0.9189385332046728
  @log_2_over_pi -0.45158270528945486
  @heads 4

  @doc """
  Shapes of the parameters of a transformer block of so many features: attention, then two layers four times as wide.
  """
  def block_shapes(d), do: [{d}, {d}, {d, 3 * d}, {d, d}, {d}, {d}, {d, 4 * d}, {4 * d}, {4 * d, d}, {d}]

  @doc "Mean square of a transformer block's result (pre-norm, causal, gelu) and its gradients."
  defn(block_step(parameters, x), do: value_and_grad(parameters, &Nx.mean(block(&1, x) ** 2)))

  defn block({g1, b1, w_qkv, w_out, g2, b2, w_up, b_up, w_down, b_down}, x) do
    {batch, length, d} = Nx.shape(x)
    qkv = norm(x, g1, b1) |> Nx.dot(w_qkv) |> Nx.reshape({batch, length, 3, @heads, div(d, @heads)})
    [q, k, v] = split(qkv)
    scores = Nx.dot(q, [3], [0, 1], k, [3], [0, 1]) / Nx.sqrt(div(d, @heads))
    mask = Nx.iota({length, length}, axis: 1) <= Nx.iota({length, length}, axis: 0)
    weights = Nx.select(Nx.broadcast(mask, Nx.shape(scores)), scores, -1.0e9) |> softmax()
    mixed = Nx.dot(weights, [3], [0, 1], v, [2], [0, 1]) |> Nx.transpose(axes: [0, 2, 1, 3])
    x = x + Nx.dot(Nx.reshape(mixed, {batch, length, d}), w_out)
    x + Nx.dot(gelu(Nx.dot(norm(x, g2, b2), w_up) + b_up), w_down) + b_down
  end

  # Each as batch, head, position, feature.
  deftransformp split(qkv) do
    for i <- 0..2, do: qkv[[.., .., i]] |> Nx.transpose(axes: [0, 2, 1, 3])
  end

  defnp norm(x, g, b) do
    centred = x - Nx.mean(x, axes: [-1], keep_axes: true)
    centred * Nx.rsqrt(Nx.mean(centred * centred, axes: [-1], keep_axes: true) + 1.0e-5) * g + b
  end

  defnp softmax(x) do
    e = Nx.exp(x - stop_grad(Nx.reduce_max(x, axes: [-1], keep_axes: true)))
    e / Nx.sum(e, axes: [-1], keep_axes: true)
  end

  defnp(gelu(x), do: 0.5 * x * (1 + Nx.erf(x * 0.7071067811865476)))

  @doc "Logistic regression by gradient descent until the gradient is small, or for 500 steps. Gives weights and steps."
  defn regression(x, y) do
    {w, _, _, _, i} =
      while {w = Nx.broadcast(0.0, {Nx.axis_size(x, 1)}), x, y, size = Nx.tensor(1.0), i = 0},
            size > 1.0e-3 and i < 500 do
        g = Nx.dot(Nx.sigmoid(Nx.dot(x, w)) - y, x) / Nx.axis_size(x, 0)
        {w - 2.0 * g, x, y, Nx.sqrt(Nx.sum(g * g)), i + 1}
      end

    {w, i}
  end

  @doc "Lloyd's steps of k-means from given centres, at most 20."
  defn k_means(x, centres) do
    {centres, _, _, _} =
      while {centres, x, moved = Nx.tensor(1.0), i = 0}, moved > 1.0e-8 and i < 20 do
        {next, moved} = lloyd(x, centres)
        {next, x, moved, i + 1}
      end

    centres
  end

  @doc "A step of k-means, and by how much it moves the centres."
  defn lloyd(x, centres) do
    squares = Nx.sum(centres * centres, axes: [1])
    nearest = Nx.argmin(squares - 2 * Nx.dot(x, [1], centres, [1]), axis: 1)
    members = Nx.new_axis(nearest, 1) == Nx.iota({1, Nx.axis_size(centres, 0)})
    counts = Nx.sum(members, axes: [0]) |> Nx.max(1) |> Nx.new_axis(1)
    next = Nx.dot(Nx.as_type(members, Nx.type(x)), [0], x, [0]) / counts
    {next, Nx.sum((next - centres) ** 2)}
  end

  defnp(normal(x, mu, sigma), do: -0.5 * ((x - mu) / sigma) ** 2 - Nx.log(sigma) - @half_log_2pi)
  defnp(half_cauchy(x, scale), do: @log_2_over_pi - Nx.log(scale) - Nx.log1p((x / scale) ** 2))

  @doc "Value and gradient of the three-regime mixture of returns: 8 parameters."
  defn(regime(q, r), do: value_and_grad(q, &regime_density(&1, r)))

  @doc "The density of priv/shaders/examples/regime_f64.spv."
  defn regime_density(q, r) do
    {sigma_trend, sigma_mr, sigma_vol, theta} = {Nx.exp(q[1]), Nx.exp(q[3]), Nx.exp(q[4]), Nx.exp(q[5])}
    {w1, w2} = {Nx.exp(Nx.min(q[6], 10)), Nx.exp(Nx.min(q[7], 10))}
    total = w1 + w2 + 1
    before = Nx.concatenate([Nx.broadcast(Nx.as_type(0, Nx.type(r)), {1}), r[0..-2//1]])
    trend = normal(r, q[0], sigma_trend) + Nx.log(w1 / total)
    reverting = normal(r, before + theta * (q[2] - before), sigma_mr) + Nx.log(w2 / total)
    volatile = normal(r, 0, sigma_vol) + Nx.log(1 / total)
    likelihood = Nx.stack([trend, reverting, volatile]) |> Nx.logsumexp(axes: [0]) |> Nx.sum()

    likelihood + normal(q[0], 0.001, 0.01) + normal(q[2], 0.001, 0.01) + normal(q[6], 0, 1) + normal(q[7], 0, 1) +
      half_cauchy(sigma_trend, 0.02) + half_cauchy(sigma_mr, 0.02) + half_cauchy(sigma_vol, 0.05) +
      half_cauchy(theta, 0.5) + q[1] + q[3] + q[4] + q[5]
  end

  @doc "Value and gradient of the eight schools' log-density: mu, log tau, eight effects."
  defn eight_schools(q) do
    effects = Nx.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    errors = Nx.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    value_and_grad(q, fn q ->
      mu = q[0]
      log_tau = q[1]
      raw = q[2..9]
      tau = Nx.exp(log_tau)
      residual = (effects - (mu + tau * raw)) / errors
      # Normal(0, 5) for mu, half-Cauchy(5) for tau, standard normals for the rest.
      -0.5 * (mu / 5.0) ** 2 - Nx.log1p((tau / 5.0) ** 2) + log_tau - 0.5 * Nx.sum(raw * raw) -
        0.5 * Nx.sum(residual * residual)
    end)
  end

  @doc "Where regimes are measured, and returns."
  def regime_point(type), do: Nx.tensor([0.01, -3.0, 0.02, -3.0, -3.0, -3.0, 0.05, 0.05], type: type)
  def returns(n, type), do: Nx.tensor(for(i <- 1..n, do: (rem(i * 37, 64) / 64 - 0.5) * 0.02), type: type)
end
