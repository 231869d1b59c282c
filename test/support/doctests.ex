defmodule Nx.Vulkan.Doctests do
  @moduledoc """
  Runs the examples of a module of Nx with `Nx.Vulkan.VulkanoBackend` as the default backend.

      use Nx.Vulkan.Doctests, of: Nx

  `eager: :deferred` runs them with deferred ops, under the tag `deferred_doctests`.
  """

  defmacro __using__(opts) do
    quote bind_quoted: [module: opts[:of], eager: opts[:eager]] do
      use ExUnit.Case, async: true

      @moduletag :device
      @eager eager
      if eager, do: @moduletag(:deferred_doctests)

      setup do
        Nx.default_backend(Nx.Vulkan.VulkanoBackend)
        Nx.Vulkan.VulkanoBackend.put_eager(@eager)
        :ok
      end

      doctest module
    end
  end
end
