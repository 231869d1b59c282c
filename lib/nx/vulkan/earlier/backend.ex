defmodule Nx.Vulkan.Backend do
  @moduledoc """
  The name that `Nx.Vulkan.VulkanoBackend` had in the library's first version, for programs that still say it.

      Nx.default_backend(Nx.Vulkan.Backend)

  Tensors that it makes are those of `Nx.Vulkan.VulkanoBackend`, which does all their work.
  """

  @behaviour Nx.Backend

  alias Nx.Vulkan.VulkanoBackend

  for {name, arity} <- Nx.Backend.behaviour_info(:callbacks),
      {name, arity} in VulkanoBackend.__info__(:functions) do
    args = Macro.generate_arguments(arity, __MODULE__)
    @impl true
    defdelegate unquote(name)(unquote_splicing(args)), to: VulkanoBackend
  end
end
