defmodule Nx.Vulkan.ChainLoopsTest do
  # Log-densities with loops, as models of series have them: their gradients against differences, in both forms and
  # types.
  use ExUnit.Case, async: true

  alias Nx.Vulkan.{Chain, NUTS}

  @moduletag :device

  defmodule Models do
    import Nx.Defn

    # An autoregression: its coefficient and the logarithm of its scale.
    defn autoregression(q, y) do
      {phi, log_scale} = {Nx.tanh(q[0]), q[1]}

      {_, _, sum, _, _, _} =
        while {i = 1, before = y[0], sum = y[0] * 0, phi, log_scale, y}, i < Nx.size(y) do
          z = (y[i] - phi * before) / Nx.exp(log_scale)
          {i + 1, y[i], sum - 0.5 * z * z - log_scale, phi, log_scale, y}
        end

      sum - 0.1 * Nx.sum(q * q)
    end

    # GARCH(1, 1): the logarithms of its level, and of what a square and the last variance add.
    defn garch(q, y) do
      rates = Nx.exp(q)

      {_, _, sum, _, _} =
        while {i = 0, variance = rates[0] * 0 + 1, sum = y[0] * 0, rates, y}, i < Nx.size(y) do
          sum = sum - 0.5 * (Nx.log(variance) + y[i] * y[i] / variance)
          {i + 1, rates[0] + 0.3 * rates[1] * y[i] * y[i] + 0.3 * rates[2] * variance, sum, rates, y}
        end

      sum - 0.1 * Nx.sum(q * q)
    end

    # A hidden chain of two states, by the forward algorithm in logarithms: two means and how likely states stay.
    defn hidden_states(q, y) do
      means = q[0..1]
      stays = Nx.sigmoid(q[2])
      moves = Nx.log(Nx.stack([Nx.stack([stays, 1 - stays]), Nx.stack([1 - stays, stays])]))

      {_, alpha, _, _, _} =
        while {i = 0, alpha = means * 0, means, moves, y}, i < Nx.size(y) do
          joint = Nx.new_axis(alpha, 1) + moves
          high = Nx.reduce_max(joint, axes: [0])
          ahead = high + Nx.log(Nx.sum(Nx.exp(joint - high), axes: [0]))
          {i + 1, ahead - 0.5 * (y[i] - means) * (y[i] - means), means, moves, y}
        end

      Nx.log(Nx.sum(Nx.exp(alpha - Nx.reduce_max(alpha)))) + Nx.reduce_max(alpha) - 0.1 * Nx.sum(q * q)
    end

    # A loop that a branch is in, and another loop.
    defn nested(q, y) do
      {_, x, _} =
        while {i = 0, x = q * 0.1, y}, i < 3 do
          {_, x} =
            while {j = 0, x}, j < 2 do
              {j + 1, Nx.sin(x) + 0.3}
            end

          x =
            cond do
              rem(i, 2) == 0 -> x * 0.7
              true -> x + 0.1 * y[i]
            end

          {i + 1, x, y}
        end

      -Nx.sum(x * x) - 0.1 * Nx.sum(q * q)
    end
  end

  @models [autoregression: 2, garch: 3, hidden_states: 3, nested: 2]

  # Of the first parameters, by the evaluator in f64.
  defp slopes(model, q, y) do
    value = fn q -> Nx.Defn.jit(model, compiler: Nx.Defn.Evaluator).(Nx.tensor(q, type: :f64), y) |> Nx.to_number() end

    for i <- 0..(length(q) - 1) do
      [high, low] = for h <- [1.0e-5, -1.0e-5], do: value.(List.update_at(q, i, &(&1 + h)))
      (high - low) / 2.0e-5
    end
  end

  defp close?(got, wanted, tolerance, what) do
    for {got, wanted} <- Enum.zip(got, wanted), do: assert_in_delta(got, wanted, tolerance * max(1, abs(wanted)), what)
  end

  for {name, size} <- @models do
    test "gradients of #{name}" do
      model = Function.capture(Models, unquote(name), 2)
      q = for i <- 1..unquote(size), do: :math.sin(i * 1.7) * 0.6
      values = for i <- 1..12, do: :math.sin(i * 0.7) + 0.3 * :math.cos(i * 2.3)
      y = Nx.tensor(values, type: :f64, backend: Nx.BinaryBackend)
      wanted = slopes(model, q, y)

      for {type, tolerance} <- [f64: 2.0e-9, f32: 2.0e-4] do
        fun = &model.(&1, Nx.as_type(y, type))
        start = Nx.tensor(q, type: type, backend: Nx.BinaryBackend)
        {_, gradient} = Nx.Defn.jit(&Nx.Defn.value_and_grad(&1, fun), compiler: Nx.Vulkan).(start)
        assert Nx.type(gradient) == Nx.Type.normalize!(type)
        close?(Nx.to_flat_list(gradient), wanted, tolerance, "compiled in #{type}")

        for form <- [:workgroup, :device] do
          chain = Chain.compile(fun, Nx.template({unquote(size)}, type), form: form)
          trace = Chain.run(chain, start, start, steps: 1, step_size: 0.0)
          close?(Nx.to_flat_list(trace.gradient), wanted, tolerance, "#{form} in #{type}")
        end
      end

      # No rounding to f32 anywhere.
      fun = &model.(&1, y)
      start = Nx.tensor(q, type: :f64, backend: Nx.BinaryBackend)

      [one, other] =
        for form <- [:workgroup, :device] do
          chain = Chain.compile(fun, Nx.template({unquote(size)}, :f64), form: form)
          Nx.to_flat_list(Chain.run(chain, start, start, steps: 1, step_size: 0.0).gradient)
        end

      close?(one, other, 1.0e-12, "the forms")
    end
  end

  test "draws from an autoregression in f64" do
    :rand.seed(:exsss, {2, 7, 1})

    {values, _} =
      Enum.map_reduce(1..60, 0.0, fn _, x -> List.duplicate(0.6 * x + :rand.normal(), 2) |> List.to_tuple() end)

    y = Nx.tensor(values, type: :f64, backend: Nx.BinaryBackend)
    fun = &Models.autoregression(&1, y)
    result = NUTS.sample(fun, Nx.template({2}, :f64), num_chains: 2, num_samples: 200, num_warmup: 200, key: 5)
    coefficient = result.draws[[.., .., 0]] |> Nx.tanh() |> Nx.mean() |> Nx.to_number()
    # The least squares of the series.
    pairs = Enum.zip(values, tl(values))
    wanted = Enum.sum_by(pairs, fn {a, b} -> a * b end) / Enum.sum_by(pairs, fn {a, _} -> a * a end)
    assert_in_delta coefficient, wanted, 0.06
    assert Nx.to_number(Nx.sum(result.stats.divergent)) == 0
  end
end
