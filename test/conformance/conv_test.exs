defmodule Nx.Vulkan.Conformance.ConvTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance

  @moduletag :device
  @moduletag timeout: 600_000

  # Whole numbers whose products and sums are exact also in the coarse types.
  defp values(shape, type) do
    case type do
      {_, 8} -> Nx.as_type(random(shape, {:u, 8}, 0, 1), type)
      {_, 16} -> Nx.as_type(random(shape, {:u, 8}, 0, 2), type)
      {class, _} when class in [:s, :u] -> random(shape, type, -4, 4)
      _ -> Nx.as_type(random(shape, {:s, 32}, -4, 4), type)
    end
  end

  defp permuted(axes, sizes), do: axes |> Enum.zip(sizes) |> Enum.sort() |> Enum.map(&elem(&1, 1)) |> List.to_tuple()

  # A convolution with random options: the two shapes and the options.
  defp random_conv(space, permute) do
    {features, batches} = Enum.random([{1, 1}, {1, 1}, {2, 1}, {1, 2}, {3, 1}])
    rank = length(space) + 2
    axes = fn -> if permute, do: Enum.shuffle(0..(rank - 1)), else: Enum.to_list(0..(rank - 1)) end
    [input_axes, kernel_axes, output_axes] = [axes.(), axes.(), axes.()]
    [images, channels, filters] = for _ <- 1..3, do: :rand.uniform(3)
    window = Enum.map(space, fn _ -> :rand.uniform(3) end)

    padding =
      case :rand.uniform(3) do
        1 -> :valid
        2 -> :same
        3 -> Enum.map(space, fn _ -> {:rand.uniform(4) - 2, :rand.uniform(4) - 2} end)
      end

    opts = [
      strides: Enum.map(space, fn _ -> :rand.uniform(2) end),
      padding: padding,
      input_dilation: Enum.map(space, fn _ -> :rand.uniform(2) end),
      kernel_dilation: Enum.map(space, fn _ -> :rand.uniform(2) end),
      feature_group_size: features,
      batch_group_size: batches,
      input_permutation: input_axes,
      kernel_permutation: kernel_axes,
      output_permutation: output_axes
    ]

    input = permuted(input_axes, [images * batches, channels * features | space])
    kernel = permuted(kernel_axes, [filters * features * batches, channels | window])

    room =
      for {size, i} <- Enum.with_index(space) do
        {low, high} = if is_list(padding), do: Enum.at(padding, i), else: {0, 0}

        (size - 1) * Enum.at(opts[:input_dilation], i) + 1 + low + high -
          (Enum.at(window, i) - 1) * Enum.at(opts[:kernel_dilation], i)
      end

    if Enum.all?(room, &(&1 > 0)), do: {input, kernel, opts}, else: random_conv(space, permute)
  end

  test "every type" do
    for type <- types() do
      {input, kernel, opts} = random_conv([5, 6], false)
      # Nx.BinaryBackend pads this type with something else.
      opts =
        if type == {:f8_e4m3fn, 8},
          do: Keyword.take(opts, [:strides, :feature_group_size, :batch_group_size]),
          else: opts

      assert_same([values(input, type), values(kernel, type)], &Nx.conv(&1, &2, opts))
    end

    assert_same([values({2, 3, 5}, {:s, 8}), values({2, 3, 2}, {:f, 64})], &Nx.conv/2)
    assert_same([values({2, 3, 5}, {:f, 32}), values({2, 3, 2}, {:c, 64})], &Nx.conv/2)
  end

  test "random options" do
    for space <- [[7], [5, 6], [3, 4, 3]], i <- 1..6 do
      {input, kernel, opts} = random_conv(space, i > 2)
      assert_same([values(input, {:f, 32}), values(kernel, {:f, 32})], &Nx.conv(&1, &2, opts))
    end
  end

  test "fractions" do
    tensors = [random({2, 4, 9, 8}, {:f, 32}, -1, 1), random({6, 4, 3, 3}, {:f, 32}, -1, 1)]
    assert_same(tensors, &Nx.conv(&1, &2, padding: :same, strides: 2), absolute: 1.0e-5)
    assert_same(Enum.map(tensors, &Nx.as_type(&1, :f64)), &Nx.conv(&1, &2, padding: :same), absolute: 1.0e-14)
  end

  test "views and vectorized tensors" do
    assert_same([values({4, 6, 5, 2}, {:f, 32}), values({3, 2, 2, 3}, {:f, 32})], fn a, k ->
      a = Nx.transpose(a, axes: [3, 0, 2, 1])
      {Nx.conv(Nx.slice_along_axis(a, 1, 2, axis: 1), Nx.reverse(k)), Nx.conv(Nx.reverse(a)[[.., 0..1]], k, strides: 2)}
    end)

    assert_same([values({2, 2, 3, 6, 5}, {:f, 32}), values({2, 4, 3, 2, 2}, {:f, 32})], fn a, k ->
      Nx.conv(Nx.vectorize(a, :x), Nx.vectorize(k, :x))
    end)
  end

  test "gradients" do
    assert_same(
      [random({2, 3, 7, 6}, {:f, 32}, -1, 1), random({4, 3, 3, 2}, {:f, 32}, -1, 1)],
      fn a, k ->
        loss = fn {a, k} ->
          Nx.sum(Nx.multiply(Nx.conv(a, k, strides: [2, 1], padding: :same, kernel_dilation: [1, 2]), 0.5))
        end

        Nx.Defn.grad({a, k}, loss)
      end,
      absolute: 1.0e-4
    )

    assert_same(
      [random({2, 4, 7}, {:f, 32}, -1, 1), random({6, 2, 3}, {:f, 32}, -1, 1)],
      fn a, k ->
        Nx.Defn.grad({a, k}, fn {a, k} -> Nx.sum(Nx.sin(Nx.conv(a, k, feature_group_size: 2))) end)
      end,
      absolute: 1.0e-4
    )
  end
end
