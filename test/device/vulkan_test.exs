defmodule Nx.VulkanTest do
  use ExUnit.Case, async: true

  @moduletag :device

  test "init/0 opens the device, again and again" do
    assert Nx.Vulkan.init() == :ok
    assert Nx.Vulkan.init() == :ok
  end

  test "devices/0 has the device in use, with all its keys" do
    devices = Nx.Vulkan.devices()
    assert Enum.map(devices, & &1.index) == Enum.to_list(0..(length(devices) - 1))
    assert %{usable: true, reason: nil} = device = Enum.find(devices, &(&1.name == Nx.Vulkan.device_name()))
    assert device.kind in [:discrete, :integrated, :virtual, :cpu, :other]
    assert device.uuid =~ ~r/^[0-9a-f]{32}$/
    assert device.api_version =~ ~r/^1\.\d+\.\d+$/
    assert device.memory_bytes > 0
    assert device.has_f64 == Nx.Vulkan.has_f64?()
    assert [least, usual, most] = device.subgroup_sizes
    assert 1 <= least and least <= usual and usual <= most
    assert device.pci == nil or device.pci =~ ~r/^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$/
    assert Enum.any?(device.heaps, &(&1.device_local and &1.size_bytes == device.memory_bytes))
    for matrices <- device.matrices, do: assert(%{sizes: [_, _, _], types: [_, _, _, _]} = matrices)
  end

  test "device_info/0 has what devices/0 has, what chose the device, and what it runs by" do
    assert {:ok, device} = Nx.Vulkan.device_info()
    listed = Enum.find(Nx.Vulkan.devices(), &(&1.index == device.index))
    assert Map.take(device, Map.keys(listed)) == Map.delete(listed, :heaps)

    chosen =
      Enum.find_value(["NX_VULKAN_DEVICE", "NXV_DEVICE"], fn name ->
        if value = System.get_env(name), do: "#{name}=#{value}"
      end)

    assert device.selected_by == (chosen || "first #{device.kind}")
    assert %{measured: measured, class: class, processors: processors} = device.calibration
    assert is_boolean(measured) and is_binary(class) and processors > 0
    assert device.validation == (Nx.Vulkan.NativeV.device_validation_messages() != nil)
    assert device.versions.nx =~ ~r/^\d+\./
    assert device.versions.otp == System.otp_release()
    refute Map.has_key?(device, :selector)
    # As exmc asks.
    assert {:ok, %{supports_f64: f64, pci: _, driver: driver, uuid: uuid}, by} = Nx.Vulkan.NativeV.device_info()
    assert {f64, driver, uuid, by} == {device.has_f64, device.driver, device.uuid, device.selected_by}
    {:ok, %{kind: kind}, _by} = Nx.Vulkan.NativeV.device_info()
    assert {:ok, device.name, kind} == Nx.Vulkan.NativeV.device_name()

    told = Nx.Vulkan.Device.info()

    assert Map.take(told, [:name, :uuid, :pci, :driver, :selected_by]) ==
             Map.take(device, [:name, :uuid, :pci, :driver, :selected_by])

    assert %{kind: ^kind, supports_f64: ^f64} = told
  end

  test "what chose the device is told by its name and value" do
    script = "{:ok, d} = Nx.Vulkan.device_info(); IO.write([d.selected_by, 10, d.name])"
    paths = Enum.flat_map(Path.wildcard("#{Mix.Project.build_path()}/lib/*/ebin"), &["-pa", &1])
    name = Nx.Vulkan.device_name()
    unset = [{"NX_VULKAN_DEVICE", nil}, {"NXV_DEVICE", nil}]
    start = "{:ok, _} = Application.ensure_all_started(:nx_vulkan); "

    for {env, flags, by} <- [
          {[{"NX_VULKAN_DEVICE", "name:" <> name}], [], "NX_VULKAN_DEVICE=name:" <> name},
          {[{"NXV_DEVICE", "0"}], [], "NXV_DEVICE=0"},
          {[], ["--erl", "-nx_vulkan device <<\"0\">>"], "config :nx_vulkan, device: \"0\""}
        ] do
      {output, 0} =
        System.cmd("elixir", flags ++ paths ++ ["-e", start <> script], env: Enum.uniq_by(env ++ unset, &elem(&1, 0)))

      assert [^by, _name] = String.split(output, "\n")
    end
  end
end
