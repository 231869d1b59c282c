# Measures first calls of long programs: tracing, lowering, passes and compilation. Prints a row of a Markdown table.
#
#     NX_VULKAN_CACHE_DIR=$(mktemp -d) MESA_SHADER_CACHE_DISABLE=true MIX_ENV=prod \
#       mix run bench/first_calls.exs ROW SIZE
#
# ROW is gradient, put_slice or slices, SIZE how many steps or slices. A process measures one row, for it keeps kernels.

defmodule FirstCalls do
  @moduledoc "The first call of a function until its result can be read, its tracing alone, and a later call."

  alias Nx.Vulkan.{NativeV, VulkanoBackend}

  def main([name, size]) do
    Nx.default_backend(VulkanoBackend)
    {:ok, _} = NativeV.device_describe()
    n = String.to_integer(size)
    # What happens once in a process is not counted.
    Nx.Defn.jit(&Nx.add(&1, 1), compiler: Nx.Vulkan).(vector(2)) |> Nx.to_binary()

    case name do
      "gradient" -> row("gradient of #{n} unrolled steps", gradient(n), vector(16))
      "put_slice" -> row("#{n} put_slice", puts(n), vector(n))
      "slices" -> row("#{n} slices", slices(n), vector(n))
    end
  end

  # Steps of a map that no pass shortens.
  defp gradient(n) do
    fn x -> Nx.Defn.grad(x, fn x -> 1..n |> Enum.reduce(x, fn i, x -> step(x, i) end) |> Nx.sum() end) end
  end

  defp step(x, i), do: x |> Nx.multiply(1.0 - i / 100_000) |> Nx.sin() |> Nx.add(x)

  defp puts(n), do: fn x -> Enum.reduce(1..n, x, fn i, x -> Nx.put_slice(x, [i - 1], Nx.tensor([i * 1.0])) end) end

  defp slices(n), do: fn x -> 1..n |> Enum.map(&Nx.slice(x, [&1 - 1], [1])) |> Enum.reduce(&Nx.add(Nx.sin(&1), &2)) end

  defp vector(n), do: Nx.divide(Nx.iota({n}, type: :f32), n)

  defp row(name, fun, argument) do
    {trace_us, _} = :timer.tc(fn -> Nx.Defn.debug_expr(fun).(argument) end)
    jitted = Nx.Defn.jit(fun, compiler: Nx.Vulkan)
    {first_us, _} = :timer.tc(fn -> jitted.(argument) |> Nx.to_binary() end)
    before = NativeV.device_stats().dispatches
    {later_us, _} = :timer.tc(fn -> jitted.(argument) |> Nx.to_binary() end)
    dispatches = NativeV.device_stats().dispatches - before
    times = Enum.map_join([first_us, trace_us, later_us], " | ", &"#{Float.round(&1 / 1000, 1)} ms")
    IO.puts("| #{name} | #{times} | #{dispatches} |")
  end
end

FirstCalls.main(System.argv())
