defmodule Nx.Vulkan.Parity.RlxTest do
  # The cases by which rlx compares its Vulkan backend with its CPU, by their names, in ops of Nx. Each runs op by op
  # and compiled, with gradients, beside f64 of the host, while nothing else computes: see Nx.Vulkan.Parity.
  use ExUnit.Case, async: true

  import Nx.Vulkan.{Numbers, Parity}
  import Nx.Vulkan.Parity.Layers

  alias Nx.Vulkan.Parity.{References, Sequences}
  alias Nx.Vulkan.Quantized

  @moduletag :device

  # Roundings of a number on its way (check/3). What moves numbers does not round. Beside each is the most that lavapipe
  # was off, which compensates sums.
  @moved 0
  # A few functions of elements after one another, each within a unit of the last place, which is two roundings; 3.5.
  @elements 8
  # Sums, and rows of them that a norm or a softmax divides by their own sum; 3.1.
  @sums 8
  # Products of products, or of what a softmax gives; 5.4.
  @layers 16
  # Some ten steps of a recurrence, each of a few functions and sums, and as many back; 4.7.
  @steps 16

  setup do
    Nx.default_backend(Nx.Vulkan.VulkanoBackend)
    :rand.seed(:exsss, 33)
    :ok
  end

  defp f32(shape), do: numbers(shape, :f32)
  # Between two numbers.
  defp f32(shape, low, high), do: shape |> f32() |> spread((high - low) / 2, (high + low) / 2)
  defp spread(x, factor, middle), do: on_host(fn -> x |> Nx.multiply(factor) |> Nx.add(middle) end)
  defp below(shape, n), do: Nx.reshape(s32(for _ <- 1..Tuple.product(shape), do: :rand.uniform(n) - 1), shape)
  defp s32(list), do: Nx.tensor(list, type: :s32, backend: Nx.BinaryBackend)
  # Whole numbers, with ties.
  defp ties(shape, n), do: Nx.as_type(below(shape, n), :f32)

  defp angles(length, half),
    do: Enum.map([&Nx.cos/1, &Nx.sin/1], fn f -> on_host(fn -> f.(f32({length, half}, 0, 6)) end) end)

  test "what the host computes is counted" do
    x = f32({3})
    assert {_, [:add]} = host_calls(fn -> Nx.add(x, x) end)
    called = fn x -> Nx.runtime_call(x, x, [], fn x, _ -> Nx.add(x, 1) end) end
    assert host_steps(Nx.Vulkan.Compiler.explain(called, [x]).steps) == [:call]
  end

  # Elements

  test "elementwise_chain" do
    chain = fn [x] ->
      x |> Nx.exp() |> Nx.multiply(0.5) |> Nx.add(x) |> Nx.tanh() |> Nx.subtract(Nx.sqrt(Nx.add(Nx.abs(x), 1)))
    end

    check(chain, [f32({3, 37})], roundings: @elements)
  end

  test "all_binary_ops" do
    ops = [&Nx.add/2, &Nx.subtract/2, &Nx.multiply/2, &Nx.divide/2, &Nx.max/2, &Nx.min/2, &Nx.pow/2]
    all = fn [a, b] -> ops |> Enum.map(& &1.(a, b)) |> List.to_tuple() end
    check(all, [f32({5, 13}, 0.5, 2.0), f32({5, 13}, 0.5, 2.0)], roundings: @elements)
  end

  test "binary_broadcasting" do
    both = fn [row, column, x] -> {Nx.add(row, column), Nx.multiply(x, column)} end
    check(both, [f32({1, 13}), f32({7, 1}), f32({3, 7, 13})], roundings: @elements)
  end

  test "all_activations" do
    round_half_even = fn x ->
      # Nx rounds halves away from zero, rlx to even.
      rounded = Nx.round(x)
      half = Nx.equal(Nx.abs(Nx.subtract(x, Nx.as_type(Nx.as_type(x, :s32), Nx.type(x)))), 0.5)
      Nx.select(half, Nx.multiply(2, Nx.round(Nx.divide(x, 2))), rounded)
    end

    any =
      [&gelu/1, &gelu_approximate/1, &silu/1, &Nx.max(&1, 0), &Nx.sigmoid/1, &Nx.tanh/1, &Nx.exp/1] ++
        [&Nx.negate/1, &Nx.abs/1, &Nx.sin/1, &Nx.cos/1, &Nx.atan/1, round_half_even]

    positive = [&Nx.log/1, &Nx.sqrt/1, &Nx.rsqrt/1, &Nx.tan/1]
    all = fn [x, y] -> List.to_tuple(Enum.map(any, & &1.(x)) ++ Enum.map(positive, & &1.(y))) end
    check(all, [f32({7, 13}, -3, 3), f32({7, 13}, 0.1, 1.4)], roundings: @elements)
    halves = on_host(fn -> Nx.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], type: :f32) end)
    check(fn [x] -> {round_half_even.(x), Nx.round(x)} end, [halves], roundings: @moved, gradients: [])
  end

  test "all_compare_ops" do
    ops = [&Nx.equal/2, &Nx.not_equal/2, &Nx.less/2, &Nx.less_equal/2, &Nx.greater/2, &Nx.greater_equal/2]
    all = fn [a, b] -> ops |> Enum.map(& &1.(a, b)) |> List.to_tuple() end
    check(all, [ties({5, 13}, 3), ties({5, 13}, 3)], roundings: @moved, gradients: [])
  end

  test "where_compare" do
    check(fn [a, b] -> Nx.select(Nx.greater(a, b), a, Nx.negate(b)) end, [f32({5, 13}), f32({5, 13})],
      roundings: @moved
    )
  end

  test "fma_decomposed" do
    check(fn [a, b, c] -> Nx.add(Nx.multiply(a, b), c) end, [f32({5, 13}), f32({5, 13}), f32({13})],
      roundings: @elements
    )
  end

  # Movement

  test "transpose_2d" do
    check(fn [x] -> Nx.transpose(x) end, [f32({7, 13})], roundings: @moved)
  end

  test "narrow_axis1" do
    check(fn [x] -> Nx.slice_along_axis(x, 3, 7, axis: 1) end, [f32({3, 13, 5})], roundings: @moved)
  end

  test "concat_axis1" do
    check(fn [a, b] -> Nx.concatenate([a, b], axis: 1) end, [f32({3, 4, 5}), f32({3, 9, 5})], roundings: @moved)
  end

  # The gradient of what is repeated is a sum.
  test "expand_broadcast" do
    check(fn [x] -> Nx.broadcast(x, {3, 7, 13}) end, [f32({7, 1})], roundings: @sums)
  end

  test "reshape_passthrough" do
    check(fn [x] -> Nx.reshape(x, {13, 21}) end, [f32({3, 7, 13})], roundings: @moved)
  end

  test "reverse_axes" do
    check(fn [x] -> {Nx.reverse(x, axes: [1]), Nx.reverse(x, axes: [0, 2])} end, [f32({3, 7, 5})], roundings: @elements)
  end

  # Rows that are taken several times have sums as gradients.
  test "gather_embedding" do
    check(fn [table, ids] -> Nx.take(table, ids) end, [f32({11, 7}), below({3, 5}, 11)], roundings: @sums)
  end

  test "scatter_add_axis0" do
    scatter = fn [x, updates, ids] -> Nx.indexed_add(x, Nx.new_axis(ids, 1), updates) end
    check(scatter, [f32({7, 5}), f32({13, 5}), below({13}, 7)], roundings: @sums)
  end

  test "im2col_unfold" do
    opts = [strides: {2, 1}, padding: {1, 0}, dilation: {1, 2}]

    check(fn [x] -> im2col(x, {3, 2}, opts) end, [f32({2, 3, 7, 9})],
      plain: fn [x] -> References.im2col(x, {3, 2}, opts) end,
      roundings: @sums
    )
  end

  # Reductions

  test "reduce_sum_last_axis" do
    check(fn [x] -> Nx.sum(x, axes: [-1]) end, [f32({7, 33})], roundings: @sums)
  end

  test "all_reduce_ops" do
    ops = [&Nx.sum/2, &Nx.mean/2, &Nx.reduce_max/2, &Nx.reduce_min/2, &Nx.product/2]
    all = fn [x] -> List.to_tuple(for op <- ops, axes <- [[-1], [0]], do: op.(x, axes: axes)) end
    check(all, [f32({5, 13}, 0.5, 1.5)], roundings: @sums)
  end

  test "argmax_argmin" do
    both = fn [x] -> {Nx.argmax(x, axis: 1), Nx.argmin(x, axis: 1, keep_axis: true), Nx.argmax(x, axis: 0)} end
    check(both, [ties({7, 13}, 4)], roundings: @moved, gradients: [])
  end

  test "cumsum_last_axis" do
    exclusive = &Nx.subtract(Nx.cumulative_sum(&1, axis: -1), &1)
    check(fn [x] -> {Nx.cumulative_sum(x, axis: -1), exclusive.(x)} end, [f32({5, 33})], roundings: @sums)
  end

  test "topk_indices" do
    check(fn [x] -> Nx.top_k(x, k: 4) end, [f32({5, 33})], roundings: @moved)
    check(fn [x] -> x |> Nx.top_k(k: 4) |> elem(1) end, [ties({5, 33}, 6)], roundings: @moved, gradients: [])
  end

  # Norms

  test "softmax_last_axis" do
    check(fn [x] -> softmax(x) end, [f32({5, 33}, -4, 4)], roundings: @sums)
  end

  test "softmax_ranks" do
    all = fn [x, y, z] -> {softmax(x), softmax(y, axis: 0), softmax(z, axis: 1)} end
    check(all, [f32({13}), f32({7, 5}), f32({2, 7, 3, 5})], roundings: @sums)
  end

  test "rms_norm" do
    check(fn [x, gamma] -> rms_norm(x, gamma) end, [f32({5, 33}), f32({33})], roundings: @sums)
  end

  test "layer_norm" do
    check(fn [x, gamma, beta] -> layer_norm(x, gamma, beta) end, [f32({5, 33}), f32({33}), f32({33})], roundings: @sums)
  end

  test "layer_norm_2d" do
    check(fn [x, gamma, beta] -> layer_norm_2d(x, gamma, beta) end, [f32({2, 7, 3, 5}), f32({7}), f32({7})],
      roundings: @sums
    )
  end

  test "group_norm_decomposed" do
    inputs = [f32({2, 6, 3, 5}), f32({6}), f32({6})]
    check(fn [x, gamma, beta] -> group_norm(x, gamma, beta, groups: 3) end, inputs, roundings: @sums)
  end

  test "batch_norm_inference_decomposed" do
    inputs = [f32({2, 5, 3, 7}), f32({5}), f32({5}), f32({5}), f32({5}, 0.5, 1.5)]

    check(fn [x, gamma, beta, mean, variance] -> batch_norm(x, gamma, beta, mean, variance) end, inputs,
      roundings: @sums
    )
  end

  test "dit_packed_ada_layer_norm_backward" do
    check(fn [x, packed] -> ada_layer_norm(x, packed, at: 3) end, [f32({2, 5, 13}), f32({2, 78})], roundings: @sums)
  end

  test "dit_packed_gated_residual_backward" do
    gated = fn [x, y, packed] -> gated_residual(x, y, packed, at: 2) end
    check(gated, [f32({2, 5, 13}), f32({2, 5, 13}), f32({2, 78})], roundings: @sums)
  end

  test "fused_residual_rms_norm_parity" do
    fused = fn [x, residual, gamma] -> then(Nx.add(x, residual), &{&1, rms_norm(&1, gamma)}) end
    check(fused, [f32({5, 33}), f32({5, 33}), f32({33})], roundings: @sums)
  end

  # Products

  test "matmul_batched" do
    check(fn [a, b] -> Nx.dot(a, [2], [0], b, [1], [0]) end, [f32({3, 7, 13}), f32({3, 13, 5})], roundings: @sums)
  end

  test "fused_matmul_bias_act_parity" do
    all = fn [x, w, b] -> then(Nx.add(Nx.dot(x, w), b), &{gelu(&1), Nx.max(&1, 0)}) end
    check(all, [f32({7, 13}), f32({13, 5}), f32({5})], roundings: @layers)
  end

  test "fused_swiglu_ffn_parity" do
    inputs = [f32({5, 13}), f32({13, 11}), f32({13, 11}), f32({11, 13})]
    check(fn [x, gate, up, down] -> swiglu(x, gate, up, down) end, inputs, roundings: @layers)
  end

  test "grouped_matmul_moe" do
    inputs = [f32({13, 7}), f32({5, 7, 3}), s32([4, 0, 0, 3, 4, 4, 0, 1, 3, 3, 0, 4, 1])]
    # Expert 2 has no rows.
    gathered = fn [x, w, experts] -> Nx.dot(x, [1], [0], Nx.take(w, experts), [1], [0]) end

    one_hot = fn [x, w, experts] ->
      chosen = experts |> Nx.new_axis(1) |> Nx.equal(Nx.iota({1, 5})) |> Nx.as_type(x.type)
      Nx.dot(chosen, [1], [0], Nx.dot(x, [1], w, [1]), [1], [0])
    end

    looped = fn [x, w, experts] ->
      for e <- 0..4, reduce: Nx.multiply(0, Nx.dot(x, w[0])) do
        y ->
          mine = experts |> Nx.equal(e) |> Nx.new_axis(1) |> Nx.broadcast(y)
          Nx.select(mine, Nx.dot(x, w[e]), y)
      end
    end

    for way <- [gathered, one_hot, looped] do
      check(way, inputs, plain: fn [x, w, experts] -> References.grouped_dot(x, w, experts) end, roundings: @layers)
    end
  end

  test "dequant_matmul_host" do
    for {format, k} <- [q8_0: 64, q4_0: 96] do
      q = on_host(fn -> Quantized.quantize(f32({7, k}), format) end)

      product = fn [x, blocks] -> Quantized.dot(x, Quantized.from_blocks(blocks, format)) end

      check(product, [f32({5, k}), q.tensors.blocks],
        plain: fn [x, blocks] -> Nx.dot(x, [1], References.dequantize(blocks, format), [1]) end,
        roundings: @layers
      )
    end
  end

  # Attention

  test "rope_default_style" do
    check(fn [x, cos, sin] -> rope(x, cos, sin) end, [f32({2, 5, 3, 8}) | angles(5, 4)], roundings: @sums)
  end

  test "rope_styles_and_partial" do
    for style <- [:neox, :gptj], half <- [5, 3] do
      check(fn [x, cos, sin] -> rope(x, cos, sin, style: style) end, [f32({2, 3, 3, 10}) | angles(3, half)],
        roundings: @sums,
        gradients: [0]
      )
    end
  end

  test "attention_causal_bshd" do
    causal = fn inputs ->
      [q, k, v] = Enum.map(inputs, &swap_heads/1)
      swap_heads(attention(q, k, v, causal(7, 7), 0))
    end

    check(causal, for(_ <- 1..3, do: f32({2, 7, 3, 5})), roundings: @layers)
  end

  test "attention_masks_and_layout" do
    # Of {batch, heads, length, size}, with more keys than queries and values of another size.
    qkv = [f32({2, 3, 5, 8}), f32({2, 3, 7, 8}), f32({2, 3, 7, 6})]

    seen =
      on_host(fn ->
        Nx.equal(Nx.max(below({2, 1, 5, 7}, 3), Nx.iota({2, 1, 5, 7}, axis: 3) |> Nx.equal(0)), 0) |> Nx.logical_not()
      end)

    check(fn [q, k, v] -> attention(q, k, v, 1, 0, softcap: 2) end, qkv, roundings: @layers)
    check(fn [q, k, v] -> attention(q, k, v, causal(5, 7, 2), 0) end, qkv, roundings: @layers)
    check(fn [q, k, v, seen] -> attention(q, k, v, seen, 0) end, qkv ++ [seen], roundings: @layers)
    check(fn [q, k, v, bias] -> attention(q, k, v, 1, bias) end, qkv ++ [f32({1, 3, 5, 7})], roundings: @layers)
  end

  test "transformer_attention_block_parity" do
    weights = for _ <- 1..4, do: f32({12, 12}, -0.5, 0.5)
    inputs = [f32({2, 5, 12}), f32({12})] ++ weights ++ angles(5, 2)

    block = fn [x, gamma, wq, wk, wv, wo, cos, sin] -> attention_block(x, gamma, wq, wk, wv, wo, cos, sin, heads: 3) end

    check(block, inputs, roundings: @layers)
  end

  # Images

  test "pool2d_max_avg" do
    both = fn [x] ->
      opts = [strides: [1, 1, 2, 2], padding: [{0, 0}, {0, 0}, {1, 1}, {0, 1}]]
      {Nx.window_max(x, {1, 1, 3, 2}, opts), Nx.window_mean(x, {1, 1, 3, 2}, opts)}
    end

    check(both, [f32({2, 3, 7, 9})], roundings: @sums)
  end

  test "conv2d_variants" do
    bias = &Nx.reshape(&1, {1, :auto, 1, 1})
    x = f32({2, 4, 7, 9})

    check(fn [x, w, b] -> Nx.add(Nx.conv(x, w), bias.(b)) end, [x, f32({3, 4, 3, 2}), f32({3})], roundings: @layers)
    # Depthwise, and two groups.
    check(fn [x, w] -> Nx.conv(x, w, feature_group_size: 4, padding: :same) end, [x, f32({4, 1, 3, 3})],
      roundings: @layers
    )

    check(fn [x, w] -> Nx.conv(x, w, feature_group_size: 2, strides: [2, 1]) end, [x, f32({6, 2, 3, 3})],
      roundings: @layers
    )

    check(fn [x, w] -> Nx.conv(x, w, kernel_dilation: 2, padding: [{1, 2}, {2, 0}]) end, [x, f32({3, 4, 2, 3})],
      roundings: @layers
    )
  end

  test "conv_transpose2d_host" do
    opts = [strides: [2, 3], padding: [1, 0], output_padding: [1, 2], dilation: [1, 2], groups: 2]
    inputs = [f32({2, 4, 3, 5}), f32({4, 3, 3, 2})]

    check(fn [x, kernel] -> conv_transpose(x, kernel, opts) end, inputs,
      plain: fn [x, kernel] -> References.conv_transpose(x, kernel, opts) end,
      roundings: @layers
    )
  end

  test "resize_nearest_2x_decomposed" do
    check(fn [x] -> resize_nearest(x, 2) end, [f32({2, 3, 5, 7})], roundings: @sums)
  end

  # Sequences. Nx's gradient of a loop is a loop of open end, which runs as many iterations as the square of the steps.

  test "selective_scan_mamba" do
    inputs = [f32({2, 11, 5}), f32({2, 11, 5}, 0.1, 0.9), f32({5, 3}, -2, -0.5), f32({2, 11, 3}), f32({2, 11, 3})]

    check(fn [x, delta, a, b, c] -> Sequences.selective_scan(x, delta, a, b, c) end, inputs,
      steps: fn [x, delta, a, b, c] -> Sequences.selective_scan_steps(x, delta, a, b, c) end,
      roundings: @steps,
      waits: 1
    )
  end

  test "mamba2_host" do
    inputs = [f32({2, 7, 3, 4}), f32({2, 7, 3}, 0.1, 0.9), f32({3}, -2, -0.5), f32({2, 7, 5}), f32({2, 7, 5})]

    check(fn [x, delta, a, b, c] -> Sequences.mamba2(x, delta, a, b, c) end, inputs,
      steps: fn [x, delta, a, b, c] -> Sequences.mamba2_steps(x, delta, a, b, c) end,
      roundings: @steps,
      waits: 1
    )
  end

  test "rnn_host" do
    for activation <- [:tanh, :relu] do
      # Two layers.
      both = fn rnn -> fn [x, w1, u1, b1, w2, u2, b2] -> x |> rnn.({w1, u1, b1}) |> rnn.({w2, u2, b2}) end end
      loop = both.(&Sequences.rnn(&1, &2, activation: activation))

      steps =
        both.(fn x, {_, hidden, _} = weights ->
          h = Sequences.zeros(x, {2, Nx.axis_size(hidden, 0)})
          Sequences.steps(x, h, &Sequences.rnn_cell(&1, &2, weights, activation: activation))
        end)

      inputs = [f32({2, 5, 3}), f32({3, 7}), f32({7, 7}, -0.5, 0.5), f32({7}), f32({7, 4}), f32({4, 4}), f32({4})]
      check(loop, inputs, steps: steps, roundings: @steps, waits: 2)
    end
  end

  test "gru_host" do
    steps = fn x, {_, hidden, _, _} = weights ->
      Sequences.steps(x, Sequences.zeros(x, {2, Nx.axis_size(hidden, 0)}), &Sequences.gru_cell(&1, &2, weights))
    end

    ways = fn gru ->
      fn [x, w, u, b, c, w2, u2, b2, c2] -> Sequences.both_ways(gru, x, {w, u, b, c}, {w2, u2, b2, c2}) end
    end

    weights = fn -> [f32({3, 15}), f32({5, 15}), f32({15}), f32({15})] end
    inputs = [f32({2, 5, 3}) | weights.() ++ weights.()]
    check(ways.(&Sequences.gru/2), inputs, steps: ways.(steps), roundings: @steps, waits: 2)
  end

  test "lstm_host" do
    steps = fn x, {_, hidden, _} = weights ->
      h = Sequences.zeros(x, {2, Nx.axis_size(hidden, 0)})
      Sequences.steps(x, {h, h}, &Sequences.lstm_cell(&1, &2, weights), &elem(&1, 1))
    end

    ways = fn lstm -> fn [x, w, u, b, w2, u2, b2] -> Sequences.both_ways(lstm, x, {w, u, b}, {w2, u2, b2}) end end
    weights = fn -> [f32({3, 20}), f32({5, 20}), f32({20})] end
    inputs = [f32({2, 5, 3}) | weights.() ++ weights.()]
    check(ways.(&Sequences.lstm/2), inputs, steps: ways.(steps), roundings: @steps, waits: 2)
  end

  # Transforms and random numbers

  test "fft_host" do
    # rlx has real and imaginary parts in two halves of a row.
    halves = fn transform ->
      fn [x] ->
        n = div(Nx.axis_size(x, 1), 2)
        z = transform.(Nx.complex(x[[.., 0..(n - 1)]], x[[.., n..-1//1]]))
        Nx.concatenate([Nx.real(z), Nx.imag(z)], axis: 1)
      end
    end

    for {transform, n} <- [{&Nx.fft/1, 16}, {&Nx.ifft/1, 15}] do
      plain = fn [x] -> References.fft(x, if(transform == (&Nx.ifft/1), do: -1, else: 1)) end
      check(halves.(transform), [f32({3, 2 * n})], plain: plain, roundings: @sums, gradients: [])
    end

    # Nx takes the imaginary part for a constant, so this gradient is that of the real part.
    check(fn [x] -> Nx.real(Nx.fft(x)) end, [f32({3, 16})], roundings: @sums)
  end

  test "rng_and_sample_host" do
    # The draws of Nx.BinaryBackend in f32, to the bit or to the last digits of their logarithm.
    key = on_host(fn -> Nx.Random.key(42) end)
    uniform = fn [key] -> key |> Nx.Random.uniform(-2.0, 3.0, shape: {7, 13}, type: :f32) |> elem(0) end
    normal = fn [key] -> key |> Nx.Random.normal(1.0, 2.0, shape: {7, 13}, type: :f32) |> elem(0) end
    check(uniform, [key], roundings: @elements, gradients: [])
    check(normal, [key], roundings: @elements, gradients: [])

    sample = fn [key, logits] -> sample(key, logits, temperature: 0.7, top_k: 9, top_p: 0.8) end
    check(sample, [key, f32({5, 33}, -3, 3)], roundings: @moved, gradients: [])
  end
end
