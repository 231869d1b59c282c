defmodule Nx.Vulkan.NUTSUnitTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.NUTS.{Adaptation, Diagnostics}

  doctest Nx.Vulkan.NUTS.Diagnostics

  test "windows are Stan's" do
    lengths = [{75, false}, {25, true}, {50, true}, {100, true}, {200, true}, {500, true}, {50, false}]
    assert Adaptation.windows(1000) == lengths
    assert Adaptation.windows(150) == [{75, false}, {25, true}, {50, false}]
    assert Adaptation.windows(100) == [{15, false}, {75, true}, {10, false}]
    assert Adaptation.windows(19) == [{19, false}]
    assert Adaptation.windows(0) == []

    for draws <- 1..2000 do
      windows = Adaptation.windows(draws)
      assert windows |> Enum.map(&elem(&1, 0)) |> Enum.sum() == draws
      assert Enum.all?(windows, fn {n, _} -> n > 0 end)
    end
  end

  test "moments of blocks are those of all" do
    draws =
      Nx.tensor(for(i <- 1..60, do: :math.sin(i * i)), type: :f64, backend: Nx.BinaryBackend) |> Nx.reshape({2, 10, 3})

    for mass <- [:diagonal, :dense] do
      whole = Adaptation.moments(nil, draws, mass)
      parts = nil |> Adaptation.moments(draws[[.., 0..3]], mass) |> Adaptation.moments(draws[[.., 4..9]], mass)
      assert {10, _, _} = whole

      for i <- 1..2 do
        apart = whole |> elem(i) |> Nx.subtract(elem(parts, i)) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()
        assert apart < 1.0e-13
      end
    end
  end

  describe "diagnostics" do
    # x' = r x + sqrt(1 - r^2) z has (1 + r) / (1 - r) times as many draws as effective ones.
    defp autoregressive(r, chains, draws, shift \\ 0.0) do
      :rand.seed(:exsss, {1, 2, 3})

      for chain <- 1..chains do
        {values, _} =
          Enum.map_reduce(1..draws, :rand.normal(), fn _, x ->
            next = r * x + :math.sqrt(1 - r * r) * :rand.normal()
            {next + shift * chain, next}
          end)

        values
      end
    end

    test "effective draws and R-hat of an autoregressive chain" do
      chains = autoregressive(0.5, 4, 2000)
      assert_in_delta Diagnostics.ess_bulk(chains), 8000 / 3, 400
      assert_in_delta Diagnostics.ess_mean(chains), 8000 / 3, 400
      assert Diagnostics.rhat(chains) < 1.01
      assert Diagnostics.rhat(autoregressive(0.5, 4, 2000, 0.3)) > 1.05
      assert Diagnostics.rhat([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]) == 1.0
    end

    test "draws that are none, not finite, or never change" do
      for {draws, reason} <- [
            {[[1.0, 2.0, 3.0]], "at least 4 draws of each chain, got: 3"},
            {Nx.tensor([[1.0, 2.0]], backend: Nx.BinaryBackend), "at least 4 draws of each chain, got: 2"},
            {[[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0, 5.0]], "lengths: [4, 5]"},
            {[[1.0, 2.0, 3.0, "4"]], "lists of real numbers"},
            {[], "a list of chains"},
            {[1.0, 2.0, 3.0, 4.0], "a list of chains"},
            {Nx.tensor([1.0, 2.0, 3.0, 4.0], backend: Nx.BinaryBackend), "{chains, draws}"}
          ],
          fun <- [&Diagnostics.rhat/1, &Diagnostics.ess_bulk/1, &Diagnostics.ess_mean/1, &Diagnostics.sd_error/1] do
        assert_raise ArgumentError, Regex.compile!(Regex.escape(reason)), fn -> fun.(draws) end
      end

      assert_raise ArgumentError, ~r/between 0 and 1/, fn -> Diagnostics.quantile_error([[1, 2, 3, 4]], 1.5) end

      all = fn draws ->
        {Diagnostics.rhat(draws), Diagnostics.ess_bulk(draws), Diagnostics.ess_mean(draws),
         Diagnostics.mean_error(draws), Diagnostics.sd_error(draws), Diagnostics.quantile_error(draws, 0.5)}
      end

      nan = Nx.tensor([[1.0, :nan, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]], backend: Nx.BinaryBackend)

      for draws <- [nan, [[1.0, 2.0, :infinity, 3.0]], [[1.0, -1.0e300, 2.0, 3.0]]] do
        assert all.(draws) == {:nan, :nan, :nan, {:nan, :nan}, {:nan, :nan}, {:nan, :nan}}
      end

      assert {1.0, 200.0, 200.0, {mean, +0.0}, {+0.0, +0.0}, {0.1, +0.0}} =
               all.(List.duplicate(List.duplicate(0.1, 100), 2))

      assert_in_delta mean, 0.1, 1.0e-15
      apart = [List.duplicate(0.1, 100), List.duplicate(0.2, 100)]
      assert {:infinity, effective, _, _, _, _} = all.(apart)
      assert effective < 10
      # Squares that would vanish.
      small = for chain <- autoregressive(0.0, 2, 100), do: Enum.map(chain, &(&1 * 1.0e-200))
      {sd, error} = Diagnostics.sd_error(small)
      assert_in_delta sd, 1.0e-200, 2.0e-201
      assert_in_delta error, 5.0e-202, 2.0e-202
    end

    test "errors of the mean, the standard deviation and quantiles" do
      chains = autoregressive(0.0, 4, 2500)
      {mean, error} = Diagnostics.mean_error(chains)
      assert_in_delta error, 0.01, 0.002
      assert abs(mean) < 4 * error
      {sd, error} = Diagnostics.sd_error(Nx.tensor(chains, type: :f64, backend: Nx.BinaryBackend))
      assert_in_delta error, 0.01 / :math.sqrt(2), 0.002
      assert abs(sd - 1) < 4 * error
      {q95, error} = Diagnostics.quantile_error(chains, 0.95)
      # sqrt(p (1 - p) / n) over the density there, 0.103.
      assert_in_delta error, 0.0211, 0.005
      assert abs(q95 - 1.6449) < 4 * error
    end
  end
end
