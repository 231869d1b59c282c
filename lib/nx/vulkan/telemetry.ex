defmodule Nx.Vulkan.Telemetry do
  @moduledoc """
  The `:telemetry` events of this library.

  | event | measurements | metadata |
  |---|---|---|
  | `[:nx_vulkan, :device, :open]` | `:duration` (native time units) | `:selector` (string or nil), `:result` (`:ok` or the `Nx.Vulkan.Error`) |
  | `[:nx_vulkan, :compiler, :compile, :start]`, `.. :stop]`, `.. :exception]` | as `:telemetry.span/3` has them | `:name` of the function |
  | `[:nx_vulkan, :compiler, :run]` | `:duration` (native time units) until the call was handed to the device | `:name` of the function |
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

  @doc """
  Runs `compile` as the span `[:nx_vulkan, :compiler, :compile]`.
  """
  @spec compile(String.t(), (-> result)) :: result when result: term
  def compile(name, compile) do
    :telemetry.span([:nx_vulkan, :compiler, :compile], %{name: name}, fn -> {compile.(), %{name: name}} end)
  end

  @doc """
  Emits `[:nx_vulkan, :compiler, :run]` for a run that began at `start`, in native time units of `System.monotonic_time/0`.
  """
  @spec run(String.t(), integer) :: :ok
  def run(name, start) do
    :telemetry.execute([:nx_vulkan, :compiler, :run], %{duration: System.monotonic_time() - start}, %{name: name})
  end
end
