defmodule Nx.Vulkan.Device.InspectTest do
  # The switch is one for the whole VM.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.{NativeV, VulkanoBackend}

  @moduletag :device

  setup do
    off = Application.fetch_env!(:nx_vulkan, :add_backend_on_inspect)
    Application.delete_env(:nx_vulkan, :add_backend_on_inspect)
    on_exit(fn -> Application.put_env(:nx_vulkan, :add_backend_on_inspect, off) end)
  end

  defp place(value), do: Nx.tensor(value, backend: VulkanoBackend)

  test "shows the backend, the device and the values" do
    {:ok, %{name: device}} = NativeV.device_info()
    text = inspect(place([[1, 2], [3, 4]]))
    assert text =~ "Nx.Vulkan.VulkanoBackend<#{device}, 0."
    assert text =~ "[1, 2],\n    [3, 4]"
    assert inspect(Nx.iota({1000}, backend: VulkanoBackend)) =~ "..."
    assert inspect(place([0.5, -0.0, :nan]), limit: :infinity) =~ "[0.5, -0.0, NaN]"
  end

  test "shows the values alone where the switch says so" do
    Application.put_env(:nx_vulkan, :add_backend_on_inspect, false)
    assert inspect(place([1, 2])) == inspect(Nx.tensor([1, 2], backend: Nx.BinaryBackend))
  end
end
