defmodule Nx.Vulkan.Pending do
  @moduledoc """
  The examples in Nx's documentation that do not pass yet, by the op that is missing, or `:digits` where the last printed
  digits differ.

  An example that is listed and passes fails the suite.
  """

  @doctests %{
    Nx => []
  }

  @doc "The names of all pending examples."
  def doctests, do: Enum.flat_map(Map.keys(@doctests), &doctests/1)

  @doc "The names of the pending examples of a module."
  def doctests(module), do: @doctests |> Map.get(module, []) |> Enum.flat_map(&elem(&1, 1))

  @doc "Filters for ExUnit's `:exclude`."
  def exclude, do: for(name <- doctests(), do: {:test, :"doctest #{name}"})
end
