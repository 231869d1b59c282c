defmodule Nx.Vulkan.ChainTraceTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.{ChainTrace, NativeV}

  @moduletag :device

  @spv Application.app_dir(:nx_vulkan, "priv/shaders/leapfrog_chain_normal_f64.spv")

  defp pack(values), do: for(x <- values, into: <<>>, do: <<x::float-64-little>>)

  # Chains of a Normal(1, 2) of three dimensions; what `dispatch` is given last is the device.
  defp dispatch(k, device \\ []) do
    push = <<3::32-little, k::32-little>> <> pack([0.1, 1.0, 2.0])
    args = [pack([0.1, 0.2, 0.3]), pack([1.0, -1.0, 0.5]), pack([1.0, 1.0, 1.0]), push, k, @spv]
    {apply(ChainTrace, :dispatch_f64, args ++ device), apply(NativeV, :leapfrog_chain_synth_f64, args)}
  end

  test "a dispatch is the chain, on the device that is open" do
    {:ok, %{name: name, uuid: uuid}} = NativeV.device_describe()

    for device <- [[], [nil], [0], [name], ["name:" <> name], ["uuid:" <> uuid]] do
      assert {{:ok, {q, _p, _grad, _logp}} = chain, chain} = dispatch(5, device)
      assert byte_size(q) == 5 * 3 * 8
    end

    assert {{:error, :vulkan_init_failed, message}, {:ok, _}} = dispatch(5, ["uuid:ffffffffffffffffffffffffffffffff"])
    assert message =~ "ffffffff"
    assert_raise ArgumentError, ~r/expected the device to be nil, 0 or a selector/, fn -> dispatch(5, [7]) end
  end

  test "a replay has the recorded results and no dispatches" do
    sample = fn -> for k <- [3, 9, 3], do: elem(dispatch(k), 0) end
    {recorded, trace} = ChainTrace.record(sample)
    assert recorded == sample.()
    # q, p, gradient and log density of 15 steps in three dimensions.
    assert ChainTrace.info(trace) == %{dispatches: 3, bytes: 15 * (3 * 3 + 1) * 8}

    only = fn -> for k <- [3, 9, 3], do: elem(traced(k), 0) end
    assert {^recorded, stats} = ChainTrace.replay(trace, only)
    assert %{dispatches: 3, elapsed_ms: elapsed, replay_overhead_ms: overhead} = stats
    assert elapsed >= overhead and overhead > 0

    assert {^recorded, %{elapsed_ms: delayed}} = ChainTrace.replay(trace, [delay_us: 2000], only)
    assert delayed >= 6
  end

  # As `dispatch/1`, with a shader that isn't there: what it answers can only come from a trace.
  defp traced(k) do
    push = <<3::32-little, k::32-little>> <> pack([0.1, 1.0, 2.0])
    {ChainTrace.dispatch_f64(pack([0.1, 0.2, 0.3]), <<0::192>>, <<0::192>>, push, k, "/nonexistent.spv"), k}
  end

  test "a replay that goes another way raises, and the process dispatches again" do
    {_, trace} = ChainTrace.record(fn -> dispatch(4) end)

    assert_raise ArgumentError, ~r/dispatch 0 of the replay is not the recorded one/, fn ->
      ChainTrace.replay(trace, fn -> traced(5) end)
    end

    assert_raise ArgumentError, ~r/more chains than were recorded, which are 1/, fn ->
      ChainTrace.replay(trace, fn -> {traced(4), traced(4)} end)
    end

    assert_raise ArgumentError, ~r/records or replays a trace already/, fn ->
      ChainTrace.record(fn -> ChainTrace.replay(trace, fn -> 1 end) end)
    end

    assert_raise ArgumentError, ~r/:delay_us/, fn -> ChainTrace.replay(trace, [delay_us: -1], fn -> 1 end) end
    assert {chain, chain} = dispatch(4)
    assert {{:error, :dispatch_failed, "read spv: " <> _}, 4} = traced(4)
  end
end
