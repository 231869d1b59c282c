defmodule Nx.Vulkan.RecurrencesTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Numbers

  alias Nx.Vulkan.Parity.Sequences
  alias Nx.Vulkan.Recurrences

  doctest Recurrences

  setup do
    Nx.default_backend(Nx.BinaryBackend)
    :rand.seed(:exsss, 33)
    :ok
  end

  test "other backends compute f64 as f64" do
    [q, k] = for _ <- 1..2, do: numbers({1, 5, 2, 3}, :f64)
    [v, state] = [numbers({1, 5, 2, 4}, :f64), numbers({1, 2, 3, 4}, :f64)]
    [decay, beta] = for _ <- 1..2, do: Nx.subtract(numbers({1, 5, 2}, :f64), 1)
    {y, last} = Recurrences.gated_delta_rule(q, k, v, decay, beta, state, chunk: 2)
    {expected, expected_last} = Sequences.gated_delta_rule_steps(q, k, v, decay, beta, state)
    assert y.type == {:f, 64}
    # Some hundred roundings of 2^-53 of numbers below 10.
    assert apart(y, expected) < 1.0e-13
    assert apart(last, expected_last) < 1.0e-13
  end

  test "names and the type of values stay" do
    x = Nx.broadcast(Nx.tensor(1, type: :bf16), {1, 3, 2}, names: [:batch, :time, :channel])
    {y, state} = Recurrences.selective_scan(x, x, Nx.broadcast(-1.0, {2, 1}), x[[.., .., 0..0]], x[[.., .., 0..0]], 0)
    assert {y.type, y.names} == {x.type, x.names}
    assert state.type == {:f, 32}
    h = Recurrences.linear(0.5, x, 0, axis: :time)
    assert {h.type, h.names} == {x.type, x.names}
  end

  test "one decay for all, and whole numbers" do
    sums = Recurrences.linear(0.5, Nx.tensor([[4, 1, 8]]), 2)
    assert {sums.type, Nx.to_flat_list(sums)} == {{:f, 32}, [5.0, 3.5, 9.75]}
  end

  # Tensors that a function captures are no expressions.
  test "gradients of one argument, where the function captures the others" do
    [x, decay] = for _ <- 1..2, do: numbers({1, 5, 2}, :f64)
    [q, k, v] = for _ <- 1..3, do: numbers({1, 5, 2, 2}, :f64)
    state = numbers({1, 1, 2}, :f64)
    step = fn x, h, decay -> then(Nx.add(Nx.multiply(h, decay), x), &{&1, &1}) end

    for {argument, fun} <- [
          {x, &Recurrences.linear(decay, &1, state)},
          {decay, &Recurrences.linear(&1, x, state)},
          {state, &Recurrences.linear(decay, x, &1)},
          {v, &elem(Recurrences.linear_attention(q, k, &1, decay, 0), 0)},
          {v, &elem(Recurrences.gated_delta_rule(q, k, &1, decay, 0.5, 0, chunk: 2), 0)},
          {x, &elem(Recurrences.scan(&1, Nx.squeeze(state, axes: [1]), decay[[.., 0]], step), 0)},
          {decay[[.., 0]], &elem(Recurrences.scan(x, Nx.squeeze(state, axes: [1]), &1, step), 0)}
        ] do
      direction = numbers(argument.shape, :f64)
      loss = &(&1 |> fun.() |> Nx.pow(2) |> Nx.sum())
      at = fn step -> argument |> Nx.add(Nx.multiply(direction, step)) |> loss.() |> Nx.to_number() end
      slope = (at.(1.0e-5) - at.(-1.0e-5)) / 2.0e-5
      got = argument |> Nx.Defn.grad(loss) |> Nx.multiply(direction) |> Nx.sum() |> Nx.to_number()
      assert_in_delta got, slope, 1.0e-6 * (1 + abs(slope))
    end
  end

  test "a logarithm of minus infinity forgets" do
    [q, k, v] = for _ <- 1..3, do: numbers({1, 7, 1, 2}, :f64)
    log_decay = Nx.tensor([[[0.0], [-0.5], [:neg_infinity], [-0.1], [:neg_infinity], [:neg_infinity], [0]]], type: :f64)

    for rule <- [
          &Recurrences.linear_attention(q, k, v, &1, 1, chunk: 4),
          &Recurrences.gated_delta_rule(q, k, v, &1, 0.5, 1, chunk: 4)
        ] do
      gradient = fn decays -> Nx.Defn.grad(decays, fn decays -> Nx.sum(elem(rule.(decays), 0)) end) end
      # exp(-800) is 0.
      finite = Nx.max(log_decay, -800)

      for {y, wanted} <- Enum.zip(Tuple.to_list(rule.(log_decay)), Tuple.to_list(rule.(finite))) do
        assert Nx.to_flat_list(y) == Nx.to_flat_list(wanted)
      end

      assert Nx.to_flat_list(gradient.(log_decay)) == Nx.to_flat_list(gradient.(finite))
    end
  end

  test "the state of a step may be a number" do
    {y, state} = Recurrences.scan(Nx.tensor([[1.0, 2.0]]), 1.0, {}, fn x, _state, {} -> {x, 0.5} end)
    assert {Nx.to_flat_list(y), Nx.to_number(state)} == {[1.0, 2.0], 0.5}
  end

  test "what does not fit is said" do
    t = &Nx.broadcast(1.0, &1)
    q = t.({1, 5, 2, 3})

    for {message, call} <- [
          {~r/decays of the shape \{1, 5\}/, fn -> Recurrences.linear(t.({1, 4}), t.({1, 5}), 0) end},
          {~r/state of shape \{1, 1\}/, fn -> Recurrences.linear(t.({1, 5}), t.({1, 5}), t.({1})) end},
          {~r/expected delta of shape/,
           fn -> Recurrences.selective_scan(t.({1, 5, 2}), t.({1, 5}), t.({2, 3}), q, q, 0) end},
          {~r/expected v to have 4 axes/, fn -> Recurrences.linear_attention(q, q, t.({1, 5, 2}), 0, 0) end},
          {~r/expected k of shape/, fn -> Recurrences.linear_attention(q, t.({1, 5, 3, 3}), q, 0, 0) end},
          {~r/expected beta of shape/, fn -> Recurrences.gated_delta_rule(q, q, q, 0, t.({1, 5}), 0) end},
          {~r/sequences {batch, length, ..} of one length/,
           fn -> Recurrences.scan({q, t.({1, 4})}, q, q, &{&1, &2, &3}) end},
          {~r/a state as that before the step/, fn -> Recurrences.scan(q, t.({2}), 0, fn x, _, _ -> {x, x} end) end},
          {~r/with an axis at least/, fn -> Recurrences.scan(q, t.({2}), 0, fn _, h, p -> {p, h} end) end},
          {~r/with an axis at least/, fn -> Recurrences.scan(q, t.({2}), 0, fn _, h, _ -> {1.0, h} end) end},
          {~r/expected steps to give {y, state}/, fn -> Recurrences.scan(q, t.({2}), 0, fn _, h, _ -> h end) end},
          {~r/without vectorized axes/, fn -> q |> Nx.vectorize(:x) |> Recurrences.scan(q, 0, &{&1, &2, &3}) end},
          {~r/:chunk to be a number/, fn -> Recurrences.linear_attention(q, q, q, 0, 0, chunk: 0) end},
          {~r/expected real numbers/, fn -> Recurrences.linear(Nx.as_type(q, :c64), q, 0) end},
          {~r/without vectorized axes/, fn -> q |> Nx.vectorize(:x) |> Recurrences.linear(q, 0) end}
        ] do
      assert_raise ArgumentError, message, call
    end
  end
end
