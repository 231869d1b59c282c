defmodule Nx.Vulkan.Telemetry do
  @moduledoc """
  The `:telemetry` events of this library.

  | event | measurements | metadata |
  |---|---|---|
  | `[:nx_vulkan, :device, :open]` | `:duration` (native time units) | `:selector` (string or nil), `:result` (`:ok` or the `Nx.Vulkan.Error`) |
  | `[:nx_vulkan, :compiler, :compile, :start]`, `.. :stop]`, `.. :exception]` | as `:telemetry.span/3` has them | `:name` of the function |
  | `[:nx_vulkan, :compiler, :run]` | `:duration` (native time units) until the call was handed to the device | `:name` of the function |
  | `[:nx_vulkan, :compiler, :run, :exception]` | `:duration` (native time units) until the call raised | `:name` of the function, `:kind` (`:error`, `:exit`, `:throw`), `:reason`, `:stacktrace` |

  A run emits one of the last two. An error of the device raises when a result is read, and is in neither.
  """

  @doc """
  Runs `open`, a function that opens a device and returns `{:error, error}` or what it opened, and emits
  `[:nx_vulkan, :device, :open]`.
  """
  @spec device_open(String.t() | nil, (-> result)) :: result when result: term
  def device_open(selector, open) do
    start = System.monotonic_time()
    opened = open.()
    result = if match?({:error, _}, opened), do: elem(opened, 1), else: :ok
    :telemetry.execute([:nx_vulkan, :device, :open], duration(start), %{selector: selector, result: result})
    opened
  end

  @doc """
  Runs `compile` as the span `[:nx_vulkan, :compiler, :compile]`.
  """
  @spec compile(String.t(), (-> result)) :: result when result: term
  def compile(name, compile) do
    :telemetry.span([:nx_vulkan, :compiler, :compile], %{name: name}, fn -> {compile.(), %{name: name}} end)
  end

  @doc """
  Calls `run` and emits `[:nx_vulkan, :compiler, :run]`, or `[:nx_vulkan, :compiler, :run, :exception]` where it raises,
  exits or throws.
  """
  @spec run(String.t(), (-> result)) :: result when result: term
  def run(name, run) do
    start = System.monotonic_time()

    try do
      run.()
    catch
      kind, reason ->
        metadata = %{name: name, kind: kind, reason: reason, stacktrace: __STACKTRACE__}
        :telemetry.execute([:nx_vulkan, :compiler, :run, :exception], duration(start), metadata)
        :erlang.raise(kind, reason, __STACKTRACE__)
    else
      result ->
        :telemetry.execute([:nx_vulkan, :compiler, :run], duration(start), %{name: name})
        result
    end
  end

  defp duration(start), do: %{duration: System.monotonic_time() - start}
end
