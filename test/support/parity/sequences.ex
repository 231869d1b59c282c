defmodule Nx.Vulkan.Parity.Sequences do
  @moduledoc """
  Layers that go along a sequence, each as a loop of a numerical definition and, as `.._steps`, step by step in Elixir.

  Sequences are {batch, length, ..}.
  """

  import Nx.Defn

  # Cells take a step's input and the state, which is the last result unless a cell says otherwise.

  @doc "Elman's cell: `activation` is `:tanh` or `:relu`."
  defn rnn_cell(x, h, weights, opts \\ []) do
    {input, hidden, bias} = weights
    sum = Nx.dot(x, input) + Nx.dot(h, hidden) + bias
    if_relu(sum, opts[:activation])
  end

  deftransformp(if_relu(x, activation), do: if(activation == :relu, do: Nx.max(x, 0), else: Nx.tanh(x)))

  @doc "The gated recurrent unit; gates r, z and n lie side by side."
  defn gru_cell(x, h, weights) do
    {input, hidden, bias, hidden_bias} = weights
    size = Nx.axis_size(h, 1)
    from_x = Nx.dot(x, input) + bias
    from_h = Nx.dot(h, hidden) + hidden_bias
    r = Nx.sigmoid(part(from_x, 0, size) + part(from_h, 0, size))
    z = Nx.sigmoid(part(from_x, 1, size) + part(from_h, 1, size))
    n = Nx.tanh(part(from_x, 2, size) + r * part(from_h, 2, size))
    (1 - z) * n + z * h
  end

  @doc "Long short-term memory, of a state {c, h}; gates i, f, g and o lie side by side."
  defn lstm_cell(x, {c, h}, weights) do
    {input, hidden, bias} = weights
    size = Nx.axis_size(h, 1)
    gates = Nx.dot(x, input) + Nx.dot(h, hidden) + bias
    c = Nx.sigmoid(part(gates, 1, size)) * c + Nx.sigmoid(part(gates, 0, size)) * Nx.tanh(part(gates, 2, size))
    {c, Nx.sigmoid(part(gates, 3, size)) * Nx.tanh(c)}
  end

  deftransformp(part(x, i, size), do: Nx.slice_along_axis(x, i * size, size, axis: 1))

  defn rnn(x, weights, opts \\ []) do
    {batch, length, _} = Nx.shape(x)
    h = zeros(x, {batch, Nx.axis_size(elem(weights, 1), 0)})
    out = zeros(x, {batch, length, Nx.axis_size(elem(weights, 1), 0)})

    {_, _, out, _, _} =
      while {t = 0, h, out, x, weights}, t < length do
        h = rnn_cell(x[[.., t]], h, weights, opts)
        {t + 1, h, Nx.put_slice(out, [0, t, 0], Nx.new_axis(h, 1)), x, weights}
      end

    out
  end

  defn gru(x, weights) do
    {batch, length, _} = Nx.shape(x)
    h = zeros(x, {batch, Nx.axis_size(elem(weights, 1), 0)})
    out = zeros(x, {batch, length, Nx.axis_size(elem(weights, 1), 0)})

    {_, _, out, _, _} =
      while {t = 0, h, out, x, weights}, t < length do
        h = gru_cell(x[[.., t]], h, weights)
        {t + 1, h, Nx.put_slice(out, [0, t, 0], Nx.new_axis(h, 1)), x, weights}
      end

    out
  end

  defn lstm(x, weights) do
    {batch, length, _} = Nx.shape(x)
    h = zeros(x, {batch, Nx.axis_size(elem(weights, 1), 0)})
    out = zeros(x, {batch, length, Nx.axis_size(elem(weights, 1), 0)})

    {_, _, out, _, _} =
      while {t = 0, {c = h, h}, out, x, weights}, t < length do
        {c, h} = lstm_cell(x[[.., t]], {c, h}, weights)
        {t + 1, {c, h}, Nx.put_slice(out, [0, t, 0], Nx.new_axis(h, 1)), x, weights}
      end

    out
  end

  @doc "A layer in both directions, their results side by side."
  deftransform both_ways(layer, x, forward, backward) do
    back = x |> Nx.reverse(axes: [1]) |> layer.(backward) |> Nx.reverse(axes: [1])
    Nx.concatenate([layer.(x, forward), back], axis: 2)
  end

  @doc "What `cell` gives along a sequence; `read` says which part of the state is the result."
  def steps(x, state, cell, read \\ & &1) do
    {outs, _state} =
      Enum.map_reduce(0..(Nx.axis_size(x, 1) - 1), state, fn t, state ->
        state = cell.(x[[.., t]], state)
        {read.(state), state}
      end)

    Nx.stack(outs, axis: 1)
  end

  @doc """
  Mamba's scan: `x` and `delta` {batch, length, channels}, `a` {channels, states}, `b` and `c` {batch, length, states}.
  """
  defn selective_scan(x, delta, a, b, c) do
    {batch, length, channels} = Nx.shape(x)
    h = zeros(x, {batch, channels, Nx.axis_size(a, 1)})

    {_, _, out, _} =
      while {t = 0, h, out = zeros(x, {batch, length, channels}), {x, delta, a, b, c}}, t < length do
        h = selective_step(h, x[[.., t]], delta[[.., t]], a, b[[.., t]])
        y = Nx.sum(h * Nx.new_axis(c[[.., t]], 1), axes: [2])
        {t + 1, h, Nx.put_slice(out, [0, t, 0], Nx.new_axis(y, 1)), {x, delta, a, b, c}}
      end

    out
  end

  defn selective_step(h, x, delta, a, b) do
    decay = Nx.exp(Nx.new_axis(delta, 2) * Nx.new_axis(a, 0))
    decay * h + Nx.new_axis(delta * x, 2) * Nx.new_axis(b, 1)
  end

  def selective_scan_steps(x, delta, a, b, c) do
    {batch, length, channels} = x.shape

    {outs, _} =
      Enum.map_reduce(0..(length - 1), zeros(x, {batch, channels, Nx.axis_size(a, 1)}), fn t, h ->
        h = selective_step(h, x[[.., t]], delta[[.., t]], a, b[[.., t]])
        {Nx.sum(Nx.multiply(h, Nx.new_axis(c[[.., t]], 1)), axes: [2]), h}
      end)

    Nx.stack(outs, axis: 1)
  end

  @doc """
  Mamba 2: `x` {batch, length, heads, size}, `delta` {batch, length, heads}, `a` {heads}, `b` and `c`
  {batch, length, states}.
  """
  defn mamba2(x, delta, a, b, c) do
    {batch, length, heads, size} = Nx.shape(x)
    h = zeros(x, {batch, heads, size, Nx.axis_size(b, 2)})

    {_, _, out, _} =
      while {t = 0, h, out = zeros(x, {batch, length, heads, size}), {x, delta, a, b, c}}, t < length do
        h = mamba2_step(h, x[[.., t]], delta[[.., t]], a, b[[.., t]])
        y = Nx.sum(h * Nx.reshape(c[[.., t]], {batch, 1, 1, :auto}), axes: [3])
        {t + 1, h, Nx.put_slice(out, [0, t, 0, 0], Nx.new_axis(y, 1)), {x, delta, a, b, c}}
      end

    out
  end

  defn mamba2_step(h, x, delta, a, b) do
    {batch, heads} = Nx.shape(delta)
    decay = Nx.exp(delta * a) |> Nx.reshape({batch, heads, 1, 1})
    input = Nx.new_axis(x * Nx.new_axis(delta, 2), 3) * Nx.reshape(b, {batch, 1, 1, :auto})
    decay * h + input
  end

  def mamba2_steps(x, delta, a, b, c) do
    {batch, length, heads, size} = x.shape

    {outs, _} =
      Enum.map_reduce(0..(length - 1), zeros(x, {batch, heads, size, Nx.axis_size(b, 2)}), fn t, h ->
        h = mamba2_step(h, x[[.., t]], delta[[.., t]], a, b[[.., t]])
        {Nx.sum(Nx.multiply(h, Nx.reshape(c[[.., t]], {batch, 1, 1, :auto})), axes: [3]), h}
      end)

    Nx.stack(outs, axis: 1)
  end

  @doc """
  The gated delta rule: `q` and `k` {batch, length, heads, keys}, `v` {batch, length, heads, values}, `log_decay` and
  `beta` {batch, length, heads}, and the state {batch, heads, keys, values} that it begins with. The results and the
  last state.
  """
  defn gated_delta_rule(q, k, v, log_decay, beta, state) do
    length = Nx.axis_size(q, 1)

    {_, state, out, _} =
      while {t = 0, state, out = zeros(v, Nx.shape(v)), {q, k, v, log_decay, beta}}, t < length do
        {y, state} = gated_delta_step(state, q[[.., t]], k[[.., t]], v[[.., t]], log_decay[[.., t]], beta[[.., t]])
        {t + 1, state, Nx.put_slice(out, [0, t, 0, 0], Nx.new_axis(y, 1)), {q, k, v, log_decay, beta}}
      end

    {out, state}
  end

  defn gated_delta_step(state, q, k, v, log_decay, beta) do
    state = state * Nx.exp(Nx.new_axis(Nx.new_axis(log_decay, 2), 3))
    seen = Nx.sum(state * Nx.new_axis(k, 3), axes: [2])
    state = state + Nx.new_axis(k, 3) * Nx.new_axis((v - seen) * Nx.new_axis(beta, 2), 2)
    {Nx.sum(state * Nx.new_axis(q, 3), axes: [2]), state}
  end

  def gated_delta_rule_steps(q, k, v, log_decay, beta, state) do
    {outs, state} =
      Enum.map_reduce(0..(Nx.axis_size(q, 1) - 1), state, fn t, state ->
        gated_delta_step(state, q[[.., t]], k[[.., t]], v[[.., t]], log_decay[[.., t]], beta[[.., t]])
      end)

    {Nx.stack(outs, axis: 1), state}
  end

  @doc """
  RWKV's attention: keys and values {batch, length, channels}, whose weights decay with their distance, that of the step
  itself being `bonus`. Sums are kept over their largest exponent.
  """
  defn wkv(decay, bonus, k, v) do
    {batch, length, channels} = Nx.shape(k)
    none = zeros(k, {batch, channels})
    state = {none, none, none - 1.0e30}

    {_, _, out, _} =
      while {t = 0, state, out = zeros(k, {batch, length, channels}), {decay, bonus, k, v}}, t < length do
        {y, state} = wkv_step(state, decay, bonus, k[[.., t]], v[[.., t]])
        {t + 1, state, Nx.put_slice(out, [0, t, 0], Nx.new_axis(y, 1)), {decay, bonus, k, v}}
      end

    out
  end

  defnp wkv_step({above, below, most}, decay, bonus, k, v) do
    largest = Nx.max(most, bonus + k)
    [old, new] = [Nx.exp(most - largest), Nx.exp(bonus + k - largest)]
    y = (old * above + new * v) / (old * below + new)
    next = Nx.max(most - decay, k)
    [old, new] = [Nx.exp(most - decay - next), Nx.exp(k - next)]
    {y, {old * above + new * v, old * below + new, next}}
  end

  @doc "The same by its definition: the mean of values up to a step, weighted by exponentials."
  def wkv_sums(decay, bonus, k, v) do
    outs =
      for t <- 0..(Nx.axis_size(k, 1) - 1) do
        weights =
          for i <- 0..t do
            exponent = if i == t, do: bonus, else: Nx.multiply(decay, i + 1 - t)
            Nx.exp(Nx.add(exponent, k[[.., i]]))
          end

        above = weights |> Enum.with_index(fn w, i -> Nx.multiply(w, v[[.., i]]) end) |> Enum.reduce(&Nx.add/2)
        Nx.divide(above, Enum.reduce(weights, &Nx.add/2))
      end

    Nx.stack(outs, axis: 1)
  end

  deftransform(zeros(like, shape), do: Nx.broadcast(Nx.tensor(0, type: like.type), shape))
end
