defmodule Nx.Vulkan.Conformance.BlockTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance

  @moduletag :device
  @moduletag timeout: 600_000

  test "take" do
    for type <- types(), axis <- 0..2, index <- [:s32, :u8, :s64] do
      indices = random({2, 3}, Nx.Type.normalize!(index), 0, 2)
      assert_same([random({3, 4, 5}, type), indices], &{Nx.take(&1, &2, axis: axis), Nx.take(&1, 1, axis: axis)})
    end

    assert_same([random({50, 8}, {:f, 32}), random({400}, {:s, 64}, 0, 49)], &Nx.take/2)
  end

  test "take_along_axis" do
    for type <- types(), axis <- 0..2 do
      indices = random(put_elem({3, 4, 5}, axis, 7), {:s, 32}, 0, 2)
      assert_same([random({3, 4, 5}, type), indices], &Nx.take_along_axis(&1, &2, axis: axis))
    end
  end

  test "take of views, with names and vectorized axes" do
    assert_same([random({4, 5, 6}, {:s, 32}), random({3, 2}, {:s, 32}, 0, 3)], fn t, i ->
      {
        Nx.take(Nx.transpose(t), i, axis: 1),
        Nx.take(Nx.reverse(t), Nx.transpose(i), axis: 0),
        Nx.take(Nx.broadcast(t[0], {4, 5, 6}), Nx.reverse(i), axis: 2),
        Nx.take(Nx.rename(t, [:x, :y, :z]), Nx.rename(i, [:a, :b]), axis: :y),
        t |> Nx.vectorize(:x) |> Nx.take(i) |> Nx.devectorize(),
        Nx.take_along_axis(Nx.reverse(t), Nx.argsort(t, axis: 1, stable: true), axis: 1),
        t |> Nx.vectorize(:x) |> Nx.take_along_axis(Nx.broadcast(2, {1, 6})) |> Nx.devectorize()
      }
    end)
  end

  test "indices out of bounds raise what they raise on Nx.BinaryBackend" do
    tensor = random({3, 4, 5}, {:f, 32})

    for index <- [-1, 4, 5, 100], size <- [6, 6000] do
      places = Nx.tensor([0, index] ++ List.duplicate(1, size))
      along = places |> Nx.reshape({1, :auto, 1}) |> Nx.broadcast({3, size + 2, 5})

      for fun <- [&Nx.take(&1, &2, axis: 1), fn t, _ -> Nx.take_along_axis(t, along, axis: 1) end] do
        message = fn backend ->
          assert_raise(ArgumentError, fn -> on(backend, [tensor, places], fun) end).message
        end

        assert message.(Nx.Vulkan.VulkanoBackend) == message.(Nx.BinaryBackend)
      end
    end
  end

  test "logical_not and phase" do
    for type <- types() do
      tensor = random({3, 20}, type, -2, 2)
      zeros = Nx.multiply(tensor, Nx.less(random({3, 20}, {:f, 32}), 0)) |> Nx.as_type(type)
      assert_same([zeros], &{Nx.logical_not(&1), Nx.logical_not(Nx.transpose(&1))})
      assert_same([tensor], &Nx.phase/1)
    end
  end

  test "phase has the bits of the angle of its parts" do
    for type <- types() do
      both = &{Nx.phase(&1), Nx.atan2(Nx.imag(&1), Nx.real(&1))}
      [phase, angle] = on(Nx.Vulkan.VulkanoBackend, [random_bits({200}, type)], both)
      assert {type, Nx.to_binary(phase)} == {type, Nx.to_binary(angle)}
    end
  end

  test "all_close" do
    for type <- types(), other <- [type, {:f, 32}] do
      tensor = random({3, 20}, type, -2, 2)
      assert_same([tensor, Nx.as_type(tensor, other)], &Nx.all_close/2)
      assert_same([tensor, random({3, 20}, other, -2, 2)], &{Nx.all_close(&1, &2), Nx.all_close(&1, &2, atol: 100.0)})
    end

    for values <- [[1, :nan], [1, :infinity], [1, :neg_infinity], [1, 2]], others <- [[1, :nan], [1, :infinity]] do
      assert_same([Nx.tensor(values), Nx.tensor(others)], fn a, b ->
        {Nx.all_close(a, b), Nx.all_close(a, b, equal_nan: true), Nx.all_close(Nx.tensor(1), a)}
      end)
    end
  end
end
