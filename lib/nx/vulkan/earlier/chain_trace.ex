defmodule Nx.Vulkan.ChainTrace do
  @moduledoc """
  Chains that a process runs through here, recorded and given again without the device: what a sampler takes besides
  them is the time of a replay.

      {draws, trace} = Nx.Vulkan.ChainTrace.record(sample)
      {^draws, stats} = Nx.Vulkan.ChainTrace.replay(trace, sample)
      stats.elapsed_ms

  `dispatch_f64/7` is `Nx.Vulkan.NativeV.leapfrog_chain_synth_f64/6` anywhere else. Recordings and replays belong to the
  process that calls them: what tasks and other processes of `fun` dispatch runs on the device and is in no trace.
  """

  alias Nx.Vulkan.{Devices, NativeV}

  @enforce_keys [:dispatches]
  defstruct [:dispatches]

  @typedoc "What a process dispatched, in order: steps and sizes in bytes of what went in, and what came out."
  @type t :: %__MODULE__{dispatches: [{call, result}]}
  @typep call :: {k :: integer, q_bytes :: non_neg_integer, extras_bytes :: non_neg_integer, push :: binary}
  @typep result :: {:ok, NativeV.chain()} | NativeV.failure()

  @doc """
  As `Nx.Vulkan.NativeV.leapfrog_chain_synth_f64/6`, on a device that may be named.

  `device` is nil or 0 for the default one, or else a selector as in `Nx.Vulkan`. Where there is no such device, it is
  `{:error, :vulkan_init_failed, message}`.
  """
  @spec dispatch_f64(binary, binary, binary, binary, pos_integer, Path.t(), nil | 0 | String.t()) :: result
  def dispatch_f64(q, p, extras, push, k, spv, device \\ nil) do
    call = {k, byte_size(q), byte_size(extras), push}

    case state() do
      nil ->
        run(q, p, extras, push, k, spv, device)

      {:record, dispatches} ->
        result = run(q, p, extras, push, k, spv, device)
        put({:record, [{call, result} | dispatches]})
        result

      {:replay, dispatches, count, delay_us, overhead} ->
        start = System.monotonic_time()
        {result, rest} = next(dispatches, call, count)
        overhead = overhead + System.monotonic_time() - start
        put({:replay, rest, count + 1, delay_us, overhead})
        spin(System.monotonic_time() + System.convert_time_unit(round(delay_us * 1000), :nanosecond, :native))
        result
    end
  end

  defp run(q, p, extras, push, k, spv, device) when device in [nil, 0] do
    NativeV.leapfrog_chain_synth_f64(q, p, extras, push, k, spv)
  end

  defp run(q, p, extras, push, k, spv, device) when is_binary(device) do
    Devices.within(Devices.index!(device), fn -> run(q, p, extras, push, k, spv, nil) end)
  rescue
    error in Nx.Vulkan.Error -> {:error, :vulkan_init_failed, Exception.message(error)}
  end

  defp run(_q, _p, _extras, _push, _k, _spv, device) do
    raise ArgumentError, "expected the device to be nil, 0 or a selector such as \"uuid:1f2e\", got: #{inspect(device)}"
  end

  defp next([{call, result} | rest], call, _count), do: {result, rest}

  defp next([{recorded, _result} | _rest], call, count) do
    raise ArgumentError,
          "dispatch #{count} of the replay is not the recorded one: expected {k, bytes of q, bytes of extras, push} " <>
            "to be #{inspect(recorded)}, got: #{inspect(call)}; give replay the function that was recorded, " <>
            "with the same random key"
  end

  defp next([], _call, count) do
    raise ArgumentError, "the replay dispatches more chains than were recorded, which are #{count}"
  end

  # The scheduler's clock is too coarse for microseconds.
  defp spin(until), do: if(System.monotonic_time() < until, do: spin(until))

  @doc """
  Runs `fun` and answers `{its result, trace}` with every chain that this process dispatched meanwhile.
  """
  @spec record((-> result)) :: {result, t} when result: term
  def record(fun) when is_function(fun, 0) do
    within({:record, []}, fn ->
      result = fun.()
      {:record, dispatches} = state()
      {result, %__MODULE__{dispatches: Enum.reverse(dispatches)}}
    end)
  end

  @doc """
  Runs `fun` with the results of a trace in place of the device, and answers `{its result, stats}`.

  The statistics are `:dispatches`, `:elapsed_ms`, and `:replay_overhead_ms`, the part of it in which results were
  looked up.

  ## Options

    * `:delay_us` - how long each dispatch takes, in microseconds. Defaults to 0.

  ## Errors

  An `ArgumentError` where `fun` dispatches a chain with other steps, sizes or push data than were recorded at its
  place, or more of them than were recorded.
  """
  @spec replay(t, keyword, (-> result)) ::
          {result, %{dispatches: non_neg_integer, elapsed_ms: float, replay_overhead_ms: float}}
        when result: term
  def replay(%__MODULE__{dispatches: dispatches}, opts \\ [], fun) when is_list(opts) and is_function(fun, 0) do
    delay_us = Keyword.validate!(opts, delay_us: 0)[:delay_us]

    if not (is_number(delay_us) and delay_us >= 0) do
      raise ArgumentError, "expected :delay_us to be a number of microseconds, 0 or more, got: #{inspect(delay_us)}"
    end

    within({:replay, dispatches, 0, delay_us, 0}, fn ->
      start = System.monotonic_time()
      result = fun.()
      elapsed = System.monotonic_time() - start
      {:replay, _rest, count, _delay_us, overhead} = state()
      {result, %{dispatches: count, elapsed_ms: milliseconds(elapsed), replay_overhead_ms: milliseconds(overhead)}}
    end)
  end

  @doc "How many dispatches a trace has, and the bytes of their results."
  @spec info(t) :: %{dispatches: non_neg_integer, bytes: non_neg_integer}
  def info(%__MODULE__{dispatches: dispatches}) do
    bytes = for {_call, {:ok, chain}} <- dispatches, binary <- Tuple.to_list(chain), do: byte_size(binary)
    %{dispatches: length(dispatches), bytes: Enum.sum(bytes)}
  end

  defp within(state, fun) do
    if state(), do: raise(ArgumentError, "this process records or replays a trace already")
    put(state)

    try do
      fun.()
    after
      put(nil)
    end
  end

  # In the process, whose dispatches come from deep within what the caller runs.
  defp state, do: Process.get(__MODULE__)

  defp put(nil), do: Process.delete(__MODULE__)
  defp put(state), do: Process.put(__MODULE__, state)

  defp milliseconds(native), do: System.convert_time_unit(native, :native, :nanosecond) / 1.0e6
end
