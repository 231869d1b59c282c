defmodule Nx.Vulkan.SeeingTest do
  # What functions, kernels and runs tell about themselves.
  use ExUnit.Case, async: true

  import Nx.Defn

  alias Nx.Vulkan.Compiler

  @moduletag :device

  defn(dense(x, w, b), do: Nx.max(Nx.dot(x, w) + b, 0))

  defn halve(x) do
    while x, Nx.sum(x) > 1 do
      x / 2
    end
  end

  defn with_call(x) do
    Nx.exp(Nx.runtime_call(Nx.template({3}, :f32), x * 2, &on_host/2))
  end

  def on_host(tensor, _opts), do: Nx.backend_copy(tensor, Nx.BinaryBackend)

  defp matrices(sizes), do: for({rows, columns} <- sizes, do: Nx.iota({rows, columns}, type: :f32))

  describe "explain" do
    test "says what each launch moves and computes" do
      told = Compiler.explain(&dense/3, matrices([{24, 40}, {40, 8}, {1, 8}]))
      assert %{steps: [{:run, %{launches: launches, device: %{commands: commands}}}]} = told
      assert length(launches) == commands
      assert [%{kernel: "dot_" <> _ = kernel} = dot] = Enum.filter(launches, &(&1.flops > 0))
      assert kernel =~ ~r/^dot_add_max\.[a-z0-9_]+\.f32-[0-9a-f]{8}$/
      assert dot.flops == 2 * 24 * 40 * 8 + 2 * 24 * 8
      assert dot.read_bytes == 4 * (24 * 40 + 40 * 8 + 8)
      assert dot.written_bytes == 4 * 24 * 8
      assert {x, 1, 1} = dot.groups
      assert x > 0 and is_boolean(dot.barrier)
    end

    test "says how much memory a run takes, in loops that the host drives too" do
      told = Compiler.explain(&halve/1, matrices([{1024, 1024}]))
      assert %{steps: [{:run, %{device: %{arena_bytes: arena_bytes, peak_bytes: peak_bytes}}}]} = told

      # An iteration has the old state, the new one, and may have one between them; nothing of that is in the arena
      # before.
      assert arena_bytes < 4096
      assert peak_bytes in (8 * 1024 * 1024)..(14 * 1024 * 1024)

      told = Compiler.explain(&Nx.exp/1, matrices([{1024, 1024}]))
      assert %{steps: [{:run, %{device: %{peak_bytes: 4_194_304}}}]} = told
    end

    test "says how much lies in memory at each launch, and draws it" do
      # Each cumulative sum waits for the one before; the first is there until the last.
      fun = fn x ->
        [first | _] = all = Enum.scan(1..4, x, fn _, x -> Nx.cumulative_sum(Nx.sin(x), axis: 0) end)
        Nx.cumulative_sum(Nx.add(first, List.last(all)), axis: 1)
      end

      assert %{steps: [{:run, program}]} = Compiler.explain(fun, matrices([{512, 512}]))
      assert program.live_bytes == Enum.map(program.launches, & &1.live_bytes)
      # Some may lie in memory of the result, which is not written yet.
      assert Enum.max(program.live_bytes) <= program.device.arena_bytes + program.device.own_bytes
      assert Enum.max(program.live_bytes) >= 2 * 512 * 512 * 4
      # What is held at the peak is what lies there, in whole places.
      held = program.held |> Enum.map(& &1.size_bytes) |> Enum.sum()
      assert (Enum.max(program.live_bytes) - held) in 0..4096

      assert {most, at, kernel} = program.live.most
      assert most == Enum.max(program.live_bytes) and Enum.at(program.live_bytes, at) == most
      assert Enum.at(program.launches, at).kernel == kernel
      drawing = to_string(program.live)
      assert length(String.split(drawing, "\n")) <= 10
      assert drawing =~ "most at launch #{at}: #{kernel}" and drawing =~ "█"
      assert inspect(program.live) =~ "most at launch #{at}"
    end

    test "draws runs of any length, and of none" do
      draw = fn bytes ->
        bytes |> Enum.map(&%{kernel: "k", live_bytes: &1}) |> Compiler.Live.new() |> to_string()
      end

      assert draw.([]) == "no launches"
      assert draw.([0]) == "no intermediate results in 1 launch"

      assert draw.([0, 500, 1000, 1]) ==
               String.trim_trailing("""
               1.00 kB |  █
                       |  █
                       |  █
                       | ██
                       | ██
                       | ██▁
                     0 +----
               intermediate results over 4 launches, most at launch 2: k
               """)

      long = draw.(for i <- 1..10_000, do: rem(i * i, 9_999_999_999))
      lines = String.split(long, "\n")
      assert length(lines) == 8 and Enum.all?(lines, &(String.length(&1) <= 120))
      assert long =~ "most at launch 9999"
      # What waits for the device is no launch.
      assert Compiler.Live.new([%{wait: :while, body: [%{kernel: "k", live_bytes: 1}]}]).bytes == []
    end

    test "tells the parts of loops" do
      told = Compiler.explain(&halve/1, matrices([{64, 300}]))
      assert %{steps: [{:run, %{launches: launches}}]} = told
      # A cheap loop looks at its condition in the body.
      assert %{wait: :while, condition: [], body: [%{kernel: _} | _]} = Enum.find(launches, & &1[:wait])
    end
  end

  describe "graph" do
    test "has kernels with their ops, and buffers with their types" do
      graph = Compiler.graph(&dense/3, matrices([{24, 40}, {40, 8}, {1, 8}]))
      assert graph =~ ~r/\Adigraph "Nx.Vulkan.SeeingTest.dense\/3" \{/
      assert graph =~ ~r/label="fused\\l%0 = dot\(in0, in1\)\\l/
      assert graph =~ ~s(p0_i0 -> p0_n0 [label="f32[24, 40]"])
      assert graph =~ ~s([label="f32[24, 8]"])
    end

    test "has clusters for loops and for the steps of functions with host work" do
      loop = Compiler.graph(&halve/1, matrices([{64, 300}]))
      assert loop =~ ~s(label="condition") and loop =~ ~s(label="body")

      steps = Compiler.graph(&with_call/1, [Nx.tensor([1.0, 2.0, 3.0])])
      assert steps =~ ~s(label="step 1") and steps =~ ~s(label="step 3")
    end

    test "is that of a named function" do
      assert Compiler.graph(fn x -> Nx.exp(x) end, [1.0]) =~ ~s(digraph "anonymous fn/1 in Nx.Vulkan.SeeingTest.\\"test)
      assert Compiler.graph(&Nx.exp/1, [1.0]) =~ ~s(digraph "Nx.exp/1")
    end
  end
end
