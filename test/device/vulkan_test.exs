defmodule Nx.VulkanTest do
  use ExUnit.Case, async: true

  @moduletag :device

  test "init/0 opens the device, again and again" do
    assert Nx.Vulkan.init() == :ok
    assert Nx.Vulkan.init() == :ok
  end

  test "devices/0 has the device in use, with all its keys" do
    devices = Nx.Vulkan.devices()
    assert Enum.map(devices, & &1.index) == Enum.to_list(0..(length(devices) - 1))
    assert %{usable: true, reason: nil} = device = Enum.find(devices, &(&1.name == Nx.Vulkan.device_name()))
    assert device.kind in [:discrete, :integrated, :virtual, :cpu, :other]
    assert device.uuid =~ ~r/^[0-9a-f]{32}$/
    assert device.api_version =~ ~r/^1\.\d+\.\d+$/
    assert device.memory_bytes > 0
    assert device.has_f64 == Nx.Vulkan.has_f64?()
  end
end
