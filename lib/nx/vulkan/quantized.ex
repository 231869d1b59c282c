defmodule Nx.Vulkan.Quantized do
  @moduledoc """
  Tensors of fewer bits, for weights: integers or small floats in groups, with scales.

      q = Nx.Vulkan.Quantized.quantize(weight, :q4_k)
      y = Nx.Vulkan.Quantized.dot(x, q)

  A quantised tensor is an `Nx.Container` of ordinary tensors: it goes through `Nx.Defn.jit/2`, `Nx.backend_transfer/2`
  and `Nx.serialize/2`, can be a parameter of Axon, and has the same values under any backend and compiler.
  `Nx.Vulkan.GGUF` reads them from files.

  ## Fields

    * `:format` - see below
    * `:shape` - the shape of the values, `{..., n, k}`. Groups lie along the last axis
    * `:tensors` - a map of what is stored

  ## Formats

  `{:affine, bits, group}` has `bits` of 2, 4 or 8 and a `group` of 32, 64 or 128. `weight` is u32
  `{..., n, k * bits / 32}`, with the first integer in the lowest bits, as in MLX; `scales` and `biases` are f32, f16 or
  bf16 `{..., n, k / group}`. A value is `scale * q + bias` or, without `biases`, `scale * (q - 2 ** (bits - 1))`.
  Where there are `columns`, s32 `{k}`, stored columns are those of the values that it names: groups of GPTQ need not be
  neighbours.

  `:q4_0`, `:q4_1`, `:q5_0`, `:q5_1`, `:q8_0`, `:q2_k`, `:q3_k`, `:q4_k`, `:q5_k`, `:q6_k`, `:q8_k`, `:iq4_nl`,
  `:iq4_xs`, `:tq1_0`, `:tq2_0`, `:mxfp4` and `:nvfp4` are those of GGUF. `blocks` is u8
  `{..., n, k / weights, bytes}`, the blocks as they are in files.

  `{type, part}` is a float of 8 bits, `:f8_e4m3fn` or `:f8` (E5M2), with a scale for each `part`. `weight` is
  `{..., n, k}` of that type, `scales` is `{}` for `:tensor`, `{..., n, 1}` for `:channel`, and
  `{..., n / 128, k / 128}`, rounded up, for `:block`. A value is `scale * weight`. With `:mx` (MXFP8) `scales` is u8
  `{..., n, k / 32}`, exponents: a value is `2 ** (scale - 127) * weight`.

  ## Errors of formats

  Of 262,144 normal numbers in rows of 1,024, quantised by `quantize/3`: the root of the mean square of the error over
  that of the numbers, and the largest error over that root.

  | format | bits per weight | rms | largest |
  |---|---:|---:|---:|
  | `{:affine, 8, 32}` | 9.00 | 0.0046 | 0.0153 |
  | `{:affine, 8, 64}` | 8.50 | 0.0053 | 0.0153 |
  | `{:affine, 8, 128}` | 8.25 | 0.0059 | 0.0153 |
  | `{:affine, 4, 32}` | 5.00 | 0.0781 | 0.2575 |
  | `{:affine, 4, 64}` | 4.50 | 0.0897 | 0.2578 |
  | `{:affine, 4, 128}` | 4.25 | 0.0999 | 0.2620 |
  | `{:affine, 2, 32}` | 3.00 | 0.3933 | 1.3097 |
  | `{:affine, 2, 64}` | 2.50 | 0.4509 | 1.3097 |
  | `{:affine, 2, 128}` | 2.25 | 0.5010 | 1.3097 |
  | `{:affine, 8, 64}`, `scales: :least_squares` | 8.50 | 0.0049 | 0.0238 |
  | `{:affine, 8, 64}`, `symmetric: true` | 8.25 | 0.0059 | 0.0209 |
  | `{:affine, 8, 64}`, both | 8.25 | 0.0056 | 0.0242 |
  | `{:affine, 4, 64}`, `scales: :least_squares` | 4.50 | 0.0815 | 0.4332 |
  | `{:affine, 4, 64}`, `symmetric: true` | 4.25 | 0.0949 | 0.4004 |
  | `{:affine, 4, 64}`, both | 4.25 | 0.0899 | 0.4940 |
  | `{:affine, 2, 64}`, `scales: :least_squares` | 2.50 | 0.3245 | 2.8874 |
  | `{:affine, 2, 64}`, `symmetric: true` | 2.25 | 0.3949 | 1.7127 |
  | `{:affine, 2, 64}`, both | 2.25 | 0.3560 | 2.4530 |
  | `:q4_0` | 4.50 | 0.0858 | 0.3706 |
  | `:q4_1` | 5.00 | 0.0781 | 0.2575 |
  | `:q5_0` | 5.50 | 0.0427 | 0.1793 |
  | `:q5_1` | 6.00 | 0.0379 | 0.1212 |
  | `:q8_0` | 8.50 | 0.0053 | 0.0186 |
  | `:q2_k` | 2.63 | 0.2832 | 1.2417 |
  | `:q3_k` | 3.44 | 0.1530 | 0.7235 |
  | `:q4_k` | 4.50 | 0.0714 | 0.2845 |
  | `:q5_k` | 5.50 | 0.0362 | 0.1557 |
  | `:q6_k` | 6.56 | 0.0177 | 0.0741 |
  | `:iq4_nl` | 4.50 | 0.0761 | 0.2768 |
  | `:iq4_xs` | 4.25 | 0.0767 | 0.2768 |
  | `:mxfp4` | 4.25 | 0.1151 | 0.9917 |
  | `:nvfp4` | 4.50 | 0.0950 | 0.5927 |
  | `{:f8_e4m3fn, part}` | 8.00 to 8.03 | 0.0264 | 0.1682 |
  | `{:f8, part}` | 8.00 to 8.03 | 0.0527 | 0.3363 |
  | `{:f8_e4m3fn, :mx}` | 8.25 | 0.0294 | 0.4910 |
  | `{:f8, :mx}` | 8.25 | 0.0540 | 0.4951 |

  For all numbers affine formats with `scales: :minmax` are off by half of a scale at most, symmetric ones by a whole
  one, besides what scales, times the integers, and biases lose when they are rounded to their type.
  """

  import Nx.Defn

  alias Nx.Vulkan.Quantized.{Affine, Blocks, Encoder, Floats, Formats}

  @derive {Nx.Container, containers: [:tensors], keep: [:format, :shape]}
  @enforce_keys [:format, :shape, :tensors]
  defstruct [:format, :shape, :tensors]

  @typedoc "A format, see the module's documentation."
  @type format ::
          atom
          | {:affine, bits :: 2 | 4 | 8, group :: 32 | 64 | 128}
          | {:f8 | :f8_e4m3fn, :tensor | :channel | :block | :mx}

  @type t :: %__MODULE__{format: format, shape: tuple, tensors: %{atom => Nx.Tensor.t()}}

  @types [{:f, 32}, {:f, 16}, {:bf, 16}, {:f, 64}]
  @scale_types [{:f, 32}, {:f, 16}, {:bf, 16}]

  @doc """
  Quantises a tensor of floats.

  ## Options

    * `:scales` - how the scales of affine formats are found. `:minmax`, the default, takes the extremes of each group.
      `:least_squares` tries 20 scales around those and keeps the one that loses least, with the scale and bias of
      least squares; it takes some 20 times as long
    * `:symmetric` - `true` stores no biases; `false` by default. Of affine formats
    * `:scale_type` - the type of scales and biases of affine formats, `:f16` by default, or `:bf16`, `:f32`. Both
      have to be within its range

  Block formats that can be made are all but `:q8_k`, `:tq1_0` and `:tq2_0`. `:q4_0`, `:q4_1`, `:q5_0`, `:q5_1`,
  `:q8_0`, `:q4_k`, `:q5_k`, `:q6_k` and `:mxfp4` are made in the steps of ggml's `quantize_row_*_ref`. Where many
  scales are tried, of `:q4_k`, `:q5_k` and `:q6_k`, sums add up in another order, and another scale that is as good
  may be chosen. `:q2_k`, `:q3_k`, `:iq4_nl` and `:iq4_xs` have scales of least squares that are not ggml's own. Those
  of `:nvfp4` are floats of 8 bits, the nearest to a sixth of the largest number: numbers have to be within 2,688 in
  magnitude, and are best scaled to about 1 before.

  ## Shapes

  `{..., k}` with a multiple of the format's group or block; `{..., n, k}` of any `k` for floats of 8 bits, of multiples
  of 32 with `:mx`.

  ## Types

  Floats of 16 and 32 bits, computed in f32. Others are cast to f32 first.

  ## Errors

  An `ArgumentError` for a format or an option that there is not, and a shape that does not fit. Values have to be
  finite, and scales and biases within the range of their type. Biases are the least values of groups, or near them:
  where one is beyond 65,504 in magnitude, f16 makes it infinite, and the values of the group are infinities and NaN.
  `:bf16` and `:f32` have the range of f32.

  ## Examples

      iex> q = Nx.Vulkan.Quantized.quantize(Nx.iota({2, 64}, type: :f32), {:affine, 4, 64})
      iex> {q.shape, q.tensors.weight.type, q.tensors.weight.shape, q.tensors.scales.shape}
      {{2, 64}, {:u, 32}, {2, 8}, {2, 1}}
  """
  @spec quantize(Nx.Tensor.t(), format, keyword) :: t
  deftransform quantize(tensor, format, opts \\ []) do
    format |> Formats.check!() |> encode(Nx.to_tensor(tensor), opts)
  end

  defp encode(format, tensor, opts) do
    given = Keyword.validate!(opts, [:scales, :symmetric, :scale_type])

    if given != [] and not match?({:affine, _, _}, format) do
      raise ArgumentError,
            "expected no options for #{inspect(format)}, which has no choice of scales, got: #{inspect(given)}"
    end

    Formats.check_shape!(tensor.shape, format)
    tensor = Nx.as_type(tensor, :f32)

    tensors =
      case format do
        {:affine, _bits, _group} -> Affine.encode(tensor, affine_options(format, given))
        {type, part} -> Floats.encode(tensor, type: type, part: part)
        _ -> %{blocks: Encoder.encode(tensor, format)}
      end

    %__MODULE__{format: format, shape: tensor.shape, tensors: tensors}
  end

  defp affine_options({:affine, bits, group}, opts) do
    opts = Keyword.merge([scales: :minmax, symmetric: false, scale_type: :f16], opts)
    choose!(:scales, opts[:scales], [:minmax, :least_squares])
    choose!(:symmetric, opts[:symmetric], [true, false])
    type = type!(:scale_type, opts[:scale_type], @scale_types)
    [bits: bits, group: group, scales: opts[:scales], symmetric: opts[:symmetric], scale_type: type]
  end

  defp choose!(option, value, choices) do
    if value not in choices do
      raise ArgumentError, "expected #{inspect(option)} to be one of #{inspect(choices)}, got: #{inspect(value)}"
    end
  end

  defp type!(option, type, types) do
    normal = Nx.Type.normalize!(type)
    names = Enum.map_join(types, ", ", &Nx.Type.to_string/1)

    if normal not in types,
      do: raise(ArgumentError, "expected #{inspect(option)} to be one of #{names}, got: #{inspect(type)}")

    normal
  end

  @doc """
  The values, of the type `:type`, f32 by default, or `:f16`, `:bf16`, `:f64`.

  Computed in f32 and rounded to another type once, at the end. It is an elementwise expression of the stored tensors,
  which a compiled function has in one kernel or as part of one; in two for `:tq1_0`, and for a float of 8 bits with
  `:block` whose `n` and `k` are both no multiples of 128. `columns` are put in their order behind it. It has no
  gradient.

  ## Errors

  An `ArgumentError` for another type.

  ## Source

  ggml's `dequantize_row_*`, to the bit, and MLX's `dequantize`, which rounds to the type of the scales after each step.

  ## Examples

      iex> q = Nx.Vulkan.Quantized.quantize(Nx.tensor([List.duplicate(1.0, 31) ++ [-8.0]]), :q4_0)
      iex> q |> Nx.Vulkan.Quantized.dequantize() |> Nx.sum() |> Nx.to_number()
      23.0
  """
  @spec dequantize(t, keyword) :: Nx.Tensor.t()
  defn(dequantize(q, opts \\ [type: :f32]), do: stop_grad(values(q, opts)))

  deftransformp values(q, opts) do
    opts = Keyword.validate!(opts, type: :f32)
    type = type!(:type, opts[:type], @types)
    q = quantized!(q)
    q |> decode() |> Nx.reshape(q.shape) |> Nx.as_type(type)
  end

  # In the order of columns.
  defp decode(%__MODULE__{tensors: %{columns: columns}} = q) do
    q |> unordered() |> decode() |> Nx.reshape(q.shape) |> Nx.take(Nx.argsort(columns), axis: -1)
  end

  defp decode(%__MODULE__{format: {:affine, bits, group}, tensors: tensors}), do: Affine.decode(tensors, bits, group)
  defp decode(%__MODULE__{format: {_type, part}, tensors: tensors}), do: Floats.decode(tensors, part)

  defp decode(%__MODULE__{format: format, tensors: %{blocks: blocks}}) do
    {_weights, bytes} = Formats.block(format)
    blocks |> Nx.reshape({:auto, bytes}) |> Blocks.decode(format)
  end

  # The columns as they are stored.
  defp unordered(q), do: %{q | tensors: Map.delete(q.tensors, :columns)}

  defp quantized!(%__MODULE__{} = q), do: q
  defp quantized!(other), do: raise(ArgumentError, "expected a quantised tensor, got: #{inspect(other)}")

  @doc """
  The values that a tensor has in a format, with the gradient that the tensor itself would have (straight-through): for
  training weights that are to be quantised later.

  ## Options

    * `:format` - a format; required. Others are those of `quantize/3`

  ## Types

  The result has the tensor's type. It is quantised in f32.

  ## Errors

  Those of `quantize/3`.

  ## Examples

      iex> x = Nx.tensor([List.duplicate(1.0, 31) ++ [-8.3]])
      iex> rounded = Nx.Vulkan.Quantized.straight_through(x, format: :q4_0)
      iex> Nx.to_number(Nx.sum(Nx.Defn.grad(x, &Nx.sum(Nx.Vulkan.Quantized.straight_through(&1, format: :q4_0)))))
      32.0
      iex> rounded == Nx.Vulkan.Quantized.dequantize(Nx.Vulkan.Quantized.quantize(x, :q4_0))
      true
  """
  @spec straight_through(Nx.Tensor.t(), keyword) :: Nx.Tensor.t()
  defn straight_through(tensor, opts \\ []) do
    custom_grad(in_format(stop_grad(tensor), opts), [tensor], fn g -> [g] end)
  end

  deftransformp in_format(tensor, opts) do
    {format, opts} = Keyword.pop(opts, :format)
    tensor |> quantize(format, opts) |> dequantize() |> Nx.as_type(tensor.type)
  end

  @doc """
  The product of `x`, `{..., k}`, with the transposed values, `{n, k}`: `{..., n}`, as a dense layer computes it.

  ## Types

  Values are rounded to the type of `x` where that is f16 or bf16, and the result has this type; compiled for a GPU,
  products of up to four rows of `x` take them as they are, in f32. They stay f32 for others; then the result has the
  type that Nx gives products of these types with f32.

  ## Gradients

  Those of `x`, through the same values. The quantised tensor has none.

  ## Errors

  An `ArgumentError` for a quantised tensor that has not two axes, and an `x` whose last axis differs from its last.

  ## Examples

      iex> q = Nx.Vulkan.Quantized.quantize(Nx.eye(32), :q8_0)
      iex> Nx.Vulkan.Quantized.dot(Nx.broadcast(2.0, {3, 32}), q).shape
      {3, 32}
  """
  @spec dot(Nx.Tensor.t(), t) :: Nx.Tensor.t()
  defn(dot(x, q), do: product(x, q))

  deftransformp product(x, q) do
    q = quantized!(q)

    case {x.shape, q.shape} do
      {shape, {_n, k}} when tuple_size(shape) > 0 and elem(shape, tuple_size(shape) - 1) == k ->
        type = if x.type in [{:f, 16}, {:bf, 16}], do: x.type, else: {:f, 32}
        {x, q} = in_stored_order(x, q)
        Nx.dot(x, [-1], dequantize(q, type: type), [-1])

      {shape, {_n, k}} ->
        raise ArgumentError,
              "expected an x whose last axis is #{k}, that of the quantised tensor, got shape #{inspect(shape)}"

      {_, shape} ->
        raise ArgumentError, "expected a quantised tensor of two axes, got shape #{inspect(shape)}: dequantize it"
    end
  end

  # x has fewer elements than the weights.
  defp in_stored_order(x, %{tensors: %{columns: columns}} = q), do: {Nx.take(x, columns, axis: -1), unordered(q)}
  defp in_stored_order(x, q), do: {x, q}

  @doc """
  The values of some rows, such as those of tokens in an embedding: `{n, k}` at `indices`, of any shape, integers.

  Only the packed rows that are asked for are read.

  ## Shapes

  `indices` `{...}` give `{..., k}`.

  ## Options

    * `:type` - the type of the values, see `dequantize/2`

  ## Errors

  An `ArgumentError` for a quantised tensor that has not two axes. Indices out of bounds are as in `Nx.take/3`.

  ## Examples

      iex> q = Nx.Vulkan.Quantized.quantize(Nx.iota({4, 32}, type: :f32), {:affine, 8, 32})
      iex> rows = Nx.Vulkan.Quantized.take(q, Nx.tensor([[3, 0], [0, 1]]))
      iex> {rows.shape, Nx.to_number(rows[0][0][0])}
      {{2, 2, 32}, 96.0}
  """
  @spec take(t, Nx.Tensor.t(), keyword) :: Nx.Tensor.t()
  defn(take(q, indices, opts \\ [type: :f32]), do: stop_grad(rows(q, indices, opts)))

  deftransformp rows(q, indices, opts) do
    q = quantized!(q)
    if tuple_size(q.shape) != 2, do: raise(ArgumentError, "expected a quantised tensor of two axes, got: #{inspect(q)}")
    flat = Nx.reshape(indices, {:auto})
    shape = {Nx.size(indices), elem(q.shape, 1)}
    values = values(rows_of(q, flat, shape), opts)
    Nx.reshape(values, List.to_tuple(Tuple.to_list(indices.shape) ++ [elem(q.shape, 1)]))
  end

  # Rows share the scales of their block: as rows of blocks of their own, each has them for itself.
  defp rows_of(%__MODULE__{format: {type, :block}, tensors: tensors, shape: {_, k}}, flat, {count, k}) do
    edge = Formats.float_block()
    columns = Nx.axis_size(tensors.scales, 1)
    scales = tensors.scales |> Nx.take(Nx.quotient(flat, edge)) |> Nx.reshape({count, 1, columns})
    weight = tensors.weight |> Nx.take(flat) |> Nx.reshape({count, 1, k})
    %__MODULE__{format: {type, :block}, shape: {count, 1, k}, tensors: %{weight: weight, scales: scales}}
  end

  defp rows_of(%__MODULE__{tensors: tensors} = q, flat, shape) do
    whole = [:columns | if(match?({_, :tensor}, q.format), do: [:scales], else: [])]

    tensors =
      Map.new(tensors, fn {name, tensor} -> {name, if(name in whole, do: tensor, else: Nx.take(tensor, flat))} end)

    %{q | shape: shape, tensors: tensors}
  end

  @doc """
  A quantised tensor of GGUF's blocks as they are in files.

  ## Shapes

  `blocks` is u8 `{..., n, k / weights, bytes}`, where a block of the format holds `weights` in `bytes`.

  ## Errors

  An `ArgumentError` for another type or shape, and for a format that is none of GGUF's.

  ## Examples

      iex> q = Nx.Vulkan.Quantized.from_blocks(Nx.broadcast(Nx.u8(0), {2, 3, 34}), :q8_0)
      iex> q.shape
      {2, 96}
  """
  @spec from_blocks(Nx.Tensor.t(), format) :: t
  def from_blocks(blocks, format) when is_atom(format) do
    Formats.check!(format)
    {weights, bytes} = Formats.block(format)
    rank = Nx.rank(blocks)

    if blocks.type != {:u, 8} or rank < 2 or elem(blocks.shape, rank - 1) != bytes do
      raise ArgumentError,
            "expected blocks of #{inspect(format)}, a tensor u8 whose last axis is #{bytes}, the bytes of a block, " <>
              "got #{described(blocks)}"
    end

    shape = blocks.shape |> Tuple.delete_at(rank - 1) |> Formats.ending([elem(blocks.shape, rank - 2) * weights])
    %__MODULE__{format: format, shape: shape, tensors: %{blocks: blocks}}
  end

  def from_blocks(_blocks, format), do: raise(ArgumentError, "expected a format of GGUF, got: #{inspect(format)}")

  @doc """
  A quantised tensor of the three tensors that MLX's models have for each weight: `weight`, `scales` and `biases`.

  ## Options

    * `:bits`, `:group` - those of the format, `bits` and `group_size` in the model's `config.json`; required

  ## Shapes

  `weight` is u32 `{..., n, k * bits / 32}`, the others are `{..., n, k / group}`. `biases` may be nil, for symmetric
  ones.

  ## Errors

  An `ArgumentError` for types or shapes that don't fit together.

  ## Examples

      iex> [scales, biases] = [Nx.broadcast(Nx.bf16(1), {5, 2}), Nx.broadcast(Nx.bf16(-8), {5, 2})]
      iex> q = Nx.Vulkan.Quantized.from_mlx(Nx.broadcast(Nx.u32(0), {5, 16}), scales, biases, bits: 4, group: 64)
      iex> q.shape
      {5, 128}
  """
  @spec from_mlx(Nx.Tensor.t(), Nx.Tensor.t(), Nx.Tensor.t() | nil, keyword) :: t
  def from_mlx(weight, scales, biases, opts) do
    opts = Keyword.validate!(opts, [:bits, :group])
    format = Formats.check!({:affine, opts[:bits], opts[:group]})
    rank = Nx.rank(weight)

    words = div(opts[:bits] * opts[:group], 32)

    if weight.type != {:u, 32} or rank == 0 or rem(elem(weight.shape, rank - 1), words) != 0 do
      raise ArgumentError,
            "expected a weight u32 whose last axis is a multiple of #{words}, the words of a group of " <>
              "#{inspect(format)}, got #{described(weight)}"
    end

    shape = Formats.ending(weight.shape, [div(elem(weight.shape, rank - 1) * 32, opts[:bits])])
    shapes = Formats.shapes(shape, format)
    factors = [scales: scales] ++ if(biases, do: [biases: biases], else: [])
    for {name, factor} <- factors, do: factor!(name, factor, shapes.scales)
    %__MODULE__{format: format, shape: shape, tensors: Map.new([weight: weight] ++ factors)}
  end

  @doc """
  A quantised tensor of the three tensors that models of GPTQ have for each weight: `qweight`, `qzeros` and `scales`.

  Integers stay as they are, words are transposed.

  ## Options

    * `:bits`, `:group` - those of the format, `bits` and `group_size` in the model's configuration; required
    * `:g_idx` - the group of each column, where models have a tensor of this name. Where groups are no neighbours
      (`desc_act`), columns are stored in the order of their groups: the quantised tensor has `columns`. It is read,
      so that this is no function to compile then

  ## Shapes

  `qweight` is s32 `{k * bits / 32, n}`, `qzeros` s32 `{k / group, n * bits / 32}`, `scales` `{k / group, n}`, as
  AutoGPTQ stores them: zero points less one. `n` is a multiple of `32 / bits`. `g_idx` is s32 `{k}`. The quantised
  tensor is `{n, k}`.

  ## Errors

  An `ArgumentError` for types or shapes that don't fit together, and a `g_idx` that does not give each group as many
  columns.

  ## Examples

      iex> [qweight, qzeros] = for shape <- [{16, 8}, {1, 1}], do: Nx.broadcast(Nx.s32(0), shape)
      iex> q = Nx.Vulkan.Quantized.from_gptq(qweight, qzeros, Nx.broadcast(Nx.f16(1), {1, 8}), bits: 4, group: 128)
      iex> {q.shape, q |> Nx.Vulkan.Quantized.dequantize() |> Nx.reduce_max() |> Nx.to_number()}
      {{8, 128}, -1.0}
  """
  @spec from_gptq(Nx.Tensor.t(), Nx.Tensor.t(), Nx.Tensor.t(), keyword) :: t
  def from_gptq(qweight, qzeros, scales, opts) do
    opts = Keyword.validate!(opts, [:bits, :group, :g_idx])
    format = {:affine, bits, group} = Formats.check!({:affine, opts[:bits], opts[:group]})
    {groups, n} = scales_shape!(scales, bits)
    words!(:qweight, qweight, {div(groups * group * bits, 32), n})
    words!(:qzeros, qzeros, {groups, div(n * bits, 32)})

    tensors =
      case columns(opts[:g_idx], groups, group) do
        nil ->
          Affine.from_gptq(qweight, qzeros, scales, bits: bits)

        columns ->
          qweight = Affine.ordered(qweight, columns, bits: bits)
          qweight |> Affine.from_gptq(qzeros, scales, bits: bits) |> Map.put(:columns, columns)
      end

    %__MODULE__{format: format, shape: {n, groups * group}, tensors: tensors}
  end

  # Which columns the groups have, one after the other; nil where they are all of them in order.
  defp columns(nil, _groups, _group), do: nil

  defp columns(g_idx, groups, group) do
    words!(:g_idx, g_idx, {groups * group})
    of_columns = g_idx |> Nx.backend_copy(Nx.BinaryBackend) |> Nx.to_flat_list()
    in_order = for g <- 0..(groups - 1), _ <- 1..group, do: g

    cond do
      of_columns == in_order ->
        nil

      Enum.sort(of_columns) == in_order ->
        g_idx |> Nx.argsort(stable: true) |> Nx.as_type(:s32)

      true ->
        raise ArgumentError, "expected a g_idx that has each of 0 to #{groups - 1} #{group} times, got other numbers"
    end
  end

  @doc """
  A quantised tensor of the three tensors that models of AWQ have for each weight, of 4 bits: `qweight`, `qzeros` and
  `scales`.

  ## Options

    * `:group` - that of the format, `group_size` in the model's configuration; required

  ## Shapes

  `qweight` is s32 `{k, n / 8}`, `qzeros` s32 `{k / group, n / 8}`, `scales` `{k / group, n}`, as AutoAWQ stores them
  for its `gemm`. The quantised tensor is `{n, k}`.

  ## Errors

  An `ArgumentError` for types or shapes that don't fit together.

  ## Examples

      iex> [qweight, qzeros] = for shape <- [{128, 1}, {1, 1}], do: Nx.broadcast(Nx.s32(-1), shape)
      iex> q = Nx.Vulkan.Quantized.from_awq(qweight, qzeros, Nx.broadcast(Nx.f16(1), {1, 8}), group: 128)
      iex> {q.shape, q |> Nx.Vulkan.Quantized.dequantize() |> Nx.reduce_max() |> Nx.to_number()}
      {{8, 128}, 0.0}
  """
  @spec from_awq(Nx.Tensor.t(), Nx.Tensor.t(), Nx.Tensor.t(), keyword) :: t
  def from_awq(qweight, qzeros, scales, opts) do
    opts = Keyword.validate!(opts, [:group])
    format = {:affine, 4, group} = Formats.check!({:affine, 4, opts[:group]})
    {groups, n} = scales_shape!(scales, 4)
    words!(:qweight, qweight, {groups * group, div(n, 8)})
    words!(:qzeros, qzeros, {groups, div(n, 8)})
    %__MODULE__{format: format, shape: {n, groups * group}, tensors: Affine.from_awq(qweight, qzeros, scales)}
  end

  # Words hold integers along n.
  defp scales_shape!(%Nx.Tensor{shape: {_, n} = shape, type: type}, bits)
       when type in @scale_types and rem(n * bits, 32) == 0,
       do: shape

  defp scales_shape!(scales, bits) do
    raise ArgumentError,
          "expected scales f32, f16 or bf16 of shape {k / group, n} with n a multiple of #{div(32, bits)}, the " <>
            "integers of a word, got #{described(scales)}"
  end

  defp words!(name, tensor, shape) do
    if tensor.shape != shape or tensor.type not in [{:s, 32}, {:u, 32}] do
      raise ArgumentError, "expected #{name} s32 of shape #{inspect(shape)}, got #{described(tensor)}"
    end
  end

  @doc """
  A quantised tensor of a weight of floats of 8 bits, and the scales that its values are multiplied by.

  In safetensors of Qwen3 and DeepSeek these are `weight` and `weight_scale_inv`, one scale for each 128 x 128 weights.

  ## Shapes

  `weight` is `{..., n, k}`. `scales` is `{}` or `{1}`, `{..., n, 1}`, or `{..., n / 128, k / 128}`, rounded up; of u8,
  the exponents of MXFP8, `{..., n, k / 32}`.

  ## Types

  `weight` is f8_e4m3fn or f8, `scales` f32, f16, bf16 or u8.

  ## Errors

  An `ArgumentError` for types or shapes that don't fit together.

  ## Examples

      iex> weight = Nx.broadcast(Nx.tensor(1, type: :f8_e4m3fn), {256, 200})
      iex> Nx.Vulkan.Quantized.from_fp8(weight, Nx.broadcast(Nx.f32(0.5), {2, 2})).format
      {:f8_e4m3fn, :block}
  """
  @spec from_fp8(Nx.Tensor.t(), Nx.Tensor.t()) :: t
  def from_fp8(weight, scales) do
    type =
      case weight.type do
        {:f8_e4m3fn, 8} -> :f8_e4m3fn
        {:f, 8} -> :f8
        _ -> raise ArgumentError, "expected a weight f8_e4m3fn or f8, got #{described(weight)}"
      end

    if Nx.rank(weight) < 2, do: raise(ArgumentError, "expected a weight of two axes or more, got #{described(weight)}")
    scales = if scales.shape == {1}, do: Nx.reshape(scales, {}), else: scales
    parts = if scales.type == {:u, 8}, do: [:mx], else: [:tensor, :channel, :block]
    shapes = for part <- parts, do: {part, Formats.shapes(weight.shape, {type, part}).scales}

    case Enum.find(shapes, fn {_, shape} -> shape == scales.shape end) do
      {part, shape} ->
        if part == :mx, do: Formats.check_shape!(weight.shape, {type, :mx}), else: factor!(:scales, scales, shape)
        %__MODULE__{format: {type, part}, shape: weight.shape, tensors: %{weight: weight, scales: scales}}

      nil ->
        raise ArgumentError,
              "expected scales of shape #{Enum.map_join(shapes, ", ", &inspect(elem(&1, 1)))} for a weight of shape " <>
                "#{inspect(weight.shape)}, got shape #{inspect(scales.shape)}"
    end
  end

  defp factor!(name, tensor, shape) do
    if tensor.shape != shape or tensor.type not in @scale_types do
      raise ArgumentError, "expected #{name} f32, f16 or bf16 of shape #{inspect(shape)}, got #{described(tensor)}"
    end
  end

  defp described(tensor), do: "#{Nx.Type.to_string(tensor.type)} of shape #{inspect(tensor.shape)}"

  @doc """
  The bytes of the stored tensors.

  ## Examples

      iex> Nx.Vulkan.Quantized.size_bytes(Nx.Vulkan.Quantized.quantize(Nx.iota({4, 256}, type: :f32), :q4_k))
      576
  """
  @spec size_bytes(t) :: non_neg_integer
  def size_bytes(%__MODULE__{tensors: tensors}) do
    tensors |> Map.values() |> Enum.map(&Nx.byte_size/1) |> Enum.sum()
  end

  defimpl Inspect do
    import Inspect.Algebra

    def inspect(q, opts) do
      concat(["#Nx.Vulkan.Quantized<", to_doc(q.format, opts), " ", to_doc(q.shape, opts), ">"])
    end
  end
end
