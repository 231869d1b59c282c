defmodule Nx.Vulkan.Compiler.Sharding.Layout do
  @moduledoc false

  # How a tensor is spread over a mesh: for each of its axes the axes of the mesh along which it is cut, the first of
  # them into the largest pieces. An empty list leaves the axis whole; along axes of the mesh that no list has, devices
  # have the same. A device is known by its number, in row-major order of the mesh.

  alias Nx.Defn.Composite
  alias Nx.Tensor, as: T

  @type mesh :: [pos_integer]
  @type t :: [[non_neg_integer]]
  @type device :: non_neg_integer

  @doc "A layout that cuts nothing."
  @spec whole([non_neg_integer]) :: t
  def whole(sizes), do: Enum.map(sizes, fn _ -> [] end)

  @doc "Into how many pieces axes of the mesh cut."
  @spec pieces(mesh, [non_neg_integer]) :: pos_integer
  def pieces(mesh, axes), do: Enum.reduce(axes, 1, &(Enum.at(mesh, &1) * &2))

  @doc "The sizes that each device has."
  @spec local([non_neg_integer], t, mesh) :: [non_neg_integer]
  def local(sizes, layout, mesh), do: Enum.zip_with(sizes, layout, &div(&1, pieces(mesh, &2)))

  @doc "The sizes of the whole, of which each device has these."
  @spec global([non_neg_integer], t, mesh) :: [non_neg_integer]
  def global(sizes, layout, mesh), do: Enum.zip_with(sizes, layout, &(&1 * pieces(mesh, &2)))

  @doc "How many devices a mesh has."
  @spec devices(mesh) :: pos_integer
  def devices(mesh), do: Enum.product(mesh)

  @doc "Which piece of an axis that is cut along axes of the mesh a device has."
  @spec piece(mesh, device, [non_neg_integer]) :: non_neg_integer
  def piece(mesh, device, axes) do
    place = place(mesh, device)
    Enum.reduce(axes, 0, fn axis, piece -> piece * Enum.at(mesh, axis) + Enum.at(place, axis) end)
  end

  # Where a device is along each axis of the mesh.
  defp place(mesh, device) do
    {place, _} = Enum.map_reduce(Enum.reverse(mesh), device, &{rem(&2, &1), div(&2, &1)})
    Enum.reverse(place)
  end

  @doc """
  The devices that differ along these axes of the mesh alone, as groups, each in the order of its pieces.
  """
  @spec groups(mesh, [non_neg_integer]) :: [[device]]
  def groups(mesh, axes) do
    others = Enum.to_list(0..(length(mesh) - 1)//1) -- axes

    0..(devices(mesh) - 1)
    |> Enum.group_by(&piece(mesh, &1, others))
    |> Enum.sort()
    |> Enum.map(fn {_, group} -> Enum.sort_by(group, &piece(mesh, &1, axes)) end)
  end

  ## As callers name them

  @doc """
  The layouts of the tensors of containers. Each container has a sharding: a map from axes (or names) of a tensor to
  lists of axes of the mesh, the empty map for whole tensors, or a list of such maps for the tensors of a container.
  """
  @spec arguments!(atom, term, [Nx.Container.t()], mesh) :: [t]
  def arguments!(name, shardings, containers, mesh) do
    if not (is_list(shardings) and length(shardings) == length(containers)) do
      raise ArgumentError,
            "expected #{inspect(name)} to be a list of #{length(containers)} shardings, got: #{inspect(shardings)}"
    end

    shardings
    |> Enum.zip(containers)
    |> Enum.flat_map(fn {sharding, container} -> leaves!(sharding, container, mesh) end)
  end

  @doc "The layouts of the tensors of a container, by its sharding."
  @spec leaves!(term, Nx.Container.t(), mesh) :: [t]
  def leaves!(sharding, container, mesh) do
    case {Composite.flatten_list([container]), sharding} do
      {leaves, sharding} when sharding == %{} ->
        Enum.map(leaves, &of!(%{}, &1, mesh))

      {[leaf], sharding} when is_map(sharding) ->
        [of!(sharding, leaf, mesh)]

      {leaves, [_ | _] = list} when length(list) == length(leaves) ->
        Enum.zip_with(list, leaves, &of!(&1, &2, mesh))

      {leaves, other} ->
        raise ArgumentError,
              "expected a map from axes to lists of axes of the mesh, or a list of #{length(leaves)} of them for a " <>
                "container of #{length(leaves)} tensors, got: #{inspect(other)}"
    end
  end

  defp of!(sharding, %T{vectorized_axes: []} = leaf, mesh) when is_map(sharding) do
    cuts =
      Enum.reduce(sharding, %{}, fn {axis, mesh_axes}, cuts ->
        index = Nx.axis_index(leaf, axis)

        if is_map_key(cuts, index),
          do: raise(ArgumentError, "axis #{inspect(axis)} has two shardings in #{inspect(sharding)}")

        Map.put(cuts, index, mesh_axes!(mesh_axes, sharding, mesh))
      end)

    used = cuts |> Map.values() |> Enum.concat()
    if used != Enum.uniq(used), do: raise(ArgumentError, "an axis of the mesh cuts twice in #{inspect(sharding)}")
    for axis <- 0..(Nx.rank(leaf) - 1)//1, do: Map.get(cuts, axis, [])
  end

  defp of!(sharding, %T{vectorized_axes: []}, _mesh) do
    raise ArgumentError, "expected a map from axes to lists of axes of the mesh, got: #{inspect(sharding)}"
  end

  defp of!(_sharding, %T{vectorized_axes: axes}, _mesh),
    do: raise(ArgumentError, "expected tensors without vectorized axes on a mesh, got: #{inspect(axes)}")

  defp mesh_axes!(axes, sharding, mesh) do
    if not (is_list(axes) and Enum.all?(axes, &(is_integer(&1) and &1 in 0..(length(mesh) - 1)//1))) do
      raise ArgumentError,
            "expected axes of a mesh of #{length(mesh)} axes, got #{inspect(axes)} in #{inspect(sharding)}"
    end

    # Along an axis of one device nothing is cut.
    Enum.reject(axes, &(Enum.at(mesh, &1) == 1))
  end

  @doc "Raises unless all pieces of a tensor have one size."
  @spec divisible!(T.t(), t, mesh) :: :ok
  def divisible!(%T{shape: shape}, layout, mesh) do
    for {size, cut, axis} <- Enum.zip([Tuple.to_list(shape), layout, 0..length(layout)]),
        pieces = pieces(mesh, cut),
        rem(size, pieces) != 0 do
      raise ArgumentError, "axis #{axis} of #{inspect(shape)} can't be cut into #{pieces} pieces of one size"
    end

    :ok
  end
end
