defmodule Nx.Vulkan.Conformance.WindowTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance

  @moduletag :device
  @moduletag timeout: 600_000

  @shapes [{9}, {6, 7}, {2, 5, 6}, {2, 1, 5, 4}]

  # A window that fits, and options for it. Nx.BinaryBackend reads elsewhere where an axis has a window of 1 and a
  # dilation.
  defp random_window(shape, dilated \\ true) do
    sizes = Tuple.to_list(shape)
    window = Enum.map(sizes, &:rand.uniform(min(&1, 3)))
    dilations = Enum.map(window, &if(&1 == 1 or not dilated, do: 1, else: :rand.uniform(2)))

    padding =
      case :rand.uniform(3) do
        1 -> :valid
        2 -> :same
        3 -> Enum.map(sizes, fn _ -> {:rand.uniform(4) - 2, :rand.uniform(4) - 2} end)
      end

    room =
      for {size, i} <- Enum.with_index(sizes) do
        {low, high} = if is_list(padding), do: Enum.at(padding, i), else: {0, 0}
        size + low + high - (Enum.at(window, i) - 1) * Enum.at(dilations, i)
      end

    opts = [padding: padding, strides: Enum.map(sizes, fn _ -> :rand.uniform(3) end), window_dilations: dilations]
    if Enum.all?(room, &(&1 > 0)), do: {List.to_tuple(window), opts}, else: random_window(shape, dilated)
  end

  # Whole numbers whose sums are exact also in the coarse types.
  defp whole(shape, type) do
    {low, high} = if type in floats(16), do: {0, 1}, else: {-4, 4}
    shape |> random({:s, 32}, low, high) |> Nx.as_type(type)
  end

  test "window_sum, window_max and window_min" do
    for type <- types(), shape <- @shapes do
      {window, opts} = random_window(shape)
      tensor = if match?({:u, _}, type), do: random(shape, type), else: whole(shape, type)
      assert_same([tensor], &Nx.window_sum(&1, window, opts))

      unless match?({:c, _}, type) do
        assert_same([random(shape, type)], &{Nx.window_max(&1, window, opts), Nx.window_min(&1, window, opts)})
      end
    end
  end

  test "window_product" do
    for type <- integers() ++ [f: 32, f: 64, c: 64, c: 128], shape <- @shapes do
      {window, opts} = random_window(shape)
      assert_same([random(shape, type, 1, 3)], &Nx.window_product(&1, window, opts), ulp: 64)
    end
  end

  test "window_mean, integer options and vectorized tensors" do
    tensor = random({3, 4, 6}, {:f, 32})
    assert_same([tensor], &Nx.window_mean(&1, {1, 2, 3}, padding: :same), absolute: 1.0e-4)
    assert_same([tensor], &Nx.window_max(&1, {1, 2, 2}, strides: 2, window_dilations: 2))
    assert_same([tensor], &Nx.window_sum(Nx.vectorize(&1, :x), {2, 2}, strides: [1, 2]), absolute: 1.0e-4)
  end

  test "numbers that are none, or have no end" do
    for type <- [:f32, :f64, :bf16, :f16, :f8], value <- [:nan, :infinity, :neg_infinity] do
      tensor = Nx.tensor([1, 2, 3, 4, 5, 6, 7], type: type)

      assert_same([tensor], fn t ->
        t = Nx.put_slice(t, [3], Nx.tensor([value], type: type))

        for op <- [:window_max, :window_min, :window_sum], padding <- [:valid, [{5, 0}]] do
          apply(Nx, op, [t, {2}, [padding: padding]])
        end
        |> List.to_tuple()
      end)
    end
  end

  test "window_scatter_max and window_scatter_min" do
    # Nx.BinaryBackend compares and adds in 32 bits, and reads bf16 and f8 cut off.
    for type <- integers() ++ [f: 16, f: 32, f: 64], shape <- @shapes do
      {window, opts} = random_window(shape, false)
      opts = Keyword.delete(opts, :window_dilations)
      tensor = if match?({:u, _}, type), do: random(shape, type, 0, 5), else: whole(shape, type)
      counts = Nx.shape(Nx.window_sum(tensor, window, opts))
      tensors = [tensor, whole_positive(counts, type)]

      assert_same(tensors, fn t, source ->
        {Nx.window_scatter_max(t, source, 1, window, opts), Nx.window_scatter_min(t, source, 0, window, opts)}
      end)
    end
  end

  defp whole_positive(shape, type), do: shape |> random({:s, 32}, 1, 4) |> Nx.as_type(type)

  test "window_scatter_max of a type other than the source's, and of a vectorized tensor" do
    tensors = [random({4, 6}, {:u, 8}, 0, 5), random({2, 3}, {:f, 32}, -1, 1)]
    assert_same(tensors, &Nx.window_scatter_max(&1, &2, 0.5, {2, 2}, strides: [2, 2]))
    tensors = [random({2, 6}, {:s, 32}, 0, 5), random({2, 3}, {:s, 32}, -9, 9)]

    assert_same(tensors, fn t, source ->
      Nx.window_scatter_min(Nx.vectorize(t, :x), Nx.vectorize(source, :x), 0, {2}, strides: [2])
    end)
  end

  test "gradients" do
    for op <- [:window_max, :window_min, :window_sum, :window_mean], opts <- [[], [strides: [2, 1], padding: :same]] do
      assert_same(
        [random({5, 6}, {:f, 32}, -1, 1)],
        fn t ->
          Nx.Defn.grad(t, fn t -> Nx.sum(Nx.sin(apply(Nx, op, [t, {2, 3}, opts]))) end)
        end,
        absolute: 1.0e-5
      )
    end
  end

  test "windows of views" do
    assert_same([random({6, 7}, {:s, 32})], fn t ->
      {
        Nx.window_sum(Nx.transpose(t), {3, 2}, strides: [2, 1]),
        Nx.window_max(Nx.reverse(t), {3, 2}, padding: [{1, 0}, {-1, 2}]),
        Nx.window_min(t[[1..4, 0..6//2]], {2, 2}),
        Nx.window_sum(Nx.broadcast(t[0], {3, 7}), {3, 3})
      }
    end)
  end
end
