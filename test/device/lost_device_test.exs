defmodule Nx.Vulkan.LostDeviceTest do
  # One of two devices is lost in the middle of a step: a layer of Vulkan refuses a submission, as a driver does. What
  # is lost stays so, hence a node for each test.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.{Devices, Faults, LostDevice, RemoteNode}

  @moduletag :device
  @moduletag :several_devices
  @moduletag :capture_log
  @moduletag :tmp_dir
  if Faults.missing(), do: @moduletag(skip: Faults.missing())

  setup %{tmp_dir: folder} do
    RemoteNode.start_distribution()
    {:ok, _peer, node, layer} = Faults.start_link(folder)
    devices = :erpc.call(node, LostDevice, :devices, [], 60_000)
    %{node: node, layer: layer, devices: devices}
  end

  defp on(%{node: node}, function, args), do: :erpc.call(node, LostDevice, function, args, 300_000)

  test "a pipeline names stage and device, and the others go on", %{devices: [first, second]} = context do
    told = on(context, :pipeline, [context.layer, [first, second]])
    name = Devices.name(second)
    assert %Nx.Vulkan.Error{kind: :device_lost, details: %{stage: 1, device: ^second, devices: [^second]}} = told.error
    assert Exception.message(told.error) =~ "stage 1 on #{name}: the Vulkan device was lost: #{name} (device_lost)"
    assert told.lost == [second]
    assert told.again == told.expected
    {before, now} = told.kept
    assert now <= before
    assert %Nx.Vulkan.Error{kind: :device_lost, details: %{stage: 1, device: ^second}} = told.placing
  end

  # Passes of either stage, or values on their way between them.
  for call <- [1, 2, 4, 7, 11] do
    test "a pipeline in training names the stage whose device it is: submission #{call}", context do
      told = on(context, :training, [context.layer, context.devices, unquote(call)])
      assert [lost] = told.lost
      stage = Enum.find_index(context.devices, &(&1 == lost))
      assert %Nx.Vulkan.Error{kind: :device_lost, details: %{stage: ^stage, device: ^lost}} = told.error
      assert told.again == told.expected
      {before, now} = told.kept
      assert now <= before
    end
  end

  # Other submissions of a step: of one device, or of the other.
  for call <- 1..4 do
    test "a step on a mesh names the device, and the other goes on: submission #{call}", context do
      told = on(context, :mesh, [context.layer, context.devices, unquote(call)])
      assert [lost] = told.lost
      assert lost in context.devices
      assert %Nx.Vulkan.Error{kind: :device_lost, details: %{devices: [^lost]}} = told.error
      assert Exception.message(told.error) =~ "the Vulkan device was lost: #{Devices.name(lost)}, in "
      assert told.again == told.expected
      {before, now} = told.kept
      assert now <= before
    end
  end
end
