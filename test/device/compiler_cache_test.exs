defmodule Nx.Vulkan.CompilerCacheTest do
  # It changes how many compiled functions are kept.
  use ExUnit.Case, async: false

  @moduletag :device

  test "the oldest functions are dropped beyond the limit, and compiled again when they are called" do
    Application.put_env(:nx_vulkan, :compiler_cache_entries, 2)
    on_exit(fn -> Application.delete_env(:nx_vulkan, :compiler_cache_entries) end)
    parent = self()

    [first, second, third] =
      for i <- 1..3 do
        Nx.Defn.jit(
          fn x ->
            send(parent, {:traced, i})
            Nx.add(x, i)
          end,
          compiler: Nx.Vulkan
        )
      end

    for fun <- [first, second, third, third, second, first] do
      assert %Nx.Tensor{} = fun.(1)
      # What is over the limit goes in the background.
      :sys.get_state(Nx.Vulkan.Compiler.Cache)
    end

    traced = for {:traced, i} <- self() |> Process.info(:messages) |> elem(1), do: i
    assert traced == [1, 2, 3, 1]
    assert Nx.to_number(first.(1)) == 2
  end

  test "what counts compilations is dropped, too, so that ever new functions don't make the cache grow" do
    Application.put_env(:nx_vulkan, :compiler_cache_entries, 3)
    on_exit(fn -> Application.delete_env(:nx_vulkan, :compiler_cache_entries) end)

    sizes = fn ->
      state = :sys.get_state(Nx.Vulkan.Compiler.Cache)

      [
        map_size(state.counts),
        :queue.len(state.counted),
        :queue.len(state.made),
        :ets.info(Nx.Vulkan.Compiler.Cache, :size)
      ]
    end

    # Each has a name and a shape that no function before it had.
    for i <- 1..8 do
      {{:module, module, _, _}, _} =
        Code.eval_string("defmodule Nx.Vulkan.CacheGrowth#{i} do def twice(x), do: Nx.add(x, x) end")

      Nx.Defn.jit_apply(Function.capture(module, :twice, 1), [Nx.iota({i})], compiler: Nx.Vulkan)
    end

    # Those of earlier tests go as new ones come.
    assert Enum.all?(sizes.(), &(&1 <= 3))
  end

  test "a process that dies while it compiles leaves the key to those who wait" do
    parent = self()

    fun =
      Nx.Defn.jit(
        fn x ->
          send(parent, {:tracing, self()})
          receive(do: (:go -> Nx.add(x, 1)))
        end,
        compiler: Nx.Vulkan
      )

    {first, monitor} = spawn_monitor(fn -> fun.(1) end)
    assert_receive {:tracing, ^first}, 5000
    second = Task.async(fn -> Nx.to_number(fun.(1)) end)
    refute_receive {:tracing, _}, 100
    Process.exit(first, :kill)
    assert_receive {:DOWN, ^monitor, _, _, :killed}
    pid = second.pid
    assert_receive {:tracing, ^pid}, 5000
    send(pid, :go)
    assert Task.await(second) == 2
  end

  test "a function that captured an expression is found again, however many paths there are through it" do
    parent = self()
    x = Nx.tensor([1.0, 2.0])
    # 2^60 paths from the sum to x.
    doubled = Nx.Defn.debug_expr(fn x -> Enum.reduce(1..60, x, fn _, acc -> Nx.add(acc, acc) end) end).(x)

    run = fn expr ->
      captured = %{expr: {expr, fn -> expr end}}

      traced = fn x ->
        send(parent, :traced)
        Nx.multiply(elem(captured.expr, 0), x)
      end

      Nx.Defn.jit_apply(traced, [x], compiler: Nx.Vulkan) |> Nx.to_flat_list()
    end

    assert run.(doubled) == [2.0 ** 60, 4 * 2.0 ** 60]
    assert_received :traced
    assert run.(doubled) == [2.0 ** 60, 4 * 2.0 ** 60]
    refute_received :traced
    # Another expression is another function.
    assert run.(Nx.Defn.debug_expr(&Nx.negate/1).(x)) == [-1.0, -4.0]
    assert_received :traced
  end

  # As guides/compiler.md says.
  test "a function that was compiled runs as it was after a helper was redefined, until the cache is dropped" do
    [helper, caller] = for name <- ["Helper", "Caller"], do: Module.concat(__MODULE__, name)

    define = fn module, body ->
      ExUnit.CaptureIO.capture_io(:stderr, fn ->
        Code.eval_string("defmodule #{inspect(module)}, do: (import Nx.Defn; defn(run(x), do: #{body}))")
      end)
    end

    jit = fn opts ->
      Nx.to_number(Nx.Defn.jit_apply(Function.capture(caller, :run, 1), [1], [compiler: Nx.Vulkan] ++ opts))
    end

    Nx.Defn.default_options(compiler: Nx.Vulkan)
    direct = fn -> Nx.to_number(apply(caller, :run, [1])) end
    kept = Nx.tensor([1, 2], backend: Nx.Vulkan.VulkanoBackend)

    define.(helper, "x + 1")
    define.(caller, "#{inspect(helper)}.run(x) * 10")
    assert {jit.([]), direct.()} == {20, 20}
    define.(helper, "x + 2")
    assert {jit.([]), direct.(), jit.(cache: false)} == {20, 20, 30}
    define.(caller, "#{inspect(helper)}.run(x) * 100")
    assert {jit.([]), direct.()} == {20, 300}

    assert Nx.Vulkan.Compiler.clear_cache() >= 2
    assert {jit.([]), direct.()} == {300, 300}
    assert Nx.Vulkan.Compiler.clear_cache() == 2
    assert Nx.to_flat_list(kept) == [1, 2]
  end

  @tag :tmp_dir
  test "pipelines are kept on disk where a script ends without stopping the application", %{tmp_dir: folder} do
    paths = Enum.flat_map(:code.get_path(), &["-pa", List.to_string(&1)])

    script = """
    {:ok, _} = Application.ensure_all_started(:nx_vulkan)
    IO.write(Nx.to_number(Nx.sum(Nx.iota({4}, backend: Nx.Vulkan.VulkanoBackend))))
    """

    assert System.cmd("elixir", paths ++ ["-e", script], env: [{"NX_VULKAN_CACHE_DIR", folder}]) == {"6", 0}
    assert [_] = Path.wildcard(Path.join(folder, "pipelines/*.bin"))
  end

  test "compilations are counted anew where all functions are dropped for their memory" do
    key = make_ref()
    assert Enum.map(1..2, fn _ -> Nx.Vulkan.Compiler.Cache.count(key) end) == [1, 2]
    Nx.Vulkan.Compiler.clear_cache()
    assert Nx.Vulkan.Compiler.Cache.count(key) == 1
  end

  describe "a function that captured large binaries" do
    setup do
      parent = self()
      Application.put_env(:nx_vulkan, :recompile_warning, :infinity)
      on_exit(fn -> Application.delete_env(:nx_vulkan, :recompile_warning) end)

      # Traced once for each entry of the cache.
      call = fn weights ->
        traced = fn x ->
          send(parent, :traced)
          Nx.add(Nx.slice(weights.w, [500], [2]), x)
        end

        traced |> Nx.Defn.jit_apply([1], compiler: Nx.Vulkan) |> Nx.to_flat_list()
      end

      %{call: call, weights: fn binary -> %{w: Nx.from_binary(binary, :u8, backend: Nx.BinaryBackend)} end}
    end

    test "is found again by an equal one, in any process", %{call: call, weights: weights} do
      binary = :binary.copy(<<5>>, 8000)
      first = weights.(binary)
      assert call.(first) == [6, 6]
      assert_received :traced
      assert call.(first) == [6, 6]
      assert call.(weights.(:binary.copy(binary))) == [6, 6]
      assert Task.await(Task.async(fn -> call.(weights.(:binary.copy(binary))) end)) == [6, 6]
      refute_received :traced
    end

    test "is not taken for one that differs in a byte, wherever it is", %{call: call, weights: weights} do
      binary = :binary.copy(<<6>>, 8000)
      # Few of all bytes are in the key.
      others = for at <- [0, 499, 500, 501, 7998, 7999], do: {at, put_byte(binary, at, 40 + rem(at, 7))}
      assert call.(weights.(binary)) == [7, 7]
      assert_received :traced

      for {at, other} <- others do
        <<_::binary-size(500), a, b, _::binary>> = other
        assert call.(weights.(other)) == [a + 1, b + 1]
        assert_received :traced, "the one that differs at #{at} was taken for another"
      end

      for {_, other} <- [{nil, binary} | others], do: call.(weights.(other))
      refute_received :traced
      # One byte more.
      assert call.(weights.(binary <> <<6>>)) == [7, 7]
      assert_received :traced
    end

    test "leaves nothing once it is dropped", %{call: call, weights: weights} do
      Application.put_env(:nx_vulkan, :compiler_cache_entries, 2)
      on_exit(fn -> Application.delete_env(:nx_vulkan, :compiler_cache_entries) end)
      all = for i <- 1..5, do: weights.(put_byte(:binary.copy(<<7>>, 8000), 3000, i))
      for one <- all ++ all, do: assert(call.(one) == [8, 8])
      for _ <- 1..10, do: assert_received(:traced)
      :sys.get_state(Nx.Vulkan.Compiler.Cache)
      # A list of two, and two entries.
      assert :ets.info(Nx.Vulkan.Compiler.Cache, :size) == 3
    end
  end

  defp put_byte(binary, at, byte) do
    <<before::binary-size(at), _, rest::binary>> = binary
    <<before::binary, byte, rest::binary>>
  end
end
