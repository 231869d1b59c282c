defmodule Nx.Vulkan.Devices do
  @moduledoc false

  # Which device something is on. Callers name devices by selectors (`Nx.Vulkan`); everything within names open ones by
  # their index, and the default one by nil.

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.{Error, Library, NativeV, Telemetry}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @type index :: non_neg_integer | nil
  @type selector :: non_neg_integer | String.t()

  @several {__MODULE__, :several}
  @current {__MODULE__, :current}

  @doc """
  Whether another device than the default one is or was open. Where none is, nobody has to look where tensors are.
  """
  @spec several?() :: boolean
  def several?, do: :persistent_term.get(@several, false)

  @doc "The device of what a process makes without naming one: that of `within/2`, or the default one."
  @spec current() :: index
  def current, do: Process.get(@current)

  @doc "Runs `fun` where what it makes without naming a device is on this one; nil leaves that as it is."
  @spec within(index, (-> result)) :: result when result: term
  def within(nil, fun), do: fun.()

  def within(index, fun) do
    before = Process.put(@current, index)

    try do
      fun.()
    after
      if before, do: Process.put(@current, before), else: Process.delete(@current)
    end
  end

  @doc """
  The device that a selector names, which this opens if need be; of nil the current one. Raises where there is none.
  """
  @spec index!(selector | nil) :: index
  def index!(nil), do: current()

  def index!(selector) when (is_binary(selector) and selector != "") or (is_integer(selector) and selector >= 0) do
    case :persistent_term.get({__MODULE__, selector}, :unknown) do
      :unknown -> open!(selector)
      index -> index
    end
  end

  def index!(other) do
    raise ArgumentError,
          "expected :device to be an index of Nx.Vulkan.devices/0, digits of a UUID or a part of a name, got: #{inspect(other)}"
  end

  # A default device that nobody has used stays closed, unless there is no other.
  defp open!(selector) do
    name = to_string(selector)
    if match?([_only], Enum.filter(Nx.Vulkan.devices(), & &1.usable)), do: Nx.Vulkan.init()
    opened = Telemetry.device_open(name, fn -> opened(name) end)

    case opened do
      {:ok, index, default?} ->
        if not default?, do: :persistent_term.put(@several, true)
        :persistent_term.put({__MODULE__, selector}, index)
        index

      {:error, %Error{} = error} ->
        raise error
    end
  end

  defp opened(name) do
    why = Library.unloadable()
    answer = if why, do: {:error, :no_device, why}, else: NativeV.device_select(name)
    with {:error, kind, message} <- answer, do: {:error, Error.exception(kind: kind, op: :init, message: message)}
  end

  @doc "The index of the device that a tensor's memory is on, and whether that is the default one."
  @spec of(reference) :: {non_neg_integer, boolean}
  def of(reference) do
    case NativeV.tensor_device(reference) do
      {:ok, index, default?} -> {index, default?}
      {:error, kind, op, message, details} -> raise Error, kind: kind, op: op, message: message, details: details
    end
  end

  @doc "Whether a tensor's memory is on a device."
  @spec on?(reference, index) :: boolean
  def on?(reference, index) do
    case of(reference) do
      {_of, default?} when index == nil -> default?
      {of, _default?} -> of == index
    end
  end

  @doc """
  The device of an op with these operands, of which some may be numbers or tensors of other backends: that of the first
  tensor on a device which has several elements, or else of the first one.
  """
  @spec of_operands([term]) :: index
  def of_operands(operands) do
    if several?() do
      placed = for %T{data: %B{ref: ref}} = tensor <- operands, node(ref) == node(), do: tensor

      case Enum.find(placed, List.first(placed), &(Nx.size(&1.shape) > 1)) do
        nil -> current()
        %T{data: %B{ref: ref}} -> ref |> of() |> elem(0)
      end
    else
      current()
    end
  end

  @doc """
  Where an op with these tensors runs: on the device of those of several elements. One element goes wherever it is needed.
  Where there are several, on that of most bytes if tensors move by themselves, and otherwise this raises.
  """
  @spec common!(String.t() | atom, [{reference, T.t()}], boolean) :: non_neg_integer
  def common!(what, tensors, automatic?) do
    bytes =
      for {ref, %T{shape: shape} = tensor} <- tensors,
          Nx.size(shape) > 1,
          do: {ref |> of() |> elem(0), Nx.byte_size(tensor)}

    case Enum.uniq_by(bytes, &elem(&1, 0)) do
      [] ->
        [{ref, _} | _] = tensors
        ref |> of() |> elem(0)

      [{index, _}] ->
        index

      several when automatic? ->
        sum = fn {index, _} -> for({^index, bytes} <- bytes, reduce: 0, do: (sum -> sum + bytes)) end
        several |> Enum.max_by(sum) |> elem(0)

      several ->
        raise_elsewhere(what, Enum.map(several, &elem(&1, 0)))
    end
  end

  @spec raise_elsewhere(String.t() | atom, [non_neg_integer]) :: no_return
  defp raise_elsewhere(what, [first | _] = indices) do
    names = Enum.map_join(indices, " and ", &name/1)
    raise ArgumentError, "#{what}: expected tensors of one device, got tensors of #{names}. #{advice(first)}"
  end

  @doc "Raises, for a function that was compiled for a device has tensors of another one."
  @spec raise_other!(String.t(), index, reference) :: no_return
  def raise_other!(what, index, reference) do
    index = number(index)

    raise ArgumentError,
          "#{what}: expected tensors of #{name(index)}, for which it is compiled, got one of " <>
            "#{reference |> of() |> elem(0) |> name()}. #{advice(index)}"
  end

  defp advice(index) do
    "Move them by Nx.backend_transfer(tensor, {Nx.Vulkan.VulkanoBackend, device: #{index}}), or let all tensors move by " <>
      "themselves with config :nx_vulkan, automatic_transfers: true"
  end

  @doc "The index of a device, the default one's for nil. Raises where that can't be opened."
  @spec number(index) :: non_neg_integer
  def number(nil), do: default!()
  def number(index), do: index

  defp default! do
    case Nx.Vulkan.device_info() do
      {:ok, %{index: index}} -> index
      {:error, error} -> raise error
    end
  end

  @doc "A device by its name and index."
  @spec name(non_neg_integer) :: String.t()
  def name(index) do
    case NativeV.device_describe(index) do
      {:ok, %{name: name}} -> "#{name} (device #{index})"
      {:error, _kind, _message} -> "device #{index}"
    end
  end

  @doc "The open devices that are lost. Waits for none: a device that is lost takes nothing more."
  @spec lost() :: [non_neg_integer]
  def lost do
    for %{open: true, index: index} <- Nx.Vulkan.devices(),
        match?({:error, :device_lost, _, _, _}, NativeV.tensor_from_binary(:u8, {2}, <<0, 1>>, index)),
        do: index
  end

  @automatic {__MODULE__, :automatic}

  @doc "Runs `fun` where tensors of other devices move or not, whatever the configuration says; nil leaves that as it is."
  @spec moving(boolean | nil, (-> result)) :: result when result: term
  def moving(nil, fun), do: fun.()

  def moving(automatic?, fun) do
    before = Process.put(@automatic, automatic?)

    try do
      fun.()
    after
      if before == nil, do: Process.delete(@automatic), else: Process.put(@automatic, before)
    end
  end

  @doc "Whether tensors of other devices move to where they are needed."
  @spec automatic?() :: boolean
  def automatic?, do: Process.get(@automatic, configured?())

  defp configured? do
    case Application.get_env(:nx_vulkan, :automatic_transfers, false) do
      automatic? when is_boolean(automatic?) ->
        automatic?

      other ->
        raise ArgumentError, "expected config :nx_vulkan, :automatic_transfers to be a boolean, got: #{inspect(other)}"
    end
  end

  @doc "The devices of servings and meshes that name none: all of the kind of the default one, which comes first."
  @spec partitions() :: [non_neg_integer]
  def partitions do
    case Nx.Vulkan.device_info() do
      {:ok, %{kind: kind, index: default}} ->
        others = for %{usable: true, kind: ^kind, index: index} <- Nx.Vulkan.devices(), index != default, do: index
        [default | others]

      {:error, error} ->
        raise error
    end
  end

  @doc "The devices of a list of selectors, all of which there have to be."
  @spec partitions!([selector]) :: [selector]
  def partitions!([_ | _] = selectors) do
    Enum.each(selectors, &index!/1)
    selectors
  end

  def partitions!(other) do
    raise ArgumentError, "expected :devices to be a list of selectors as :device has them, got: #{inspect(other)}"
  end
end
