defmodule Nx.Vulkan.Device.DonationTest do
  # Alone: it looks at the counters of the one device.
  use ExUnit.Case, async: false

  import Nx.Vulkan.DeviceMemory, only: [in_use_bytes: 0]

  alias Nx.Vulkan.{NativeV, VulkanoBackend}

  @moduletag :device
  @moduletag timeout: 600_000

  setup_all do: Nx.Vulkan.DeviceMemory.await_idle()

  if Nx.Vulkan.Versions.donatable?() do
    # Adam, as training has it: parameters and moments become those of the next step.
    defp step(%{p: p, m: m, v: v}, x) do
      error = Nx.subtract(Nx.cumulative_sum(Nx.multiply(p, x)), x)
      gradient = Nx.multiply(Nx.cumulative_sum(error), 1.0e-4)
      m = Nx.add(Nx.multiply(m, 0.9), Nx.multiply(gradient, 0.1))
      v = Nx.add(Nx.multiply(v, 0.99), Nx.multiply(Nx.multiply(gradient, gradient), 0.01))
      p = Nx.subtract(p, Nx.divide(Nx.multiply(m, 1.0e-3), Nx.add(Nx.sqrt(v), 1.0e-6)))
      {Nx.sum(Nx.multiply(error, error)), %{p: p, m: m, v: v}}
    end

    defp random(n), do: Nx.tensor(for(_ <- 1..n, do: :rand.uniform()), type: :f32, backend: VulkanoBackend)
    defp donated(state), do: Map.new(state, fn {key, tensor} -> {key, Nx.donatable(tensor)} end)
    defp copied(state), do: Map.new(state, fn {key, tensor} -> {key, Nx.backend_copy(tensor, VulkanoBackend)} end)
    defp binaries(state), do: Map.new(state, fn {key, tensor} -> {key, Nx.to_binary(tensor)} end)
    defp released?(tensor), do: match?({:error, :released, _, _, _}, NativeV.tensor_info(tensor.data.ref))

    defp double, do: Nx.Defn.jit(&Nx.add(Nx.multiply(&1, 2), 1), compiler: Nx.Vulkan)

    test "training with donated state gives what it gives without" do
      for n <- [1, 1000, 70_001] do
        step = Nx.Defn.jit(&step/2, compiler: Nx.Vulkan)
        x = random(n)
        state = %{p: random(n), m: random(n), v: random(n)}

        {given, kept} =
          Enum.reduce(1..6, {copied(state), state}, fn _, {given, kept} ->
            given = donated(given)
            {loss, next} = step.(given, x)
            assert Enum.all?(given, fn {_, tensor} -> released?(tensor) end)
            assert Enum.all?(next, fn {_, tensor} -> not Map.get(tensor, :donatable?, false) end)
            {expected, kept} = step.(kept, x)
            assert Nx.to_binary(loss) == Nx.to_binary(expected)
            {next, kept}
          end)

        assert binaries(given) == binaries(kept)
      end
    end

    test "donated state takes no second copy" do
      n = 6_000_000
      step = Nx.Defn.jit(&Nx.add(Nx.multiply(&1, 0.5), &2), compiler: Nx.Vulkan)
      one = Nx.tensor(1.0, backend: VulkanoBackend)
      state = Nx.iota({n}, type: :f64, backend: VulkanoBackend)
      Nx.to_binary(step.(state, one), limit: 1)
      # As much as ever was in use, so that all that comes on top of it shows.
      ballast =
        Nx.iota({max(NativeV.device_stats().peak_bytes - in_use_bytes(), 1)}, type: :u8, backend: VulkanoBackend)

      Nx.to_binary(ballast, limit: 1)
      {in_use, peak} = {in_use_bytes(), NativeV.device_stats().peak_bytes}

      state = Enum.reduce(1..6, state, fn _, state -> step.(Nx.donatable(state), one) end)
      assert_in_delta Nx.to_number(state[10]), 10 / 64 + 1.96875, 1.0e-12
      assert in_use_bytes() - in_use < 1_000_000
      assert NativeV.device_stats().peak_bytes - peak < 1_000_000

      Nx.to_binary(step.(state, one), limit: 1)
      assert NativeV.device_stats().peak_bytes - in_use >= 8 * n
      assert Nx.to_number(ballast[0]) == 0
    end

    test "what shares a donated tensor's memory is unharmed" do
      double = double()
      x = random(5000)
      before = Nx.to_binary(x)
      turned = Nx.reshape(x, {50, 100})
      part = x[[10..19]]
      result = double.(Nx.donatable(x))
      assert released?(x)
      assert Nx.to_binary(turned) == before
      assert Nx.to_binary(part) == binary_part(before, 40, 40)
      assert Nx.to_binary(result) == Nx.to_binary(Nx.add(Nx.multiply(Nx.reshape(turned, {5000}), 2), 1))

      # An op that waits for somebody to read its result.
      x = random(5000)
      before = Nx.to_binary(x)
      pending = Nx.subtract(x, 1)
      result = double.(Nx.donatable(x))
      same = Nx.from_binary(before, :f32, backend: VulkanoBackend)
      assert Nx.to_binary(pending) == Nx.to_binary(Nx.subtract(same, 1))
      assert Nx.to_binary(result) == Nx.to_binary(Nx.add(Nx.multiply(same, 2), 1))

      # A result that is the argument.
      both = Nx.Defn.jit(&{&1, Nx.multiply(&1, 2)}, compiler: Nx.Vulkan)
      {first, second} = both.(Nx.donatable(same))
      assert Nx.to_binary(first) == before
      assert Nx.to_binary(second) == Nx.to_binary(Nx.multiply(first, 2))
    end

    test "one tensor may be several arguments" do
      sum = Nx.Defn.jit(&Nx.add(Nx.multiply(&1, 3), &2), compiler: Nx.Vulkan)

      for {first?, second?} <- [{true, true}, {true, false}, {false, true}] do
        x = random(3000)
        expected = Nx.to_binary(Nx.add(Nx.multiply(x, 3), x))
        mark = fn donatable? -> if donatable?, do: Nx.donatable(x), else: x end
        assert Nx.to_binary(sum.(mark.(first?), mark.(second?))) == expected
        assert released?(x)
      end
    end

    test "a call that fails leaves what it was donated" do
      sum = Nx.Defn.jit(&Nx.add/2, compiler: Nx.Vulkan)
      {x, gone} = {random(100), random(100)}
      before = Nx.to_binary(x)
      Nx.backend_deallocate(gone)
      assert_raise Nx.Vulkan.Error, ~r/argument 2 .* was deallocated/, fn -> sum.(Nx.donatable(x), gone) end
      assert Nx.to_binary(x) == before
      assert_raise Nx.Vulkan.Error, ~r/argument 1 .* was deallocated/, fn -> sum.(Nx.donatable(gone), x) end
      assert Nx.to_binary(x) == before
    end

    test "of processes that donate one tensor, each has its result or hears that it is released" do
      double = double()
      double.(random(20_000))

      for _ <- 1..30 do
        x = random(20_000)
        expected = Nx.to_binary(Nx.add(Nx.multiply(x, 2), 1))

        call = fn ->
          try do
            {:ok, Nx.to_binary(double.(Nx.donatable(x)))}
          rescue
            error in Nx.Vulkan.Error -> {:error, error.kind}
          end
        end

        results = 1..4 |> Enum.map(fn _ -> Task.async(call) end) |> Task.await_many(60_000)
        assert Enum.all?(results, &(&1 in [{:ok, expected}, {:error, :released}]))
        assert {:ok, expected} in results
        assert released?(x)
      end
    end
  end
end
