defmodule Nx.Vulkan.Prefetch do
  @moduledoc false

  # Batches that a process beside the one that takes them loads ahead.
  #
  # The loader works on demand: it has leave to load so many batches more than were taken. It holds none that it has
  # handed over, since memory of the device would wait for its garbage. A watcher ends it where the taker is gone.
  # What it uploads is the taker's, which may have garbage where its limit is reached: then it uploads the batch itself.

  alias Nx.Vulkan.{Error, Library, NativeV, VulkanoBackend}

  # How long a loader may take to end what it walks, for which it has to come back from it.
  @patience_ms 5_000

  @doc "See `Nx.Vulkan.prefetch/2`."
  @spec stream(Enumerable.t(), keyword) :: Enumerable.t()
  def stream(batches, opts) do
    opts = Keyword.validate!(opts, ahead: 2, backend: VulkanoBackend)
    ahead = opts[:ahead]

    if not (is_integer(ahead) and ahead > 0) do
      raise ArgumentError, "expected :ahead to be a number of batches, got: #{inspect(ahead)}"
    end

    Stream.resource(fn -> start(batches, ahead, opts[:backend]) end, &next/1, &stop/1)
  end

  ## Who takes them

  defp start(batches, ahead, backend) do
    {ref, taker} = {make_ref(), self()}
    # What Nx keeps for a process.
    default = {Nx.default_backend(), Nx.Defn.default_options()}
    callers = [taker | Process.get(:"$callers") || []]

    {loader, monitor} =
      spawn_monitor(fn ->
        Process.put(:"$callers", callers)
        if Library.error() == nil, do: NativeV.memory_owner(taker)
        load(batches, backend, default, ref, taker)
      end)

    spawn(fn -> watch(taker, loader) end)
    for _ <- 1..ahead, do: send(loader, {ref, :more})
    {ref, loader, monitor, backend}
  end

  defp next({ref, loader, monitor, backend} = state) do
    receive do
      {^ref, :batch, batch} ->
        send(loader, {ref, :more})
        {[batch], state}

      {^ref, :too_much, batch} ->
        batch = loaded(batch, backend)
        send(loader, {ref, :more})
        {[batch], state}

      {^ref, :done} ->
        {:halt, state}

      {^ref, :failed, kind, reason, stacktrace} ->
        :erlang.raise(kind, reason, stacktrace)

      {:DOWN, ^monitor, :process, ^loader, reason} = down ->
        # `stop/1` waits for it.
        send(self(), down)
        exit({reason, {Nx.Vulkan, :prefetch, 2}})
    end
  end

  defp stop({ref, loader, monitor, _backend}) do
    send(loader, {ref, :halt})

    receive do
      {:DOWN, ^monitor, :process, ^loader, _reason} -> :ok
    after
      @patience_ms ->
        Process.exit(loader, :kill)
        Process.demonitor(monitor, [:flush])
    end

    flush(ref)
  end

  defp flush(ref) do
    receive do
      message when is_tuple(message) and elem(message, 0) == ref -> flush(ref)
    after
      0 -> :ok
    end
  end

  ## The loader

  defp load(batches, backend, {default_backend, default_options}, ref, taker) do
    Nx.default_backend(default_backend)
    Nx.Defn.default_options(default_options)
    Enum.reduce_while(batches, :ok, fn batch, :ok -> hand_over(batch, backend, ref, taker) end)
    send(taker, {ref, :done})
  catch
    kind, reason -> send(taker, {ref, :failed, kind, reason, __STACKTRACE__})
  end

  # An end goes before the leave that came ahead of it.
  defp hand_over(batch, backend, ref, taker) do
    receive do
      {^ref, :halt} -> {:halt, :ok}
    after
      0 -> hand_over_with_leave(batch, backend, ref, taker)
    end
  end

  defp hand_over_with_leave(batch, backend, ref, taker) do
    receive do
      {^ref, :more} ->
        send(taker, Tuple.insert_at(loaded_or_not(batch, backend), 0, ref))
        :erlang.garbage_collect(self(), type: :minor)
        {:cont, :ok}

      {^ref, :halt} ->
        {:halt, :ok}
    end
  end

  defp loaded_or_not(batch, backend) do
    {:batch, loaded(batch, backend)}
  rescue
    error in Error ->
      if is_map_key(error.details, :held_bytes), do: {:too_much, batch}, else: reraise(error, __STACKTRACE__)
  end

  # A batch on the device, where that is one tensor in place of its entries.
  defp loaded(%Nx.Batch{stack: []} = batch, _backend), do: batch

  defp loaded(%Nx.Batch{pad: pad, key: key} = batch, backend) do
    load = fn _template, tensor, :ok -> {Nx.backend_copy(tensor.(), backend), :ok} end
    {entries, :ok} = batch |> Nx.Batch.pad(0) |> Nx.LazyContainer.traverse(:ok, load)
    [entries] |> Nx.Batch.concatenate() |> Nx.Batch.pad(pad) |> Nx.Batch.key(key)
  end

  defp loaded(container, backend) do
    if tensor?(container) do
      Nx.backend_copy(container, backend)
    else
      {loaded, :ok} = Nx.Container.traverse(container, :ok, fn part, :ok -> {loaded(part, backend), :ok} end)
      loaded
    end
  end

  defp tensor?(%Nx.Tensor{}), do: true
  defp tensor?(%Complex{}), do: true
  defp tensor?(other), do: is_number(other)

  defp watch(taker, loader) do
    [of_taker, of_loader] = Enum.map([taker, loader], &Process.monitor/1)

    receive do
      {:DOWN, ^of_taker, :process, _, _} -> Process.exit(loader, :kill)
      {:DOWN, ^of_loader, :process, _, _} -> :ok
    end
  end
end
