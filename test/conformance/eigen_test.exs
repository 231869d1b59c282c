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

  # Residuals and orthogonality, on the host and in its precision.
  defp multiply(a, b), do: Nx.dot(a, [-1], batch(a), b, [-2], batch(b))
  defp batch(a), do: Enum.to_list(0..(Nx.rank(a) - 3)//1)
  defp identity_error(q), do: distance(multiply(Nx.LinAlg.adjoint(q), q), Nx.eye(Nx.shape(q) |> square(), type: q.type))
  defp square(shape), do: put_elem(shape, tuple_size(shape) - 2, elem(shape, tuple_size(shape) - 1))

  describe "eigh" do
    test "is that of the default implementation", %{seed: seed} do
      for type <- [:f32, :f64, :c64, :c128], {shape, i} <- Enum.with_index([{2, 2}, {5, 5}, {3, 6, 6}]) do
        tensor = random(shape, type, seed + i)
        tensor = Nx.add(tensor, Nx.LinAlg.adjoint(tensor))
        {values, vectors} = Nx.LinAlg.eigh(tensor)
        {device_values, device_vectors} = Nx.LinAlg.eigh(on_device(tensor))
        assert %VulkanoBackend{} = device_values.data
        assert device_values.type == values.type and device_values.shape == values.shape
        assert device_vectors.type == vectors.type and device_vectors.shape == vectors.shape
        assert distance(device_values, values) < 1.0e-3
        found = host(device_vectors)
        assert identity_error(found) < eps(found.type)
        scaled = Nx.multiply(found, Nx.new_axis(host(device_values), -2))
        assert distance(multiply(tensor, found), scaled) < 10 * eps(found.type)
      end
    end

    test "has the digits and the signs of the default implementation for small matrices of f32" do
      for rows <- [
            [[0, 1, 2], [1, 0, 2], [2, 2, 3]],
            [[2, 5], [5, 6]],
            [[1, 0], [0, 1]],
            [[4, 1, 0], [1, 3, 1], [0, 1, 2]]
          ] do
        {values, vectors} = Nx.LinAlg.eigh(Nx.tensor(rows, backend: Nx.BinaryBackend))
        {device_values, device_vectors} = Nx.LinAlg.eigh(Nx.tensor(rows, backend: VulkanoBackend))
        assert distance(device_values, values) < 1.0e-5
        assert distance(device_vectors, vectors) < 2.0e-4
      end
    end
  end

  describe "svd" do
    test "of any shape", %{seed: seed} do
      for type <- [:f32, :f64],
          {shape, i} <- Enum.with_index([{1, 1}, {4, 4}, {5, 3}, {3, 5}, {2, 3, 4, 6}]),
          full <- [true, false] do
        tensor = random(shape, type, seed + i)
        {u, s, vt} = Nx.LinAlg.svd(tensor, full_matrices?: full)
        {device_u, device_s, device_vt} = Nx.LinAlg.svd(on_device(tensor), full_matrices?: full)
        assert %VulkanoBackend{} = device_u.data

        for {device, expected} <- [{device_u, u}, {device_s, s}, {device_vt, vt}] do
          assert device.shape == expected.shape and device.type == expected.type
        end

        [found_u, found_s, found_vt] = Enum.map([device_u, device_s, device_vt], &host/1)
        # Small matrices of f32 go Nx's own way, which leaves U less orthogonal.
        assert identity_error(found_u) < 100 * eps(found_u.type)
        assert identity_error(Nx.LinAlg.adjoint(found_vt)) < eps(found_u.type)
        k = Nx.axis_size(found_s, -1)
        scaled = Nx.multiply(Nx.slice_along_axis(found_u, 0, k, axis: -1), Nx.new_axis(found_s, -2))
        assert distance(multiply(scaled, Nx.slice_along_axis(found_vt, 0, k, axis: -2)), tensor) < eps(found_u.type)
        assert distance(device_s, s) < 1.0e-3
      end
    end

    test "of deficient rank has orthonormal vectors" do
      tensor = Nx.tensor([[1, 2, 3], [2, 4, 6], [0, 0, 0], [3, 6, 9], [0, 0, 0]], type: :f32, backend: VulkanoBackend)
      {u, s, vt} = Nx.LinAlg.svd(tensor, full_matrices?: false)
      assert identity_error(host(u)) < 1.0e-5
      assert identity_error(Nx.LinAlg.adjoint(host(vt))) < 1.0e-5
      assert [first, second, third] = Nx.to_flat_list(s)
      assert_in_delta first, 14.0, 1.0e-5
      assert second < 1.0e-5 and third < 1.0e-5
    end

    test "of deficient rank has a pseudo-inverse", %{seed: seed} do
      for {m, n} <- [{3, 4}, {4, 3}, {3, 3}, {7, 5}, {20, 30}], type <- [:f32, :f64] do
        rank = min(m, n) - 1

        tensor =
          Nx.with_default_backend(Nx.BinaryBackend, fn ->
            Nx.dot(random({m, rank}, type, seed), random({rank, n}, type, seed + 1))
          end)

        inverse = host(Nx.LinAlg.pinv(on_device(tensor)))
        product = tensor |> Nx.dot(inverse) |> Nx.dot(tensor)
        assert distance(product, tensor) < 100 * eps({:f, if(type == :f64, do: 64, else: 32)})
      end
    end

    test "of NaN is NaN" do
      tensor = Nx.tensor([[1.0, :nan], [2.0, 3.0]], type: :f64, backend: VulkanoBackend)
      for result <- Tuple.to_list(Nx.LinAlg.svd(tensor)), do: assert(Nx.to_number(Nx.all(Nx.is_nan(result))) == 1)
      {values, _vectors} = Nx.LinAlg.eigh(tensor)
      assert Nx.to_number(Nx.all(Nx.is_nan(values))) == 1
    end
  end
end
