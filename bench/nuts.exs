# Measures Nx.Vulkan.NUTS on two posteriors: a leapfrog step inside a chain, draws, and effective draws. Prints a
# Markdown table.
#
#     MIX_ENV=prod mix run bench/nuts.exs [TYPE] [CHAINS,..] [DRAWS]
#
# TYPE is f64 (the default) or f32, CHAINS are numbers of chains (1,16,1024), DRAWS those of each chain after a warm-up
# of as many (1000; a tenth of that where there are more than 100 chains, for which the warm-up is 300).
# bench/peers/nuts.py measures the same with NumPyro.

Code.require_file("../examples/posteriors/models.exs", __DIR__)

defmodule NUTSBench do
  @moduledoc """
  The warm-up and compilation are not timed. Effective draws are the fewest of all quantities' bulk effective sample
  sizes.
  """

  alias Nx.Vulkan.{Chain, NativeV, NUTS, VulkanoBackend}
  alias Nx.Vulkan.NUTS.{Diagnostics, Run}

  # Steps of the timed chain, calls, of which the median counts, and milliseconds of calls before them: a GPU that had
  # nothing to do, while effective draws were counted, takes a while until its clock is up.
  @steps 1000
  @calls 7
  @warm_ms 1000

  def main(type, counts, draws) do
    Nx.default_backend(VulkanoBackend)
    {:ok, info} = NativeV.device_describe()

    IO.puts("""
    #{info.name}, #{info.driver}; #{type}

    | posterior | chains | us per leapfrog, one chain | leapfrogs per draw | ms per draw of all chains | \
    draws per second | effective draws per second | dispatches per 100 draws |
    |---|---:|---:|---:|---:|---:|---:|---:|\
    """)

    for name <- [:eight_schools, :regime], count <- counts, do: row(name, type, count, draws)
  end

  defp row(name, type, count, draws) do
    model = Posteriors.model(name, type)
    {draws, warmup} = if count > 100, do: {max(div(draws, 10), 10), 300}, else: {draws, draws}
    step_us = if count == 1, do: step(model), else: nil
    opts = [num_chains: count, num_samples: draws, num_warmup: warmup, key: 1]
    {template, run} = NUTS.prepare(model.log_density, model.template, Keyword.merge(model.options, opts))
    run = run |> Run.start() |> Run.warm_up()
    before = run.dispatches
    {us, run} = :timer.tc(fn -> Run.draw(run) end)
    statistics = Nx.concatenate(run.statistics, axis: 1)
    leapfrogs = statistics[[.., .., 5]] |> Nx.mean() |> Nx.to_number()
    quantities = run.draws |> Nx.concatenate(axis: 1) |> Chain.unflatten_vector(template) |> model.quantities.()
    effective = quantities |> Map.values() |> Enum.map(&Diagnostics.ess_bulk/1) |> Enum.min()
    seconds = us / 1.0e6

    cells = [
      step_us && digits(step_us),
      digits(leapfrogs),
      digits(us / 1000 / draws),
      round(count * draws / seconds),
      round(effective / seconds),
      digits(100 * (run.dispatches - before) / draws)
    ]

    IO.puts("| #{name} | #{count} | " <> Enum.map_join(cells, " | ", &to_string/1) <> " |")
  end

  defp step(model) do
    chain = Chain.compile(model.log_density, model.template)
    q = model.options[:init] || Nx.broadcast(Nx.tensor(0.1, type: chain.type), {chain.parameters})
    p = Nx.broadcast(Nx.tensor(0.1, type: chain.type), {chain.parameters})

    run = fn ->
      trace = Chain.run(chain, q, p, steps: @steps, step_size: 1.0e-4)
      Nx.to_binary(trace.energy, limit: 1)
    end

    warm_until(run, System.monotonic_time(:millisecond) + @warm_ms)
    times = for _ <- 1..@calls, do: run |> :timer.tc() |> elem(0)
    Enum.at(Enum.sort(times), div(@calls, 2)) / @steps
  end

  defp warm_until(run, time) do
    run.()
    if System.monotonic_time(:millisecond) < time, do: warm_until(run, time)
  end

  defp digits(x) when x >= 100, do: "#{round(x)}"
  defp digits(x), do: :erlang.float_to_binary(x / 1, decimals: 2)
end

{type, rest} =
  case System.argv() do
    [type | rest] when type in ["f32", "f64"] -> {String.to_atom(type), rest}
    rest -> {:f64, rest}
  end

{counts, rest} =
  case rest do
    [counts | rest] -> {counts |> String.split(",") |> Enum.map(&String.to_integer/1), rest}
    [] -> {[1, 16, 1024], []}
  end

NUTSBench.main(type, counts, with([draws] <- rest, do: String.to_integer(draws), else: (_ -> 1000)))
