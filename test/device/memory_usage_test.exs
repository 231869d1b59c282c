defmodule Nx.Vulkan.Device.MemoryUsageTest do
  # Alone: it looks at what all processes have of the one device.
  use ExUnit.Case, async: false

  import Nx.Vulkan.DeviceMemory, only: [in_use_bytes: 0]

  import Nx.Defn

  alias Nx.Vulkan.{Error, VulkanoBackend}

  @moduletag :device
  @mega 1024 * 1024

  setup_all do: Nx.Vulkan.DeviceMemory.await_idle()

  defp tensor(megabytes, value \\ 1),
    do: Nx.add(Nx.iota({div(megabytes * @mega, 4)}, type: :f32, backend: VulkanoBackend), value)

  defp of(pid), do: Enum.find(Nx.Vulkan.memory().processes, %{bytes: 0, limit_bytes: nil}, &(&1.pid == pid))

  defp events(names) do
    test = self()
    :telemetry.attach_many(inspect(test), for(name <- names, do: [:nx_vulkan, :memory, name]), &__MODULE__.tell/4, test)
    on_exit(fn -> :telemetry.detach(inspect(test)) end)
  end

  def tell([_, _, name | _], measurements, metadata, test), do: send(test, {name, measurements, metadata})

  test "a tensor of a file is of the process that reads it, within its limit" do
    path = Path.join(System.tmp_dir!(), "nx_vulkan_usage_#{System.pid()}_#{System.unique_integer([:positive])}")
    File.write!(path, :binary.copy(<<1>>, 4 * @mega))
    on_exit(fn -> File.rm(path) end)
    before = of(self()).bytes
    held = Nx.Vulkan.from_file(path, :u8, {4 * @mega})
    assert of(self()).bytes - before >= 4 * @mega
    assert Nx.to_number(held[4 * @mega - 1]) == 1

    limited =
      Task.async(fn ->
        Nx.Vulkan.memory_limit(@mega)
        assert_raise Error, fn -> Nx.Vulkan.from_file(path, :u8, {4 * @mega}) end
      end)

    assert %Error{kind: :out_of_memory, details: %{limit_bytes: @mega}} = Task.await(limited, 60_000)
  end

  test "what is computed to be shared is the process' own, within its limit" do
    task =
      Task.async(fn ->
        Nx.Vulkan.VulkanoBackend.put_eager(:deferred)
        x = Nx.iota({1, 1024}, type: :f32, backend: Nx.Vulkan.VulkanoBackend)
        Nx.backend_copy(x, Nx.BinaryBackend)
        Nx.Vulkan.memory_limit(16_384)
        # Not computed before it is asked for.
        wide = x |> Nx.broadcast({8, 1024}) |> Nx.add(1)
        assert_raise Error, fn -> Nx.to_pointer(wide, mode: :local) end
      end)

    assert %Error{kind: :out_of_memory, details: %{limit_bytes: 16_384}} = Task.await(task, 60_000)
  end

  test "kinds make up what the pool has, and the device has the rest" do
    held = tensor(4)
    in_use_bytes()
    memory = Nx.Vulkan.memory()
    assert memory.kinds |> Map.values() |> Enum.sum() == memory.reserved_bytes
    assert memory.kinds.tensors >= 4 * @mega
    assert memory.in_use_bytes <= memory.peak_bytes
    assert memory.reserved_bytes <= memory.total_bytes
    assert memory.budget_bytes <= memory.total_bytes
    assert memory.device == Nx.Vulkan.device_name()
    assert Nx.Vulkan.memory(device: 0, top: 0) |> Map.fetch!(:processes) == []
    assert_raise ArgumentError, fn -> Nx.Vulkan.memory(other: 1) end
    assert Nx.to_number(held[0]) == 1.0
  end

  test "a tensor is of the process that computed it, wherever it is" do
    test = self()
    before = of(test).bytes

    task =
      Task.async(fn ->
        Process.register(self(), :maker_of_tensors)
        send(test, {:made, tensor(6)})
        kept = tensor(3)
        # A view takes no memory of its own.
        view = Nx.reshape(kept, {3, :auto})
        :erlang.garbage_collect()
        send(test, :waits)
        receive do: (:go_on -> :ok)
        Nx.to_number(view[0][0])
      end)

    assert_receive {:made, made}, 60_000
    assert_receive :waits, 60_000
    in_use_bytes()
    maker = of(task.pid)
    assert maker.name == :maker_of_tensors
    assert_in_delta maker.bytes, 9 * @mega, @mega
    assert [%{pid: first} | _] = Nx.Vulkan.memory(top: 1).processes
    assert is_pid(first)

    send(task.pid, :go_on)
    assert Task.await(task) == 1.0
    in_use_bytes()
    assert_in_delta of(task.pid).bytes, 6 * @mega, @mega
    assert of(test).bytes - before < @mega
    Nx.backend_deallocate(made)
    assert of(task.pid).bytes < @mega
  end

  test "tensors that compiled functions captured are told, and given back with the function" do
    before = Nx.Vulkan.memory().kinds.captured
    bytes = in_use_bytes()
    captured = Nx.iota({2 * @mega}, type: :f32, backend: Nx.BinaryBackend)
    fun = fn x -> Nx.sum(Nx.multiply(captured, x)) end
    jitted = Nx.Defn.jit(fun, compiler: Nx.Vulkan)
    other = Nx.Defn.jit(&Nx.add(&1, 1), compiler: Nx.Vulkan)
    result = Nx.to_number(jitted.(2.0))
    Nx.to_number(other.(1))
    in_use_bytes()
    assert Nx.Vulkan.memory().kinds.captured - before >= 8 * @mega

    test = self()
    :telemetry.attach(inspect(test), [:nx_vulkan, :compiler, :compile, :stop], &__MODULE__.tell/4, test)
    on_exit(fn -> :telemetry.detach(inspect(test)) end)
    assert Nx.Vulkan.unload(jitted) == :ok
    assert Nx.Vulkan.memory().kinds.captured - before < @mega
    assert in_use_bytes() - bytes < @mega
    Nx.to_number(other.(1))
    refute_received {:compile, _, _}
    assert Nx.to_number(jitted.(2.0)) == result
    assert_received {:compile, _, _}
    Nx.Vulkan.unload(fun)
    assert in_use_bytes() - bytes < @mega
  end

  defn(scaled(x, factor \\ 3), do: Nx.multiply(x, factor))
  defn(scaled_sum(x), do: x |> scaled() |> Nx.sum())
  defn(meshed(x), do: Nx.add(x, 1))

  defp compiled(fun) do
    test = self()
    id = inspect(make_ref())
    :telemetry.attach(id, [:nx_vulkan, :compiler, :compile, :stop], &__MODULE__.tell/4, test)
    fun.()
    :telemetry.detach(id)
    names([])
  end

  defp names(names) do
    receive do
      {:compile, _, %{name: name}} -> names([name | names])
    after
      0 -> names |> Enum.reverse() |> Enum.map(&(&1 |> String.split(".") |> List.last()))
    end
  end

  test "a definition that is called by its name is dropped by its name" do
    before = Nx.Defn.default_options(compiler: Nx.Vulkan)
    on_exit(fn -> Nx.Defn.default_options(before) end)
    x = Nx.tensor([1.0, 2.0], backend: VulkanoBackend)

    all = fn ->
      scaled(x)
      scaled(x, 2)
      scaled_sum(x)
      Nx.Defn.jit(&__MODULE__.scaled_sum/1).(x)
    end

    assert "scaled_sum/1" in compiled(all)
    assert compiled(all) == []

    # Whichever arguments are left out, and from within the module or elsewhere.
    for {function, dropped} <- [
          {&__MODULE__.scaled/2, ["scaled/2"]},
          {&__MODULE__.scaled/1, ["scaled/2"]},
          {&scaled/2, ["scaled/2"]},
          {&__MODULE__.scaled_sum/1, ["scaled_sum/1", "scaled_sum/1"]},
          {&scaled_sum/1, ["scaled_sum/1", "scaled_sum/1"]},
          {&__MODULE__.meshed/1, []}
        ] do
      Nx.Vulkan.unload(function)
      assert {function, compiled(all)} == {function, dropped}
    end
  end

  test "a function on a mesh is dropped" do
    mesh = %Nx.Mesh{name: "m", shape: {1}}
    x = Nx.iota({4}, backend: VulkanoBackend)
    run = fn -> Nx.Defn.shard_jit(&__MODULE__.meshed/1, mesh, compiler: Nx.Vulkan, input_shardings: [%{}]).([[x]]) end
    assert compiled(run) == ["meshed/1"]
    assert compiled(run) == []
    Nx.Vulkan.unload(&__MODULE__.meshed/1)
    assert compiled(run) == ["meshed/1"]
  end

  test "tensors are found wherever they are in what is unloaded" do
    bytes = in_use_bytes()
    batch = Nx.Batch.stack([tensor(1), tensor(1)]) |> Nx.Batch.concatenate([Nx.new_axis(tensor(1), 0)])

    all = [
      MapSet.new([tensor(1), {tensor(1, 2), 1}]),
      %{{:key, tensor(1)} => tensor(1)},
      %URI{userinfo: tensor(1)},
      1..2,
      [1 | tensor(1)],
      {batch, Stream.map([1], & &1)}
    ]

    assert in_use_bytes() - bytes >= 9 * @mega
    assert Nx.Vulkan.unload(all) == :ok
    assert in_use_bytes() - bytes < 64 * 1024
    assert length(all) == 6
  end

  test "a model of Axon gives all back" do
    model = Axon.input("x", shape: {nil, 1024}) |> Axon.dense(1024, activation: :relu) |> Axon.dense(512)
    {init, predict} = Axon.build(model, compiler: Nx.Vulkan)
    x = Nx.iota({8, 1024}, type: :f32, backend: VulkanoBackend) |> Nx.sin()
    # Constants of ops that stay.
    run = fn ->
      params =
        Nx.with_default_backend(VulkanoBackend, fn -> init.(Nx.template({1, 1024}, :f32), Axon.ModelState.empty()) end)

      for i <- 1..5, do: predict.(params, Nx.multiply(x, i)) |> Nx.sum() |> Nx.to_number()
      params
    end

    Nx.Vulkan.unload({run.(), init, predict})
    before = in_use_bytes()
    params = run.()
    assert in_use_bytes() - before >= 6 * @mega
    assert Nx.Vulkan.unload(%{params: params, functions: {init, predict}}) == :ok
    assert in_use_bytes() - before < 64 * 1024
    assert Nx.Vulkan.memory().kinds.copies == 0
    assert %Error{kind: :released} = catch_error(predict.(params, x))
  end

  test "a process has its limit, and others have none" do
    events([:reclaim, :out_of_memory])
    other = tensor(32)

    task =
      Task.async(fn ->
        assert Nx.Vulkan.memory_limit(40 * @mega) == :infinity
        assert Nx.Vulkan.memory_limit(24 * @mega) == 40 * @mega
        x = tensor(4)
        # Garbage goes before that is an error, with a heap that is rarely collected.
        ballast = Enum.to_list(1..500_000)
        for i <- 1..60, do: {Nx.add(x, i), hd(ballast)} && nil
        many = fn -> for i <- 1..10, do: Nx.add(x, i) end
        error = assert_raise Error, ~r/may have: raise its limit/, many
        assert error.kind == :out_of_memory and error.op == :add
        assert error.details.limit_bytes == 24 * @mega
        assert error.details.size_bytes >= 4 * @mega
        assert error.details.held_bytes + error.details.size_bytes > 24 * @mega
        # A compiled function, and an upload.
        square =
          Nx.Defn.jit(fn x -> {Nx.add(x, 1), Nx.add(x, 2), Nx.add(x, 3), Nx.add(x, 4), Nx.add(x, 5), Nx.add(x, 6)} end,
            compiler: Nx.Vulkan
          )

        assert %Error{kind: :out_of_memory} = catch_error(square.(x))

        assert %Error{kind: :out_of_memory, details: %{limit_bytes: _}} =
                 catch_error(Nx.from_binary(:binary.copy(<<0>>, 32 * @mega), :u8, backend: VulkanoBackend))

        # What is there goes on being read, and what fits is computed.
        assert Nx.to_number(x[0]) == 1.0
        assert Nx.to_number(Nx.sum(Nx.multiply(x, 0))) == 0.0
        assert %{limit_bytes: 25_165_824} = of(self())
        assert Nx.Vulkan.memory_limit(:infinity) == 24 * @mega
        assert length(many.()) == 10
        Nx.to_number(x[0])
      end)

    assert Task.await(task, 120_000) == 1.0
    assert {:ok, %{index: index}} = Nx.Vulkan.device_info()
    assert_received {:reclaim, %{in_use_bytes: _, spilled_bytes: _}, %{step: :collect_at_once, device: ^index}}
    assert_received {:out_of_memory, %{size_bytes: _}, %{op: :add, details: %{held_bytes: _, device: ^index}}}
    assert Nx.to_number(Nx.add(other, 1)[0]) == 2.0
    assert Nx.Vulkan.memory_limit(:infinity) == :infinity
    assert Nx.Vulkan.memory_limit(:infinity) == :infinity
  end

  test "the configuration limits every process that has no limit of its own" do
    script = """
    {:ok, _} = Application.ensure_all_started(:nx_vulkan)
    mega = 1024 * 1024
    kind = fn fun -> try do fun.(); :ok rescue error in Nx.Vulkan.Error -> {error.kind, error.details.limit_bytes} end end
    make = fn megabytes -> Nx.iota({megabytes * mega}, type: :u8) end
    Nx.global_default_backend(Nx.Vulkan.VulkanoBackend)
    {:out_of_memory, 4_194_304} = kind.(fn -> make.(5) end)
    :ok = kind.(fn -> make.(1) end)

    other = fn ->
      {:out_of_memory, 4_194_304} = kind.(fn -> make.(5) end)
      4_194_304 = Nx.Vulkan.memory_limit(16 * mega)
      kept = make.(5)
      {:out_of_memory, 16_777_216} = kind.(fn -> make.(17) end)
      16_777_216 = Nx.Vulkan.memory_limit(:infinity)
      :ok = kind.(fn -> make.(17) end)
      %{processes: processes} = Nx.Vulkan.memory()
      [nil] = for %{pid: pid, limit_bytes: limit} <- processes, pid == self(), do: limit
      kept
    end

    Task.async(other) |> Task.await(60_000)
    held = make.(1)
    [4_194_304] = for %{pid: pid, limit_bytes: limit} <- Nx.Vulkan.memory().processes, pid == self(), do: limit
    # Those that took nothing are not listed.
    Task.async(fn -> Nx.add(Nx.tensor(1), 1) |> Nx.to_number() end) |> Task.await()
    true = Enum.all?(Nx.Vulkan.memory().processes, &(&1.bytes > 0 or &1.limit_bytes != 4_194_304))
    IO.write("limited \#{Nx.to_number(held[2])}")
    """

    paths = Enum.flat_map(Path.wildcard("#{Mix.Project.build_path()}/lib/*/ebin"), &["-pa", &1])
    arguments = ["--erl", "-nx_vulkan process_memory_limit 4194304", "-e", script]
    assert System.cmd("elixir", paths ++ arguments) == {"limited 2", 0}
  end

  test "what is no number of bytes or processes is an error that says so" do
    for bytes <- [-1, 1.5, nil, :all, "1GiB", 2 ** 63, 2 ** 70] do
      assert_raise ArgumentError, ~r/expected a number of bytes below 2 \*\* 63, or :infinity.*got: /, fn ->
        Nx.Vulkan.memory_limit(bytes)
      end
    end

    for top <- [-1, nil, 1.0, :all] do
      assert_raise ArgumentError, ~r/expected :top to be a number of processes or :infinity, got: /, fn ->
        Nx.Vulkan.memory(top: top)
      end
    end

    for device <- [-1, "", :first, 1.0] do
      assert_raise ArgumentError, ~r/expected :device/, fn -> Nx.Vulkan.memory(device: device) end
      assert_raise ArgumentError, ~r/expected :device/, fn -> Nx.Vulkan.trim(device: device) end
      assert_raise ArgumentError, ~r/expected :device/, fn -> Nx.Vulkan.memory_limit(1, device: device) end
    end

    for device <- [63, 64, 2 ** 70] do
      assert %Error{kind: :no_device} = catch_error(Nx.Vulkan.memory(device: device))
    end

    assert Nx.Vulkan.memory_limit(2 ** 63 - 1) == :infinity
    assert Nx.Vulkan.memory_limit(:infinity) == 2 ** 63 - 1
  end

  test "free memory goes back by hand" do
    events([:trim])
    tensor(100) |> Nx.backend_deallocate()
    in_use_bytes()
    before = Nx.Vulkan.memory()
    assert before.kinds.free >= 100 * @mega
    freed = Nx.Vulkan.trim()
    assert freed >= 100 * @mega
    assert_received {:trim, %{freed_bytes: ^freed}, %{device: index}}
    assert {:ok, %{index: ^index}} = Nx.Vulkan.device_info()
    later = Nx.Vulkan.memory()
    assert before.reserved_bytes - later.reserved_bytes >= freed - @mega
    assert Nx.to_number(tensor(1)[1]) == 2.0
  end
end
