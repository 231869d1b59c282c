defmodule Nx.Vulkan.Device.SwitchesTest do
  # The switches are those of the whole VM.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.{NativeV, VulkanoBackend}

  @moduletag :device

  setup do
    off = Application.fetch_env!(:nx_vulkan, :add_backend_on_inspect)
    Application.delete_env(:nx_vulkan, :add_backend_on_inspect)
    on_exit(fn -> Application.put_env(:nx_vulkan, :add_backend_on_inspect, off) end)
  end

  defp place(value), do: Nx.tensor(value, backend: VulkanoBackend)

  test "inspect shows the backend, the device and the values" do
    {:ok, %{name: device}} = NativeV.device_describe()
    text = inspect(place([[1, 2], [3, 4]]))
    assert text =~ "Nx.Vulkan.VulkanoBackend<#{device}, 0."
    assert text =~ "[1, 2],\n    [3, 4]"
    assert inspect(Nx.iota({1000}, backend: VulkanoBackend)) =~ "..."
    assert inspect(place([0.5, -0.0, :nan]), limit: :infinity) =~ "[0.5, -0.0, NaN]"
  end

  test "inspect shows the values alone where add_backend_on_inspect is false" do
    Application.put_env(:nx_vulkan, :add_backend_on_inspect, false)
    assert inspect(place([1, 2])) == inspect(Nx.tensor([1, 2], backend: Nx.BinaryBackend))
  end

  test "indices out of bounds are not looked at where check_indices is false" do
    t = Nx.iota({3}, backend: VulkanoBackend)
    indices = Nx.tensor([[-1], [1], [7]], backend: VulkanoBackend)
    Application.put_env(:nx_vulkan, :check_indices, false)
    on_exit(fn -> Application.delete_env(:nx_vulkan, :check_indices) end)
    assert Nx.to_flat_list(Nx.gather(t, indices)) == [0, 1, 2]
    assert Nx.to_flat_list(Nx.indexed_add(t, indices, Nx.tensor([9, 9, 9]))) == [0, 10, 2]
    assert Nx.to_flat_list(Nx.indexed_put(t, indices, Nx.tensor([9, 9, 9]))) == [0, 9, 2]
  end

  test "divisors are not looked at where check_divisors is false" do
    t = Nx.tensor([7, -7], backend: VulkanoBackend)
    Application.put_env(:nx_vulkan, :check_divisors, false)
    on_exit(fn -> Application.delete_env(:nx_vulkan, :check_divisors) end)
    assert Nx.to_flat_list(Nx.remainder(t, Nx.tensor(0, backend: VulkanoBackend))) == [7, -7]
    assert Nx.to_flat_list(Nx.quotient(t, Nx.tensor([0, 2], backend: VulkanoBackend))) == [-1, -3]
  end
end
