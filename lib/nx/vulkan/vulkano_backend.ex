defmodule Nx.Vulkan.VulkanoBackend do
  @moduledoc """
  The `Nx.Backend` whose tensors live in the memory of a Vulkan device.

      Nx.default_backend(Nx.Vulkan.VulkanoBackend)

  Every op is recorded and returns at once, with a reference to memory that the device fills later; reading a tensor is what
  waits. Nothing is computed anywhere else: an op that this version or the device can't do raises `Nx.Vulkan.Error` with the
  kind `:unsupported`. Tensors of other backends are copied to the device when they meet one of this backend.

  The memory of a tensor returns to the pool when the BEAM collects it, or at once through `Nx.backend_deallocate/1`.

  `Nx.to_pointer/2` gives the device address of a tensor, in `mode: :local`. It keeps the memory until the tensor is
  deallocated, so that the address holds even after the tensor was collected. `Nx.from_pointer/5` makes a tensor that shares
  the memory; an address that no such tensor has, or had, is an `ArgumentError`. Elements of a sub-byte type take a byte each there.
  `mode: :ipc` gives a handle for other processes of the system, which must run as the same user with leave to trace this one, on
  Linux and on devices with `VK_KHR_external_memory_fd`. Tensors don't change, so there is nothing to synchronize.

  Indices out of bounds raise, so `gather`, `take`, `take_along_axis`, `indexed_add` and `indexed_put` wait for their
  indices. `config :nx_vulkan, check_indices: false` leaves the check out: `gather` then takes the nearest position, and updates
  out of bounds are dropped.

  `config :nx_vulkan, add_backend_on_inspect: false` leaves the backend out of inspected tensors.
  """

  @behaviour Nx.Backend
  @enforce_keys [:ref]
  defstruct [:ref]

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.{Indices, NativeV, Recorder, ScalarFunction}
  alias Nx.Vulkan.VulkanoBackend, as: B

  # From this size in bytes on, copying a binary is work for a dirty scheduler: 64 KiB take about 10 us.
  @dirty_bytes 65_536

  @last_address 0xFFFFFFFFFFFFFFFF

  @impl true
  def init(opts) do
    if opts != [], do: raise(ArgumentError, "Nx.Vulkan.VulkanoBackend accepts no options, got: #{inspect(opts)}")
    opts
  end

  ## Storage

  @impl true
  def constant(out, constant, _backend_options) do
    value = attr(constant, out.type)
    out = run(:constant, [value: value], [], out)
    if ScalarFunction.tracing?(), do: ScalarFunction.constant(out, value, type_name(out.type))
    out
  end

  @impl true
  def from_binary(out, binary, _backend_options), do: upload(out, binary)

  @impl true
  def to_binary(%T{data: %B{ref: value}}, _limit) when is_tuple(value), do: ScalarFunction.read(value)

  def to_binary(%T{data: %B{ref: ref}, type: {_, size}}, limit) do
    case NativeV.tensor_to_binary(ref, limit) do
      {:ok, binary} -> cut(binary, limit * size)
      error -> raise_error(error)
    end
  end

  defp cut(binary, bits) when bit_size(binary) == bits, do: binary

  defp cut(binary, bits) do
    <<wanted::bitstring-size(^bits), _filling::bitstring>> = binary
    wanted
  end

  @impl true
  def backend_copy(tensor, backend, _opts) when backend == B, do: run(:reshape, [], [tensor], tensor)
  def backend_copy(tensor, Nx.Tensor, opts), do: backend_copy(tensor, Nx.BinaryBackend, opts)

  def backend_copy(tensor, backend, opts) do
    backend.from_binary(tensor, to_binary(tensor, Nx.flat_size(tensor)), opts)
  end

  @impl true
  def backend_transfer(tensor, backend, _opts) when backend == B, do: tensor

  def backend_transfer(tensor, backend, opts) do
    copy = backend_copy(tensor, backend, opts)
    backend_deallocate(tensor)
    copy
  end

  @impl true
  def backend_deallocate(%T{data: %B{ref: ref}}), do: NativeV.tensor_release(ref)

  @impl true
  def to_batched(out, tensor, opts) do
    [size | rest] = Tuple.to_list(tensor.shape)
    batch = elem(out.shape, 0)
    leftover = rem(size, batch)

    rows = fn start, count ->
      starts = [start | Enum.map(rest, fn _ -> 0 end)]
      shape = put_elem(tensor.shape, 0, count)
      slice(%{out | shape: shape}, tensor, starts, [count | rest], Enum.map(starts, fn _ -> 1 end))
    end

    full = Stream.map(0..(div(size, batch) - 1)//1, &rows.(&1 * batch, batch))

    if leftover != 0 and opts[:leftover] == :repeat do
      last = fn -> concatenate(out, [rows.(size - leftover, leftover), rows.(0, batch - leftover)], 0) end
      Stream.concat(full, Stream.map([last], & &1.()))
    else
      full
    end
  end

  @impl true
  def inspect(%T{data: %B{ref: value}}, _inspect_opts) when is_tuple(value), do: "a value of a traced function"

  def inspect(%T{data: %B{ref: ref}} = tensor, inspect_opts) do
    limit = if inspect_opts.limit == :infinity, do: :infinity, else: inspect_opts.limit + 1
    # Atoms are greater than numbers.
    limit = min(limit, Nx.flat_size(tensor))

    case NativeV.tensor_info(ref) do
      {:ok, _} -> Nx.Backend.inspect(tensor, to_binary(tensor, limit), inspect_opts)
      {:error, :released, _, _, _} -> "Deallocated"
    end
    |> add_backend(ref)
  end

  defp add_backend(doc, ref) do
    if Application.get_env(:nx_vulkan, :add_backend_on_inspect, true) do
      ~c"#Ref<" ++ id = :erlang.ref_to_list(ref)
      Inspect.Algebra.concat(["Nx.Vulkan.VulkanoBackend<#{device_name()}, #{id}", Inspect.Algebra.line(), doc])
    else
      doc
    end
  end

  defp device_name do
    case NativeV.device_info() do
      {:ok, %{name: name}} -> name
      {:error, _kind, _message} -> "no device"
    end
  end

  @impl true
  def to_pointer(%T{data: %B{ref: ref}}, opts) do
    opts = Keyword.validate!(opts, mode: :local)

    case opts[:mode] do
      :local -> pointer(:local, NativeV.tensor_share(ref))
      :ipc -> pointer(:ipc, NativeV.tensor_share_ipc(ref))
      mode -> raise ArgumentError, "expected one of :local, :ipc, got: #{inspect(mode)}"
    end
  end

  defp pointer(:local, {:ok, address, size}), do: %Nx.Pointer{kind: :local, address: address, data_size: size}
  defp pointer(:ipc, {:ok, handle, size}), do: %Nx.Pointer{kind: :ipc, handle: handle, data_size: size}
  defp pointer(_kind, error), do: raise_error(error)

  @impl true
  def from_pointer(%Nx.Pointer{} = pointer, type, shape, backend_options, opts) do
    init(backend_options)
    out = Nx.template(shape, type, names: opts[:names])
    %{data_size: size} = pointer
    expected = Nx.size(shape) * max(elem(type, 1), 8)

    if size != nil and size * 8 != expected do
      raise ArgumentError, "invalid pointer data_size for shape, expected: #{div(expected, 8)}, got: #{size}"
    end

    type = type_name(type)

    case pointer do
      %{kind: :local, address: address} when is_integer(address) and address > 0 and address <= @last_address ->
        shared(out, NativeV.tensor_from_address(address, type, shape))

      %{kind: :ipc, handle: handle} when is_binary(handle) ->
        shared(out, NativeV.tensor_from_ipc(handle, type, shape))

      _ ->
        raise ArgumentError, "expected a pointer with an address or a handle, got: #{inspect(pointer)}"
    end
  end

  defp shared(_out, {:error, :invalid_argument, _op, message, _details}), do: raise(ArgumentError, message)
  defp shared(out, answer), do: %{out | data: %B{ref: settle(answer, fn -> answer end)}}

  @impl true
  def block(%block{axis: axis, reverse: reverse}, out, [%T{type: {class, _}} = tensor], _fun)
      when block in [Nx.Block.CumulativeSum, Nx.Block.CumulativeProduct] or
             (block in [Nx.Block.CumulativeMin, Nx.Block.CumulativeMax] and class != :c) do
    run(cumulative(block), [axis: axis, reverse: reverse], [tensor], out)
  end

  def block(%Nx.Block.LinAlg.QR{mode: mode}, {q, r}, [tensor], _fun) do
    List.to_tuple(run_all(:qr, [complete: mode == :complete], [tensor], [q, r]))
  end

  def block(%Nx.Block.Take{axis: axis}, out, [tensor, indices], _fun) do
    Indices.check!(tensor.shape, indices, [axis])
    run(:take, [axis: axis], [tensor, indices], out)
  end

  def block(%Nx.Block.TakeAlongAxis{axis: axis}, out, [tensor, indices], _fun) do
    Indices.check_along!(tensor.shape, indices, axis)
    run(:take_along_axis, [axis: axis], [tensor, indices], out)
  end

  def block(%Nx.Block.TopK{k: k}, {values, places}, [%T{type: {class, _}} = tensor], _fun) when class != :c do
    [values, places] = run_all(:top_k, [k: k], [tensor], [values, places])
    {values, places}
  end

  def block(%Nx.Block.LinAlg.Cholesky{}, out, [a], _fun), do: run(:cholesky, [], [a], out)

  def block(%Nx.Block.LinAlg.LU{}, {p, l, u}, [a], _fun), do: List.to_tuple(run_all(:lu, [], [a], [p, l, u]))

  def block(%Nx.Block.LinAlg.Solve{}, out, [a, b], _fun) do
    [x, regular] = run_all(:solve, [], [a, b], [out, Nx.template({}, :u8)])
    if Nx.to_number(regular) == 0, do: raise_singular()
    x
  end

  # The closed formulas for small matrices of integers wrap around in their type.
  def block(%Nx.Block.LinAlg.Determinant{}, out, [%T{type: {class, _}, shape: shape} = a], _fun)
      when class not in [:s, :u] or elem(shape, tuple_size(shape) - 1) not in [2, 3] do
    run(:determinant, [], [a], out)
  end

  def block(%Nx.Block.LinAlg.Eigh{}, {values, vectors}, [tensor], _fun) do
    List.to_tuple(run_all(:eigh, [], [tensor], [values, vectors]))
  end

  # Nx prints what its own steps give for matrices of the size of its examples; see guides/numerics.md.
  def block(%Nx.Block.LinAlg.SVD{} = svd, {_u, %T{type: {:f, 32}}, _vt}, [%T{shape: {m, n}} = tensor], fun)
      when m <= 4 and n <= 4 do
    Nx.with_default_backend(B, fn -> fun.(svd, tensor) end)
  end

  def block(%Nx.Block.LinAlg.SVD{full_matrices?: full}, {u, s, vt}, [tensor], _fun) do
    List.to_tuple(run_all(:svd, [full: full], [tensor], [u, s, vt]))
  end

  def block(%block{axes: axes, lengths: lengths, eps: eps}, out, [tensor], _fun)
      when block in [Nx.Block.FFT2, Nx.Block.IFFT2] do
    op = if block == Nx.Block.FFT2, do: :fft, else: :ifft
    [{first, second}, {first_length, second_length}] = Enum.map([axes, lengths], &List.to_tuple/1)
    shape = put_elem(tensor.shape, second, second_length)
    tensor = fourier(op, %{out | shape: shape}, tensor, second, second_length, eps)
    fourier(op, out, tensor, first, first_length, eps)
  end

  def block(%Nx.Block.RFFT{axis: axis, length: length, eps: eps}, out, [tensor], _fun) do
    fourier(:rfft, out, tensor, axis, length, eps)
  end

  # Shorter ones and those of other types than these are as Nx's own implementation has them.
  def block(%Nx.Block.IRFFT{axis: axis, length: length, eps: eps}, %T{type: {:f, size}} = out, [tensor], _fun)
      when length > 2 and size >= 32 do
    fourier(:irfft, out, tensor, axis, length, eps)
  end

  # Tensors that the default implementation makes are of this backend too.
  def block(struct, _output, args, fun), do: Nx.with_default_backend(B, fn -> apply(fun, [struct | args]) end)

  defp fourier(op, out, tensor, axis, length, eps) do
    run(op, [axis: axis, length: length, eps: part(eps)], [tensor], out)
  end

  defp cumulative(Nx.Block.CumulativeSum), do: :cumulative_sum
  defp cumulative(Nx.Block.CumulativeProduct), do: :cumulative_product
  defp cumulative(Nx.Block.CumulativeMin), do: :cumulative_min
  defp cumulative(Nx.Block.CumulativeMax), do: :cumulative_max

  ## Ops that are their operands and their result, with no attributes

  @unary [:exp, :expm1, :log, :log1p, :sigmoid, :cos, :sin, :tan, :cosh, :sinh, :tanh, :acos, :asin, :atan, :acosh] ++
           [:asinh, :atanh, :sqrt, :rsqrt, :cbrt, :erf, :erfc, :erf_inv, :abs, :bitwise_not, :ceil, :conjugate] ++
           [:floor, :negate, :round, :sign, :count_leading_zeros, :population_count, :real, :imag, :is_nan] ++
           [:is_infinity, :as_type, :bitcast, :reshape]

  for op <- @unary do
    @impl true
    def unquote(op)(out, a), do: run(unquote(op), [], [a], out)
  end

  @binary [:add, :subtract, :multiply, :pow, :remainder, :divide, :atan2, :min, :max, :quotient, :bitwise_and] ++
            [:bitwise_or, :bitwise_xor, :left_shift, :right_shift, :equal, :not_equal, :greater, :less] ++
            [:greater_equal, :less_equal, :logical_and, :logical_or, :logical_xor]

  for op <- @binary do
    @impl true
    def unquote(op)(out, a, b), do: run(unquote(op), [], [a, b], out)
  end

  @impl true
  def select(out, pred, on_true, on_false), do: run(:select, [], [pred, on_true, on_false], out)
  @impl true
  def clip(out, a, min, max), do: run(:clip, [], [a, min, max], out)
  @impl true
  def squeeze(out, a, _axes), do: run(:squeeze, [], [a], out)
  @impl true
  def eye(out, _backend_options), do: run(:eye, [], [], out)

  ## Ops with attributes

  @impl true
  def iota(out, axis, _backend_options), do: run(:iota, [axis: axis], [], out)
  @impl true
  def broadcast(out, a, _shape, axes), do: run(:broadcast, [axes: axes], [a], out)
  @impl true
  def transpose(out, a, axes), do: run(:transpose, [axes: axes], [a], out)
  @impl true
  def reverse(out, a, axes), do: run(:reverse, [axes: axes], [a], out)
  @impl true
  def concatenate(out, tensors, axis), do: run(:concatenate, [axis: axis], tensors, out)
  @impl true
  def stack(out, tensors, axis), do: run(:stack, [axis: axis], tensors, out)
  @impl true
  def gather(out, a, indices, opts) do
    Indices.check!(a.shape, indices, opts[:axes])
    run(:gather, [axes: opts[:axes]], [a, indices], out)
  end

  @impl true
  def indexed_add(out, a, indices, updates, opts) do
    Indices.check!(a.shape, indices, opts[:axes])
    run(:indexed_add, [axes: opts[:axes]], [a, indices, updates], out)
  end

  @impl true
  def indexed_put(out, a, indices, updates, opts) do
    Indices.check!(a.shape, indices, opts[:axes])
    run(:indexed_put, [axes: opts[:axes]], [a, indices, updates], out)
  end

  @impl true
  def pad(out, a, value, config) do
    attrs = [
      low: Enum.map(config, &elem(&1, 0)),
      high: Enum.map(config, &elem(&1, 1)),
      interior: Enum.map(config, &elem(&1, 2))
    ]

    run(:pad, attrs, [a, value], out)
  end

  @impl true
  def slice(out, a, starts, lengths, strides) do
    {starts, tensors} = split_starts(starts)
    run(:slice, [starts: starts, strides: strides, lengths: lengths], [a | tensors], out)
  end

  @impl true
  def put_slice(out, a, starts, slice) do
    {starts, tensors} = split_starts(starts)
    run(:put_slice, [starts: starts], [a, slice | tensors], out)
  end

  # A start that is a tensor is an operand, and nil among the attributes.
  defp split_starts(starts) do
    {Enum.map(starts, &if(is_integer(&1), do: &1)), Enum.reject(starts, &is_integer/1)}
  end

  @impl true
  def dot(out, a, contract_a, batch_a, b, contract_b, batch_b) do
    run(:dot, [contract_a: contract_a, batch_a: batch_a, contract_b: contract_b, batch_b: batch_b], [a, b], out)
  end

  @impl true
  def conv(out, a, kernel, opts) do
    {low, high} = Enum.unzip(opts[:padding])

    attrs = [
      strides: opts[:strides],
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

    run(:conv, attrs, [a, kernel], out)
  end

  for op <- [:all, :any, :sum, :product, :reduce_max, :reduce_min] do
    @impl true
    def unquote(op)(out, a, opts), do: run(unquote(op), [axes: opts[:axes] || all_axes(a)], [a], out)
  end

  for op <- [:argmax, :argmin] do
    @impl true
    def unquote(op)(out, a, opts) do
      axes = if axis = opts[:axis], do: [axis], else: all_axes(a)
      run(unquote(op), [axes: axes, tie_break: opts[:tie_break]], [a], out)
    end
  end

  for op <- [:window_sum, :window_product, :window_max, :window_min] do
    @impl true
    def unquote(op)(out, a, window, opts), do: run(unquote(op), windows(window, opts), [a], out)
  end

  @impl true
  def reduce(out, a, acc, opts, fun) do
    {function, captured} = ScalarFunction.trace(:reduce, fun, a.type, out.type)
    run(:reduce, [axes: opts[:axes] || all_axes(a), function: function], [a, acc | captured], out)
  end

  @impl true
  def window_reduce(out, a, acc, window, opts, fun) do
    {function, captured} = ScalarFunction.trace(:window_reduce, fun, a.type, out.type)
    run(:window_reduce, [function: function] ++ windows(window, opts), [a, acc | captured], out)
  end

  for op <- [:window_scatter_max, :window_scatter_min] do
    @impl true
    def unquote(op)(out, a, source, init, window, opts) do
      run(unquote(op), windows(window, opts), [a, source, init], out)
    end
  end

  defp windows(window, opts) do
    {low, high} = Enum.unzip(opts[:padding])
    dilations = opts[:window_dilations] || Enum.map(low, fn _ -> 1 end)
    [window: Tuple.to_list(window), low: low, high: high, strides: opts[:strides], dilations: dilations]
  end

  @impl true
  def sort(out, a, opts), do: run(:sort, order(opts), [a], out)

  @impl true
  def argsort(out, a, opts), do: run(:argsort, order(opts), [a], out)

  defp order(opts), do: [axis: opts[:axis], descending: opts[:direction] == :desc]

  @impl true
  def triangular_solve(out, a, b, opts) do
    if singular?(a), do: raise_singular()
    attrs = [lower: !!opts[:lower], left_side: !!opts[:left_side], transform_a: opts[:transform_a]]
    run(:triangular_solve, attrs, [a, b], out)
  end

  # Whether a triangular matrix has a zero on its diagonal. Waits for the device.
  defp singular?(%T{shape: shape} = a) do
    n = elem(shape, tuple_size(shape) - 1)
    batches = div(Nx.size(shape), n * n)
    flat = run(:reshape, [], [a], %{a | shape: {batches, n * n}, names: [nil, nil]})
    diagonal = slice(%{flat | shape: {batches, n}}, flat, [0, 0], [batches, n * n], [1, n + 1])
    Nx.to_number(run(:all, [axes: [0, 1]], [diagonal], Nx.template({}, :u8))) == 0
  end

  @spec raise_singular() :: no_return
  defp raise_singular, do: raise(ArgumentError, "can't solve for singular matrix")

  for op <- [:fft, :ifft] do
    @impl true
    def unquote(op)(out, a, opts), do: fourier(unquote(op), out, a, opts[:axis], opts[:length], opts[:eps])
  end

  defp all_axes(tensor), do: Enum.to_list(0..(tuple_size(tensor.shape) - 1)//1)

  ## Running

  defp run(op, attrs, operands, out) do
    refs = refs(operands)
    if traced?(refs), do: ScalarFunction.apply_op(op, operands, refs, out), else: run_on_device(op, attrs, refs, out)
  end

  # Whether an operand is a value of a function that is being traced.
  defp traced?([ref | refs]), do: is_tuple(ref) or traced?(refs)
  defp traced?([]), do: false

  defp run_on_device(op, attrs, refs, %T{type: type, shape: shape} = out) do
    type = type_name(type)

    ref =
      case NativeV.program_run(op, attrs, refs, type, shape) do
        {:ok, ref} -> ref
        other -> settle(other, fn -> NativeV.program_run_compile(op, attrs, refs, type, shape) end)
      end

    out = %{out | data: %B{ref: ref}}
    if Recorder.recording?(), do: Recorder.add(op, attrs, refs, [out])
    out
  end

  @doc false
  # An op of several results; `outs` are their templates.
  def run_all(op, attrs, operands, outs) do
    refs = refs(operands)
    if traced?(refs), do: ScalarFunction.refuse("uses #{op}, which is no function of scalars")
    types = Enum.map(outs, &{type_name(&1.type), &1.shape})

    answer =
      case NativeV.program_run_all(op, attrs, refs, types) do
        {:ok, refs} -> refs
        other -> settle(other, fn -> NativeV.program_run_all_compile(op, attrs, refs, types) end)
      end

    outs = Enum.zip_with(outs, answer, fn out, ref -> %{out | data: %B{ref: ref}} end)
    if Recorder.recording?(), do: Recorder.add(op, attrs, refs, outs)
    outs
  end

  defp refs([]), do: []
  defp refs([%T{data: %B{ref: ref}} | rest]), do: [ref | refs(rest)]
  defp refs([other | rest]), do: [transferred(Nx.to_tensor(other)).data.ref | refs(rest)]

  defp transferred(%T{data: %B{}} = tensor), do: tensor
  defp transferred(%T{shape: {}} = scalar), do: constant(scalar, Nx.to_number(scalar), [])
  defp transferred(tensor), do: upload(tensor, Nx.to_binary(tensor))

  defp upload(%T{type: type, shape: shape} = out, bits) do
    type = type_name(type)
    binary = fill(bits)
    dirty = fn -> NativeV.tensor_from_binary_dirty(type, shape, binary) end

    answer =
      if byte_size(binary) < @dirty_bytes, do: NativeV.tensor_from_binary(type, shape, binary), else: dirty.()

    %{out | data: %B{ref: settle(answer, dirty)}}
  end

  defp fill(binary) when is_binary(binary), do: binary

  defp fill(bits) do
    missing = 8 - rem(bit_size(bits), 8)
    <<bits::bitstring, 0::size(missing)>>
  end

  # The reference in an answer of the native library. `again` makes the same call on a dirty scheduler.
  defp settle({:ok, ref}, _again), do: ref

  defp settle({:ok, ref, :pressure}, _again) do
    :erlang.garbage_collect()
    ref
  end

  defp settle(:needs_compile, again), do: settle(again.(), again)

  defp settle({:error, :out_of_memory, _op, _message, _details}, again) do
    :erlang.garbage_collect()

    case again.() do
      {:error, :out_of_memory, _op, _message, _details} ->
        # Other processes may hold tensors that nobody can reach any more.
        Enum.each(Process.list(), &:erlang.garbage_collect/1)
        settle_last(again.())

      answer ->
        settle_last(answer)
    end
  end

  defp settle(error, _again), do: raise_error(error)

  defp settle_last({:ok, ref}), do: ref
  defp settle_last({:ok, ref, :pressure}), do: ref
  defp settle_last(error), do: raise_error(error)

  @spec raise_error(NativeV.error()) :: no_return
  defp raise_error({:error, kind, op, message, details}) do
    raise Nx.Vulkan.Error, kind: kind, op: op, message: message, details: details
  end

  @doc false
  # A type's name in the engine.
  def type_name(type)

  for {class, bits} = type <-
        [s: 2, s: 4, s: 8, s: 16, s: 32, s: 64, u: 2, u: 4, u: 8, u: 16, u: 32, u: 64] ++
          [f: 8, bf: 16, f: 16, f: 32, f: 64, c: 64, c: 128] do
    def type_name(unquote(type)), do: unquote(:"#{class}#{bits}")
  end

  def type_name({:f8_e4m3fn, 8}), do: :f8_e4m3fn

  # A number as an attribute. Integers wrap to the type's width, as they do when Nx writes them to a binary.
  defp attr(%Complex{re: re, im: im}, _type), do: [part(re), part(im)]
  defp attr(value, {class, bits}) when class in [:s, :u], do: wrap(value, class, bits)
  defp attr(value, _type), do: part(value)

  defp part(value) when is_integer(value) and (value > 0x7FFFFFFFFFFFFFFF or value < -0x8000000000000000),
    do: value * 1.0

  defp part(value), do: value

  defp wrap(value, :u, bits) do
    <<wrapped::unsigned-size(^bits)>> = <<value::size(bits)>>
    wrapped
  end

  defp wrap(value, :s, bits) do
    <<wrapped::signed-size(^bits)>> = <<value::size(bits)>>
    wrapped
  end
end
