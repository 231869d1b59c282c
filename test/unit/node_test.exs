defmodule Nx.Vulkan.NodeTest do
  # It sets :node_timeout_ms.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.Node

  setup context do
    name = Module.concat(Nx.Vulkan.NodeTest, "Node#{context.line}")
    start_supervised!(%{id: name, start: {Node, :start_link, [[name: name]]}})
    on_exit(fn -> Application.delete_env(:nx_vulkan, :node_timeout_ms) end)
    %{name: name}
  end

  test "what does not run is not alive, and says so" do
    refute Node.alive?()
    refute Node.alive?(:nobody)
    assert Node.with_node(fn -> :value end) == {:error, :node_dead}
    assert Node.status() == {:error, :node_dead}
  end

  test "a name that no process can have" do
    for call <- [&Node.alive?/1, &Node.status/1, &Node.with_node(fn -> :value end, &1)],
        wrong <- ["x", 1, {:via, "x", 1}] do
      assert_raise ArgumentError, ~r/expected the name of a node, .* got: #{Regex.escape(inspect(wrong))}$/, fn ->
        call.(wrong)
      end
    end

    for name <- [{:global, "x"}, {:via, :global, "x"}, {:nobody, node()}] do
      assert Node.with_node(fn -> :value end, name) == {:error, :node_dead}
      assert Node.status(name) == {:error, :node_dead}
    end
  end

  test "casts, calls and messages that are none of its own leave it and its callers alone", %{name: name} do
    pid = GenServer.whereis(name)
    slow = Task.async(fn -> Node.with_node(fn -> Process.sleep(100) end, name) end)
    Process.sleep(10)
    waiting = Task.async(fn -> Node.with_node(fn -> :value end, name) end)
    GenServer.cast(name, :unknown)
    send(pid, :unknown)

    for request <- [:unknown, {:run, :no_function, {nil, [], []}, :infinity}, {:run, fn -> 1 end, {nil, [], 1}, 0}],
        do: assert(GenServer.call(name, request) == {:error, :bad_input})

    assert Task.await_many([slow, waiting]) == [:ok, :value]
    assert GenServer.whereis(name) == pid
    assert %{exec_count: 2} = Node.status(name)
  end

  test "has a default name" do
    start_supervised!(%{id: Node, start: {Node, :start_link, []}})
    assert Node.alive?()
    assert Node.with_node(fn -> :value end) == :value
    assert {:error, {:already_started, _}} = Node.start_link()
  end

  test "runs functions and counts them", %{name: name} do
    assert Node.alive?(name)
    assert Node.with_node(fn -> {:error, :of_its_own} end, name) == {:error, :of_its_own}
    assert Node.with_node(fn -> 1 + 1 end, name) == 2
    assert %{uptime_ms: uptime, exec_count: 2} = Node.status(name)
    assert uptime >= 0
  end

  test "runs one function at a time, in order", %{name: name} do
    {:ok, running} = Agent.start_link(fn -> 0 end)

    tasks =
      for i <- 1..20 do
        Task.async(fn ->
          Node.with_node(
            fn ->
              assert Agent.get_and_update(running, &{&1, &1 + 1}) == 0
              Process.sleep(1)
              Agent.update(running, &(&1 - 1))
              i
            end,
            name
          )
        end)
      end

    assert Task.await_many(tasks) == Enum.to_list(1..20)
  end

  test "failures are errors of one caller", %{name: name} do
    assert Node.with_node(fn -> raise ArgumentError, "no" end, name) == {:error, %ArgumentError{message: "no"}}
    assert Node.with_node(fn -> throw(:ball) end, name) == {:error, {:throw, :ball}}
    assert Node.with_node(fn -> exit(:left) end, name) == {:error, {:exit, :left}}
    assert Node.with_node(fn -> Process.exit(self(), :kill) end, name) == {:error, {:exit, :killed}}
    assert Node.with_node(fn -> :alive end, name) == :alive
  end

  test "a caller waits no longer than it is told to, and nothing runs for one that has given up", %{name: name} do
    Application.put_env(:nx_vulkan, :node_timeout_ms, 30)
    parent = self()
    slow = Task.async(fn -> Node.with_node(fn -> Process.sleep(150) end, name) end)
    Process.sleep(5)
    assert Node.with_node(fn -> send(parent, :ran) end, name) == {:error, :node_timeout}
    assert Task.await(slow) == {:error, :node_timeout}
    Application.put_env(:nx_vulkan, :node_timeout_ms, 5_000)
    assert Node.with_node(fn -> :again end, name) == :again
    refute_received :ran
  end

  test "what a killed caller has in the queue does not run", %{name: name} do
    parent = self()
    slow = Task.async(fn -> Node.with_node(fn -> Process.sleep(100) end, name) end)
    Process.sleep(10)
    caller = spawn(fn -> Node.with_node(fn -> send(parent, :ran) end, name) end)
    Process.sleep(10)
    Process.exit(caller, :kill)
    assert Task.await(slow) == :ok
    assert Node.with_node(fn -> :next end, name) == :next
    refute_received :ran
    assert %{exec_count: 2} = Node.status(name)
  end

  test "a time limit that is none", %{name: name} do
    for wrong <- ["30", -1, 1.5, nil, 5_000_000_000] do
      Application.put_env(:nx_vulkan, :node_timeout_ms, wrong)
      assert_raise ArgumentError, ~r/:node_timeout_ms/, fn -> Node.with_node(fn -> :value end, name) end
    end
  end

  test "a function may call its own node, by name and by process, and so may its tasks", %{name: name} do
    # Where it waits, it waits for ever but for this.
    Application.put_env(:nx_vulkan, :node_timeout_ms, 2_000)
    pid = GenServer.whereis(name)

    for outer <- [name, pid], inner <- [name, pid] do
      assert Node.with_node(fn -> Node.with_node(fn -> {:error, :of_its_own} end, inner) end, outer) ==
               {:error, :of_its_own}

      task = fn fun -> fun |> Task.async() |> Task.await() end
      in_task = fn -> task.(fn -> task.(fn -> Node.with_node(fn -> :deep end, inner) end) end) end
      assert Node.with_node(in_task, outer) == :deep

      assert Node.with_node(fn -> Node.with_node(fn -> raise "no" end, inner) end, outer) ==
               {:error, %RuntimeError{message: "no"}}
    end

    # A task of one that only waits has its turn after it.
    assert task_of_waiting(name) == [:first, :second]
  end

  defp task_of_waiting(name) do
    parent = self()

    slow =
      Task.async(fn ->
        Node.with_node(
          fn ->
            Process.sleep(50)
            send(parent, :first)
          end,
          name
        )
      end)

    Process.sleep(10)
    Task.await(Task.async(fn -> Node.with_node(fn -> send(parent, :second) end, name) end))
    Task.await(slow)
    for _ <- 1..2, do: receive(do: (word when word in [:first, :second] -> word))
  end

  test "a function that another node runs for one of this node's calls this node", %{name: name} do
    Application.put_env(:nx_vulkan, :node_timeout_ms, 5_000)
    other = Module.concat(name, Other)
    start_supervised!(%{id: other, start: {Node, :start_link, [[name: other]]}})
    call = fn fun, names -> Enum.reduce(names, fun, fn name, fun -> fn -> Node.with_node(fun, name) end end) end
    assert call.(fn -> :deep end, [name, other, name]).() == :deep
    assert call.(fn -> :deep end, [other, name, other, name]).() == :deep
    assert Node.with_node(fn -> :next end, name) == :next
  end

  test "a function that fails within another is an error there", %{name: name} do
    for {fail, error} <- [
          {fn -> raise "no" end, %RuntimeError{message: "no"}},
          {fn -> throw(:ball) end, {:throw, :ball}},
          {fn -> exit(:left) end, {:exit, :left}}
        ] do
      assert Node.with_node(fn -> {:handled, Node.with_node(fail, name)} end, name) == {:handled, {:error, error}}
    end
  end

  test "several nodes have a supervisor", %{name: name} do
    names = for word <- ~w(One Two), do: Module.concat(name, word)
    children = for name <- names, do: {Node, name: name}
    start_supervised!(%{id: :both, start: {Supervisor, :start_link, [children, [strategy: :one_for_one]]}})
    assert Enum.map(names, &Node.with_node(fn -> 1 end, &1)) == [1, 1]
    assert Node.child_spec([]).id == Node
  end

  test "functions have the caller's backend", %{name: name} do
    Nx.default_backend({Nx.BinaryBackend, []})
    assert Node.with_node(&Nx.default_backend/0, name) == {Nx.BinaryBackend, []}
  end

  test "a node that ends leaves its callers with an error", %{name: name} do
    caller = Task.async(fn -> Node.with_node(fn -> Process.sleep(:infinity) end, name) end)
    Process.sleep(20)
    stop_supervised!(name)
    assert Task.await(caller) == {:error, :node_dead}
  end
end
