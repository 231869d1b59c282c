for module <- [Nx, Nx.LinAlg, Nx.Random] do
  defmodule Module.concat(Nx.Vulkan.Conformance.DoctestCompiled, module) do
    use Nx.Vulkan.Doctests, of: module, compiler: Nx.Vulkan
  end
end
