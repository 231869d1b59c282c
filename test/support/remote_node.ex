defmodule Nx.Vulkan.RemoteNode do
  @moduledoc """
  A further node of the BEAM, which has the devices of this machine.
  """

  import Nx.Defn

  @doc "Makes this VM a node, by which others are reached."
  def start_distribution do
    # It needs the port mapper of the system, and a name that no other run has.
    {_, 0} = System.cmd("epmd", ["-daemon"])
    # The command returns before the port mapper listens.
    wait_for(fn -> match?({:ok, _}, :erl_epmd.names({127, 0, 0, 1})) end)
    if not Node.alive?(), do: {:ok, _} = Node.start(:"tests#{System.pid()}@127.0.0.1", :longnames)
    :ok
  end

  @doc "Starts a node with this application on it, in an environment with more variables. It stops with the caller."
  def start_link(env \\ %{}) do
    env = for {name, value} <- env, do: {to_charlist(name), to_charlist(value)}
    {:ok, peer, node} = :peer.start_link(%{name: :peer.random_name(), host: ~c"127.0.0.1", longnames: true, env: env})
    true = :erpc.call(node, :code, :set_path, [:code.get_path()])
    {:ok, _} = :erpc.call(node, :application, :ensure_all_started, [:nx_vulkan], 60_000)
    {:ok, peer, node}
  end

  @doc "Waits until `fun` is true, up to ten seconds."
  def wait_for(fun, left \\ 200) do
    cond do
      fun.() ->
        :ok

      left > 0 ->
        Process.sleep(50)
        wait_for(fun, left - 1)

      true ->
        raise "it did not become true"
    end
  end

  @doc """
  Starts, on the node of the caller, a process that holds what `Nx.iota/2` makes on its device, and gives the tensor.
  """
  def hold(shape, opts), do: held(fn -> Nx.iota(shape, [backend: Nx.Vulkan.VulkanoBackend] ++ opts) end)

  defp held(make) do
    caller = self()

    pid =
      spawn(fn ->
        tensor = make.()
        send(caller, {self(), tensor})
        Process.sleep(:infinity)
        # The tensor lives as long as the process may still use it.
        send(caller, tensor)
      end)

    receive do
      {^pid, tensor} -> tensor
    after
      60_000 -> raise "no tensor was made"
    end
  end

  @doc "A compiled function, made on the node of the caller."
  def compiled(template), do: Nx.Defn.compile(&sum_of_squares/1, [template], compiler: Nx.Vulkan.Compiler)

  @doc "The number that a function gives of a list, as others can't keep what this node's device has."
  def number(fun, list), do: list |> Nx.tensor(backend: Nx.Vulkan.VulkanoBackend) |> fun.() |> Nx.to_number()

  defn(sum_of_squares(x), do: Nx.sum(x * x))
end
