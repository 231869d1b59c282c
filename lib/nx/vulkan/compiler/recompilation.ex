defmodule Nx.Vulkan.Compiler.Recompilation do
  @moduledoc false

  # Warns once when the same code is compiled again and again for arguments of the same templates: then it is a closure
  # whose captured values change, and each of them is a constant of a Program of its own.

  alias Nx.Vulkan.Compiler.Cache

  require Logger

  @threshold 10

  @doc "Counts a compilation of `key`, the function, for arguments of these templates."
  @spec check(term, term) :: :ok
  def check(key, templates) when is_function(key) do
    threshold = Application.get_env(:nx_vulkan, :recompile_warning, @threshold)

    if is_integer(threshold) and Cache.count({code(key), templates}) == threshold do
      Logger.warning(
        "#{inspect(key)} was compiled #{threshold} times for arguments of the same types and shapes, because it captures " <>
          "values that differ from call to call. Pass them as arguments instead"
      )
    end

    :ok
  end

  def check(_key, _templates), do: :ok

  # What a function is, less the values that it captured.
  defp code(fun) when is_function(fun) do
    info = Function.info(fun)
    {info[:module], info[:name], info[:arity], shape(info[:env])}
  end

  defp shape(fun) when is_function(fun), do: code(fun)
  defp shape(%Nx.Tensor{type: type, shape: shape}), do: {type, shape}
  defp shape(%struct{} = value), do: {struct, value |> Map.from_struct() |> shape()}
  defp shape(map) when is_map(map), do: Map.new(map, fn {key, value} -> {key, shape(value)} end)
  defp shape(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> shape()
  defp shape([head | tail]), do: [shape(head) | shape(tail)]
  defp shape(number) when is_number(number), do: :number
  defp shape(binary) when is_binary(binary), do: :binary
  defp shape(reference) when is_reference(reference), do: :reference
  defp shape(other), do: other
end
