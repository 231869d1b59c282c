defmodule Nx.Vulkan.Device.EndlessLoopTest do
  # It counts the dispatches of the whole VM.
  use ExUnit.Case, async: false

  import Nx.Defn

  alias Nx.Vulkan.{Chain, NativeV, NUTS, VulkanoBackend}

  @moduletag :device
  @moduletag timeout: 120_000

  defn endless(x) do
    while x, Nx.sum(x) > -1 do
      Nx.abs(x) + Nx.sum(Nx.sort(x)) * 0
    end
  end

  # Sorting keeps it a loop that the host looks at.
  defn(density(x), do: -0.5 * Nx.sum(x * x) + Nx.sum(stop_grad(endless(x))))

  test "a loop that does not end is left with the process that called it" do
    x = Nx.iota({5000}, type: :f32, backend: VulkanoBackend)
    left(fn -> Nx.Defn.jit_apply(&endless/1, [x], compiler: Nx.Vulkan) end)
    assert Nx.to_number(Nx.sum(x)) == 12_497_500
  end

  test "so are those of chains and of samplers" do
    chain = Chain.compile(&density/1, Nx.template({3}, :f32), form: :device)
    q = Nx.tensor([0.3, 0.1, 0.2])
    left(fn -> Chain.run(chain, q, q, steps: 2, step_size: 0.1) end)
    left(fn -> NUTS.sample(&density/1, Nx.template({3}, :f32), form: :device, num_warmup: 2, num_samples: 2) end)
  end

  defp left(endless) do
    dispatches = fn -> NativeV.device_stats().dispatches end
    before = dispatches.()
    {caller, monitor} = spawn_monitor(endless)
    assert Enum.any?(1..1000, fn _ -> dispatches.() > before + 100 or Process.sleep(20) == :later end)
    Process.exit(caller, :kill)
    assert_receive {:DOWN, ^monitor, _, _, :killed}, 10_000

    still? = fn ->
      last = dispatches.()
      Process.sleep(500)
      dispatches.() == last
    end

    assert Enum.any?(1..40, fn _ -> still?.() end), "the loop of a process that was killed goes on"
  end
end
