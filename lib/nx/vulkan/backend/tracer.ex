defmodule Nx.Vulkan.Tracer do
  @moduledoc false

  # The `Nx.Backend` of functions that are traced. It computes nothing: it reads each op by the table of
  # `Nx.Vulkan.Ops`, as `Nx.Vulkan.VulkanoBackend` does, and hands it to the module that traces, with a function that
  # runs it on the device. Its tensors hold that module (`by`) and what it knows of the value.

  @behaviour Nx.Backend
  @enforce_keys [:by, :value]
  defstruct [:by, :value]

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.{Closure, Fold, Ops, ScalarFunction}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @typedoc "Ops that follow one another, as `Nx.Vulkan.Ops.block/3` has them; most are one."
  @type steps :: [{op :: atom, attrs :: keyword, outs :: [T.t()]}, ...]

  @doc """
  The value of a number, `out` being its template.
  """
  @callback constant(out :: T.t(), number :: term) :: term

  @doc """
  The value of a tensor on the device that no traced op made.
  """
  @callback leaf(T.t()) :: term

  @doc """
  The values of the results of ops, of which `device` gives the tensors on the device where it is called.
  """
  @callback run(steps, operands :: [T.t()], device :: (-> [T.t()])) :: [value :: term]

  @doc """
  The tensor on the device that a tensor stands for, or nil where there is none.
  """
  @callback on_device(T.t()) :: T.t() | nil

  @doc """
  The value of a tensor that is not on the device, as a binary.
  """
  @callback read(T.t()) :: binary

  @doc """
  Raises: such a tensor can't be used so.
  """
  @callback refuse(what :: String.t()) :: no_return

  @doc """
  Runs `fun` where tensors that it makes are traced by `by`.
  """
  @spec trace(module, (-> result)) :: result when result: term
  def trace(by, fun), do: Nx.with_default_backend({__MODULE__, by: by}, fun)

  @doc """
  `fun` with traced tensors in the place of those of the device that it captured.
  """
  @spec capture(fun, module) :: fun
  def capture(fun, by) do
    Closure.map(fun, fn
      %T{data: %B{}} = tensor -> tensor(tensor, by, by.leaf(tensor))
      other -> other
    end)
  end

  @doc """
  A traced tensor, `out` being its template.
  """
  @spec tensor(T.t(), module, term) :: T.t()
  def tensor(out, by, value), do: %{out | data: %__MODULE__{by: by, value: value}}

  @doc """
  The tensor on the device that a tensor of this backend stands for. Raises where there is none, for it is used so.
  """
  @spec on_device!(T.t(), String.t()) :: T.t()
  def on_device!(%T{data: %__MODULE__{by: by}} = tensor, what), do: by.on_device(tensor) || by.refuse(what)

  ## Tensors that are made

  @impl true
  def init(opts), do: opts

  @impl true
  def constant(out, number, by: by), do: tensor(out, by, by.constant(out, number))

  @impl true
  def from_binary(out, binary, by: by), do: made(B.from_binary(out, binary, []), by)

  @impl true
  def from_pointer(pointer, type, shape, [by: by], opts), do: made(B.from_pointer(pointer, type, shape, [], opts), by)

  defp made(tensor, by), do: tensor(tensor, by, by.leaf(tensor))

  @impl true
  def eye(out, by: by), do: run([{:eye, [], [out]}], [], by, fn -> [B.eye(out, [])] end) |> hd()

  @impl true
  def iota(out, axis, by: by),
    do: run([{:iota, [axis: axis], [out]}], [], by, fn -> [B.iota(out, axis, [])] end) |> hd()

  ## Tensors that are read

  @impl true
  def to_binary(%T{data: %{by: by}} = tensor, limit) do
    if placed = by.on_device(tensor), do: B.to_binary(placed, limit), else: by.read(tensor)
  end

  @impl true
  def inspect(%T{data: %{by: by}} = tensor, opts) do
    if placed = by.on_device(tensor), do: B.inspect(placed, opts), else: "a value of a traced function"
  end

  @impl true
  def backend_copy(tensor, backend, opts) when backend in [__MODULE__, B, Nx.Vulkan.Backend] do
    _device = B.device!(opts)
    tensor
  end

  def backend_copy(tensor, Nx.Tensor, opts), do: backend_copy(tensor, Nx.BinaryBackend, opts)

  def backend_copy(tensor, backend, opts),
    do: backend.from_binary(tensor, to_binary(tensor, Nx.flat_size(tensor)), opts)

  # Other results may need the tensor, so that it keeps its memory.
  @impl true
  def backend_transfer(tensor, backend, opts), do: backend_copy(tensor, backend, opts)

  @impl true
  def backend_deallocate(tensor), do: tensor |> on_device!("deallocates a value") |> B.backend_deallocate()

  @impl true
  def to_pointer(tensor, opts), do: tensor |> on_device!("takes the address of a value") |> B.to_pointer(opts)

  @impl true
  def to_batched(out, tensor, opts), do: B.batches(__MODULE__, out, tensor, opts)

  ## Ops

  for {op, arity} <- Ops.callbacks(), op not in [:eye, :iota] do
    args = Macro.generate_arguments(arity, __MODULE__)
    @impl true
    def unquote(op)(out, unquote_splicing(args)), do: run_op(unquote(op), unquote(args), out)
  end

  defp run_op(op, args, out) do
    {attrs, operands} = Ops.instruction(op, args)
    device = fn -> [apply(B, op, [out | Enum.map(args, &placed/1)])] end
    run([{op, attrs, [out]}], operands, by(operands), device) |> hd()
  end

  @impl true
  def block(struct, out, args, fun) do
    tensors = Enum.filter(args, &is_struct(&1, T))
    by = by(tensors)
    device = fn -> listed(B.block(struct, out, Enum.map(args, &placed/1), fun)) end

    case Ops.block(struct, if(is_tuple(out), do: Tuple.to_list(out), else: [out]), args) do
      :default ->
        trace(by, fn -> apply(fun, [struct | args]) end)

      {:default_or, steps} ->
        [_u, s, _vt] = others = run(steps, tensors, by, device)

        trace(by, fn ->
          near = B.near(s)
          default = listed(apply(fun, [struct | args]))
          List.to_tuple(Enum.zip_with(default, others, &Nx.select(near, &1, &2)))
        end)

      steps ->
        results = run(steps, tensors, by, device)
        if is_tuple(out), do: List.to_tuple(results), else: hd(results)
    end
  end

  defp listed(results) when is_tuple(results), do: Tuple.to_list(results)
  defp listed(result), do: [result]

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
    for %T{data: %__MODULE__{}} = operand <- [a, acc], do: on_device!(operand, "uses #{op}")

    with {function, captured} <- ScalarFunction.kernel(op, fun, a.type, out.type) do
      attrs = [function: function] ++ attrs
      operands = [a, acc | captured]
      device = fn -> [B.run(op, attrs, Enum.map(operands, &placed/1), out)] end
      run([{op, attrs, [out]}], operands, by(operands), device) |> hd()
    end
  end

  defp run([_ | _] = steps, operands, by, device) do
    {_op, _attrs, outs} = List.last(steps)
    steps |> by.run(operands, device) |> Enum.zip_with(outs, &tensor(&2, by, &1))
  end

  # Of functions within one another the inner one, which knows what it captured.
  defp by(operands) do
    found = for %T{data: %__MODULE__{by: by}} <- operands, do: by
    if ScalarFunction in found, do: ScalarFunction, else: hd(found)
  end

  # An argument of a callback with tensors of the device.
  defp placed(%T{data: %__MODULE__{by: by}} = tensor), do: by.on_device(tensor)
  defp placed(list) when is_list(list), do: Enum.map(list, &placed/1)
  defp placed(other), do: other
end
