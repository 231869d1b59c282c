defmodule Nx.Vulkan.Conformance.SolveTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance

  @moduletag :device

  @types [f: 32, f: 64, c: 64, c: 128]

  # A strong diagonal keeps what is computed well-conditioned.
  defp regular(shape, type) do
    n = elem(shape, tuple_size(shape) - 1)
    noise = random(shape, type, -1, 1)
    Nx.add(noise, Nx.multiply(Nx.eye(n, backend: Nx.BinaryBackend), n))
  end

  defp definite(shape, type) do
    a = regular(shape, type)
    lead = Enum.to_list(0..(tuple_size(shape) - 3)//1)
    rank = tuple_size(shape)
    Nx.dot(a, [rank - 1], lead, Nx.LinAlg.adjoint(a), [rank - 2], lead)
  end

  for type <- @types do
    describe "#{Nx.Type.to_string(type)}" do
      @type_ type
      @slack if(elem(type, 1) == 32 or type == {:c, 64}, do: 1.0e-5, else: 1.0e-9)

      test "LU" do
        for shape <- [{1, 1}, {4, 4}, {2, 3, 6, 6}] do
          # Real numbers take the same steps as the default implementation.
          slack = if match?({:f, _}, @type_), do: 0.0, else: @slack
          assert_same([random(shape, @type_, -10, 10)], &Nx.LinAlg.lu/1, ulp: 0, absolute: slack)
        end
      end

      test "Cholesky" do
        for shape <- [{1, 1}, {4, 4}, {2, 2, 5, 5}] do
          # The default implementation adds 1.0e-10 to what it divides by.
          assert_same([definite(shape, @type_)], &Nx.LinAlg.cholesky/1, absolute: @slack * 10)
        end
      end

      test "triangular systems" do
        for {a, b, left_side} <- [
              {{4, 4}, {4}, true},
              {{4, 4}, {4}, false},
              {{5, 5}, {5, 3}, true},
              {{5, 5}, {3, 5}, false},
              {{2, 3, 3}, {2, 3}, true},
              {{2, 2, 3, 3}, {2, 2, 3, 4}, true},
              {{2, 2, 3, 3}, {2, 2, 4, 3}, false}
            ],
            lower <- [true, false],
            transform_a <- [:none, :transpose, :conjugate] do
          opts = [lower: lower, left_side: left_side, transform_a: transform_a]
          tensors = [regular(a, @type_), random(b, @type_, -10, 10)]
          assert_same(tensors, &Nx.LinAlg.triangular_solve(&1, &2, opts), absolute: @slack)
        end
      end

      test "solutions, inverses, powers and determinants" do
        a = regular({2, 4, 4}, @type_)
        assert_same([a, random({2, 4, 3}, @type_)], &Nx.LinAlg.solve/2, absolute: @slack * 100)
        assert_same([a, random({2, 4}, @type_)], &Nx.LinAlg.solve/2, absolute: @slack * 100)
        assert_same([a], &Nx.LinAlg.invert/1, absolute: @slack)
        assert_same([regular({3, 3}, @type_)], &Nx.LinAlg.matrix_power(&1, -3), absolute: @slack)

        for n <- 1..6 do
          assert_same([random({3, n, n}, @type_, -2, 2)], &Nx.LinAlg.determinant/1, absolute: @slack * 100)
        end
      end
    end
  end

  test "other types" do
    for type <- [s: 8, u: 16, s: 64, f: 16] do
      a = Nx.as_type(Nx.tensor([[5, 1, 2], [1, 6, 0], [2, 0, 7]], backend: Nx.BinaryBackend), type)
      b = Nx.as_type(Nx.tensor([[1, 2], [3, 4], [5, 6]], backend: Nx.BinaryBackend), type)
      assert_same([a], &Nx.LinAlg.lu/1, ulp: 1)
      assert_same([a], &Nx.LinAlg.cholesky/1, ulp: 1)
      assert_same([a], &Nx.LinAlg.determinant/1, ulp: 1)
      assert_same([a, b], &Nx.LinAlg.triangular_solve/2, ulp: 1)
      assert_same([a, b], &Nx.LinAlg.solve/2, ulp: 8)
    end

    # Integers wrap in the closed formulas, as they do in Nx.
    assert_same([Nx.tensor([[100, 3], [3, 100]], type: :s8, backend: Nx.BinaryBackend)], &Nx.LinAlg.determinant/1)
  end

  test "views and vectorized tensors" do
    a = regular({2, 5, 5}, {:f, 32})
    b = random({5, 2}, {:f, 32})
    slack = [absolute: 1.0e-5]
    assert_same([a], &(&1 |> Nx.transpose(axes: [0, 2, 1]) |> Nx.LinAlg.lu()), slack)
    assert_same([a], &(&1 |> Nx.reverse(axes: [1]) |> Nx.LinAlg.determinant()), absolute: 1.0e-2)
    assert_same([a, b], fn a, b -> Nx.LinAlg.solve(a[1], b[[.., 0]]) end, slack)
    assert_same([a, b], fn a, b -> Nx.LinAlg.solve(Nx.vectorize(a, :x), Nx.transpose(b)[0]) end, slack)
    assert_same([a], &(&1 |> Nx.vectorize(:x) |> Nx.LinAlg.lu()), slack)
  end

  test "singular systems raise" do
    Nx.default_backend(Nx.Vulkan.VulkanoBackend)
    singular = Nx.tensor([[1.0, 2.0], [2.0, 4.0]])
    message = "can't solve for singular matrix"
    assert_raise ArgumentError, message, fn -> Nx.LinAlg.solve(singular, Nx.tensor([1.0, 2.0])) end

    assert_raise ArgumentError, message, fn ->
      Nx.LinAlg.triangular_solve(Nx.tensor([[1.0, 0.0], [2.0, 0.0]]), Nx.tensor([1.0, 2.0]))
    end

    # Only the diagonal counts.
    assert Nx.to_flat_list(Nx.LinAlg.triangular_solve(Nx.tensor([[2.0, 0.0], [0.0, 4.0]]), Nx.tensor([1.0, 2.0]))) == [
             0.5,
             0.5
           ]

    assert Nx.to_flat_list(Nx.LinAlg.invert(singular)) == List.duplicate(:nan, 4)
    assert Nx.to_number(Nx.LinAlg.determinant(singular)) == 0.0
  end

  test "matrices that are not positive definite give NaN" do
    Nx.default_backend(Nx.Vulkan.VulkanoBackend)
    factor = Nx.LinAlg.cholesky(Nx.tensor([[1.0, 2.0], [2.0, 1.0]]))
    assert Nx.to_flat_list(factor) == [1.0, 0.0, 2.0, :nan]
  end

  test "factors of larger matrices give the matrix again" do
    Nx.default_backend(Nx.Vulkan.VulkanoBackend)
    n = 150
    a = Nx.backend_copy(random({n, n}, {:f, 32}, -1, 1), Nx.Vulkan.VulkanoBackend)
    limit = fn a, b -> Nx.to_number(Nx.reduce_max(Nx.abs(Nx.subtract(a, b)))) end

    {p, l, u} = Nx.LinAlg.lu(a)
    assert limit.(p |> Nx.dot(l) |> Nx.dot(u), a) < 1.0e-4

    x = Nx.iota({n, 2}, type: :f32) |> Nx.divide(n)
    assert limit.(Nx.dot(a, Nx.LinAlg.solve(a, Nx.dot(a, x))), Nx.dot(a, x)) < 1.0e-3

    definite = Nx.add(Nx.dot(a, Nx.transpose(a)), Nx.eye(n))
    l = Nx.LinAlg.cholesky(definite)
    assert limit.(Nx.dot(l, Nx.transpose(l)), definite) < 1.0e-3
  end
end
