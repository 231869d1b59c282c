defmodule Nx.Vulkan.Conformance.ErrorsTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance

  alias Nx.Vulkan.VulkanoBackend

  @moduletag :device

  defp complex, do: Nx.tensor([Complex.new(1, 1)])
  defp square, do: Nx.iota({2, 2})
  defp image, do: Nx.iota({1, 1, 4, 4}, type: :f32)

  # Calls that raise on every backend, most of them in Nx before it calls the backend.
  defp bad_calls do
    [
      shapes: [
        fn -> Nx.add(Nx.tensor([1, 2]), Nx.tensor([1, 2, 3])) end,
        fn -> Nx.select(Nx.tensor([1, 0]), Nx.tensor([1, 2, 3]), 0) end,
        fn -> Nx.dot(Nx.iota({2, 3}), Nx.iota({2, 3})) end,
        fn -> Nx.dot(Nx.iota({2, 3}), [0], [0], Nx.iota({3, 3}), [1], [0]) end,
        fn -> Nx.reshape(Nx.iota({6}), {4}) end,
        fn -> Nx.squeeze(square(), axes: [0]) end,
        fn -> Nx.broadcast(Nx.tensor([1, 2]), {3}) end,
        fn -> Nx.concatenate([square(), Nx.iota({3, 3})]) end,
        fn -> Nx.stack([square(), Nx.iota({3})]) end,
        fn -> Nx.pad(square(), 0, [{1, 1, 0}]) end,
        fn -> Nx.conv(image(), Nx.iota({1, 2, 2, 2})) end,
        fn -> Nx.conv(image(), Nx.iota({1, 1, 9, 9})) end,
        fn -> Nx.window_sum(image(), {1, 1, 5, 5}) end,
        fn -> Nx.window_max(image(), {2, 2}) end,
        fn -> Nx.put_slice(square(), [0, 0], Nx.iota({3, 3})) end,
        fn -> Nx.LinAlg.qr(Nx.iota({3})) end,
        fn -> Nx.LinAlg.cholesky(Nx.iota({2, 3})) end,
        fn -> Nx.LinAlg.lu(Nx.iota({2, 3})) end,
        fn -> Nx.LinAlg.eigh(Nx.iota({2, 3})) end,
        fn -> Nx.LinAlg.solve(square(), Nx.iota({3})) end,
        fn -> Nx.LinAlg.triangular_solve(square(), Nx.iota({3})) end,
        fn -> Nx.LinAlg.invert(Nx.iota({2, 3})) end,
        fn -> Nx.outer(1, 2) |> Nx.to_number() |> Nx.axis_size(0) end,
        fn -> Nx.from_binary(<<1, 2, 3>>, :s32) end,
        fn -> Nx.to_number(Nx.tensor([1, 2])) end,
        fn -> Nx.iota({0}) end,
        fn -> Nx.tensor([[1, 2], [3]]) end,
        fn -> Nx.split(Nx.iota({4}), 9) end
      ],
      types: [
        fn -> Nx.bitwise_and(Nx.tensor([1.0]), 1) end,
        fn -> Nx.bitwise_not(Nx.tensor([1.0])) end,
        fn -> Nx.left_shift(Nx.tensor([1.0]), 1) end,
        fn -> Nx.population_count(Nx.tensor([1.0])) end,
        fn -> Nx.count_leading_zeros(Nx.tensor([1.0])) end,
        fn -> Nx.quotient(Nx.tensor([1.0]), 1) end,
        fn -> Nx.less(complex(), 1) end,
        fn -> Nx.max(complex(), 1) end,
        fn -> Nx.remainder(complex(), 1) end,
        fn -> Nx.erf(complex()) end,
        fn -> Nx.floor(complex()) end,
        fn -> Nx.argmax(complex()) end,
        fn -> Nx.reduce_max(complex()) end,
        fn -> Nx.sort(complex()) end,
        fn -> Nx.clip(complex(), 0, 1) end,
        fn -> Nx.window_max(complex(), {1}) end,
        fn -> Nx.bitcast(Nx.tensor([1, 2]), :s8) end,
        fn -> Nx.bitcast(complex(), :f64) end,
        fn -> Nx.as_type(square(), :f31) end,
        fn -> Nx.tensor(1.0, type: :s32) end,
        fn -> Nx.take(Nx.iota({3}), Nx.tensor([1.0])) end,
        fn -> Nx.gather(Nx.iota({3}), Nx.tensor([[1.0]])) end,
        fn -> Nx.indexed_add(square(), Nx.tensor([[0.0, 1.0]]), Nx.tensor([1])) end,
        fn -> Nx.eye(2, type: {:s, 3}) end
      ],
      axes: [
        fn -> Nx.sum(square(), axes: [2]) end,
        fn -> Nx.sum(square(), axes: [:x]) end,
        fn -> Nx.sum(square(), axes: [0, 0]) end,
        fn -> Nx.argmax(square(), axis: 2) end,
        fn -> Nx.transpose(square(), axes: [0]) end,
        fn -> Nx.transpose(square(), axes: [0, 2]) end,
        fn -> Nx.reverse(square(), axes: [3]) end,
        fn -> Nx.concatenate([square(), square()], axis: 2) end,
        fn -> Nx.sort(square(), axis: 2) end,
        fn -> Nx.argsort(square(), axis: -3) end,
        fn -> Nx.iota({2}, axis: 1) end,
        fn -> Nx.cumulative_sum(square(), axis: 5) end,
        fn -> Nx.take(square(), Nx.tensor([0]), axis: 2) end,
        fn -> Nx.take_along_axis(square(), square(), axis: 2) end,
        fn -> Nx.gather(square(), Nx.tensor([[0]]), axes: [2]) end,
        fn -> Nx.gather(square(), Nx.tensor([[0, 0, 0]])) end,
        fn -> Nx.top_k(square(), k: 3) end,
        fn -> Nx.fft(square(), axis: 2) end,
        fn -> Nx.add(Nx.iota({2}, names: [:a]), Nx.iota({2}, names: [:b])) end,
        fn -> Nx.vectorize(square(), [:a, :b, :c]) end
      ],
      options: [
        fn -> Nx.sum(square(), axis: [0]) end,
        fn -> Nx.sort(square(), direction: :up) end,
        fn -> Nx.argmax(square(), tie_break: :middle) end,
        fn -> Nx.fft(Nx.iota({4}), length: -1) end,
        fn -> Nx.window_sum(image(), {1, 1, 2, 2}, strides: [0, 1, 1, 1]) end,
        fn -> Nx.conv(image(), Nx.iota({1, 1, 2, 2}), strides: [0, 1]) end,
        fn -> Nx.conv(image(), Nx.iota({1, 1, 2, 2}), feature_group_size: 2) end,
        fn -> Nx.LinAlg.qr(square(), mode: :full) end,
        fn -> Nx.eye({2, 2}, kind: :wide) end,
        fn -> Nx.slice(Nx.iota({5}), [0], [6]) end,
        fn -> Nx.slice(Nx.iota({5}), [0], [0]) end,
        fn -> Nx.slice(Nx.iota({5}), [0], [2], strides: [0]) end,
        fn -> Nx.slice(Nx.iota({5}), [0, 0], [1, 1]) end,
        fn -> Nx.slice(Nx.iota({5}), [Nx.tensor([1])], [1]) end,
        fn -> Nx.iota({5})[7] end,
        fn -> Nx.iota({5})[-6] end,
        fn -> Nx.iota({5})[4..9] end
      ],
      indices: [
        fn -> Nx.gather(square(), Nx.tensor([[3, 0]])) end,
        fn -> Nx.gather(square(), Nx.tensor([[0, 1], [0, -1]])) end,
        fn -> Nx.gather(Nx.iota({2, 3}), Nx.tensor([[0], [3]]), axes: [1]) end,
        fn -> Nx.gather(Nx.iota({2, 3}), Nx.tensor([[0], [200]], type: :u8), axes: [0]) end,
        fn -> Nx.gather(Nx.iota({5000}), Nx.new_axis(Nx.iota({5001}), -1)) end,
        fn -> Nx.gather(Nx.iota({70_000}), Nx.new_axis(Nx.subtract(Nx.iota({70_000}, type: :s64), 2), -1)) end,
        fn -> Nx.take(Nx.iota({3}), Nx.tensor([5])) end,
        fn -> Nx.take(Nx.iota({3}), Nx.tensor([-1])) end,
        fn -> Nx.take(Nx.iota({2, 3}), Nx.tensor([[0, 3]]), axis: 1) end,
        fn -> Nx.take_along_axis(Nx.iota({2, 3}), Nx.tensor([[0, 1, 7], [0, 0, 0]]), axis: 1) end,
        fn -> Nx.take_along_axis(Nx.iota({2, 3}), Nx.tensor([[0, 1, 0], [0, -1, 0]]), axis: 0) end,
        fn -> Nx.indexed_add(square(), Nx.tensor([[0, 2]]), Nx.tensor([1])) end,
        fn -> Nx.indexed_add(square(), Nx.tensor([[0], [2]]), Nx.tensor([[1, 1], [2, 2]]), axes: [0]) end,
        fn -> Nx.indexed_add(Nx.iota({2, 3}), Nx.tensor([[0], [3]]), Nx.tensor([[1, 1], [2, 2]]), axes: [1]) end,
        fn -> Nx.indexed_put(square(), Nx.tensor([[0, -1]]), Nx.tensor([1])) end,
        fn -> Nx.indexed_put(square(), Nx.tensor([[2 ** 63, 0]], type: :u64), Nx.tensor([1])) end
      ]
    ]
  end

  # Calls with starts out of bounds, which move back into them.
  defp clamped_calls do
    [
      fn -> Nx.slice(Nx.iota({5}), [4], [3]) end,
      fn -> Nx.slice(Nx.iota({5}), [-4], [3]) end,
      fn -> Nx.slice(Nx.iota({5}), [Nx.tensor(4)], [3]) end,
      fn -> Nx.slice(Nx.iota({5}), [Nx.tensor(-4, type: :s8)], [3]) end,
      fn -> Nx.slice(Nx.iota({5, 4}), [Nx.tensor(200, type: :u8), -1], [2, 3], strides: [1, 2]) end,
      fn -> Nx.slice_along_axis(Nx.iota({5, 4}), Nx.tensor(9), 2, axis: 1) end,
      fn -> Nx.put_slice(Nx.iota({5}), [4], Nx.tensor([9, 9, 9])) end,
      fn -> Nx.put_slice(Nx.iota({5}), [-1], Nx.tensor([9, 9, 9])) end,
      fn -> Nx.put_slice(Nx.iota({5}), [Nx.tensor(9)], Nx.tensor([9, 9, 9])) end,
      fn -> Nx.put_slice(Nx.iota({5}), [Nx.tensor(-9)], Nx.tensor([9, 9, 9])) end,
      fn -> Nx.gather(Nx.iota({5000}), Nx.new_axis(Nx.iota({5000}), -1)) end,
      fn -> Nx.iota({5})[Nx.tensor(7)] end
    ]
  end

  defp outcome(fun) do
    {:ok, fun.()}
  rescue
    error -> {error.__struct__, Exception.message(error)}
  end

  defp with_default(backend, fun) do
    previous = Nx.default_backend(backend)

    try do
      fun.()
    after
      Nx.default_backend(previous)
    end
  end

  for group <- [:shapes, :types, :axes, :options, :indices] do
    test "bad #{group} raise what they raise on Nx.BinaryBackend" do
      for {call, number} <- Enum.with_index(bad_calls()[unquote(group)]) do
        expected = with_default(Nx.BinaryBackend, fn -> outcome(call) end)
        actual = with_default(VulkanoBackend, fn -> outcome(call) end)
        assert {number, actual} == {number, expected}
        assert {number, elem(expected, 0)} != {number, :ok}
      end
    end
  end

  test "starts out of bounds move as on Nx.BinaryBackend" do
    for call <- clamped_calls(), do: assert_same([], call)
  end

  # Nx lets strides through that are negative or huge where there is one window along an axis.
  test "strides along axes of one window" do
    assert_same([random({1, 7, 6}, {:s, 32})], fn t ->
      opts = [strides: [-1, 1, 2 ** 70]]

      windows =
        for op <- [:window_sum, :window_product, :window_max, :window_min], do: apply(Nx, op, [t, {1, 2, 6}, opts])

      reduced = Nx.window_reduce(t, 1, {1, 2, 6}, opts, &Nx.subtract/2)
      scattered = Nx.window_scatter_min(t, Nx.iota({1, 6, 1}), 0, {1, 2, 6}, opts)
      List.to_tuple([reduced, scattered | windows])
    end)

    assert_same([random({3}, {:s, 32})], &Nx.window_sum(&1, {2}, strides: [-2]))
    assert_same([random({1, 1, 2, 4}, {:f, 32}, 1, 2)], &Nx.conv(&1, &1[[.., .., .., 0..1]], strides: [-1, 1]))
  end

  test "windows beyond an axis raise before the engine" do
    wide = [
      &Nx.window_sum(&1, {4}, strides: [2]),
      &Nx.window_max(&1, {5}, strides: [-2]),
      &Nx.window_min(&1, {2}, strides: [9], window_dilations: 3),
      &Nx.window_product(&1, {4}, strides: [9], padding: [{1, -1}]),
      &Nx.window_reduce(&1, 0, {4}, [strides: [2]], fn x, acc -> Nx.add(x, acc) end),
      &Nx.window_scatter_max(&1, Nx.iota({1}), 0, {4}, strides: [2]),
      &Nx.conv(Nx.reshape(&1, {1, 1, 3}), Nx.iota({1, 1, 4}), strides: [-2])
    ]

    for call <- wide, run <- [call, Nx.Defn.jit(call, compiler: Nx.Vulkan.Compiler)] do
      assert {ArgumentError, message} = with_default(VulkanoBackend, fn -> outcome(fn -> run.(Nx.iota({3})) end) end)
      assert message =~ "would result in empty tensor"
    end
  end

  test "a deallocated operand is said before a singular matrix" do
    with_default(VulkanoBackend, fn ->
      for a <- [Nx.eye(2), Nx.iota({2, 2}), Nx.tensor([[1, 1], [1, 1]])], solve <- [:solve, :triangular_solve] do
        b = Nx.tensor([1.0, 2.0])
        Nx.backend_deallocate(b)
        assert_raise Nx.Vulkan.Error, ~r/deallocated/, fn -> apply(Nx.LinAlg, solve, [a, b]) end
      end
    end)
  end

  test "recording leaves the check out of the program" do
    t = random({5}, {:f, 32})
    indices = Nx.tensor([[1], [0]], backend: Nx.BinaryBackend)
    file = Nx.Vulkan.Recorder.record("gather", [t, indices], fn [t, indices] -> Nx.gather(t, indices) end)
    assert [header | _] = file |> IO.iodata_to_binary() |> String.split("\n", parts: 2)
    assert %{"instructions" => [%{"op" => "gather"}]} = JSON.decode!(header)
  end

  test "a shape that is too large is the same error, eager and compiled" do
    for shape <- [{2 ** 40}, {2 ** 48}, {2 ** 50}, {2 ** 60}, {2 ** 32, 2 ** 32}, {2 ** 70}],
        {what, fun} <- [
          iota: fn -> Nx.iota(shape, type: :f64) end,
          sum: fn -> Nx.add(Nx.iota(shape, type: :f64), Nx.iota(shape, type: :u8)) end,
          broadcast: fn -> Nx.add(Nx.broadcast(Nx.iota({1}), shape), Nx.iota(shape)) end,
          eye: fn -> Nx.eye({elem(shape, 0), elem(shape, 0)}) end
        ] do
      eager = assert_raise Nx.Vulkan.Error, fn -> Nx.with_default_backend(VulkanoBackend, fun) end
      compiled = assert_raise Nx.Vulkan.Error, fn -> Nx.Defn.jit(fun, compiler: Nx.Vulkan).() end
      assert {what, shape, eager.kind, compiled.kind} == {what, shape, :too_large, :too_large}
      # What counts is no tensor of its own where a kernel adds to it.
      assert compiled.op in [eager.op, :fused], inspect({what, shape, compiled})
      assert %{size_bytes: size, limit_bytes: limit} = compiled.details
      assert size > limit and eager.details.limit_bytes == limit
    end
  end
end
