for module <- [Nx, Nx.LinAlg, Nx.Random] do
  defmodule Module.concat(Nx.Vulkan.Conformance.DoctestDeferred, module) do
    use Nx.Vulkan.Doctests, of: module, eager: :deferred
  end
end
