defmodule Nx.Vulkan.Conformance.DoctestDefnTest do
  use Nx.Vulkan.Doctests, of: Nx.Defn
end

defmodule Nx.Vulkan.Conformance.DoctestDefnKernelTest do
  # The examples call these as if they were in a defn.
  import Nx.Defn.Kernel, only: [assert_keys: 2, keyword!: 2]
  use Nx.Vulkan.Doctests, of: Nx.Defn.Kernel
end
