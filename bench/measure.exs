defmodule Measure do
  @moduledoc """
  Medians over batches of calls of compiled functions. "pipelined" calls follow one another and an element of the last
  result is read; "synchronous" ones read each. "synchronous" in the table is the median of single calls on an idle
  device until an element of the result is read, "host" until they return.
  """

  alias Nx.Vulkan.{NativeV, VulkanoBackend}

  @batches 7
  # A batch takes about this long, in microseconds.
  @batch_us 300_000
  # Calls on an idle device: so many, or what fits into this time.
  @alone_calls 101
  @alone_us 200_000

  @doc """
  Prints a Markdown table of the rows whose names contain one of `wanted`, of all where it is empty.

  A row is `{name, setup}`. `setup` answers `{argument, step, next, read}`: `step` maps an argument to a result and
  `next` that to the next argument; `read` is `:each` where each result is read, or `:last`. Rows whose `setup` answers
  `nil` are left out.
  """
  def table(rows, wanted) do
    Nx.default_backend(VulkanoBackend)
    Nx.Defn.default_options(compiler: Nx.Vulkan)
    {:ok, info} = NativeV.device_describe()

    IO.puts("""
    #{info.name}, #{info.driver}; Elixir #{System.version()}, OTP #{System.otp_release()}, \
    Nx #{Application.spec(:nx, :vsn)}

    | | first call | median | synchronous | host | submissions, dispatches, allocations a call |
    |---|---:|---:|---:|---:|---:|\
    """)

    wanted? = fn name -> wanted == [] or Enum.any?(wanted, &(name =~ &1)) end
    for {name, setup} <- rows, wanted?.(name), row = setup.(), do: row(name, row)
  end

  @doc """
  A row each call of which reads the same argument. The result before is given back, as it is in JAX and torch: the
  garbage collector, which does not see how large it is, would leave it.
  """
  def same(x, step), do: turns([x], step)

  @doc "The same, where calls take these arguments in turns, as those of a server differ from one another."
  def turns([first | _] = arguments, step) do
    jitted = Nx.Defn.jit(step)

    step = fn x ->
      result = jitted.(x)
      with %Nx.Tensor{} = previous <- Process.put(__MODULE__, result), do: Nx.backend_deallocate(previous)
      result
    end

    next = fn _ ->
      [_ | others] = Process.get({__MODULE__, :turns}, arguments)
      turns = if others == [], do: arguments, else: others
      Process.put({__MODULE__, :turns}, turns)
      hd(turns)
    end

    {first, step, next, :last}
  end

  defp row(name, {argument, step, next, read}) do
    Process.delete({__MODULE__, :turns})
    {first_us, result} = :timer.tc(fn -> tap(step.(argument), &wait/1) end)
    argument = next.(result)
    argument = run(argument, step, next, read, 2)
    {once_us, argument} = :timer.tc(fn -> run(argument, step, next, read, 2) end)
    calls = max(div(@batch_us * 2, max(once_us, 1)), 1) |> min(20_000)
    # The pool has what calls in flight need after one batch.
    argument = run(argument, step, next, read, calls)
    before = NativeV.device_stats()

    {times, argument} =
      Enum.map_reduce(1..@batches, argument, fn _, argument ->
        {us, argument} = :timer.tc(fn -> run(argument, step, next, read, calls) end)
        {us / calls, argument}
      end)

    later = NativeV.device_stats()
    each = fn key -> :erlang.float_to_binary((later[key] - before[key]) / (calls * @batches), decimals: 2) end
    counts = Enum.map_join([:submissions, :dispatches, :allocations], ", ", each)
    {host, synchronous} = alone(argument, step)
    times = Enum.map_join([first_us, median(times), synchronous, host], " | ", &time/1)
    IO.puts("| #{name} | #{times} | #{counts} |")
  end

  # Medians until a call on an idle device returns, which is before the device has run it, and until it has.
  defp alone(argument, step) do
    stop = now() + @alone_us

    {hosts, waits} =
      1..@alone_calls
      |> Enum.reduce_while([], fn _, times ->
        {if(now() < stop, do: :cont, else: :halt), [once(argument, step) | times]}
      end)
      |> Enum.unzip()

    {median(hosts), median(waits)}
  end

  defp once(argument, step) do
    start = now()
    result = step.(argument)
    returned = now()
    wait_for_one(result)
    {returned - start, now() - start}
  end

  defp now, do: System.monotonic_time(:nanosecond) / 1000

  defp median(times), do: times |> Enum.sort() |> Enum.at(div(length(times), 2))

  # What is read last is a result, even where all calls read one argument.
  defp run(argument, step, next, read, calls) do
    {argument, last} =
      Enum.reduce(1..calls, {argument, argument}, fn _, {argument, _} ->
        result = step.(argument)
        if read == :each, do: wait(result)
        {next.(result), result}
      end)

    if read == :last, do: wait_for_one(last)
    argument
  end

  defp wait(result), do: result |> first() |> Nx.backend_copy(Nx.BinaryBackend)

  # Copying all of a large result to the host would take longer than the calls.
  defp wait_for_one(result), do: result |> first() |> Nx.to_binary(limit: 1)

  defp first(result), do: [result] |> Nx.Defn.Composite.flatten_list() |> hd()

  defp time(us) when us < 1000, do: "#{:erlang.float_to_binary(us / 1.0, decimals: 1)} us"
  defp time(us), do: "#{:erlang.float_to_binary(us / 1.0e3, decimals: 2)} ms"
end
