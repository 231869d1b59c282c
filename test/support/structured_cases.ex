defmodule Nx.Vulkan.Conformance.StructuredCases do
  @moduledoc """
  Random calls of ops with a structure of their own: convolutions, windows, Fourier transforms, linear algebra.

  Kinds and sizes come from `Nx.Vulkan.Conformance.Cases`.
  """

  import Nx.Vulkan.Conformance, only: [types: 0, reals: 0]
  import Nx.Vulkan.Conformance.Cases, only: [pick: 1, roll: 1]

  @doc "A case of the family: `{name, [{type, shape, low, high}], function, options}`."
  def build(:conv) do
    space = for _ <- 1..pick([1, 1, 2]), do: pick([1, 2, 3])
    {features, batches} = pick([{1, 1}, {1, 1}, {2, 1}, {1, 2}])
    strides = Enum.map(space, fn _ -> pick([1, 2]) end)
    kernel_dilation = Enum.map(space, fn _ -> pick([1, 1, 2]) end)
    input_dilation = Enum.map(space, fn _ -> pick([1, 1, 2]) end)
    padding = pick([:valid, :same, Enum.map(space, fn _ -> {pick([0, 1]), pick([0, 2])} end)])
    type = pick(types())
    # An axis of channels last needs a permutation.
    rank = length(space) + 2
    last = [0, rank - 1] ++ Enum.to_list(1..(rank - 2))
    permutation = pick([Enum.to_list(0..(rank - 1)), last])

    sizes = Enum.zip_with(space, kernel_dilation, fn window, dilation -> (window - 1) * dilation + roll(7) end)
    [images, channels, filters] = for _ <- 1..3, do: roll(3)
    input = [images * batches, channels * features | sizes]
    input = input |> Enum.zip(permutation) |> Enum.sort_by(&elem(&1, 1)) |> Enum.map(&elem(&1, 0)) |> List.to_tuple()
    kernel = List.to_tuple([filters * features * batches, channels | space])

    opts = [
      strides: strides,
      padding: padding,
      input_dilation: input_dilation,
      kernel_dilation: kernel_dilation,
      feature_group_size: features,
      batch_group_size: batches,
      input_permutation: permutation
    ]

    {{:conv, opts}, [{type, input, 0, 3}, {type, kernel, 0, 3}], &Nx.conv(&1, &2, opts), wide: 0.51, ulp: 32}
  end

  def build(:window) do
    op = pick([:window_sum, :window_product, :window_max, :window_min, :window_mean])
    window = for _ <- 1..pick([1, 2, 3]), do: pick([1, 2, 3])
    dilations = Enum.map(window, fn _ -> pick([1, 1, 2]) end)
    padding = pick([:valid, :same, Enum.map(window, fn _ -> {pick([0, 1]), pick([0, 2])} end)])
    opts = [strides: Enum.map(window, fn _ -> pick([1, 2]) end), padding: padding, window_dilations: dilations]
    shape = Enum.zip_with(window, dilations, fn size, dilation -> (size - 1) * dilation + roll(5) end)
    type = pick(if op in [:window_max, :window_min], do: reals(), else: types())
    {low, high} = if op == :window_product, do: {1, 1.5}, else: {0, 4}
    operands = [{type, List.to_tuple(shape), low, high}]

    # A mean is a sum and a quotient: both are rounded, and half a unit of one may be one of the other. The sum has the
    # type of the operand, although the quotient of f8_e4m3fn is f32.
    rounds = if op == :window_mean, do: [wide: 1.65, rounds: type], else: [wide: 0.51]
    {{op, window, opts}, operands, &apply(Nx, op, [&1, List.to_tuple(window), opts]), [ulp: 32] ++ rounds}
  end

  def build(:fft) do
    op = pick([:fft, :ifft, :rfft, :irfft, :fft2])
    # The default implementation of irfft mirrors halves in the narrow type.
    type =
      case op do
        :rfft -> pick(reals())
        :irfft -> pick([{:f, 32}, {:f, 64}, {:c, 64}, {:c, 128}])
        _ -> pick(types())
      end

    length = pick([nil, 3, 8, 17, 30])
    rows = for _ <- 1..pick([0, 1, 2])//1, do: roll(3)
    columns = 3 + roll(40)
    shape = List.to_tuple(rows ++ [columns])
    # Bounds of the transform are relative to a row, whose elements are at most 1.5.
    error = if type in [{:f, 64}, {:c, 128}], do: 1.0e-14, else: 1.0e-6
    opts = if length, do: [length: length], else: []

    case op do
      :fft2 ->
        {:fft2, [{type, {roll(5), columns}, -1, 1}], &Nx.fft2/1, absolute: error * 5 * columns}

      _ ->
        {{op, opts}, [{type, shape, -1, 1}], &apply(Nx, op, [&1, opts]), absolute: error * max(columns, length || 0)}
    end
  end

  def build(:linalg) do
    type = pick([{:f, 32}, {:f, 64}, {:c, 64}, {:c, 128}])
    batch = for _ <- 1..pick([0, 0, 1])//1, do: roll(3)
    n = roll(7)
    square = List.to_tuple(batch ++ [n, n])
    right = List.to_tuple(batch ++ [n, roll(3)])
    one = {type, square, -1, 1}
    error = if type in [{:f, 64}, {:c, 128}], do: 1.0e-11, else: 1.0e-4

    {name, operands, fun} =
      pick([
        {:cholesky, [one], &Nx.LinAlg.cholesky(definite(&1))},
        {:solve, [one, {type, right, -1, 1}], &Nx.LinAlg.solve(definite(&1), &2)},
        {:triangular_solve, [one, {type, right, -1, 1}],
         &Nx.LinAlg.triangular_solve(Nx.tril(regular(&1)), &2, lower: true)},
        {:determinant, [one], &Nx.LinAlg.determinant(Nx.divide(regular(&1), 2 * n + 1))},
        {:lu, [one], &Nx.LinAlg.lu(regular(&1))},
        {:qr, [one], &Nx.LinAlg.qr(regular(&1))},
        {:invert, [one], &Nx.LinAlg.invert(regular(&1))}
      ])

    # Nx.BinaryBackend adds 1e-10 to the divisors of cholesky, and its qr subtracts the norm of a column from an element
    # near it.
    error =
      case name do
        :cholesky -> max(error, 1.0e-8)
        :qr -> error * 100
        _ -> error
      end

    {name, operands, fun, absolute: error}
  end

  # Far from singular, whatever the elements between -1 and 1: the diagonal rules.
  defp regular(a) do
    n = Nx.axis_size(a, -1)
    Nx.add(a, Nx.multiply(Nx.eye(n, type: a.type), 2 * n))
  end

  defp definite(a), do: Nx.add(regular(a), Nx.LinAlg.adjoint(a))
end
