defmodule Nx.Vulkan.Conformance.FoldTest do
  use ExUnit.Case, async: true

  import Nx.Defn
  import Nx.Vulkan.Conformance

  alias Nx.Vulkan.ScalarFunction

  @moduletag :device
  @moduletag timeout: 600_000

  defn clamped(x, acc) do
    cond do
      x > acc -> acc + 1
      x < -acc -> acc - x
      true -> acc
    end
  end

  defn(folded(t, start), do: Nx.reduce(t, start, [axes: [0]], fn x, acc -> Nx.subtract(x, acc) end))

  defn endless(x, acc) do
    while {acc, x}, acc < x do
      {acc + 1, x}
    end
    |> elem(0)
  end

  # Neither order nor grouping is free.
  defp difference(x, acc), do: Nx.subtract(x, acc)

  test "every type along every axis" do
    for type <- types() do
      # Small whole numbers are exact in the coarse types.
      coarse = type in floats(16)
      tensor = if coarse, do: Nx.as_type(random({3, 4, 2}, {:s, 8}, -1, 1), type), else: random({3, 4, 2}, type, -5, 5)
      start = Nx.tensor(1, type: type, backend: Nx.BinaryBackend)

      for axes <- if(coarse, do: [[0], [1]], else: [nil, [0], [1], [2, 0]]) do
        assert_same([tensor, start], fn t, start ->
          Nx.reduce(t, start, [axes: axes, keep_axes: axes == [1]], &difference/2)
        end)
      end
    end
  end

  test "functions of other types than the tensor's" do
    assert_same([random({5, 3}, {:s, 32})], fn t ->
      Nx.reduce(t, 0.5, [axes: [0]], fn x, acc -> Nx.add(Nx.multiply(Nx.quotient(x, 3), 0.25), acc) end)
    end)

    assert_same([random({5, 3}, {:f, 32})], fn t ->
      Nx.reduce(t, Nx.tensor(0, type: :u8), [type: :u8, axes: [1]], fn x, acc ->
        Nx.add(Nx.as_type(Nx.greater(x, 0), :u8), acc)
      end)
    end)
  end

  test "captured scalars and constants" do
    factor = Nx.tensor(0.5, backend: Nx.BinaryBackend)

    assert_same([random({4, 6}, {:f, 32}), Nx.tensor(1.25)], fn t, captured ->
      Nx.reduce(t, 0, [axes: [1]], fn x, acc ->
        x |> Nx.multiply(factor) |> Nx.add(captured) |> Nx.subtract(Nx.multiply(acc, Nx.tensor(0.75)))
      end)
    end)

    assert_same([random({4}, {:s, 32})], &Nx.reduce(&1, 0, fn _, _ -> Nx.tensor(7) end))
    assert_same([random({4}, {:s, 32})], &Nx.reduce(&1, 0, fn _, _ -> 7 end))
    assert_same([random({4}, {:s, 32})], &Nx.reduce(&1, 3, fn _, acc -> acc end))
  end

  test "conditions" do
    assert_same([random({40}, {:s, 32})], &Nx.reduce(&1, 1, fn x, acc -> clamped(x, acc) end))

    assert_same([random({40}, {:f, 32})], fn t ->
      Nx.reduce(t, 0.0, fn x, acc -> Nx.select(Nx.logical_and(Nx.greater(x, acc), Nx.less(x, 50)), x, acc) end)
    end)
  end

  test "inside defn" do
    assert_same([random({4, 5}, {:s, 64}), Nx.tensor(2, type: :s64)], &folded/2)
  end

  test "windows" do
    for shape <- [{7}, {4, 5}, {2, 3, 4}], padding <- [:valid, :same, nil] do
      rank = tuple_size(shape)
      padding = padding || List.duplicate({1, -1}, rank)
      window = List.to_tuple(List.duplicate(2, rank))
      opts = [padding: padding, strides: for(i <- 1..rank, do: rem(i, 2) + 1)]

      assert_same(
        [random(shape, {:s, 32})],
        &Nx.window_reduce(&1, 3, window, opts, fn x, acc -> difference(x, acc) end)
      )

      dilated = [window_dilations: List.duplicate(2, rank), padding: List.duplicate({1, 1}, rank)]

      assert_same(
        [random(shape, {:f, 32})],
        &Nx.window_reduce(&1, 0.5, window, dilated, fn x, acc -> difference(x, acc) end),
        ulp: 8
      )
    end
  end

  test "many results, and a long fold" do
    assert_same([random({3, 70_000}, {:s, 32})], &Nx.reduce(&1, 0, [axes: [0]], fn x, acc -> difference(x, acc) end))
    assert_same([random({20_000}, {:s, 32})], &Nx.reduce(&1, 0, fn x, acc -> difference(x, acc) end))
  end

  test "tensors of the device are operands of the kernel, wherever the function holds them" do
    Nx.default_backend(Nx.Vulkan.VulkanoBackend)
    {scale, vector, low} = {Nx.tensor(2.5), Nx.tensor([1.0, 2.0, 3.0]), Nx.tensor(-1.0)}
    held = %{list: [{scale, 1}]}
    times = fn x -> Nx.multiply(x, scale) end
    {evaluated, _} = Code.eval_string("fn x, acc -> Nx.add(Nx.multiply(x, scale), acc) end", scale: scale)

    functions = [
      {evaluated, 1},
      {fn x, acc -> Nx.add(times.(x), acc) end, 1},
      {fn x, acc -> Nx.add(Nx.multiply(x, elem(hd(held.list), 0)), acc) end, 1},
      {fn x, acc -> Nx.add(Nx.multiply(x, Nx.tensor(2.5)), acc) end, 0},
      # What depends on no argument runs on the device.
      {fn x, acc -> Nx.add(Nx.multiply(x, Nx.divide(Nx.reduce(vector, 4.0, &Nx.add/2), 4)), acc) end, 1},
      {fn x, acc -> Nx.add(Nx.multiply(x, Nx.add(vector, 0.5)[1]), acc) end, 1},
      {fn x, acc -> if(Nx.to_number(Nx.less(x, low)) == 1, do: x, else: Nx.add(times.(x), acc)) end, 2},
      # A function within, of an argument of the outer one: its steps are the outer one's.
      {fn x, acc -> Nx.add(Nx.reduce(vector[0..1], 0.0, fn c, sum -> Nx.add(Nx.multiply(c, x), sum) end), acc) end, 2}
    ]

    for {fun, captured} <- functions do
      assert {_steps, operands} = ScalarFunction.kernel(:reduce, fun, {:f, 32}, {:f, 32})
      assert length(operands) == captured
    end

    expected = Nx.tensor([0.25 + 2.5 * 9, 0.25 + 2.5 * 12])
    t = Nx.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    for {fun, _} <- Enum.take(functions, 6), do: assert_close(Nx.reduce(t, 0.25, [axes: [0]], fun), expected)

    # Nx can't mix a tensor that comes from elsewhere with those that are traced.
    Process.put(:scale, scale)
    elsewhere = fn x, acc -> Nx.add(Nx.multiply(x, Process.get(:scale)), acc) end
    assert ScalarFunction.kernel(:reduce, elsewhere, {:f, 32}, {:f, 32}) == nil
    assert_close(Nx.reduce(t, 0.25, [axes: [0]], elsewhere), expected)
  end

  ## Functions that no kernel holds

  defn(bump(x, acc, i), do: if(x > acc - i, do: acc + 1, else: acc - x))
  def bumps(x, acc), do: Enum.reduce(1..20, acc, &bump(x, &2, &1))

  defn(defn_sum(t, start), do: Nx.reduce(t, start, [axes: [1]], fn x, acc -> Nx.sum(Nx.stack([x, acc])) end))

  @stepwise [
    stack: &__MODULE__.stacked/2,
    dot: &__MODULE__.dotted/2,
    sort: &__MODULE__.sorted/2,
    cumulative_sum: &__MODULE__.accumulated/2,
    nested: &__MODULE__.nested/2,
    nested_with_accumulator: &__MODULE__.nested_with_accumulator/2,
    nested_with_captured: &__MODULE__.nested_with_captured/2,
    take: &__MODULE__.taken/2,
    branches: &__MODULE__.bumps/2,
    loop: &__MODULE__.endless/2,
    read: &__MODULE__.read/2,
    read_behind_stack: &__MODULE__.read_behind_stack/2,
    read_bits: &__MODULE__.read_bits/2,
    devectorized: &__MODULE__.devectorized/2
  ]

  def stacked(x, acc), do: Nx.as_type(Nx.sum(Nx.stack([x, Nx.multiply(acc, 2)])), acc.type)
  def dotted(x, acc), do: Nx.add(acc, Nx.dot(Nx.reshape(x, {1}), Nx.reshape(Nx.add(x, 1), {1})))
  def sorted(x, acc), do: Nx.subtract(Nx.sort(Nx.stack([x, acc]))[1], 1)
  def accumulated(x, acc), do: Nx.cumulative_sum(Nx.stack([x, acc, x]))[2]
  def nested(x, acc), do: Nx.add(acc, Nx.reduce(Nx.stack([x, acc]), 1, &Nx.subtract/2))
  def nested_with_accumulator(x, acc), do: Nx.reduce(Nx.stack([x, x]), acc, &Nx.subtract/2)

  def nested_with_captured(x, acc) do
    Nx.sum(
      Nx.reduce(Nx.iota({3, 3}, type: x.type), 0, [axes: [1]], fn y, sum -> stacked(Nx.add(y, acc), Nx.add(sum, x)) end)
    )
    |> Nx.remainder(7)
  end

  def taken(x, acc), do: Nx.take(Nx.stack([x, acc]), 0)
  def read(x, acc), do: if(Nx.to_number(x) > 2, do: Nx.add(x, acc), else: Nx.subtract(acc, x))

  def read_behind_stack(x, acc) do
    sum = Nx.sum(Nx.stack([x, acc]))
    Nx.add(acc, hd(Nx.to_flat_list(Nx.multiply(sum, 2))))
  end

  def read_bits(x, acc) do
    <<first, _::binary>> = Nx.to_binary(x)
    Nx.add(Nx.sum(Nx.stack([x, acc])), rem(first, 3))
  end

  def devectorized(x, acc), do: Nx.add(x, Nx.sum(Nx.devectorize(Nx.multiply(acc, 2))))

  for {name, fun} <- @stepwise do
    test "step by step: #{name}" do
      fun = unquote(fun)
      matrix = random({3, 4}, {:s, 32}, -9, 9)
      assert_same([random({5}, {:s, 32}, -9, 9)], &Nx.reduce(&1, 1, fun))
      assert_same([matrix], &Nx.reduce(&1, 1, [axes: [1]], fun))
      assert_same([matrix], &Nx.reduce(&1, 1, [axes: [0], keep_axes: true], fun))
      assert_same([Nx.tensor(4)], &Nx.reduce(&1, 1, fun))
    end
  end

  test "step by step: types, names, several axes, and vectorized tensors" do
    for type <- [s: 8, u: 8, s: 64, f: 16, f: 32, f: 64, c: 64, c: 128] do
      start = Nx.tensor(1, type: type, backend: Nx.BinaryBackend)
      tensor = random({2, 3, 4}, type, -3, 3)

      for axes <- [nil, [0], [1], [2, 0], [1, 2]] do
        assert_same([tensor, start], &Nx.reduce(&1, &2, [axes: axes], fn x, acc -> stacked(x, acc) end),
          ulp: 8,
          absolute: if(type == {:f, 16}, do: 0.02, else: 1.0e-5)
        )
      end
    end

    named = Nx.rename(random({2, 3, 4}, {:f, 64}), [:x, :y, :z])
    assert_same([named], &Nx.reduce(&1, 0.0, [axes: [:x, :z]], fn x, acc -> Nx.sum(Nx.stack([x, acc])) end), ulp: 8)
    assert_same([random({3, 4}, {:s, 32})], &Nx.reduce(Nx.vectorize(&1, :v), 0, fn x, acc -> stacked(x, acc) end))
  end

  test "step by step: the accumulator and the result have the result's type" do
    Nx.default_backend(Nx.Vulkan.VulkanoBackend)
    fold = &Nx.reduce(&1, &2, &3, fn x, acc -> Nx.divide(Nx.sum(Nx.stack([x, acc])), 2) end)
    assert_close(fold.(Nx.tensor([8, 9]), 1, axes: [0]), Nx.tensor(6))
    assert_close(fold.(Nx.tensor([[8, 9], [3, 6]]), 1, axes: [1], type: :u8), Nx.tensor([6, 4], type: :u8))
    assert_close(fold.(Nx.tensor([[8, 9], [3, 6]]), 1, axes: [0], type: :f64), Nx.tensor([3.75, 5.5], type: :f64))
  end

  test "step by step: captured tensors" do
    # Elements that Nx.BinaryBackend takes out of a tensor have its names, and don't broadcast.
    {t, captured} = {random({3, 4}, {:s, 32}), random({5}, {:s, 32})}

    [sums] =
      on(Nx.Vulkan.VulkanoBackend, [t, captured], fn t, captured ->
        Nx.reduce(t, 0, [axes: [1]], fn x, acc -> captured |> Nx.add(x) |> Nx.sum() |> Nx.add(acc) end)
      end)

    assert_close(sums, Nx.as_type(Nx.add(Nx.multiply(Nx.sum(t, axes: [1]), 5), Nx.multiply(Nx.sum(captured), 4)), :s32))
  end

  test "a function that rescues what reading an element raises" do
    assert_same([Nx.tensor([1, 2, 3])], fn t ->
      Nx.reduce(t, 0, fn x, acc ->
        number =
          try do
            Nx.to_number(x)
          rescue
            _ -> 1000
          end

        Nx.add(number, acc)
      end)
    end)
  end

  test "step by step: windows" do
    # Nx.BinaryBackend gives the function numbers.
    fun = fn x, acc -> Nx.sum(Nx.stack([Nx.tensor(x), Nx.multiply(acc, 2)])) end
    read = fn x, acc -> if(number(x) > 2, do: Nx.add(x, acc), else: Nx.subtract(acc, x)) end

    for fun <- [fun, read], shape <- [{7}, {4, 5}, {2, 3, 4}], padding <- [:valid, :same, nil] do
      rank = tuple_size(shape)
      padding = padding || List.duplicate({1, -1}, rank)
      window = List.to_tuple(List.duplicate(2, rank))
      opts = [padding: padding, strides: for(i <- 1..rank, do: rem(i, 2) + 1)]
      dilated = [window_dilations: List.duplicate(2, rank), padding: List.duplicate({1, 1}, rank)]
      assert_same([random(shape, {:s, 32}, -9, 9)], &Nx.window_reduce(&1, 3, window, opts, fun))
      assert_same([random(shape, {:s, 32}, -9, 9)], &Nx.window_reduce(&1, 3, window, dilated, fun))
    end
  end

  defp number(%Nx.Tensor{} = t), do: Nx.to_number(t)
  defp number(number), do: number

  test "step by step: in numerical definitions that the evaluator runs" do
    assert_same(
      [random({3, 4}, {:s, 64}), Nx.tensor(2, type: :s64)],
      &Nx.Defn.jit(fn a, b -> defn_sum(a, b) end, compiler: Nx.Defn.Evaluator).(&1, &2)
    )
  end

  test "only the branches that are taken raise or throw" do
    early = fn x, acc ->
      if Nx.to_number(Nx.greater(x, 5)) == 1, do: throw({:large, Nx.to_number(acc)}), else: Nx.add(x, acc)
    end

    assert_same([Nx.tensor([1, 2, 3])], &Nx.reduce(&1, 0, early))
    assert catch_throw(on(Nx.Vulkan.VulkanoBackend, [Nx.tensor([1, 2, 7, 3])], &Nx.reduce(&1, 0, early))) == {:large, 3}
  end

  test "many steps and captured scalars" do
    assert_same([Nx.tensor([3, 5]), Nx.iota({70})], fn t, captured ->
      scalars = for i <- 0..69, do: captured[i]
      Nx.reduce(t, 0, fn x, acc -> Enum.reduce(scalars, Nx.add(x, acc), &Nx.add/2) end)
    end)

    assert_same([random({3}, {:s, 32})], fn t ->
      Nx.reduce(t, 0, fn x, acc -> Enum.reduce(1..5000, acc, fn i, sum -> Nx.bitwise_xor(Nx.add(sum, x), i) end) end)
    end)
  end

  test "functions that give no scalar raise as on BinaryBackend" do
    for tensor <- [Nx.tensor([1, 2]), Nx.tensor([[1, 2], [3, 4]])],
        fun <- [
          fn _, _ -> :foo end,
          fn _, _ -> nil end,
          fn _, _ -> {1, 2} end,
          fn x, acc -> Nx.stack([x, acc]) end,
          fn x, _ -> Nx.reshape(x, {1}) end,
          fn x, acc -> if(Nx.to_number(Nx.sum(x)) > 1, do: :foo, else: acc) end,
          fn x, acc -> Nx.dot(Nx.stack([x, acc]), Nx.iota({3})) end
        ],
        reduce <- [&Nx.reduce(&1, 0, [axes: [0]], fun), &Nx.window_reduce(&1, 0, window(&1), fun)] do
      expected = catch_error(on(Nx.BinaryBackend, [tensor], reduce))
      assert %error{} = catch_error(on(Nx.Vulkan.VulkanoBackend, [tensor], reduce))
      if match?(%ArgumentError{}, expected), do: assert(error == ArgumentError)
    end

    # Nothing of it stays behind.
    assert_same([Nx.tensor([1, 2, 3])], &Nx.reduce(&1, 0, fn x, acc -> Nx.add(x, acc) end))
  end

  defp window(tensor), do: List.to_tuple(List.duplicate(1, Nx.rank(tensor)))
end
