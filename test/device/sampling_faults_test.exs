defmodule Nx.Vulkan.SamplingFaultsTest do
  # What goes wrong for one sampler leaves the VM, the device and everybody else as they were. It sets :node_timeout_ms.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.{Chain, ChainShaderSpecs, NativeV, Node, NUTS}

  @moduletag :device
  @moduletag timeout: 300_000

  # Of Normal(0.5, 1.5); the steps of the longest chain that there is.
  @longest 4096

  defp pack(values), do: for(x <- values, into: <<>>, do: <<x::float-64-little>>)

  defp chain(k, n \\ 8, seed \\ 1) do
    q = for i <- 1..n, do: rem(i * 37 + seed, 64) / 32 - 1
    spec = ChainShaderSpecs.family(:normal, :f64, [0.5, 1.5])
    spv = Application.app_dir(:nx_vulkan, "priv/shaders/leapfrog_chain_normal_f64.spv")
    state = pack(q)

    NativeV.leapfrog_chain_synth_f64(
      state,
      state,
      pack(List.duplicate(1.0, n)),
      ChainShaderSpecs.push(spec, n, k, 0.1),
      k,
      spv
    )
  end

  setup do
    on_exit(fn ->
      Application.delete_env(:nx_vulkan, :node_timeout_ms)
      # Others count what the device does.
      Nx.Vulkan.DeviceMemory.await_idle()
    end)

    {:ok, wanted} = chain(16)
    %{wanted: wanted}
  end

  test "callers that are killed while their chains run", %{wanted: wanted} do
    before = NativeV.device_stats()

    for round <- 1..3 do
      callers = for seed <- 1..8, do: spawn(fn -> for _ <- 1..100, do: chain(@longest, 256, seed) end)
      Process.sleep(10 * round)
      for caller <- callers, do: Process.exit(caller, :kill)
      assert chain(16) == {:ok, wanted}
    end

    # A call that had begun ends first; then its memory is back.
    in_use = fn -> NativeV.device_stats().in_use_bytes end

    assert Enum.any?(1..200, fn _ -> in_use.() <= before.in_use_bytes or Process.sleep(50) == :later end),
           "#{in_use.()} bytes"

    assert chain(16) == {:ok, wanted}
  end

  test "a node whose time is up, on the device", %{wanted: wanted} do
    start_supervised!(Node)
    Application.put_env(:nx_vulkan, :node_timeout_ms, 20)
    assert Node.with_node(fn -> for _ <- 1..20, do: chain(@longest, 256) end) == {:error, :node_timeout}
    assert Node.alive?()
    Application.put_env(:nx_vulkan, :node_timeout_ms, 120_000)
    assert Node.with_node(fn -> chain(16) end) == {:ok, wanted}
    assert %{exec_count: 2} = Node.status()
  end

  test "a node that dies while a chain runs, and its successor", %{wanted: wanted} do
    {:ok, node} = GenServer.start(Node, nil, name: __MODULE__.Dying)
    caller = Task.async(fn -> Node.with_node(fn -> for _ <- 1..100, do: chain(@longest, 256) end, __MODULE__.Dying) end)
    Process.sleep(30)
    Process.exit(node, :kill)
    assert Task.await(caller, 60_000) == {:error, :node_dead}
    refute Node.alive?(__MODULE__.Dying)
    assert Node.with_node(fn -> chain(16) end, __MODULE__.Dying) == {:error, :node_dead}
    start_supervised!({Node, name: __MODULE__.Dying})
    assert Node.with_node(fn -> chain(16) end, __MODULE__.Dying) == {:ok, wanted}
  end

  test "64 processes sample at once, each as if it were alone" do
    wanted = for seed <- 1..64, do: chain(32, 8 + rem(seed, 5), seed)
    assert Enum.all?(wanted, &match?({:ok, _}, &1))

    tasks =
      for seed <- 1..64 do
        Task.async(fn -> for k <- [32, 1, 7, 32], do: {k, chain(k, 8 + rem(seed, 5), seed)} end)
      end

    for {chains, {:ok, wanted}} <- Enum.zip(Task.await_many(tasks, 240_000), wanted), {k, {:ok, chain}} <- chains do
      # The first steps of a longer chain are the shorter one.
      for {part, whole} <- Enum.zip(Tuple.to_list(chain), Tuple.to_list(wanted)) do
        assert part == binary_part(whole, 0, div(byte_size(whole) * k, 32))
      end
    end
  end

  defp normals(d) do
    scale = Nx.tensor(for(i <- 1..d, do: i / d), type: :f64, backend: Nx.BinaryBackend)
    fn q -> Nx.multiply(Nx.tensor(-0.5, type: :f64), Nx.sum(Nx.pow(Nx.divide(q, scale), 2))) end
  end

  defp steps(chain, steps, seed \\ 1, batch \\ 3) do
    numbers = for i <- 1..(batch * chain.parameters), do: rem(i * 37 + seed, 64) / 32 - 1
    q = numbers |> Nx.tensor(type: :f64, backend: Nx.BinaryBackend) |> Nx.reshape({batch, chain.parameters})
    chain |> Chain.run(q, q, steps: steps, step_size: 0.1) |> Map.new(fn {k, v} -> {k, Nx.to_binary(v)} end)
  end

  defp draws(d, key) do
    opts = [num_samples: 5, num_warmup: 10, num_chains: 2, key: key]
    Nx.to_binary(NUTS.sample(normals(d), Nx.template({d}, :f64), opts).draws)
  end

  test "callers that are killed while chains of log-densities are recorded or run" do
    for form <- [:workgroup, :device] do
      chain = Chain.compile(normals(5), Nx.template({5}, :f64), form: form)
      wanted = steps(chain, 7)
      before = NativeV.device_stats().in_use_bytes

      for round <- 1..3 do
        callers = for seed <- 1..8, do: spawn(fn -> for _ <- 1..20, do: steps(chain, 500, seed) end)
        Process.sleep(10 * round)
        for caller <- callers, do: Process.exit(caller, :kill)
        assert steps(chain, 7) == wanted
      end

      in_use = fn -> NativeV.device_stats().in_use_bytes end

      assert Enum.any?(1..400, fn _ -> in_use.() <= before or Process.sleep(50) == :later end),
             "#{in_use.()} bytes, #{before} before"
    end
  end

  test "samplers that are killed, and one on a node whose time is up" do
    wanted = draws(3, 1)
    samplers = for key <- 1..4, do: spawn(fn -> for _ <- 1..50, do: draws(3, key) end)
    Process.sleep(50)
    for sampler <- samplers, do: Process.exit(sampler, :kill)
    start_supervised!(Node)
    Application.put_env(:nx_vulkan, :node_timeout_ms, 20)
    assert Node.with_node(fn -> for _ <- 1..50, do: draws(3, 2) end) == {:error, :node_timeout}
    Application.put_env(:nx_vulkan, :node_timeout_ms, 120_000)
    assert Node.with_node(fn -> draws(3, 1) end) == wanted
  end

  test "64 processes draw and run chains of log-densities at once, each as if it were alone" do
    chains = for form <- [:workgroup, :device], do: Chain.compile(normals(5), Nx.template({5}, :f64), form: form)
    work = fn i -> {draws(3, rem(i, 4)), for(chain <- chains, do: steps(chain, 9, i, 1 + rem(i, 3)))} end
    wanted = Map.new(0..11, &{&1, work.(&1)})
    tasks = for i <- 1..64, do: Task.async(fn -> {rem(i, 12), work.(rem(i, 12))} end)
    for {i, got} <- Task.await_many(tasks, 240_000), do: assert(got == wanted[i])
  end

  @tag :tmp_dir
  test "a shader file that breaks between two calls", %{tmp_dir: folder, wanted: wanted} do
    spv = Path.join(folder, "chain.spv")
    words = File.read!(Application.app_dir(:nx_vulkan, "priv/shaders/leapfrog_chain_normal_f64.spv"))
    two = pack([1.0, 2.0])
    push = ChainShaderSpecs.push(ChainShaderSpecs.family(:normal, :f64, [0.5, 1.5]), 2, 3, 0.1)
    call = fn -> NativeV.leapfrog_chain_synth_f64(two, two, two, push, 3, spv) end

    File.write!(spv, words)
    assert {:ok, chain} = call.()

    for broken <- [
          "",
          "junk",
          binary_part(words, 0, 1000),
          binary_part(words, 0, byte_size(words) - 4),
          <<0::32, words::binary>>
        ] do
      File.write!(spv, broken)
      assert {:error, :dispatch_failed, "read spv: " <> message} = call.()
      assert message =~ "chain.spv"
      File.write!(spv, words)
      assert call.() == {:ok, chain}
    end

    assert chain(16) == {:ok, wanted}
  end
end
