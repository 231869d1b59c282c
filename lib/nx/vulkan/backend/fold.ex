defmodule Nx.Vulkan.Fold do
  @moduledoc false

  # Runs `Nx.reduce/4` and `Nx.window_reduce/5` step by step, with functions that `Nx.Vulkan.ScalarFunction` can't
  # trace.
  #
  # The function gets one element after the other in row-major order, as from `Nx.BinaryBackend`, and its ops run on the
  # device. At first it gets the k-th elements of all results at once, as a scalar vectorized along one axis. Where it
  # reads a value, raises or gives anything but such a scalar, it is called again from the start, for each element of
  # each result with plain scalars.

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.{Devices, Tracer}
  alias Nx.Vulkan.VulkanoBackend, as: B

  # The name of the vectorized axis, which no user's axis has.
  @axis __MODULE__

  @doc """
  The reduction of `a` over `axes` with `fun`, from `acc` on.
  """
  @spec reduce(T.t(), T.t(), T.t(), [non_neg_integer], (T.t(), T.t() -> term)) :: T.t()
  def reduce(out, a, acc, axes, fun) do
    axes = Enum.sort(axes)
    kept = Enum.to_list(0..(tuple_size(a.shape) - 1)//1) -- axes
    results = Nx.size(out.shape)
    count = div(Nx.size(a.shape), results)
    backend = backend([a, acc])
    rows = a |> plain(backend) |> Nx.transpose(axes: axes ++ kept) |> Nx.reshape({count, results})
    fold(out, Stream.map(0..(count - 1), &rows[&1]), acc, fun, backend)
  end

  @doc """
  The reductions of the windows of `a`, with the attributes of the op as options.
  """
  @spec window_reduce(T.t(), T.t(), T.t(), keyword, (T.t(), T.t() -> term)) :: T.t()
  def window_reduce(out, a, acc, opts, fun) do
    padding = Enum.zip_with(opts[:low], opts[:high], &{&1, &2, 0})
    backend = backend([a, acc])
    padded = Nx.pad(plain(a, backend), Nx.as_type(plain(acc, backend), out.type), padding)
    lengths = Enum.zip_with(Tuple.to_list(out.shape), opts[:strides], &((&1 - 1) * &2 + 1))
    results = Nx.size(out.shape)

    elements =
      for start <- positions(opts[:window], opts[:dilations]) do
        padded |> Nx.slice(start, lengths, strides: opts[:strides]) |> Nx.reshape({results})
      end

    fold(out, elements, acc, fun, backend)
  end

  # Where the elements of a window are.
  defp positions([], []), do: [[]]

  defp positions([size | sizes], [dilation | dilations]) do
    rest = positions(sizes, dilations)
    for i <- 0..(size - 1), position <- rest, do: [i * dilation | position]
  end

  # `elements` has a vector for each step, with an element for each result.
  defp fold(out, elements, acc, fun, backend) do
    acc = Nx.as_type(plain(acc, backend), out.type)
    results = Nx.size(out.shape)

    %T{data: %module{}} =
      folded = together(elements, results, acc, fun, backend) || one_by_one(elements, results, acc, fun, backend)

    module.reshape(out, folded)
  end

  # The device, or the tracer of a function that calls reduce.
  defp backend(operands) do
    case for(%T{data: %Tracer{by: by}} <- operands, do: by) do
      [] -> {B, device: Devices.of_operands(operands)}
      [by | _] -> {Tracer, by: by}
    end
  end

  # Nothing where the function needs plain scalars.
  defp together(elements, results, acc, fun, backend) do
    if results > 1 and reading() == nil and not evaluated?(fun) do
      reading(:forbidden)

      try do
        acc = acc |> Nx.broadcast({results}) |> Nx.vectorize(@axis)

        elements
        |> Enum.reduce(acc, &vector!(fun.(Nx.vectorize(&1, @axis), &2), acc, backend))
        |> Nx.devectorize(keep_names: false)
      catch
        _kind, _reason -> nil
      after
        reading(nil)
      end
    end
  end

  defp vector!(%T{shape: {}, vectorized_axes: axes} = tensor, %T{vectorized_axes: axes, type: type}, backend) do
    # The function may have rescued the exception.
    if reading() == :tried, do: throw(:read)
    Nx.as_type(placed(tensor, backend), type)
  end

  defp one_by_one(elements, results, %T{type: type} = acc, fun, backend) do
    elements = Enum.to_list(elements)

    Nx.stack(
      for i <- 0..(results - 1) do
        Enum.reduce(elements, acc, fn vector, acc -> Nx.as_type(scalar!(fun.(vector[i], acc), type, backend), type) end)
      end
    )
  end

  @doc """
  Whether the evaluator made a function of an expression: it takes nothing but plain scalars, and captures no tensor of
  the device.
  """
  @spec evaluated?(fun) :: boolean
  def evaluated?(fun), do: Function.info(fun, :module) == {:module, Nx.Defn.Evaluator}

  @doc """
  Notes that the process reads a tensor, and raises where it must not: within a call with all results at once.
  """
  @spec read! :: :ok
  def read! do
    if reading() do
      reading(:tried)
      raise Nx.Vulkan.Error, kind: :unsupported, message: "a function of all results at once reads a value"
    end

    :ok
  end

  # Within a call with all results at once whether the function has tried to read. It is in the process, since what
  # reads may be anything that the function calls.
  @compile {:inline, reading: 0}
  defp reading, do: Process.get(__MODULE__)

  defp reading(nil), do: Process.delete(__MODULE__)
  defp reading(state), do: Process.put(__MODULE__, state)

  @doc """
  What a function gave, as a scalar of the backend; a number becomes one of `type`.

  ## Errors

  `ArgumentError` for what is neither a number nor a scalar tensor.
  """
  @spec scalar!(term, Nx.Type.t(), module | {module, keyword}) :: T.t()
  def scalar!(%T{shape: {}, vectorized_axes: []} = tensor, _type, backend), do: placed(tensor, backend)
  def scalar!(%Complex{} = number, type, backend), do: Nx.tensor(number, type: type, backend: backend)

  def scalar!(number, type, backend) when is_number(number) or number in [:nan, :infinity, :neg_infinity] do
    Nx.tensor(number, type: type, backend: backend)
  end

  def scalar!(other, type, _backend) do
    raise ArgumentError, "expected a number or a scalar tensor of type #{inspect(type)}, got: #{inspect(other)}"
  end

  defp placed(%T{data: %module{}} = tensor, _backend) when module in [B, Tracer], do: tensor
  defp placed(tensor, backend), do: Nx.backend_copy(tensor, backend)

  # On the backend and without names.
  defp plain(%T{names: names} = tensor, backend),
    do: placed(%{tensor | names: Enum.map(names, fn _ -> nil end)}, backend)
end
