defmodule Nx.Vulkan.Device.DeferredTest do
  # Alone: it looks at the counters of the one device, and changes the environment of the VM.
  use ExUnit.Case, async: false

  import Nx.Vulkan.DeviceMemory, only: [in_use_bytes: 0]

  alias Nx.Vulkan.{NativeV, VulkanoBackend}

  @moduletag :device
  @moduletag timeout: 600_000

  setup_all do: Nx.Vulkan.DeviceMemory.await_idle()

  # More than the runs after which a structure is compiled.
  @repeats 20

  setup do
    Nx.default_backend(VulkanoBackend)
    VulkanoBackend.put_eager(:deferred)
    :ok
  end

  defp place(value, opts \\ []), do: Nx.tensor(value, [backend: VulkanoBackend] ++ opts)
  defp stats, do: NativeV.device_stats()

  # A density of the sort that samplers evaluate: mixed shapes, slices of the parameters, a reduction.
  defp density(q, x) do
    scale = Nx.exp(q[1])
    z = Nx.divide(Nx.subtract(x, q[0]), scale)
    Nx.sum(Nx.multiply(-0.5, Nx.pow(z, 2))) |> Nx.subtract(Nx.multiply(200, q[1])) |> Nx.add(Nx.log1p(q[2]))
  end

  test "a gradient through the evaluator has the bits of immediate ops, and is replayed once it repeats" do
    x = place(for(i <- 1..200, do: :math.sin(i)), type: :f64)
    gradient = fn q, x -> Nx.Defn.value_and_grad(q, &density(&1, x)) end
    run = Nx.Defn.jit(gradient, compiler: Nx.Defn.Evaluator)

    read = fn i ->
      {value, gradient} = run.(place([0.01 * i, 0.5, 0.25], type: :f64), x)
      {Nx.to_binary(value), Nx.to_binary(gradient)}
    end

    expected = Nx.Vulkan.eager(:immediate, fn -> for i <- 1..@repeats, do: read.(i) end)
    before = stats()
    assert for(i <- 1..@repeats, do: read.(i)) == expected
    assert stats().deferred_compiled > before.deferred_compiled
    assert stats().deferred_replayed > before.deferred_replayed
  end

  test "nothing runs before somebody reads" do
    t = place([1.0, 2.0])
    before = stats().dispatches
    sum = Nx.add(t, t) |> Nx.exp() |> Nx.sum()
    assert stats().dispatches == before
    assert_in_delta Nx.to_number(sum), :math.exp(2) + :math.exp(4), 1.0e-4
    assert stats().dispatches > before
    {:ok, info} = NativeV.tensor_info(Nx.multiply(t, 2).data.ref)
    assert %{type: "f32", shape: [2], strides: [1], offset: 0, storage_bytes: 0} = info
  end

  test "what is dropped is never computed" do
    t = place([1.0, 2.0])
    Nx.to_binary(Nx.cos(t))
    # What the tests before left running dispatches no more.
    in_use_bytes()
    before = stats().dispatches
    Task.await(Task.async(fn -> VulkanoBackend.put_eager(:deferred) && Nx.cos(t) && nil end))
    :erlang.garbage_collect()
    assert Nx.to_number(Nx.sum(t)) == 3.0
    assert stats().dispatches - before <= 2
  end

  test "100,000 dropped tensors leave the pool where it was" do
    t = Nx.iota({1024}, type: :f32)
    one = place(1.0)
    Nx.to_binary(Nx.add(t, one))
    before = in_use_bytes()
    for _ <- 1..100_000, do: Nx.add(t, one) && nil
    assert <<1.0::float-32-native, _::binary>> = Nx.to_binary(Nx.add(t, one))
    assert in_use_bytes() - before <= 64 * 4096
    assert stats().deferred_pending < 1000
  end

  test "a loop that reads nothing keeps no more than a bounded part of it pending" do
    w = Enum.reduce(1..5000, place([0.0, 0.5, 1.0]), fn i, w -> Nx.add(w, rem(i, 2)) end)
    assert Nx.to_flat_list(w) == [2500.0, 2500.5, 2501.0]
    # 64 MiB of results.
    wide = Nx.iota({1_000_000}, type: :f32)
    before = in_use_bytes()
    wide = Enum.reduce(1..100, wide, fn _, x -> Nx.negate(Nx.add(x, 1)) end)
    assert in_use_bytes() - before < 200_000_000
    assert Nx.to_number(wide[0]) == 0.0
  end

  test "results that were not kept can be read, and are kept when many are held" do
    t = place([1.0, 2.0])

    held =
      for i <- 1..10_000 do
        inner = Nx.add(t, i)
        if rem(i, 100) == 0, do: Nx.to_number(Nx.sum(inner))
        inner
      end

    assert for(inner <- held, do: Nx.to_number(inner[0])) == Enum.map(1..10_000, &(&1 + 1.0))
  end

  test "16 processes read what one made, and what they make of it" do
    t = Nx.add(place([1, 2, 3]), 1)
    shared = Nx.multiply(t, t)

    1..64
    |> Task.async_stream(
      fn i ->
        if rem(i, 2) == 0, do: VulkanoBackend.put_eager(:deferred)
        own = Nx.add(shared, i)
        assert Nx.to_flat_list(shared) == [4, 9, 16]
        assert Nx.to_flat_list(Nx.subtract(own, shared)) == [i, i, i]
      end,
      max_concurrency: 16,
      timeout: 300_000
    )
    |> Enum.each(&assert {:ok, true} = &1)
  end

  test "wrong input raises at once, what the device can't do when it is read" do
    assert_raise ArgumentError, ~r/cannot broadcast/, fn -> Nx.add(place([1, 2]), place([1, 2, 3])) end
    assert_raise ArgumentError, ~r/out of bounds/, fn -> Nx.take(Nx.add(place([1, 2]), 1), place([5])) end

    t = Nx.add(place([1.0, 2.0]), 1)
    {:ok, ref} = NativeV.program_defer(:sum, [axes: [7]], [t.data.ref], :f32, {})
    bad = VulkanoBackend.holding(Nx.template({}, :f32), ref)
    error = assert_raise Nx.Vulkan.Error, fn -> bad |> Nx.exp() |> Nx.to_number() end
    assert %{kind: :invalid_program, op: :sum} = error
    assert Exception.message(error) =~ "in sum of f32[2]"
    assert Nx.to_flat_list(t) == [2.0, 3.0]
  end

  test "a deallocated tensor can't be read, but what needs it can" do
    t = Nx.add(place([1, 2]), 1)
    double = Nx.multiply(t, 2)
    assert Nx.backend_deallocate(t) == :ok
    assert Nx.to_flat_list(double) == [4, 6]
    assert %{kind: :released} = assert_raise(Nx.Vulkan.Error, fn -> Nx.to_binary(t) end)
  end

  test "everything that looks at memory computes first" do
    t = Nx.add(Nx.iota({4}, type: :s32), 1)
    assert inspect(t) =~ "[1, 2, 3, 4]"
    double = Nx.multiply(t, 2)
    pointer = Nx.to_pointer(double, mode: :local)
    assert Nx.to_flat_list(Nx.from_pointer(VulkanoBackend, pointer, :s32, {4})) == [2, 4, 6, 8]
    compiled = Nx.Defn.jit_apply(&Nx.negate/1, [Nx.add(t, 1)], compiler: Nx.Vulkan)
    assert Nx.to_flat_list(compiled) == [-2, -3, -4, -5]
    immediate = Nx.Vulkan.eager(:immediate, fn -> Nx.add(Nx.multiply(t, 3), t) end)
    assert Nx.to_flat_list(Nx.add(immediate, 0)) == [4, 8, 12, 16]
    assert Nx.to_flat_list(Nx.backend_transfer(Nx.add(t, 9), Nx.BinaryBackend)) == [10, 11, 12, 13]
    assert {:ok, <<3::32-native, _::binary>>} = NativeV.buf_download(Nx.add(t, 2).data.ref)
    {q, r} = Nx.LinAlg.qr(Nx.as_type(Nx.reshape(Nx.add(t, 1), {2, 2}), :f32))
    assert_in_delta Nx.to_number(Nx.dot(q, r)[1][1]), 5.0, 1.0e-5
  end

  test "the mode comes from the configuration, and from the process before that" do
    Process.delete({Nx.Vulkan, :eager})
    on_exit(fn -> Application.delete_env(:nx_vulkan, :eager) end)
    assert VulkanoBackend.eager() == :immediate
    Application.put_env(:nx_vulkan, :eager, :deferred)
    assert VulkanoBackend.eager() == :deferred
    assert Nx.Vulkan.eager(:immediate, fn -> VulkanoBackend.eager() end) == :immediate
    assert VulkanoBackend.eager() == :deferred
    Application.put_env(:nx_vulkan, :eager, :lazily)
    assert_raise ArgumentError, ~r/:immediate or :deferred, got: :lazily/, fn -> VulkanoBackend.eager() end
  end
end
