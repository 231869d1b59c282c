defmodule Nx.Vulkan.Conformance.PropertiesTest do
  use ExUnit.Case, async: true
  use ExUnitProperties

  import Nx.Vulkan.Conformance

  @moduletag :device
  @moduletag timeout: 600_000

  defp shape, do: map(list_of(integer(1..6), max_length: 4), &List.to_tuple/1)
  defp type, do: member_of(s: 8, u: 16, s: 32, s: 64, f: 32, f: 64, bf: 16)

  # A shape that broadcasts against the given one: some axes become 1, some leading ones go.
  defp broadcastable(shape) do
    sizes = Tuple.to_list(shape)

    gen all(
          drop <- integer(0..length(sizes)),
          ones <- list_of(boolean(), length: length(sizes))
        ) do
      Enum.zip_with(sizes, ones, fn size, one -> if one, do: 1, else: size end)
      |> Enum.drop(drop)
      |> List.to_tuple()
    end
  end

  # Functions that keep or change the layout, for a tensor of rank 1 or more.
  defp view(t, seed) do
    case rem(seed, 6) do
      0 -> Nx.transpose(t)
      1 -> Nx.reverse(t)
      2 -> Nx.reshape(t, {Nx.size(t)})
      3 -> Nx.slice_along_axis(t, div(Nx.axis_size(t, 0), 2), Nx.axis_size(t, 0) - div(Nx.axis_size(t, 0), 2), axis: 0)
      4 -> Nx.new_axis(t, -1)
      5 -> Nx.broadcast(Nx.new_axis(t, 0), List.to_tuple([2 | Tuple.to_list(Nx.shape(t))]))
    end
  end

  property "binary ops broadcast" do
    check all(
            a <- shape(),
            b <- broadcastable(a),
            type <- type(),
            op <- member_of([:add, :subtract, :multiply, :min, :max, :less, :equal])
          ) do
      tensors = [random(a, type, 0, 20), random(b, type, 0, 20)]
      assert_same(tensors, &apply(Nx, op, [&1, &2]))
      assert_same(Enum.reverse(tensors), &apply(Nx, op, [&1, &2]))
    end
  end

  property "chains of views keep the elements" do
    check all(
            shape <- shape(),
            shape != {},
            type <- type(),
            seeds <- list_of(integer(0..5), min_length: 1, max_length: 4)
          ) do
      assert_same([random_bits(shape, type)], fn t -> Enum.reduce(seeds, t, &view(&2, &1)) end)
    end
  end

  property "reductions over any axes" do
    check all(
            shape <- shape(),
            shape != {},
            axes <- list_of(member_of(Enum.to_list(0..(tuple_size(shape) - 1))), min_length: 1),
            keep <- boolean(),
            type <- member_of(s: 32, s: 64, u: 8, f: 64)
          ) do
      axes = Enum.uniq(axes)

      assert_same(
        [random(shape, type, 0, 9)],
        fn t ->
          t = Nx.transpose(t)
          {Nx.sum(t, axes: axes, keep_axes: keep), Nx.reduce_max(t, axes: axes, keep_axes: keep)}
        end,
        absolute: 1.0e-10
      )
    end
  end

  property "slices with any starts, and put_slice puts back what slice took" do
    check all(
            shape <- shape(),
            shape != {},
            fractions <- list_of({integer(-2..7), integer(1..6)}, length: tuple_size(shape)),
            type <- type()
          ) do
      lengths = Enum.zip_with(Tuple.to_list(shape), fractions, fn size, {_, length} -> min(size, length) end)
      starts = Enum.map(fractions, &max(elem(&1, 0), 0))

      assert_same([random_bits(shape, type), random_bits(List.to_tuple(lengths), type)], fn t, window ->
        put = Nx.put_slice(t, starts, window)
        {Nx.slice(t, starts, lengths), put, Nx.slice(put, starts, lengths)}
      end)
    end
  end
end
