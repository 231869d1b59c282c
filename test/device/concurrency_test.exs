defmodule Nx.Vulkan.Device.ConcurrencyTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.VulkanoBackend

  @moduletag :device
  @moduletag timeout: 300_000

  test "16 processes at once get their own results" do
    1..16
    |> Enum.map(fn i ->
      Task.async(fn ->
        Nx.default_backend(VulkanoBackend)

        for round <- 1..50 do
          n = 10 + rem(i * round, 90)
          t = Nx.iota({n}, type: :s64) |> Nx.multiply(i) |> Nx.add(round)
          matrix = Nx.dot(Nx.reshape(t, {n, 1}), Nx.reshape(Nx.reverse(t), {1, n}))
          line = for k <- 0..(n - 1), do: k * i + round
          assert Nx.to_flat_list(t) == line
          assert Nx.to_number(Nx.sum(t)) == Enum.sum(line)
          assert Nx.to_flat_list(Nx.take_diagonal(matrix)) == Enum.zip_with(line, Enum.reverse(line), &*/2)
        end

        :done
      end)
    end)
    |> Task.await_many(300_000)
    |> Enum.each(&assert &1 == :done)
  end

  test "a tensor may be used by other processes than the one that made it" do
    t = Nx.iota({1000}, type: :s32, backend: VulkanoBackend)
    doubled = Task.await(Task.async(fn -> Nx.multiply(t, 2) end))
    assert Nx.to_number(Nx.sum(doubled)) == 999_000

    sums = Task.async_stream(1..32, fn i -> Nx.to_number(Nx.sum(Nx.add(t, i))) end, max_concurrency: 16)
    assert Enum.map(sums, &elem(&1, 1)) == Enum.map(1..32, &(499_500 + 1000 * &1))
  end
end
