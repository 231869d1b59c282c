defmodule Nx.Vulkan.Doctests do
  @moduledoc """
  Runs the examples of a module of Nx with `Nx.Vulkan.VulkanoBackend` as the default backend.

      use Nx.Vulkan.Doctests, of: Nx

  `eager: :deferred` runs them with deferred ops, under the tag `deferred_doctests`; `compiler: Nx.Vulkan` compiles the
  numerical definitions in them.
  """

  defmacro __using__(opts) do
    quote bind_quoted: [module: opts[:of], eager: opts[:eager], compiler: opts[:compiler]] do
      use ExUnit.Case, async: true

      @moduletag :device
      @eager eager
      @options if compiler, do: [compiler: compiler], else: []
      if eager, do: @moduletag(:deferred_doctests)

      setup do
        Nx.default_backend(Nx.Vulkan.VulkanoBackend)
        Nx.Vulkan.VulkanoBackend.put_eager(@eager)
        Nx.Defn.default_options(@options)
        :ok
      end

      doctest module
    end
  end
end
