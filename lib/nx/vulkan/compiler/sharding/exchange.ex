defmodule Nx.Vulkan.Compiler.Sharding.Exchange do
  @moduledoc false

  # What devices of a mesh tell each other: whole axes out of pieces, and sums of parts. Values are lists of references,
  # one for each device. Parts are combined in the order of the devices, element by element, so that the result has the
  # same bits each time; on all devices, since it is computed once.

  alias Nx.Vulkan.Compiler.Sharding.Layout
  alias Nx.Vulkan.{Devices, Tasks}
  alias Nx.Vulkan.VulkanoBackend, as: B

  # From this size on each device combines a share, and what all do at once is copied on several threads.
  @shared_bytes 1024 * 1024

  @doc "The axis of every device's tensor whole."
  @spec gather([reference], list, non_neg_integer, [non_neg_integer], Layout.mesh(), [Devices.index()]) :: [reference]
  def gather(references, type, axis, mesh_axes, mesh, devices) do
    each(
      Layout.groups(mesh, mesh_axes),
      fn group, index ->
        pieces = for device <- group, do: there(Enum.at(references, device), type, index)
        pieces |> Nx.concatenate(axis: axis) |> B.reference()
      end,
      devices
    )
  end

  @doc "What an op of two makes of the parts that all devices have."
  @spec combine([reference], list, atom, [non_neg_integer], Layout.mesh(), [Devices.index()]) :: [reference]
  def combine(references, type, op, mesh_axes, mesh, devices) do
    groups = Layout.groups(mesh, mesh_axes)

    if bytes(type) < @shared_bytes,
      do: combined(groups, references, type, op, devices),
      else: combined_in_shares(groups, references, type, op, devices)
  end

  # The first device of each group does it all.
  defp combined(groups, references, type, op, devices) do
    sums =
      for [first | _] = group <- groups, into: %{} do
        index = Enum.at(devices, first)
        parts = for device <- group, do: there(Enum.at(references, device), type, index)
        {group, Enum.reduce(tl(parts), hd(parts), &apply(op, &1, &2, type))}
      end

    each(groups, fn group, index -> there(B.reference(sums[group]), type, index) |> B.reference() end, devices)
  end

  # Each device combines a share of the elements, and gets those of the others.
  defp combined_in_shares(groups, references, [name, sizes] = type, op, devices) do
    size = Enum.product(sizes)
    flat = [name, [size]]

    shares =
      groups
      |> Enum.flat_map(&shares(&1, size))
      |> parallel(fn {group, device, first, count} ->
        index = Enum.at(devices, device)

        parts =
          for other <- group do
            share =
              Devices.within(Enum.at(devices, other), fn ->
                other |> then(&Enum.at(references, &1)) |> tensor(type) |> Nx.flatten() |> Nx.slice([first], [count])
              end)

            there(B.reference(share), [name, [count]], index)
          end

        {{group, device}, Enum.reduce(tl(parts), hd(parts), &apply(op, &1, &2, flat))}
      end)
      |> Map.new()

    each(
      groups,
      fn group, index ->
        whole =
          for device <- group,
              share = shares[{group, device}],
              do: there(B.reference(share), [name, Tuple.to_list(share.shape)], index)

        whole |> Nx.concatenate() |> Nx.reshape(List.to_tuple(sizes)) |> B.reference()
      end,
      devices
    )
  end

  # Of every device of a group the elements that it combines.
  defp shares(group, size) do
    share = div(size + length(group) - 1, length(group))

    for {device, i} <- Enum.with_index(group), first = i * share, first < size do
      {group, device, first, min(share, size - first)}
    end
  end

  # The results of all devices in their order. `fun` gets the group that a device belongs to and where it is.
  defp each(groups, fun, devices) do
    for(group <- groups, device <- group, do: {group, device})
    |> parallel(fn {group, device} ->
      index = Enum.at(devices, device)
      {device, Devices.within(index, fn -> fun.(group, index) end)}
    end)
    |> Enum.sort()
    |> Enum.map(&elem(&1, 1))
  end

  @doc """
  What `fun` makes of each item, at once for those that are not `quick?`: what waits for one device does not keep the
  others. What one raises, this raises, after all have ended.
  """
  @spec parallel([item], (item -> boolean), (item -> result)) :: [result] when item: term, result: term
  def parallel(items, quick? \\ fn _item -> false end, fun) do
    begun = Enum.map(items, &if(quick?.(&1), do: tried(&1, fun), else: Task.async(fn -> tried(&1, fun) end)))

    ended =
      Enum.map(begun, fn
        %Task{} = task -> Task.await(task, :infinity)
        done -> done
      end)

    Tasks.forget(for %Task{} = task <- begun, do: task)

    Enum.map(ended, fn
      {:ok, result} -> result
      {:raised, kind, reason, stacktrace} -> :erlang.raise(kind, reason, stacktrace)
    end)
  end

  defp tried(item, fun) do
    {:ok, fun.(item)}
  catch
    kind, reason -> {:raised, kind, reason, __STACKTRACE__}
  end

  defp there(reference, type, index) do
    tensor = tensor(reference, type)
    if Devices.on?(reference, index), do: tensor, else: B.on_device(tensor, index)
  end

  defp tensor(reference, [name, sizes]), do: sizes |> List.to_tuple() |> Nx.template(name) |> B.holding(reference)

  defp bytes([name, sizes]), do: sizes |> List.to_tuple() |> Nx.template(name) |> Nx.byte_size()

  defp apply(op, part, sum, [name, _sizes]), do: Nx |> Kernel.apply(op, [sum, part]) |> Nx.as_type(name)
end
