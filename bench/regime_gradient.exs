# Measures one gradient of the three-regime mixture of returns (8 parameters, 200 returns, f64) op by op: value_and_grad
# through Nx.Defn.Evaluator on Nx.BinaryBackend and on Nx.Vulkan.VulkanoBackend, with immediate and with deferred ops,
# traced in each call and once; and one leapfrog step within a chain of 32, which exmc's samplers take where a model has
# a chain shader.
#
#     MIX_ENV=prod mix run bench/regime_gradient.exs [CALLS]

Code.require_file("workloads.exs", __DIR__)

defmodule RegimeGradient do
  @moduledoc false

  alias Nx.Vulkan.{NativeV, VulkanoBackend}

  @priors [0.001, 0.01, 0.02, 0.001, 0.01, 0.02, 0.05, 0.5, 0.0, 1.0, 0.0, 1.0]

  def main(calls) do
    {:ok, info} = NativeV.device_describe()
    IO.puts("#{info.name}, #{info.driver}\n")

    modes =
      [{"Nx.BinaryBackend", Nx.BinaryBackend, :immediate}] ++
        for m <- [:immediate, :deferred], do: {"#{m} ops", VulkanoBackend, m}

    for compile <- [&traced/2, &compiled/2] do
      runs =
        for {name, backend, mode} <- modes do
          Nx.default_backend(backend)
          {q, r} = {Workloads.regime_point(:f64), Workloads.returns(200, :f64)}
          run = compile.(q, r)

          read = fn ->
            Nx.default_backend(backend)

            Nx.Vulkan.eager(mode, fn ->
              {value, grad} = run.(q, r)
              {Nx.to_number(value), Nx.to_flat_list(grad)}
            end)
          end

          # Deferred ops are compiled at the 17th time.
          answers = for _ <- 1..20, do: read.()
          before = NativeV.device_stats().dispatches
          [answer] = Enum.uniq([read.() | answers])
          {name, answer, NativeV.device_stats().dispatches - before, read}
        end

      times = alternating(Enum.map(runs, &elem(&1, 3)), calls)

      for {{name, _, dispatches, _}, {least, median}} <- Enum.zip(runs, times) do
        IO.puts("#{name}: #{median} ms per gradient, #{least} at best, #{dispatches} dispatches")
      end

      [{value, grad}, {value2, grad2}, deferred] = Enum.map(runs, &elem(&1, 1))
      {^value2, ^grad2} = deferred
      worst = Enum.zip_with([value | grad], [value2 | grad2], &(abs(&1 - &2) / (1 + abs(&1)))) |> Enum.max()
      IO.puts("largest relative difference of the backends: #{worst}\n")
    end

    q = Nx.to_binary(Workloads.regime_point(:f64))
    push = <<32::32-little, 200::32-little, 8::32-little, 1::32-little>> <> pack([1.0e-4 | @priors])
    spv = Application.app_dir(:nx_vulkan, "priv/shaders/examples/regime_f64.spv")
    extras = Nx.to_binary(Workloads.returns(200, :f64)) <> pack(List.duplicate(1.0, 8))

    chain = fn ->
      {:ok, _} = NativeV.leapfrog_chain_synth_f64(q, pack(List.duplicate(0.1, 8)), extras, push, 32, spv)
    end

    chain.()
    per_chain = ms(chain, calls)
    IO.puts("chain of 32 steps: #{per_chain} ms, #{Float.round(per_chain / 32, 4)} ms per step")
  end

  # Traced anew in each call, and once.
  defp traced(_q, _r), do: Nx.Defn.jit(&Workloads.regime/2, compiler: Nx.Defn.Evaluator)

  defp compiled(q, r) do
    Nx.Defn.compile(&Workloads.regime/2, [Nx.to_template(q), Nx.to_template(r)], compiler: Nx.Defn.Evaluator)
  end

  # The least and the median of so many calls of each, one after the other, so that all meet the same load.
  defp alternating(funs, calls) do
    rounds = for _ <- 1..calls, do: Enum.map(funs, &(&1 |> :timer.tc() |> elem(0)))

    for times <- Enum.zip_with(rounds, &Enum.sort/1) do
      {Float.round(hd(times) / 1000, 2), Float.round(Enum.at(times, div(calls, 2)) / 1000, 2)}
    end
  end

  # The median of so many calls.
  defp ms(fun, calls) do
    times = for _ <- 1..calls, do: fun |> :timer.tc() |> elem(0)
    Float.round(Enum.at(Enum.sort(times), div(calls, 2)) / 1000, 4)
  end

  defp pack(values), do: for(x <- values, into: <<>>, do: <<x::float-64-little>>)
end

calls = with [calls] <- System.argv(), do: String.to_integer(calls), else: (_ -> 20)
RegimeGradient.main(calls)
