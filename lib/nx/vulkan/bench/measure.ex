defmodule Nx.Vulkan.Bench.Measure do
  @moduledoc false
  # Measures a row of Nx.Vulkan.Bench.Rows: checks it, finds a size, and takes times at it.

  alias Nx.Vulkan.Error
  alias Nx.Vulkan.VulkanoBackend, as: B

  # The median of so many batches counts. A call at the size that is measured takes a part of the time of a row.
  @batches 5
  @part_of_a_call 10
  @most_calls 20_000

  @doc """
  The row with its `:size`, `:time_s`, what it moves or computes per second, and `:wrong`, why its results are not to be
  trusted. `:left_out` says why there is no time.
  """
  def row(row, seconds, memory_bytes) do
    if row.memory.(row.least) > memory_bytes do
      %{empty(row) | size: row.size.(row.least), left_out: "it takes more memory than there is for a row"}
    else
      measured(row, seconds, memory_bytes)
    end
  rescue
    error in Error ->
      key = if error.kind in [:out_of_memory, :too_large], do: :left_out, else: :wrong
      %{empty(row) | key => Exception.message(error)}
  end

  defp empty(row) do
    %{
      name: row.name,
      group: row.group,
      size: nil,
      time_s: nil,
      bytes_per_second: nil,
      flops_per_second: nil,
      wrong: nil,
      left_out: nil
    }
  end

  defp measured(row, seconds, memory_bytes) do
    run = runs(row)
    wrong = check(row, run)
    {n, time_s} = fit(row, run, row.least, seconds, memory_bytes)

    %{
      empty(row)
      | size: row.size.(n),
        time_s: time_s,
        bytes_per_second: row.bytes && row.bytes.(n) / time_s,
        flops_per_second: row.flops && row.flops.(n) / time_s,
        wrong: wrong
    }
  end

  defp runs(%{runs: :eager, fun: fun}), do: &apply(fun, &1)

  defp runs(%{runs: :compiled, fun: fun}) do
    compiled = Nx.Defn.jit(fun, compiler: Nx.Vulkan)
    &apply(compiled, &1)
  end

  ## Whether it computes right

  defp check(row, run) do
    expected =
      Nx.with_default_backend(Nx.BinaryBackend, fn ->
        Nx.Defn.jit_apply(row.reference, inputs(row, row.checked, Nx.BinaryBackend), compiler: Nx.Defn.Evaluator)
      end)

    args = inputs(row, row.checked, B)
    result = run.(args)
    got = numbers(result)
    Enum.each([args, result], &release/1)
    difference(got, numbers(expected), row.tolerance)
  end

  @doc "Why numbers are not those that were expected, or nil."
  def difference(got, expected, _tolerance) when length(got) != length(expected),
    do: "#{length(got)} numbers instead of #{length(expected)}"

  def difference(got, expected, tolerance) do
    allowed = tolerance * (expected |> Enum.map(&abs/1) |> Enum.max())

    [got, expected]
    |> Enum.zip()
    |> Enum.with_index()
    |> Enum.find_value(fn {{got, expected}, at} ->
      if not is_number(got) or abs(got - expected) > allowed, do: "number #{at} is #{got} instead of #{expected}"
    end)
  end

  # Of all tensors of a result, real and imaginary parts apart.
  defp numbers(result) do
    result |> tensors() |> Enum.flat_map(&(&1 |> Nx.backend_copy(Nx.BinaryBackend) |> Nx.to_flat_list())) |> parts()
  end

  defp parts(numbers) do
    Enum.flat_map(numbers, fn
      %Complex{re: re, im: im} -> [re, im]
      number -> [number]
    end)
  end

  ## At which size

  # The size, and a call's time at it. Smaller ones only say how much larger it may be.
  defp fit(row, run, n, seconds, memory_bytes) do
    case at_size(row, run, n, seconds, memory_bytes) do
      {^n, time_s} -> {n, time_s}
      {larger, nil} -> fit(row, run, larger, seconds, memory_bytes)
    end
  end

  defp at_size(row, run, n, seconds, memory_bytes) do
    args = inputs(row, n, if(row.from == :host, do: Nx.BinaryBackend, else: B))
    # The first compiles, and the pool gets what calls need.
    batch(row, run, args, 2)
    once_s = min(batch(row, run, args, 1), batch(row, run, args, 1))
    larger = next_size(row, n, once_s, seconds / @part_of_a_call, memory_bytes)
    time_s = if larger == n, do: median(row, run, args, once_s, seconds)
    release(args)
    {larger, time_s}
  end

  @doc """
  The size that is tried after `n`, at which a call took `once_s`: as many times twice as large as `target_s`, the
  memory and the row allow. It is `n` where that is to be measured.
  """
  def next_size(row, n, once_s, target_s, memory_bytes) do
    doublings = trunc(:math.log2(max(target_s / once_s, 1)) / row.grows)

    Enum.reduce_while(List.duplicate(2, doublings), n, fn two, n ->
      if two * n <= row.most and row.memory.(two * n) <= memory_bytes, do: {:cont, two * n}, else: {:halt, n}
    end)
  end

  defp inputs(row, n, backend) do
    compiler = if backend == B, do: Nx.Vulkan, else: Nx.Defn.Evaluator

    Nx.with_default_backend(backend, fn ->
      Nx.Defn.jit_apply(fn -> row.inputs.(n) end, [], compiler: compiler) |> Tuple.to_list()
    end)
  end

  ## How long it takes

  defp median(row, run, args, once_s, seconds) do
    calls = trunc(seconds / @batches / once_s) |> max(1) |> min(@most_calls)
    # What was fast alone may be faster yet in a row.
    calls = trunc(seconds / @batches / (batch(row, run, args, calls) / calls)) |> max(1) |> min(@most_calls)
    times = for _ <- 1..@batches, do: batch(row, run, args, calls) / calls
    times |> Enum.sort() |> Enum.at(div(@batches, 2))
  end

  # Seconds of so many calls, until the last result is there. Each result is given back when the next call is under
  # way: the garbage collector does not see how large it is.
  defp batch(row, run, args, calls) do
    start = System.monotonic_time(:nanosecond)

    last =
      Enum.reduce(1..calls, nil, fn _, before ->
        result = run.(args)
        if row.reads == :each, do: wait(result)
        if before, do: release(before)
        result
      end)

    wait(last)
    elapsed_ns = System.monotonic_time(:nanosecond) - start
    release(last)
    max(elapsed_ns, 1) / 1.0e9
  end

  # Copying all of a large result to the host would take longer than the call.
  defp wait(result), do: result |> tensors() |> hd() |> Nx.to_binary(limit: 1)

  defp release(result), do: result |> tensors() |> Enum.each(&Nx.backend_deallocate/1)

  defp tensors(result), do: Nx.Defn.Composite.flatten_list(List.wrap(result))
end
