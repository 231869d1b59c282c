defmodule Nx.Vulkan.ChainSubmissionsTest do
  # Counts what all processes submit, so nothing else may run.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.{Chain, NativeV, NUTS, VulkanoBackend}

  @moduletag :device

  # Kernels of a submission of the form `:device` on a GPU, which begins before all is recorded: of the first, and of
  # later ones about.
  @first 2_048
  @next 6_000

  defp cpu?, do: match?({:ok, %{kind: :cpu}}, NativeV.device_describe())

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
      # On a CPU that has other work a hundred of them may take longer than a submission should, which parts them.
      steps = if cpu?(), do: 10, else: 100

      run = fn ->
        before = NativeV.device_stats()
        trace = Chain.run(chain, q, q, steps: steps, step_size: 0.01)
        energy = Nx.to_binary(trace.energy)
        now = NativeV.device_stats()
        {energy, now.submissions - before.submissions, now.dispatches - before.dispatches}
      end

      # The first run compiles what copies. Where the machine has other work, the device may be given what is there
      # before all is.
      run.()
      {trace, submissions, dispatches} = for(_ <- 1..5, do: run.()) |> Enum.min_by(&elem(&1, 1))

      assert byte_size(trace) == 16 * steps * 8

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

  test "who goes on with a run that has ended gets its results again" do
    for form <- [:device, :workgroup] do
      chain = Chain.compile(logistic(), Nx.template({5}, :f64), form: form)
      full = &Nx.broadcast(Nx.tensor(&1, type: :f64, backend: VulkanoBackend), &2)
      inputs = [full.(0.1, {8, 5}), full.(0.2, {8, 5}), full.(1.0, {5}), full.(0.01, {8})]
      refs = for x <- inputs, do: VulkanoBackend.reference(x)
      # So many that they are several parts.
      steps = if(cpu?(), do: %{device: 4_000, workgroup: 16_384}, else: %{device: 4_000, workgroup: 65_536})[form]
      {:more, run} = NativeV.chain_run_dirty(chain.ref, refs, chain.captured, steps)
      energy = fn {:ok, refs} -> NativeV.tensor_to_binary(List.last(refs), nil) end
      assert {:ok, wanted} = energy.(Chain.whole({:more, run}))
      before = NativeV.device_stats()
      for _ <- 1..4, do: assert(energy.(NativeV.chain_continue(run)) == {:ok, wanted})
      assert NativeV.device_stats().dispatches == before.dispatches
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

  test "neither one deep tree nor one step of many chains keeps others waiting, and they end with who asked for them" do
    normal = fn x -> Nx.multiply(-0.5, Nx.sum(Nx.multiply(x, x))) end
    chain = Chain.compile(logistic(), Nx.template({5}, :f64), form: :workgroup)
    many = Nx.broadcast(Nx.tensor(0.1, type: :f64, backend: VulkanoBackend), {20_000, 5})
    deep = [num_chains: 1, num_warmup: 0, num_samples: 1, step_size: 1.0e-12, max_tree_depth: 20, form: :workgroup]
    wide = [num_chains: 20_000, num_warmup: 0, num_samples: 1, step_size: 1.0e-12, max_tree_depth: 10, form: :workgroup]

    for {what, run} <- [
          {"a tree", fn -> NUTS.sample(normal, Nx.template({20}, :f64), deep) end},
          {"trees of many chains", fn -> NUTS.sample(normal, Nx.template({20}, :f32), wide) end},
          {"a step of many chains", fn -> Chain.run(chain, many, many, steps: 16, step_size: 0.01) end}
        ] do
      other = fn -> Nx.to_number(Nx.add(Nx.tensor(1.0, backend: VulkanoBackend), 1)) end
      assert other.() == 2.0
      dispatches = fn -> NativeV.device_stats().dispatches end
      before = dispatches.()
      {caller, monitor} = spawn_monitor(run)
      # A GPU may do all of it, and in fewer dispatches.
      under_way? = fn -> dispatches.() > before + 20 or not (cpu?() or Process.alive?(caller)) end
      assert Enum.any?(1..6000, fn _ -> under_way?.() or Process.sleep(10) == :later end)
      assert other.() == 2.0
      assert Process.alive?(caller) or not cpu?(), "#{what} had no turn for others"
      Process.exit(caller, :kill)
      assert_receive {:DOWN, ^monitor, :process, ^caller, reason} when reason in [:normal, :killed], 60_000
      settled(dispatches)
      assert other.() == 2.0
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
