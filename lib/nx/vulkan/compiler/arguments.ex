defmodule Nx.Vulkan.Compiler.Arguments do
  @moduledoc false

  # Says which of a function's arguments an error is about.

  alias Nx.Defn.Composite
  alias Nx.Tensor, as: T
  alias Nx.Vulkan.NativeV

  @doc """
  The error of a run with `references`, with what is known of those that were deallocated: the number of the argument,
  from 1, the keys that lead to the tensor in it, its type and its shape. `templates` are the arguments, `kept` says
  which of their tensors have a reference.
  """
  @spec explain(Nx.Vulkan.Error.t(), [T.t() | Nx.Container.t()], [boolean] | nil, [reference]) :: Nx.Vulkan.Error.t()
  def explain(%Nx.Vulkan.Error{kind: :released} = error, templates, kept, references) do
    leaves = leaves(templates)
    kept = if kept, do: for({leaf, true} <- Enum.zip(leaves, kept), do: leaf), else: leaves

    case for({leaf, reference} <- Enum.zip(kept, references), released?(reference), do: leaf) do
      [] ->
        error

      released ->
        message =
          "#{Enum.map_join(released, ", ", &describe/1)} #{if match?([_], released), do: "was", else: "were"} deallocated, by " <>
            "Nx.backend_deallocate/1 or by an earlier call that it was donated to: pass a tensor that still has its memory, " <>
            "such as a copy made before by Nx.backend_copy/1"

        %{error | message: message, details: Map.put(error.details, :arguments, released)}
    end
  end

  def explain(error, _templates, _kept, _references), do: error

  defp released?(reference), do: match?({:error, :released, _, _, _}, NativeV.tensor_info(reference))

  @doc "The tensors of arguments, in the order of Nx, as maps of `:argument`, `:path`, `:type` and `:shape`."
  @spec leaves([T.t() | Nx.Container.t()]) :: [map]
  def leaves(templates) do
    for {template, argument} <- Enum.with_index(templates, 1), leaf <- leaves_of(template) do
      Map.put(leaf, :argument, argument)
    end
  end

  # The tensors in the order of Nx, which numbers them; where they are, whatever holds them.
  defp leaves_of(template) do
    {numbered, _} = Composite.traverse(template, 0, fn leaf, i -> {%{Nx.to_template(leaf) | data: i}, i + 1} end)
    numbered |> places([]) |> Enum.sort_by(& &1.number) |> Enum.map(&Map.delete(&1, :number))
  end

  defp places(%T{data: i, type: type, shape: shape}, path) when is_integer(i) do
    [%{number: i, path: Enum.reverse(path), type: type, shape: shape}]
  end

  defp places(%_{} = struct, path), do: struct |> Map.from_struct() |> places(path)
  defp places(map, path) when is_map(map), do: Enum.flat_map(map, fn {key, value} -> places(value, [key | path]) end)

  defp places(tuple, path) when is_tuple(tuple) do
    tuple |> Tuple.to_list() |> Enum.with_index() |> Enum.flat_map(fn {value, i} -> places(value, [i | path]) end)
  end

  defp places(_other, _path), do: []

  @doc "Such a tensor in words."
  @spec describe(map) :: String.t()
  def describe(%{argument: argument, path: path, type: type, shape: shape}) do
    keys = if path != [], do: " at #{Enum.map_join(path, ", ", &inspect/1)}"
    sizes = for size <- Tuple.to_list(shape), do: "[#{size}]"
    "argument #{argument}#{keys} (#{Nx.Type.to_string(type)}#{sizes})"
  end
end
