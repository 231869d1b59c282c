defmodule Nx.Vulkan.Conformance.FftTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance

  alias Nx.Vulkan.VulkanoBackend

  @moduletag :device

  # What rows of `length` random numbers below 100 may be off by. The angles of Nx.BinaryBackend's roots grow with the
  # length, and their errors show in 64 bits.
  defp slack(tensor, length) do
    unit = if tensor.type in [f: 64, c: 128], do: length * 2.0 ** -53, else: 2.0 ** -24
    [absolute: 8 * unit * (:math.log2(length) + 1) * :math.sqrt(length) * 140]
  end

  defp check(tensor, length, fun), do: assert_same([tensor], fun, slack(tensor, length))

  # Nx.BinaryBackend confuses the axes of results where the axis is not one of the last two.
  defp check_axis(tensor, axis, length, op, opts) do
    last = Nx.rank(tensor) - 1
    others = Enum.to_list(0..last) -- [axis]
    there = others ++ [axis]
    back = for a <- 0..last, do: Enum.find_index(there, &(&1 == a))

    expected =
      on(Nx.BinaryBackend, [tensor], fn t ->
        t |> Nx.transpose(axes: there) |> op.([axis: -1] ++ opts) |> Nx.transpose(axes: back)
      end)

    actual = on(VulkanoBackend, [tensor], &op.(&1, [axis: axis] ++ opts))
    [actual, expected] = [hd(actual), hd(expected)]
    assert_close(Nx.backend_copy(actual, Nx.BinaryBackend), expected, slack(tensor, length), [tensor])
  end

  test "fft and ifft of all types along every axis" do
    for type <- types(), axis <- 0..2, op <- [&Nx.fft/2, &Nx.ifft/2] do
      check_axis(random({3, 4, 5}, type), axis, 5, op, [])
    end
  end

  test "fft cuts and pads" do
    for type <- [f: 32, c: 128], length <- [2, 3, 7, 16, 31, :power_of_two], axis <- [0, 1] do
      tensor = random({6, 5}, type)
      check_axis(tensor, axis, 31, &Nx.fft/2, length: length)
      check_axis(tensor, axis, 31, &Nx.ifft/2, length: length)
    end
  end

  test "fft of one element is the element" do
    tensor = Nx.tensor([[1, 2], [3, 4]], backend: VulkanoBackend)
    assert Nx.to_flat_list(Nx.fft(tensor, length: 1)) == [Complex.new(1.0, 0.0), Complex.new(3.0, 0.0)]
    assert Nx.to_flat_list(Nx.ifft(tensor, length: 1, axis: 0)) == [Complex.new(1.0, 0.0), Complex.new(2.0, 0.0)]
  end

  test "fft of random lengths, views and batches" do
    for _ <- 1..25 do
      # Nx.BinaryBackend gives no elements for transforms of one.
      length = 1 + :rand.uniform(149)
      type = Enum.random(f: 32, f: 64, c: 64, c: 128)
      tensor = random({2, length, 3}, type)

      view =
        Enum.random([
          & &1,
          &Nx.reverse(&1, axes: [1]),
          &Nx.transpose(&1, axes: [2, 1, 0]),
          &Nx.broadcast(&1[[0..0, .., ..]], {4, length, 3}),
          & &1[[.., .., 1..2]]
        ])

      check(tensor, length, &Nx.fft(view.(&1), axis: 1))
      check(tensor, length, &Nx.ifft(view.(&1), axis: 1, eps: 0.5))
    end
  end

  test "fft2 and ifft2" do
    for type <- [s: 32, f: 32, f: 64, c: 64], op <- [&Nx.fft2/2, &Nx.ifft2/2] do
      tensor = random({3, 6, 7}, type)
      check(tensor, 42, &op.(&1, []))
      check(tensor, 42, &op.(&1, axes: [2, 1], lengths: [5, 4], eps: 1.0e-3))
      check(tensor, 42, &op.(&1, lengths: [:power_of_two, 17]))
      matrix = random({6, 7}, type)
      check(matrix, 42, &op.(&1, axes: [1, 0], lengths: [3, 9]))
    end
  end

  test "rfft and irfft" do
    for type <- [u: 8, bf: 16, f: 16, f: 32, f: 64], axis <- 0..1, length <- [4, 5, 9, 100] do
      tensor = random({5, 6}, type)
      check(tensor, 100, &Nx.rfft(&1, axis: axis, length: length))
      check(tensor, 100, &Nx.irfft(&1, axis: axis, length: length))
    end

    for type <- complexes(), length <- [nil, 3, 8, 33] do
      tensor = random({2, 6}, type)
      opts = if length, do: [length: length], else: []
      check(tensor, 33, &Nx.irfft(&1, opts))
    end
  end

  test "irfft of fewer than three samples raises as Nx.BinaryBackend does" do
    for length <- [1, 2] do
      tensor = Nx.tensor([1.0, 2.0], backend: VulkanoBackend)
      assert_raise ArgumentError, ~r/length at axis 0/, fn -> Nx.irfft(tensor, length: length) end
    end
  end

  test "vectorized and named tensors" do
    tensor = random({3, 8}, {:f, 32})
    check(tensor, 8, &(&1 |> Nx.vectorize(:rows) |> Nx.fft() |> Nx.devectorize()))
    check(tensor, 8, &Nx.fft(Nx.rename(&1, [:x, :y]), axis: :x))
  end

  test "gradients" do
    power = fn tensor -> tensor |> Nx.fft() |> Nx.abs() |> Nx.pow(2) |> Nx.sum() end
    back = fn tensor -> tensor |> Nx.fft(length: 6) |> Nx.ifft() |> Nx.real() |> Nx.pow(3) |> Nx.sum() end

    for fun <- [power, back] do
      assert_same([random({8}, {:f, 32}, -2, 2)], &Nx.Defn.grad(&1, fun), absolute: 1.0e-3)
    end
  end

  test "long transforms invert each other" do
    for length <- [4096, 10_007, 65_536], type <- [c: 64, c: 128] do
      tensor = random({length}, type)
      [result] = on(VulkanoBackend, [tensor], &Nx.ifft(Nx.fft(&1)))
      assert_close(Nx.backend_copy(result, Nx.BinaryBackend), tensor, slack(tensor, length))
    end
  end
end
