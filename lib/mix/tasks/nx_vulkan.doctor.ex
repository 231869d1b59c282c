defmodule Mix.Tasks.NxVulkan.Doctor do
  @shortdoc "Says which Vulkan devices there are, and what the chosen one can do"

  @moduledoc """
  Says which Vulkan devices there are, which of them is used, and which types it computes with itself.

      mix nx_vulkan.doctor

  Types that a device lacks are lowered: their kernels compute in words of 32 bits, with the same bits, and slower. The
  task ends with an error where no device can be used.
  """

  use Mix.Task

  alias Nx.Vulkan.Ops

  @types Enum.map(Ops.Table.types(), &Ops.type_name/1)

  @impl true
  def run([]) do
    Mix.Task.run("app.start")

    case Nx.Vulkan.devices() do
      [] -> say(["No Vulkan device was found."])
      devices -> say(["Devices:" | Enum.flat_map(devices, &listed/1)])
    end

    case Nx.Vulkan.device_info() do
      {:ok, device} -> say(["In use: #{device.index}: #{device.name}" | types(device)])
      {:error, error} -> raise error
    end
  end

  def run(_args), do: Mix.raise("mix nx_vulkan.doctor takes no arguments")

  defp listed(device) do
    memory = :erlang.float_to_binary(device.memory_bytes / 2 ** 30, decimals: 1)
    name = "  #{device.index}: #{device.name} (#{device.kind}, uuid:#{device.uuid})"
    about = "     #{device.driver}, Vulkan #{device.api_version}, #{memory} GiB"
    if device.usable, do: [name, about], else: [name, about, "     can't be used: #{device.reason}"]
  end

  defp types(%{lowered: lowered}) do
    native = Enum.reject(@types, &(&1 in lowered))
    ["  native types: #{Enum.join(native, ", ")}", "  lowered types: #{none(lowered)}"]
  end

  defp none([]), do: "none"
  defp none(types), do: Enum.join(types, ", ")

  defp say(lines), do: Enum.each(lines, &Mix.shell().info/1)
end
