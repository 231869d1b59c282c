defmodule Nx.Vulkan.KilledTest do
  # Processes that are killed while their calls run leave the device as it was. It measures the memory of the whole VM.
  use ExUnit.Case, async: false

  import Nx.Defn

  alias Nx.Vulkan.{DeviceMemory, VulkanoBackend}

  @moduletag :device
  @moduletag timeout: 120_000

  defn steps(x, n) do
    {x, _, _} =
      while {x, n, i = 0}, i < n do
        {Nx.sort(x * 0.5 + 1), n, i + 1}
      end

    if Nx.sum(x) > 0, do: Nx.cumulative_sum(x), else: Nx.exp(x)
  end

  defp numbers(n, seed) do
    for(i <- 1..n, do: rem(i * 37 + seed, 64) / 32 - 1) |> Nx.tensor(type: :f32, backend: VulkanoBackend)
  end

  # Uploads, ops, a product, a compiled loop and branch, downloads.
  defp work(seed) do
    x = numbers(3000, seed)
    square = Nx.reshape(numbers(64 * 64, seed), {64, 64})
    product = Nx.sum(Nx.dot(square, Nx.transpose(square)), axes: [0])
    compiled = Nx.Defn.jit_apply(&steps/2, [x, 20 + rem(seed, 5)], compiler: Nx.Vulkan)
    large = Nx.sum(Nx.iota({1 + rem(seed, 3), 200_000}, backend: VulkanoBackend))
    for tensor <- [Nx.sort(Nx.sin(x)), product, compiled, large], do: Nx.to_binary(tensor)
  end

  test "many at once, in the middle of ops and compiled functions, while others compute" do
    wanted = Map.new(0..7, &{&1, work(&1)})
    before = DeviceMemory.in_use_bytes()

    for round <- 1..5 do
      killed = for seed <- 1..16, do: spawn(fn -> for i <- 1..10_000, do: work(rem(seed + i, 8)) end)
      others = for seed <- 0..7, do: Task.async(fn -> {seed, for(_ <- 1..2, do: work(seed))} end)

      for {pid, i} <- Enum.with_index(killed) do
        if rem(i, 4) == 0, do: Process.sleep(5 * round)
        Process.exit(pid, :kill)
      end

      for {seed, results} <- Task.await_many(others, 60_000), result <- results, do: assert(result == wanted[seed])
    end

    # Calls that had begun end first.
    :erlang.garbage_collect()
    assert Enum.any?(1..200, fn _ -> DeviceMemory.in_use_bytes() <= before or Process.sleep(50) == :later end)
    assert work(3) == wanted[3]
  end
end
