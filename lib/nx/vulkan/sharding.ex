defmodule Nx.Vulkan.Sharding do
  @moduledoc """
  Tensors on a mesh of devices, for `Nx.Defn.shard_jit/3` with `compiler: Nx.Vulkan`.

      mesh = %Nx.Mesh{name: "mesh", shape: {2}}
      step = Nx.Defn.shard_jit(&Nx.dot/2, mesh, compiler: Nx.Vulkan, input_shardings: [%{0 => [0]}, %{}])
      [left, right] = Nx.Vulkan.Sharding.split([batch, weights], mesh, [%{0 => [0]}, %{}]) |> step.()

  A sharding says how a tensor is spread: a map from its axes, by number or name, to lists of axes of the mesh. `%{0 =>
  [0]}` cuts the first axis along the first axis of the mesh, `%{0 => [0, 1]}` along two of them, `%{}` not at all: then
  each device has all of it. A container has one sharding for each of its tensors, in the order of Nx, or `%{}` for all.

  The function is written for whole tensors. Each device gets its pieces, and computes what depends on them; where a result
  needs what others have, as a sum along a cut axis does, devices tell it each other. The results are a list with the pieces
  of each device.

  ## Options of `Nx.Defn.shard_jit/3`

    * `:input_shardings` - a list of shardings, one for each argument; required
    * `:output_shardings` - a list of shardings, one for each result (a tuple has several, any other container is one);
      without it, each stays as it comes
    * `:devices` - a list of selectors (`Nx.Vulkan`), one for each place of the mesh in row-major order; by default the
      devices of the kind of the default one. A device may stand in several places

  ## Bits

  Elementwise ops, views and integers have the bits that they have on one device. Sums along a cut axis are those of the
  pieces, added up in the order of the devices: the same each time for the same mesh, and not those of one device.

  ## Limits

  A cut axis has to be a multiple of its pieces. Ops that can't be cut along an axis get it whole: factorizations, sorts
  and transforms along it. Hooks and `Nx.runtime_call` raise. What devices tell each other goes through memory of the host.
  """

  alias Nx.Defn.Composite
  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Compiler.Sharding.Layout

  @doc """
  The arguments of each device, of whole arguments: what a function of `Nx.Defn.shard_jit/3` takes.

  ## Examples

      iex> mesh = %Nx.Mesh{name: "mesh", shape: {2}}
      iex> [[left], [right]] = Nx.Vulkan.Sharding.split([Nx.tensor([1, 2, 3, 4])], mesh, [%{0 => [0]}])
      iex> {Nx.to_list(left), Nx.to_list(right)}
      {[1, 2], [3, 4]}
  """
  @spec split([Nx.Container.t()], Nx.Mesh.t(), [map | [map]]) :: [[Nx.Container.t()]]
  def split(arguments, %Nx.Mesh{shape: shape}, shardings) do
    mesh = Tuple.to_list(shape)
    containers = Enum.map(arguments, &tensors/1)
    layouts = Layout.arguments!(:shardings, shardings, containers, mesh)

    for {layout, leaf} <- Enum.zip(layouts, Composite.flatten_list(containers)),
        do: Layout.divisible!(leaf, layout, mesh)

    for device <- 0..(Layout.devices(mesh) - 1) do
      {pieces, []} =
        Enum.map_reduce(containers, layouts, fn container, layouts ->
          Composite.traverse(container, layouts, fn leaf, [layout | layouts] ->
            {piece(leaf, layout, mesh, device), layouts}
          end)
        end)

      pieces
    end
  end

  defp tensors(container), do: Composite.traverse(container, &Nx.to_tensor/1)

  defp piece(leaf, layout, mesh, device) do
    layout
    |> Enum.with_index()
    |> Enum.reduce(leaf, fn {cut, axis}, leaf ->
      size = div(Nx.axis_size(leaf, axis), Layout.pieces(mesh, cut))
      if cut == [], do: leaf, else: Nx.slice_along_axis(leaf, Layout.piece(mesh, device, cut) * size, size, axis: axis)
    end)
  end

  @doc """
  The whole of a container whose pieces the devices have, each on the backend of the first one.

  ## Examples

      iex> mesh = %Nx.Mesh{name: "mesh", shape: {2}}
      iex> Nx.Vulkan.Sharding.join([Nx.tensor([1, 2]), Nx.tensor([3, 4])], mesh, %{0 => [0]}) |> Nx.to_list()
      [1, 2, 3, 4]
  """
  @spec join([Nx.Container.t()], Nx.Mesh.t(), map | [map]) :: Nx.Container.t()
  def join([first | _] = pieces, %Nx.Mesh{shape: shape}, sharding) do
    mesh = Tuple.to_list(shape)

    if length(pieces) != Layout.devices(mesh),
      do: raise(ArgumentError, "expected the pieces of #{Layout.devices(mesh)} devices, got #{length(pieces)}")

    layouts = Layout.leaves!(sharding, first, mesh)
    leaves = pieces |> Enum.map(&Composite.flatten_list([&1])) |> Enum.zip_with(& &1)

    {whole, []} =
      Composite.traverse(first, Enum.zip(leaves, layouts), fn _leaf, [{pieces, layout} | rest] ->
        {whole(pieces, layout, mesh), rest}
      end)

    whole
  end

  # Axis by axis, the pieces of devices that differ along the axes of the mesh which cut it.
  defp whole(pieces, layout, mesh) do
    layout
    |> Enum.with_index()
    |> Enum.reject(&match?({[], _}, &1))
    |> Enum.reduce(pieces, fn {cut, axis}, pieces ->
      joined =
        for group <- Layout.groups(mesh, cut), into: %{} do
          whole = group |> Enum.map(&Enum.at(pieces, &1)) |> near() |> Nx.concatenate(axis: axis)
          {hd(group), whole}
        end

      for {piece, device} <- Enum.with_index(pieces), do: Map.get(joined, device, piece)
    end)
    |> hd()
  end

  # On the device of the first one.
  defp near([%T{data: %Nx.Vulkan.VulkanoBackend{}} = first | rest]) do
    backend = {Nx.Vulkan.VulkanoBackend, device: Nx.Vulkan.Devices.of_operands([first])}
    [first | Enum.map(rest, &Nx.backend_copy(&1, backend))]
  end

  defp near(pieces), do: pieces
end
