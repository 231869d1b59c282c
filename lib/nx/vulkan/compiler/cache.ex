defmodule Nx.Vulkan.Compiler.Cache do
  @moduledoc false

  # What was compiled, by key, in an ETS table that any process reads. A key is compiled once, however many processes ask for it
  # at the same time: the first one gets the lock, the others wait for it. The process that owns the table gives the locks, and
  # drops the oldest entries beyond `config :nx_vulkan, compiler_cache_entries: 4096`; what is dropped is compiled again. It also
  # keeps as many counters, which begin again once they were dropped.

  use GenServer

  @entries 4096

  def start_link(_opts), do: GenServer.start_link(__MODULE__, :ok, name: __MODULE__)

  @doc "The entry of a key, or nil."
  @spec get(term) :: term | nil
  def get(key), do: :ets.lookup_element(__MODULE__, key, 2, nil)

  @doc "The entry of a key, which `fun` makes if there is none. An exception of `fun` leaves the key without an entry."
  @spec get_or_make(term, (-> term)) :: term
  def get_or_make(key, fun) do
    with nil <- get(key) do
      case GenServer.call(__MODULE__, {:lock, key}, :infinity) do
        {:locked, lock} ->
          try do
            entry = fun.()
            :ets.insert(__MODULE__, {key, entry})
            entry
          after
            GenServer.cast(__MODULE__, {:unlock, lock})
          end

        :made ->
          get_or_make(key, fun)
      end
    end
  end

  @doc "Adds one to a counter and returns it."
  @spec count(term) :: pos_integer
  def count(key), do: GenServer.call(__MODULE__, {:count, key}, :infinity)

  @impl true
  def init(:ok) do
    :ets.new(__MODULE__, [:public, :set, :named_table, read_concurrency: true])
    {:ok, %{locks: %{}, keys: %{}, made: :queue.new(), counts: %{}, counted: :queue.new()}}
  end

  @impl true
  def handle_call({:count, key}, _from, %{counts: counts, counted: counted} = state) do
    count = Map.get(counts, key, 0) + 1
    counted = if count == 1, do: :queue.in(key, counted), else: counted
    {:reply, count, drop_counts(%{state | counts: Map.put(counts, key, count), counted: counted})}
  end

  def handle_call({:lock, key}, {pid, _} = from, state) do
    case state.keys do
      %{^key => lock} ->
        {:noreply, update_in(state.locks[lock], fn {key, waiting} -> {key, [from | waiting]} end)}

      _ ->
        if get(key) do
          {:reply, :made, state}
        else
          lock = Process.monitor(pid)

          {:reply, {:locked, lock},
           %{state | locks: Map.put(state.locks, lock, {key, []}), keys: Map.put(state.keys, key, lock)}}
        end
    end
  end

  @impl true
  def handle_cast({:unlock, lock}, state) do
    Process.demonitor(lock, [:flush])
    {:noreply, unlock(lock, state)}
  end

  @impl true
  def handle_info({:DOWN, lock, :process, _pid, _reason}, state), do: {:noreply, unlock(lock, state)}

  # Those who waited look again: one of them gets the lock if there is no entry.
  defp unlock(lock, state) do
    {{key, waiting}, locks} = Map.pop!(state.locks, lock)
    Enum.each(waiting, &GenServer.reply(&1, :made))
    state = %{state | locks: locks, keys: Map.delete(state.keys, key)}
    if get(key), do: drop_oldest(%{state | made: :queue.in(key, state.made)}), else: state
  end

  defp drop_counts(state) do
    if map_size(state.counts) > limit() do
      {{:value, key}, counted} = :queue.out(state.counted)
      drop_counts(%{state | counts: Map.delete(state.counts, key), counted: counted})
    else
      state
    end
  end

  defp limit, do: Application.get_env(:nx_vulkan, :compiler_cache_entries, @entries)

  defp drop_oldest(state) do
    if :queue.len(state.made) > limit() do
      {{:value, key}, made} = :queue.out(state.made)
      :ets.delete(__MODULE__, key)
      drop_oldest(%{state | made: made})
    else
      state
    end
  end
end
