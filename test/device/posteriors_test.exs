Code.require_file("../../examples/posteriors/models.exs", __DIR__)

defmodule Nx.Vulkan.PosteriorsTest do
  # Means, standard deviations and quantiles of what Nx.Vulkan.NUTS draws, beside references (examples/posteriors).
  # `mix test --only posteriors` takes all of them, with two seeds each.
  use ExUnit.Case, async: true

  alias Nx.Vulkan.NUTS
  alias Nx.Vulkan.NUTS.Diagnostics

  @moduletag :device

  # Standard errors, of both sides together, that an estimate may be off.
  @errors 4
  # Largest R-hat at which chains count as converged (Vehtari et al. 2021).
  @rhat 1.01

  # Returns the largest R-hat.
  defp check(name, opts) do
    model = Posteriors.model(name)
    result = NUTS.sample(model.log_density, model.template, Keyword.merge(model.options, opts))
    quantities = Map.new(model.quantities.(result.draws), fn {name, draws} -> {name, Nx.to_list(draws)} end)
    {source, values} = Posteriors.reference(name)
    assert values != []

    wrong =
      for {quantity, statistic, value, error} <- values,
          {found, own} = statistic(statistic, quantities[quantity]),
          allowed = @errors * :math.sqrt(own * own + error * error),
          abs(found - value) > allowed do
        "#{statistic} of #{quantity} is #{found} and not #{value} +- #{allowed} (#{source})"
      end

    assert wrong == []
    rhats = Map.new(quantities, fn {name, draws} -> {name, Diagnostics.rhat(draws)} end)
    assert Enum.filter(rhats, fn {_, rhat} -> rhat > @rhat end) == []
  end

  defp statistic("mean", draws), do: Diagnostics.mean_error(draws)
  defp statistic("sd", draws), do: Diagnostics.sd_error(draws)
  defp statistic("q" <> probability, draws), do: Diagnostics.quantile_error(draws, String.to_float(probability))

  test "eight schools, briefly" do
    check(:eight_schools, num_samples: 1000, num_warmup: 500, key: 11)
  end

  @samples %{logistic: 500}

  for name <- Posteriors.names(), key <- [1, 2] do
    @tag :posteriors
    @tag timeout: to_timeout(minute: 30)
    test "#{name}, key #{key}" do
      check(unquote(name), num_samples: unquote(Map.get(@samples, name, 1000)), key: unquote(key))
    end
  end

  test "the funnel as it is written down diverges, and the non-centred one does not" do
    divergent = fn name ->
      model = Posteriors.model(name)
      opts = [num_samples: 300, num_warmup: 200, num_chains: 4, key: 1, target_accept: 0.6]
      result = NUTS.sample(model.log_density, model.template, opts)
      result.stats.divergent |> Nx.sum() |> Nx.to_number()
    end

    assert divergent.(:centered_funnel) > 0
    assert divergent.(:funnel) == 0
  end
end
