defmodule Nx.Vulkan.TwinDevices do
  @moduledoc """
  Devices for tests of several: a device may stand in several places, so that one is enough.
  """

  @doc """
  The device in use, and all others of its name.
  """
  def all do
    {:ok, %{index: default, name: name}} = Nx.Vulkan.device_info()
    twins = for %{usable: true, name: ^name, index: index} <- Nx.Vulkan.devices(), do: index
    [default | twins -- [default]]
  end

  @doc """
  So many places, on these devices in turns.
  """
  def take(devices, count), do: devices |> Stream.cycle() |> Enum.take(count)
end
