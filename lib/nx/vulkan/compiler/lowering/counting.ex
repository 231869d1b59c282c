defmodule Nx.Vulkan.Compiler.Lowering.Counting do
  @moduledoc false
  # Tensors of whole numbers of which each column counts, as the indices of a diagonal: a Program spells them out, so
  # that passes know what they address.

  import Bitwise, only: [<<<: 2]

  alias Nx.Tensor, as: T

  # Columns of index vectors, and elements that are looked at.
  @most_columns 4
  @most_elements 1 <<< 22

  @doc """
  For each column of a matrix its first number and what each row adds to it. None where a column does not count so, or
  the tensor is no such matrix.
  """
  @spec columns(T.t()) :: [{integer, integer}] | nil
  def columns(%T{type: {kind, _}, shape: {rows, count}, vectorized_axes: [], data: %Nx.BinaryBackend{}} = tensor)
      when kind in [:s, :u] and rows > 0 and count in 1..@most_columns and rows * count <= @most_elements do
    [first | rest] = rows(tensor, 0, min(rows, 3))
    steps = rest |> List.first(first) |> Enum.zip_with(first, &(&1 - &2))
    # Most tensors that don't count show it in few rows.
    counts? =
      count_on?(rest, first, steps) and rows(tensor, rows - 1, 1) == [row(first, steps, rows - 1)] and
        count_on?(tl(rows(tensor, 0, rows)), first, steps)

    if counts?, do: Enum.zip(first, steps)
  end

  def columns(_tensor), do: nil

  defp rows(tensor, from, count) do
    tensor |> Nx.slice_along_axis(from, count) |> Nx.to_flat_list() |> Enum.chunk_every(Nx.axis_size(tensor, 1))
  end

  defp row(first, steps, i), do: Enum.zip_with(first, steps, &(&1 + i * &2))

  defp count_on?([], _before, _steps), do: true

  defp count_on?([row | rest], before, steps) do
    row == Enum.zip_with(before, steps, &(&1 + &2)) and count_on?(rest, row, steps)
  end
end
