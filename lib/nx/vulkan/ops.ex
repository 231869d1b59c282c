defmodule Nx.Vulkan.Ops do
  @moduledoc false

  # From Nx's ops to the engine's: which arguments of a callback of `Nx.Backend` are operands, and which attributes the
  # others become. `Nx.Vulkan.VulkanoBackend` runs what it says, `Nx.Vulkan.Compiler.Lowering` writes it into Programs.
  # The names of ops of elements come from `Nx.Vulkan.Ops.Table`.

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Block
  alias Nx.Vulkan.Ops.Table

  # The callbacks of a backend, with the number of their arguments less the template of the result. What Nx knows as a
  # block, such as `Nx.phase/1`, is none of them.
  @arguments for {callback, arity} <- Nx.Backend.behaviour_info(:callbacks), do: {callback, arity - 1}
  @callbacks Keyword.keys(@arguments)

  @elementwise for {op, _operands, _kind} <- Table.elementwise(), do: op
  @elements for({op, 1, _kind} <- Table.elementwise(), op in @callbacks, do: op)
  @binary for {op, 2, _kind} <- Table.elementwise(), op in @callbacks, do: op
  @ternary for {op, 3, _kind} <- Table.elementwise(), op in @callbacks, do: op

  # Views whose arguments are the operand and the attributes, in the engine's order.
  @views for {op, :view, attributes} <- Table.moves(),
             op in @callbacks and op not in [:squeeze, :broadcast, :slice],
             do: {op, attributes}

  @unary @elements ++ for({op, []} <- @views, do: op)

  # A constant is made of a number, and the function of a fold is no operand. The options of a backend, which `eye` and
  # `iota` take, do not count.
  @others @arguments
          |> Keyword.take(@ternary ++ Enum.map(Table.structured() ++ Table.moves(), &elem(&1, 0)))
          |> Keyword.drop([:constant, :reduce, :window_reduce | @unary])
          |> Keyword.merge(eye: 0, iota: 1)

  @reductions [:all, :any, :sum, :product, :reduce_max, :reduce_min]

  @doc "Ops of one operand and no attributes."
  def unary, do: @unary

  @doc "Ops of two operands and no attributes."
  def binary, do: @binary

  @doc "The other ops of one result whose operands are tensors, with the number of their arguments."
  def others, do: @others

  @doc """
  All ops of one result whose operands are tensors, with the number of their arguments less the template of the result.
  """
  def callbacks, do: Enum.map(@unary, &{&1, 1}) ++ Enum.map(@binary, &{&1, 2}) ++ @others

  @doc "Ops each of whose results is a function of the operands' elements at its place."
  def elementwise, do: @elementwise

  @doc "Those of a kind, see `t:Nx.Vulkan.Ops.Table.kind/0`."
  def elementwise(kind), do: for({op, _operands, ^kind} <- Table.elementwise(), do: op)

  @doc "Whether each element of the result is a function of the operands' elements at its place."
  def elementwise?(op), do: op in @elementwise

  @doc "Ops whose results have elements of their operands, or are made of nothing, each in their place."
  def moves, do: for({op, _kind, _attributes} <- Table.moves(), do: op)

  @doc "Those that see the elements of their operand in another way."
  def views, do: for({op, :view, _attributes} <- Table.moves(), do: op)

  @predicates for {op, _operands, :predicate} <- Table.elementwise(), do: op

  @doc "Whether the result is 0 or 1, of u8."
  def predicate?(op), do: op in @predicates

  @doc """
  The attributes and operands of an op, from the arguments of its callback less the template of the result.
  """
  @spec instruction(atom, list) :: {keyword, [T.t()]}
  def instruction(op, [a]) when op in @unary, do: {[], [a]}
  def instruction(op, [_, _] = operands) when op in @binary, do: {[], operands}
  def instruction(op, [_, _, _] = operands) when op in @ternary, do: {[], operands}
  def instruction(:squeeze, [a, _axes]), do: {[], [a]}
  def instruction(:eye, []), do: {[], []}
  def instruction(:iota, [axis]), do: {[axis: axis], []}
  def instruction(:broadcast, [a, _shape, axes]), do: {[axes: axes], [a]}
  def instruction(op, [tensors, axis]) when op in [:concatenate, :stack], do: {[axis: axis], tensors}
  def instruction(:gather, [a, indices, opts]), do: {[axes: opts[:axes]], [a, indices]}

  def instruction(op, [a, indices, updates, opts]) when op in [:indexed_add, :indexed_put] do
    {[axes: opts[:axes]], [a, indices, updates]}
  end

  def instruction(:pad, [a, value, config]) do
    attrs = [
      low: Enum.map(config, &elem(&1, 0)),
      high: Enum.map(config, &elem(&1, 1)),
      interior: Enum.map(config, &elem(&1, 2))
    ]

    {attrs, [a, value]}
  end

  def instruction(:slice, [a, starts, lengths, strides]) do
    {starts, tensors} = split_starts(starts)
    {[starts: starts, strides: strides, lengths: lengths], [a | tensors]}
  end

  def instruction(:put_slice, [a, starts, slice]) do
    {starts, tensors} = split_starts(starts)
    {[starts: starts], [a, slice | tensors]}
  end

  def instruction(:dot, [a, contract_a, batch_a, b, contract_b, batch_b]) do
    {[contract_a: contract_a, batch_a: batch_a, contract_b: contract_b, batch_b: batch_b], [a, b]}
  end

  def instruction(:conv, [a, kernel, opts]) do
    {low, high} = Enum.unzip(opts[:padding])
    spatial = fn tensor, permutation -> for axis <- Enum.drop(permutation, 2), do: elem(tensor.shape, axis) end
    sizes = Enum.zip_with(spatial.(a, opts[:input_permutation]), opts[:input_dilation], &extent/2)
    extents = Enum.zip_with(spatial.(kernel, opts[:kernel_permutation]), opts[:kernel_dilation], &extent/2)

    attrs = [
      strides: strides("conv", sizes, opts[:padding], extents, opts[:strides]),
      low: low,
      high: high,
      input_dilation: opts[:input_dilation],
      kernel_dilation: opts[:kernel_dilation],
      feature_groups: opts[:feature_group_size],
      batch_groups: opts[:batch_group_size],
      input_axes: opts[:input_permutation],
      kernel_axes: opts[:kernel_permutation],
      output_axes: opts[:output_permutation]
    ]

    {attrs, [a, kernel]}
  end

  def instruction(op, [a, opts]) when op in @reductions, do: {[axes: opts[:axes] || all_axes(a)], [a]}

  def instruction(op, [a, opts]) when op in [:argmax, :argmin] do
    axes = if axis = opts[:axis], do: [axis], else: all_axes(a)
    {[axes: axes, tie_break: opts[:tie_break]], [a]}
  end

  def instruction(op, [a, window, opts]) when op in [:window_sum, :window_product, :window_max, :window_min] do
    {windows(a, window, opts), [a]}
  end

  def instruction(op, [a, source, init, window, opts]) when op in [:window_scatter_max, :window_scatter_min] do
    {windows(a, window, opts), [a, source, init]}
  end

  def instruction(op, [a, opts]) when op in [:sort, :argsort] do
    {[axis: opts[:axis], descending: opts[:direction] == :desc], [a]}
  end

  def instruction(:triangular_solve, [a, b, opts]) do
    {[lower: !!opts[:lower], left_side: !!opts[:left_side], transform_a: opts[:transform_a]], [a, b]}
  end

  def instruction(op, [a, opts]) when op in [:fft, :ifft], do: {fourier(opts[:axis], opts[:length], opts[:eps]), [a]}

  for {op, [_ | _] = attributes} <- @views do
    def instruction(unquote(op), [a | values]), do: {Enum.zip(unquote(attributes), values), [a]}
  end

  # A start that is a tensor is an operand, and nil among the attributes.
  defp split_starts(starts) do
    {Enum.map(starts, &if(is_integer(&1), do: &1)), Enum.reject(starts, &is_integer/1)}
  end

  @doc """
  The attributes of `reduce` or `window_reduce` besides the function.
  """
  @spec fold(:reduce | :window_reduce, list) :: keyword
  def fold(:reduce, [a, opts]), do: [axes: opts[:axes] || all_axes(a)]
  def fold(:window_reduce, [a, window, opts]), do: windows(a, window, opts)

  defp windows(a, window, opts) do
    {low, high} = Enum.unzip(opts[:padding])
    dilations = opts[:window_dilations] || Enum.map(low, fn _ -> 1 end)
    window = Tuple.to_list(window)
    extents = Enum.zip_with(window, dilations, &extent/2)
    strides = strides("window dimensions", Tuple.to_list(a.shape), opts[:padding], extents, opts[:strides])
    [window: window, low: low, high: high, strides: strides, dilations: dilations]
  end

  # How many positions a dilated axis has.
  defp extent(size, dilation), do: (size - 1) * dilation + 1

  # Nx looks at numbers of windows, and so lets strides through that are negative or of any size where there is one, and
  # windows beyond the axis where strides are greater than 1.
  defp strides(what, sizes, padding, extents, strides) do
    Enum.zip_with([sizes, padding, extents, strides], fn [size, {low, high}, extent, stride] ->
      room = size + low + high - extent

      if room < 0,
        do: raise(ArgumentError, "#{what} would result in empty tensor which is not currently supported in Nx")

      if abs(stride) > room, do: room + 1, else: stride
    end)
  end

  defp all_axes(tensor), do: Enum.to_list(0..(tuple_size(tensor.shape) - 1)//1)

  defp fourier(axis, length, eps), do: [axis: axis, length: length, eps: part(eps)]

  # The blocks that are one op, by the names of both: their options are its attributes.
  @blocks for {op, attributes, _, _, _} = row <-
                Enum.map(Table.elementwise(), fn {op, operands, _kind} -> {op, [], operands, 1, true} end) ++
                  Table.structured(),
              parent <- Block.parents(),
              block = Module.concat(parent, Macro.camelize("#{op}")),
              Code.ensure_loaded?(block),
              Enum.sort(attributes) == block |> struct() |> Map.from_struct() |> Map.keys() |> Enum.sort(),
              into: %{},
              do: {block, row}

  @doc """
  What a block is on the device: ops that follow one another, each with the templates of its results, the first on the
  operands of the block and every other on the results before it. The results of the block are the first ones of the
  last op; `solve` has one more, which says whether the matrix was regular. `:default` where Nx's own implementation
  says what it is, and `{:default_or, ops}` where it does unless singular values, the second result of the ops, lie
  farther apart than `near/0`.
  """
  @spec block(struct, [T.t()], [T.t() | keyword]) :: :default | {:default_or, steps} | steps
        when steps: [{atom, keyword, [T.t()]}, ...]
  def block(%Nx.Block.LinAlg.QR{mode: mode}, [_q, _r] = outs, [_a]), do: [{:qr, [complete: mode == :complete], outs}]
  def block(%Nx.Block.LinAlg.LU{}, [_p, _l, _u] = outs, [_a]), do: [{:lu, [], outs}]
  def block(%Nx.Block.LinAlg.Solve{}, [x], [_a, _b]), do: [{:solve, [], [x, Nx.template({}, :u8)]}]

  # The closed formulas for small matrices of integers wrap around in their type.
  def block(%Nx.Block.LinAlg.Determinant{}, [_], [%T{type: {class, _}, shape: shape}])
      when class in [:s, :u] and elem(shape, tuple_size(shape) - 1) in [2, 3],
      do: :default

  def block(%Nx.Block.LinAlg.Eigh{}, [_values, _vectors] = outs, [_a]), do: [{:eigh, [], outs}]

  # Nx prints what its own steps give for matrices of the size of its examples; see guides/numerics.md.
  def block(%Nx.Block.LinAlg.SVD{full_matrices?: full}, [_u, s, _vt] = outs, [%T{shape: shape}]) do
    steps = [{:svd, [full: full], outs}]
    small? = match?({m, n} when m <= 4 and n <= 4, shape)
    if small? and s.type == {:f, 32}, do: {:default_or, steps}, else: steps
  end

  def block(%block{axes: axes, lengths: lengths, eps: eps}, [out], [tensor])
      when block in [Nx.Block.FFT2, Nx.Block.IFFT2] do
    op = if block == Nx.Block.FFT2, do: :fft, else: :ifft
    [{first, second}, {first_length, second_length}] = Enum.map([axes, lengths], &List.to_tuple/1)
    shape = put_elem(tensor.shape, second, second_length)
    [{op, fourier(second, second_length, eps), [%{out | shape: shape}]}, {op, fourier(first, first_length, eps), [out]}]
  end

  def block(%Nx.Block.RFFT{axis: axis, length: length, eps: eps}, [_] = outs, [_a]) do
    [{:rfft, fourier(axis, length, eps), outs}]
  end

  # Shorter ones and those of other types than these are as Nx's own implementation has them.
  def block(%Nx.Block.IRFFT{axis: axis, length: length, eps: eps}, [%T{type: {:f, size}}] = outs, [_a])
      when length > 2 and size >= 32 do
    [{:irfft, fourier(axis, length, eps), outs}]
  end

  def block(%block{} = struct, outs, args) do
    with %{^block => {op, attributes, operands, results, complex?}} <- @blocks,
         true <- {length(args), length(outs)} == {operands, results},
         true <- complex? or not Enum.any?(args, &match?(%T{type: {:c, _}}, &1)),
         options = for(attribute <- attributes, do: {attribute, Map.fetch!(struct, attribute)}),
         # A tensor is no attribute.
         false <- Enum.any?(options, fn {_, option} -> is_struct(option) end) do
      [{op, options, outs}]
    else
      _ -> :default
    end
  end

  @doc """
  The ratio of singular values up to which `:default_or` takes Nx's own steps. They square the condition, and leave
  2^-23 times 32^2 of orthogonality: 1.2e-4.
  """
  @spec near() :: pos_integer
  def near, do: 32

  @doc "A type's name in the engine."
  @spec type_name(Nx.Type.t()) :: atom
  def type_name(type)

  for {class, bits} = type <- Table.types() do
    # Where there are several of as many bits, the class says them.
    name = if "#{class}" =~ ~r/\d/, do: class, else: :"#{class}#{bits}"
    def type_name(unquote(type)), do: unquote(name)
  end

  @doc """
  A number as an attribute: the one that Nx writes to a binary of the type. Integers wrap to its width, and bf16 and f8
  lose the bits that they have no room for.
  """
  @spec number(number | Complex.t() | atom, Nx.Type.t()) :: term
  def number(%Complex{re: re, im: im}, _type), do: [part(re), part(im)]
  def number(value, {class, bits}) when class in [:s, :u], do: wrap(value, class, bits)
  def number(value, {:bf, 16}) when is_number(value), do: cut(value, 32, 16, 3.4028235677973366e38)
  def number(value, {:f, 8}) when is_number(value), do: cut(value, 16, 8, 65_520)
  def number(value, _type), do: part(value)

  defp part(value) when is_integer(value) and (value > 0x7FFFFFFFFFFFFFFF or value < -0x8000000000000000),
    do: value * 1.0

  defp part(value), do: value

  # The upper half of a float of so many bits; numbers beyond `most`, which have no such float, stay.
  defp cut(value, bits, kept, most) when abs(value) < most do
    <<upper::bits-size(^kept), lower::bits>> = <<value::float-size(bits)>>
    <<number::float-size(^bits)>> = <<upper::bits, 0::size(bit_size(lower))>>
    number
  end

  defp cut(value, _bits, _kept, _most), do: part(value)

  defp wrap(value, :u, bits) do
    <<wrapped::unsigned-size(^bits)>> = <<value::size(bits)>>
    wrapped
  end

  defp wrap(value, :s, bits) do
    <<wrapped::signed-size(^bits)>> = <<value::size(bits)>>
    wrapped
  end
end
