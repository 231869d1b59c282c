defmodule Nx.Vulkan.Chain.Gradient do
  @moduledoc false

  # Gradients of what the engine has ops for, by these ops. Nx differentiates the steps of its own implementations:
  # those of `cholesky` and `lu` (and so of `solve` and `determinant`) are loops over elements, of which the gradient
  # needs all again, and those of a cumulative sum some ten ops for each doubling of its length. Its gradient of a
  # triangular system inverts the matrix, whatever the number of right sides.

  alias Nx.Defn.{Expr, Kernel, Tree}
  alias Nx.Tensor, as: T

  @doc """
  `expr` with gradients that Nx can take where functions of captured tensors alone have gradients of their own, as
  `Nx.LinAlg.cholesky/1` has: Nx leaves the tensors there as they are, and looks for expressions.
  """
  @spec with_constant_inputs(T.t()) :: T.t()
  def with_constant_inputs(%T{} = expr) do
    {rewritten, seen} = constant_inputs(expr, %{})
    if Map.has_key?(seen, :found), do: rewritten, else: expr
  end

  defp constant_inputs(%T{data: %Expr{id: id}} = tensor, seen) do
    case seen do
      %{^id => rewritten} ->
        {rewritten, seen}

      _ ->
        {args, seen} = Tree.apply_args(tensor, :scope, seen, &constant_inputs/2)
        {args, seen} = own_gradient(args, seen)
        rewritten = put_in(tensor.data.args, args)
        {rewritten, Map.put(seen, id, rewritten)}
    end
  end

  defp constant_inputs(other, seen), do: {other, seen}

  defp own_gradient([inner, %{custom_grad: {inputs, fun}} = metadata], seen) do
    {inputs, seen} = Enum.map_reduce(inputs, seen, &expression/2)
    {[inner, %{metadata | custom_grad: {inputs, fun}}], seen}
  end

  defp own_gradient(args, seen), do: {args, seen}

  defp expression(%T{data: %Expr{}} = input, seen), do: constant_inputs(input, seen)
  defp expression(input, seen), do: {Expr.tensor(input), Map.put(seen, :found, true)}

  @doc """
  An expression with gradients by the engine's ops, outside of its loops and branches.
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
  defp own(%T{data: %Expr{op: :block, args: [struct, inputs, default, _]}, vectorized_axes: []} = block) do
    gradient = if Enum.all?([block | inputs], &real?/1), do: of_block(struct, inputs, block)

    callback =
      case {gradient, length(inputs)} do
        {nil, _} -> nil
        {_, 1} -> fn _, a -> with_gradient(block, [a], gradient) end
        {_, 2} -> fn _, a, b -> with_gradient(block, [a, b], gradient) end
      end

    if callback, do: put_in(block.data.args, [struct, inputs, default, callback]), else: block
  end

  defp own(%T{data: %Expr{op: :triangular_solve, args: [a, b, opts]}, vectorized_axes: []} = x) do
    if Enum.all?([a, b, x], &real?/1), do: with_gradient(x, [a, b], &triangular_solve(a, x, opts, &1)), else: x
  end

  defp own(tensor), do: tensor

  # Nx begins with 1.0 of f32.
  defp with_gradient(result, inputs, fun) do
    Kernel.custom_grad(result, inputs, fn g -> g |> Nx.as_type(result.type) |> Nx.broadcast(result) |> fun.() end)
  end

  defp real?(tensor), do: match?(%T{type: {:f, _}}, tensor)

  defp of_block(%Nx.Block.CumulativeSum{axis: axis, reverse: reverse}, [_], _sum) do
    &[Nx.cumulative_sum(&1, axis: axis, reverse: not reverse)]
  end

  defp of_block(%Nx.Block.LinAlg.Cholesky{}, [_], factor), do: &[cholesky(factor, &1)]
  defp of_block(%Nx.Block.LinAlg.Solve{}, [a, _], x), do: &solve(a, x, &1)

  # Those of matrices of 2 and 3 rows are sums of products, which singular ones have, too.
  defp of_block(%Nx.Block.LinAlg.Determinant{}, [a], determinant) do
    if Nx.axis_size(a, -1) not in [2, 3], do: &[determinant(a, determinant, &1)]
  end

  defp of_block(_struct, _inputs, _block), do: nil

  # Of the factor L: L^-T P L^-1, where P is the lower triangle of L^T G with half of its diagonal (Murray 2016). As in
  # Nx, it is not symmetric.
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
    [x, y] = Enum.map([x, of_b], &as_matrix(&1, a, opts[:left_side]))
    of_op = if opts[:left_side], do: times(y, transpose(x)), else: times(transpose(x), y)
    of_a = if opts[:transform_a] == :transpose, do: transpose(of_op), else: of_op
    triangle = if opts[:lower], do: Nx.tril(of_a), else: Nx.triu(of_a)
    [Nx.negate(triangle), of_b]
  end

  # Of X = A^-1 B: that of B is A^-T G, and that of A its negative product with X.
  defp solve(a, x, g) do
    of_b = a |> transpose() |> Nx.LinAlg.solve(g)
    [x, y] = Enum.map([x, of_b], &as_matrix(&1, a, true))
    [Nx.negate(times(y, transpose(x))), of_b]
  end

  # Of the determinant D: D A^-T G.
  defp determinant(a, determinant, g) do
    scale = Nx.multiply(determinant, g) |> Nx.new_axis(-1) |> Nx.new_axis(-1)
    a |> transpose() |> Nx.LinAlg.solve(Nx.multiply(scale, Nx.eye(Nx.shape(a), type: a.type)))
  end

  # Vectors are columns from the left and rows from the right.
  defp as_matrix(x, a, left_side) do
    if Nx.rank(x) < Nx.rank(a), do: Nx.new_axis(x, if(left_side, do: -1, else: -2)), else: x
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
