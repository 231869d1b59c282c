# Runs the chains whose inputs the spike wrote to target/ through NativeV, and writes what they leave beside them.
#
#     mix run spike/vulkano_synth/nif.exs

alias Nx.Vulkan.NativeV

folder = Path.join(__DIR__, "target")

for {name, chain} <- [
      {"regime", &NativeV.leapfrog_chain_synth/6},
      {"regime_f64", &NativeV.leapfrog_chain_synth_f64/6}
    ] do
  [q, p, extras, push] = for part <- ~w(q p extras push), do: File.read!(Path.join(folder, "#{name}.#{part}"))
  <<k_steps::32-little, _::binary>> = push
  shader = Application.app_dir(:nx_vulkan, "priv/shaders/examples/#{name}.spv")
  {:ok, {q_chain, p_chain, grad_chain, logp_chain}} = chain.(q, p, extras, push, k_steps, shader)
  File.write!(Path.join(folder, "#{name}.nif.out"), [q_chain, p_chain, grad_chain, logp_chain])
  IO.puts("wrote #{name}.nif.out")
end
