defmodule Nx.Vulkan.Pretrained.Asked do
  @moduledoc false

  # A tensor of a file under its name, of which is known whether Bumblebee asked for it, and whether it was read.

  alias Nx.Vulkan.{Error, Safetensors}
  alias Nx.Vulkan.Pretrained.Deferred

  @enforce_keys [:info, :read, :counts]
  defstruct [:info, :read, :counts]

  @asked 1
  @were_read 2

  @doc """
  The tensor of what a file has, which `read` gives.
  """
  def new(info, read), do: %__MODULE__{info: info, read: read, counts: :counters.new(2, [])}

  @doc """
  The tensor that is read later. One whose format can't be read has no shape to go by, and is read now: `read` tells it.
  Matrices of integers are weights of a format that is not known: without its scales they are no values.
  """
  def tensor(%{info: info, counts: counts} = asked) do
    :counters.add(counts, @asked, 1)

    read = fn ->
      :counters.add(counts, @were_read, 1)
      asked.read.()
    end

    case info do
      %{format: {:unknown, _}} -> read.()
      %{layout: :plain, format: {kind, _}, shape: {_, _}} when kind in [:u, :s] -> throw({:read, integers(info)})
      _ -> Deferred.tensor(info.name, info.shape, read)
    end
  end

  defp integers(%{name: name, format: format, shape: shape} = info) do
    path = Safetensors.path(info)
    integers = "#{Nx.Type.to_string(format)} of shape #{inspect(shape)}"
    message = "#{name} in #{path} has integers, #{integers}, of a quantised format that is not known"
    Error.exception(kind: :unsupported, op: :safetensors, message: message, details: %{path: path, format: format})
  end

  @doc """
  Whether it was asked for and never read.
  """
  def left?(%{counts: counts}), do: :counters.get(counts, @asked) > 0 and :counters.get(counts, @were_read) == 0

  defimpl Nx.LazyContainer do
    alias Nx.Vulkan.Pretrained.Asked

    def traverse(asked, acc, fun) do
      fun.(Nx.template(asked.info.shape, :f32), fn -> Asked.tensor(asked) end, acc)
    end
  end
end
