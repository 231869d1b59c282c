defmodule Mix.Tasks.NxVulkan.Calibrate do
  @shortdoc "Measures the device, so that kernels are chosen by what it can do"

  @moduledoc """
  Measures the device for a second or two and keeps what was found in the folder of the cache.

      mix nx_vulkan.calibrate

  Which kernels run, and with how many workgroups, depends on a model of the device: on what its driver says, and on
  guesses by its class where nothing was measured. Programs that start after this task use the measured numbers instead.
  Nothing else should use the device meanwhile. The file is that of one device and driver: a new driver wants a new
  measurement, and deleting the file brings the guesses back. Results may differ in their last digits from those
  before, as other kernels add up in another order.
  """

  use Mix.Task

  alias Nx.Vulkan.{Error, NativeV}

  @impl true
  def run([]) do
    Mix.Task.run("app.start")

    with {:ok, %{name: name}} <- NativeV.device_info(), {:ok, found} <- NativeV.device_calibrate() do
      Enum.each(lines(name, found), &Mix.shell().info/1)
    else
      {:error, kind, message} -> raise Error, kind: kind, message: message
    end
  end

  def run(_args), do: Mix.raise("mix nx_vulkan.calibrate takes no arguments")

  defp lines(name, found) do
    numbers = [
      {"copies", "GB/s", found.bytes_per_second / 1.0e9},
      {"fma in f32", "GFLOP/s", found.flops_per_second / 1.0e9},
      {"a dispatch", "us", found.dispatch_ns / 1.0e3},
      {"one that waits", "us", found.wait_ns / 1.0e3},
      {"products of f32", "GFLOP/s", 2 * found.f32_products_per_second / 1.0e9},
      {"products of f64", "GFLOP/s", double(found.f64_products_per_second)},
      {"products of f16 on matrix units", "GFLOP/s", double(found.unit_products_per_second)}
    ]

    measured = for {what, unit, number} when is_number(number) <- numbers, do: line(what, number, unit)
    kept = if found.path, do: "kept in #{found.path}", else: "not kept: the folder of the cache can't be written"
    ["#{name} (#{found.class}, #{found.processors} processors)"] ++ measured ++ [kept]
  end

  defp double(nil), do: nil
  defp double(multiplications), do: 2 * multiplications / 1.0e9

  defp line(what, number, unit) do
    "  #{String.pad_trailing(what, 32)} #{:erlang.float_to_binary(number / 1, decimals: 2)} #{unit}"
  end
end
