defmodule Nx.Vulkan.Pretrained.Deferred do
  @moduledoc false

  # The `Nx.Backend` of weights that are not read yet, while Bumblebee finds out which layer they belong to. A weight
  # knows whether it was transposed and cast; any other op reads it, and gives a tensor of the default backend.

  @behaviour Nx.Backend

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Quantized

  @enforce_keys [:name, :read]
  defstruct [:name, :read, transposed?: false]

  @doc """
  A tensor of a name, of f32 and of a shape, that `read` gives: a tensor or a quantised one.
  """
  def tensor(name, shape, read), do: %{Nx.template(shape, :f32) | data: %__MODULE__{name: name, read: read}}

  @doc """
  The values, of `value` or read now, as the tensor has them.
  """
  def values(%T{data: %__MODULE__{} = data, type: type}, value \\ nil) do
    values =
      case value || data.read.() do
        %Quantized{} = quantised -> Quantized.dequantize(quantised)
        %T{} = tensor -> tensor
      end

    Nx.as_type(if(data.transposed?, do: Nx.transpose(values), else: values), type)
  end

  @impl true
  def init(opts), do: opts

  @impl true
  def as_type(out, tensor), do: %{out | data: tensor.data}

  @impl true
  def transpose(out, %T{shape: {_, _}, data: data}, [1, 0]),
    do: %{out | data: %{data | transposed?: not data.transposed?}}

  def transpose(out, %T{data: data}, axes) when axes in [[0], [0, 1]], do: %{out | data: data}
  def transpose(out, tensor, axes), do: computed(:transpose, [out, tensor, axes])

  @others Nx.Backend.behaviour_info(:callbacks) --
            (Nx.Backend.behaviour_info(:optional_callbacks) ++ [init: 1, as_type: 2, transpose: 3])

  for {name, arity} <- @others do
    args = Macro.generate_arguments(arity, __MODULE__)
    @impl true
    def unquote(name)(unquote_splicing(args)), do: computed(unquote(name), unquote(args))
  end

  # The first argument of most is the template of the result.
  defp computed(name, args) do
    {backend, _opts} = Nx.default_backend()
    apply(backend, name, Enum.map(args, &real/1))
  end

  defp real(%T{data: %__MODULE__{}} = tensor), do: values(tensor)
  defp real(list) when is_list(list), do: Enum.map(list, &real/1)
  defp real(other), do: other
end
