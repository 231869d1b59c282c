defmodule Nx.Vulkan.Parity.LayersTest do
  # What rlx has besides its parity cases, and layers of models that Nx has no function for, as in rlx_test.exs.
  use ExUnit.Case, async: true

  import Nx.Vulkan.{Numbers, Parity}
  import Nx.Vulkan.Parity.Layers

  alias Nx.Vulkan.Parity.{Control, References, Sequences}
  alias Nx.Vulkan.Quantized

  @moduletag :device

  # Roundings of a number on its way (check/3), as in rlx_test.exs.
  @sums 8
  @layers 16

  setup do
    Nx.default_backend(Nx.Vulkan.VulkanoBackend)
    :rand.seed(:exsss, 33)
    :ok
  end

  defp f32(shape), do: numbers(shape, :f32)
  defp f32(shape, low, high), do: on_host(fn -> Nx.add(Nx.multiply(f32(shape), (high - low) / 2), (high + low) / 2) end)
  defp s32(list), do: Nx.tensor(list, type: :s32, backend: Nx.BinaryBackend)

  # Products

  test "dot of several axes and batches" do
    check(fn [a, b] -> Nx.dot(a, [1, 3], [0], b, [3, 1], [0]) end, [f32({3, 5, 2, 7}), f32({3, 7, 4, 5})],
      roundings: @sums
    )
  end

  test "a product with low-rank weights beside it" do
    lora = fn [x, w, a, b] -> Nx.add(Nx.dot(x, w), Nx.multiply(0.5, Nx.dot(Nx.dot(x, a), b))) end
    check(lora, [f32({5, 13}), f32({13, 11}), f32({13, 3}), f32({3, 11})], roundings: @sums)
  end

  test "packed weights of experts that are taken by rows" do
    q = on_host(fn -> Quantized.quantize(f32({4, 3, 64}), :q8_0) end)

    grouped = fn [x, blocks, experts] ->
      chosen = blocks |> Nx.take(experts) |> Quantized.from_blocks(:q8_0) |> Quantized.dequantize()
      Nx.dot(x, [1], [0], chosen, [2], [0])
    end

    plain = fn [x, blocks, experts] ->
      values = blocks |> Nx.reshape({12, 2, 34}) |> References.dequantize(:q8_0) |> Nx.reshape({4, 3, 64})
      References.grouped_dot(x, Nx.transpose(values, axes: [0, 2, 1]), experts)
    end

    inputs = [f32({5, 64}), q.tensors.blocks, s32([3, 0, 0, 3, 1])]
    check(grouped, inputs, plain: plain, roundings: @layers)
  end

  test "a transformer's layer" do
    weights = for _ <- 1..4, do: f32({12, 12}, -0.5, 0.5)
    ffn = [f32({12}), f32({12, 20}, -0.5, 0.5), f32({12, 20}, -0.5, 0.5), f32({20, 12}, -0.5, 0.5)]
    angles = for f <- [&Nx.cos/1, &Nx.sin/1], do: on_host(fn -> f.(f32({5, 2}, 0, 6)) end)

    layer = fn [x, gamma, wq, wk, wv, wo, cos, sin, gamma2, gate, up, down] ->
      x = attention_block(x, gamma, wq, wk, wv, wo, cos, sin, heads: 3)
      Nx.add(x, swiglu(rms_norm(x, gamma2), gate, up, down))
    end

    check(layer, [f32({2, 5, 12}), f32({12})] ++ weights ++ angles ++ ffn, roundings: @layers)
  end

  test "a residual and its layer norm" do
    fused = fn [x, residual, gamma, beta] -> then(Nx.add(x, residual), &{&1, layer_norm(&1, gamma, beta)}) end
    check(fused, [f32({5, 33}), f32({5, 33}), f32({33}), f32({33})], roundings: @sums)
  end

  test "a gate that is limited to groups of experts" do
    check(
      fn [logits, bias] -> group_limited_gate(logits, bias, groups: 4, kept: 2, k: 3) end,
      [f32({7, 12}), f32({12})],
      plain: fn [logits, bias] -> References.group_limited_gate(logits, bias, 4, 2, 3) end,
      roundings: @layers
    )
  end

  # Images

  test "instance norm" do
    inputs = [f32({2, 3, 5, 7}), f32({3}), f32({3})]
    check(fn [x, gamma, beta] -> group_norm(x, gamma, beta, groups: 3) end, inputs, roundings: @sums)
  end

  test "transposed convolution of volumes" do
    opts = [strides: [2, 1, 2], padding: [0, 1, 1], output_padding: [1, 0, 0], dilation: [1, 2, 1], groups: 1]

    check(fn [x, kernel] -> conv_transpose(x, kernel, opts) end, [f32({1, 2, 2, 3, 3}), f32({2, 3, 2, 2, 3})],
      plain: fn [x, kernel] -> References.conv_transpose(x, kernel, opts) end,
      roundings: @layers
    )
  end

  test "bilinear resize, larger and smaller" do
    for size <- [{7, 11}, {3, 4}] do
      check(fn [x] -> resize_bilinear(x, size) end, [f32({2, 3, 5, 7})],
        plain: fn [x] -> References.resize_bilinear(x, size) end,
        roundings: @layers
      )
    end
  end

  # Sequences

  test "GatedDeltaNet, with a state before and behind" do
    inputs =
      [f32({2, 5, 3, 4}, -0.5, 0.5), f32({2, 5, 3, 4}, -0.5, 0.5), f32({2, 5, 3, 5})] ++
        [f32({2, 5, 3}, -1, -0.1), f32({2, 5, 3}, 0.1, 0.9), f32({2, 3, 4, 5})]

    check(fn [q, k, v, decay, beta, state] -> Sequences.gated_delta_rule(q, k, v, decay, beta, state) end, inputs,
      steps: fn [q, k, v, decay, beta, state] -> Sequences.gated_delta_rule_steps(q, k, v, decay, beta, state) end,
      roundings: @layers,
      waits: 1
    )
  end

  if Code.ensure_loaded?(Axon) do
    alias Axon.Layers, as: AxonLayers

    # With gradients by all inputs, and without.
    @unrolls [{&AxonLayers.dynamic_unroll/7, Enum.to_list(0..5)}, {&AxonLayers.static_unroll/7, []}]

    test "Axon's LSTM, as a loop and spelled out" do
      inputs = [f32({2, 5, 3}), f32({2, 4}), f32({2, 4}), f32({3, 16}), f32({4, 16}), f32({16})]

      for {unroll, gradients} <- @unrolls do
        axon = fn [x, c, h, input, hidden, bias] ->
          [input, hidden, bias] =
            for {t, letters} <- [{input, "wi"}, {hidden, "wh"}, {bias, "b"}], do: gates(t, letters, ~w(i f g o))

          {out, _carry} = unroll.(&AxonLayers.lstm_cell/6, x, {c, h}, Nx.broadcast(0, {2, 5}), input, hidden, bias)
          out
        end

        check(axon, inputs,
          steps: fn [x, c, h | weights] ->
            Sequences.steps(x, {c, h}, &Sequences.lstm_cell(&1, &2, List.to_tuple(weights)), &elem(&1, 1))
          end,
          roundings: @layers,
          waits: 1,
          gradients: gradients
        )
      end
    end

    test "Axon's GRU, as a loop and spelled out" do
      inputs = [f32({2, 5, 3}), f32({2, 4}), f32({3, 12}), f32({4, 12}), f32({12}), f32({4})]

      for {unroll, gradients} <- @unrolls do
        axon = fn [x, h, input, hidden, bias, hidden_bias] ->
          [input, hidden] = [gates(input, "wi", ~w(r z n)), gates(hidden, "wh", ~w(r z n))]
          %{"br" => r, "bz" => z, "bn" => n} = gates(bias, "b", ~w(r z n))
          biases = %{"br" => r, "bz" => z, "bin" => n, "bhn" => hidden_bias}
          {out, _carry} = unroll.(&AxonLayers.gru_cell/6, x, {h}, Nx.broadcast(0, {2, 5}), input, hidden, biases)
          out
        end

        steps = fn [x, h, input, hidden, bias, hidden_bias] ->
          none = Nx.broadcast(Nx.multiply(0, hidden_bias[0]), {8})
          weights = {input, hidden, bias, Nx.concatenate([none, hidden_bias])}
          Sequences.steps(x, h, &Sequences.gru_cell(&1, &2, weights))
        end

        check(axon, inputs, steps: steps, roundings: @layers, waits: 1, gradients: gradients)
      end
    end

    # Gates that lie side by side, by Axon's names.
    defp gates(t, letters, names) do
      axis = Nx.rank(t) - 1
      size = div(Nx.axis_size(t, axis), length(names))

      for {name, i} <- Enum.with_index(names), into: %{} do
        {letters <> name, Nx.slice_along_axis(t, i * size, size, axis: axis)}
      end
    end
  end

  test "RWKV" do
    check(
      fn [decay, bonus, k, v] -> Sequences.wkv(decay, bonus, k, v) end,
      [f32({5}, 0.1, 2), f32({5}), f32({2, 6, 5}, -3, 3), f32({2, 6, 5})],
      steps: fn [decay, bonus, k, v] -> Sequences.wkv_sums(decay, bonus, k, v) end,
      roundings: @layers,
      waits: 1
    )
  end

  test "if, while and scan" do
    check(fn [x] -> Control.branch(x) end, [f32({7})], roundings: @sums)
    check(fn [x] -> Control.branch(x) end, [f32({7}, -3, -2)], roundings: @sums)
    check(fn [x] -> Control.powers(x) end, [f32({7})], roundings: @sums, waits: 1)
  end

  # Signals. Nx gives no gradient of imaginary parts.

  test "log-mel" do
    filters = f32({5, 9}, 0, 1)

    check(fn [x, filters] -> log_mel(x, filters, 16, 5) end, [f32({71}), filters],
      plain: fn [x, filters] -> References.log_mel(x, filters, 16, 5) end,
      gradients: [1],
      roundings: @layers
    )
  end

  test "Welch" do
    for size <- [16, 15] do
      check(fn [x] -> welch(x, size, 100) end, [f32({71})],
        plain: fn [x] -> References.welch(x, size, 100) end,
        gradients: [],
        roundings: @layers
      )
    end
  end

  test "the graph of nearest neighbours" do
    check(fn [x] -> nearest(x, 4) end, [f32({23, 7})],
      plain: fn [x] -> References.nearest(x, 4) end,
      roundings: @layers
    )
  end
end
