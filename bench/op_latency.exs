# What one eager op on tiny tensors costs from Elixir, from the call to the recorded dispatch, and one with its result read back.
#
#     MIX_ENV=prod mix run bench/op_latency.exs
alias Nx.Vulkan.{NativeV, VulkanoBackend}

a = Nx.iota({16}, type: :f32, backend: VulkanoBackend)
b = Nx.iota({16}, type: :f32, backend: VulkanoBackend)
out = Nx.template({16}, :f32)
refs = [a.data.ref, b.data.ref]

measure = fn name, count, fun ->
  for _ <- 1..div(count, 10), do: fun.()

  times =
    for _ <- 1..count do
      start = :erlang.monotonic_time(:nanosecond)
      fun.()
      :erlang.monotonic_time(:nanosecond) - start
    end

  at = fn list, percent -> Float.round(Enum.at(Enum.sort(list), div(length(list) * percent, 100)) / 1000, 2) end
  tenth = div(count, 10)

  IO.puts(
    "#{String.pad_trailing(name, 34)} median #{at.(times, 50)} us, p90 #{at.(times, 90)}, p99 #{at.(times, 99)}; " <>
      "first tenth #{at.(Enum.take(times, tenth), 50)}, last tenth #{at.(Enum.take(times, -tenth), 50)}"
  )
end

{:ok, %{name: name}} = NativeV.device_info()
IO.puts("#{name}, 16 elements of f32")
measure.("NativeV.program_run", 100_000, fn -> NativeV.program_run(:add, [], refs, :f32, {16}) end)
measure.("VulkanoBackend.add", 100_000, fn -> VulkanoBackend.add(out, a, b) end)
measure.("Nx.add", 100_000, fn -> Nx.add(a, b) end)
measure.("Nx.add with a number", 100_000, fn -> Nx.add(a, 1.5) end)
measure.("Nx.reshape", 100_000, fn -> Nx.reshape(a, {4, 4}) end)
measure.("Nx.sum", 100_000, fn -> Nx.sum(a) end)
measure.("Nx.add, Nx.to_binary", 10_000, fn -> Nx.to_binary(Nx.add(a, b)) end)
IO.inspect(NativeV.device_stats(), label: "counters")
