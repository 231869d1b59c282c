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
    for wrong <- ["30", -1, 1.5, nil] do
      Application.put_env(:nx_vulkan, :node_timeout_ms, wrong)
      assert_raise ArgumentError, ~r/:node_timeout_ms/, fn -> Node.with_node(fn -> :value end, name) end
    end
  end

  test "a function may call its own node", %{name: name} do
    assert Node.with_node(fn -> Node.with_node(fn -> :inner end, name) end, name) == :inner
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
