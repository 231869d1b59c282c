defmodule Nx.Vulkan.VulkanoBackend do
  @moduledoc """
  The `Nx.Backend` whose tensors live in the memory of a Vulkan device.

      Nx.default_backend(Nx.Vulkan.VulkanoBackend)

  Every op is recorded and returns at once, with a reference to memory that the device fills later; reading a tensor is
  what waits. Nothing is computed anywhere else: an op that this version or the device can't do raises `Nx.Vulkan.Error`
  with the kind `:unsupported`. Tensors of other backends are copied to the device when they meet one of this backend.

  ## Options

    * `:device` - the device that tensors are made on, by a selector (`Nx.Vulkan`), as in
      `Nx.tensor(1, backend: {Nx.Vulkan.VulkanoBackend, device: 1})`; the default device without it. The guide on
      [several devices](devices.md) says what ops on them do

  ## What ops do

  The memory of a tensor returns to the pool when the BEAM collects it, or at once through `Nx.backend_deallocate/1`.

  `Nx.to_pointer/2` gives the device address of a tensor, in `mode: :local`. It keeps the memory until the tensor is
  deallocated, so that the address holds even after the tensor was collected. `Nx.from_pointer/5` makes a tensor that
  shares the memory; an address that no such tensor has, or had, is an `ArgumentError`. Elements of a sub-byte type take
  a byte each there. `mode: :ipc` gives a handle for other processes of the system, which must run as the same user with
  leave to trace this one, on Linux and on devices with `VK_KHR_external_memory_fd`. Tensors don't change, so there is
  nothing to synchronize.

  Indices out of bounds raise, so `gather`, `take`, `take_along_axis`, `indexed_add` and `indexed_put` wait for their
  indices. `config :nx_vulkan, check_indices: false` leaves the check out: `gather` then takes the nearest position, and
  updates out of bounds are dropped.

  `quotient` and `remainder` of integers raise where a divisor is zero, so they wait for divisors that are no numbers of
  the caller's. `config :nx_vulkan, check_divisors: false` leaves the check out; [numerics](numerics.md) has the
  results.

  `reduce` and `window_reduce` take any function. One of elementwise ops on scalars is a kernel; others run step by
  step, which takes a few launches for each element along the reduced axes, or for each element of the tensor where the
  function reads values.

  `config :nx_vulkan, precision: :high` lets large products of f32 run on a GPU's matrix units as two f16 numbers for
  each element; [numerics](numerics.md) says how exact they are. `:default` and `:highest` mean f32, of which
  data-center GPUs take all digits to those units.

  `config :nx_vulkan, eager: :deferred` lets ops wait until a result is read, to run many at once; see
  `Nx.Vulkan.eager/2`.

  `config :nx_vulkan, add_backend_on_inspect: false` leaves the backend out of inspected tensors.
  """

  @behaviour Nx.Backend
  # The number that a caller made a tensor of, where that is known. The type of the elements in memory: Nx labels
  # tensors, those of gradients of loops with another type at times. Whether a concatenation takes the tensor along to
  # another device: a result of a partition of a serving, or a slice of one.
  @enforce_keys [:ref, :type]
  defstruct [:ref, :type, :known, moves?: false]

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Compiler.Cache
  alias Nx.Vulkan.{Devices, Divisors, Fold, Indices, NativeV, Ops, Remote, ScalarFunction, Telemetry, Tracer}
  alias Nx.Vulkan.VulkanoBackend, as: B

  # From this size in bytes on, copying a binary is work for a dirty scheduler: 256 KiB take 15 to 45 us, and the way to
  # one and back 7. Elements of less than a byte are unpacked, too.
  @dirty_bytes 262_144
  @dirty_packed_bytes 32_768

  @last_address 0xFFFFFFFFFFFFFFFF

  # What the library answers where the tensors of a call are on several devices.
  defmacrop elsewhere, do: quote(do: {:error, :invalid_argument, _, _, %{what: "devices"}})

  @impl true
  def init(opts) do
    case device!(opts) do
      nil -> []
      device -> [device: device]
    end
  end

  @doc false
  # The device that options name, which `Nx` gives to callbacks as its callers wrote them.
  def device!([]), do: Devices.current()
  def device!(device: selector), do: Devices.index!(selector)

  def device!(opts),
    do: raise(ArgumentError, "Nx.Vulkan.VulkanoBackend has the option :device alone, got: #{inspect(opts)}")

  ## Storage

  @impl true
  def constant(out, constant, backend_options) do
    number = Ops.number(constant, out.type)
    %{data: data} = tensor = make(:constant, [value: number], device!(backend_options), out)
    %{tensor | data: %{data | known: number}}
  end

  @impl true
  def from_binary(out, binary, backend_options), do: upload(out, binary, device!(backend_options))

  @impl true
  def to_binary(%T{data: %B{ref: ref}} = tensor, limit) when node(ref) != node(), do: Remote.read(tensor, limit)

  def to_binary(%T{type: {_, size}} = tensor, limit) do
    ref = reference(tensor)
    Fold.read!()
    read = NativeV.tensor_to_binary_soon(ref, limit)
    cut(settle(read, fn -> NativeV.tensor_to_binary(ref, limit) end), limit * size)
  end

  defp cut(binary, bits) when bit_size(binary) == bits, do: binary

  defp cut(binary, bits) do
    <<wanted::bitstring-size(^bits), _filling::bitstring>> = binary
    wanted
  end

  @impl true
  def backend_copy(tensor, backend, opts) when backend in [B, Nx.Vulkan.Backend] do
    device = device!(opts)
    if Devices.several?() or remote?(tensor), do: on_device(tensor, device), else: run(:reshape, [], [tensor], tensor)
  end

  def backend_copy(tensor, Nx.Tensor, opts), do: backend_copy(tensor, Nx.BinaryBackend, opts)

  def backend_copy(tensor, backend, opts) do
    backend.from_binary(tensor, to_binary(tensor, Nx.flat_size(tensor)), opts)
  end

  @impl true
  def backend_transfer(%T{data: %B{ref: ref}} = tensor, backend, opts) when backend in [B, Nx.Vulkan.Backend] do
    device = device!(opts)
    here? = not remote?(tensor) and (not Devices.several?() or Devices.on?(ref, device))
    if here?, do: agreeing(tensor), else: moved(tensor, backend, opts)
  end

  def backend_transfer(tensor, backend, opts), do: moved(tensor, backend, opts)

  defp moved(tensor, backend, opts) do
    copy = backend_copy(tensor, backend, opts)
    backend_deallocate(tensor)
    copy
  end

  @doc false
  # The tensor on a device of this node, with memory that it may share.
  def on_device(%T{data: %B{ref: ref}} = tensor, device) when node(ref) != node(),
    do: upload(tensor, Remote.read(tensor, Nx.flat_size(tensor)), device)

  def on_device(%T{data: %B{known: number}} = tensor, device) when number != nil,
    do: constant(tensor, number, device: device)

  def on_device(tensor, device) do
    ref = reference(tensor)
    transfer = fn -> NativeV.tensor_transfer(ref, device) end
    holding(tensor, settle(transfer.(), transfer))
  end

  defp remote?(%T{data: %B{ref: ref}}), do: node(ref) != node()

  @impl true
  def backend_deallocate(%T{data: %B{ref: ref}}) when node(ref) != node(), do: Remote.release(ref)
  def backend_deallocate(%T{data: %B{ref: ref}}), do: NativeV.tensor_release(ref)

  @impl true
  def to_batched(out, tensor, opts), do: batches(B, out, tensor, opts)

  @doc false
  # The batches of a tensor, sliced by the ops of this backend or of the tracer.
  def batches(backend, out, tensor, opts) do
    [size | rest] = Tuple.to_list(tensor.shape)
    batch = elem(out.shape, 0)
    leftover = rem(size, batch)

    rows = fn start, count ->
      starts = [start | Enum.map(rest, fn _ -> 0 end)]
      shape = put_elem(tensor.shape, 0, count)
      backend.slice(%{out | shape: shape}, tensor, starts, [count | rest], Enum.map(starts, fn _ -> 1 end))
    end

    full = Stream.map(0..(div(size, batch) - 1)//1, &rows.(&1 * batch, batch))

    if leftover != 0 and opts[:leftover] == :repeat do
      last = fn -> backend.concatenate(out, [rows.(size - leftover, leftover), rows.(0, batch - leftover)], 0) end
      Stream.concat(full, Stream.map([last], & &1.()))
    else
      full
    end
  end

  @impl true
  def inspect(%T{data: %B{ref: ref}} = tensor, inspect_opts) do
    limit = if inspect_opts.limit == :infinity, do: :infinity, else: inspect_opts.limit + 1
    # Atoms are greater than numbers.
    limit = min(limit, Nx.flat_size(tensor))

    doc =
      case state(ref) do
        :there -> Nx.Backend.inspect(tensor, to_binary(tensor, limit), inspect_opts)
        :released -> "Deallocated"
        :gone -> "On a node that does not answer"
      end

    add_backend(doc, ref)
  end

  defp state(ref) when node(ref) != node(), do: Remote.state(ref)

  defp state(ref),
    do: if(match?({:error, :released, _, _, _}, NativeV.tensor_info(ref)), do: :released, else: :there)

  defp add_backend(doc, ref) do
    if Application.get_env(:nx_vulkan, :add_backend_on_inspect, true) do
      ~c"#Ref<" ++ id = :erlang.ref_to_list(ref)
      Inspect.Algebra.concat(["Nx.Vulkan.VulkanoBackend<#{place(ref)}, #{id}", Inspect.Algebra.line(), doc])
    else
      doc
    end
  end

  # Where a tensor is, for those who look at it.
  defp place(ref) when node(ref) != node(), do: "on #{node(ref)}"

  defp place(ref) do
    {index, _default?} = Devices.of(ref)

    case NativeV.device_describe(index) do
      {:ok, %{name: name}} -> if Devices.several?(), do: "#{name} (device #{index})", else: name
      {:error, _kind, _message} -> "no device"
    end
  end

  @impl true
  def to_pointer(%T{} = tensor, opts) do
    ref = reference(tensor)
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
    device = device!(backend_options)
    out = Nx.template(shape, type, names: opts[:names])
    %{data_size: size} = pointer
    expected = Nx.size(shape) * max(elem(type, 1), 8)

    if size != nil and size * 8 != expected do
      raise ArgumentError, "invalid pointer data_size for shape, expected: #{div(expected, 8)}, got: #{size}"
    end

    type = Ops.type_name(type)

    case pointer do
      %{kind: :local, address: address} when is_integer(address) and address > 0 and address <= @last_address ->
        shared(out, NativeV.tensor_from_address(address, type, shape, device))

      %{kind: :ipc, handle: handle} when is_binary(handle) ->
        shared(out, NativeV.tensor_from_ipc(handle, type, shape, device))

      _ ->
        raise ArgumentError, "expected a pointer with an address or a handle, got: #{inspect(pointer)}"
    end
  end

  defp shared(_out, {:error, :invalid_argument, _op, message, _details}), do: raise(ArgumentError, message)
  defp shared(out, answer), do: holding(out, settle(answer, fn -> answer end))

  @impl true
  def block(struct, out, args, fun) do
    outs = if is_tuple(out), do: Tuple.to_list(out), else: [out]

    case Ops.block(struct, outs, args) do
      :default ->
        default(fun, struct, args)

      {:default_or, steps} ->
        [_u, s, _vt] = results = Enum.reduce(steps, args, &step/2)
        near? = Devices.within(Devices.of_operands(results), fn -> Nx.to_number(near(s)) == 1 end)
        if near?, do: default(fun, struct, args), else: List.to_tuple(results)

      steps ->
        check_indices!(struct, args)
        results = Enum.reduce(steps, args, &step/2)
        if is_tuple(out), do: List.to_tuple(results), else: single(results)
    end
  end

  @doc false
  # Whether the singular values `s` lie near each other.
  def near(s), do: Nx.less(Nx.reduce_max(s), Nx.multiply(Nx.reduce_min(s), Ops.near()))

  # Tensors that the default implementation makes are of this backend too.
  defp default(fun, struct, args) do
    Devices.within(Devices.of_operands(args), fn ->
      Nx.with_default_backend(B, fn -> apply(fun, [struct | args]) end)
    end)
  end

  defp check_indices!(%Nx.Block.Take{axis: axis}, [a, indices]), do: Indices.check!(a.shape, indices, [axis])
  defp check_indices!(%Nx.Block.TakeAlongAxis{axis: axis}, [a, i]), do: Indices.check_along!(a.shape, i, axis)
  defp check_indices!(_struct, _args), do: :ok

  defp step({op, attrs, [out]}, operands), do: [run(op, attrs, operands, out)]
  defp step({op, attrs, outs}, operands), do: run_all(op, attrs, operands, outs)

  defp single([result]), do: result
  defp single([x, regular]), do: if(Nx.to_number(regular) == 0, do: raise_singular(), else: x)

  ## Ops that are their operands and their result, with no attributes

  for op <- Ops.unary() do
    @impl true
    def unquote(op)(out, a), do: run(unquote(op), [], [a], out)
  end

  @dividing [:quotient, :remainder]

  for op <- @dividing do
    @impl true
    def unquote(op)(%T{type: {class, _}} = out, a, b) do
      if class in [:s, :u], do: Divisors.check!(b)
      run(unquote(op), [], [a, b], out)
    end
  end

  for op <- Ops.binary() -- @dividing do
    @impl true
    def unquote(op)(out, a, b), do: run(unquote(op), [], [a, b], out)
  end

  @impl true
  def eye(out, backend_options), do: make(:eye, [], device!(backend_options), out)

  @impl true
  def iota(out, axis, backend_options) do
    {attrs, []} = Ops.instruction(:iota, [axis])
    make(:iota, attrs, device!(backend_options), out)
  end

  ## Ops with attributes

  @checked [:gather, :indexed_add, :indexed_put, :triangular_solve]

  for {op, arity} <- Ops.others(), op not in [:eye, :iota, :slice | @checked] do
    args = Macro.generate_arguments(arity, __MODULE__)
    @impl true
    def unquote(op)(out, unquote_splicing(args)), do: run_op(unquote(op), unquote(args), out)
  end

  defp run_op(op, args, out) do
    {attrs, operands} = Ops.instruction(op, args)
    run(op, attrs, operands, out)
  end

  @impl true
  def slice(out, a, starts, lengths, strides) do
    slice = run_op(:slice, [a, starts, lengths, strides], out)
    if moves?(a), do: moving(slice), else: slice
  end

  @impl true
  def gather(out, a, indices, opts) do
    Indices.check!(a.shape, indices, opts[:axes])
    run_op(:gather, [a, indices, opts], out)
  end

  @impl true
  def indexed_add(out, a, indices, updates, opts) do
    Indices.check!(a.shape, indices, opts[:axes])
    run_op(:indexed_add, [a, indices, updates, opts], out)
  end

  @impl true
  def indexed_put(out, a, indices, updates, opts) do
    Indices.check!(a.shape, indices, opts[:axes])
    run_op(:indexed_put, [a, indices, updates, opts], out)
  end

  @impl true
  def reduce(out, a, acc, opts, fun) do
    attrs = Ops.fold(:reduce, [a, opts])
    folded(:reduce, attrs, a, acc, out, fun) || Fold.reduce(out, a, acc, attrs[:axes], fun)
  end

  @impl true
  def window_reduce(out, a, acc, window, opts, fun) do
    attrs = Ops.fold(:window_reduce, [a, window, opts])
    folded(:window_reduce, attrs, a, acc, out, fun) || Fold.window_reduce(out, a, acc, attrs, fun)
  end

  # Nothing where no kernel can run the function.
  defp folded(op, attrs, a, acc, out, fun) do
    with {function, captured} <- ScalarFunction.kernel(op, fun, a.type, out.type) do
      run(op, [function: function] ++ attrs, [a, acc | captured], out)
    end
  end

  @impl true
  def triangular_solve(out, a, b, opts) do
    x = run_op(:triangular_solve, [a, b, opts], out)
    if singular?(a), do: raise_singular()
    x
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

  ## Running

  @doc false
  # An op of one result; `out` is its template.
  def run(op, attrs, [], out), do: make(op, attrs, Devices.current(), out)

  def run(op, attrs, operands, out) do
    case recorded(op, attrs, refs(operands), out) do
      :elsewhere -> run(op, attrs, together(op, operands), out)
      ref -> holding(out, ref)
    end
  end

  # A tensor that an op makes of nothing, on a device.
  defp make(op, attrs, device, out), do: holding(out, recorded(op, attrs, device || [], out))

  defp recorded(op, attrs, refs, %T{type: type, shape: shape}) do
    type = Ops.type_name(type)

    answer =
      case eager() do
        :immediate -> NativeV.program_run(op, attrs, refs, type, shape)
        :deferred -> NativeV.program_defer(op, attrs, refs, type, shape)
      end

    case answer do
      {:ok, ref} -> ref
      {:ok, ref, :full} -> compute(ref, ref)
      elsewhere() -> :elsewhere
      other -> settle(other, fn -> NativeV.program_run_compile(op, attrs, refs, type, shape) end)
    end
  end

  # An op of several results; `outs` are their templates.
  defp run_all(op, attrs, operands, outs) do
    refs = refs(operands)
    types = Enum.map(outs, &{Ops.type_name(&1.type), &1.shape})

    answer =
      case eager() do
        :immediate -> NativeV.program_run_all(op, attrs, refs, types)
        :deferred -> NativeV.program_defer_all(op, attrs, refs, types)
      end

    case answer do
      {:ok, refs} ->
        Enum.zip_with(outs, refs, &holding/2)

      {:ok, [ref | _] = refs, :full} ->
        Enum.zip_with(outs, compute(ref, refs), &holding/2)

      elsewhere() ->
        run_all(op, attrs, together(op, operands), outs)

      other ->
        outs
        |> Enum.zip_with(settle(other, fn -> NativeV.program_run_all_compile(op, attrs, refs, types) end), &holding/2)
    end
  end

  # The tensors of an op on the device where it runs.
  defp together(op, operands) do
    tensors = Enum.zip_with(operands, refs(operands), fn tensor, ref -> {ref, Nx.to_tensor(tensor)} end)

    device =
      Devices.common!(op, tensors, Devices.automatic?() or (op == :concatenate and Enum.all?(operands, &moves?/1)))

    Enum.map(tensors, fn {ref, tensor} -> if Devices.on?(ref, device), do: tensor, else: on_device(tensor, device) end)
  end

  @doc false
  # A tensor that concatenations take along to another device: `Nx.Serving` puts the parts of a request together which
  # several partitions have computed.
  def moving(%T{data: %B{} = data} = tensor), do: %{tensor | data: %{data | moves?: true}}

  defp moves?(%T{data: %B{moves?: moves?}}), do: moves?
  defp moves?(_other), do: false

  @eager {Nx.Vulkan, :eager}

  @doc false
  # When ops run: at once, or when somebody reads a result. `Nx.Vulkan.eager/2` says so for one process.
  def eager do
    case Process.get(@eager) || Application.get_env(:nx_vulkan, :eager, :immediate) do
      mode when mode in [:immediate, :deferred] ->
        mode

      other ->
        raise ArgumentError, "expected config :nx_vulkan, :eager to be :immediate or :deferred, got: #{inspect(other)}"
    end
  end

  @doc false
  def put_eager(nil), do: Process.delete(@eager)
  def put_eager(mode) when mode in [:immediate, :deferred], do: Process.put(@eager, mode)

  # Records what is pending. An op that fails says so to whoever reads what needs it.
  defp compute(ref, answer) do
    case NativeV.tensor_compute(ref) do
      {:error, :out_of_memory, _op, _message, _details} -> :erlang.garbage_collect()
      _ -> :ok
    end

    answer
  end

  defp refs(operands), do: refs(operands, operands)

  defp refs([%T{type: type, data: %B{ref: ref, type: type}} | rest], all) when node(ref) == node(),
    do: [ref | refs(rest, all)]

  defp refs([other | rest], all) do
    tensor = Devices.within(Devices.of_operands(all), fn -> other |> Nx.to_tensor() |> transferred() end)
    [tensor.data.ref | refs(rest, all)]
  end

  defp refs([], _all), do: []

  @doc false
  # The tensor of a template with the memory behind a reference, whose elements have its type.
  def holding(%T{type: type} = out, ref), do: %{out | data: %B{ref: ref, type: type}}

  # A tensor on the device whose elements have the type that it says.
  defp agreeing(%T{type: type, data: %B{type: type}} = tensor), do: tensor
  defp agreeing(%T{data: %B{type: type}} = tensor), do: run(:as_type, [], [%{tensor | type: type}], tensor)

  @doc false
  # The reference of an argument of a compiled function, which is copied to the device if it is elsewhere.
  def reference(%T{data: %B{ref: ref}} = tensor) when node(ref) != node(),
    do: tensor |> on_device(Devices.current()) |> reference()

  def reference(%T{type: type, data: %B{ref: ref, type: type}}), do: ref
  def reference(%T{data: %B{}} = tensor), do: tensor |> agreeing() |> reference()

  def reference(%T{data: %Tracer{}} = tensor),
    do: tensor |> Tracer.on_device!("calls a compiled function") |> reference()

  def reference(%T{data: %Nx.Defn.Expr{}} = tensor) do
    raise ArgumentError, "cannot pass a tensor expression as argument to defn, got: #{inspect(tensor)}"
  end

  def reference(tensor), do: tensor |> Nx.to_tensor() |> Nx.devectorize() |> transferred() |> reference()

  @doc false
  # As `reference/1`, on the current device (`Devices.current/0`), to which the tensor moves.
  def reference_here(tensor) do
    ref = reference(tensor)

    if Devices.several?() and not Devices.on?(ref, Devices.current()),
      do: on_device(holding(tensor, ref), Devices.current()).data.ref,
      else: ref
  end

  defp transferred(%T{data: %B{ref: ref}} = tensor) when node(ref) != node(),
    do: on_device(tensor, Devices.current())

  defp transferred(%T{data: %B{}} = tensor), do: agreeing(tensor)
  defp transferred(%T{shape: {}} = scalar), do: constant(scalar, Nx.to_number(scalar), [])
  defp transferred(tensor), do: upload(tensor, Nx.to_binary(tensor), Devices.current())

  defp upload(%T{type: {_, size} = type, shape: shape} = out, bits, device) do
    most = if size < 8, do: @dirty_packed_bytes, else: @dirty_bytes
    type = Ops.type_name(type)
    binary = fill(bits)
    dirty = fn -> NativeV.tensor_from_binary_dirty(type, shape, binary, device) end

    answer =
      if byte_size(binary) < most, do: NativeV.tensor_from_binary(type, shape, binary, device), else: dirty.()

    holding(out, settle(answer, dirty))
  end

  @doc false
  # The tensor of part of a file, from a byte on; `:error` where the file is not as it should be.
  def from_file(%T{type: type, shape: shape} = out, path, offset, backend_options) do
    device = device!(backend_options)
    read = fn -> NativeV.tensor_from_file(Ops.type_name(type), shape, path, offset, device) end

    case read.() do
      {:error, :io, _op, _message, _details} -> :error
      answer -> {:ok, holding(out, settle(answer, read))}
    end
  end

  defp fill(binary) when is_binary(binary), do: binary

  defp fill(bits) do
    missing = 8 - rem(bit_size(bits), 8)
    <<bits::bitstring, 0::size(missing)>>
  end

  @doc false
  # The reference in an answer of the native library. `again` makes the same call on a dirty scheduler.
  def settle({:ok, ref}, _again), do: ref

  def settle({:ok, ref, :pressure}, _again) do
    {device, _default?} = ref |> List.wrap() |> hd() |> Devices.of()
    Telemetry.memory_in_use(:pressure, device)
    :erlang.garbage_collect()
    ref
  end

  def settle(:needs_compile, again), do: settle(again.(), again)

  def settle(:collect, again) do
    :erlang.garbage_collect()
    await_destructors()
    settle(again.(), again)
  end

  # What the option :memory does not allow is not had by giving up anything.
  def settle({:error, :out_of_memory, _op, _message, %{needed_bytes: _}} = error, _again), do: raise_error(error)

  # Nor is what others hold counted to the limit of this process.
  def settle({:error, :out_of_memory, _op, _message, %{held_bytes: _}} = error, again) do
    reclaim([collect_at_once: &collect_at_once/0], error, again)
  end

  def settle({:error, :out_of_memory, _op, _message, _details} = error, again) do
    steps = [
      collect: &collect/0,
      collect_everywhere: &collect_everywhere/0,
      allow_spill: &NativeV.memory_allow_spill/0,
      drop_compiled: &drop_compiled/0
    ]

    reclaim(steps, error, again)
  end

  def settle(error, _again), do: raise_error(error)

  # Looks at whether the destructors of what was collected have run, at most. The scheduler that collected runs them
  # between processes, those of a marker that was collected after the rest as the last ones.
  @looks 100

  defp await_destructors do
    number = mark()
    :erlang.garbage_collect()
    await_destructors(number, @looks)
  end

  defp await_destructors(number, looks) do
    if looks > 0 and NativeV.marker_alive?(number) do
      :erlang.yield()
      await_destructors(number, looks - 1)
    end
  end

  # The number of a marker that nothing holds.
  defp mark do
    {number, _marker} = NativeV.marker()
    number
  end

  # Tries again after each step that may have freed memory.
  defp reclaim([{name, step} | steps], {:error, _kind, _op, _message, %{device: device}} = error, again) do
    Telemetry.memory_in_use(:reclaim, device, %{step: name})

    if step.() do
      case again.() do
        {:error, :out_of_memory, _op, _message, _details} = error -> reclaim(steps, error, again)
        answer -> settle_last(answer)
      end
    else
      reclaim(steps, error, again)
    end
  end

  defp reclaim([], error, _again), do: raise_error(error)

  defp collect, do: :erlang.garbage_collect()

  defp collect_at_once do
    :erlang.garbage_collect()
    await_destructors()
    true
  end

  # Other processes may hold tensors that nobody can reach any more.
  defp collect_everywhere, do: Process.list() |> Enum.map(&:erlang.garbage_collect/1) |> Enum.any?()

  # Compiled functions hold the tensors that they captured, and are compiled again when they are called.
  defp drop_compiled, do: Cache.drop_all() > 0 and collect_everywhere()

  defp settle_last({:ok, ref}), do: ref
  defp settle_last({:ok, ref, :pressure}), do: ref
  defp settle_last(error), do: raise_error(error)

  @spec raise_error(NativeV.error()) :: no_return
  defp raise_error({:error, :device_lost, op, message, details}) when not is_map_key(details, :devices) do
    lost = Devices.lost()
    message = if lost == [], do: message, else: "#{message}: #{Enum.map_join(lost, ", ", &Devices.name/1)}"
    raise_error({:error, :device_lost, op, message, Map.put(details, :devices, lost)})
  end

  defp raise_error({:error, kind, op, message, details}) do
    if kind == :out_of_memory, do: Telemetry.memory(:out_of_memory, details, op)
    raise Nx.Vulkan.Error, kind: kind, op: op, message: message, details: details
  end
end
