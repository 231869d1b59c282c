defmodule Nx.Vulkan.Conformance.DoctestRandomTest do
  use Nx.Vulkan.Doctests, of: Nx.Random
end
