defmodule Nx.Vulkan.ServingNode do
  @moduledoc """
  A further node of the BEAM with an `Nx.Serving` on the device of this machine.
  """

  import Nx.Defn
  import Nx.Vulkan.Versions, only: [hooked: 2]

  alias Nx.Vulkan.RemoteNode

  @doc """
  Starts a node and, on it, the serving of a function of this module under `name`: on all of its `devices`, where they
  are named. The node stops with the caller.
  """
  def start_link(name, serving \\ :serving, devices \\ nil) do
    {:ok, peer, node} = RemoteNode.start_link()
    Node.spawn(node, __MODULE__, :serve, [name, serving, devices, self()])

    receive do
      {:serving, ^name} -> {:ok, peer, node}
    after
      60_000 -> {:error, :timeout}
    end
  end

  @doc false
  def serve(name, serving, devices, parent) do
    serving = apply(__MODULE__, serving, [])
    serving = if devices, do: Nx.Serving.defn_options(serving, compiler: Nx.Vulkan, devices: devices), else: serving
    options = [name: name, serving: serving, batch_size: 4, batch_timeout: 10, partitions: devices != nil]
    {:ok, _} = Nx.Serving.start_link(options)
    send(parent, {:serving, name})
    Process.sleep(:infinity)
  end

  @doc "Doubles rows and says which node did."
  def serving do
    Nx.Serving.new(&Nx.Defn.jit(fn x -> double(x) end, &1), compiler: Nx.Vulkan)
    |> Nx.Serving.distributed_postprocessing(&{node(), Nx.backend_transfer(&1, Nx.BinaryBackend)})
  end

  @doc """
  Doubles the rows of requests `{id, client, rows}` and says which node did, for which request.

  A node that holds requests back (`hold/0`) has them done, tells their clients `{:held, id, node}`, and never answers.
  """
  def counted do
    Nx.Serving.new(&Nx.Defn.jit(fn x -> double(x) end, &1), compiler: Nx.Vulkan)
    |> Nx.Serving.client_preprocessing(fn {id, client, rows} ->
      {Nx.Batch.concatenate([Nx.tensor(rows)]), {id, client}}
    end)
    |> Nx.Serving.client_postprocessing(fn {output, _metadata}, {id, client} ->
      if :persistent_term.get({__MODULE__, :holds}, false) do
        send(client, {:held, id, node()})
        Process.sleep(:infinity)
      end

      {id, node(), Nx.to_list(output)}
    end)
  end

  @doc "From now on the node of the caller holds requests of `counted/0` back."
  def hold, do: :persistent_term.put({__MODULE__, :holds}, true)

  @doc """
  Doubles batches and streams them back as they are done, each with the node that did.

  Requests are a process and the rows of each batch. Each batch but the first waits for that process's `{:go, index}`,
  which it asks for with `{:wants, index, pid}`.
  """
  def streaming do
    Nx.Serving.new(&Nx.Defn.jit(fn x -> double(x) end, &1), compiler: Nx.Vulkan)
    |> Nx.Serving.client_preprocessing(fn {client, batches} ->
      {Stream.map(Enum.with_index(batches), &batch_when_told(client, &1)), :ok}
    end)
    |> Nx.Serving.streaming()
    |> Nx.Serving.distributed_postprocessing(&on_host/1)
  end

  defp batch_when_told(client, {rows, index}) do
    if index > 0 do
      send(client, {:wants, index, self()})

      receive do
        {:go, ^index} -> :ok
      end
    end

    Nx.Batch.stack(Enum.map(rows, &Nx.tensor/1))
  end

  @doc "Sums of doubled rows, streamed with what the hook `:doubled` sees, each with the node that did."
  def hooked_streaming do
    Nx.Serving.new(&Nx.Defn.jit(fn x -> told(x) end, &1), compiler: Nx.Vulkan)
    |> Nx.Serving.streaming(hooks: [:doubled])
    |> Nx.Serving.distributed_postprocessing(&on_host/1)
  end

  # Events are sent to the other node one by one, so the stream stays lazy.
  defp on_host(events) do
    Stream.map(events, fn
      {:batch, tensor, info} -> {node(), {:batch, Nx.backend_copy(tensor, Nx.BinaryBackend), info}}
      {hook, tensor} -> {node(), {hook, Nx.backend_copy(tensor, Nx.BinaryBackend)}}
    end)
  end

  defnp(double(x), do: x * 2)

  defnp told(x) do
    Nx.sum(hooked(double(x), :doubled), axes: [1])
  end
end
