defmodule Nx.Vulkan.Conformance.EigenTest do
  use ExUnit.Case, async: true

  @moduletag :device

  alias Nx.Vulkan.VulkanoBackend

  setup_all do
    seed = String.to_integer(System.get_env("NX_VULKAN_TEST_SEED", "20261120"))
    IO.puts("NX_VULKAN_TEST_SEED=#{seed}")
    {:ok, seed: seed}
  end

  # The same numbers on both backends.
  defp random(shape, type, seed) do
    Nx.with_default_backend(Nx.BinaryBackend, fn ->
      {tensor, _key} = Nx.Random.normal(Nx.Random.key(seed), shape: shape, type: type)
      tensor
    end)
  end

  defp on_device(tensor), do: Nx.backend_copy(tensor, VulkanoBackend)

  defp host(tensor), do: Nx.backend_copy(tensor, Nx.BinaryBackend)

  # The largest difference, on the host and in its precision.
  defp distance(a, b) do
    Nx.with_default_backend(Nx.BinaryBackend, fn ->
      host(a) |> Nx.subtract(host(b)) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()
    end)
  end

  defp eps({_, size} = type), do: if((size == 64 and type != {:c, 64}) or size == 128, do: 1.0e-12, else: 1.0e-4)

  describe "qr" do
    test "is that of the default implementation", %{seed: seed} do
      for type <- [:f32, :f64, :c64, :c128],
          {shape, i} <- Enum.with_index([{3, 3}, {5, 3}, {3, 5}, {2, 4, 4}, {1, 1}]) do
        tensor = random(shape, type, seed + i)

        for mode <- [:reduced, :complete] do
          {q, r} = Nx.LinAlg.qr(tensor, mode: mode)
          {device_q, device_r} = Nx.LinAlg.qr(on_device(tensor), mode: mode)
          assert %VulkanoBackend{} = device_q.data
          assert device_q.shape == q.shape and device_q.type == q.type
          assert device_r.shape == r.shape and device_r.type == r.type
          assert distance(device_q, q) < eps(q.type)
          assert distance(device_r, r) < eps(r.type)
        end
      end
    end

    test "of vectorized tensors and of integers" do
      tensor =
        Nx.tensor([[[-3, 2, 1], [0, 1, 1], [0, 0, -1]], [[3, 2, 1], [4, 1, 1], [0, 0, 1]]], backend: VulkanoBackend)

      {q, r} = tensor |> Nx.vectorize(:x) |> Nx.LinAlg.qr()
      assert q.vectorized_axes == [x: 2]
      product = q |> Nx.dot(r) |> Nx.devectorize()
      assert distance(product, Nx.as_type(tensor, :f32)) < 1.0e-6
    end
  end
end
