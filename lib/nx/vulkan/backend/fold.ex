defmodule Nx.Vulkan.Fold do
  @moduledoc """
  Runs `Nx.reduce/4` and `Nx.window_reduce/5` step by step, with functions that `Nx.Vulkan.ScalarFunction` can't trace.

  The function gets one element after the other in row-major order, as from `Nx.BinaryBackend`, and its ops run on the device. At
  first it gets the k-th elements of all results at once, as a scalar vectorized along one axis. Where it reads a value, raises or
  gives anything but such a scalar, it is called again from the start, for each element of each result with plain scalars.
  """

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.VulkanoBackend, as: B

  # The name of the vectorized axis, which no user's axis has, and what is known of the call with all results at once.
  @key __MODULE__

  @doc """
  The reduction of `a` over `axes` with `fun`, from `acc` on.
  """
  @spec reduce(T.t(), T.t(), T.t(), [non_neg_integer], (T.t(), T.t() -> term)) :: T.t()
  def reduce(out, a, acc, axes, fun) do
    axes = Enum.sort(axes)
    kept = Enum.to_list(0..(tuple_size(a.shape) - 1)//1) -- axes
    results = Nx.size(out.shape)
    count = div(Nx.size(a.shape), results)
    rows = a |> plain() |> Nx.transpose(axes: axes ++ kept) |> Nx.reshape({count, results})
    fold(out, Stream.map(0..(count - 1), &rows[&1]), acc, fun)
  end

  @doc """
  The reductions of the windows of `a`, with the attributes of the op as options.
  """
  @spec window_reduce(T.t(), T.t(), T.t(), keyword, (T.t(), T.t() -> term)) :: T.t()
  def window_reduce(out, a, acc, opts, fun) do
    padding = Enum.zip_with(opts[:low], opts[:high], &{&1, &2, 0})
    padded = Nx.pad(plain(a), Nx.as_type(plain(acc), out.type), padding)
    lengths = Enum.zip_with(Tuple.to_list(out.shape), opts[:strides], &((&1 - 1) * &2 + 1))
    results = Nx.size(out.shape)

    elements =
      for start <- positions(opts[:window], opts[:dilations]) do
        padded |> Nx.slice(start, lengths, strides: opts[:strides]) |> Nx.reshape({results})
      end

    fold(out, elements, acc, fun)
  end

  # Where the elements of a window are.
  defp positions([], []), do: [[]]

  defp positions([size | sizes], [dilation | dilations]) do
    rest = positions(sizes, dilations)
    for i <- 0..(size - 1), position <- rest, do: [i * dilation | position]
  end

  # `elements` has a vector for each step, with an element for each result.
  defp fold(out, elements, acc, fun) do
    acc = Nx.as_type(plain(acc), out.type)
    results = Nx.size(out.shape)
    B.reshape(out, together(elements, results, acc, fun) || one_by_one(elements, results, acc, fun))
  end

  # Nothing where the function needs plain scalars. One that the evaluator made of an expression takes nothing else.
  defp together(elements, results, acc, fun) do
    if results > 1 and Process.get(@key) == nil and Function.info(fun, :module) != {:module, Nx.Defn.Evaluator} do
      Process.put(@key, :unread)

      try do
        acc = acc |> Nx.broadcast({results}) |> Nx.vectorize(@key)

        elements
        |> Enum.reduce(acc, &vector!(fun.(Nx.vectorize(&1, @key), &2), acc))
        |> Nx.devectorize(keep_names: false)
      catch
        _kind, _reason -> nil
      after
        Process.delete(@key)
      end
    end
  end

  defp vector!(%T{shape: {}, vectorized_axes: axes} = tensor, %T{vectorized_axes: axes, type: type}) do
    if Process.get(@key) == :read, do: throw(:read)
    Nx.as_type(on_device(tensor), type)
  end

  defp one_by_one(elements, results, %T{type: type} = acc, fun) do
    elements = Enum.to_list(elements)

    Nx.stack(
      for i <- 0..(results - 1) do
        Enum.reduce(elements, acc, fn vector, acc -> Nx.as_type(scalar!(fun.(vector[i], acc), type), type) end)
      end
    )
  end

  @doc """
  Notes that the process reads a tensor, and raises where it must not: within a call with all results at once.
  """
  @spec read! :: :ok
  def read! do
    if Process.get(@key) do
      Process.put(@key, :read)
      raise Nx.Vulkan.Error, kind: :unsupported, message: "a function of all results at once reads a value"
    end

    :ok
  end

  @doc """
  What a function gave, as a scalar on the device; a number becomes one of `type`.

  ## Errors

  `ArgumentError` for what is neither a number nor a scalar tensor.
  """
  @spec scalar!(term, Nx.Type.t()) :: T.t()
  def scalar!(%T{shape: {}, vectorized_axes: []} = tensor, _type), do: on_device(tensor)
  def scalar!(%Complex{} = number, type), do: Nx.tensor(number, type: type, backend: B)

  def scalar!(number, type) when is_number(number) or number in [:nan, :infinity, :neg_infinity] do
    Nx.tensor(number, type: type, backend: B)
  end

  def scalar!(other, type) do
    raise ArgumentError, "expected a number or a scalar tensor of type #{inspect(type)}, got: #{inspect(other)}"
  end

  defp on_device(%T{data: %B{}} = tensor), do: tensor
  defp on_device(tensor), do: Nx.backend_copy(tensor, B)

  # On the device and without names.
  defp plain(%T{names: names} = tensor), do: on_device(%{tensor | names: Enum.map(names, fn _ -> nil end)})
end
