defmodule Nx.Vulkan.ExmcSuites.Formatter do
  @moduledoc false
  # Adds one line to the file that EXMC_SUITE_TABLE names: passed, failed, excluded, seconds, how often a chain
  # shader ran, and the dispatches of the device in all. exmc counts its chains per process, and those of the tests are
  # gone by then, so that the VM counts the calls.
  use GenServer

  @chains [
    {Exmc.NUTS.Vulkan.Dispatch, :chain, 8},
    {Exmc.NUTS.Vulkan.Dispatch, :chain_batch, 5}
  ]

  @impl true
  def init(_opts) do
    for {module, _, _} = function <- @chains do
      {:module, _} = Code.ensure_loaded(module)
      :erlang.trace_pattern(function, true, [:local, :call_count])
    end

    {:ok, %{passed: 0, failed: 0, excluded: 0}}
  end

  @impl true
  def handle_cast({:test_finished, test}, counts), do: {:noreply, Map.update!(counts, outcome(test.state), &(&1 + 1))}

  def handle_cast({:suite_finished, times}, counts) do
    chains =
      for function <- @chains, {:call_count, n} when is_integer(n) <- [:erlang.trace_info(function, :call_count)], do: n

    seconds = Float.round(times.run / 1_000_000, 1)

    row = [
      counts.passed,
      counts.failed,
      counts.excluded,
      seconds,
      Enum.sum(chains),
      Nx.Vulkan.NativeV.device_stats().dispatches
    ]

    File.write!(System.fetch_env!("EXMC_SUITE_TABLE"), [Enum.join(row, " "), "\n"], [:append])
    {:noreply, counts}
  end

  def handle_cast(_event, counts), do: {:noreply, counts}

  defp outcome(nil), do: :passed
  defp outcome({state, _}) when state in [:excluded, :skipped], do: :excluded
  defp outcome({state, _}) when state in [:failed, :invalid], do: :failed
end
