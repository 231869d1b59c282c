defmodule Nx.Vulkan.Numbers do
  @moduledoc """
  Random tensors on the host, and how far tensors of any backend are apart.
  """

  @doc "Numbers from -1 to 1 of `:rand`, whose seed is the caller's."
  def numbers(shape, type) do
    values = for _ <- 1..Tuple.product(shape), do: 2 * :rand.uniform() - 1
    values |> Nx.tensor(type: type, backend: Nx.BinaryBackend) |> Nx.reshape(shape)
  end

  @doc "A number or a list of them, of a tensor's type."
  def like(x, tensor), do: Nx.tensor(x, type: tensor.type, backend: Nx.BinaryBackend)

  def cpu(tensor), do: Nx.backend_copy(tensor, Nx.BinaryBackend)

  @doc "The largest magnitude."
  def most(tensor), do: tensor |> cpu() |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()

  @doc "The largest difference."
  def apart(got, want), do: most(Nx.subtract(cpu(got), cpu(want)))
end
