defmodule Nx.Vulkan.PipelineNode do
  @moduledoc """
  Pipelines on a further node of the BEAM, which has the devices of this machine under other conditions.
  """

  alias Nx.Vulkan.Pipeline

  @rows 4

  @doc """
  The first two elements of each row that a pipeline gives whose stages are products by `size * size` parameters, one
  for each of the devices; or what it raises.

  Column `j` of the parameters of layer `n` has `2 * n / size` where `j` is odd, and 0 otherwise.
  """
  def products(size, devices) do
    # From the host, so that they are on the device of their stage alone.
    stages =
      for {device, number} <- Enum.with_index(devices, 1) do
        pair = <<0.0::float-32-native, 2 * number / size::float-32-native>>
        weights = pair |> :binary.copy(div(size * size, 2)) |> Nx.from_binary(:f32, backend: Nx.BinaryBackend)
        {&__MODULE__.product/2, Nx.reshape(weights, {size, size}), device}
      end

    pipeline = Pipeline.new(stages, micro_batches: 2)
    ones = Nx.broadcast(Nx.tensor(1.0, backend: Nx.BinaryBackend), {@rows, size})
    {:ok, pipeline |> Pipeline.run(ones) |> Nx.slice([0, 0], [@rows, 2]) |> Nx.to_list()}
  rescue
    error in Nx.Vulkan.Error -> {:error, error}
  end

  @doc false
  def product(weights, x), do: Nx.dot(x, weights)

  @doc "What `products/2` gives: the first layer has 2, each one after it as many times more as its number says."
  def expected(layers), do: List.duplicate([0.0, 2.0 * Enum.product(1..layers)], @rows)
end
