defmodule Nx.Vulkan.Device.BackendTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance
  alias Nx.Vulkan.{NativeV, VulkanoBackend}

  @moduletag :device

  defp place(value, opts \\ []), do: Nx.tensor(value, [backend: VulkanoBackend] ++ opts)

  test "every callback of the behaviour is exported" do
    for {name, arity} <- Nx.Backend.behaviour_info(:callbacks) do
      assert function_exported?(VulkanoBackend, name, arity), "#{name}/#{arity}"
    end
  end

  test "the backend's first name makes tensors of this one" do
    Code.ensure_loaded!(Nx.Vulkan.Backend)

    for {name, arity} <- Nx.Backend.behaviour_info(:callbacks) do
      assert function_exported?(Nx.Vulkan.Backend, name, arity), "#{name}/#{arity}"
    end

    Nx.default_backend(Nx.Vulkan.Backend)
    for t <- [Nx.tensor([1.5, 2.5]), Nx.iota({2}), Nx.eye(2), Nx.tensor(3)], do: assert(%{data: %VulkanoBackend{}} = t)
    assert Nx.to_flat_list(Nx.dot(Nx.tensor([1, 2]), Nx.iota({2}))) == [2]
    plain = Nx.tensor([10, 20], backend: Nx.BinaryBackend)
    assert %{data: %VulkanoBackend{ref: ref}} = there = Nx.backend_transfer(plain, Nx.Vulkan.Backend)
    assert %{data: %VulkanoBackend{ref: ^ref}} = Nx.backend_transfer(there, Nx.Vulkan.Backend)
    assert Nx.to_flat_list(Nx.backend_copy(there, Nx.Vulkan.Backend)) == [10, 20]
    assert Nx.to_flat_list(Nx.Defn.jit(&Nx.cumulative_sum/1, compiler: Nx.Defn.Evaluator).(there)) == [10, 30]
    assert_raise ArgumentError, ~r/:device alone/, fn -> Nx.default_backend({Nx.Vulkan.Backend, client: 1}) end
  end

  test "no options but the device, wherever a backend is named" do
    plain = Nx.tensor([1, 2], backend: Nx.BinaryBackend)
    there = Nx.backend_copy(plain, VulkanoBackend)
    pointer = Nx.to_pointer(there)

    for name <- [VulkanoBackend, Nx.Vulkan.Backend],
        {options, error} <- [
          {[client: 7], {ArgumentError, "Nx.Vulkan.VulkanoBackend has the option :device alone, got: [client: 7]"}},
          {[device: 77], {Nx.Vulkan.Error, ~r/no usable device matches "77"; found /}}
        ],
        backend = {name, options},
        entry <- [
          fn -> Nx.default_backend(backend) end,
          fn -> Nx.global_default_backend(backend) end,
          fn -> Nx.with_default_backend(backend, fn -> Nx.tensor(1) end) end,
          fn -> Nx.tensor(1, backend: backend) end,
          fn -> Nx.tensor([1, 2], backend: backend) end,
          fn -> Nx.tensor(Complex.new(1, 2), backend: backend) end,
          fn -> Nx.iota({3}, backend: backend) end,
          fn -> Nx.eye(3, backend: backend) end,
          fn -> Nx.from_binary(<<1, 2>>, :u8, backend: backend) end,
          fn -> Nx.from_pointer(backend, pointer, {:s, 32}, {2}) end,
          fn -> Nx.backend_copy(plain, backend) end,
          fn -> Nx.backend_transfer(plain, backend) end,
          fn -> Nx.backend_copy(there, backend) end,
          fn -> Nx.backend_transfer(there, backend) end
        ] do
      {exception, message} = error
      assert_raise exception, message, entry
    end
  end

  defmodule Loop do
    import Nx.Defn

    defn power(x) do
      {r, _, _} = while({acc = Nx.tensor(1.0, type: :f64), i = 0, x}, i < 4, do: {acc * x, i + 1, x})
      r
    end

    defn(slope(x), do: grad(x, &power/1))
    defn(scaled(x), do: grad(x, fn x -> Nx.sum(power(x) * 2) end))
    defn(twice({x, y}), do: elem(while({x, i = 0}, i < 2, do: {x + x, i + 1}), 0) + if(Nx.sum(y) > 0, do: y, else: x))
  end

  test "gradients of loops that Nx labels with another type than they have" do
    x = Nx.tensor(1.5, backend: VulkanoBackend)

    for mode <- [:immediate, :deferred], {fun, expected} <- [{&Loop.slope/1, 13.5}, {&Loop.scaled/1, 27.0}] do
      got =
        Nx.Vulkan.eager(mode, fn ->
          slope = Nx.with_default_backend(VulkanoBackend, fn -> Nx.Defn.jit(fun, compiler: Nx.Defn.Evaluator).(x) end)
          assert inspect(slope) =~ "f32" and inspect(slope) =~ "#{expected}"
          [slope, Nx.add(slope, 1), Nx.reshape(slope, {1}), Nx.backend_copy(slope, Nx.BinaryBackend)]
        end)

      assert Enum.flat_map(got, &Nx.to_flat_list/1) == [expected, expected + 1, expected, expected]
    end

    assert Nx.to_number(Nx.Defn.jit(&Loop.slope/1, compiler: Nx.Vulkan).(x)) == 13.5
  end

  test "a tensor of another type than its memory has is converted, wherever it comes in" do
    for {memory, type} <- [{{:f, 64}, {:f, 32}}, {{:f, 32}, {:s, 32}}, {{:s, 64}, {:f, 64}}, {{:f, 32}, {:bf, 16}}] do
      there = Nx.tensor([1.3, 2.7], type: :f64, backend: Nx.BinaryBackend) |> Nx.as_type(memory)
      right = there |> Nx.backend_copy(VulkanoBackend) |> Nx.as_type(type) |> Nx.backend_copy(Nx.BinaryBackend)
      wrong = %{Nx.backend_copy(there, VulkanoBackend) | type: type}
      template = Nx.template({2}, type)
      twice = &Loop.twice({&1, &1})
      sum = &Nx.reduce(&1, Nx.tensor(0, type: type, backend: VulkanoBackend), fn a, b -> Nx.add(a, b) end)

      for fun <- [
            & &1,
            &Nx.add(&1, 1),
            &Nx.sum/1,
            &Nx.reshape(&1, {2, 1}),
            &Nx.slice(&1, [1], [1]),
            &Nx.sort/1,
            &Nx.concatenate([&1, &1]),
            &Nx.equal(&1, Nx.backend_copy(right, VulkanoBackend)),
            &Nx.cumulative_sum/1,
            sum,
            &Nx.reduce(&1, Nx.squeeze(&1[0..0]), fn a, b -> Nx.add(a, b) end),
            &Nx.backend_copy(&1, Nx.BinaryBackend),
            &Nx.backend_copy(&1, VulkanoBackend),
            &(Nx.backend_copy(&1, VulkanoBackend).data.type |> elem(1) |> Nx.tensor()),
            &Nx.backend_transfer(&1, Nx.Vulkan.Backend),
            &hd(Nx.to_batched(&1, 1) |> Enum.to_list()),
            &Nx.from_pointer(VulkanoBackend, Nx.to_pointer(&1), type, {2}),
            &Nx.add(Nx.tensor([1, 1], type: type, backend: Nx.BinaryBackend), &1),
            &Nx.Defn.jit(twice, compiler: Nx.Defn.Evaluator).(&1),
            &Nx.Defn.jit(twice, compiler: Nx.Vulkan).(&1),
            &Nx.Defn.jit(fn x -> Nx.runtime_call(template, x, fn x, _ -> Nx.add(x, x) end) end, compiler: Nx.Vulkan).(
              &1
            ),
            fn t ->
              Nx.Defn.jit(fn x -> Nx.add(Nx.runtime_call(template, x, fn _, _ -> t end), 1) end, compiler: Nx.Vulkan).(
                0
              )
            end
          ] do
        expected = right |> Nx.backend_copy(VulkanoBackend) |> fun.()
        got = fun.(wrong)
        assert {fun, got.type, Nx.to_flat_list(got)} == {fun, expected.type, Nx.to_flat_list(expected)}
      end

      assert Nx.to_flat_list(Nx.Vulkan.eager(:deferred, fn -> Nx.add(wrong, 1) end)) ==
               Nx.to_flat_list(Nx.add(right, 1))

      assert inspect(wrong) =~ inspect(right) |> String.split("\n") |> Enum.at(-2) |> String.trim()
    end
  end

  test "tensors of Nx.BinaryBackend and numbers meet those of the device" do
    t = place([1, 2, 3])
    plain = Nx.tensor([10, 20, 30], backend: Nx.BinaryBackend)
    assert %{data: %VulkanoBackend{}} = sum = Nx.add(plain, t)
    assert Nx.to_flat_list(sum) == [11, 22, 33]
    assert Nx.to_flat_list(Nx.multiply(t, Nx.tensor(0.5, backend: Nx.BinaryBackend))) == [0.5, 1.0, 1.5]
    assert Nx.to_flat_list(Nx.subtract(1, t)) == [0, -1, -2]
  end

  test "copies are independent of their origin" do
    t = place([1.0, 2.0])
    copy = Nx.backend_copy(t, VulkanoBackend)
    plain = Nx.backend_copy(t)
    assert Nx.backend_transfer(t, VulkanoBackend) == t
    assert Nx.backend_deallocate(t) == :ok
    assert Nx.backend_deallocate(t) == :already_deallocated
    assert Nx.to_flat_list(copy) == [1.0, 2.0]
    assert %Nx.BinaryBackend{} = plain.data
    assert Nx.to_flat_list(plain) == [1.0, 2.0]
  end

  test "a transfer deallocates" do
    t = place([1.0, 2.0])
    assert Nx.to_flat_list(Nx.backend_transfer(t)) == [1.0, 2.0]
    assert Nx.backend_deallocate(t) == :already_deallocated
  end

  test "a deallocated tensor is an error in every use" do
    t = place([1.0, 2.0])
    view = Nx.reverse(t)
    Nx.backend_deallocate(t)

    for use <- [&Nx.to_binary/1, &Nx.add(&1, 1), &Nx.reshape(&1, {2, 1}), &Nx.sum/1] do
      assert %Nx.Vulkan.Error{kind: :released} = catch_error(use.(t))
    end

    assert Nx.to_flat_list(view) == [2.0, 1.0]
    assert inspect(t) =~ "Deallocated"
  end

  test "small tensors that are there are read without a way to another scheduler" do
    t = Nx.add(place([1.0, 2.0]), 1)
    assert Nx.to_flat_list(t) == [2.0, 3.0]
    assert NativeV.tensor_to_binary_soon(t.data.ref, nil) == {:ok, <<2.0::float-32-native, 3.0::float-32-native>>}
    assert NativeV.tensor_to_binary_soon(t.data.ref, 1) == {:ok, <<2.0::float-32-native>>}
    large = Nx.add(Nx.iota({20_000}, type: :f32, backend: VulkanoBackend), 1)
    assert NativeV.tensor_to_binary_soon(large.data.ref, nil) == :needs_compile
    assert NativeV.tensor_to_binary_soon(Nx.reverse(t).data.ref, nil) == :needs_compile
    assert {:error, :invalid_argument, _, _, _} = NativeV.tensor_to_binary_soon(:ref, nil)
    Nx.backend_deallocate(t)
    assert {:error, :released, _, _, _} = NativeV.tensor_to_binary_soon(t.data.ref, nil)
  end

  test "names and vectorized axes" do
    t = Nx.iota({2, 3}, names: [:x, :y], backend: VulkanoBackend)
    assert Nx.sum(t, axes: [:y]).names == [:x]
    v = Nx.vectorize(t, :x)
    assert Nx.to_flat_list(Nx.add(v, Nx.vectorize(place([10, 20]), :x))) == [10, 11, 12, 23, 24, 25]
  end

  test "bad calls of the native library are errors" do
    {:ok, ref} = NativeV.tensor_from_binary_dirty(:f32, {2}, <<0::64>>)

    for {op, attrs, operands, type, shape} <- [
          {:no_such_op, [], [ref], :f32, {2}},
          {"add", [], [ref, ref], :f32, {2}},
          {:add, [], [ref], :f32, {2}},
          {:add, [], [ref, ref, ref], :f32, {2}},
          {:add, [], [ref, make_ref()], :f32, {2}},
          {:add, [], [ref, 1], :f32, {2}},
          {:add, [], ref, :f32, {2}},
          {:add, [], [ref, ref], :f31, {2}},
          {:add, [], [ref, ref], {:f, 32}, {2}},
          {:add, [], [ref, ref], :f32, {3}},
          {:add, [], [ref, ref], :f32, [2]},
          {:add, [], [ref, ref], :f32, {-2}},
          {:add, [], [ref, ref], :f32, {2 ** 40, 2 ** 40}},
          {:add, [], [ref, ref], :f32, {2 ** 70}},
          {:add, %{}, [ref, ref], :f32, {2}},
          {:reshape, [], [ref], :f32, {3}},
          {:reshape, [], [ref], :f64, {2}},
          {:transpose, [], [ref], :f32, {2}},
          {:transpose, [axes: [1]], [ref], :f32, {2}},
          {:transpose, [axes: [0, 0]], [ref], :f32, {2}},
          {:transpose, [axes: [-1]], [ref], :f32, {2}},
          {:transpose, [axes: "0"], [ref], :f32, {2}},
          {:transpose, [axes: [2 ** 70]], [ref], :f32, {2}},
          {:transpose, [{:axes, [0], 1}], [ref], :f32, {2}},
          {:sum, [axes: [4]], [ref], :f32, {}},
          {:sum, [axes: [0]], [ref], :f32, {2}},
          {:slice, [starts: [0], strides: [0], lengths: [1]], [ref], :f32, {1}},
          {:slice, [starts: [0], strides: [1], lengths: [9]], [ref], :f32, {9}},
          {:slice, [starts: [nil], strides: [1], lengths: [1]], [ref], :f32, {1}},
          {:pad, [low: [0], high: [], interior: [0]], [ref, ref], :f32, {2}},
          {:constant, [], [], :f32, {2}},
          {:constant, [value: :one], [], :f32, {2}},
          {:concatenate, [axis: 3], [ref, ref], :f32, {4}},
          {:dot, [contract_a: [0], batch_a: [], contract_b: [3], batch_b: []], [ref, ref], :f32, {}},
          {:gather, [axes: [7]], [ref, ref], :f32, {2}},
          {:iota, [axis: 2], [], :f32, {2}}
        ] do
      assert {:error, kind, ^op, message, details} = NativeV.program_run_compile(op, attrs, operands, type, shape)

      assert kind in [:invalid_argument, :invalid_program, :unsupported, :too_large, :out_of_memory],
             inspect({op, kind})

      assert is_binary(message) and is_map(details)
    end

    assert {:error, :invalid_argument, _, _, %{expected: _, got: _}} =
             NativeV.tensor_from_binary_dirty(:f32, {3}, <<0::64>>)

    assert {:error, :invalid_argument, _, _, _} = NativeV.tensor_to_binary(:ref, nil)
    assert_raise ArgumentError, fn -> NativeV.tensor_release(make_ref()) end
    assert {:error, :no_device, _} = NativeV.device_open("no such device")
  end

  test "memory that can never fit is an error at once" do
    error = catch_error(Nx.add(Nx.iota({2 ** 40, 1}, type: :f32, backend: VulkanoBackend), 1))
    assert %Nx.Vulkan.Error{kind: :too_large, details: %{size_bytes: size, limit_bytes: limit}} = error
    assert size > limit
  end

  test "what the host has no memory for is an error" do
    huge = Nx.broadcast(Nx.tensor(1.5, backend: VulkanoBackend), {2 ** 48})
    assert %Nx.Vulkan.Error{kind: :invalid_argument} = catch_error(Nx.to_binary(huge))
    assert inspect(huge) =~ "1.5, 1.5"
  end

  test "what a tensor occupies" do
    t = Nx.iota({4, 4}, type: :u8, backend: VulkanoBackend)
    assert {:ok, %{type: "u8", shape: [4, 4], strides: [4, 1], offset: 0}} = NativeV.tensor_info(t.data.ref)
    part = Nx.transpose(t)[[1..2, 1..3//2]]
    assert {:ok, %{shape: [2, 2], strides: [1, 8], offset: 5, storage_bytes: 16}} = NativeV.tensor_info(part.data.ref)
  end

  test "values are right whatever the random layouts" do
    assert_same([random({7, 5}, {:f, 32})], fn t -> Nx.sum(Nx.transpose(Nx.reverse(t[[1..5, 0..3]])), axes: [0]) end,
      absolute: 1.0e-4
    )
  end

  describe "numbers that the host knows" do
    defp dispatches(fun) do
      before = NativeV.device_stats().dispatches
      result = fun.()
      {result, NativeV.device_stats().dispatches - before}
    end

    # Other tests may use the device at the same time.
    defp fewest(fun), do: 1..200 |> Enum.map(fn _ -> dispatches(fun) end) |> Enum.min_by(&elem(&1, 1))

    test "scalars are computed from them with nothing to wait for" do
      count = fn ->
        Enum.reduce_while(Stream.cycle([1]), place(0), fn _, i ->
          if Nx.to_number(Nx.less(i, place(10))) == 1, do: {:cont, Nx.add(i, 1)}, else: {:halt, Nx.to_number(i)}
        end)
      end

      assert fewest(count) == {10, 0}
      assert {_, 1} = fewest(fn -> Nx.to_number(Nx.sin(place(0.5))) end)
      assert {_, 1} = fewest(fn -> Nx.to_flat_list(Nx.add(place([1, 2]), 1)) end)
    end

    test "they have the bits of the device" do
      ops = [:add, :subtract, :multiply, :divide, :min, :max, :less, :equal, :logical_and, :bitwise_xor]

      for type <- [:s8, :u8, :s32, :u64, :s64, :f16, :bf16, :f32, :f64],
          op <- ops,
          op != :bitwise_xor or type in [:s8, :u8, :s32, :u64, :s64],
          a <- [0, 1, 3, 100, 127],
          b <- [1, 7, 120] do
        scale = if type in [:f16, :bf16, :f32, :f64], do: 0.1, else: 1
        [a, b] = Enum.map([a * scale, b * scale], &Nx.as_type(place(&1), type))
        # Elements of something larger are unknown.
        [x, y] = Enum.map([a, b], &Nx.slice(Nx.stack([&1, &1]), [1], [1]))
        known = apply(Nx, op, [a, b])
        assert Nx.to_binary(known) == Nx.to_binary(apply(Nx, op, [x, y])), "#{op} of #{inspect(a)} and #{inspect(b)}"
      end
    end

    test "what others may have written is read" do
      t = place(1.5)
      pointer = Nx.to_pointer(t)
      shared = Nx.from_pointer(VulkanoBackend, pointer, {:f, 32}, {}, [])
      assert Nx.to_number(Nx.add(shared, 1)) == 2.5
      assert Nx.to_number(Nx.add(t, 1)) == 2.5
      donated = place(2.0)
      step = Nx.Defn.jit(&Nx.sin(Nx.add(&1, 1.0)), compiler: Nx.Vulkan)
      assert_in_delta Nx.to_number(step.(donated)), :math.sin(3.0), 1.0e-6
      assert Nx.to_number(donated) == 2.0
    end
  end
end
