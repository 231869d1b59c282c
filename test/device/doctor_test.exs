defmodule Nx.Vulkan.DoctorTest do
  # A VM of its own, on a device that lacks types as far as the engine knows.
  use ExUnit.Case, async: true

  @moduletag :device

  defp doctor(env) do
    env = [{"MIX_ENV", to_string(Mix.env())} | env]
    System.cmd("mix", ["nx_vulkan.doctor"], env: env, stderr_to_stdout: true)
  end

  test "says which devices there are, and which types are lowered" do
    {output, 0} = doctor([{"NX_VULKAN_LOWER", "f64,s64"}])
    name = Nx.Vulkan.device_name()
    device = Enum.find(Nx.Vulkan.devices(), &(&1.name == name))
    assert output =~ "  #{device.index}: #{name} (#{device.kind}, uuid:#{device.uuid})\n     #{device.driver}"
    assert output =~ "In use: #{device.index}: #{name}\n"
    assert output =~ ~r/native types: s2, .*f32, c64\n/
    assert output =~ "lowered types: s64, u64, f64, c128\n"
  end

  test "ends with an error where there is no device" do
    {output, status} = doctor([{"VK_DRIVER_FILES", "/nonexistent.json"}, {"VK_ICD_FILENAMES", "/nonexistent.json"}])
    assert status != 0
    assert output =~ "No Vulkan device was found."
    assert output =~ "no Vulkan device"
  end

  test "takes no arguments" do
    assert_raise Mix.Error, ~r/takes no arguments/, fn -> Mix.Tasks.NxVulkan.Doctor.run(["all"]) end
  end
end
