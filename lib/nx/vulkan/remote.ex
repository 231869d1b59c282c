defmodule Nx.Vulkan.Remote do
  @moduledoc false

  # Tensors whose memory belongs to another node: they are read there, in parts, by this module.

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Error
  alias Nx.Vulkan.VulkanoBackend, as: B

  # Bytes of a part: nodes send one message after the other, and others want to pass in between.
  @part_bytes 16 * 1024 * 1024

  @doc "The first `limit` elements of a tensor, as `Nx.to_binary/2` gives them."
  @spec read(T.t(), non_neg_integer) :: bitstring
  def read(%T{data: %B{ref: ref}, type: {_, bits}} = tensor, limit) do
    # Whole bytes of types that have less.
    part = div(@part_bytes * 8, bits)

    read = fn first -> call(:to_binary, ref, :part, [tensor, first, min(part, limit - first)]) end

    case for(first <- 0..(limit - 1)//part, do: read.(first)) do
      [part] -> part
      parts -> :erlang.list_to_bitstring(parts)
    end
  end

  @doc false
  # Runs on the node of the tensor.
  def part(%T{shape: shape} = tensor, first, count) do
    size = Nx.size(shape)
    flat = %{tensor | shape: {size}, names: [nil], vectorized_axes: []}
    whole? = count == size

    part =
      if whole?, do: tensor, else: B.slice(%{flat | shape: {count}}, B.reshape(flat, tensor), [first], [count], [1])

    B.to_binary(part, count)
  end

  @doc "Gives the memory back on its node."
  @spec release(reference) :: :ok | :already_deallocated
  def release(ref), do: call(:backend_deallocate, ref, :released, [ref])

  @doc false
  # Runs on the node of the tensor.
  def released(ref), do: Nx.Vulkan.NativeV.tensor_release(ref)

  @doc "Whether the memory can be read, was given back, or is on a node that does not answer."
  @spec state(reference) :: :there | :released | :gone
  def state(ref) do
    if match?({:error, :released, _, _, _}, call(:inspect, ref, :info, [ref])), do: :released, else: :there
  rescue
    error in Error -> if error.kind == :node_down, do: :gone, else: reraise(error, __STACKTRACE__)
  end

  @doc false
  # Runs on the node of the tensor.
  def info(ref), do: Nx.Vulkan.NativeV.tensor_info(ref)

  # An exception of the other node is one of this call.
  defp call(op, ref, function, args) do
    :erpc.call(node(ref), __MODULE__, function, args)
  catch
    :error, {:exception, reason, stacktrace} ->
      reraise Exception.normalize(:error, reason, stacktrace), stacktrace

    :error, {:erpc, reason} ->
      raise Error,
        kind: :node_down,
        op: op,
        message: "the tensor's memory is on #{node(ref)}, which does not answer: #{inspect(reason)}",
        details: %{node: node(ref)}
  end
end
