defmodule Nx.Vulkan.Pipeline.MicroBatches do
  @moduledoc false

  # Batches, and the parts of their rows that go through a pipeline one after the other.

  alias Nx.Defn.Composite
  alias Nx.Tensor, as: T

  @doc "The number of micro-batches that an option says."
  @spec count!(term) :: pos_integer
  def count!(count) when is_integer(count) and count > 0, do: count

  def count!(other),
    do: raise(ArgumentError, "expected :micro_batches to be a positive integer, got: #{inspect(other)}")

  @doc "A batch of tensors, also of what `Nx.Serving` gathers, that can be cut into so many micro-batches."
  @spec whole!(Nx.Container.t() | Nx.Batch.t(), pos_integer, non_neg_integer) :: Nx.Container.t()
  def whole!(batch, count, device) do
    batch = tensors(batch, device)
    rows!(batch, count)
    batch
  end

  @doc "Targets of a batch, which have its rows where both are cut."
  @spec targets!(Nx.Container.t() | Nx.Batch.t(), Nx.Container.t(), pos_integer, non_neg_integer) :: Nx.Container.t()
  def targets!(targets, batch, count, device) do
    targets = tensors(targets, device)
    rows = if count > 1, do: rows!(batch, count)

    if rows != nil and sizes(targets) -- [rows] != [] do
      raise ArgumentError,
            "expected the first axis of all tensors of the targets to be that of the #{rows} rows of the batch, " <>
              "got: " <> Enum.map_join(sizes(targets), ", ", &to_string/1)
    end

    targets
  end

  defp tensors(%Nx.Batch{} = batch, device) do
    opts = [compiler: Nx.Vulkan, device: device, automatic_transfers: true]
    Nx.Defn.jit_apply(&Function.identity/1, [batch], opts)
  end

  defp tensors(batch, _device), do: Composite.traverse(batch, &Nx.to_tensor/1)

  # The sizes that first axes have.
  defp sizes(batch),
    do: batch |> leaves() |> Enum.reject(&(&1.shape == {})) |> Enum.map(&Nx.axis_size(&1, 0)) |> Enum.uniq()

  # The rows of a batch, nil where it has scalars alone.
  defp rows!(batch, count) do
    case sizes(batch) do
      [] when count == 1 ->
        nil

      [] ->
        raise ArgumentError, "expected a batch whose first axis can be cut into #{count} micro-batches, got scalars"

      [rows] when rem(rows, count) == 0 ->
        rows

      [rows] ->
        raise ArgumentError, "expected a batch of #{rows} rows to be a multiple of the #{count} micro-batches"

      _several when count == 1 ->
        nil

      several ->
        raise ArgumentError,
              "expected the first axis of all tensors of the batch to be that of its rows, got: " <>
                Enum.map_join(several, ", ", &to_string/1)
    end
  end

  @doc "A micro-batch of a batch, by its number."
  @spec part(Nx.Container.t(), non_neg_integer, pos_integer) :: Nx.Container.t()
  def part(batch, _number, 1), do: batch

  def part(batch, number, count) do
    Composite.traverse(batch, fn
      %T{shape: {}} = scalar ->
        scalar

      tensor ->
        rows = div(Nx.axis_size(tensor, 0), count)
        Nx.slice_along_axis(tensor, number * rows, rows, axis: 0)
    end)
  end

  @doc "The results of the micro-batches of a batch as one."
  @spec join([Nx.Container.t()], Nx.Container.t()) :: Nx.Container.t()
  def join([result], _batch), do: result

  def join([first | _] = results, batch) do
    rows = div(rows!(batch, length(results)), length(results))
    for leaf <- leaves(first), do: joins!(leaf, rows)
    of_all = results |> Enum.map(&leaves/1) |> Enum.zip_with(& &1)

    {whole, []} =
      Composite.traverse(first, of_all, fn _leaf, [parts | rest] -> {Nx.concatenate(parts, axis: 0), rest} end)

    whole
  end

  defp joins!(leaf, rows) do
    if leaf.shape == {} or Nx.axis_size(leaf, 0) != rows do
      raise ArgumentError,
            "expected the last stage to give tensors of #{rows} rows for micro-batches of so many, got: " <>
              inspect(Nx.to_template(leaf))
    end
  end

  @doc "The template of a micro-batch."
  @spec template(Nx.Container.t(), pos_integer) :: Nx.Container.t()
  def template(template, count) do
    rows!(template, count)
    scaled(template, &div(&1, count))
  end

  @doc "The template of what the last stage gives for all micro-batches, of what it gives for one that is like `part`."
  @spec whole_template(Nx.Container.t(), Nx.Container.t(), pos_integer) :: Nx.Container.t()
  def whole_template(template, _part, 1), do: template

  def whole_template(template, part, count) do
    rows = rows!(part, 1)
    for leaf <- leaves(template), do: joins!(leaf, rows)
    scaled(template, &(&1 * count))
  end

  defp scaled(template, size) do
    Composite.traverse(template, fn
      %T{shape: {}} = scalar -> scalar
      %T{shape: shape} = leaf -> %{leaf | shape: put_elem(shape, 0, size.(elem(shape, 0)))}
    end)
  end

  defp leaves(container), do: Composite.flatten_list([container])
end
