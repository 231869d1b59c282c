defmodule Nx.Vulkan.Compiler.Results do
  @moduledoc false

  # What a call answers: containers with the tensors behind references. How they look is kept with what was compiled, and
  # every call copies it out of the cache. So there a tensor is an improper list of a few words, with names of types and
  # numbers of axes for what the code has as literals. Nothing else in a container is a list.

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Ops
  alias Nx.Vulkan.Ops.Table
  alias Nx.Vulkan.VulkanoBackend, as: B

  @typedoc "A container with a list in place of each tensor."
  @type t :: term

  @doc "How results look that have the types, shapes, names and vectorized axes of a template."
  @spec new(Nx.Container.t()) :: t
  def new(%T{type: type, shape: shape, names: names, vectorized_axes: axes}),
    do: [Ops.type_name(type), shape, unnamed(names) | axes]

  def new(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> Enum.map(&new/1) |> List.to_tuple()
  def new(container), do: container |> Nx.Container.traverse(nil, fn part, nil -> {new(part), nil} end) |> elem(0)

  @doc "The results of a call by its references, as many as there are tensors, in their order."
  @spec fill(t, [reference]) :: Nx.Container.t()
  def fill(results, references) do
    {container, []} = part(results, references)
    container
  end

  defp part([type, shape, names | axes], [reference | references]) do
    type = type(type)
    data = %B{ref: reference, type: type}
    {%T{data: data, type: type, shape: shape, names: names(names), vectorized_axes: axes}, references}
  end

  defp part(tuple, references) when is_tuple(tuple) do
    {list, references} = parts(Tuple.to_list(tuple), references)
    {List.to_tuple(list), references}
  end

  defp part(container, references), do: Nx.Container.traverse(container, references, &part/2)

  defp parts([first | rest], references) do
    {first, references} = part(first, references)
    {rest, references} = parts(rest, references)
    {[first | rest], references}
  end

  defp parts([], references), do: {[], references}

  for type <- Table.types(), do: defp(type(unquote(Ops.type_name(type))), do: unquote(type))

  # Axes without names, as most are, by their number.
  @most_unnamed 8

  defp unnamed(names) do
    count = length(names)
    if count <= @most_unnamed and Enum.all?(names, &is_nil/1), do: count, else: names
  end

  for count <- 0..@most_unnamed, do: defp(names(unquote(count)), do: unquote(List.duplicate(nil, count)))
  defp names(names), do: names
end
