defmodule Nx.Vulkan.Conformance.MovementTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance

  @moduletag :device
  @moduletag timeout: 600_000

  # One type of each width in memory, and the packed ones.
  @widths [u: 8, bf: 16, s: 32, f: 64, c: 128]

  test "reshape, squeeze, transpose, reverse, broadcast" do
    for type <- @widths do
      assert_same([random_bits({2, 3, 4}, type)], fn t ->
        {
          Nx.reshape(t, {4, 6}),
          Nx.reshape(Nx.transpose(t), {24}),
          Nx.transpose(t, axes: [1, 2, 0]),
          Nx.transpose(Nx.transpose(t, axes: [2, 0, 1]), axes: [1, 0, 2]),
          Nx.reverse(t),
          Nx.reverse(t, axes: [1]),
          Nx.squeeze(Nx.reshape(t, {1, 24, 1})),
          Nx.broadcast(t, {2, 2, 3, 4}),
          Nx.broadcast(Nx.reshape(t, {24}), {24, 2}, axes: [0]),
          Nx.broadcast(Nx.reshape(t, {1, 24}), {3, 24}),
          Nx.new_axis(t, 1)
        }
      end)
    end
  end

  test "slice, with starts that are numbers and tensors" do
    for type <- @widths do
      assert_same([random_bits({4, 5, 6}, type), Nx.tensor(1), Nx.tensor(9, type: :u8)], fn t, one, nine ->
        {
          Nx.slice(t, [0, 1, 2], [4, 3, 2]),
          Nx.slice(t, [1, 0, 0], [3, 5, 6], strides: [2, 1, 3]),
          Nx.slice(t, [one, 0, 1], [2, 2, 2]),
          Nx.slice(t, [0, nine, one], [2, 2, 2]),
          Nx.slice(t, [9, 9, 9], [2, 2, 2]),
          Nx.slice(Nx.transpose(t), [one, 1, 1], [2, 2, 2]),
          t[[0..2, -1, 1..4//2]]
        }
      end)
    end
  end

  test "put_slice" do
    for type <- @widths do
      tensors = [random_bits({4, 5}, type), random_bits({2, 3}, type), Nx.tensor(1), Nx.tensor(-3)]

      assert_same(tensors, fn t, slice, one, negative ->
        {
          Nx.put_slice(t, [1, 2], slice),
          Nx.put_slice(t, [one, negative], slice),
          Nx.put_slice(t, [9, 9], slice),
          Nx.put_slice(Nx.transpose(t), [one, 0], Nx.transpose(slice)),
          Nx.put_slice(t, [0, 0], Nx.broadcast(Nx.slice(slice, [0, 0], [1, 1]), {4, 5}))
        }
      end)
    end

    assert_same([random({4}, {:s, 32}), random({2}, {:f, 32})], &Nx.put_slice(&1, [1], &2))
  end

  test "pad" do
    for type <- @widths do
      assert_same([random_bits({3, 4}, type), random_bits({}, type)], fn t, value ->
        {
          Nx.pad(t, value, [{1, 2, 0}, {0, 3, 0}]),
          Nx.pad(t, value, [{0, 0, 2}, {1, 0, 1}]),
          Nx.pad(t, value, [{-1, 0, 0}, {0, -2, 0}]),
          Nx.pad(t, value, [{-1, 2, 1}, {2, -1, 2}]),
          Nx.pad(t, value, [{-1, -1, 3}, {-2, -2, 1}])
        }
      end)
    end

    assert_same([random({3}, {:f, 32})], &Nx.pad(&1, 0, [{1, 1, 1}]))
  end

  test "concatenate and stack" do
    for type <- @widths do
      assert_same([random_bits({2, 3}, type), random_bits({4, 3}, type), random_bits({2, 3}, type)], fn a, b, c ->
        {
          Nx.concatenate([a, b, c]),
          Nx.concatenate([Nx.transpose(a), Nx.transpose(b)], axis: 1),
          Nx.concatenate([a, Nx.reverse(c)], axis: -1),
          Nx.stack([a, c]),
          Nx.stack([a, c, a], axis: 1),
          Nx.stack([a, c], axis: -1)
        }
      end)
    end

    assert_same([random({2}, {:s, 32}), random({3}, {:f, 32})], &Nx.concatenate([&1, &2]))
    assert_same([random({2}, {:u, 8}), random({2}, {:f, 64})], &Nx.stack([&1, &2]))
  end

  test "sub-byte types move" do
    for type <- sub_byte() do
      tensor = random_bits({4, 5}, type)
      wide = Nx.as_type(tensor, if(elem(type, 0) == :s, do: :s8, else: :u8))

      moves = [
        &Nx.transpose/1,
        &Nx.reverse/1,
        &Nx.slice(&1, [1, 1], [2, 3]),
        &Nx.reshape(&1, {10, 2}),
        &Nx.pad(&1, 1, [{1, 0, 0}, {0, 2, 0}]),
        &Nx.concatenate([&1, &1])
      ]

      for move <- moves do
        [actual] = on(Nx.Vulkan.VulkanoBackend, [tensor], move)
        [expected] = on(Nx.BinaryBackend, [wide], move)
        assert actual.type == type
        assert Nx.to_flat_list(actual) == Nx.to_flat_list(expected)
      end
    end
  end

  test "gather and take" do
    for type <- @widths do
      tensors = [random_bits({4, 5, 3}, type), Nx.tensor([[1, 2], [0, 4], [3, 0], [3, 4]]), Nx.tensor([2, 0, 1, 1])]

      assert_same(tensors, fn t, pairs, line ->
        {
          Nx.gather(t, pairs),
          Nx.gather(t, Nx.reverse(pairs, axes: [0]), axes: [0, 1]),
          Nx.gather(Nx.transpose(t), Nx.new_axis(line, -1), axes: [0]),
          Nx.gather(t, Nx.new_axis(line, -1), axes: [2]),
          Nx.take(t, line, axis: 1),
          Nx.take(t, Nx.reshape(line, {2, 2})),
          Nx.take_along_axis(t, Nx.broadcast(0, {4, 5, 2}), axis: 2)
        }
      end)
    end
  end

  test "indexed_add and indexed_put" do
    for type <- [s: 32, f: 32, f: 64, u: 8, s: 64] do
      indices = Nx.tensor([[0, 1], [2, 0], [0, 1], [3, 4]])
      distinct = Nx.tensor([[0, 1], [2, 0], [0, 2], [3, 4]])
      tensors = [random({4, 5}, type, 0, 9), indices, distinct, random({4}, type, 0, 9), random({4, 5}, type, 0, 9)]

      assert_same(tensors, fn t, indices, distinct, updates, rows ->
        {
          Nx.indexed_add(t, indices, updates),
          Nx.indexed_put(t, distinct, updates),
          Nx.indexed_add(Nx.transpose(t), Nx.reverse(indices, axes: [1]), updates),
          Nx.indexed_add(t, Nx.tensor([[1], [1], [0], [3]]), rows, axes: [0]),
          Nx.indexed_put(t, Nx.tensor([[1], [2], [0], [3]]), rows, axes: [0]),
          Nx.indexed_add(t, Nx.tensor([[4], [0]]), Nx.slice(Nx.transpose(rows), [0, 0], [2, 4]), axes: [1])
        }
      end)
    end
  end

  # As many as a step of training looks up in an embedding, and more: they find their targets in several ways. Whole
  # numbers, which BinaryBackend adds up in f64.
  test "indexed_add of as many rows as gradients of embeddings have" do
    for {count, width} <- [{5, 3}, {600, 7}, {2240, 5}, {4500, 2}], type <- [s: 32, f: 32] do
      ids = Nx.remainder(random({count, 1}, {:s, 64}, 0, 5000), 300)

      [table, rows] =
        for shape <- [{300, width}, {count, width}], do: Nx.as_type(random(shape, {:s, 32}, -99, 99), type)

      assert_same([table, ids, rows], fn table, ids, rows -> Nx.indexed_add(table, ids, rows, axes: [0]) end)
    end
  end

  test "batches" do
    for leftover <- [:discard, :repeat] do
      assert_same([random({10, 2}, {:f, 32})], fn t ->
        t |> Nx.to_batched(4, leftover: leftover) |> Enum.to_list() |> List.to_tuple()
      end)
    end
  end
end
