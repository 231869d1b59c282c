# Measures Nx.Vulkan.NUTS on posteriors whose data don't fit one workgroup, and prints a Markdown table.
#
#     MIX_ENV=prod mix run bench/large_posteriors.exs [TYPE] [CHAINS,..] [DRAWS] [MODEL,..]
#
# TYPE is f32 (the default) or f64, CHAINS are numbers of chains (4,32), DRAWS those of each chain after a warm-up of as
# many (300), MODELs are logistic, hierarchical, volatility, gaussian_process. bench/peers/large_posteriors.py measures
# the same with NumPyro.

Code.require_file("../examples/posteriors/large.exs", __DIR__)

defmodule LargePosteriorsBench do
  @moduledoc """
  The warm-up and compilation are not timed with the draws. Effective draws are the fewest of all quantities' bulk
  effective sample sizes; the last column has their means, each with its standard deviation.
  """

  alias Nx.Vulkan.{Chain, NativeV, NUTS, VulkanoBackend}
  alias Nx.Vulkan.NUTS.{Diagnostics, Run}

  def main(type, counts, draws, names) do
    Nx.default_backend(VulkanoBackend)
    {:ok, info} = NativeV.device_describe()

    IO.puts("""
    #{info.name}, #{info.driver}; #{type}

    | posterior | chains | leapfrogs per draw | ms per draw of all chains | leapfrogs per second | \
    us per leapfrog of the longest | effective draws per second | s of warm-up, first call | means (deviations) |
    |---|---:|---:|---:|---:|---:|---:|---:|---|\
    """)

    for name <- names, count <- counts, do: row(name, type, count, draws)
  end

  defp row(name, type, count, draws) do
    model = Posteriors.Large.model(name, type)
    opts = [data: model.data, num_chains: count, num_samples: draws, num_warmup: draws, key: 1]

    {warm_us, {template, run}} =
      :timer.tc(fn ->
        {template, run} = NUTS.prepare(model.log_density, model.template, opts)
        {template, run |> Run.start() |> Run.warm_up()}
      end)

    {us, run} = :timer.tc(fn -> Run.draw(run) end)
    leapfrogs = Nx.concatenate(run.statistics, axis: 1)[[.., .., 5]]
    per_draw = leapfrogs |> Nx.mean() |> Nx.to_number()
    longest = leapfrogs |> Nx.sum(axes: [1]) |> Nx.reduce_max() |> Nx.to_number()
    quantities = run.draws |> Nx.concatenate(axis: 1) |> Chain.unflatten_vector(template) |> model.quantities.()
    effective = quantities |> Map.values() |> Enum.map(&Diagnostics.ess_bulk/1) |> Enum.min()
    seconds = us / 1.0e6

    means =
      for {name, x} <- Enum.sort(quantities) do
        [mean, deviation] = for f <- [&Nx.mean/1, &Nx.standard_deviation/1], do: x |> f.() |> Nx.to_number()
        "#{name} #{digits(mean, 4)} (#{digits(deviation, 4)})"
      end

    cells = [
      digits(per_draw, 1),
      digits(us / 1000 / draws, 3),
      round(per_draw * count * draws / seconds),
      digits(us / longest, 1),
      digits(effective / seconds, 1),
      digits(warm_us / 1.0e6, 1),
      Enum.join(means, ", ")
    ]

    IO.puts("| #{name} | #{count} | " <> Enum.map_join(cells, " | ", &to_string/1) <> " |")
  end

  defp digits(x, decimals), do: :erlang.float_to_binary(x / 1, decimals: decimals)
end

arguments = System.argv()

{type, rest} =
  if hd(arguments ++ ["f32"]) in ["f32", "f64"], do: List.pop_at(arguments, 0, "f32"), else: {"f32", arguments}

{counts, rest} = List.pop_at(rest, 0, "4,32")
{draws, rest} = List.pop_at(rest, 0, "300")
{names, []} = List.pop_at(rest, 0, Enum.join(Posteriors.Large.names(), ","))
counts = counts |> String.split(",") |> Enum.map(&String.to_integer/1)
names = names |> String.split(",") |> Enum.map(&String.to_existing_atom/1)
LargePosteriorsBench.main(String.to_atom(type), counts, String.to_integer(draws), names)
