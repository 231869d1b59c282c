defmodule Nx.Vulkan.Conformance.CompilerLoopsTest do
  # Counts submissions of the device.
  use ExUnit.Case, async: false

  import Nx.Defn

  alias Nx.Vulkan.{Conformance, NativeV, VulkanoBackend}

  @moduletag :device

  setup_all do: Nx.Vulkan.DeviceMemory.await_idle()

  # The compiled function beside the evaluator on Nx.BinaryBackend, in at most so many submissions of its second call.
  defp assert_loops(fun, tensors, submissions, opts \\ []) do
    args = Enum.map(tensors, &Nx.backend_copy(&1, VulkanoBackend))
    compiled = Nx.Defn.jit(fun, compiler: Nx.Vulkan)
    read = fn -> args |> then(&apply(compiled, &1)) |> flatten() |> Enum.map(&Nx.backend_copy(&1, Nx.BinaryBackend)) end
    read.()
    before = NativeV.device_stats().submissions
    got = read.()
    taken = NativeV.device_stats().submissions - before

    expected =
      Nx.with_default_backend(Nx.BinaryBackend, fn ->
        tensors |> then(&apply(Nx.Defn.jit(fun, compiler: Nx.Defn.Evaluator), &1)) |> flatten()
      end)

    for {g, e} <- Enum.zip(got, expected), do: Conformance.assert_close(g, e, opts)
    assert taken <= submissions
  end

  defp flatten(result), do: Nx.Defn.Composite.flatten_list([result])

  # For each row the width for which a sum of exponentials is near a number, by halves of an interval.
  defn widths(distances, goal) do
    n = Nx.axis_size(distances, 0)

    {widths, _} =
      while {widths = Nx.broadcast(0.0, {n}), {distances, goal, i = 0}}, i < n do
        row = Nx.take(distances, i)

        {low, high, _} =
          while {low = 0.0, high = 64.0, {row, goal, sum = Nx.Constants.infinity(), steps = 0}},
                steps < 30 and Nx.abs(sum - goal) > 1.0e-3 do
            middle = (low + high) / 2
            sum = Nx.sum(Nx.exp(-row / middle))
            {low, high} = if sum > goal, do: {low, middle}, else: {middle, high}
            {low, high, {row, goal, sum, steps + 1}}
          end

        widths = Nx.indexed_put(widths, Nx.reshape(i, {1, 1}), Nx.reshape((low + high) / 2, {1}))
        {widths, {distances, goal, i + 1}}
      end

    widths
  end

  # The steps that each number takes to get to 1, over a tensor of as many rows.
  defn collatz(numbers) do
    {_, steps} =
      while {x = numbers, steps = 0}, x > 1 do
        {if(rem(x, 2) == 0, do: Nx.quotient(x, 2), else: 3 * x + 1), steps + 1}
      end

    steps
  end

  # As loops over trees write for each point: places of its own in what it has seen, by a table for all.
  defn walks(start, table, values) do
    {_, _, seen, sum, _, _} =
      while {at = start, i = 0, seen = Nx.vectorize(Nx.broadcast(Nx.u8(0), {5, 7}), :row), sum = 0.0, table, values},
            i < 9 and not seen[at] do
        seen = Nx.indexed_put(seen, Nx.new_axis(at, 0), Nx.u8(1))
        sum = if values[at] > 0.5, do: sum + values[at], else: sum
        {table[at], i + 1, seen, sum, table, values}
      end

    {seen, sum}
  end

  # For each number of a sorted list, whether a binary search finds it in another, but for repeated ones.
  defn found(numbers, among) do
    {found, _} =
      while {found = Nx.broadcast(Nx.u8(0), Nx.shape(numbers)), {numbers, among, last = Nx.s64(-1), i = 0}},
            i < Nx.size(numbers) do
        if i > 0 and last == numbers[i] do
          {Nx.indexed_put(found, Nx.new_axis(i, 0), found[i - 1]), {numbers, among, last, i + 1}}
        else
          {hit, _} =
            while {hit = Nx.u8(0), {numbers, among, low = Nx.s64(0), high = Nx.s64(Nx.size(among) - 1), i}},
                  low <= high and not hit do
              middle = div(low + high, 2)

              if numbers[i] == among[middle] do
                {Nx.u8(1), {numbers, among, low, high, i}}
              else
                if numbers[i] < among[middle],
                  do: {Nx.u8(0), {numbers, among, low, middle - 1, i}},
                  else: {Nx.u8(0), {numbers, among, middle + 1, high, i}}
              end
            end

          {Nx.indexed_put(found, Nx.new_axis(i, 0), hit), {numbers, among, numbers[i], i + 1}}
        end
      end

    found
  end

  test "searches within a loop take one kernel" do
    numbers = Nx.tensor([0, 3, 3, 4, 7, 9, 9, 10, 15, 40], type: :s64)
    among = Nx.tensor([1, 3, 4, 8, 9, 11, 15, 16, 39], type: :s64)
    assert_loops(&found/2, [numbers, among], 10)
  end

  # Steps of descent whose length is halved until they improve: a loop in a loop, both as long as data says.
  defn descent(x, target) do
    {x, _, _} =
      while {x, target, i = 0}, loss(x, target) > 1.0e-2 and i < 60 do
        direction = x - target

        {rate, _} =
          while {rate = 1.9, {x, target, direction}}, loss(x - rate * direction, target) > 0.5 * loss(x, target) do
            {rate * 0.5, {x, target, direction}}
          end

        {x - rate * direction, target, i + 1}
      end

    x
  end

  defnp(loss(x, target), do: Nx.sum((x - target) * (x - target)))

  test "a line search within descent, small and large" do
    x = Nx.multiply(Nx.iota({20}), 0.1)
    assert_loops(&descent/2, [x, Nx.broadcast(0.5, {20})], 10, absolute: 1.0e-4)
    x = Nx.multiply(Nx.iota({30_000}), 1.0e-4)
    assert_loops(&descent/2, [x, Nx.broadcast(0.5, {30_000})], 80, absolute: 1.0e-4)
  end

  # Rows that follow each other, each from the one before, by slices whose starts count.
  defn rows(x) do
    {x, _} =
      while {x, i = 0}, i < Nx.axis_size(x, 0) - 1 do
        row = Nx.slice(x, [i, 0], [1, Nx.axis_size(x, 1)])
        next = Nx.slice(x, [i + 1, 0], [1, Nx.axis_size(x, 1)])
        {Nx.put_slice(x, [i + 1, 0], Nx.cos(row) + next * 0.5), i + 1}
      end

    x
  end

  test "slices that follow a counter don't wait for it" do
    assert_loops(&rows/1, [Nx.multiply(Nx.iota({40, 1000}), 1.0e-3)], 40, absolute: 1.0e-4)
    assert_loops(&rows/1, [Nx.multiply(Nx.iota({5, 7}), 1.0e-1)], 6, absolute: 1.0e-4)
  end

  # As long as centres move: what k-means does.
  defn centres(points, centres) do
    {centres, _, _, i} =
      while {centres, points, moved = 1.0e3, i = 0}, moved > 1.0e-4 and i < 50 do
        distances = Nx.sum((Nx.new_axis(points, 1) - Nx.new_axis(centres, 0)) ** 2, axes: [2])
        nearest = Nx.new_axis(Nx.argmin(distances, axis: 1), 1) == Nx.iota({1, Nx.axis_size(centres, 0)})
        counts = Nx.sum(nearest, axes: [0]) |> Nx.max(1) |> Nx.new_axis(1)
        next = Nx.dot(nearest, [0], points, [0]) / counts
        {next, points, Nx.reduce_max(Nx.abs(next - centres)), i + 1}
      end

    {centres, i}
  end

  test "centres move until they stay" do
    {points, _} =
      Nx.with_default_backend(Nx.BinaryBackend, fn -> Nx.Random.uniform(Nx.Random.key(3), shape: {2000, 2}) end)

    assert_loops(&centres/2, [points, points[0..3]], 40, absolute: 1.0e-3)
  end

  test "numbers that count are spelled out with their values" do
    for numbers <- [[[0, 5], [2, 4], [4, 3]], [[7, -1]], [[-100], [27], [-102]], [[100, 3], [-100, 3], [-44, 3]]] do
      numbers = Nx.tensor(numbers, type: :s8, backend: Nx.BinaryBackend)
      assert_loops(&Nx.add(&1, numbers), [Nx.tensor(0, type: :s8)], 4)
    end

    x = Nx.iota({5, 5}, type: :f32)

    for offset <- -2..2,
        do:
          assert_loops(
            &Nx.put_diagonal(Nx.multiply(&1, 2), Nx.take_diagonal(&1, offset: offset), offset: offset),
            [x],
            4
          )
  end

  test "loops over rows run all of them at once" do
    {distances, _} = Nx.Random.uniform(Nx.Random.key(3), 0.0, 4.0, shape: {37, 41})
    assert_loops(&widths/2, [distances, Nx.tensor(9.5)], 60)
    numbers = Nx.vectorize(Nx.tensor([1, 7, 27, 2, 9, 97, 3, 6, 1, 871]), :row)
    assert_loops(&collatz/1, [numbers], 60)
    table = Nx.tensor([3, 0, 6, 5, 1, 2, 6], type: :s64)
    values = Nx.tensor([0.25, 0.75, 1.5, 0.5, 2.0, 3.0, 0.125])
    assert_loops(&walks/3, [Nx.vectorize(Nx.tensor([0, 4, 6, 2, 3], type: :s64), :row), table, values], 60)
  end
end
