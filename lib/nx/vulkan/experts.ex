defmodule Nx.Vulkan.Experts do
  @moduledoc """
  Mixtures of experts: which experts rows go to, and products of rows with the matrices of their experts.

      defn mixture(x, router, up, down) do
        {shares, experts} = Nx.Vulkan.Experts.route(Nx.dot(x, router), k: 2)
        rows = Nx.broadcast(Nx.new_axis(x, -2), {Nx.axis_size(x, 0), 2, Nx.axis_size(x, 1)})
        hidden = rows |> Nx.Vulkan.Experts.dot(up, experts) |> Nx.max(0)
        Nx.sum(Nx.Vulkan.Experts.dot(hidden, down, experts) * Nx.new_axis(shares, -1), axes: [-2])
      end

  They are numerical definitions, for any backend and compiler, and have gradients. There, a row of `x` is broadcast to
  a row for each of its experts.
  """

  import Nx.Defn

  alias Nx.Vulkan.Quantized

  # Rows of a block, at most. More would save copies of matrices, and compute more rows that nobody asked for.
  @block 64

  @doc """
  The `k` experts with the largest of `logits`, the largest first, and the share of each.

  ## Options

    * `:k` - how many; required
    * `:normalize` - whether shares add up to 1, as those of Mixtral. `true` by default; `false` keeps the
      probabilities that a softmax over all experts gives, as Switch and OLMoE do

  ## Shapes

  `logits` `{.., experts}`; the result is `{shares, experts}`, each `{.., k}`.

  ## Types

  Shares have the type of `logits`, or f32 where these are whole numbers, and experts are s32.

  ## Errors

  `ArgumentError` without `:k`, or with one that is above the number of experts.

  ## Examples

      iex> {shares, experts} = Nx.Vulkan.Experts.route(Nx.tensor([[0.0, 2.0, 1.0, 2.0]]), k: 2)
      iex> {Nx.to_list(shares), Nx.to_list(experts)}
      {[[0.5, 0.5]], [[1, 3]]}
  """
  @spec route(Nx.Tensor.t(), keyword) :: {Nx.Tensor.t(), Nx.Tensor.t()}
  defn route(logits, opts \\ []) do
    opts = keyword!(opts, [:k, normalize: true])
    shares_of(logits, opts)
  end

  deftransformp shares_of(logits, opts) do
    experts = Nx.axis_size(logits, -1)

    opts[:k] in 1..experts or
      raise ArgumentError, "expected :k to be from 1 to the #{experts} experts, got: #{inspect(opts[:k])}"

    logits = Nx.as_type(logits, Nx.Type.to_floating(Nx.type(logits)))
    {top, chosen} = Nx.top_k(logits, k: opts[:k])
    most = top |> Nx.slice_along_axis(0, 1, axis: -1) |> Nx.Defn.Kernel.stop_grad()
    of = if opts[:normalize], do: top, else: logits
    sum = of |> Nx.subtract(most) |> Nx.exp() |> Nx.sum(axes: [-1], keep_axes: true)
    {top |> Nx.subtract(most) |> Nx.exp() |> Nx.divide(sum), Nx.as_type(chosen, :s32)}
  end

  @doc """
  The product of each row of `x` with the matrix of its expert.

  Rows are laid out by experts, in blocks of rows of one expert, and blocks are multiplied with the matrices of their
  experts. Experts may have any number of rows, or none. With `rows` and `experts` in all, that is work for at most
  `rows + experts * block` rows. Where an expert has no more than a row on average, each row is a block.

  ## Shapes

  `x` `{.., k}`, `experts` `{..}`, and `weights` either a tensor `{count, k, n}` or `Nx.Vulkan.Quantized` of the shape
  `{count, n, k}`, as its own `dot/2` has it. The result is `{.., n}`.

  ## Types

  Those of `Nx.dot/2` and `Nx.Vulkan.Quantized.dot/2`. `experts` are integers; those that there are not are taken for
  the nearest.

  ## Gradients

  Those of `x` and of tensors. Experts without rows have gradients of 0.

  ## Errors

  `ArgumentError` for shapes that do not fit and for vectorized tensors.

  ## Source

  Blocks: Gale et al., MegaBlocks (2022).

  ## Examples

      iex> weights = Nx.tensor([[[1.0]], [[10.0]], [[100.0]]])
      iex> Nx.Vulkan.Experts.dot(Nx.tensor([[1.0], [2.0], [3.0]]), weights, Nx.tensor([2, 0, 2])) |> Nx.to_flat_list()
      [100.0, 2.0, 300.0]
  """
  @spec dot(Nx.Tensor.t(), Nx.Tensor.t() | Quantized.t(), Nx.Tensor.t()) :: Nx.Tensor.t()
  defn(dot(x, weights, experts), do: grouped(x, weights, experts))

  deftransformp grouped(x, weights, experts) do
    check!(x, weights, experts)
    count = elem(weights.shape, 0)
    rows = Nx.size(experts)
    flat = Nx.reshape(x, {rows, Nx.axis_size(x, -1)})
    experts = experts |> Nx.reshape({rows}) |> Nx.clip(0, count - 1)
    y = if rows <= count, do: blocks(Nx.new_axis(flat, 1), weights, experts), else: laid_out(flat, weights, experts)
    name = if is_struct(weights, Quantized), do: nil, else: List.last(weights.names)

    Nx.reshape(y, put_elem(x.shape, tuple_size(x.shape) - 1, Nx.axis_size(y, -1)),
      names: List.replace_at(x.names, -1, name)
    )
  end

  defp laid_out(x, weights, experts) do
    count = elem(weights.shape, 0)
    {rows, width} = x.shape
    block = min(@block, 2 ** ceil(:math.log2(2 * rows / count)))

    # How many rows of its expert come before each row, and after which blocks those of an expert begin and end.
    mine = experts |> Nx.new_axis(1) |> Nx.equal(Nx.iota({1, count})) |> Nx.as_type(:s32)
    sums = Nx.cumulative_sum(mine, axis: 0)
    before = sums |> Nx.multiply(mine) |> Nx.sum(axes: [1]) |> Nx.subtract(1)
    sizes = sums[-1] |> Nx.add(block - 1) |> Nx.quotient(block)
    ends = Nx.cumulative_sum(sizes)
    places = ends |> Nx.subtract(sizes) |> Nx.take(experts) |> Nx.multiply(block) |> Nx.add(before)

    # As many as there may be: those of an expert are full but one.
    blocks = div(rows + count * (block - 1), block)
    owners = Nx.iota({blocks, 1}) |> Nx.greater_equal(Nx.new_axis(ends, 0)) |> Nx.sum(axes: [1]) |> Nx.min(count - 1)

    Nx.tensor(0, type: x.type)
    |> Nx.broadcast({blocks * block, width})
    |> Nx.indexed_put(Nx.new_axis(places, 1), x)
    |> Nx.reshape({blocks, block, width})
    |> blocks(weights, owners)
    |> Nx.flatten(axes: [0, 1])
    |> Nx.take(places)
  end

  # The products of {blocks, rows, k} with the matrices of their experts.
  defp blocks(x, %Quantized{} = weights, owners) do
    {_count, n, k} = weights.shape
    tensors = Map.new(weights.tensors, fn {name, t} -> {name, if(t.shape == {}, do: t, else: Nx.take(t, owners))} end)
    chosen = %{weights | shape: {Nx.size(owners), n, k}, tensors: tensors}
    type = if x.type in [{:f, 16}, {:bf, 16}], do: x.type, else: {:f, 32}
    Nx.dot(x, [2], [0], Quantized.dequantize(chosen, type: type), [2], [0])
  end

  defp blocks(x, weights, owners), do: Nx.dot(x, [2], [0], Nx.take(weights, owners), [1], [0])

  defp check!(x, weights, experts) do
    tensors = if is_struct(weights, Quantized), do: [x, experts], else: [x, weights, experts]

    for t <- tensors, t.vectorized_axes != [] do
      raise ArgumentError, "expected tensors without vectorized axes, got: #{inspect(t)}"
    end

    k =
      case {weights, weights.shape} do
        {%Quantized{}, {_count, _n, k}} -> k
        {%Nx.Tensor{}, {_count, k, _n}} -> k
        {_, shape} -> raise ArgumentError, "expected weights of three axes, one of experts, got shape #{inspect(shape)}"
      end

    x.shape == Tuple.insert_at(experts.shape, tuple_size(experts.shape), k) or
      raise ArgumentError,
            "expected an x of rows of #{k} and an expert for each row, got: x of shape #{inspect(x.shape)}, " <>
              "experts of shape #{inspect(experts.shape)}"

    Nx.Type.integer?(experts.type) or
      raise ArgumentError, "expected experts to be integers, got: #{Nx.Type.to_string(experts.type)}"
  end
end
