defmodule Nx.Vulkan.DeviceMemory do
  @moduledoc """
  What tensors take of the device's memory, for tests that run alone.

  The BEAM runs what ends a resource after the collection that found it unreachable, when its scheduler comes to it: a
  process that has just collected its garbage may see the memory as taken for some time.
  """

  alias Nx.Vulkan.NativeV

  @interval_ms 10
  @equal_readings 20
  @most_readings 1000

  @doc """
  Bytes of device memory that tensors hold, once this process's garbage is returned and the number no longer changes.
  """
  @spec in_use_bytes() :: non_neg_integer
  def in_use_bytes do
    :erlang.garbage_collect()
    settled(NativeV.device_stats().in_use_bytes, 1, 1)
  end

  defp settled(bytes, @equal_readings, _), do: bytes

  defp settled(_bytes, _equal, @most_readings) do
    raise "the memory in use changed for #{div(@most_readings * @interval_ms, 1000)} s: something else runs"
  end

  defp settled(bytes, equal, readings) do
    Process.sleep(@interval_ms)
    now = NativeV.device_stats().in_use_bytes
    settled(now, if(now == bytes, do: equal + 1, else: 1), readings + 1)
  end

  @doc """
  Waits until nothing is dispatched any more: a call of a process that was killed ends first.
  """
  @spec await_idle() :: :ok
  def await_idle, do: await_idle(NativeV.device_stats().dispatches, 60)

  defp await_idle(_dispatches, 0), do: raise("kernels were dispatched for 30 s: something else runs")

  defp await_idle(dispatches, tries) do
    Process.sleep(500)
    now = NativeV.device_stats().dispatches
    if now == dispatches, do: :ok, else: await_idle(now, tries - 1)
  end
end
