defmodule Nx.Vulkan.Device.MemoryTest do
  # Alone: it looks at the counters of the one device.
  use ExUnit.Case, async: false

  import Nx.Vulkan.DeviceMemory, only: [in_use_bytes: 0]

  alias Nx.Vulkan.{NativeV, VulkanoBackend}

  @moduletag :device
  @moduletag timeout: 600_000

  setup_all do: Nx.Vulkan.DeviceMemory.await_idle()

  test "100,000 dropped tensors leave the pool where it was" do
    t = Nx.iota({1024}, type: :f32, backend: VulkanoBackend)
    one = Nx.tensor(1.0, backend: VulkanoBackend)
    Nx.to_binary(Nx.add(t, one))
    before = in_use_bytes()
    reserved = NativeV.device_stats().reserved_bytes

    for _ <- 1..100_000, do: Nx.add(t, one) && nil

    assert Nx.to_binary(Nx.add(t, one), limit: 1) == <<1.0::float-32-native>>
    # One or two may still be in a register of this process.
    assert in_use_bytes() - before <= 2 * 4096
    # What is in flight at any time bounds what the pool takes from the driver.
    assert NativeV.device_stats().reserved_bytes <= max(2 * reserved, 512 * 1024 * 1024)
  end

  test "results of 88 MB that nobody needs any more serve the next ones" do
    x = Nx.iota({11_000_000}, type: :f64, backend: VulkanoBackend)
    in_use_bytes()
    reserved = fn -> NativeV.device_stats().reserved_bytes end
    twice = Nx.Defn.jit(&Nx.multiply(&1, 2), compiler: Nx.Vulkan)

    for call <- [&Nx.add(&1, 1.0), twice] do
      before = reserved.()
      for _ <- 1..12, do: Nx.to_binary(call.(x), limit: 1)
      # Destructors run some time after the collection.
      assert reserved.() - before <= 5 * 88_000_000
    end
  end

  test "compiled functions are collected once nobody holds them" do
    before = in_use_bytes()
    one = Nx.tensor([1, 2], backend: VulkanoBackend)

    for i <- 1..200 do
      fun = fn x -> Nx.add(x, Nx.tensor([i, i + 1], backend: Nx.BinaryBackend)) end
      Nx.Defn.jit_apply(fun, [one], compiler: Nx.Vulkan, cache: false)
    end

    assert in_use_bytes() - before < 4_000_000
  end

  # As training goes: each step's results are the next one's arguments, and the last are dropped.
  test "compiled training stays within the memory of its first steps" do
    step =
      Nx.Defn.jit(
        fn w, x, y ->
          {loss, g} = Nx.Defn.value_and_grad(w, &Nx.mean(Nx.pow(Nx.subtract(Nx.dot(Nx.tanh(Nx.dot(x, &1)), &1), y), 2)))
          {loss, Nx.subtract(w, Nx.multiply(g, 0.01))}
        end,
        compiler: Nx.Vulkan
      )

    [x, w, y] =
      for {shape, scale} <- [{{40, 24}, 1.0}, {{24, 24}, 0.1}, {{40, 24}, 0.5}] do
        Nx.iota(shape, type: :f32, backend: VulkanoBackend) |> Nx.sin() |> Nx.multiply(scale)
      end

    {_, stats} =
      Enum.reduce(1..1000, {w, []}, fn i, {w, stats} ->
        {loss, w} = step.(w, x, y)
        if rem(i, 250) == 0, do: Nx.to_number(loss)
        {w, if(i in [100, 1000], do: stats ++ [{in_use_bytes(), NativeV.device_stats()}], else: stats)}
      end)

    [{before, first}, {later, last}] = stats
    assert later - before <= 64 * 1024
    assert last.reserved_bytes == first.reserved_bytes
    assert last.pipelines == first.pipelines
  end

  # The pool has free blocks of this size after the first step, so that no growth asks for a collection.
  test "states that a compiled step has replaced are collected, however much memory is left" do
    step = Nx.Defn.jit(&Nx.add(&1, 1), compiler: Nx.Vulkan)
    state = Nx.broadcast(Nx.tensor(0.0, backend: VulkanoBackend), {8 * 1024 * 1024}) |> Nx.add(Nx.iota({1}))
    assert Nx.to_number(after_few_states(step, state, 32 * 1024 * 1024)[0]) == 60.0
  end

  test "they are collected where the device is so far behind that calls wait for it, too" do
    step = Nx.Defn.jit(fn x -> Enum.reduce(1..8, x, fn _, x -> Nx.add(Nx.sin(x), 1) end) end, compiler: Nx.Vulkan)
    state_bytes = 16 * 1024 * 1024
    state = Nx.iota({div(state_bytes, 4)}, type: :f32, backend: VulkanoBackend)
    assert_in_delta Nx.to_number(after_few_states(step, state, state_bytes)[0]), 1.934563, 1.0e-4
  end

  # The state after 60 steps, of which garbage and those that a call has or makes are in memory at once.
  defp after_few_states(step, state, state_bytes) do
    before = in_use_bytes()
    {:ok, %{memory_bytes: memory_bytes}} = Nx.Vulkan.device_info()
    garbage = Enum.max([128 * 1024 * 1024, div(memory_bytes, 256), div(before, 4)])

    {state, most} =
      Enum.reduce(1..60, {state, 0}, fn _, {state, most} ->
        state = step.(state)
        # What is in use, without a collection of the test's own.
        {state, max(most, NativeV.device_stats().in_use_bytes)}
      end)

    assert most - before <= garbage + 4 * state_bytes
    state
  end

  test "steps of training take no memory from the driver, and one submission at most, once the first are done" do
    Code.require_file("bench/models.exs")
    sizes = [36, 24, 16, 10]

    parameters =
      for [n, m] <- Enum.chunk_every(sizes, 2, 1, :discard), shape <- [{n, m}, {m}] do
        Nx.iota(shape, type: :f32, backend: VulkanoBackend) |> Nx.sin() |> Nx.multiply(0.1)
      end

    zeros = List.to_tuple(Enum.map(parameters, &Nx.multiply(&1, 0)))
    images = Nx.iota({20, hd(sizes)}, type: :f32, backend: VulkanoBackend) |> Nx.cos()
    labels = Nx.eye({20, 10}, type: :f32, backend: VulkanoBackend)
    step = Nx.Defn.jit(&apply(Models, :mlp_step, [&1, &2, &3]), compiler: Nx.Vulkan)
    zero = Nx.tensor(0.0, backend: VulkanoBackend)

    # Every step's loss is read, so that each is a submission of its own.
    steps = fn state, n ->
      Enum.reduce(1..n, state, fn _, state ->
        {loss, state} = step.(state, images, labels)
        assert Nx.to_number(loss) > 0
        state
      end)
    end

    state = steps.({List.to_tuple(parameters), zeros, zeros, zero}, 100)
    before = NativeV.device_stats()
    steps.(state, 200)
    later = NativeV.device_stats()
    assert later.allocations == before.allocations
    assert later.submissions - before.submissions <= 200
    assert later.pipelines == before.pipelines
  end

  test "tensors of a process return with the process" do
    make = fn -> for i <- 1..100, do: Nx.iota({1000}, type: :f64, backend: VulkanoBackend) |> Nx.add(i) end
    # The constants of the ops stay cached, and the cache starts over when it is full.
    make.()
    before = in_use_bytes()

    Task.async(fn ->
      tensors = make.()
      assert NativeV.device_stats().in_use_bytes >= before + 800_000
      tensors |> Enum.map(&Nx.to_number(&1[10])) |> Enum.sum()
    end)
    |> Task.await()

    assert in_use_bytes() - before < 200 * 1024
  end

  test "a view keeps the memory of the tensor that it shows" do
    make = fn -> Nx.add(Nx.iota({100_000}, type: :f32, backend: VulkanoBackend), 0.0)[[10..12]] end
    make.()
    before = in_use_bytes()
    part = make.()
    assert in_use_bytes() - before >= 400_000
    assert Nx.to_flat_list(part) == [10.0, 11.0, 12.0]
    Nx.backend_deallocate(part)
    assert in_use_bytes() - before < 100_000
  end

  test "deallocating returns the memory at once" do
    t = Nx.iota({250_000}, type: :f32, backend: VulkanoBackend) |> Nx.multiply(2)
    before = in_use_bytes()
    Nx.backend_deallocate(t)
    assert before - NativeV.device_stats().in_use_bytes >= 1_000_000
  end

  # In a VM of its own, whose device may take 300 MB for tensors.
  defp with_little_memory(script), do: with_memory(300_000_000, script)

  defp with_memory(device_bytes, script, env \\ []) do
    paths = Enum.flat_map(:code.get_path(), &["-pa", List.to_string(&1)])
    setup = "{:ok, _} = Application.ensure_all_started(:nx); Nx.default_backend(Nx.Vulkan.VulkanoBackend);"
    env = [{"NX_VULKAN_MEMORY_LIMIT", "#{device_bytes}"} | env]
    System.cmd("elixir", paths ++ ["-e", setup <> script], env: env, stderr_to_stdout: true)
  end

  test "a process that drops large tensors faster than it is collected does not run out of memory" do
    # The list keeps the heap large, so that collections are rare.
    script = """
    ballast = Enum.to_list(1..500_000)
    t = Nx.iota({4_000_000}, type: :f32)
    for i <- 1..200, do: {Nx.multiply(Nx.add(t, i), 2), hd(ballast)} && nil
    IO.write(Nx.to_number(Nx.add(t, 1)[3_999_999]))
    """

    assert with_little_memory(script) == {"4.0e6", 0}
  end

  test "memory that is really held runs out with an error that says how much" do
    script = """
    t = Nx.iota({4_000_000}, type: :f32)

    try do
      for i <- 1..100, do: Nx.add(t, i)
    rescue
      e -> IO.write("\#{e.kind} \#{e.op} \#{e.details.size_bytes} \#{e.details.budget_bytes}")
    end

    IO.write(" \#{Nx.to_number(Nx.add(t, 1)[1])}")
    """

    # Host memory serves first where the device has less than the host.
    assert {"out_of_memory add 16000000 300000000 2.0", 0} = with_little_memory(script)
  end

  # As on a GPU whose memory is its own, on any device.
  test "what was spilled goes back once nobody has it" do
    script = """
    {:ok, _} = Application.ensure_all_started(:nx_vulkan)
    t = Nx.iota({4_000_000}, type: :f32)

    fill = fn ->
      Stream.repeatedly(fn ->
        try do
          Nx.add(t, 1)
        rescue
          e in Nx.Vulkan.Error -> if e.kind == :out_of_memory, do: nil, else: reraise(e, __STACKTRACE__)
        end
      end)
      |> Enum.take_while(& &1)
    end

    for _ <- 1..2 do
      held = fill.()
      full = Nx.Vulkan.memory()
      sums = for x <- held, do: trunc(Nx.to_number(x[3_999_999]))
      IO.write("\#{Enum.uniq(sums) == [4_000_000]} \#{full.spilled_bytes > 200_000_000} \#{full.reserved_bytes > 500_000_000} ")
      Enum.each(held, &Nx.backend_deallocate/1)

      wait = fn wait, n ->
        reserved = Nx.Vulkan.memory().reserved_bytes
        if n == 0 or reserved < 350_000_000, do: reserved, else: (Process.sleep(100); wait.(wait, n - 1))
      end

      # Within 2 s, on a host that has time for it; the device's own stays.
      IO.write("\#{wait.(wait, 100) < 350_000_000} \#{Nx.Vulkan.memory().spilled_bytes} ")
    end

    Nx.backend_deallocate(t)
    Nx.Vulkan.trim()
    IO.write(Nx.Vulkan.memory().reserved_bytes < 60_000_000)
    """

    assert {"true true true true 0 true true true true 0 true", 0} =
             with_memory(300_000_000, script, [{"NX_VULKAN_HOST_ACCESS", "small"}])
  end

  test "compiled functions give back the tensors that they captured where memory runs out" do
    script = """
    {:ok, _} = Application.ensure_all_started(:nx_vulkan)
    Application.put_env(:nx_vulkan, :recompile_warning, :infinity)
    parent = self()

    call = fn i ->
      captured = Nx.broadcast(Nx.tensor(i, type: :f32, backend: Nx.BinaryBackend), {1_000_000})
      fun = fn x -> send(parent, i) && Nx.reduce_max(Nx.add(captured, x)) end
      trunc(Nx.to_number(Nx.Defn.jit_apply(fun, [1], compiler: Nx.Vulkan)))
    end

    sums = for i <- 1..60, do: call.(i)
    first = call.(1)
    {:messages, traced} = Process.info(parent, :messages)
    IO.write("\#{sums == Enum.to_list(2..61)} \#{first} \#{List.last(traced)}")
    """

    # 25 of the tensors would fill the device.
    assert with_memory(100_000_000, script) == {"true 2 1", 0}
  end

  test "no memory for arguments and captured tensors is an error of the function, and of its run or compilation" do
    script = """
    {:ok, _} = Application.ensure_all_started(:nx_vulkan)
    large = fn n -> Nx.broadcast(Nx.tensor(1.0, backend: Nx.BinaryBackend), {n}) end

    defmodule Model do
      def sum(x), do: Nx.sum(x)
      def captures(large), do: &Nx.sum(Nx.add(large, &1))
      def tell([_, _, what | _], _, %{name: name, reason: %{kind: kind}}, _),
        do: IO.puts("\#{what}: \#{kind}, \#{name}")
    end

    events = for event <- [:run, :compile], do: [:nx_vulkan, :compiler, event, :exception]
    :telemetry.attach_many("tell", events, &Model.tell/4, nil)

    for {fun, argument} <- [{&Model.sum/1, large.(1_000_000)}, {Model.captures(large.(1_000_000)), 1}] do
      # What is left of the device's memory, and the host's.
      held = Stream.repeatedly(fn ->
        try do
          Nx.iota({250_000}, type: :f32)
        rescue
          _ -> nil
        end
      end) |> Enum.take_while(& &1)

      try do
        Nx.Defn.jit_apply(fun, [argument], compiler: Nx.Vulkan)
      rescue
        error in Nx.Vulkan.Error -> IO.puts("\#{error.kind} \#{error.op}: \#{error.message}")
      end

      Enum.each(held, &Nx.backend_deallocate/1)
    end
    """

    assert {output, 0} = with_memory(20_000_000, script)

    assert [run, of_argument, compile, of_captured] = String.split(output, "\n", trim: true)
    assert run == "run: out_of_memory, Model.sum/1"
    assert of_argument =~ ~r"^out_of_memory tensor_from_binary: out of device memory: .*, in Model.sum/1$"
    assert compile =~ ~r"^compile: out_of_memory, .*Model.captures/1$"
    assert of_captured =~ ~r"^out_of_memory tensor_from_binary: out of device memory: .*, in .*Model.captures/1$"
  end

  # A limit of the address space stands for a host that has no more memory.
  unless File.exists?("/proc/self/status") and System.find_executable("prlimit") do
    @tag skip: "needs Linux and prlimit of util-linux"
  end

  test "results that the host has no memory for are failed downloads, and the VM goes on" do
    script = """
    alias Nx.Vulkan.{ChainShaderSpecs, NativeV}
    n = 25_000
    state = :binary.copy(<<0.5::float-32-little>>, n)
    push = ChainShaderSpecs.push(ChainShaderSpecs.family(:normal, :f32, [0.5, 1.5]), n, 200, 0.1)
    spv = Application.app_dir(:nx_vulkan, "priv/shaders/leapfrog_chain_normal.spv")
    chain = fn -> NativeV.leapfrog_chain_synth(state, state, state, push, 200, spv) end
    {:ok, large} = NativeV.buf_alloc(60_000_000)
    {:ok, small} = NativeV.buf_upload("abcd")
    # The pool keeps its memory on the device, and this process the memory of its results.
    {:ok, results} = chain.()

    soft_limit = fn bytes -> {_, 0} = System.cmd("prlimit", ["--pid", System.pid(), "--as=\#{bytes}:"]) end
    [_, kib] = Regex.run(~r/VmSize:\\s+(\\d+) kB/, File.read!("/proc/self/status"))
    soft_limit.(1024 * String.to_integer(kib) + 30_000_000)
    answers = [NativeV.buf_download(large), chain.(), NativeV.buf_download(small)]
    soft_limit.("unlimited")

    [{:error, :download_failed, message}, {:error, :download_failed, of_chain}, {:ok, "abcd"}] = answers
    {:ok, zeros} = NativeV.buf_download(large)
    {:ok, ^results} = chain.()
    IO.write("\#{message}; \#{of_chain}; \#{byte_size(zeros)} bytes")
    """

    assert {"no host memory for 60000000 bytes; no host memory for 60000800 bytes; 60000000 bytes", 0} =
             with_memory(1_000_000_000, script)
  end
end
