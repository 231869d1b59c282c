defmodule Nx.Vulkan.Gradient do
  @moduledoc false

  # Gradients of what the engine has ops for, by these ops. Nx differentiates the steps of its own implementations: those of `cholesky` are two loops over
  # elements, of which the gradient needs all again, and those of a cumulative sum some ten ops for each doubling of its length. The gradient of a
  # triangular system inverts the matrix, whatever the number of right sides.

  alias Nx.Defn.{Expr, Kernel, Tree}
  alias Nx.Tensor, as: T

  @doc """
  An expression with such gradients, outside of its loops and branches.
  """
  @spec of_ops(T.t()) :: T.t()
  def of_ops(%T{} = expr), do: expr |> rewrite(%{}) |> elem(0)

  defp rewrite(%T{data: %Expr{id: id}} = tensor, seen) do
    case seen do
      %{^id => rewritten} ->
        {rewritten, seen}

      _ ->
        {args, seen} = Tree.apply_args(tensor, :scope, seen, &rewrite/2)
        {args, seen} = own_inputs(args, seen)
        rewritten = own(put_in(tensor.data.args, args))
        {rewritten, Map.put(seen, id, rewritten)}
    end
  end

  defp rewrite(other, seen), do: {other, seen}

  # The gradient goes on with the inputs of a function that has one of its own.
  defp own_inputs([inner, %{custom_grad: {inputs, fun}} = metadata], seen) do
    {inputs, seen} = Enum.map_reduce(inputs, seen, &rewrite/2)
    {[inner, %{metadata | custom_grad: {inputs, fun}}], seen}
  end

  defp own_inputs(args, seen), do: {args, seen}

  # Nx asks the callback of a block for what it differentiates. What it gets is the block itself, under the same id.
  defp own(%T{data: %Expr{op: :block, args: [struct, [a], default, _]}, vectorized_axes: []} = block) do
    case of_block(struct, a, block) do
      nil -> block
      gradient -> put_in(block.data.args, [struct, [a], default, fn _, a -> with_gradient(block, [a], gradient) end])
    end
  end

  defp own(%T{data: %Expr{op: :triangular_solve, args: [a, b, opts]}, vectorized_axes: []} = x) do
    if real?([a, b, x]), do: with_gradient(x, [a, b], &triangular_solve(a, x, opts, &1)), else: x
  end

  defp own(tensor), do: tensor

  defp with_gradient(result, inputs, fun), do: Kernel.custom_grad(result, inputs, &fun.(Nx.broadcast(&1, result)))

  defp real?(tensors), do: Enum.all?(tensors, &match?({:f, _}, &1.type))

  defp of_block(%Nx.Block.CumulativeSum{axis: axis, reverse: reverse}, a, sum) do
    if real?([a, sum]), do: &[Nx.cumulative_sum(&1, axis: axis, reverse: not reverse)]
  end

  defp of_block(%Nx.Block.LinAlg.Cholesky{}, a, factor) do
    if real?([a, factor]), do: &[cholesky(factor, &1)]
  end

  defp of_block(_struct, _a, _block), do: nil

  # Of the factor L: L^-T P L^-1, where P is the lower triangle of L^T G with half of its diagonal (Murray 2016). As in Nx, it is not symmetric.
  defp cholesky(factor, g) do
    product = factor |> transpose() |> times(Nx.tril(g))
    half = Nx.add(Nx.eye(matrix(factor), type: factor.type), 1)
    middle = product |> Nx.divide(half) |> Nx.tril()
    left = Nx.LinAlg.triangular_solve(factor, middle, transform_a: :transpose)
    Nx.LinAlg.triangular_solve(factor, left, left_side: false)
  end

  # Of X = op(A)^-1 B: that of B is op(A)^-T G, and that of op(A) its negative product with X.
  defp triangular_solve(a, x, opts, g) do
    flipped = if opts[:transform_a] == :transpose, do: :none, else: :transpose
    of_b = Nx.LinAlg.triangular_solve(a, g, Keyword.put(opts, :transform_a, flipped))
    vector? = Nx.rank(x) < Nx.rank(a)
    # Vectors are columns from the left and rows from the right.
    column = if vector?, do: &Nx.new_axis(&1, if(opts[:left_side], do: -1, else: -2)), else: & &1
    [x, y] = Enum.map([x, of_b], column)
    of_op = if opts[:left_side], do: times(y, transpose(x)), else: times(transpose(x), y)
    of_a = if opts[:transform_a] == :transpose, do: transpose(of_op), else: of_op
    triangle = if opts[:lower], do: Nx.tril(of_a), else: Nx.triu(of_a)
    [Nx.negate(triangle), of_b]
  end

  defp matrix(a), do: {Nx.axis_size(a, -2), Nx.axis_size(a, -1)}

  defp transpose(a) do
    {batch, [row, column]} = a |> Nx.axes() |> Enum.split(-2)
    Nx.transpose(a, axes: batch ++ [column, row])
  end

  defp times(a, b) do
    batch = a |> Nx.axes() |> Enum.drop(-2)
    Nx.dot(a, [-1], batch, b, [-2], batch)
  end
end
