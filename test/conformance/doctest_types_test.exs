defmodule Nx.Vulkan.Conformance.DoctestConstantsTest do
  use Nx.Vulkan.Doctests, of: Nx.Constants
end

defmodule Nx.Vulkan.Conformance.DoctestTypeTest do
  use Nx.Vulkan.Doctests, of: Nx.Type
end
