defmodule Nx.Vulkan.Block do
  @moduledoc false

  # Functions of Nx.Vulkan that the engine has. Each is a block as Nx's own are: a struct of the name and the attributes
  # of the engine's op, which `Nx.Vulkan.Ops` finds, and steps in Nx's ops, which other backends run and gradients
  # follow.

  alias Nx.Defn.{Expr, Kernel}
  alias Nx.Tensor, as: T

  defmodule Log2 do
    @moduledoc false
    defstruct []
  end

  defmodule Searchsorted do
    @moduledoc false
    defstruct side: :left
  end

  @doc "The modules whose structs are blocks."
  @spec parents() :: [module]
  def parents, do: [Nx.Block, Nx.Block.LinAlg, __MODULE__]

  @doc "`Nx.Vulkan.log2/1`."
  @spec log2(Nx.Tensor.t() | number) :: T.t()
  def log2(tensor) do
    %T{vectorized_axes: axes} = tensor = Nx.to_tensor(tensor)
    tensor |> Nx.devectorize() |> log2_of() |> Nx.vectorize(axes)
  end

  defp log2_of(%T{type: {:c, _}} = tensor), do: tensor |> Nx.log() |> Nx.divide(ln2(Nx.Type.to_real(tensor.type)))

  defp log2_of(tensor) do
    out = Nx.template(tensor.shape, Nx.Type.to_floating(tensor.type), names: tensor.names)
    Nx.block(%Log2{}, [tensor], out, fn %Log2{}, x -> x |> log2_steps(out.type) |> Nx.as_type(out.type) end)
  end

  # The exponents of powers of two.
  defp log2_steps(x, {:f, 64}), do: log2_steps(Nx.as_type(x, :f64), -1074, 1023)
  defp log2_steps(x, _type), do: log2_steps(Nx.as_type(x, :f32), -149, 127)

  # Of a power of two the quotient may be a unit off. What puts that right has no gradient.
  defp log2_steps(x, least, most) do
    quotient = x |> Nx.log() |> Nx.divide(ln2(x.type))
    whole = quotient |> Nx.clip(least, most) |> Nx.round()
    power? = Nx.logical_and(Nx.greater(x, 0), Nx.equal(Nx.pow(2, whole), x))
    rest = Nx.select(power?, Nx.subtract(whole, quotient), 0)
    Nx.add(quotient, without_gradient(rest))
  end

  # Nx.BinaryBackend would take a number for an f32.
  defp ln2(type), do: Nx.tensor(:math.log(2), type: type, backend: Nx.BinaryBackend)

  defp without_gradient(%T{data: %Expr{}} = expr), do: Kernel.stop_grad(expr)
  defp without_gradient(tensor), do: tensor

  @doc "`Nx.Vulkan.searchsorted/3`."
  @spec searchsorted(Nx.Tensor.t(), Nx.Tensor.t() | number, keyword) :: T.t()
  def searchsorted(sorted, values, opts) do
    side = Keyword.validate!(opts, side: :left)[:side]

    side in [:left, :right] or
      raise ArgumentError, "expected :side to be :left or :right, got: #{inspect(side)}"

    [sorted, values] = of_one_type(sorted, values)
    row? = Nx.rank(sorted) == 1
    rows? = Nx.rank(sorted) > 1 and drop_last(sorted.shape) == drop_last(values.shape)

    row? or rows? or
      raise ArgumentError, """
      expected the first tensor to be a sorted row, of shape {n}, or to have a sorted row for each row of values, with \
      the same axes before its last one, got: shape #{inspect(sorted.shape)} for values of shape \
      #{inspect(values.shape)}. Give both the same axes with Nx.reshape/2 or Nx.broadcast/2, or the axes that they \
      share to Nx.vectorize/2\
      """

    block = %Searchsorted{side: side}

    if row? and sorted.vectorized_axes == [],
      do: places(block, sorted, values),
      else: places_in_rows(block, sorted, values)
  end

  # A number beside a tensor has its type, as in Nx.
  defp of_one_type(sorted, values) do
    type =
      if is_number(values),
        do: Nx.Type.merge_number(Nx.type(sorted), values),
        else: Nx.Type.merge(Nx.type(sorted), Nx.type(values))

    if Nx.Type.complex?(type) do
      raise ArgumentError, "expected real numbers to search among, got: #{Nx.Type.to_string(type)}, which has no order"
    end

    Enum.map([sorted, values], &Nx.as_type(&1, type))
  end

  # Values of vectorized axes have the row of their place there.
  defp places_in_rows(block, sorted, values) do
    [sorted, values] = Nx.broadcast_vectors([sorted, values], align_ranks: false)
    lead = values.vectorized_axes |> Keyword.values() |> List.to_tuple()
    flat = if Nx.rank(sorted) == 1, do: Nx.reshape(values, {:auto}), else: values
    rows = Nx.devectorize(sorted, keep_names: false)
    places = places(block, rows, Nx.devectorize(flat, keep_names: false))

    places
    |> Nx.reshape(List.to_tuple(Tuple.to_list(lead) ++ Tuple.to_list(values.shape)))
    |> Nx.vectorize(values.vectorized_axes)
    |> Nx.rename(values.names)
  end

  defp places(block, sorted, values) do
    axes = values.vectorized_axes
    values = Nx.devectorize(values)
    out = Nx.template(values.shape, :s32, names: values.names)
    block |> Nx.block([sorted, values], out, &searchsorted_steps/3) |> Nx.vectorize(axes)
  end

  # A place grows by halves of what is left, as long as the element before it comes before the value.
  defp searchsorted_steps(%Searchsorted{side: side}, sorted, values) do
    n = Nx.axis_size(sorted, -1)
    row? = Nx.rank(sorted) == 1
    last = max(Nx.rank(values) - 1, 0)
    element = if row?, do: &Nx.take(sorted, &1), else: &Nx.take_along_axis(sorted, &1, axis: last)

    for power <- n |> Integer.digits(2) |> length() |> Range.new(1, -1), reduce: Nx.broadcast(0, values) do
      place ->
        next = Nx.add(place, 2 ** (power - 1))
        before? = comes_before(element.(Nx.subtract(Nx.min(next, n), 1)), values, side)
        Nx.select(Nx.logical_and(before?, Nx.less_equal(next, n)), next, place)
    end
    |> Nx.as_type(:s32)
    |> Nx.rename(values.names)
  end

  # NaN is the largest.
  defp comes_before(element, value, :left) do
    Nx.logical_or(Nx.less(element, value), Nx.logical_and(Nx.is_nan(value), Nx.logical_not(Nx.is_nan(element))))
  end

  defp comes_before(element, value, :right) do
    Nx.logical_or(Nx.less_equal(element, value), Nx.is_nan(value))
  end

  defp drop_last({}), do: {}
  defp drop_last(shape), do: Tuple.delete_at(shape, tuple_size(shape) - 1)
end
