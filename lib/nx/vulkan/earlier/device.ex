defmodule Nx.Vulkan.Device do
  @moduledoc """
  What other versions of this library say of a device, and what exmc 0.4.0 writes into every result (`stats.provenance`).

  New programs call `Nx.Vulkan.device_info/1`, which tells more.
  """

  alias Nx.Vulkan.NativeV

  @typedoc "A device: what `Nx.Vulkan.device_info/1` tells, and in words of other versions `:kind` and `:supports_f64`."
  @type info :: %{
          required(:name) => String.t(),
          required(:kind) => String.t(),
          required(:uuid) => String.t(),
          required(:pci) => String.t() | nil,
          required(:driver) => String.t(),
          required(:supports_f64) => boolean,
          required(:selected_by) => String.t(),
          optional(atom) => term
        }

  @doc """
  The device in use, or nil where there is none. Opens it if it is not open.

      %{name: name, uuid: uuid, pci: pci, driver: driver, selected_by: by} = Nx.Vulkan.Device.info()
  """
  @spec info() :: info | nil
  def info do
    case NativeV.device_info() do
      {:ok, device, _selected_by} -> device
      {:error, :vulkan_init_failed, _message} -> nil
    end
  end
end
