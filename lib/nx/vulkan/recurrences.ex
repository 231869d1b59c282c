defmodule Nx.Vulkan.Recurrences do
  @moduledoc """
  Layers that carry a state along a sequence.

  A `while` takes a step after the other, and its gradient runs as many iterations as the square of the steps. Where the
  algebra allows it, these functions compute the same for all steps at once, by a scan, or by chunks, whose insides are
  products of matrices. For all else there is `scan/4`, a loop whose gradient is a loop of as many steps. They are
  numerical definitions, for any backend and compiler.

  | model | function |
  |---|---|
  | exponential averages, minimal GRU, RG-LRU, generalized advantages | `linear/4` |
  | Mamba | `selective_scan/6` |
  | Mamba 2, RetNet, linear attention | `linear_attention/6` |
  | DeltaNet, Gated DeltaNet | `gated_delta_rule/7` |
  | LSTM, GRU, RWKV and others | `scan/4` |

  ## Shapes

  Sequences are `{batch, length, ..}`. A state is what a sequence begins with and, in results, what is left behind its
  last step, so that a sequence may come in parts, or token by token. The number 0 stands for a state of zeros, but not
  in `scan/4`.

  ## Types

  All arguments are computed with in one type: the one that holds all of theirs, and f32 where that is an integer or has
  16 bits or fewer. States have that type. Other results have the type of the argument whose shape they have, where that
  is a float. `scan/4` has the types that its steps have.

  ## Errors

  `ArgumentError` for shapes that do not fit, for types that are no real numbers and for vectorized tensors.
  """

  import Nx.Defn

  alias Nx.Vulkan.Recurrences.Scan

  @doc """
  `h[t] = decay[t] * h[t - 1] + input[t]`: all `h` along an axis. `state` is the one before the first.

  It is a scan of about `2 log2(length)` elementwise steps, which read and write some 14 times what `input` takes, 10
  times where decays are one number for each step. The products of decays have to be within the type: decays of a
  magnitude up to 1 always are.

  ## Options

    * `:axis` - the axis of steps, the second one by default

  ## Shapes

  `decay` is a number or has the shape of `input`, but each of its axes other than that of steps may be 1. `state` has
  the shape of one step, with an axis of steps of 1. The result has the shape of `input`.

  ## Source

  Blelloch, Prefix sums and their applications (1990), section 1.4; as of `jax.lax.associative_scan`.

  ## Examples

      iex> Nx.Vulkan.Recurrences.linear(Nx.tensor([[0.5, 0.5, 0.5]]), Nx.tensor([[4.0, 0.0, 8.0]]), 0)
      #Nx.Tensor<
        f32[1][3]
        [
          [4.0, 2.0, 9.0]
        ]
      >
  """
  @spec linear(Nx.Tensor.t(), Nx.Tensor.t(), Nx.Tensor.t() | number, keyword) :: Nx.Tensor.t()
  defn linear(decay, input, state, opts \\ []) do
    opts = keyword!(opts, axis: 1)
    along(decay, input, state, opts[:axis])
  end

  deftransformp along(decay, input, state, axis) do
    [decay, wide, state] = of_one_type([decay, input, state])
    rank = Nx.rank(wide)
    axis = Nx.axis_index(Nx.to_tensor(input), axis)
    decay = if decay.shape == {}, do: Nx.broadcast(decay, one_for(wide.shape, axis)), else: decay
    fits? = fn one -> one.shape |> sizes() |> Enum.zip(sizes(wide.shape)) |> Enum.all?(fn {n, m} -> n in [1, m] end) end

    (Nx.rank(decay) == rank and fits?.(decay) and Nx.axis_size(decay, axis) == Nx.axis_size(wide, axis)) or
      raise ArgumentError,
            "expected decays of the shape #{inspect(wide.shape)} of the inputs, where axes but that of steps may be " <>
              "1, got: #{inspect(decay.shape)}"

    state = state!(state, put_elem(wide.shape, axis, 1))
    from_state = Nx.multiply(first(decay, axis), state)
    wide = join([Nx.add(first(wide, axis), from_state) | later(wide, axis)], axis)
    decay |> scan_with_gradient(wide, axis) |> as(input)
  end

  # The shape with the axis, and 1 for all others.
  defp one_for(shape, axis),
    do: shape |> sizes() |> Enum.map(fn _ -> 1 end) |> List.to_tuple() |> put_elem(axis, elem(shape, axis))

  # The gradient of an input is that of its own result and, decayed, of the next input: the same scan from the end.
  defp scan_with_gradient(decay, input, axis) do
    h = scan(decay, input, axis)

    Nx.Defn.Kernel.custom_grad(h, [decay, input], fn g ->
      next = join(later(decay, axis) ++ [none(first(decay, axis))], axis)
      d_input = next |> back(axis) |> scan_with_gradient(back(g, axis), axis) |> back(axis)
      before = join([none(first(h, axis)) | upto(h, Nx.axis_size(h, axis) - 1, axis)], axis)
      [sum_to(Nx.multiply(d_input, before), decay.shape), d_input]
    end)
  end

  # Two steps are one, of half as many; results at even places follow from those before them.
  defp scan(decay, input, axis) do
    case Nx.axis_size(input, axis) do
      1 ->
        input

      n ->
        half = div(n, 2)
        [decay_even, input_even] = for t <- [decay, input], do: every_second(t, 0, n - half, axis)
        [decay_odd, input_odd] = for t <- [decay, input], do: every_second(t, 1, half, axis)
        [[decay_first], [input_first]] = for t <- [decay_even, input_even], do: upto(t, half, axis)
        pairs = Nx.add(Nx.multiply(decay_odd, input_first), input_odd)
        odd = scan(Nx.multiply(decay_odd, decay_first), pairs, axis)

        even =
          for {before, decay, input} <-
                Enum.zip([upto(odd, n - half - 1, axis), later(decay_even, axis), later(input_even, axis)]) do
            Nx.add(Nx.multiply(decay, before), input)
          end

        interleave(join([first(input_even, axis) | even], axis), odd, axis)
    end
  end

  defp every_second(t, start, count, axis), do: Nx.slice_along_axis(t, start, 2 * count - 1, axis: axis, strides: 2)

  defp interleave(even, odd, axis) do
    {n, m} = {Nx.axis_size(even, axis), Nx.axis_size(odd, axis)}
    odd = join([odd | upto(even, n - m, axis)], axis)

    [all] =
      [even, odd] |> Nx.stack(axis: axis + 1) |> Nx.reshape(put_elem(even.shape, axis, 2 * n)) |> upto(n + m, axis)

    all
  end

  # Parts along an axis; those that may be empty are lists, since tensors are not.
  defp first(t, axis), do: Nx.slice_along_axis(t, 0, 1, axis: axis)
  defp upto(_t, 0, _axis), do: []
  defp upto(t, n, axis), do: [Nx.slice_along_axis(t, 0, n, axis: axis)]

  defp later(t, axis) do
    n = Nx.axis_size(t, axis)
    if n == 1, do: [], else: [Nx.slice_along_axis(t, 1, n - 1, axis: axis)]
  end

  defp join([one], _axis), do: one
  defp join(parts, axis), do: Nx.concatenate(parts, axis: axis)

  defp none(t), do: Scan.zeros(t.shape, t.type)

  defp sum_to(t, shape) do
    axes = for {{n, m}, axis} <- t.shape |> sizes() |> Enum.zip(sizes(shape)) |> Enum.with_index(), n != m, do: axis
    if axes == [], do: t, else: Nx.sum(t, axes: axes, keep_axes: true)
  end

  @doc """
  The selective scan of Mamba:

      h[t] = exp(delta[t] * a) * h[t - 1] + delta[t] * x[t] * b[t]
      y[t] = sum(c[t] * h[t])

  for each channel, of as many states as `a` has for it. It takes some four times the memory of all `h`, which are
  `batch * length * channels * states` numbers, and five times with its gradient.

  ## Shapes

  `x` and `delta` `{batch, length, channels}`, `a` `{channels, states}`, `b` and `c` `{batch, length, states}`, `state`
  `{batch, channels, states}` or 0. The result is `{y, state}`, `y` of the shape of `x`. `a` is negative in models, and
  `delta` positive.

  ## Source

  Gu and Dao, Mamba: linear-time sequence modeling with selective state spaces (2023), algorithm 2. What `x` skips, `d`
  there, is added by the caller.

  ## Examples

      iex> [x, a, b] = for shape <- [{1, 3, 2}, {2, 1}, {1, 3, 1}], do: Nx.broadcast(1.0, shape)
      iex> {y, state} = Nx.Vulkan.Recurrences.selective_scan(x, x, Nx.multiply(a, 0), b, b, 0)
      iex> {Nx.to_list(y), state.shape}
      {[[[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]], {1, 2, 1}}
  """
  @spec selective_scan(
          Nx.Tensor.t(),
          Nx.Tensor.t(),
          Nx.Tensor.t(),
          Nx.Tensor.t(),
          Nx.Tensor.t(),
          Nx.Tensor.t() | number
        ) :: {Nx.Tensor.t(), Nx.Tensor.t()}
  defn(selective_scan(x, delta, a, b, c, state), do: selective(x, delta, a, b, c, state))

  deftransformp selective(x, delta, a, b, c, state) do
    [wide, delta, a, b, c, state] = of_one_type([x, delta, a, b, c, state])
    {batch, length, channels} = rank!(:x, wide, 3)
    {_channels, states} = rank!(:a, a, 2)
    shape!(:delta, delta, {batch, length, channels})
    shape!(:a, a, {channels, states})
    for {name, t} <- [b: b, c: c], do: shape!(name, t, {batch, length, states})
    state = state!(state, {batch, channels, states})

    decay = delta |> Nx.new_axis(3) |> Nx.multiply(Nx.reshape(a, {1, 1, channels, states})) |> Nx.exp()
    input = delta |> Nx.multiply(wide) |> Nx.new_axis(3) |> Nx.multiply(Nx.new_axis(b, 2))
    h = along(decay, input, Nx.new_axis(state, 1), 1)
    y = h |> Nx.multiply(Nx.new_axis(c, 2)) |> Nx.sum(axes: [3])
    {as(y, x), last(h)}
  end

  @doc """
  Linear attention with a decay: of a state that is a matrix of keys by values,

      s[t] = exp(log_decay[t]) * s[t - 1] + outer(k[t], v[t])
      y[t] = q[t] . s[t]

  for each head. Chunks are products of matrices, and their states a scan (`linear/4`). So NaN and infinities of a step
  become NaN in all results of its chunk, those before it included. A `log_decay` of minus infinity forgets all.

  Mamba 2 is this, of `x`, `delta`, `a`, `b` and `c`:

      linear_attention(new_axis(c, 2), new_axis(b, 2), x * new_axis(delta, -1), delta * a, 0)

  RetNet has a fixed `log_decay`, and attention by feature maps that of 0; its divisor is what `v` of ones gives.

  ## Options

    * `:chunk` - how many steps a chunk has, 64 by default

  ## Shapes

  `q` and `k` `{batch, length, heads, keys}`, of 1 head where all have the same; `v` `{batch, length, heads, values}`;
  `log_decay` `{batch, length, heads}` or a number, not above 0; `state` `{batch, heads, keys, values}` or 0. The result
  is `{y, state}`, `y` of the shape of `v`.

  ## Source

  Dao and Gu, Transformers are SSMs (2024), section 6; Yang et al., Gated linear attention transformers (2023).

  ## Examples

      iex> ones = Nx.broadcast(1.0, {1, 3, 1, 1})
      iex> {y, state} = Nx.Vulkan.Recurrences.linear_attention(ones, ones, ones, :math.log(0.5), 0)
      iex> {Nx.to_flat_list(y), Nx.to_flat_list(state)}
      {[1.0, 1.5, 1.75], [1.75]}
  """
  @spec linear_attention(
          Nx.Tensor.t(),
          Nx.Tensor.t(),
          Nx.Tensor.t(),
          Nx.Tensor.t() | number,
          Nx.Tensor.t() | number,
          keyword
        ) :: {Nx.Tensor.t(), Nx.Tensor.t()}
  defn linear_attention(q, k, v, log_decay, state, opts \\ []) do
    opts = keyword!(opts, chunk: 64)
    attention(q, k, v, log_decay, state, opts[:chunk])
  end

  deftransformp attention(q, k, v, log_decay, state, size) do
    {wide, {batch, length, heads, keys, values}} = heads!([q, k, v, log_decay, state])
    [q, k, wide, log_decay, state] = wide
    chunk = chunk!(size, length)
    [q, k, wide] = for t <- [q, k, wide], do: chunks(t, chunk)
    decays = log_decay |> chunks(chunk) |> decays()
    state = state!(state, {batch, heads, keys, values})

    inside = dot(Nx.multiply(products(q, k), decays.between), wide)
    added = transposed_dot(Nx.multiply(k, decays.behind), wide)
    states = along(decays.total, added, Nx.new_axis(state, 2), 2)
    before = join([Nx.new_axis(state, 2) | upto(states, Nx.axis_size(states, 2) - 1, 2)], 2)
    y = inside |> Nx.add(dot(Nx.multiply(q, decays.ahead), before)) |> joined(length)
    {as(y, v), states[[.., .., -1]]}
  end

  @doc """
  The gated delta rule: a state that is a matrix of keys by values forgets, and replaces what it has for a key,

      s[t] = exp(log_decay[t]) * s[t - 1]
      s[t] = s[t] + beta[t] * outer(k[t], v[t] - k[t] . s[t])
      y[t] = q[t] . s[t]

  for each head. Steps of a chunk are a triangular system, everything else in it products of matrices; states go from
  chunk to chunk, and NaN spreads in a chunk as in `linear_attention/6`. With a `log_decay` of 0 it is DeltaNet. Keys of
  models have a length of 1: where `beta` is above 2 over the square of the length, states may grow with every step.

  ## Options

    * `:chunk` - how many steps a chunk has, 64 by default

  ## Shapes

  Those of `linear_attention/6`; `beta` is as `log_decay`. The result is `{y, state}`, `y` of the shape of `v`.

  ## Source

  Yang, Kautz and Hatamizadeh, Gated delta networks (2024), section 3.3; Yang et al., Parallelizing linear transformers
  with the delta rule over sequence length (2024).

  ## Examples

      iex> ones = Nx.broadcast(1.0, {1, 3, 1, 1})
      iex> {y, _state} = Nx.Vulkan.Recurrences.gated_delta_rule(ones, ones, ones, 0, 0.5, 0)
      iex> Nx.to_flat_list(y)
      [0.5, 0.75, 0.875]
  """
  @spec gated_delta_rule(
          Nx.Tensor.t(),
          Nx.Tensor.t(),
          Nx.Tensor.t(),
          Nx.Tensor.t() | number,
          Nx.Tensor.t() | number,
          Nx.Tensor.t() | number,
          keyword
        ) :: {Nx.Tensor.t(), Nx.Tensor.t()}
  defn gated_delta_rule(q, k, v, log_decay, beta, state, opts \\ []) do
    opts = keyword!(opts, chunk: 64)
    delta_rule(q, k, v, log_decay, beta, state, opts[:chunk])
  end

  # What a step adds is outer(k, u), and u = beta * (v - k . s) has all u before it in s: a triangular system, linear in
  # the state that the chunk begins with. So is the state behind the chunk.
  deftransformp delta_rule(q, k, v, log_decay, beta, state, size) do
    {wide, {batch, length, heads, keys, values}} = heads!([q, k, v, log_decay, beta, state])
    [q, k, wide, log_decay, beta, state] = wide
    chunk = chunk!(size, length)
    [q, k, wide] = for t <- [q, k, wide], do: chunks(t, chunk)
    decays = log_decay |> chunks(chunk) |> decays()
    state = state!(state, {batch, heads, keys, values})
    beta = beta |> chunks(chunk) |> Nx.new_axis(4)

    row = Nx.iota({chunk, 1})
    earlier = Nx.greater(row, Nx.transpose(row)) |> Nx.reshape({1, 1, 1, chunk, chunk})
    system = k |> products(k) |> Nx.multiply(decays.between) |> Nx.multiply(beta)
    system = Nx.add(Nx.multiply(system, earlier), Nx.eye(chunk, type: system.type))
    right = Nx.concatenate([Nx.multiply(wide, beta), k |> Nx.multiply(decays.ahead) |> Nx.multiply(beta)], axis: 4)
    solved = Nx.LinAlg.triangular_solve(system, right, lower: true)
    from_values = Nx.slice_along_axis(solved, 0, values, axis: 4)
    from_state = Nx.slice_along_axis(solved, values, keys, axis: 4)

    kept = Nx.multiply(k, decays.behind)
    decay = Nx.subtract(Nx.multiply(Nx.eye(keys, type: kept.type), decays.total), transposed_dot(kept, from_state))
    states = matrices(decay, transposed_dot(kept, from_values), state)
    before = join([Nx.new_axis(state, 2) | upto(states, Nx.axis_size(states, 2) - 1, 2)], 2)
    u = Nx.subtract(from_values, dot(from_state, before))
    y = dot(Nx.multiply(products(q, k), decays.between), u)
    y = y |> Nx.add(dot(Nx.multiply(q, decays.ahead), before)) |> joined(length)
    {as(y, v), states[[.., .., -1]]}
  end

  @doc """
  A step after the other: `{y[t], state[t]} = step.(x[t], state[t - 1], parameters)`. The result is `{y, state}`, all
  `y` along the second axis and the last state.

      defn gru(x, state, weights), do: Nx.Vulkan.Recurrences.scan(x, state, weights, &cell/3)

  The gradient is a loop from the last step to the first one. Before it, the steps are run once more to keep the states
  between them, in memory for all of them. Of a GRU of 128 steps it takes lavapipe a hundredth of the time that Nx's
  gradient of a `while` takes. The gradient of that gradient is Nx's own, [of a
  `while`](compiler.md#what-differs-from-eager-ops).

  ## Shapes

  `sequence`, `state` and `parameters` are tensors, or containers of them. Those of `sequence` are
  `{batch, length, ..}`, of which `step` gets `{batch, ..}`. What it gives as `y` is a tensor or a container of tensors
  that have an axis at least, and as state what it got.

  ## Errors

  `ArgumentError` where lengths differ, and where the state of a step has another type or shape than the one before. As
  in the body of a `while`, tensors that are no arguments of `step` may not be used in it.

  ## Examples

      iex> step = fn x, sum, scale -> {Nx.add(sum, x), Nx.multiply(scale, Nx.add(sum, x))} end
      iex> {y, state} = Nx.Vulkan.Recurrences.scan(Nx.tensor([[1.0, 2.0, 3.0]]), Nx.tensor([0.0]), 0.5, step)
      iex> {Nx.to_list(y), Nx.to_list(state)}
      {[[1.0, 2.5, 4.25]], [2.125]}
  """
  @spec scan(Nx.Container.t(), Nx.Container.t(), Nx.Container.t(), fun) :: {Nx.Container.t(), Nx.Container.t()}
  defn(scan(sequence, state, parameters, step), do: steps_of(sequence, state, parameters, step))

  deftransformp(steps_of(sequence, state, parameters, step), do: Scan.run(sequence, state, parameters, step))

  # s[c] = decay[c] . s[c - 1] + input[c], of matrices along axis 2: all s.
  defp matrices(decay, input, state) do
    states = steps(decay, input, state)

    Nx.Defn.Kernel.custom_grad(states, [decay, input, state], fn g ->
      next = join(later(decay, 2) ++ [none(first(decay, 2))], 2)
      d_input = next |> back(2) |> Nx.transpose(axes: [0, 1, 2, 4, 3]) |> matrices(back(g, 2), none(state)) |> back(2)
      before = join([Nx.new_axis(state, 2) | upto(states, Nx.axis_size(states, 2) - 1, 2)], 2)
      [first_decay, first_input] = for t <- [decay, d_input], do: first(t, 2)
      d_state = first_decay |> transposed_dot(first_input) |> Nx.squeeze(axes: [2])
      [Nx.dot(d_input, [4], [0, 1, 2], before, [4], [0, 1, 2]), d_input, d_state]
    end)
  end

  defnp steps(decay, input, state) do
    count = Nx.axis_size(input, 2)

    {_, _, states, _} =
      while {c = 0, state, states = Nx.broadcast(Nx.new_axis(state, 2), input), {decay, input}}, c < count do
        state = Nx.dot(decay[[.., .., c]], [3], [0, 1], state, [2], [0, 1]) + input[[.., .., c]]
        {c + 1, state, Nx.put_slice(states, [0, 0, c, 0, 0], Nx.new_axis(state, 2)), {decay, input}}
      end

    states
  end

  # Chunks are {batch, heads, chunks, steps, ..}. What is beyond the sequence neither adds to a state nor decays it.
  defp chunks(t, chunk) do
    length = Nx.axis_size(t, 1)
    count = div(length + chunk - 1, chunk)
    [batch, _length, heads | rest] = sizes(t.shape)
    padding = List.replace_at(List.duplicate({0, 0, 0}, Nx.rank(t)), 1, {0, count * chunk - length, 0})

    t
    |> Nx.pad(Nx.tensor(0, type: t.type), padding)
    |> Nx.reshape(List.to_tuple([batch, count, chunk, heads | rest]))
    |> Nx.transpose(axes: [0, 3, 1, 2] ++ Enum.map(rest, fn _ -> 4 end))
  end

  defp joined(y, length) do
    {batch, heads, count, chunk, size} = y.shape
    y = y |> Nx.transpose(axes: [0, 2, 3, 1, 4]) |> Nx.reshape({batch, count * chunk, heads, size})
    Nx.slice_along_axis(y, 0, length, axis: 1)
  end

  # What decays are between steps of a chunk, before a step, behind it, and in all. Their logarithms are sums of their
  # own for each two steps: differences of long sums would have the errors of these.
  defp decays(log_decay) do
    chunk = Nx.axis_size(log_decay, 3)
    later = Nx.greater(Nx.iota({chunk, chunk}, axis: 1), Nx.iota({chunk, chunk}, axis: 0))
    {batch, heads, chunks, _chunk} = log_decay.shape
    all = &Nx.broadcast(&1, {batch, heads, chunks, chunk, chunk})
    # They may be minus infinity, of which no number is a multiple.
    apart = all.(later) |> Nx.select(all.(Nx.new_axis(log_decay, 3)), 0) |> sums(4)
    seen = Nx.greater_equal(Nx.iota({chunk, chunk}, axis: 1), Nx.iota({chunk, chunk}, axis: 0))
    between = Nx.exp(Nx.select(all.(seen), apart, -1.0e30))
    behind = Nx.slice_along_axis(between, chunk - 1, 1, axis: 4)
    ahead = log_decay |> sums(3) |> Nx.exp() |> Nx.new_axis(4)
    total = Nx.slice_along_axis(ahead, chunk - 1, 1, axis: 3)
    %{between: Nx.transpose(between, axes: [0, 1, 2, 4, 3]), ahead: ahead, behind: behind, total: total}
  end

  # Nx's gradient goes through the steps of the sums.
  defp sums(t, axis) do
    t
    |> Nx.cumulative_sum(axis: axis)
    |> Nx.Defn.Kernel.custom_grad([t], fn g -> [back(sums(back(g, axis), axis), axis)] end)
  end

  defp back(t, axis), do: Nx.reverse(t, axes: [axis])

  defp dot(a, b), do: Nx.dot(a, [4], [0, 1, 2], b, [3], [0, 1, 2])
  defp products(a, b), do: Nx.dot(a, [4], [0, 1, 2], b, [4], [0, 1, 2])
  defp transposed_dot(a, b), do: Nx.dot(a, [3], [0, 1, 2], b, [3], [0, 1, 2])

  defp last(h), do: h[[.., -1]]

  defp as(t, like) do
    like = Nx.to_tensor(like)
    type = if Nx.Type.float?(like.type), do: like.type, else: t.type
    t |> Nx.as_type(type) |> Nx.rename(like.names)
  end

  # Arguments

  defp of_one_type(tensors) do
    tensors = Enum.map(tensors, &Scan.argument!/1)
    type = Enum.reduce(tensors, {:f, 32}, &Nx.Type.merge(&1.type, &2))
    for t <- tensors, do: t |> Nx.as_type(type) |> Nx.rename(List.duplicate(nil, Nx.rank(t)))
  end

  # `q`, `k`, `v`, what steps have and the state of heads, with all axes.
  defp heads!(tensors) do
    [q, k, v | rest] = of_one_type(tensors)
    {batch, length, heads, values} = rank!(:v, v, 4)
    {_batch, _length, _heads, keys} = rank!(:k, k, 4)
    {rest, [state]} = Enum.split(rest, -1)

    [q, k] =
      for {name, t} <- [q: q, k: k] do
        same = t.shape == {batch, length, 1, keys}
        if not same, do: shape!(name, t, {batch, length, heads, keys})
        Nx.broadcast(t, {batch, length, heads, keys})
      end

    rest =
      for {name, t} <- Enum.zip([:log_decay, :beta], rest) do
        if t.shape != {}, do: shape!(name, t, {batch, length, heads})
        Nx.broadcast(t, {batch, length, heads})
      end

    {[q, k, v] ++ rest ++ [state], {batch, length, heads, keys, values}}
  end

  defp chunk!(chunk, length) when is_integer(chunk) and chunk > 0, do: min(chunk, length)

  defp chunk!(chunk, _length),
    do: raise(ArgumentError, "expected :chunk to be a number of steps, got: #{inspect(chunk)}")

  defp state!(%{shape: {}} = state, shape), do: Nx.broadcast(state, shape)

  defp state!(state, shape) do
    shape!(:state, state, shape)
    state
  end

  defp rank!(_name, t, rank) when tuple_size(t.shape) == rank, do: t.shape

  defp rank!(name, t, rank) do
    raise ArgumentError, "expected #{name} to have #{rank} axes, got shape #{inspect(t.shape)}"
  end

  defp shape!(_name, %{shape: shape}, shape), do: :ok

  defp shape!(name, t, shape) do
    raise ArgumentError, "expected #{name} of shape #{inspect(shape)}, got: #{inspect(t.shape)}"
  end

  defp sizes(shape), do: Tuple.to_list(shape)
end
