defmodule Nx.Vulkan.Conformance.DoctestLinAlgTest do
  use Nx.Vulkan.Doctests, of: Nx.LinAlg
end
