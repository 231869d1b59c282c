defmodule Nx.Vulkan.NativeTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.{Native, NativeV}

  @moduletag :device

  defp shader(name), do: Application.app_dir(:nx_vulkan, "priv/shaders/#{name}.spv")

  test "the device under its earlier names" do
    assert Native.init() == :ok
    assert Native.device_name() == Nx.Vulkan.device_name()
    assert Native.has_f64() == Nx.Vulkan.has_f64?()
  end

  test "reduce_scalar/3" do
    {:ok, ref} = NativeV.buf_upload(for x <- 1..1000, into: <<>>, do: <<x * 1.0::float-32-little>>)
    assert Native.reduce_scalar(ref, 0, shader("reduce_axis")) == {:ok, 500_500.0}
    assert Native.reduce_scalar(ref, 1, shader("reduce_axis")) == {:ok, 1000.0}
    assert Native.reduce_scalar(ref, 9, shader("reduce_axis")) == {:error, :bad_input}
    {:ok, odd} = NativeV.buf_upload(<<1.0::float-32-little, 2.0::float-32-little, 0>>)
    assert Native.reduce_scalar(odd, 0, shader("reduce_axis")) == {:error, :size_mismatch}
    {:ok, none} = NativeV.buf_alloc(0)
    assert Native.reduce_scalar(none, 1, shader("reduce_axis")) == {:ok, :neg_infinity}
    {:ok, nan} = NativeV.buf_upload(<<0x7FC00000::32-little>>)
    assert Native.reduce_scalar(nan, 0, shader("reduce_axis")) == {:ok, :nan}
  end

  test "leapfrog_chain_synth/6 is NativeV's" do
    arguments = ["", "", "", "", 0, shader("examples/regime")]
    assert apply(Native, :leapfrog_chain_synth, arguments) == apply(NativeV, :leapfrog_chain_synth, arguments)
  end
end
