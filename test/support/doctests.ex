defmodule Nx.Vulkan.Doctests do
  @moduledoc """
  Runs the examples of a module of Nx with `Nx.Vulkan.VulkanoBackend` as the default backend.

      use Nx.Vulkan.Doctests, of: Nx
  """

  defmacro __using__(of: module) do
    quote do
      use ExUnit.Case, async: true

      @moduletag :device

      setup do
        Nx.default_backend(Nx.Vulkan.VulkanoBackend)
        :ok
      end

      doctest unquote(module)
    end
  end
end
