# Random bad calls to Nx.Vulkan.NativeV: each must give an error, and the VM and the device must go on working.
#
#     mix run test/support/native_v_fuzz.exs [calls] [seed]
#
# 10,000 calls unless told. The same seed makes the same calls. Where spirv-val is installed, modules with a flipped bit
# are among them, and with NX_VULKAN_VALIDATION=required one message of the validation layer fails the run.
Code.ensure_loaded?(Nx.Vulkan.NativeVFuzz) || Code.require_file("native_v_fuzz.ex", __DIR__)

{calls, seed} =
  case System.argv() do
    [] -> {10_000, :rand.uniform(1_000_000)}
    [calls] -> {String.to_integer(calls), :rand.uniform(1_000_000)}
    [calls, seed] -> {String.to_integer(calls), String.to_integer(seed)}
  end

:ok = Nx.Vulkan.init()
Nx.Vulkan.NativeVFuzz.run(calls, seed)

case Nx.Vulkan.NativeV.device_validation_messages() do
  nil -> :ok
  [] -> IO.puts("the Vulkan validation layer has no complaint")
  messages -> raise "the Vulkan validation layer complains:\n" <> Enum.join(Enum.uniq(messages), "\n")
end
