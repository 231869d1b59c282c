defmodule Nx.Vulkan.ServingNode do
  @moduledoc """
  A further node of the BEAM with an `Nx.Serving` on the device of this machine.
  """

  import Nx.Defn

  @doc "Starts a node and, on it, `serving/0` under `name`. The node stops with the caller."
  def start_link(name) do
    {:ok, peer, node} = :peer.start_link(%{name: :peer.random_name(), host: ~c"127.0.0.1", longnames: true})
    true = :erpc.call(node, :code, :set_path, [:code.get_path()])
    {:ok, _} = :erpc.call(node, :application, :ensure_all_started, [:nx_vulkan], 60_000)
    Node.spawn(node, __MODULE__, :serve, [name, self()])

    receive do
      {:serving, ^name} -> {:ok, peer, node}
    after
      60_000 -> {:error, :timeout}
    end
  end

  @doc false
  def serve(name, parent) do
    {:ok, _} = Nx.Serving.start_link(name: name, serving: serving(), batch_size: 4, batch_timeout: 10)
    send(parent, {:serving, name})
    Process.sleep(:infinity)
  end

  @doc "Doubles rows and says which node did."
  def serving do
    Nx.Serving.new(&Nx.Defn.jit(fn x -> double(x) end, &1), compiler: Nx.Vulkan)
    |> Nx.Serving.distributed_postprocessing(&{node(), Nx.backend_transfer(&1, Nx.BinaryBackend)})
  end

  defnp(double(x), do: x * 2)
end
