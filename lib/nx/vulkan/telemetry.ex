defmodule Nx.Vulkan.Telemetry do
  @moduledoc """
  The `:telemetry` events of this library.

  | event | measurements | metadata |
  |---|---|---|
  | `[:nx_vulkan, :device, :open]` | `:duration` (native time units) | `:selector` (string or nil), `:result` (`:ok` or the `Nx.Vulkan.Error`) |
  """

  @doc """
  Runs `open`, a function that opens a device and returns `:ok` or `{:error, error}`, and emits `[:nx_vulkan, :device, :open]`.
  """
  @spec device_open(String.t() | nil, (-> :ok | {:error, Nx.Vulkan.Error.t()})) :: :ok | {:error, Nx.Vulkan.Error.t()}
  def device_open(selector, open) do
    start = System.monotonic_time()
    result = open.()

    :telemetry.execute(
      [:nx_vulkan, :device, :open],
      %{duration: System.monotonic_time() - start},
      %{selector: selector, result: with({:error, error} <- result, do: error)}
    )

    result
  end
end
