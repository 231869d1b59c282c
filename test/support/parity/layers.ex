defmodule Nx.Vulkan.Parity.Layers do
  @moduledoc """
  Layers of models in ops of Nx, as other libraries for Nx write them.
  """

  import Nx.Defn

  @epsilon 1.0e-5

  # Activations and norms

  defn(gelu(x), do: x * 0.5 * (1 + Nx.erf(x / Nx.sqrt(2))))
  defn(gelu_approximate(x), do: 0.5 * x * (1 + Nx.tanh(0.7978845608 * (x + 0.044715 * x * x * x))))
  defn(silu(x), do: x * Nx.sigmoid(x))

  defn softmax(x, opts \\ []) do
    opts = keyword!(opts, axis: -1)
    e = Nx.exp(x - Nx.reduce_max(x, axes: [opts[:axis]], keep_axes: true))
    e / Nx.sum(e, axes: [opts[:axis]], keep_axes: true)
  end

  @doc "To mean 0 and variance 1 along `axes`, which are the last one by default."
  defn normalize(x, opts \\ []) do
    opts = keyword!(opts, axes: [-1])
    centered = x - Nx.mean(x, axes: opts[:axes], keep_axes: true)
    centered * Nx.rsqrt(Nx.mean(centered * centered, axes: opts[:axes], keep_axes: true) + @epsilon)
  end

  defn(layer_norm(x, gamma, beta), do: normalize(x) * gamma + beta)
  defn(rms_norm(x, gamma), do: x * Nx.rsqrt(Nx.mean(x * x, axes: [-1], keep_axes: true) + @epsilon) * gamma)

  @doc "Of NCHW, over the channels of a pixel."
  defn(layer_norm_2d(x, gamma, beta), do: normalize(x, axes: [1]) * channels(gamma) + channels(beta))

  @doc "Of NCHW, over the pixels of `groups` groups of channels; of instances where each channel is a group."
  defn group_norm(x, gamma, beta, opts \\ []) do
    {n, c, h, w} = Nx.shape(x)
    groups = opts[:groups]
    normalized = x |> Nx.reshape({n, groups, div(c, groups), h, w}) |> normalize(axes: [2, 3, 4])
    Nx.reshape(normalized, {n, c, h, w}) * channels(gamma) + channels(beta)
  end

  defn batch_norm(x, gamma, beta, mean, variance) do
    (x - channels(mean)) * Nx.rsqrt(channels(variance) + @epsilon) * channels(gamma) + channels(beta)
  end

  defnp(channels(x), do: Nx.reshape(x, {1, :auto, 1, 1}))

  @doc "DiT's norm: `packed`, {batch, 6 * width}, has shift and scale at `at` and the place after it."
  defn ada_layer_norm(x, packed, opts \\ []) do
    normalize(x) * (1 + modulation(x, packed, opts[:at] + 1)) + modulation(x, packed, opts[:at])
  end

  @doc "DiT's residual: `packed` has the gate at `at`."
  defn(gated_residual(x, y, packed, opts \\ []), do: x + modulation(x, packed, opts[:at]) * y)

  deftransformp modulation(x, packed, at) do
    width = Nx.axis_size(x, -1)
    packed |> Nx.slice_along_axis(at * width, width, axis: 1) |> Nx.new_axis(1)
  end

  # Attention

  @doc """
  Rotates pairs of the last axis of {batch, length, heads, size} by `cos` and `sin`, {length, rotated / 2}: halves, or
  neighbours with `style: :gptj`. What is beyond the rotated part stays.
  """
  deftransform rope(x, cos, sin, opts \\ []) do
    half = Nx.axis_size(cos, 1)
    {batch, length, heads, size} = x.shape
    [cos, sin] = for t <- [cos, sin], do: Nx.reshape(t, {1, length, 1, half})
    turned = Nx.slice_along_axis(x, 0, 2 * half, axis: 3)

    turned =
      if opts[:style] == :gptj do
        pairs = Nx.reshape(turned, {batch, length, heads, half, 2})
        {a, b} = rotate(pairs[[.., .., .., .., 0]], pairs[[.., .., .., .., 1]], cos, sin)
        Nx.reshape(Nx.stack([a, b], axis: 4), {batch, length, heads, 2 * half})
      else
        {a, b} = rotate(turned[[.., .., .., 0..(half - 1)]], turned[[.., .., .., half..-1//1]], cos, sin)
        Nx.concatenate([a, b], axis: 3)
      end

    if size == 2 * half,
      do: turned,
      else: Nx.concatenate([turned, x[[.., .., .., (2 * half)..-1//1]]], axis: 3)
  end

  defnp(rotate(a, b, cos, sin), do: {a * cos - b * sin, b * cos + a * sin})

  @doc """
  Of {batch, heads, length, size}. `mask` is 1 where a key is seen and `bias` is added to scores, each of a shape that
  broadcasts to {batch, heads, queries, keys}.
  """
  defn attention(q, k, v, mask, bias, opts \\ []) do
    opts = keyword!(opts, softcap: nil)
    scores = Nx.dot(q, [3], [0, 1], k, [3], [0, 1]) * Nx.rsqrt(Nx.axis_size(q, 3)) + bias
    scores = cap(scores, opts[:softcap])
    weights = softmax(Nx.select(Nx.broadcast(mask, scores), scores, -1.0e30))
    Nx.dot(weights, [3], [0, 1], v, [2], [0, 1])
  end

  deftransformp cap(scores, softcap) do
    if softcap, do: scores |> Nx.divide(softcap) |> Nx.tanh() |> Nx.multiply(softcap), else: scores
  end

  @doc "Which keys queries see: those up to them and, with a `window`, no farther back."
  deftransform causal(queries, keys, window \\ nil) do
    distance = Nx.subtract(Nx.iota({1, 1, queries, keys}, axis: 2), Nx.iota({1, 1, queries, keys}, axis: 3))
    seen = Nx.greater_equal(distance, 0)
    if window, do: Nx.logical_and(seen, Nx.less(distance, window)), else: seen
  end

  @doc "From {batch, length, heads, size} to {batch, heads, length, size} and back."
  defn(swap_heads(x), do: Nx.transpose(x, axes: [0, 2, 1, 3]))

  @doc "Causal attention of {batch, length, width} with its projections, norm and residual."
  defn attention_block(x, gamma, wq, wk, wv, wo, cos, sin, opts \\ []) do
    {batch, length, width} = Nx.shape(x)
    heads = opts[:heads]
    normed = rms_norm(x, gamma)
    split = {batch, length, heads, div(width, heads)}
    q = normed |> Nx.dot(wq) |> Nx.reshape(split) |> rope(cos, sin) |> swap_heads()
    k = normed |> Nx.dot(wk) |> Nx.reshape(split) |> rope(cos, sin) |> swap_heads()
    v = normed |> Nx.dot(wv) |> Nx.reshape(split) |> swap_heads()
    seen = attention(q, k, v, causal(length, length), 0)
    x + (seen |> swap_heads() |> Nx.reshape({batch, length, width}) |> Nx.dot(wo))
  end

  defn(swiglu(x, gate, up, down), do: Nx.dot(silu(Nx.dot(x, gate)) * Nx.dot(x, up), down))

  @doc """
  Experts of DeepSeek-V3 and LLaDA 2: the `k` largest scores of the `kept` groups whose two largest, with the bias, are
  largest in sum. Shares are without the bias.
  """
  deftransform group_limited_gate(logits, bias, opts) do
    {rows, experts} = logits.shape
    size = div(experts, opts[:groups])
    scores = Nx.sigmoid(logits)
    biased = Nx.add(scores, bias)
    {best, _} = biased |> Nx.reshape({rows, opts[:groups], size}) |> Nx.top_k(k: 2)
    {_, groups} = best |> Nx.sum(axes: [2]) |> Nx.top_k(k: opts[:kept])
    group = Nx.iota({1, experts, 1}) |> Nx.quotient(size)
    kept = groups |> Nx.new_axis(1) |> Nx.equal(group) |> Nx.any(axes: [2])
    {_, chosen} = kept |> Nx.select(biased, -1.0e30) |> Nx.top_k(k: opts[:k])
    shares = Nx.take_along_axis(scores, chosen, axis: 1)
    {Nx.divide(shares, Nx.sum(shares, axes: [1], keep_axes: true)), chosen}
  end

  # Images

  @doc "Columns of windows of NCHW: {batch, channels * kernel height * kernel width, places}."
  deftransform im2col(x, kernel, opts \\ []) do
    opts = Keyword.validate!(opts, strides: {1, 1}, padding: {0, 0}, dilation: {1, 1})
    [{kh, kw}, {sh, sw}, {ph, pw}, {dh, dw}] = [kernel, opts[:strides], opts[:padding], opts[:dilation]]
    x = Nx.pad(x, 0, [{0, 0, 0}, {0, 0, 0}, {ph, ph, 0}, {pw, pw, 0}])
    {n, c, h, w} = x.shape
    {oh, ow} = {div(h - dh * (kh - 1) - 1, sh) + 1, div(w - dw * (kw - 1) - 1, sw) + 1}

    windows =
      for i <- 0..(kh - 1), j <- 0..(kw - 1) do
        lengths = [n, c, (oh - 1) * sh + 1, (ow - 1) * sw + 1]
        Nx.slice(x, [0, 0, i * dh, j * dw], lengths, strides: [1, 1, sh, sw])
      end

    windows |> Nx.stack(axis: 2) |> Nx.reshape({n, c * kh * kw, oh * ow})
  end

  @doc """
  The transposed convolution of {batch, channels, ..} by {channels, filters / groups, ..}: the gradient of a convolution
  by its input.
  """
  deftransform conv_transpose(x, kernel, opts \\ []) do
    spatial = Nx.rank(x) - 2
    ones = List.duplicate(1, spatial)
    zeros = List.duplicate(0, spatial)

    opts =
      Keyword.validate!(opts, strides: ones, padding: zeros, output_padding: zeros, dilation: ones, groups: 1)

    [channels, filters | sizes] = Tuple.to_list(kernel.shape)
    groups = opts[:groups]
    axes = Enum.to_list(3..(spatial + 2))

    turned =
      kernel
      |> Nx.reshape(List.to_tuple([groups, div(channels, groups), filters | sizes]))
      |> Nx.transpose(axes: [0, 2, 1 | axes])
      |> Nx.reshape(List.to_tuple([groups * filters, div(channels, groups) | sizes]))
      |> Nx.reverse(axes: Enum.map(axes, &(&1 - 1)))

    padding =
      for {size, padding, more, dilation} <-
            Enum.zip([sizes, opts[:padding], opts[:output_padding], opts[:dilation]]) do
        edge = dilation * (size - 1) - padding
        {edge, edge + more}
      end

    Nx.conv(x, turned,
      padding: padding,
      input_dilation: opts[:strides],
      kernel_dilation: opts[:dilation],
      feature_group_size: groups
    )
  end

  @doc "NCHW with every pixel `times` times along both axes."
  deftransform resize_nearest(x, times) do
    {n, c, h, w} = x.shape

    x
    |> Nx.reshape({n, c, h, 1, w, 1})
    |> Nx.broadcast({n, c, h, times, w, times})
    |> Nx.reshape({n, c, h * times, w * times})
  end

  @doc "NCHW to `{height, width}`, between the four nearest pixels, whose centres are at halves."
  deftransform resize_bilinear(x, {height, width}) do
    x |> between(2, height) |> between(3, width)
  end

  deftransformp between(x, axis, size) do
    old = Nx.axis_size(x, axis)
    place = Nx.iota({size}, type: x.type) |> Nx.add(0.5) |> Nx.multiply(old / size) |> Nx.subtract(0.5)
    place = Nx.clip(place, 0, old - 1)
    low = Nx.floor(place)
    shape = List.to_tuple(for i <- 0..3, do: if(i == axis, do: size, else: 1))
    share = place |> Nx.subtract(low) |> Nx.reshape(shape)
    low = Nx.as_type(low, :s32)
    [a, b] = for at <- [low, Nx.min(Nx.add(low, 1), old - 1)], do: Nx.take(x, at, axis: axis)
    Nx.add(a, Nx.multiply(share, Nx.subtract(b, a)))
  end

  @doc "A token for each row of `logits`: of the `top_k` largest, those that make up `top_p` of the probability."
  defn sample(key, logits, opts \\ []) do
    {values, ids} = Nx.top_k(logits / opts[:temperature], k: opts[:top_k])
    probability = softmax(values)
    # The first one always stays.
    kept = Nx.cumulative_sum(probability, axis: 1) - probability < opts[:top_p]
    {noise, _key} = Nx.Random.gumbel(key, shape: Nx.shape(values), type: {:f, 32})
    choice = Nx.argmax(Nx.select(kept, values + noise, -1.0e30), axis: 1, keep_axis: true)
    ids |> Nx.take_along_axis(choice, axis: 1) |> Nx.squeeze(axes: [1])
  end

  # Signals

  @doc "Rows of `size` numbers of {length}, a `hop` apart, times Hann's window."
  deftransform frames(x, size, hop) do
    count = div(Nx.axis_size(x, 0) - size, hop) + 1
    places = Nx.add(Nx.multiply(Nx.iota({count, 1}), hop), Nx.iota({1, size}))
    window = Nx.iota({size}, type: x.type) |> Nx.multiply(2 * :math.pi() / size) |> Nx.cos()
    x |> Nx.take(places) |> Nx.multiply(Nx.multiply(0.5, Nx.subtract(1, window)))
  end

  @doc "Squares of the magnitudes of each row's transform, up to half the rate."
  deftransform power(frames) do
    z = Nx.rfft(frames)
    [re, im] = [Nx.real(z), Nx.imag(z)]
    Nx.add(Nx.multiply(re, re), Nx.multiply(im, im))
  end

  @doc "Logarithms of what `filters`, {bands, frequencies}, let pass."
  deftransform log_mel(x, filters, size, hop) do
    x |> frames(size, hop) |> power() |> Nx.dot([1], filters, [1]) |> Nx.max(1.0e-10) |> Nx.log()
  end

  @doc "Welch's density: the mean power of windows that overlap by half, without their means."
  deftransform welch(x, size, rate) do
    window = frames(Nx.broadcast(Nx.tensor(1, type: x.type), {size}), size, 1)
    centered = x |> frames(size, div(size, 2)) |> Nx.subtract(means(x, size, window))
    scale = window |> Nx.multiply(window) |> Nx.sum() |> Nx.multiply(rate)
    centered |> power() |> Nx.mean(axes: [0]) |> Nx.divide(scale) |> Nx.multiply(sides(size, x.type))
  end

  # Of each part of the sequence, times the window.
  deftransformp means(x, size, window) do
    count = div(Nx.axis_size(x, 0) - size, div(size, 2)) + 1
    places = Nx.add(Nx.multiply(Nx.iota({count, 1}), div(size, 2)), Nx.iota({1, size}))
    x |> Nx.take(places) |> Nx.mean(axes: [1], keep_axes: true) |> Nx.multiply(window)
  end

  # Frequencies stand for their negative ones, too, but for the first and, of even sizes, the last.
  deftransformp sides(size, type) do
    k = Nx.iota({div(size, 2) + 1})
    alone = Nx.logical_or(Nx.equal(k, 0), Nx.equal(Nx.multiply(k, 2), size))
    Nx.select(alone, Nx.tensor(1, type: type), Nx.tensor(2, type: type))
  end

  @doc "The `k` nearest of the other rows of `x`, and their distances, the nearest first."
  deftransform nearest(x, k) do
    squares = Nx.sum(Nx.multiply(x, x), axes: [1])
    products = Nx.dot(x, [1], x, [1])
    apart = squares |> Nx.new_axis(1) |> Nx.add(squares) |> Nx.subtract(Nx.multiply(2, products))
    n = Nx.axis_size(x, 0)
    itself = Nx.equal(Nx.iota({n, n}, axis: 0), Nx.iota({n, n}, axis: 1))
    {found, ids} = Nx.top_k(Nx.select(itself, -1.0e30, Nx.negate(apart)), k: k)
    {Nx.sqrt(Nx.max(Nx.negate(found), 0)), ids}
  end
end
