defmodule Nx.Vulkan.TimelineTest do
  # Alone: launches of other tests would be on the time line.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.{Error, NativeV, Profile, Timeline, VulkanoBackend}

  doctest Timeline

  @moduletag :device
  @mega 1024 * 1024

  setup do
    Nx.default_backend(VulkanoBackend)
    on_exit(fn -> Profile.reset() end)
  end

  defp kernels(timeline), do: for(%{kernel: kernel} <- timeline.launches, do: kernel)

  test "a run has its memory and its launches, in their order" do
    Process.register(self(), :runs_here)
    Nx.to_number(Nx.sum(Nx.iota({5}, type: :f32)))

    {held, timeline} =
      Timeline.record(
        fn ->
          x = Nx.exp(Nx.iota({2, @mega}, type: :f32))
          Nx.to_number(Nx.sort(x)[0][0])
          Process.sleep(20)
          x
        end,
        interval_ms: 2
      )

    assert timeline.device == Nx.Vulkan.device_name()
    assert timeline.budget_bytes == Nx.Vulkan.memory().budget_bytes
    assert Nx.size(held) == 2 * @mega

    # Those before are not on it, nor is that by which clocks are compared.
    names = kernels(timeline)
    assert [exp, sort] = for(part <- ["exp", "sort"], do: Enum.find_index(names, &(&1 =~ part)))
    assert exp < sort
    refute Enum.any?(names, &(&1 =~ "multiply" or &1 =~ "sum"))
    starts = Enum.map(timeline.launches, & &1.at_ms)
    assert starts == Enum.sort(starts)
    assert Enum.all?(timeline.launches, &(&1.at_ms >= 0 and &1.ms >= 0 and &1.at_ms + &1.ms <= timeline.duration_ms))

    # What is held shows by kind and by process.
    times = Enum.map(timeline.samples, & &1.at_ms)
    assert times == Enum.sort(times) and List.last(times) == timeline.duration_ms
    last = List.last(timeline.samples)
    assert last.kinds.tensors >= 8 * @mega
    assert Enum.find(last.processes, &(&1.name == ":runs_here")).bytes >= 8 * @mega
    assert hd(timeline.samples).kinds.tensors < last.kinds.tensors
    assert Enum.sort(Map.keys(last.kinds)) == [:copies, :free, :other, :staging, :tensors]
  end

  test "no times are taken afterwards, also where the run fails" do
    before = Process.list()
    assert_raise RuntimeError, fn -> Timeline.record(fn -> raise "it fails" end) end
    assert catch_throw(Timeline.record(fn -> throw(:away) end)) == :away
    Nx.to_number(Nx.sum(Nx.iota({9}, type: :f32)))
    assert Profile.rows() == []
    assert Enum.filter(Process.list() -- before, &recorder?/1) == []
    assert Process.info(self(), :messages) == {:messages, []}

    {3, timeline} = Timeline.record(fn -> Nx.to_number(Nx.sum(Nx.iota({3}))) end, launches: false)
    assert timeline.launches == [] and timeline.samples != []
    assert NativeV.profile_launches(nil) == {:ok, []}

    # What was measured before stays.
    Profile.start()
    Nx.to_number(Nx.sum(Nx.iota({7}, type: :f32)))
    before = for %{kernel: kernel} <- Profile.rows(), do: kernel
    Timeline.record(fn -> :ok end)
    assert before -- for(%{kernel: kernel} <- Profile.rows(), do: kernel) == []
  end

  defp recorder?(pid) do
    match?({:initial_call, {Timeline, _, _}}, Process.info(pid, :initial_call)) or
      match?(
        [{Timeline, _, _} | _],
        elem(Process.info(pid, :dictionary) || {nil, []}, 1)[:"$initial_call"] |> List.wrap()
      )
  end

  test "a recorder goes on until it is stopped, or who it is for has ended" do
    recorder = start_supervised!({Timeline, interval_ms: 1, last_ms: 200})
    Nx.to_number(Nx.sum(Nx.iota({11}, type: :f32)))
    first = Timeline.get(recorder)
    assert Enum.any?(kernels(first), &(&1 =~ "sum"))
    Process.sleep(400)
    assert length(Timeline.get(recorder).samples) >= 2
    # What is older is forgotten.
    assert Timeline.get(recorder).launches == []
    assert Timeline.stop(recorder) == :ok

    owner = spawn(fn -> Process.sleep(:infinity) end)
    recorder = Timeline.start_for(owner, launches: false)
    monitor = Process.monitor(recorder)
    Process.exit(owner, :kill)
    assert_receive {:DOWN, ^monitor, :process, ^recorder, :normal}, 5_000
  end

  test "options are checked" do
    for opts <- [[interval_ms: 0], [interval_ms: nil], [last_ms: -1], [launches: 1], [device: :gpu], [other: 1]] do
      assert_raise ArgumentError, fn -> Timeline.record(fn -> :ok end, opts) end
    end

    assert %Error{kind: :no_device} = catch_error(Timeline.record(fn -> :ok end, device: "no such device"))
  end
end
