defmodule Nx.Vulkan.SeveralDevicesTest do
  # `NX_VULKAN_TEST_DEVICE=several` shows lavapipe twice, and SwiftShader, which lacks most types.
  use ExUnit.Case, async: false

  import Nx.Defn

  alias Nx.Vulkan.{Chain, Compiler, Devices, NativeV, NUTS, Profile}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @moduletag :device
  @moduletag :several_devices

  setup_all do
    devices = Enum.filter(Nx.Vulkan.devices(), & &1.usable)
    {:ok, %{index: default, name: name}} = Nx.Vulkan.device_info()
    others = for %{index: index} <- devices, index != default, do: index
    # SwiftShader takes minutes and gigabytes for the kernel of a sampler.
    twin = Enum.find(devices, &(&1.name == name and &1.index != default))
    %{devices: devices, default: default, others: others, other: if(twin, do: twin.index, else: hd(others))}
  end

  setup %{other: other} do
    Nx.default_backend(B)
    Devices.index!(other)
    :ok
  end

  defp place(%Nx.Tensor{data: %B{ref: ref}}), do: ref |> Devices.of() |> elem(0)
  defp on(index), do: {B, device: index}
  defp tensor(value, index, opts \\ []), do: Nx.tensor(value, [backend: on(index)] ++ opts)

  defp automatic(context) do
    Application.put_env(:nx_vulkan, :automatic_transfers, true)
    on_exit(fn -> Application.delete_env(:nx_vulkan, :automatic_transfers) end)
    context
  end

  def tell([_, _, name], measurements, metadata, test), do: send(test, {name, measurements, metadata})

  test "events of memory name the device that is short", %{default: default, other: other} do
    events = for name <- [:pressure, :reclaim, :out_of_memory], do: [:nx_vulkan, :memory, name]
    :telemetry.attach_many(inspect(self()), events, &__MODULE__.tell/4, self())
    on_exit(fn -> :telemetry.detach(inspect(self())) end)
    %{in_use_bytes: there} = Nx.Vulkan.memory(device: other)

    for index <- [other, default] do
      task =
        Task.async(fn ->
          x = Nx.iota({1024, 1024}, type: :f32, backend: on(index))
          Nx.to_number(x[0][0])
          Nx.Vulkan.memory_limit(8 * 1024 * 1024, device: index)
          # Eager, compiled, from a binary.
          errors =
            for run <- [
                  fn -> for i <- 1..3, do: Nx.add(x, i) end,
                  fn -> Nx.Defn.jit(&{Nx.add(&1, 1), Nx.add(&1, 2), Nx.sort(&1)}, compiler: Nx.Vulkan).(x) end,
                  fn -> Nx.from_binary(:binary.copy(<<0>>, 16 * 1024 * 1024), :u8, backend: on(index)) end
                ],
                do: catch_error(run.())

          for error <- errors, do: {error.kind, error.details.device}
        end)

      assert Task.await(task, 120_000) == List.duplicate({:out_of_memory, index}, 3)
      for _ <- 1..3, do: assert_receive({:reclaim, _, %{device: ^index, step: :collect_at_once}})
      for _ <- 1..3, do: assert_receive({:out_of_memory, _, %{details: %{device: ^index}}})
      refute_received {:reclaim, _, _}
    end

    # A large result that finds no free memory.
    Nx.Vulkan.trim(device: other)
    flush()
    held = Nx.add(Nx.iota({64, 1024, 1024}, type: :f32, backend: on(other)), 1)
    assert_received {:pressure, %{in_use_bytes: bytes}, %{device: ^other}}
    assert bytes >= there + 128 * 1024 * 1024
    Nx.backend_deallocate(held)
  end

  defp flush do
    receive do
      _ -> flush()
    after
      0 -> :ok
    end
  end

  describe "naming a device" do
    test "by index, digits of the UUID and a part of the name", %{devices: devices} do
      for device <- devices do
        assert place(tensor([1], device.index)) == device.index
        assert place(tensor([1], "#{device.index}")) == device.index
        # Devices of one driver may have the same name and UUID: the first is meant.
        first = fn same -> Enum.find(devices, same).index end
        assert place(tensor([1], "uuid:" <> device.uuid)) == first.(&(&1.uuid == device.uuid))
        assert place(tensor([1], "name:" <> device.name)) == first.(&String.contains?(&1.name, device.name))
      end
    end

    test "devices/0 says which are open, and which is the default one", %{default: default, other: other} do
      devices = Map.new(Nx.Vulkan.devices(), &{&1.index, &1})
      assert %{open: true, default: true} = devices[default]
      assert %{open: true, default: false} = devices[other]
      assert {:ok, %{default: true, index: ^default}} = Nx.Vulkan.device_info()
      assert {:ok, %{default: false, index: ^other, selected_by: by}} = Nx.Vulkan.device_info(other)
      assert by == "#{other}"
    end

    test "errors say what there is" do
      assert_raise Nx.Vulkan.Error, ~r/no usable device matches "no such device"; found/, fn ->
        tensor([1], "no such device")
      end

      assert_raise Nx.Vulkan.Error, ~r/no usable device matches "99"/, fn -> tensor([1], 99) end
      assert {:error, %Nx.Vulkan.Error{kind: :no_device}} = Nx.Vulkan.device_info(99)
      assert_raise ArgumentError, ~r/expected :device to be an index/, fn -> tensor([1], :gpu) end
      assert_raise ArgumentError, ~r/expected :device to be an index/, fn -> Nx.default_backend(on(-1)) end

      assert_raise ArgumentError, ~r/has the option :device alone, got: \[client: :host\]/, fn ->
        Nx.tensor([1], backend: {B, client: :host})
      end
    end

    test "the default backend of a process is on one", %{other: other} do
      Nx.default_backend(on(other))
      assert place(Nx.tensor([1, 2])) == other
      assert place(Nx.iota({3, 3})) == other
      assert place(Nx.eye(3)) == other
      assert place(Nx.Random.key(7)) == other
      {numbers, _key} = Nx.Random.normal(Nx.Random.key(7), shape: {100})
      assert place(numbers) == other
    end
  end

  describe "ops" do
    test "run where their tensors are, and scalars go there", %{default: default, other: other} do
      x = tensor([1.0, 4.0, 9.0], other)
      assert place(Nx.sqrt(x)) == other
      assert Nx.to_list(Nx.add(x, 1)) == [2.0, 5.0, 10.0]
      assert Nx.to_list(Nx.add(1, x)) == [2.0, 5.0, 10.0]
      scalar = Nx.sum(tensor([1.0, 2.0], default))
      assert place(scalar) == default
      assert %{data: _} = sum = Nx.add(scalar, x)
      assert {place(sum), Nx.to_list(sum)} == {other, [4.0, 7.0, 12.0]}
      # Of two scalars the first says where.
      assert place(Nx.add(Nx.sum(x), scalar)) == other
      # Tensors of other backends go along.
      host = Nx.tensor([1.0, 1.0, 1.0], backend: Nx.BinaryBackend)
      assert {place(Nx.add(host, x)), Nx.to_list(Nx.add(host, x))} == {other, [2.0, 5.0, 10.0]}
    end

    test "of tensors on two devices raise with both names", %{default: default, other: other} do
      {x, y} = {tensor([1.0, 2.0], default), tensor([1.0, 2.0], other)}
      [first, second] = for index <- [default, other], do: Devices.name(index)

      message =
        ~r/^add: expected tensors of one device, got tensors of #{Regex.escape(first)} and #{Regex.escape(second)}/

      assert_raise ArgumentError, message, fn -> Nx.add(x, y) end
      assert_raise ArgumentError, ~r/^concatenate: /, fn -> Nx.concatenate([x, y]) end
      assert_raise ArgumentError, ~r/^stack: /, fn -> Nx.stack([x, y]) end

      assert {:error, :invalid_argument, :add, _, %{what: "devices"}} =
               NativeV.program_run_compile(:add, [], [x.data.ref, y.data.ref], :f32, {2})
    end

    test "and move where the configuration says so, to those of most bytes", %{default: default, other: other} do
      automatic(:ok)
      small = tensor([1.0, 2.0], default)
      large = tensor([[1.0, 2.0], [3.0, 4.0]], other)
      assert {place(Nx.add(small, large)), Nx.to_list(Nx.add(small, large))} == {other, [[2.0, 4.0], [4.0, 6.0]]}
      assert place(Nx.add(large, small)) == other
      assert place(Nx.stack([small, tensor([3.0, 4.0], other)])) == default

      Application.put_env(:nx_vulkan, :automatic_transfers, :yes)
      assert_raise ArgumentError, ~r/automatic_transfers to be a boolean, got: :yes/, fn -> Nx.add(small, large) end
    end

    test "with steps of their own stay on a device", %{other: other} do
      x =
        Nx.iota({40, 40}, type: :f32, backend: on(other))
        |> Nx.sin()
        |> Nx.add(Nx.multiply(3, Nx.eye(40, backend: on(other))))

      near = Nx.eye(4, type: :f32, backend: on(other))

      for result <- [
            Nx.LinAlg.svd(x),
            Nx.LinAlg.svd(near),
            Nx.LinAlg.eigh(Nx.add(x, Nx.transpose(x))),
            Nx.LinAlg.solve(x, x),
            Nx.LinAlg.pinv(near),
            Nx.cumulative_sum(x, axis: 1),
            Nx.median(x),
            Nx.take(x, Nx.remainder(Nx.iota({5000}, backend: on(other)), 40)),
            Nx.reduce(x, 0, [axes: [1]], fn a, b -> Nx.add(Nx.sin(a), b) end),
            Nx.reduce(Nx.slice(x, [0, 0], [2, 3]), 0, [axes: [1]], fn a, b ->
              if Nx.to_number(a) > 0, do: Nx.add(a, b), else: b
            end),
            Nx.window_max(x, {2, 2}),
            Nx.sort(x),
            Nx.fft(Nx.reshape(x, {1600}))
          ],
          tensor <- if(is_tuple(result), do: Tuple.to_list(result), else: [result]) do
        assert place(tensor) == other
      end

      assert_raise ArgumentError, ~r/index 40 is out of bounds/, fn ->
        Nx.take(x, Nx.add(Nx.iota({5000}, backend: on(other)), 40))
      end
    end

    test "that are deferred, too", %{default: default, other: other} do
      Nx.Vulkan.eager(:deferred, fn ->
        x = tensor([1.0, 2.0, 3.0], other)
        y = x |> Nx.multiply(2) |> Nx.add(x) |> Nx.sum()
        assert {place(y), Nx.to_number(y)} == {other, 18.0}

        assert_raise ArgumentError, ~r/^add: expected tensors of one device/, fn ->
          Nx.add(x, tensor([1.0, 2.0, 3.0], default))
        end

        z = Nx.add(x, 1)
        copy = Nx.backend_copy(z, on(default))
        assert {place(copy), Nx.to_list(copy)} == {default, [2.0, 3.0, 4.0]}
      end)
    end

    test "have the same bits on devices of one driver", %{devices: devices, default: default} do
      %{driver: driver, name: name} = Enum.find(devices, &(&1.index == default))
      twins = for %{driver: ^driver, name: ^name, index: index} <- devices, do: index

      [first | others] =
        for index <- twins do
          x = Nx.iota({65, 67}, type: :f32, backend: on(index)) |> Nx.sin()
          {q, r} = Nx.LinAlg.qr(x)
          for t <- [Nx.dot(x, Nx.transpose(x)), q, r, Nx.logsumexp(x, axes: [0])], do: Nx.to_binary(t)
        end

      for other <- others, do: assert(other == first)
    end
  end

  describe "copies and transfers" do
    test "keep every type, its bits and its view", %{default: default, others: others} do
      types = [
        :u2,
        :s2,
        :u4,
        :s4,
        :u8,
        :s8,
        :u16,
        :s16,
        :u32,
        :s32,
        :u64,
        :s64,
        :f8,
        :f8_e4m3fn,
        :bf16,
        :f16,
        :f32,
        :f64,
        :c64,
        :c128
      ]

      for other <- others, type <- types do
        x = Nx.iota({3, 5}, type: :u8, backend: on(default)) |> Nx.remainder(2) |> Nx.as_type(type)
        copy = Nx.backend_copy(x, on(other))
        assert {place(copy), copy.type} == {other, x.type}
        assert Nx.to_binary(copy) == Nx.to_binary(x)
        turned = Nx.transpose(x)[[1..3, 0..1]]
        assert Nx.to_binary(Nx.backend_copy(turned, on(other))) == Nx.to_binary(turned)
        back = Nx.backend_transfer(copy, on(default))
        assert {place(back), Nx.to_binary(back)} == {default, Nx.to_binary(x)}
        assert_raise Nx.Vulkan.Error, ~r/released/, fn -> Nx.to_binary(copy) end
      end
    end

    test "of one repeated element take one", %{other: other} do
      ones = Nx.broadcast(Nx.tensor(2.5, backend: B), {1000, 1000})
      copy = Nx.backend_copy(ones, on(other))
      assert {:ok, %{storage_bytes: bytes}} = NativeV.tensor_info(copy.data.ref)
      assert bytes < 1000
      assert Nx.to_number(Nx.sum(copy)) == 2.5e6
    end

    test "of large tensors go in parts", %{default: default, other: other} do
      # Three parts, the last of which is shorter.
      x = Nx.iota({17_000_001}, type: :f32, backend: on(default)) |> Nx.sin()
      copy = Nx.backend_copy(x, on(other))
      assert place(copy) == other
      assert :crypto.hash(:sha256, Nx.to_binary(copy)) == :crypto.hash(:sha256, Nx.to_binary(x))
    end

    test "to the device that has it are cheap, and a transfer there is none", %{other: other} do
      x = tensor([1, 2, 3], other)
      assert %{data: %{ref: ref}} = Nx.backend_transfer(x, on(other))
      assert ref == x.data.ref
      copy = Nx.backend_copy(x, on(other))
      Nx.backend_deallocate(x)
      assert Nx.to_list(copy) == [1, 2, 3]
    end

    test "without a device mean the default one", %{default: default, other: other} do
      x = tensor([1, 2, 3], other)
      assert place(Nx.backend_copy(x, B)) == default
      assert place(Nx.backend_copy(x, Nx.Vulkan.Backend)) == default
      assert %Nx.BinaryBackend{} = Nx.backend_copy(x).data
      assert place(Nx.backend_transfer(x, B)) == default
    end

    test "of what was deallocated raise", %{other: other} do
      x = Nx.tensor([1, 2, 3])
      Nx.backend_deallocate(x)
      assert_raise Nx.Vulkan.Error, ~r/released/, fn -> Nx.backend_copy(x, on(other)) end
    end
  end

  defn(scaled(x, y), do: Nx.sum(x * y + 1))

  defn halved(x) do
    {x, _} =
      while {x, n = 0}, Nx.any(x > 1) do
        {x / 2, n + 1}
      end

    x
  end

  defp told(x) do
    x
    |> Nx.multiply(2)
    |> then(
      &Nx.runtime_call(Nx.template({3}, :f32), &1, [], fn t, [] ->
        t |> Nx.backend_copy(Nx.BinaryBackend) |> Nx.add(1)
      end)
    )
    |> Nx.sum()
  end

  describe "compiled functions" do
    test "run where their arguments are", %{default: default, others: others} do
      fun = Nx.Defn.jit(&scaled/2, compiler: Compiler)

      for index <- [default | others] ++ [default] do
        x = tensor([1.0, 2.0, 3.0], index)
        result = fun.(x, x)
        assert {place(result), Nx.to_number(result)} == {index, 17.0}
        # Numbers and scalars of other devices go along.
        assert place(fun.(2, x)) == index
        assert place(fun.(Nx.sum(tensor([1.0, 1.0], default)), x)) == index
        # Tensors of other backends, too.
        host = Nx.tensor([1.0, 1.0, 1.0], backend: Nx.BinaryBackend)
        assert {place(fun.(x, host)), Nx.to_number(fun.(x, host))} == {index, 9.0}
        assert Nx.to_list(Nx.Defn.jit(&halved/1, compiler: Compiler).(x)) == [0.25, 0.5, 0.75]
      end
    end

    test "of which arguments are on two raise, or move", %{default: default, other: other} do
      fun = Nx.Defn.jit(&scaled/2, compiler: Compiler)
      {x, y} = {tensor([1.0, 2.0, 3.0], default), tensor([1.0, 2.0, 3.0], other)}
      assert_raise ArgumentError, ~r/scaled\/2: expected tensors of one device, got tensors of /, fn -> fun.(x, y) end
      moving = Nx.Defn.jit(&scaled/2, compiler: Compiler, automatic_transfers: true)
      assert Nx.to_number(moving.(x, y)) == 17.0
      automatic(:ok)
      assert Nx.to_number(fun.(x, y)) == 17.0
    end

    test "with a device run there", %{default: default, other: other} do
      fun = Nx.Defn.jit(&scaled/2, compiler: Compiler, device: other)
      assert place(fun.(1, 2)) == other
      host = Nx.tensor([1.0, 2.0], backend: Nx.BinaryBackend)
      assert place(fun.(host, host)) == other
      x = tensor([1.0, 2.0, 3.0], default)

      message =
        ~r/scaled\/2: expected tensors of .*device #{other}.*, for which it is compiled, got one of .*device #{default}/

      assert_raise ArgumentError, message, fn -> fun.(x, 2) end
      moving = Nx.Defn.jit(&scaled/2, compiler: Compiler, device: other, automatic_transfers: true)
      result = moving.(x, x)
      assert {place(result), Nx.to_number(result)} == {other, 17.0}

      assert_raise ArgumentError, ~r/:automatic_transfers must be a boolean/, fn ->
        Nx.Defn.jit(&scaled/2, compiler: Compiler, automatic_transfers: 1).(1, 2)
      end
    end

    test "without arguments run on the device of the default backend", %{default: default, other: other} do
      fun = Nx.Defn.jit(fn -> Nx.iota({3}) end, compiler: Compiler)
      assert place(fun.()) == default
      Nx.default_backend(on(other))
      assert place(fun.()) == other
      assert place(Nx.Defn.jit(&scaled/2, compiler: Compiler).(1, 2)) == other
    end

    test "take what they capture along", %{default: default, other: other} do
      weights = Nx.tensor([1.0, 2.0, 3.0], backend: Nx.BinaryBackend)
      fun = Nx.Defn.jit(&Nx.dot(&1, weights), compiler: Compiler)
      result = fun.(tensor([1.0, 1.0, 1.0], other))
      assert {place(result), Nx.to_number(result)} == {other, 6.0}
      assert place(fun.(tensor([1.0, 1.0, 1.0], default))) == default
    end

    test "that were compiled beforehand run on any device", %{default: default, other: other} do
      fun = Nx.Defn.compile(&scaled/2, [Nx.template({3}, :f32), Nx.template({3}, :f32)], compiler: Compiler)

      for index <- [other, default] do
        x = tensor([1.0, 2.0, 3.0], index)
        assert {place(fun.(x, x)), Nx.to_number(fun.(x, x))} == {index, 17.0}
      end
    end

    test "of several steps, with callbacks, and gradients", %{other: other} do
      x = tensor([1.0, 2.0, 3.0], other)
      result = Nx.Defn.jit(&told/1, compiler: Compiler).(x)
      assert {place(result), Nx.to_number(result)} == {other, 15.0}
      gradient = Nx.Defn.jit(fn x -> Nx.Defn.grad(x, &Nx.sum(Nx.pow(&1, 3))) end, compiler: Compiler).(x)
      assert {place(gradient), Nx.to_list(gradient)} == {other, [3.0, 12.0, 27.0]}
      nan = Nx.Defn.jit(&Nx.log/1, compiler: Compiler, raise_on: :nan)

      assert_raise Nx.Vulkan.Error, ~r/log: the NaN in the results begins here/, fn ->
        nan.(tensor([1.0, -1.0], other))
      end
    end

    test "release donated tensors", %{other: other} do
      if function_exported?(Nx, :donatable, 1) do
        x = tensor([1.0, 2.0, 3.0], other)
        result = Nx.Defn.jit(&Nx.add(&1, 1), compiler: Compiler).(apply(Nx, :donatable, [x]))
        assert {place(result), Nx.to_list(result)} == {other, [2.0, 3.0, 4.0]}
        assert_raise Nx.Vulkan.Error, ~r/released/, fn -> Nx.to_binary(x) end
      end
    end

    test "are explained and drawn for a device", %{other: other} do
      assert %{steps: [{:run, %{launches: [_ | _]}}]} =
               Compiler.explain(&Nx.exp/1, [Nx.template({8}, :f32)], device: other)

      assert Compiler.graph(&Nx.exp/1, [Nx.template({8}, :f32)], device: other) =~ "digraph"
    end

    test "in a callback of a function on another device run where they are asked to", %{default: default, other: other} do
      norm = Nx.Defn.jit(&Nx.sum(Nx.multiply(&1, &1)), compiler: Compiler, device: default)
      here = self()

      told = fn x ->
        Nx.runtime_call(Nx.template({}, :f32), x, [], fn y, [] ->
          assert place(y) == other
          copy = Nx.backend_copy(y, on(default))
          send(here, {:copied, place(copy), place(norm.(copy))})
          Nx.sum(y)
        end)
      end

      result = Nx.Defn.jit(told, compiler: Compiler).(tensor([1.0, 2.0], other))
      assert {place(result), Nx.to_number(result)} == {other, 3.0}
      assert_received {:copied, ^default, ^default}
      assert place(norm.(tensor([1.0, 2.0], default))) == default
    end

    test "don't move arguments where the option says so", %{default: default, other: other} do
      automatic(:ok)
      fun = Nx.Defn.jit(&scaled/2, compiler: Compiler, automatic_transfers: false)
      {x, y} = {tensor([1.0, 2.0, 3.0], default), tensor([1.0, 2.0, 3.0], other)}
      assert_raise ArgumentError, ~r/expected tensors of one device/, fn -> fun.(x, y) end
    end

    test "say where their results are", %{other: other} do
      assert Nx.Defn.to_backend(compiler: Compiler, device: other) == {B, device: other}
      assert Nx.Defn.to_backend(compiler: Compiler) == {B, []}
    end
  end

  describe "what counts and measures" do
    test "has its own numbers for each device", %{default: default, other: other} do
      x = tensor([1.0, 2.0], other)
      # Before its first kernel a device is asked how it computes.
      Nx.to_binary(Nx.cos(x))
      count = fn -> for index <- [default, other], do: NativeV.device_stats(index).dispatches end
      [here, there] = count.()
      Nx.to_binary(Nx.sin(x))
      assert [^here, more] = count.()
      assert more == there + 1
      assert NativeV.device_stats().dispatches == here
    end

    test "takes times of one device", %{default: default, other: other} do
      Profile.start(device: other)
      Nx.to_binary(Nx.cos(tensor([1.0, 2.0], other)))
      Nx.to_binary(Nx.sin(tensor([1.0, 2.0], default)))
      Profile.stop(device: other)
      kernels = Enum.map(Profile.rows(device: other), & &1.kernel)
      assert Enum.any?(kernels, &String.starts_with?(&1, "map.cos"))
      refute Enum.any?(kernels, &String.starts_with?(&1, "map.sin"))
      Profile.reset(device: other)
      assert Profile.rows(device: other) == []
    end
  end

  describe "chains" do
    test "run on a device", %{default: default, other: other} do
      log_density = fn q -> Nx.multiply(-0.5, Nx.sum(Nx.multiply(q, q))) end
      template = Nx.template({2}, :f32)

      [here, there] =
        for index <- [default, other] do
          chain = Chain.compile(log_density, template, device: index)
          # Where the start is does not matter.
          run = Chain.run(chain, tensor([1.0, 0.5], default), tensor([0.1, 0.2], other), steps: 10, step_size: 0.1)
          assert place(run.q) == index
          Nx.to_binary(run.q)
        end

      assert byte_size(here) == byte_size(there)
      # Supplied shaders, as exmc names devices for them.
      spv = Application.app_dir(:nx_vulkan, "priv/shaders/leapfrog_chain_normal_f64.spv")
      push = <<1::32-little, 4::32-little, 0.1::float-64-little, 1.0::float-64-little, 2.0::float-64-little>>
      start = for number <- [0.1, 1.0, 1.0], do: <<number::float-64-little>>
      dispatches = NativeV.device_stats(other).dispatches
      named = apply(Nx.Vulkan.ChainTrace, :dispatch_f64, start ++ [push, 4, spv, "#{other}"])
      assert named == apply(NativeV, :leapfrog_chain_synth_f64, start ++ [push, 4, spv])
      assert NativeV.device_stats(other).dispatches == dispatches + 1

      result = NUTS.sample(log_density, template, num_warmup: 50, num_samples: 50, num_chains: 2, device: other)
      assert place(result.draws) == other
      assert place(result.warmup.inverse_mass) == other
    end
  end

  describe "Nx.Serving" do
    defn(model(x), do: Nx.dot(x, Nx.tensor([[1.0, 0.0], [1.0, 1.0]])) |> Nx.add(1))

    test "starts a partition on each device", %{devices: devices, default: default} do
      kind = Enum.find(devices, &(&1.index == default)).kind
      alike = [default | for(%{kind: ^kind, index: index} <- devices, index != default, do: index)]
      assert Enum.map(Compiler.__partitions_options__([]), & &1[:device]) == alike
      assert [[{:device, 0} | _], [{:device, 0} | _]] = Compiler.__partitions_options__(device: 0, max_concurrency: 2)
      assert length(Compiler.__partitions_options__(max_concurrency: 2)) == 2 * length(alike)
      assert [[device: ^default, automatic_transfers: true]] = Compiler.__partitions_options__(devices: [default])

      assert_raise ArgumentError, ~r/expected :devices to be a list/, fn ->
        Compiler.__partitions_options__(devices: 0)
      end

      assert_raise Nx.Vulkan.Error, ~r/no usable device/, fn -> Compiler.__partitions_options__(devices: [99]) end

      serving = Nx.Serving.new(&Nx.Defn.jit(fn x -> model(x) end, &1), compiler: Compiler)
      before = Map.new(alike, &{&1, NativeV.device_stats(&1).dispatches})

      start_supervised!(
        {Nx.Serving, name: __MODULE__.Parts, serving: serving, batch_size: 2, batch_timeout: 5, partitions: true}
      )

      results =
        1..40
        |> Enum.map(fn i ->
          Task.async(fn ->
            Nx.default_backend(if rem(i, 2) == 0, do: B, else: Nx.BinaryBackend)
            Nx.Serving.batched_run(__MODULE__.Parts, Nx.Batch.stack([Nx.tensor([i, i])]))
          end)
        end)
        |> Task.await_many(120_000)

      assert Enum.map(results, &Nx.to_list/1) == for(i <- 1..40, do: [[2.0 * i + 1, i + 1.0]])
      for index <- alike, do: assert(NativeV.device_stats(index).dispatches > before[index])
    end
  end

  test "a request of more rows than a batch is put together of what several devices gave", context do
    %{default: default, other: other} = context
    here = self()

    # Both batches are under way before one goes on, so each is on a device of its own.
    meet = fn x ->
      Nx.runtime_call(Nx.template({2, 2}, :s32), x, [], fn x, [] ->
        send(here, {:began, self(), place(x)})

        receive do
          :go -> Nx.multiply(x, 2)
        after
          60_000 -> raise "nobody came"
        end
      end)
    end

    serving = Nx.Serving.new(&Nx.Defn.jit(meet, &1), compiler: Compiler, devices: [default, other])
    start_supervised!({Nx.Serving, name: __MODULE__.Two, serving: serving, batch_size: 2, partitions: true})
    x = Nx.iota({4, 2}, type: :s32)
    request = Task.async(fn -> Nx.Serving.batched_run(__MODULE__.Two, Nx.Batch.concatenate([x])) end)
    assert_receive {:began, first, here_or_there}, 60_000
    assert_receive {:began, second, there_or_here}, 60_000
    assert Enum.sort([here_or_there, there_or_here]) == Enum.sort([default, other])
    for pid <- [first, second], do: send(pid, :go)
    result = Task.await(request, 60_000)
    # Nx puts the parts together in the order in which they are done.
    assert Enum.sort(Nx.to_list(result)) == Nx.to_list(Nx.multiply(x, 2))
    # What other functions give does not move.
    fun = Nx.Defn.jit(&Nx.multiply(&1, 2), compiler: Compiler)
    parts = for index <- [default, other], do: fun.(tensor([1, 2], index))
    assert_raise ArgumentError, ~r/^concatenate: expected tensors of one device/, fn -> Nx.concatenate(parts) end
    assert_raise ArgumentError, ~r/^add: expected tensors of one device/, fn -> apply(Nx, :add, parts) end

    moving =
      for index <- [default, other],
          do:
            Nx.Defn.jit(&Nx.multiply(&1, 2), compiler: Compiler, device: index, automatic_transfers: true).(
              tensor([1, 2], index)
            )

    assert Nx.to_list(Nx.concatenate(Enum.map(moving, & &1[0..1]))) == [2, 4, 2, 4]
    assert_raise ArgumentError, ~r/^stack: expected tensors of one device/, fn -> Nx.stack(moving) end
  end

  test "clients of a serving may have tensors of any device", %{default: default, other: other} do
    serving =
      Nx.Serving.new(&Nx.Defn.jit(fn x -> Nx.multiply(x, 2) end, &1), compiler: Compiler, devices: [default, other])

    start_supervised!(
      {Nx.Serving, name: __MODULE__.Mixed, serving: serving, batch_size: 4, batch_timeout: 50, partitions: true}
    )

    results =
      1..12
      |> Enum.map(fn i ->
        x = tensor([i, i], if(rem(i, 2) == 0, do: default, else: other))
        Task.async(fn -> Nx.Serving.batched_run(__MODULE__.Mixed, Nx.Batch.stack([x])) end)
      end)
      |> Task.await_many(60_000)

    assert Enum.map(results, &Nx.to_list/1) == for(i <- 1..12, do: [[2 * i, 2 * i]])
  end

  test "one element of any shape goes where it is needed", %{default: default, other: other} do
    x = tensor([[1.0, 2.0], [3.0, 4.0]], other)
    assert Nx.to_list(Nx.add(x, tensor([1.0], default))) == [[2.0, 3.0], [4.0, 5.0]]
    assert place(Nx.add(Nx.vectorize(x, :rows), tensor([[1.0]], default))) == other
  end

  test "many processes use each device at once", %{devices: devices} do
    for(%{index: index} <- devices, _ <- 1..4, do: index)
    |> Enum.map(fn index ->
      Task.async(fn ->
        Nx.default_backend(on(index))

        for i <- 1..50 do
          x = Nx.add(Nx.iota({64}, type: :f32), i)
          assert place(x) == index
          assert Nx.to_number(Nx.sum(x)) == 2016.0 + 64 * i
        end
      end)
    end)
    |> Task.await_many(120_000)
  end
end
