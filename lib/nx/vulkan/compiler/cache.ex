defmodule Nx.Vulkan.Compiler.Cache do
  @moduledoc false

  # What was compiled, by key, in an ETS table that any process reads. A key is compiled once, however many processes
  # ask for it at the same time: the first one gets the lock, the others wait for it. The process that owns the table
  # gives the locks, and drops the oldest entries beyond `config :nx_vulkan, compiler_cache_entries: 4096`; what is
  # dropped is compiled again. All go where the device has no memory left, since their captured tensors stay on it. It
  # also keeps as many counters, which begin again once they were dropped.
  #
  # A key may come with large binaries, which are compared but not hashed (`Nx.Vulkan.Compiler.Key`). Then the table has
  # a list of binaries and references under `{:large, key}`, and an entry under each of the references. The process that
  # owns the table writes the lists.

  use GenServer

  @entries 4096
  @last {__MODULE__, :last}

  def start_link(_opts), do: GenServer.start_link(__MODULE__, :ok, name: __MODULE__)

  @doc "The entry of a key with its large binaries, or nil."
  @spec get(term, [bitstring]) :: term | nil
  def get(key, []), do: read(key)

  def get(key, large) do
    case Process.get(@last) do
      # Comparing binaries of 64 MB takes milliseconds, so this process keeps what it called last.
      {^key, reference, last} ->
        if same?(last, large), do: read(reference) || find(key, large), else: find(key, large)

      _ ->
        find(key, large)
    end
  end

  defp find(key, large) do
    with reference when reference != nil <- reference(key, large) do
      Process.put(@last, {key, reference, large})
      read(reference)
    end
  end

  defp reference(key, large) do
    with {reference, _} <- List.keyfind(read({:large, key}) || [], large, 1), do: reference
  end

  defp read(key), do: :ets.lookup_element(__MODULE__, key, 2, nil)

  # The very same terms, in the same places.
  defp same?([one | ones], [other | others]), do: :erts_debug.same(one, other) and same?(ones, others)
  defp same?([], []), do: true
  defp same?(_ones, _others), do: false

  @doc """
  The entry of a key with its large binaries, which `fun` makes if there is none. An exception of `fun` leaves it
  without an entry.
  """
  @spec get_or_make(term, [bitstring], (-> term)) :: term
  def get_or_make(key, large, fun) do
    with nil <- get(key, large) do
      case GenServer.call(__MODULE__, {:lock, key, large}, :infinity) do
        {:locked, lock} ->
          try do
            entry = fun.()
            :ets.insert(__MODULE__, {place(key, large, lock), entry})
            entry
          after
            GenServer.cast(__MODULE__, {:unlock, lock})
          end

        :made ->
          get_or_make(key, large, fun)
      end
    end
  end

  # Where the entry is that was made under a lock.
  defp place(key, [], _lock), do: key
  defp place(_key, _large, lock), do: lock

  @doc "Drops all entries and says how many. What they hold is free once no process holds them."
  @spec drop_all() :: non_neg_integer
  def drop_all do
    Process.delete(@last)
    GenServer.call(__MODULE__, :drop_all, :infinity)
  catch
    # There is none before the application starts and after it stops.
    :exit, _ -> 0
  end

  @doc "All entries with their keys, large binaries of which are left out."
  @spec all() :: [{term, term}]
  def all, do: GenServer.call(__MODULE__, :all, :infinity)

  @doc "Drops the entries of the keys for which `drop?` holds, and says how many."
  @spec drop_where((term -> boolean)) :: non_neg_integer
  def drop_where(drop?) do
    Process.delete(@last)
    GenServer.call(__MODULE__, {:drop, for({key, _entry} <- all(), drop?.(key), uniq: true, do: key)}, :infinity)
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

  def handle_call(:drop_all, _from, state) do
    places = :queue.to_list(state.made)
    for {key, place} <- places, do: drop(key, place)
    # The answers to earlier calls may be on this heap.
    :erlang.garbage_collect()
    # What is compiled again for this is no sign of captures that change.
    {:reply, length(places), %{state | made: :queue.new(), counts: %{}, counted: :queue.new()}}
  end

  def handle_call(:all, _from, state) do
    {:reply, for({key, place} <- :queue.to_list(state.made), do: {key, read(place)}), state}
  end

  # All entries of a key, whatever large binaries they have.
  def handle_call({:drop, keys}, _from, state) do
    keys = MapSet.new(keys)
    {dropped, kept} = state.made |> :queue.to_list() |> Enum.split_with(fn {key, _place} -> key in keys end)
    for {key, place} <- dropped, do: drop(key, place)
    :erlang.garbage_collect()
    {:reply, length(dropped), %{state | made: :queue.from_list(kept)}}
  end

  def handle_call({:lock, key, large}, {pid, _} = from, state) do
    case state.keys do
      %{^key => lock} ->
        {:noreply, update_in(state.locks[lock], fn {key, large, waiting} -> {key, large, [from | waiting]} end)}

      _ ->
        if made?(key, large) do
          {:reply, :made, state}
        else
          lock = Process.monitor(pid)
          locks = Map.put(state.locks, lock, {key, large, []})
          {:reply, {:locked, lock}, %{state | locks: locks, keys: Map.put(state.keys, key, lock)}}
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

  defp made?(key, []), do: :ets.member(__MODULE__, key)
  defp made?(key, large), do: reference(key, large) != nil

  # Those who waited look again: one of them gets the lock if there is no entry.
  defp unlock(lock, state) do
    {{key, large, waiting}, locks} = Map.pop!(state.locks, lock)
    place = place(key, large, lock)
    made? = :ets.member(__MODULE__, place)
    if made? and large != [], do: :ets.insert(__MODULE__, {{:large, key}, [{lock, large} | read({:large, key}) || []]})
    Enum.each(waiting, &GenServer.reply(&1, :made))
    state = %{state | locks: locks, keys: Map.delete(state.keys, key)}
    if made?, do: drop_oldest(%{state | made: :queue.in({key, place}, state.made)}), else: state
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
      {{:value, {key, place}}, made} = :queue.out(state.made)
      drop(key, place)
      drop_oldest(%{state | made: made})
    else
      state
    end
  end

  defp drop(key, key), do: :ets.delete(__MODULE__, key)

  defp drop(key, reference) do
    case List.keydelete(read({:large, key}), reference, 0) do
      [] -> :ets.delete(__MODULE__, {:large, key})
      others -> :ets.insert(__MODULE__, {{:large, key}, others})
    end

    :ets.delete(__MODULE__, reference)
  end
end
