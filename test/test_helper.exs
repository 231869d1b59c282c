# NX_VULKAN_TEST_DEVICE says what the run must be on: `lavapipe`, `swiftshader`, `several` devices, one that Mesa only
# pretends (`radv:navi31`, `nvk:0x172`; see bin/environment.sh), `any` device, or `none`. Set and not there, the run
# fails. Unset, the tests that need a device are left out where there is none, and ExUnit's last line counts them as
# excluded.
wanted = System.get_env("NX_VULKAN_TEST_DEVICE", "")

# How names of devices begin.
named = %{"swiftshader" => "SwiftShader", "radv" => "AMD", "nvk" => "NVIDIA"}
sort = wanted |> String.split(":") |> hd()

if wanted not in ["", "none", "lavapipe", "several", "any"] and not is_map_key(named, sort) do
  raise ArgumentError,
        "NX_VULKAN_TEST_DEVICE is none, lavapipe, swiftshader, several, radv:<family>, nvk:<chipset> or any, not " <>
          inspect(wanted)
end

device =
  if wanted != "none" and Nx.Vulkan.init() == :ok do
    Enum.find(Nx.Vulkan.devices(), &(&1.name == Nx.Vulkan.device_name()))
  end

found = if device, do: device.name, else: "none"
usable = Enum.count(Nx.Vulkan.devices(), & &1.usable)

is_wrong =
  cond do
    wanted == "any" -> device == nil
    wanted == "lavapipe" -> not match?(%{kind: :cpu}, device)
    wanted == "several" -> usable < 2
    name = named[sort] -> not String.starts_with?(found, name)
    true -> false
  end

if is_wrong do
  raise "NX_VULKAN_TEST_DEVICE is #{wanted}, but the device is #{found}"
end

IO.puts("Device: #{found}#{if device == nil, do: ", the tests tagged :device are excluded"}")

# One message of the validation layer fails the run, whichever test it came from.
ExUnit.after_suite(fn _results ->
  case Nx.Vulkan.NativeV.device_validation_messages() do
    nil -> :ok
    [] -> IO.puts("The Vulkan validation layer has no complaint")
    messages -> raise "the Vulkan validation layer complains:\n" <> Enum.join(Enum.uniq(messages), "\n")
  end
end)

# The examples of Nx's documentation print tensors without a backend.
Application.put_env(:nx_vulkan, :add_backend_on_inspect, false)

# A test over all types has lavapipe compile hundreds of kernels, 10 to 100 ms of a core each.
exclude =
  [
    :nx_suites,
    :compiler_suites,
    :axon_suites,
    :scholar_suites,
    :ops_table,
    :deferred_doctests,
    :posteriors,
    :chain_sweep,
    :models,
    :gguf_damage
  ] ++
    if(device, do: [], else: [:device]) ++
    if(usable > 1, do: [], else: [:several_devices])

ExUnit.start(exclude: exclude, timeout: to_timeout(minute: 10))
