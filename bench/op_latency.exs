# Measures from Elixir what one call costs, on Nx.Vulkan.VulkanoBackend and on Nx.BinaryBackend, and prints a Markdown
# table.
#
#     MIX_ENV=prod mix run bench/op_latency.exs [CALLS]
#
# CALLS is how often a recorded op is repeated, 100,000 by default. bench/peers/latency.py measures the same with JAX.

defmodule OpLatency do
  @moduledoc """
  Medians and 99th percentiles of single calls.

  "recorded" rows time the call alone, which returns before the device has run; the device catches up between bursts of
  calls, untimed. The other rows wait for the result.
  """

  alias Nx.Vulkan.{NativeV, VulkanoBackend}

  import Nx.Defn

  @megabyte 1_048_576
  # Fewer calls than a slow device may be behind before callers have to wait for it.
  @burst 200
  # Nx.BinaryBackend repeats a row for about this long, in microseconds, and at least once.
  @budget_us 2_000_000

  def main(calls) do
    {:ok, info} = NativeV.device_describe()

    IO.puts("""
    #{info.name}, #{info.driver}; Elixir #{System.version()}, OTP #{System.otp_release()}, \
    Nx #{Application.spec(:nx, :vsn)}; #{System.schedulers_online()} CPU threads

    | | median | 99 % | Nx.BinaryBackend | ratio |
    |---|---:|---:|---:|---:|\
    """)

    a = Nx.iota({16}, type: :f32, backend: VulkanoBackend)
    refs = [a.data.ref, a.data.ref]
    out = Nx.template({16}, :f32)

    row("`NativeV.program_run` of such an add, recorded", calls, fn ->
      NativeV.program_run(:add, [], refs, :f32, {16})
    end)

    row("`VulkanoBackend.add` of such, recorded", calls, fn -> VulkanoBackend.add(out, a, a) end)
    add = compared("`Nx.add` of two 16-element f32, recorded", calls, &adder/1)
    compared("the same, read back", 5_000, &reader/1)
    row("`Nx.add` of a number, recorded", calls, fn -> Nx.add(a, 1.5) end)
    row("`Nx.reshape`, which copies nothing", calls, fn -> Nx.reshape(a, {4, 4}) end)
    compared("`Nx.from_binary` of 1 MiB", 500, &writer/1)
    compared("`Nx.to_binary` of 1 MiB", 500, &downloader/1)
    compared("sum of 1,048,576 f32, read back", 200, &summer/1)
    compared("dot of 128x128 f32, one element read back", 200, &multiplier(&1, 128))
    row("dot of 512x512 f32, one element read back", 50, multiplier(VulkanoBackend, 512))

    compared(
      "`while` op by op, 100 iterations of a counter, a product and a sum",
      50,
      &looper(&1, {}, fn x -> counted(x) end)
    )

    compared("`while` op by op, 100 iterations with `indexed_put`", 50, &looper(&1, {100}, fn x -> put(x) end))

    tenth = max(div(calls, 10), 1)
    early = add |> Enum.take(tenth) |> quantile(0.5)
    late = add |> Enum.take(-tenth) |> quantile(0.5)

    IO.puts(
      "\nOver the #{calls} calls of `Nx.add`: median #{time(early)} in the first tenth, #{time(late)} in the last."
    )
  end

  # Prints a row with Nx.BinaryBackend beside. `fun` gets a backend and returns what is timed.
  defp compared(name, calls, fun) do
    theirs = fun.(Nx.BinaryBackend)
    {once_us, _} = :timer.tc(theirs)
    reference = theirs |> times(div(@budget_us, max(once_us, 1)) |> min(calls) |> max(1)) |> quantile(0.5)

    row(name, calls, fun.(VulkanoBackend), fn median ->
      "#{time(reference)} | #{:erlang.float_to_binary(reference / median, decimals: 2)}"
    end)
  end

  # Prints a row and returns the times in nanoseconds, in the order of the calls.
  defp row(name, calls, fun, beside \\ fn _median -> "|" end) do
    # The first calls compile.
    for _ <- 1..max(div(calls, 10), 3), do: fun.()
    catch_up()
    times = times(fun, calls)
    catch_up()
    median = quantile(times, 0.5)
    IO.puts("| #{name} | #{time(median)} | #{time(quantile(times, 0.99))} | #{beside.(median)} |")
    times
  end

  defp times(fun, calls) do
    for i <- 1..calls do
      if rem(i, @burst) == 0, do: catch_up()
      start = :erlang.monotonic_time(:nanosecond)
      fun.()
      :erlang.monotonic_time(:nanosecond) - start
    end
  end

  defp catch_up, do: {} |> Nx.iota(backend: VulkanoBackend) |> Nx.to_binary()

  defp adder(backend) do
    a = Nx.iota({16}, type: :f32, backend: backend)
    fn -> Nx.add(a, a) end
  end

  defp reader(backend) do
    add = adder(backend)
    fn -> Nx.to_binary(add.()) end
  end

  defp writer(backend) do
    bytes = :binary.copy(<<1.5::float-32-native>>, div(@megabyte, 4))
    fn -> Nx.from_binary(bytes, :f32, backend: backend) end
  end

  defp downloader(backend) do
    tensor = writer(backend).()
    fn -> Nx.to_binary(tensor) end
  end

  defp summer(backend) do
    tensor = Nx.iota({@megabyte}, type: :f32, backend: backend)
    fn -> tensor |> Nx.sum() |> Nx.to_binary() end
  end

  defp multiplier(backend, n) do
    tensor = Nx.iota({n, n}, type: :f32, backend: backend) |> Nx.divide(n * n)
    fn -> Nx.dot(tensor, tensor)[0][0] |> Nx.to_binary() end
  end

  defp looper(backend, shape, loop) do
    x = Nx.broadcast(Nx.tensor(1.0, backend: backend), shape)
    loop = Nx.Defn.jit(loop, compiler: Nx.Defn.Evaluator)
    fn -> Nx.with_default_backend(backend, fn -> x |> loop.() |> Nx.to_binary() end) end
  end

  defnp counted(x) do
    {_, x} =
      while {i = 0, x}, i < 100 do
        {i + 1, x * 0.5 + 1.0}
      end

    x
  end

  defnp put(x) do
    {_, x} =
      while {i = 0, x}, i < 100 do
        {i + 1, Nx.indexed_put(x, Nx.reshape(i, {1, 1}), Nx.tensor([2.0]))}
      end

    x
  end

  defp quantile(times, q), do: times |> Enum.sort() |> Enum.at(floor(q * (length(times) - 1)))

  defp time(ns) when ns < 1_000_000, do: "#{:erlang.float_to_binary(ns / 1.0e3, decimals: 1)} us"
  defp time(ns), do: "#{:erlang.float_to_binary(ns / 1.0e6, decimals: 2)} ms"
end

case System.argv() do
  [] -> OpLatency.main(100_000)
  [calls] -> OpLatency.main(String.to_integer(calls))
end
