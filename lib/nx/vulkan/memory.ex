defmodule Nx.Vulkan.Memory do
  @moduledoc false

  # What a device's memory is taken for and by whom, and what gives it back: the functions of `Nx.Vulkan` on memory.

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Compiler.{Cache, Key}
  alias Nx.Vulkan.{Closure, Devices, Error, NativeV, Telemetry}
  alias Nx.Vulkan.VulkanoBackend, as: B

  # The library counts in 64 bits, the largest of which mean no limit.
  @most_limit_bytes 2 ** 63 - 1

  @doc false
  def usage(opts) do
    opts = Keyword.validate!(opts, [:device, top: :infinity])
    check_top(opts[:top])
    device = device(opts)

    with {:ok, %{name: name, memory_bytes: total, index: index}} <- NativeV.device_describe(device),
         {:ok, usage, owners} <- NativeV.memory_usage(device) do
      owned = owners |> Enum.map(&elem(&1, 1)) |> Enum.sum()
      captured = min(captured_bytes(index), owned)

      %{
        device: name,
        total_bytes: total,
        budget_bytes: usage.budget_bytes,
        peak_bytes: usage.peak_bytes,
        in_use_bytes: usage.in_use_bytes,
        spilled_bytes: usage.spilled_bytes,
        reserved_bytes: usage.reserved_bytes,
        kinds: usage |> kinds(owners) |> Map.merge(%{tensors: owned - captured, captured: captured}),
        processes: processes(owners, opts[:top])
      }
    else
      error -> failed(error, :memory)
    end
  end

  @doc false
  # What the pool has reserved, by what it is for; what compiled functions captured is among the tensors.
  def kinds(usage, owners) do
    owned = owners |> Enum.map(&elem(&1, 1)) |> Enum.sum()

    %{
      tensors: owned,
      copies: usage.copies_bytes,
      other: max(usage.in_use_bytes - owned - usage.copies_bytes, 0),
      staging: usage.staging_bytes,
      free: max(usage.reserved_bytes - usage.in_use_bytes - usage.staging_bytes, 0)
    }
  end

  defp check_top(:infinity), do: :ok
  defp check_top(top) when is_integer(top) and top >= 0, do: :ok

  defp check_top(other) do
    raise ArgumentError, "expected :top to be a number of processes or :infinity, got: #{inspect(other)}"
  end

  defp processes(owners, top) do
    owners = Enum.sort_by(owners, fn {_pid, bytes, _limit} -> -bytes end)
    owners = if top == :infinity, do: owners, else: Enum.take(owners, top)
    for {pid, bytes, limit} <- owners, do: %{pid: pid, name: name(pid), bytes: bytes, limit_bytes: limit}
  end

  @doc false
  # By what people know a process, if it has a name or a label.
  def name(pid) do
    case Process.info(pid, [:registered_name, :dictionary]) do
      [registered_name: [], dictionary: dictionary] -> dictionary[:"$process_label"]
      [registered_name: name, dictionary: _] -> name
      # It has ended, and others hold what it made.
      nil -> nil
    end
  end

  # Memory of the tensors that compiled functions hold.
  defp captured_bytes(index) do
    Cache.all()
    |> Enum.flat_map(fn {_key, entry} -> references(entry) end)
    |> Enum.uniq()
    |> Enum.map(fn ref ->
      with {:ok, ^index, _default?} <- NativeV.tensor_device(ref),
           {:ok, %{storage_bytes: bytes}} <- NativeV.tensor_info(ref) do
        bytes
      else
        # An executable, a tensor of another device, or one that was deallocated.
        _ -> 0
      end
    end)
    |> Enum.sum()
  end

  @doc false
  def trim(opts) do
    device = opts |> Keyword.validate!([:device]) |> device()

    case NativeV.memory_trim(device) do
      {:ok, bytes} ->
        Telemetry.memory(:trim, %{freed_bytes: bytes}, Devices.number(device))
        bytes

      error ->
        failed(error, :trim)
    end
  end

  @doc false
  # Whether a process may be limited to so much.
  def limit?(bytes), do: bytes == :infinity or (is_integer(bytes) and bytes in 0..@most_limit_bytes)

  @doc false
  def limit(bytes, opts) do
    if not limit?(bytes) do
      raise ArgumentError,
            "expected a number of bytes below 2 ** 63, or :infinity, as the limit of a process, got: #{inspect(bytes)}"
    end

    device = opts |> Keyword.validate!([:device]) |> device()

    case NativeV.memory_limit(if(bytes == :infinity, do: nil, else: bytes), device) do
      {:ok, before} -> before || :infinity
      error -> failed(error, :memory_limit)
    end
  end

  @doc false
  def unload(what) do
    {tensors, functions} = parts(what, {%{}, []})
    keys = MapSet.new(functions, fn function -> function |> Key.of() |> elem(0) end)
    definitions = for function <- functions, definition = Key.definition(function), do: definition
    Cache.drop_where(fn key -> key |> function() |> of_any?(keys, definitions) end)
    for {_ref, tensor} <- tensors, do: Nx.backend_deallocate(tensor)
    :ok
  end

  # The function in a key of the cache, which is that of a function on a mesh, or on one device.
  defp function({:shard_jit, function, _mesh, _given, _templates}), do: function
  defp function({function, _templates, _hooks, _asked}), do: function
  defp function(_other), do: nil

  defp of_any?(function, keys, definitions) do
    MapSet.member?(keys, function) or Enum.any?(definitions, &called_by?(Key.definition(function), &1))
  end

  # A definition with defaults is compiled with all its arguments, whichever of them a call leaves out.
  defp called_by?({module, name, all}, {module, name, given}), do: all >= given
  defp called_by?(_compiled, _function), do: false

  # Tensors on devices, by their references, and functions, in any term.
  defp parts(%T{data: %B{ref: ref}} = tensor, {tensors, functions}), do: {Map.put(tensors, ref, tensor), functions}
  defp parts(%T{}, seen), do: seen
  # A batch has functions that give its tensors.
  defp parts(%Nx.Batch{} = batch, seen), do: batch |> Closure.tensors() |> parts(seen)
  defp parts(function, {tensors, functions}) when is_function(function), do: {tensors, wrapped(function, functions)}
  defp parts([head | tail], seen), do: parts(tail, parts(head, seen))
  defp parts(tuple, seen) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> parts(seen)
  # Keys as well, which are what a MapSet has.
  defp parts(map, seen) when is_map(map), do: map |> :maps.to_list() |> parts(seen)
  defp parts(_other, seen), do: seen

  # `Nx.Defn.jit/2` and others make a function around the one that is compiled.
  defp wrapped(function, functions) do
    {:env, env} = Function.info(function, :env)
    inner = for term <- env, is_function(term), do: term
    Enum.reduce(inner, [function | functions], &wrapped/2)
  end

  # All references in an entry of the cache.
  defp references(term, found \\ [])
  defp references(ref, found) when is_reference(ref), do: [ref | found]
  defp references([head | tail], found), do: references(tail, references(head, found))
  defp references(tuple, found) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> references(found)
  defp references(map, found) when is_map(map), do: map |> :maps.to_list() |> references(found)
  defp references(_other, found), do: found

  defp device(opts), do: Devices.index!(opts[:device])

  defp failed({:error, kind, message}, op), do: raise(Error, kind: kind, op: op, message: message)
end
