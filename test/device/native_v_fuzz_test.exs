defmodule Nx.Vulkan.NativeVFuzzTest do
  # It switches :validate_spirv on and off.
  use ExUnit.Case, async: false

  import ExUnit.CaptureIO

  @moduletag :device
  @moduletag timeout: 300_000

  # All of test/support/native_v_fuzz.exs is 10,000 calls.
  test "bad calls give errors and leave the VM alive" do
    seed = ExUnit.configuration()[:seed]
    assert capture_io(fn -> Nx.Vulkan.NativeVFuzz.run(640, seed) end) =~ "fuzz: ok, 640 calls"
  end
end
