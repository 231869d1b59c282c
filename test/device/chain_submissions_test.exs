defmodule Nx.Vulkan.ChainSubmissionsTest do
  # Counts what all processes submit, so nothing else may run.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.{Chain, NativeV}

  @moduletag :device

  # Kernels of a submission of the form `:device` on a GPU, which begins before all is recorded: of the first, and of later ones about.
  @first 2_048
  @next 6_000

  defp cpu?, do: match?({:ok, %{kind: :cpu}}, NativeV.device_info())

  defp logistic do
    x = Nx.sin(Nx.iota({100, 5}, type: :f64, backend: Nx.BinaryBackend))
    y = Nx.as_type(Nx.greater(Nx.sum(x, axes: [1]), 0), :f64)

    fn beta ->
      eta = Nx.dot(x, beta)
      prior = Nx.multiply(Nx.tensor(-0.5, type: :f64), Nx.sum(Nx.multiply(beta, beta)))
      Nx.add(Nx.sum(Nx.subtract(Nx.multiply(y, eta), Nx.log1p(Nx.exp(eta)))), prior)
    end
  end

  test "all steps of all chains are one submission, in both forms" do
    for form <- [:workgroup, :device] do
      chain = Chain.compile(logistic(), Nx.template({5}, :f64), form: form)
      q = Nx.divide(Nx.iota({16, 5}, type: :f64, backend: Nx.BinaryBackend), Nx.tensor(100, type: :f64))

      run = fn ->
        before = NativeV.device_stats()
        trace = Chain.run(chain, q, q, steps: 100, step_size: 0.01)
        energy = Nx.to_binary(trace.energy)
        now = NativeV.device_stats()
        {energy, now.submissions - before.submissions, now.dispatches - before.dispatches}
      end

      # The first run compiles what copies. Where the machine has other work, the device may be given what is there before all is.
      run.()
      {trace, submissions, dispatches} = for(_ <- 1..5, do: run.()) |> Enum.min_by(&elem(&1, 1))

      assert byte_size(trace) == 16 * 100 * 8

      # Reading may take one more on a GPU.
      most =
        cond do
          cpu?() -> 1
          form == :workgroup -> 2
          true -> 2 + ceil(max(dispatches - @first, 0) / @next)
        end

      assert submissions in 1..most, "the chains of the form #{form} are #{submissions} of #{dispatches} dispatches"
    end
  end

  test "a long run ends with who asked for it, and lets others have their turn" do
    for {form, steps} <- [device: 20_000, workgroup: 65_536] do
      chain = Chain.compile(logistic(), Nx.template({5}, :f64), form: form)
      q = Nx.divide(Nx.iota({8, 5}, type: :f64, backend: Nx.BinaryBackend), Nx.tensor(100, type: :f64))
      run = fn steps -> Chain.run(chain, q, q, steps: steps, step_size: 0.01) end
      wanted = Nx.to_binary(run.(50).energy)
      dispatches = fn -> NativeV.device_stats().dispatches end
      before = dispatches.()
      caller = spawn(fn -> run.(steps) end)
      assert Enum.any?(1..1000, fn _ -> dispatches.() > before or Process.sleep(5) == :later end)
      # Behind what is recorded, but not behind what is not.
      assert Nx.to_binary(run.(50).energy) == wanted
      # A GPU may have done all of it.
      assert Process.alive?(caller) or not cpu?(), "the form #{form} had no turn for others"
      Process.exit(caller, :kill)
      # A part that had begun is recorded to its end.
      assert Nx.to_binary(run.(50).energy) == wanted
      last = settled(dispatches)
      if cpu?() and form == :device, do: assert(last - before < 8 * steps)
      assert Nx.to_binary(run.(50).energy) == wanted
    end
  end

  # The number that no longer changes for a while; a run that goes on changes it for minutes.
  defp settled(number) do
    Enum.reduce_while(1..20, number.(), fn _, last ->
      Process.sleep(500)
      now = number.()
      if now == last, do: {:halt, now}, else: {:cont, now}
    end)
    |> tap(fn last -> assert last == number.(), "work of a caller that was killed goes on" end)
  end
end
