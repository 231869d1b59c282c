defmodule Nx.Vulkan.Doctests do
  @moduledoc """
  Runs the examples of a module of Nx with `Nx.Vulkan.VulkanoBackend` as the default backend.

      use Nx.Vulkan.Doctests, of: Nx, except: [:moduledoc]

  Options other than `:of` are those of `ExUnit.DocTest.doctest/2`. The examples that `Nx.Vulkan.Pending` lists are left out of
  the run; instead one test asserts that each of them still fails.
  """

  alias Nx.Vulkan.Pending

  defmacro __using__(opts) do
    {module, opts} = Keyword.pop!(opts, :of)

    quote do
      use ExUnit.Case, async: true

      @moduletag :device

      setup do
        Nx.default_backend(Nx.Vulkan.VulkanoBackend)
        :ok
      end

      doctest unquote(module), unquote(opts)

      if Pending.doctests(unquote(module)) != [] do
        test "what is pending fails" do
          assert Nx.Vulkan.Doctests.passing(__MODULE__, Pending.doctests(unquote(module))) == []
        end
      end
    end
  end

  @doc """
  Those of the named examples that pass; a name that the module does not have raises.
  """
  def passing(module, names) do
    for name <- names, example = :"doctest #{name}", passes?(module, example), do: name
  end

  defp passes?(module, example) do
    function_exported?(module, example, 1) || raise ArgumentError, "#{example} is no test"

    try do
      apply(module, example, [%{}])
      true
    rescue
      _ -> false
    end
  end
end
