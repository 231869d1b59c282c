defmodule Nx.Vulkan.Node do
  @moduledoc """
  A process that runs functions one at a time, for programs that want device work out of their own process and with a
  limit on how long they wait for it.

  The device needs no such process: any number of processes may call `Nx.Vulkan.NativeV` at once. A node adds an order
  among its callers, a time limit, and that a function which raises, or whose process is killed, is an error for its
  caller alone.

      {:ok, _pid} = Nx.Vulkan.Node.start_link()
      Nx.Vulkan.Node.with_node(fn -> Nx.Vulkan.NativeV.leapfrog_chain_synth_f64(q, p, extras, push, k, spv) end)

  Each function runs in a process of its own, with the caller's `Nx.default_backend/0` and `Nx.Defn.default_options/0`.

  ## Configuration

      config :nx_vulkan, node_timeout_ms: 30_000

  How long `with_node/2` waits, in milliseconds, the time in the queue included. `:infinity` unless set. What has begun
  goes on after the caller has given up or died: the device can't be interrupted. What has not begun by then never runs.
  Functions of two nodes that each wait for the other node wait until then.
  """

  use GenServer

  # What `receive` takes.
  @most_ms 0xFFFFFFFF

  @type status :: %{uptime_ms: non_neg_integer, exec_count: non_neg_integer}

  @doc """
  For supervisors, with the options of `start_link/1`. Nodes of different names have different ids.
  """
  @spec child_spec(keyword) :: Supervisor.child_spec()
  def child_spec(options), do: %{super(options) | id: Keyword.get(options, :name, __MODULE__)}

  @doc """
  Starts a node and opens the device, unless there is none: then only its functions will fail.

  ## Options

    * `:name` - `Nx.Vulkan.Node` unless given
    * `:load_pipeline_cache` - taken for the sake of earlier programs: compiled pipelines on disk are always used
  """
  @spec start_link(keyword) :: GenServer.on_start()
  def start_link(options \\ []) do
    options = Keyword.validate!(options, name: __MODULE__, load_pipeline_cache: true)
    GenServer.start_link(__MODULE__, nil, name: options[:name])
  end

  @doc """
  Whether the node runs.
  """
  @spec alive?(GenServer.name()) :: boolean
  def alive?(name \\ __MODULE__) do
    case name |> name!() |> GenServer.whereis() do
      pid when is_pid(pid) and node(pid) == node() -> Process.alive?(pid)
      found -> found != nil
    end
  end

  @doc """
  Runs `fun` on the node and returns its value. Within a function that runs on the same node, in tasks (`Task`) that one
  starts, and in functions that one of those runs on another node, it is called at once, in the process that asks.

  ## Errors

    * `{:error, :node_dead}` - the node does not run, or ended before the function did
    * `{:error, :node_timeout}` - the time is up
    * `{:error, exception}` - `fun` raised
    * `{:error, {kind, reason}}` - `fun` threw (`:throw`) or exited, or its process was killed (`:exit`)

  `ArgumentError` where `:node_timeout_ms` is no time, or above 4,294,967,295, and for a `name` that no process can
  have.
  """
  @spec with_node((-> value), GenServer.name()) :: value | {:error, term} when value: term
  def with_node(fun, name \\ __MODULE__) when is_function(fun, 0) do
    case run(fun, name!(name), :nx_vulkan |> Application.get_env(:node_timeout_ms, :infinity) |> timeout_ms()) do
      {:value, value} -> value
      {:error, reason} -> {:error, reason}
      :within -> value(fun)
    end
  end

  defp timeout_ms(:infinity), do: :infinity
  defp timeout_ms(number) when is_integer(number) and number in 0..@most_ms, do: number

  defp timeout_ms(other) do
    raise ArgumentError,
          "expected :node_timeout_ms to be an integer from 0 to #{@most_ms} or :infinity, got: #{inspect(other)}"
  end

  defp name!(name) when is_atom(name) or is_pid(name), do: name
  defp name!({:global, _term} = name), do: name
  defp name!({:via, module, _term} = name) when is_atom(module), do: name
  defp name!({name, node} = remote) when is_atom(name) and is_atom(node), do: remote

  defp name!(other) do
    raise ArgumentError,
          "expected the name of a node, an atom as given to Nx.Vulkan.Node.start_link/1, " <>
            "{:global, term} or {:via, module, term}, or its pid, got: #{inspect(other)}"
  end

  defp run(fun, name, timeout_ms) do
    callers = [self() | Process.get(:"$callers", [])]
    settings = {Nx.default_backend(), Nx.Defn.default_options(), callers}
    GenServer.call(name, {:run, fun, settings, deadline(timeout_ms)}, timeout_ms)
  catch
    :exit, {:timeout, {GenServer, :call, _}} -> {:error, :node_timeout}
    :exit, {_reason, {GenServer, :call, _}} -> {:error, :node_dead}
  end

  defp deadline(:infinity), do: :infinity
  defp deadline(timeout_ms), do: now_ms() + timeout_ms

  defp now_ms, do: System.monotonic_time(:millisecond)

  @doc """
  How long the node has been running, in milliseconds, and how many functions it has run to their end;
  `{:error, :node_dead}` when it does not run.
  """
  @spec status(GenServer.name()) :: status | {:error, :node_dead}
  def status(name \\ __MODULE__) do
    name |> name!() |> GenServer.call(:status)
  catch
    :exit, _ -> {:error, :node_dead}
  end

  ## The process: `job` is what runs now, `queue` waits

  @impl true
  def init(nil) do
    Process.flag(:trap_exit, true)
    {:ok, %{started_ms: now_ms(), exec_count: 0, job: nil, queue: :queue.new()}, {:continue, :open}}
  end

  @impl true
  def handle_continue(:open, state) do
    # Where it fails, the functions say so.
    _ = Nx.Vulkan.init()
    {:noreply, state}
  end

  @impl true
  def handle_call({:run, fun, {_, _, callers} = settings, deadline}, {caller, _tag} = from, state)
      when is_function(fun, 0) and is_list(callers) do
    # What the running function waits for can't wait for it.
    if state.job != nil and elem(state.job, 0) in callers do
      {:reply, :within, state}
    else
      waiting = {Process.monitor(caller), fun, settings, deadline, from}
      {:noreply, next(%{state | queue: :queue.in(waiting, state.queue)})}
    end
  end

  def handle_call(:status, _from, state) do
    {:reply, %{uptime_ms: now_ms() - state.started_ms, exec_count: state.exec_count}, state}
  end

  # What is not for this process must not end it: others wait for it.
  def handle_call(_request, _from, state), do: {:reply, {:error, :bad_input}, state}

  @impl true
  def handle_cast(_request, state), do: {:noreply, state}

  @impl true
  def handle_info({:done, pid, value}, %{job: {pid, monitor, from}} = state) do
    Process.demonitor(monitor, [:flush])
    finish(state, from, value)
  end

  def handle_info({:DOWN, monitor, :process, pid, reason}, %{job: {pid, monitor, from}} = state) do
    finish(state, from, {:error, {:exit, reason}})
  end

  # A caller that waits is no more.
  def handle_info({:DOWN, monitor, :process, _pid, _reason}, state) do
    {:noreply, %{state | queue: :queue.filter(&(elem(&1, 0) != monitor), state.queue)}}
  end

  def handle_info(_message, state), do: {:noreply, state}

  @impl true
  def terminate(_reason, state) do
    with {pid, _monitor, _from} <- state.job, do: Process.exit(pid, :kill)
    _ = Nx.Vulkan.NativeV.device_save_pipelines()
  end

  defp finish(state, from, value) do
    GenServer.reply(from, {:value, value})
    {:noreply, next(%{state | job: nil, exec_count: state.exec_count + 1})}
  end

  defp next(%{job: nil} = state) do
    case :queue.out(state.queue) do
      {:empty, _queue} ->
        state

      {{:value, {caller, fun, settings, deadline, from}}, queue} ->
        Process.demonitor(caller, [:flush])
        start(%{state | queue: queue}, fun, settings, deadline, from)
    end
  end

  defp next(state), do: state

  defp start(state, fun, settings, deadline, from) do
    # An integer is smaller than any atom, so that no deadline is never over.
    if now_ms() >= deadline do
      next(state)
    else
      node = self()
      {pid, monitor} = spawn_monitor(fn -> send(node, {:done, self(), work(fun, settings)}) end)
      %{state | job: {pid, monitor, from}}
    end
  end

  defp work(fun, {backend, defn_options, callers}) do
    Process.put(:"$callers", callers)
    Nx.default_backend(backend)
    Nx.Defn.default_options(defn_options)
    value(fun)
  end

  defp value(fun) do
    fun.()
  rescue
    exception -> {:error, exception}
  catch
    kind, reason -> {:error, {kind, reason}}
  end
end
