defmodule Nx.Vulkan.Indices do
  @moduledoc false

  # Indices out of bounds raise what Nx.BinaryBackend raises, so an op that takes indices waits for them.

  alias Nx.Vulkan.Devices
  alias Nx.Vulkan.VulkanoBackend, as: B

  # Up to this many, reading the indices and looking at them takes no longer than the ops that test them on the device.
  @read_at_once 4096

  @doc """
  Raises unless the last axis of `indices` holds positions within `axes` of a tensor of the shape `shape`.

  `config :nx_vulkan, check_indices: false` leaves the check out.
  """
  def check!(shape, indices, axes) do
    if check?() do
      rest = Enum.to_list(0..(tuple_size(shape) - 1)//1) -- axes
      sizes = for axis <- axes ++ rest, do: elem(shape, axis)
      bounds = Enum.take(sizes, length(axes))
      if outside?(indices, bounds), do: indices |> Nx.to_flat_list() |> find!(bounds, List.to_tuple(sizes))
    end
  end

  @doc """
  Raises unless `indices` are positions along `axis` of a tensor of the shape `shape`.
  """
  def check_along!(shape, indices, axis) do
    bound = elem(shape, axis)

    if check?() and outside?(indices, [bound]) do
      for index <- Nx.to_flat_list(indices), index < 0 or index >= bound, do: raise_outside(index, axis, shape)
    end
  end

  defp check?, do: Application.get_env(:nx_vulkan, :check_indices, true)

  defp outside?(%{data: %B{}} = indices, bounds) do
    Nx.size(indices) <= @read_at_once or outside_on_device?(indices, bounds)
  end

  defp outside?(_indices, _bounds), do: true

  defp outside_on_device?(indices, bounds) do
    backend = {B, device: Devices.of_operands([indices])}
    type = if Enum.all?(bounds, &(&1 <= 0x7FFFFFFF)), do: :s32, else: :s64
    above = Nx.greater_equal(indices, Nx.tensor(bounds, type: type, backend: backend))
    below = Nx.less(indices, Nx.tensor(0, type: :s32, backend: backend))
    Nx.to_number(Nx.any(Nx.logical_or(above, below))) == 1
  end

  defp find!(indices, bounds, shape), do: find!(indices, bounds, 0, bounds, shape)

  defp find!([], _left, _axis, _bounds, _shape), do: :ok
  defp find!(indices, [], _axis, bounds, shape), do: find!(indices, bounds, 0, bounds, shape)

  defp find!([index | indices], [bound | left], axis, bounds, shape) when index >= 0 and index < bound do
    find!(indices, left, axis + 1, bounds, shape)
  end

  defp find!([index | _], _left, axis, _bounds, shape), do: raise_outside(index, axis, shape)

  @spec raise_outside(integer, non_neg_integer, tuple) :: no_return
  defp raise_outside(index, axis, shape) do
    raise ArgumentError, "index #{index} is out of bounds for axis #{axis} in shape #{inspect(shape)}"
  end
end
