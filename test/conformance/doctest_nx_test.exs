defmodule Nx.Vulkan.Conformance.DoctestNxTest do
  use Nx.Vulkan.Doctests, of: Nx
end
