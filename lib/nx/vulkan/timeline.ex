defmodule Nx.Vulkan.Timeline do
  @moduledoc """
  What a run takes of a device over time: memory by kind and by process, and when each kernel ran.

      {result, timeline} = Nx.Vulkan.Timeline.record(fn -> train(data) end)
      File.write!("run.svg", Nx.Vulkan.Timeline.svg(timeline))

  `record/2` is for a run. `start_link/1` records until it is stopped, and `get/1` tells what it has so far. Where
  [Kino](https://hexdocs.pm/kino) is a dependency, Livebook shows a timeline as a drawing, and `Nx.Vulkan.Timeline.Kino`
  one that goes on; `Nx.Vulkan.LiveDashboardPage` shows it on a page of Phoenix LiveDashboard.

  ## Fields

    * `:device` - its name, and `:budget_bytes`, what tensors may take of its memory
    * `:duration_ms` - how long it was recorded
    * `:samples` - memory at times: `:at_ms`, `:spilled_bytes`, `:kinds` and `:processes`, as `Nx.Vulkan.memory/1` has
      them, but that what compiled functions captured is among the `:tensors`
    * `:launches` - `:kernel`, `:at_ms` and `:ms` of each launch, as `Nx.Vulkan.Profile` names them, of the last 65,536

  Times are milliseconds since the beginning. Those of kernels are the device's: a launch in the beginning says how its
  clock and the host's differ, to a tenth of a millisecond or so.

  ## Options

    * `:device` - a selector, see `Nx.Vulkan`; the default device without it
    * `:interval_ms` - the time between two samples, 10 by default. A long run has fewer, since the number of them is
      bounded
    * `:launches` - whether launches are recorded, `true` by default. They don't overlap then, and a program takes
      longer: it is a profile as `Nx.Vulkan.Profile.start/1` begins it. Afterwards no more times are taken, unless the
      configuration asks for them, and a profile that was empty before is so again
    * `:last_ms` - forget what is older than that; `:infinity` by default
  """

  use GenServer

  alias Nx.Vulkan.{Devices, NativeV, Profile, VulkanoBackend}

  @enforce_keys [:device, :budget_bytes, :duration_ms, :samples, :launches]
  defstruct @enforce_keys

  @type sample :: %{
          at_ms: float,
          spilled_bytes: non_neg_integer,
          kinds: %{atom => non_neg_integer},
          processes: [%{name: String.t(), bytes: non_neg_integer}]
        }

  @type t :: %__MODULE__{
          device: String.t(),
          budget_bytes: non_neg_integer,
          duration_ms: float,
          samples: [sample],
          launches: [%{kernel: String.t(), at_ms: float, ms: float}]
        }

  # With so many samples every second one goes, and further ones come half as often.
  @most_samples 4096

  @doc """
  Runs `fun` and returns what it returns, with what was recorded meanwhile. Waits for the device.

  What `fun` raises is raised, and nothing is recorded any more.

  ## Errors

  `Nx.Vulkan.Error` of the kind `:no_device`, and `:unsupported` where the device has no timestamps: `launches: false`
  leaves these out. `ArgumentError` for other options.

  ## Examples

      iex> {result, timeline} = Nx.Vulkan.Timeline.record(fn -> Nx.iota({4}) |> Nx.sum() |> Nx.to_number() end)
      iex> {result, timeline.launches != []}
      {6, true}
  """
  @spec record((-> result), keyword) :: {result, t} when result: term
  def record(fun, opts \\ []) when is_function(fun, 0) do
    recorder = start_for(self(), opts)

    try do
      result = fun.()
      {result, get(recorder)}
    after
      stop(recorder)
    end
  end

  @doc "Records until `stop/1`, in a process that is linked to the caller."
  @spec start_link(keyword) :: GenServer.on_start()
  def start_link(opts \\ []), do: GenServer.start_link(__MODULE__, {nil, prepared!(opts)})

  @doc false
  # A recorder that ends with a process, which may be of another node.
  def start_for(owner, opts) do
    {:ok, recorder} = GenServer.start(__MODULE__, {owner, prepared!(opts)})
    recorder
  end

  @doc "What was recorded so far. Waits for the device where launches are recorded."
  @spec get(GenServer.server()) :: t
  def get(recorder), do: GenServer.call(recorder, :get, :infinity)

  @doc "Records no more."
  @spec stop(GenServer.server()) :: :ok
  def stop(recorder), do: GenServer.stop(recorder)

  @doc """
  A drawing of a timeline, of which `get/1` and `record/2` give one: an SVG for light and dark pages.
  """
  @spec svg(t) :: String.t()
  defdelegate svg(timeline), to: Nx.Vulkan.Timeline.Svg, as: :draw

  @doc false
  # Wrong options and a device that can't be opened are the caller's errors, and so are missing timestamps.
  def prepared!(opts) do
    opts = Keyword.validate!(opts, [:device, interval_ms: 10, launches: true, last_ms: :infinity])
    positive!(:interval_ms, opts[:interval_ms])
    if opts[:last_ms] != :infinity, do: positive!(:last_ms, opts[:last_ms])

    if not is_boolean(opts[:launches]) do
      raise ArgumentError, "expected :launches to be a boolean, got: #{inspect(opts[:launches])}"
    end

    device = opts[:device] |> Devices.index!() |> Devices.number()
    fresh? = opts[:launches] and Profile.rows(device: device) == []
    if opts[:launches], do: Profile.start(device: device)
    Map.merge(Map.new(opts), %{device: device, fresh?: fresh?, behind_ns: opts[:launches] && behind_ns(device)})
  end

  defp positive!(_name, number) when is_integer(number) and number > 0, do: :ok

  defp positive!(name, other) do
    raise ArgumentError, "expected #{inspect(name)} to be a positive number of milliseconds, got: #{inspect(other)}"
  end

  # By how much the device's clock is behind the host's: a launch has ended just before its result is read.
  defp behind_ns(device) do
    Nx.iota({8}, backend: {VulkanoBackend, device: device}) |> Nx.multiply(3) |> Nx.to_binary()
    now = now_ns()
    ends = for {_kernel, start_ns, time_ns} <- launches(device), do: start_ns + time_ns
    now - Enum.max(ends)
  end

  defp launches(device) do
    get = fn -> NativeV.profile_launches(device) end
    VulkanoBackend.settle(get.(), get)
  end

  defp now_ns, do: System.monotonic_time(:nanosecond)

  @impl true
  def init({owner, opts}) do
    if owner, do: Process.monitor(owner)
    Process.flag(:trap_exit, true)
    state = Map.merge(opts, %{owner: owner, began_ns: now_ns(), samples: [], count: 0})
    {:ok, state |> sampled() |> later()}
  end

  @impl true
  def handle_info(:sample, state), do: {:noreply, state |> sampled() |> later()}
  def handle_info({:DOWN, _monitor, :process, owner, _reason}, %{owner: owner} = state), do: {:stop, :normal, state}
  def handle_info(_other, state), do: {:noreply, state}

  @impl true
  def handle_call(:get, _from, state) do
    launches = if state.launches, do: placed(launches(state.device), state), else: []
    %{samples: [last | _]} = state = sampled(state)
    {:ok, %{name: name}} = NativeV.device_describe(state.device)

    timeline = %__MODULE__{
      device: name,
      budget_bytes: last.budget_bytes,
      duration_ms: last.at_ms,
      samples: state.samples |> Enum.map(&Map.delete(&1, :budget_bytes)) |> Enum.reverse(),
      launches: launches
    }

    {:reply, timeline, state}
  end

  @impl true
  def terminate(_reason, state) do
    if state.launches and not Profile.wanted?() do
      Profile.stop(device: state.device)
      if state.fresh?, do: Profile.reset(device: state.device)
    end
  end

  defp later(state) do
    Process.send_after(self(), :sample, state.interval_ms)
    state
  end

  defp sampled(%{samples: samples, count: count} = state) do
    sample = sample(state)
    oldest_ms = if state.last_ms == :infinity, do: 0, else: sample.at_ms - state.last_ms

    cond do
      count < @most_samples ->
        %{state | samples: [sample | samples], count: count + 1}

      state.last_ms != :infinity and List.last(samples).at_ms < oldest_ms ->
        kept = Enum.take_while(samples, &(&1.at_ms >= oldest_ms))
        %{state | samples: [sample | kept], count: length(kept) + 1}

      true ->
        kept = Enum.take_every(samples, 2)
        %{state | samples: [sample | kept], count: length(kept) + 1, interval_ms: 2 * state.interval_ms}
    end
  end

  defp sample(%{device: device, began_ns: began_ns}) do
    {:ok, usage, owners} = NativeV.memory_usage(device)
    processes = for {pid, bytes, _limit} <- owners, do: %{name: process_name(pid), bytes: bytes}

    %{
      at_ms: (now_ns() - began_ns) / 1.0e6,
      budget_bytes: usage.budget_bytes,
      spilled_bytes: usage.spilled_bytes,
      kinds: Nx.Vulkan.Memory.kinds(usage, owners),
      processes: processes
    }
  end

  defp process_name(pid) do
    case Nx.Vulkan.Memory.name(pid) do
      nil -> inspect(pid)
      name when is_binary(name) -> name
      name -> inspect(name)
    end
  end

  defp placed(launches, %{began_ns: began_ns, behind_ns: behind_ns} = state) do
    oldest_ms = if state.last_ms == :infinity, do: 0, else: (now_ns() - began_ns) / 1.0e6 - state.last_ms

    for {kernel, start_ns, time_ns} <- launches,
        at_ms = (start_ns + behind_ns - began_ns) / 1.0e6,
        at_ms >= max(oldest_ms, 0),
        do: %{kernel: kernel, at_ms: at_ms, ms: time_ns / 1.0e6}
  end
end
