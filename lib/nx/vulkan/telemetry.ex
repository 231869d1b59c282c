defmodule Nx.Vulkan.Telemetry do
  @moduledoc """
  The `:telemetry` events of this library.

  | event | measurements | metadata |
  |---|---|---|
  | `[:nx_vulkan, :device, :open]` | `:duration` (native time units) | `:selector` (string or nil), `:result` (`:ok` or the `Nx.Vulkan.Error`) |
  | `[:nx_vulkan, :compiler, :compile, :start]`, `.. :stop]`, `.. :exception]` | as `:telemetry.span/3` has them | `:name` of the function |
  | `[:nx_vulkan, :compiler, :run]` | `:duration` (native time units) until the call was handed to the device | `:name` of the function |
  | `[:nx_vulkan, :compiler, :run, :exception]` | `:duration` (native time units) until the call raised | `:name` of the function, `:kind` (`:error`, `:exit`, `:throw`), `:reason`, `:stacktrace` |
  | `[:nx_vulkan, :memory, :pressure]` | `:in_use_bytes`, `:spilled_bytes`, `:reserved_bytes`, `:budget_bytes` | `:device` (its index) |
  | `[:nx_vulkan, :memory, :reclaim]` | as above | `:device`, and the `:step` that is taken next |
  | `[:nx_vulkan, :memory, :trim]` | `:freed_bytes` | `:device` |
  | `[:nx_vulkan, :memory, :out_of_memory]` | `:size_bytes` that was asked for, where it is known | `:op`, `:details` of the `Nx.Vulkan.Error` that is raised |

  A run emits one of the two of `:run`. An error of the device raises when a result is read, and is in neither.

  ## Memory

  `:pressure` says that a process is about to collect its garbage, because a large result found no free memory, or more
  than three quarters of the budget are in use. It comes once for each 64th of the budget that is taken then.
  `:spilled_bytes` above zero says that tensors lie in the host's memory. `:reclaim` says that an allocation has failed,
  and what is tried next: `:collect` the garbage of the process (`:collect_at_once` under a limit of its own),
  `:collect_everywhere` that of all processes, `:allow_spill` to the host's memory, `:drop_compiled` functions.
  `:out_of_memory` says that all of it was not enough.
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

  @doc """
  Emits `[:nx_vulkan, :memory, event]`.
  """
  @spec memory(:trim | :out_of_memory, map, term) :: :ok
  def memory(:trim, measurements, device), do: emit_memory(:trim, measurements, %{device: device})

  def memory(:out_of_memory, details, op),
    do: emit_memory(:out_of_memory, Map.take(details, [:size_bytes]), %{op: op, details: details})

  @doc """
  Emits `[:nx_vulkan, :memory, event]` with what is in use now.
  """
  @spec memory_in_use(:pressure | :reclaim, non_neg_integer, map) :: :ok
  def memory_in_use(event, device, metadata \\ %{}) do
    {:ok, usage, _owners} = Nx.Vulkan.NativeV.memory_usage(device)
    measurements = Map.take(usage, [:in_use_bytes, :spilled_bytes, :reserved_bytes, :budget_bytes])
    emit_memory(event, measurements, Map.put(metadata, :device, device))
  end

  defp emit_memory(event, measurements, metadata),
    do: :telemetry.execute([:nx_vulkan, :memory, event], measurements, metadata)

  defp duration(start), do: %{duration: System.monotonic_time() - start}
end
