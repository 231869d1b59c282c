defmodule Nx.Vulkan.Conformance.RecurrencesTest do
  # Scans and chunks beside the steps that they stand for, in f64, with gradients.
  use ExUnit.Case, async: true

  import Nx.Vulkan.{Numbers, Parity}

  alias Nx.Vulkan.Parity.Sequences
  alias Nx.Vulkan.{Compiler, Recurrences, VulkanoBackend}

  @moduletag :device

  # Roundings of a number on its way (Nx.Vulkan.Parity.check/3).
  @roundings 16

  setup do
    Nx.default_backend(VulkanoBackend)
    :rand.seed(:exsss, 33)
    :ok
  end

  defp f32(shape), do: numbers(shape, :f32)
  defp f32(shape, low, high), do: on_host(fn -> Nx.add(Nx.multiply(f32(shape), (high - low) / 2), (high + low) / 2) end)

  # The steps of linear/4 along axis 1.
  defp linear_steps(decay, input, state) do
    {all, _} =
      Enum.map_reduce(0..(Nx.axis_size(input, 1) - 1), state, fn t, h ->
        h = Nx.add(Nx.multiply(decay[[.., t..t]], h), input[[.., t..t]])
        {h, h}
      end)

    Nx.concatenate(all, axis: 1)
  end

  defp zeros_like(input), do: Nx.broadcast(Nx.tensor(0, type: input.type), {2, 1, 3})

  test "linear, of a step, of pairs and of what is left of them" do
    for length <- [1, 2, 7] do
      check(
        fn [decay, input, state] -> Recurrences.linear(decay, input, state) end,
        [f32({2, length, 3}), f32({2, length, 3}), f32({2, 1, 3})],
        steps: fn [decay, input, state] -> linear_steps(decay, input, state) end,
        roundings: @roundings
      )
    end
  end

  test "linear, of decays for several inputs along the last axis" do
    turn = &Nx.transpose(&1, axes: [0, 2, 1])

    check(
      fn [decay, input] -> turn.(Recurrences.linear(decay, turn.(input), 0, axis: 2)) end,
      [f32({1, 1, 7}), f32({2, 7, 3})],
      steps: fn [decay, input] -> linear_steps(turn.(decay), input, zeros_like(input)) end,
      roundings: @roundings
    )
  end

  test "selective_scan, in two parts" do
    inputs = [f32({2, 6, 5}), f32({2, 6, 5}, 0.1, 0.9), f32({5, 3}, -2, -0.5), f32({2, 6, 3}), f32({2, 6, 3})]

    parts = fn [x, delta, a, b, c] ->
      part = fn range, state ->
        [x, delta, b, c] = for t <- [x, delta, b, c], do: t[[.., range]]
        Recurrences.selective_scan(x, delta, a, b, c, state)
      end

      {first, state} = part.(0..3, 0)
      {second, _state} = part.(4..5, state)
      Nx.concatenate([first, second], axis: 1)
    end

    check(parts, inputs,
      steps: fn [x, delta, a, b, c] -> Sequences.selective_scan_steps(x, delta, a, b, c) end,
      roundings: @roundings
    )
  end

  test "linear_attention is Mamba 2, in chunks that do not end with the sequence" do
    inputs = [f32({2, 7, 3, 4}), f32({2, 7, 3}, 0.1, 0.9), f32({3}, -2, -0.5), f32({2, 7, 5}), f32({2, 7, 5})]

    mamba2 = fn [x, delta, a, b, c] ->
      [c, b] = for t <- [c, b], do: Nx.new_axis(t, 2)
      [x, decay] = [Nx.multiply(x, Nx.new_axis(delta, -1)), Nx.multiply(delta, a)]
      elem(Recurrences.linear_attention(c, b, x, decay, 0, chunk: 3), 0)
    end

    check(mamba2, inputs,
      steps: fn [x, delta, a, b, c] -> Sequences.mamba2_steps(x, delta, a, b, c) end,
      roundings: @roundings
    )
  end

  test "linear_attention without a decay is that of sums, and goes on from a state" do
    inputs = [f32({2, 7, 3, 4}), f32({2, 7, 3, 4}), f32({2, 7, 3, 5}), f32({2, 3, 4, 5})]

    steps = fn [q, k, v, state] ->
      outer = Nx.multiply(Nx.new_axis(k, 4), Nx.new_axis(v, 3))
      states = Nx.add(Nx.cumulative_sum(outer, axis: 1), Nx.new_axis(state, 1))
      {Nx.sum(Nx.multiply(Nx.new_axis(q, 4), states), axes: [3]), states[[.., -1]]}
    end

    attention = fn [q, k, v, state] -> Recurrences.linear_attention(q, k, v, 0, state) end
    check(attention, inputs, steps: steps, roundings: @roundings)
  end

  # Of length 1.
  defp keys(shape) do
    on_host(fn ->
      shape |> f32() |> then(&Nx.divide(&1, Nx.sqrt(Nx.sum(Nx.multiply(&1, &1), axes: [-1], keep_axes: true))))
    end)
  end

  test "gated_delta_rule, with a state before and behind, in chunks that do not end with the sequence" do
    inputs =
      [keys({2, 7, 3, 4}), keys({2, 7, 3, 4}), f32({2, 7, 3, 5})] ++
        [f32({2, 7, 3}, -1, -0.1), f32({2, 7, 3}, 0.1, 0.9), f32({2, 3, 4, 5})]

    rule = fn [q, k, v, decay, beta, state] -> Recurrences.gated_delta_rule(q, k, v, decay, beta, state, chunk: 3) end

    check(rule, inputs,
      steps: fn [q, k, v, decay, beta, state] -> Sequences.gated_delta_rule_steps(q, k, v, decay, beta, state) end,
      roundings: @roundings
    )
  end

  # Their logarithms add up to some 500 in a chunk, of which differences would have lost nine bits.
  test "strong decays between weak ones" do
    inputs = [keys({1, 49, 2, 4}), keys({1, 49, 2, 4}), f32({1, 49, 2, 3}), f32({1, 49, 2}, -20, -0.01)]

    steps = fn [q, k, v, decay] ->
      [beta, state] = for shape <- [{1, 49, 2}, {1, 2, 4, 3}], do: Nx.broadcast(Nx.tensor(0, type: q.type), shape)
      elem(Sequences.gated_delta_rule_steps(q, k, v, decay, Nx.add(beta, 0.5), state), 0)
    end

    check(fn [q, k, v, decay] -> elem(Recurrences.gated_delta_rule(q, k, v, decay, 0.5, 0), 0) end, inputs,
      steps: steps,
      roundings: @roundings
    )

    check(fn [q, k, v, decay] -> elem(Recurrences.linear_attention(q, k, v, decay, 0), 0) end, inputs,
      steps: fn [q, k, v, decay] ->
        decays = decay |> Nx.exp() |> Nx.new_axis(3) |> Nx.new_axis(4)
        states = linear_steps(decays, Nx.multiply(Nx.new_axis(k, 4), Nx.new_axis(v, 3)), 0)
        Nx.sum(Nx.multiply(Nx.new_axis(q, 4), states), axes: [3])
      end,
      roundings: @roundings
    )
  end

  # The hardest system: whoever inverts it by powers loses all digits.
  test "gated_delta_rule of equal keys gives what was put there last" do
    k = on_host(fn -> Nx.broadcast(Nx.tensor([0.6, 0.8], type: :f32), {1, 67, 1, 2}) end)

    check(fn [k, v] -> elem(Recurrences.gated_delta_rule(k, k, v, 0, 1, 0), 0) end, [k, f32({1, 67, 1, 3})],
      steps: fn [_k, v] -> v end,
      gradients: [1],
      roundings: @roundings
    )
  end

  test "scan, of a GRU and an LSTM, goes back without a look of the host" do
    scanned = fn [x, h | weights] ->
      Recurrences.scan(x, h, List.to_tuple(weights), fn x, h, weights ->
        Sequences.gru_cell(x, h, weights) |> then(&{&1, &1})
      end)
    end

    check(scanned, [f32({2, 6, 3}), f32({2, 5}), f32({3, 15}), f32({5, 15}), f32({15}), f32({15})],
      steps: fn [x, h | weights] ->
        y = Sequences.steps(x, h, &Sequences.gru_cell(&1, &2, List.to_tuple(weights)))
        {y, y[[.., -1]]}
      end,
      roundings: @roundings
    )

    scanned = fn [x, c, h | weights] ->
      {%{out: y}, _state} =
        Recurrences.scan(%{in: x}, {c, h}, List.to_tuple(weights), fn %{in: x}, state, weights ->
          {_c, h} = state = Sequences.lstm_cell(x, state, weights)
          {%{out: h}, state}
        end)

      y
    end

    check(scanned, [f32({2, 6, 3}), f32({2, 4}), f32({2, 4}), f32({3, 16}), f32({4, 16}), f32({16})],
      steps: fn [x, c, h | weights] ->
        Sequences.steps(x, {c, h}, &Sequences.lstm_cell(&1, &2, List.to_tuple(weights)), &elem(&1, 1))
      end,
      roundings: @roundings
    )
  end

  test "scan, of whole numbers and without parameters" do
    table = f32({5, 3})
    ids = Nx.tensor([[0, 4, 4, 1, 2], [3, 3, 3, 0, 1]], type: :s32, backend: Nx.BinaryBackend)

    scanned = fn [ids, table] ->
      {y, {_count, _sum, _table}} =
        Recurrences.scan(ids, {Nx.s32(0), Nx.broadcast(Nx.tensor(0, type: table.type), {2, 3}), table}, {}, fn ids,
                                                                                                               {count,
                                                                                                                sum,
                                                                                                                table},
                                                                                                               {} ->
          sum = sum |> Nx.multiply(0.5) |> Nx.add(Nx.take(table, ids))
          {Nx.multiply(sum, count), {Nx.add(count, 1), sum, table}}
        end)

      y
    end

    steps = fn [ids, table] ->
      x = Nx.take(table, ids)
      h = linear_steps(Nx.broadcast(Nx.tensor(0.5, type: x.type), {1, 5, 1}), x, 0)
      Nx.multiply(h, Nx.iota({1, 5, 1}))
    end

    check(scanned, [ids, table], steps: steps, roundings: @roundings)
  end

  test "types of 16 bits are computed in f32" do
    for type <- [:bf16, :f16] do
      narrow = for _ <- 1..2, do: {1, 9, 5} |> f32() |> Nx.backend_copy(VulkanoBackend) |> Nx.as_type(type)
      [decay, input] = Enum.map(narrow, &Nx.as_type(&1, :f32))
      h = apply(&Recurrences.linear(&1, &2, 0), narrow)
      assert h.type == hd(narrow).type
      assert Nx.to_binary(h) == Nx.to_binary(Nx.as_type(Recurrences.linear(decay, input, 0), type))
    end
  end

  defp launches(fun, shapes) do
    %{steps: [run: %{launches: launches}]} =
      Compiler.explain(fun, [shapes |> Enum.map(&Nx.template(&1, :f32)) |> List.to_tuple()])

    length(launches)
  end

  test "launches grow with the logarithm of the length, and of chunks, forwards and backwards" do
    selective = fn inputs ->
      Nx.Defn.grad(inputs, fn {x, delta, a, b, c} ->
        Nx.sum(elem(Recurrences.selective_scan(x, delta, a, b, c, 0), 0))
      end)
    end

    [short, long] =
      for n <- [128, 256], do: launches(selective, [{1, n, 16}, {1, n, 16}, {16, 4}, {1, n, 4}, {1, n, 4}])

    assert short < 48
    assert long - short < 8

    attention = fn inputs ->
      Nx.Defn.grad(inputs, fn {q, k, v, decay} -> Nx.sum(elem(Recurrences.linear_attention(q, k, v, decay, 0), 0)) end)
    end

    [short, long] = for n <- [256, 512], do: launches(attention, List.duplicate({1, n, 2, 16}, 3) ++ [{1, n, 2}])
    assert short < 64
    assert long - short < 12
  end
end
