defmodule Nx.Vulkan.DistributedServingTest do
  # Three nodes with five devices serve clients of a fourth one while one of them is killed.
  # `NX_VULKAN_TEST_DEVICE=several` shows lavapipe twice, and SwiftShader.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.{NativeV, RemoteNode, ServingNode}

  @moduletag :device
  @moduletag :several_devices
  @moduletag :capture_log

  @clients 12
  # Requests that each client has had answered before a node is killed, and after that.
  @before_kill 20
  @after_kill 40
  # So many requests are done on the node, and not answered yet, when it is killed.
  @held 3

  setup do
    RemoteNode.start_distribution()
    {:ok, %{index: default, name: name}} = Nx.Vulkan.device_info()
    usable = for %{usable: true, index: index} <- Nx.Vulkan.devices(), index != default, do: index
    twins = for %{usable: true, name: ^name, index: index} <- Nx.Vulkan.devices(), index != default, do: index
    # Where there is none of another kind, one more of the same.
    [other | _] = (usable -- twins) ++ twins
    %{devices: [[default, List.first(twins, other)], [default, other], [other]]}
  end

  # Asks until it is told to stop, and tells `counter` of each request: that it asks, and what came of it.
  defp client(serving, number, victim, counter, count \\ 0) do
    receive do
      :stop -> count
    after
      0 ->
        id = {number, count}
        # From one to three rows, so that requests share batches, and some are in two.
        rows = for row <- 0..rem(count, 3), do: [1000 * number + count, row]
        # Whether this node knows by now that the other one is gone.
        listed? = victim in nodes(serving)
        send(counter, {:asks, id})
        send(counter, {:got, id, listed?, rows, ask(serving, {id, counter, rows})})
        client(serving, number, victim, counter, count + 1)
    end
  end

  defp ask(serving, request) do
    {:ok, Nx.Serving.batched_run({:distributed, serving}, request)}
  catch
    :exit, {reason, {Nx.Serving, :distributed_batched_run, _args}} -> {:error, reason}
  end

  # A node is a member for each of its partitions.
  defp nodes(serving), do: for(pid <- :pg.get_members(Nx.Serving.PG, serving), uniq: true, do: node(pid))

  # What the clients tell, until `done?` holds of it: the requests that were asked, their outcomes, and the ids of those
  # that the victim holds back.
  defp gather(told, done?) do
    if done?.(told) do
      told
    else
      receive do
        {:asks, id} -> gather(%{told | asked: [id | told.asked]}, done?)
        {:got, id, listed?, rows, outcome} -> gather(%{told | got: [{id, listed?, rows, outcome} | told.got]}, done?)
        {:held, id, node} -> gather(%{told | held: [{id, node} | told.held]}, done?)
      after
        60_000 -> flunk("nothing comes any more: #{length(told.asked)} asked, #{length(told.got)} answered")
      end
    end
  end

  defp answered(got), do: Enum.frequencies(for {{client, _}, _, _, {:ok, _}} <- got, do: client)
  defp all_have?(got, count), do: got |> answered() |> Map.values() |> Enum.count(&(&1 >= count)) == @clients
  defp dispatches(node, device), do: :erpc.call(node, NativeV, :device_stats, [device]).dispatches

  test "a node that is killed takes the requests along that are under way there, and no other", %{devices: devices} do
    serving = __MODULE__.Serving

    nodes =
      for devices <- devices do
        {:ok, _peer, node} = ServingNode.start_link(serving, :counted, devices)
        {node, devices}
      end

    [{victim, _} | survivors] = nodes
    RemoteNode.wait_for(fn -> length(nodes(serving)) == 3 end)
    counter = self()
    clients = for number <- 1..@clients, do: Task.async(fn -> client(serving, number, victim, counter) end)

    # All nodes and devices work.
    told = gather(%{asked: [], got: [], held: []}, &all_have?(&1.got, @before_kill))
    assert told.got |> Enum.map(fn {_, _, _, {:ok, {_, node, _}}} -> node end) |> Enum.uniq() |> length() == 3
    for {node, devices} <- nodes, device <- devices, do: assert(dispatches(node, device) > 0)

    # From now on it answers nothing, and is killed with requests under way.
    process = :erpc.call(victim, System, :pid, [])
    :ok = :erpc.call(victim, ServingNode, :hold, [])
    told = gather(told, &(length(&1.held) >= @held))
    {_, 0} = System.cmd("kill", ["-9", process])
    used = for {node, devices} <- survivors, device <- devices, do: {node, device, dispatches(node, device)}
    until = length(told.got)

    # The others go on as before.
    told = gather(told, fn told -> told.got |> Enum.drop(-until) |> all_have?(@after_kill) end)
    for client <- clients, do: send(client.pid, :stop)
    counts = Task.await_many(clients, 60_000)
    told = gather(told, &(length(&1.got) == Enum.sum(counts)))
    refute_received {:asks, _id}

    # Every request has one outcome.
    asked = for {count, number} <- Enum.with_index(counts, 1), i <- 0..(count - 1), do: {number, i}
    assert Enum.sort(told.asked) == asked
    assert told.got |> Enum.map(&elem(&1, 0)) |> Enum.sort() == asked
    {right, wrong} = Enum.split_with(told.got, &match?({_, _, _, {:ok, _}}, &1))

    # It is the right one for the request, whatever shared its batch. Of a request in two batches Nx puts the rows together
    # in the order in which these are done.
    for {id, _listed?, rows, {:ok, {of, node, result}}} <- right do
      assert {of, Enum.sort(result)} == {id, for([a, b] <- rows, do: [2 * a, 2 * b])}
      assert node in Enum.map(nodes, &elem(&1, 0))
    end

    # Those that were under way on the node have an error. Nobody else has: what fails was asked while this node did not
    # know yet that the other one is gone, and was given to it.
    failed = Enum.map(wrong, &elem(&1, 0))
    assert length(told.held) >= @held
    for {id, node} <- told.held, do: assert({id in failed, node} == {true, victim})
    for {_id, listed?, _rows, outcome} <- wrong, do: assert({listed?, outcome} == {true, {:error, :noconnection}})
    assert length(right) + length(wrong) == length(asked)
    assert length(right) >= @clients * (@before_kill + @after_kill)

    # All devices that are left had a part in it.
    for {node, device, before} <- used, do: assert(dispatches(node, device) > before)
    assert nodes(serving) |> Enum.sort() == survivors |> Enum.map(&elem(&1, 0)) |> Enum.sort()
  end
end
