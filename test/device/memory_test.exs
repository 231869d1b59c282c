defmodule Nx.Vulkan.Device.MemoryTest do
  # Alone: it looks at the counters of the one device.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.{NativeV, VulkanoBackend}

  @moduletag :device
  @moduletag timeout: 600_000

  defp in_use do
    :erlang.garbage_collect()
    NativeV.device_stats().in_use_bytes
  end

  test "100,000 dropped tensors leave the pool where it was" do
    t = Nx.iota({1024}, type: :f32, backend: VulkanoBackend)
    one = Nx.tensor(1.0, backend: VulkanoBackend)
    Nx.to_binary(Nx.add(t, one))
    before = in_use()
    reserved = NativeV.device_stats().reserved_bytes

    for _ <- 1..100_000, do: Nx.add(t, one) && nil

    assert Nx.to_binary(Nx.add(t, one), limit: 1) == <<1.0::float-32-native>>
    assert in_use() == before
    # What is in flight at any time bounds what the pool takes from the driver.
    assert NativeV.device_stats().reserved_bytes <= max(2 * reserved, 512 * 1024 * 1024)
  end

  test "tensors of a process return with the process" do
    before = in_use()

    Task.async(fn ->
      tensors = for i <- 1..100, do: Nx.iota({1000}, type: :f64, backend: VulkanoBackend) |> Nx.add(i)
      assert NativeV.device_stats().in_use_bytes >= before + 800_000
      tensors |> Enum.map(&Nx.to_number(&1[10])) |> Enum.sum()
    end)
    |> Task.await()

    # The constants of the ops stay cached.
    assert in_use() - before < 200 * 1024
  end

  test "a view keeps the memory of the tensor that it shows" do
    before = in_use()
    part = Nx.add(Nx.iota({100_000}, type: :f32, backend: VulkanoBackend), 0.0)[[10..12]]
    assert in_use() - before >= 400_000
    assert Nx.to_flat_list(part) == [10.0, 11.0, 12.0]
    Nx.backend_deallocate(part)
    assert in_use() - before < 100_000
  end

  test "deallocating returns the memory at once" do
    before = in_use()
    t = Nx.iota({250_000}, type: :f32, backend: VulkanoBackend) |> Nx.multiply(2)
    assert in_use() - before >= 1_000_000
    Nx.backend_deallocate(t)
    assert NativeV.device_stats().in_use_bytes - before < 1_000_000
  end

  test "a process that drops large tensors faster than it is collected does not run out of memory" do
    %{budget_bytes: budget} = NativeV.device_stats()
    size = 64 * 1024 * 1024
    t = Nx.broadcast(Nx.tensor(1, type: :u8, backend: VulkanoBackend), {size})
    # Each result is a view of one element, so the sums of two views with different strides make it real.
    rounds = min(div(budget, size) * 2, 200)
    ramp = Nx.iota({size}, type: :u8, backend: VulkanoBackend)

    for _ <- 1..rounds, do: Nx.add(ramp, t) && nil

    assert Nx.to_binary(Nx.add(ramp, t), limit: 2) == <<1, 2>>
  end
end
