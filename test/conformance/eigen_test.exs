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

  describe "matrices of deficient rank" do
    @shapes [
      {1, 1},
      {1, 3},
      {2, 2},
      {3, 2},
      {2, 3},
      {4, 4},
      {4, 3},
      {5, 5},
      {40, 33},
      {33, 40},
      {3, 2, 2},
      {2, 3, 6, 4}
    ]
    @kinds [:zeros, :zero_rows, :zero_columns, :repeated_rows, :rank_one, :lost_rank]

    # A matrix of random numbers that lost some of its rank.
    defp deficient(shape, kind, type, seed) do
      {m, n} = {elem(shape, tuple_size(shape) - 2), elem(shape, tuple_size(shape) - 1)}
      tensor = random(shape, type, seed)

      kept = fn size ->
        for(i <- 0..(size - 1), do: if(rem(i + seed, 2) == 0, do: 0, else: 1)) |> Nx.tensor(type: type)
      end

      factor = fn rank ->
        left = Nx.slice_along_axis(tensor, 0, min(rank, n), axis: -1)
        multiply(left, Nx.slice_along_axis(random(shape, type, seed + 1), 0, min(rank, n), axis: -2))
      end

      case kind do
        :zeros -> Nx.multiply(tensor, 0)
        :zero_rows -> Nx.multiply(tensor, Nx.reshape(kept.(m), {m, 1}))
        :zero_columns -> Nx.multiply(tensor, kept.(n))
        :repeated_rows -> Nx.take(tensor, Nx.tensor(for(i <- 0..(m - 1), do: div(i, 2))), axis: -2)
        :rank_one -> factor.(1)
        :lost_rank -> factor.(max(min(m, n) - 1, 1))
      end
      |> Nx.as_type(type)
    end

    defp each_deficient(types, shapes \\ @shapes, seed, fun) do
      for type <- types, {shape, i} <- Enum.with_index(shapes), {kind, j} <- Enum.with_index(@kinds) do
        tensor = Nx.with_default_backend(Nx.BinaryBackend, fn -> deficient(shape, kind, type, seed + 7 * i + j) end)

        largest =
          Nx.with_default_backend(Nx.BinaryBackend, fn ->
            tensor |> Nx.flatten() |> Nx.LinAlg.norm() |> Nx.to_number()
          end)

        n = max(elem(shape, tuple_size(shape) - 2), elem(shape, tuple_size(shape) - 1))
        # What guides/numerics.md promises, times the norm of all elements.
        bound = (n + 32) * if(type == :f64, do: 2.0 ** -53, else: 2.0 ** -24)
        fun.(tensor, bound, bound * largest, {type, shape, kind})
      end
    end

    defp exact(tensor), do: Nx.as_type(host(tensor), if(Nx.Type.complex?(tensor.type), do: :c128, else: :f64))

    defp own_steps?(%{type: type, shape: shape}, s) do
      type == {:f, 32} and tuple_size(shape) == 2 and Enum.max(Tuple.to_list(shape)) <= 4 and
        Enum.max(Nx.to_flat_list(s)) < 32 * Enum.min(Nx.to_flat_list(s))
    end

    defp orthonormal_error(q), do: q |> exact() |> identity_error()

    test "have orthonormal factors", %{seed: seed} do
      each_deficient([:f32, :f64], seed, fn tensor, bound, absolute, what ->
        for full <- [false, true] do
          {u, s, vt} = Nx.LinAlg.svd(on_device(tensor), full_matrices?: full)
          # What kept its rank may go Nx's own steps, see guides/numerics.md.
          {bound, absolute} = if own_steps?(tensor, s), do: {1.2e-4, 1.2e-4 * absolute / bound}, else: {bound, absolute}
          assert orthonormal_error(u) <= bound, inspect({what, full, :u, orthonormal_error(u)})
          v = Nx.LinAlg.adjoint(exact(vt))
          assert orthonormal_error(v) <= bound, inspect({what, full, :v, orthonormal_error(v)})
          k = Nx.axis_size(s, -1)
          scaled = Nx.multiply(Nx.slice_along_axis(exact(u), 0, k, axis: -1), Nx.new_axis(exact(s), -2))
          residual = distance(multiply(scaled, Nx.slice_along_axis(exact(vt), 0, k, axis: -2)), exact(tensor))
          assert residual <= absolute, inspect({what, full, residual, absolute})
        end
      end)

      each_deficient([:f32, :f64, :c64], seed, fn tensor, bound, absolute, what ->
        for mode <- [:reduced, :complete] do
          {q, r} = Nx.LinAlg.qr(on_device(tensor), mode: mode)
          assert orthonormal_error(q) <= bound, inspect({what, mode, orthonormal_error(q)})
          assert distance(multiply(exact(q), exact(r)), exact(tensor)) <= absolute, inspect({what, mode})
        end

        square = Nx.with_default_backend(Nx.BinaryBackend, fn -> multiply(tensor, Nx.LinAlg.adjoint(tensor)) end)
        {values, vectors} = Nx.LinAlg.eigh(on_device(square))
        assert orthonormal_error(vectors) <= bound, inspect({what, orthonormal_error(vectors)})
        scaled = Nx.multiply(exact(vectors), Nx.new_axis(exact(values), -2))

        size =
          Nx.with_default_backend(Nx.BinaryBackend, fn ->
            square |> Nx.flatten() |> Nx.LinAlg.norm() |> Nx.to_number()
          end)

        assert distance(multiply(exact(square), exact(vectors)), scaled) <= bound * size, inspect(what)
      end)
    end

    test "have orthonormal factors in compiled functions" do
      for rows <- [[[1.0, 0.0], [0.0, 0.0]], [[0.0, 2.0]], [[1.0, 2.0], [2.0, 4.0], [0.0, 0.0]], [[0.0]]],
          full <- [false, true] do
        tensor = Nx.tensor(rows, type: :f32, backend: VulkanoBackend)
        svd = &Nx.LinAlg.svd(&1, full_matrices?: full)
        compiled = Nx.Defn.jit(svd, compiler: Nx.Vulkan.Compiler).(tensor)
        {u, _s, vt} = svd.(tensor)
        assert orthonormal_error(u) < 1.0e-6 and orthonormal_error(Nx.LinAlg.adjoint(exact(vt))) < 1.0e-6
        for {a, b} <- Enum.zip(Tuple.to_list(compiled), [u, elem(svd.(tensor), 1), vt]), do: assert(distance(a, b) == 0)
      end
    end

    test "have pseudo-inverses", %{seed: seed} do
      # Nx expects another shape of batches along more than one axis.
      shapes = Enum.filter(@shapes, &(tuple_size(&1) <= 3))

      each_deficient([:f32, :f64], shapes, seed, fn tensor, _bound, _absolute, {type, _, kind} = what ->
        # Singular values that are not zero are at least sqrt(epsilon) of the largest one, which takes half of the
        # digits.
        bound = if type == :f64, do: 2.0 ** -24, else: 2.0 ** -9
        inverse = exact(Nx.LinAlg.pinv(on_device(tensor)))
        a = exact(tensor)
        size = if kind == :zeros, do: 0.0, else: a |> Nx.flatten() |> Nx.LinAlg.norm() |> Nx.to_number()
        assert distance(a |> multiply(inverse) |> multiply(a), a) <= bound * size, inspect(what)
      end)
    end
  end
end
