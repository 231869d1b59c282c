defmodule Nx.Vulkan.Safetensors.Lazy do
  @moduledoc false

  # A tensor of a file that is read when it is asked for.

  @enforce_keys [:info, :type]
  defstruct [:info, :type]

  @doc "The type of the values."
  def type(%{info: %{layout: :plain, parts: %{tensor: %{type: {:unknown, _}}}}, type: type}), do: type
  def type(%{info: %{layout: :plain, format: type}}), do: type
  def type(%{type: type}), do: type

  @doc "The values."
  def tensor(%{info: info, type: type}) do
    case Nx.Vulkan.Safetensors.value(info, []) do
      {:ok, %Nx.Tensor{} = tensor} -> tensor
      {:ok, quantised} -> Nx.Vulkan.Quantized.dequantize(quantised, type: type)
      {:error, error} -> raise error
    end
  end

  defimpl Nx.LazyContainer do
    alias Nx.Vulkan.Safetensors.Lazy

    def traverse(lazy, acc, fun) do
      template = Nx.template(lazy.info.shape, Lazy.type(lazy))
      fun.(template, fn -> Lazy.tensor(lazy) end, acc)
    end
  end
end
