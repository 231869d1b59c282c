defmodule Nx.Vulkan.Conformance.CompilerTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureLog
  import Nx.Defn
  import Nx.Vulkan.Versions, only: [hooked: 2]

  alias Nx.Vulkan.Conformance
  alias Nx.Vulkan.VulkanoBackend

  @moduletag :device

  doctest Nx.Vulkan.Compiler

  setup do
    Nx.default_backend(VulkanoBackend)
    :ok
  end

  # The compiled function beside the evaluator on the device, to the bit, and beside Nx.BinaryBackend.
  defp assert_compiled(fun, tensors, opts \\ []) do
    args = Enum.map(tensors, &Nx.backend_copy(&1, VulkanoBackend))
    eager = flatten(Nx.Defn.jit_apply(fun, args, compiler: Nx.Defn.Evaluator))
    compiled = flatten(Nx.Defn.jit_apply(fun, args, compiler: Nx.Vulkan))

    expected =
      Nx.with_default_backend(Nx.BinaryBackend, fn ->
        copies = Enum.map(tensors, &Nx.backend_copy(&1, Nx.BinaryBackend))
        flatten(Nx.Defn.jit_apply(fun, copies, compiler: Nx.Defn.Evaluator))
      end)

    assert length(compiled) == length(eager)

    for {c, e, b} <- Enum.zip([compiled, eager, expected]) do
      assert %VulkanoBackend{} = c.data
      assert {c.type, c.shape, c.names, c.vectorized_axes} == {e.type, e.shape, e.names, e.vectorized_axes}
      assert Nx.to_binary(c) == Nx.to_binary(e)
      Conformance.assert_close(Nx.backend_copy(Nx.devectorize(c), Nx.BinaryBackend), Nx.devectorize(b), opts)
    end

    compiled
  end

  defp flatten(result), do: Nx.Defn.Composite.flatten_list([result])
  defp random(shape, type \\ {:f, 32}), do: Conformance.random(shape, type, -3, 3)
  defp compiled(fun, args, opts \\ []), do: Nx.Defn.jit_apply(fun, args, [compiler: Nx.Vulkan] ++ opts)

  ## Straight lines

  defn(softmax(t), do: Nx.exp(t - Nx.reduce_max(t, axes: [-1], keep_axes: true)) |> normalize())
  defnp(normalize(t), do: t / Nx.sum(t, axes: [-1], keep_axes: true))

  test "elementwise ops, reductions and broadcasts" do
    assert_compiled(&softmax/1, [random({7, 33})], absolute: 1.0e-6)
  end

  test "a parameter that is not used, one that is the result, and none" do
    assert_compiled(fn _a, b, c -> {b, Nx.add(c, 1)} end, [random({2}), random({3}), random({4})])
    assert_compiled(fn a, b -> {b, a} end, [random({2}), random({3})])
    assert [one, two] = assert_compiled(fn -> {Nx.iota({2, 2}), Nx.tensor([1.5, 2.5])} end, [])
    assert {Nx.shape(one), Nx.shape(two)} == {{2, 2}, {2}}
  end

  test "the same result twice, and a result that another needs" do
    assert_compiled(
      fn a ->
        b = Nx.multiply(a, 2)
        {b, b, Nx.add(b, a), a}
      end,
      [random({5})]
    )
  end

  test "constants of every type" do
    for type <- Conformance.types() ++ Conformance.sub_byte() do
      assert_compiled(fn -> {Nx.tensor(1, type: type), Nx.broadcast(Nx.tensor(1, type: type), {3})} end, [])
    end

    assert_compiled(fn -> {Nx.Constants.nan(), Nx.Constants.infinity(), Nx.Constants.neg_infinity({:f, 64})} end, [])
    assert_compiled(fn -> Nx.tensor(0xFFFFFFFFFFFFFFFF, type: :u64) end, [])
  end

  test "captured tensors have their values in every call" do
    weights = Nx.tensor([[1.0, 2.0], [3.0, 4.0]], backend: Nx.BinaryBackend)
    fun = Nx.Defn.jit(fn x -> Nx.dot(x, weights) end, compiler: Nx.Vulkan)
    assert Nx.to_flat_list(fun.(Nx.tensor([1.0, 1.0]))) == [4.0, 6.0]
    assert Nx.to_flat_list(fun.(Nx.tensor([2.0, 1.0]))) == [5.0, 8.0]
  end

  test "tensors of this backend can't be captured, as in every compiler" do
    captured = Nx.tensor([1.0])
    assert_raise Nx.Defn.IncompatibleBackendsError, fn -> compiled(&Nx.add(&1, captured), [1]) end
  end

  test "ops with attributes" do
    a = random({4, 6})

    for fun <- [
          &Nx.transpose/1,
          &Nx.reverse(&1, axes: [1]),
          &Nx.slice(&1, [1, 2], [2, 3], strides: [1, 2]),
          &Nx.pad(&1, 1.5, [{1, -1, 0}, {0, 2, 1}]),
          &Nx.concatenate([&1, &1], axis: 1),
          &Nx.stack([&1, &1], axis: 1),
          &Nx.argmax(&1, axis: 1, tie_break: :high),
          &Nx.sort(&1, axis: 0, direction: :desc),
          &Nx.argsort(&1, axis: 1),
          &Nx.window_sum(&1, {2, 3}, padding: :same),
          &Nx.window_max(&1, {2, 2}, strides: [2, 2]),
          &Nx.cumulative_sum(&1, axis: 1, reverse: true),
          &Nx.top_k(&1, k: 3),
          &Nx.gather(&1, Nx.tensor([[1, 2], [3, 5]], backend: Nx.BinaryBackend)),
          &Nx.indexed_add(&1, Nx.tensor([[0, 1], [0, 1]], backend: Nx.BinaryBackend), Nx.sum(&1, axes: [1])[0..1]),
          &Nx.put_slice(&1, [1, 1], Nx.iota({2, 2}, type: :f32)),
          &Nx.clip(&1, -1, 1),
          &Nx.select(Nx.greater(&1, 0), &1, 0),
          &Nx.as_type(&1, :s8),
          &Nx.bitcast(&1, :s32),
          &Nx.reshape(&1, {3, 8}),
          &Nx.new_axis(&1, 1),
          &Nx.logical_not/1,
          &Nx.all_close(&1, Nx.add(&1, 1.0e-9)),
          &Nx.eye({3, 4}, type: Nx.type(&1))
        ] do
      assert_compiled(fun, [a], absolute: 1.0e-5)
    end

    # Nx 0.13.0 takes no constants in the arguments of a block.
    positions = Nx.tensor([[5, 0], [1, 1], [2, 2], [3, 4]], backend: Nx.BinaryBackend)

    for fun <- [&Nx.take(&1, &2, axis: 1), &Nx.take_along_axis(&1, &2, axis: 1)],
        do: assert_compiled(fun, [a, positions])
  end

  test "products, convolutions, transforms, factorizations" do
    spd = Nx.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]], backend: Nx.BinaryBackend)
    assert_compiled(&Nx.dot(&1, [1], [0], &2, [2], [0]), [random({2, 3, 4}), random({2, 5, 3})], absolute: 1.0e-5)
    assert_compiled(&Nx.conv(&1, &2, padding: :same), [random({1, 2, 6, 6}), random({3, 2, 3, 3})], absolute: 1.0e-4)
    assert_compiled(&Nx.fft/1, [random({2, 12})], absolute: 1.0e-4)
    assert_compiled(&Nx.fft2/1, [random({4, 6})], absolute: 1.0e-4)
    assert_compiled(&Nx.irfft(Nx.rfft(&1)), [random({16})], absolute: 1.0e-5)
    assert_compiled(&Nx.LinAlg.cholesky/1, [spd], absolute: 1.0e-5)
    assert_compiled(&Nx.LinAlg.lu/1, [spd], absolute: 1.0e-5)
    assert_compiled(&Nx.LinAlg.qr/1, [spd], absolute: 1.0e-5)
    assert_compiled(&Nx.LinAlg.solve(&1, &2), [spd, random({3})], absolute: 1.0e-4)
    assert_compiled(&Nx.LinAlg.triangular_solve(Nx.tril(&1), &2), [spd, random({3})], absolute: 1.0e-4)
    assert_compiled(&Nx.LinAlg.determinant/1, [spd], absolute: 1.0e-4)
    assert_compiled(&Nx.LinAlg.invert/1, [spd], absolute: 1.0e-4)
  end

  test "functions of reduce and window_reduce" do
    a = random({4, 6})

    assert_compiled(&Nx.reduce(&1, 0, [axes: [1]], fn x, acc -> Nx.add(Nx.multiply(x, 2), acc) end), [a],
      absolute: 1.0e-5
    )

    assert_compiled(&Nx.window_reduce(&1, 1.0, {2, 2}, fn x, acc -> Nx.max(x, acc) end), [a])
    assert_compiled(&branching_fold/1, [a], absolute: 1.0e-5)
    assert_compiled(&Nx.reduce(&1, 0, [type: :f64], fn x, acc -> Nx.add(x, acc) end), [Nx.as_type(a, :s32)])
  end

  defn branching_fold(t) do
    Nx.reduce(t, 0.0, [axes: [0]], fn x, acc -> if(x > 0, do: x + acc, else: acc - 1) end)
  end

  test "a function that no kernel holds names itself" do
    error =
      assert_raise Nx.Vulkan.Error, fn ->
        compiled(&Nx.reduce(&1, 0, fn x, acc -> Nx.argmax(Nx.stack([x, acc])) end), [
          Nx.iota({4})
        ])
      end

    assert error.kind == :unsupported and error.op == :reduce
    assert error.details == %{type: {:s, 32}, shape: {}}

    for said <- ["uses stack", "Nx.Defn.Evaluator", "CompilerTest"], do: assert(Exception.message(error) =~ said)
  end

  ## Containers and vectorized tensors

  test "containers, nested and of structs" do
    input = %{a: Nx.tensor(1), b: {Nx.tensor([2.0, 3.0]), 4}}
    result = compiled(fn %{a: a, b: {b, c}} -> %{sum: Nx.add(a, b), rest: {c, %{d: Nx.multiply(a, 2)}}} end, [input])
    assert Nx.to_flat_list(result.sum) == [3.0, 4.0]
    assert {four, %{d: two}} = result.rest
    assert {Nx.to_number(four), Nx.to_number(two)} == {4, 2}
  end

  test "names and vectorized axes come back" do
    a = Nx.iota({2, 3}, names: [:rows, :columns], type: :f32)
    assert compiled(&Nx.sum(&1, axes: [:rows]), [a]).names == [:columns]
    v = Nx.vectorize(Nx.iota({2, 3}, type: :f32), :x)
    out = compiled(fn v, w -> Nx.multiply(Nx.sum(v), w) end, [v, Nx.tensor([1.0, 2.0])])
    assert out.vectorized_axes == [x: 2] and out.shape == {2}
    assert Nx.to_flat_list(Nx.devectorize(out)) == [3.0, 6.0, 12.0, 24.0]
  end

  test "arguments of other backends, numbers, and of other processes" do
    fun = Nx.Defn.jit(&Nx.add/2, compiler: Nx.Vulkan)
    there = Nx.tensor([1, 2, 3], backend: Nx.BinaryBackend)
    assert Nx.to_flat_list(fun.(there, 2)) == [3, 4, 5]
    assert Nx.to_flat_list(Task.await(Task.async(fn -> fun.(there, 2) end))) == [3, 4, 5]
  end

  ## Control flow

  defn clauses(p, a, b) do
    shared = a * b

    chosen =
      cond do
        p > 2 -> Nx.sin(a) + shared
        p > 1 -> Nx.cos(b) * shared
        true -> shared - a
      end

    chosen + shared
  end

  test "cond takes the clause whose predicate holds" do
    for p <- [3, 2, 1], do: assert_compiled(&clauses/3, [Nx.tensor(p), random({3}), random({3})], absolute: 1.0e-5)
    for p <- [0.0, 1.5], do: assert_compiled(&of_float/2, [Nx.tensor(p), random({3})])
  end

  defn(of_float(p, a), do: if(p, do: {a, a + 1}, else: {a * 2, a}))

  defn nested(p, q, a) do
    if p do
      b = a * 2
      if q, do: b + a, else: while_in(b)
    else
      {_, c, _} =
        while {i = 0, c = a, q}, i < 3 do
          if i == q, do: {i + 1, c * 2, q}, else: {i + 1, c + i, q}
        end

      c
    end
  end

  defnp while_in(a) do
    while a, Nx.sum(a) < 100 do
      a * 2 + Nx.tensor([1.0, 2.0])
    end
  end

  test "while and cond within one another, with tensors that they capture" do
    for p <- [0, 1], q <- [0, 1] do
      assert_compiled(&nested/3, [Nx.tensor(p), Nx.tensor(q), Nx.tensor([1.0, 2.0])])
    end
  end

  defn counted(x, n) do
    {_, x, _} =
      while {i = 0, x, n}, i < n do
        {i + 1, Nx.cos(x), n}
      end

    x
  end

  test "while runs as often as its condition says, not at all too" do
    for n <- [0, 1, 7, 300], do: assert_compiled(&counted/2, [random({5}), Nx.tensor(n)], absolute: 1.0e-5)
  end

  test "generators and the gradient of a loop" do
    assert_compiled(fn x -> grad(x, fn x -> Nx.sum(generated(x)) end) end, [random({4})], absolute: 1.0e-4)
    assert_compiled(&generated/1, [random({4})], absolute: 1.0e-4)
  end

  defn generated(x) do
    while acc = x, i <- 0..4 do
      acc * Nx.sin(x_at(i)) + acc
    end
  end

  defnp(x_at(i), do: i + 0.5)

  test "branches that are not taken don't run" do
    # A loop that would not end.
    assert Nx.to_number(compiled(&endless_unless/1, [1])) == 1
  end

  defn endless_unless(p) do
    if p do
      1
    else
      while x = 0, x < 1 do
        x * 2
      end
    end
  end

  test "gradients" do
    loss = fn w, x -> Nx.sum(Nx.tanh(Nx.dot(x, w))) end
    assert_compiled(fn w, x -> value_and_grad(w, &loss.(&1, x)) end, [random({3, 2}), random({5, 3})], absolute: 1.0e-4)
  end

  test "random numbers" do
    assert_compiled(fn key -> Nx.Random.normal(key, shape: {4}) end, [Nx.Random.key(7)], absolute: 1.0e-6)
  end

  ## Donation, options, errors

  test "a deallocated argument is named" do
    fun =
      Nx.Defn.jit(
        fn a, unused, {b, %{w: w}} ->
          {Nx.add(a, b), Nx.multiply(w, 2), Nx.shape(unused)} |> elem(0) |> Nx.add(Nx.sum(w))
        end,
        compiler: Nx.Vulkan
      )

    call = fn gone ->
      [a, unused, b, w] = tensors = [Nx.tensor([1.0]), Nx.tensor(1), Nx.tensor([2]), Nx.iota({2, 3})]
      for i <- gone, do: tensors |> Enum.at(i) |> Nx.backend_deallocate()
      fun.(a, unused, {b, %{w: w}})
    end

    assert Nx.to_flat_list(call.([1])) == [18.0]

    error = assert_raise Nx.Vulkan.Error, fn -> call.([1, 3]) end

    assert %{kind: :released, details: %{arguments: [%{argument: 3, path: [1, :w], type: {:s, 32}, shape: {2, 3}}]}} =
             error

    assert error.message =~ "argument 3 at 1, :w (s32[2][3]) was deallocated"
    assert error.message =~ "Nx.backend_copy/1" and error.message =~ "in anonymous fn"

    error = assert_raise Nx.Vulkan.Error, fn -> call.([0, 2]) end
    assert error.message =~ "argument 1 (f32[1]), argument 3 at 0 (s32[1]) were deallocated"

    # The same where the host has a part in the run.
    hooked = Nx.Defn.jit(fn a -> Nx.add(Nx.runtime_call(a, a, [], fn a, _ -> a end), 1) end, compiler: Nx.Vulkan)
    gone = Nx.tensor([1])
    Nx.backend_deallocate(gone)
    assert assert_raise(Nx.Vulkan.Error, fn -> hooked.(gone) end).message =~ "argument 1 (s32[1]) was deallocated"
  end

  if Nx.Vulkan.Versions.donatable?() do
    test "a donated tensor is given back after the call, unless it is the result" do
      fun = Nx.Defn.jit(&Nx.add(&1, 1), compiler: Nx.Vulkan)
      donated = Nx.donatable(Nx.tensor([1, 2]))
      assert Nx.to_flat_list(fun.(donated)) == [2, 3]
      assert_raise Nx.Vulkan.Error, ~r/released/, fn -> Nx.to_binary(donated) end

      same = Nx.donatable(Nx.tensor([1, 2]))
      result = compiled(& &1, [same])
      assert Nx.to_flat_list(result) == [1, 2] and not result.donatable?
    end
  end

  defn(looped_gradients(x), do: {grad(x, &looped/1), grad(x, &unrolled/1)})
  defn(unrolled(x), do: Nx.sum(x * Nx.sin(x) * Nx.sin(x * Nx.sin(x))))

  defn looped(x) do
    {_, y} =
      while {i = 0, x}, i < 2 do
        {i + 1, x * Nx.sin(x)}
      end

    Nx.sum(y)
  end

  # Nx says f32.
  test "the gradient through a loop of f64 is one of f64" do
    x = Nx.tensor([1.3, 0.7], type: :f64)
    {gradient, unrolled} = compiled(&looped_gradients/1, [x])
    assert Nx.type(gradient) == {:f, 64}
    for {a, b} <- Enum.zip(Nx.to_flat_list(gradient), Nx.to_flat_list(unrolled)), do: assert_in_delta(a, b, 1.0e-14)
  end

  test "options of another sort are refused; those of libraries are left alone" do
    assert_raise ArgumentError, ~r/:cache must be a boolean/, fn -> compiled(&Nx.add(&1, 1), [1], cache: nil) end
    assert Nx.to_number(compiled(&Nx.add(&1, 1), [1], mode: :train)) == 2
  end

  test "a precision that this VM does not have is refused" do
    [same, other] =
      if Nx.Vulkan.Application.precision() == :high, do: [[:high], :highest], else: [[:highest, :default], :high]

    for precision <- same, do: assert(Nx.to_number(compiled(&Nx.add(&1, 1), [1], precision: precision)) == 2)

    refused =
      ~r/precision: :#{other} can't be had for one function.*config :nx_vulkan, precision: :#{other}.*NX_VULKAN_PRECISION/

    for call <- [&compiled/3, &Nx.Vulkan.Compiler.explain/3, &Nx.Vulkan.Compiler.graph/3] do
      assert_raise ArgumentError, refused, fn -> call.(&Nx.add(&1, 1), [1], precision: other) end

      assert_raise ArgumentError, ~r/:precision must be :default, :high or :highest, got: :bogus/, fn ->
        call.(&Nx.add(&1, 1), [1], precision: :bogus)
      end
    end

    assert_raise ArgumentError, refused, fn ->
      Nx.Defn.compile(&Nx.add(&1, 1), [1], compiler: Nx.Vulkan, precision: other)
    end
  end

  test "partitions are as many as a positive integer says" do
    assert Nx.Vulkan.__partitions_options__(max_concurrency: 2) == [[max_concurrency: 2], [max_concurrency: 2]]
    assert Nx.Vulkan.__partitions_options__([]) == [[]]

    for wrong <- [0, -1, :x, nil, 1.0] do
      assert_raise ArgumentError, ~r/:max_concurrency must be a positive integer, got: #{inspect(wrong)}/, fn ->
        Nx.Vulkan.__partitions_options__(max_concurrency: wrong)
      end
    end
  end

  test "what explain and graph can't look into is refused" do
    for tell <- [&Nx.Vulkan.Compiler.explain/2, &Nx.Vulkan.Compiler.graph/2] do
      for fun <- [
            Nx.Defn.jit(&Nx.add/2),
            Nx.Defn.compile(&Nx.add/2, [1, 2]),
            fn a, b -> Nx.Defn.jit(&Nx.add/2).(a, b) end
          ] do
        assert_raise ArgumentError, ~r/expected a function that is not compiled yet, got #Function/, fn ->
          tell.(fun, [1, 2])
        end
      end

      assert_raise ArgumentError, ~r"expected the 2 arguments of &Nx.add/2, got 1 of them", fn ->
        tell.(&Nx.add/2, [1])
      end

      assert_raise ArgumentError, ~r/expected a list of the function's arguments, got: 1/, fn -> tell.(&Nx.exp/1, 1) end
      assert_raise ArgumentError, ~r/expected a function, got: :exp/, fn -> tell.(:exp, [1]) end
      assert_raise RuntimeError, "mine", fn -> tell.(fn _ -> raise "mine" end, [1]) end
      assert tell.(Nx.Defn.grad(&Nx.exp/1), [1.0])
    end
  end

  test "a node that nobody knows is an error that names it and the function" do
    strange = fn x -> put_in(Nx.add(x, 1).data.op, :strange) end
    error = assert_raise Nx.Vulkan.Error, fn -> compiled(strange, [Nx.tensor([1])]) end
    assert error.kind == :unsupported and error.op == :strange
    assert Exception.message(error) =~ "CompilerTest"
  end

  test "what the definition raises comes through, and the next call compiles again" do
    fun = fn _ -> raise "no" end
    for _ <- 1..2, do: assert_raise(RuntimeError, "no", fn -> compiled(fun, [1]) end)
  end

  test "singular systems and indices out of bounds don't raise" do
    singular = Nx.tensor([[1.0, 2.0], [2.0, 4.0]])
    assert %Nx.Tensor{shape: {2}} = compiled(&Nx.LinAlg.solve/2, [singular, Nx.tensor([1.0, 2.0])])
    assert Nx.to_flat_list(compiled(&Nx.take/2, [Nx.tensor([1, 2, 3]), Nx.tensor([7, -5, 1])])) == [3, 1, 2]
  end

  ## Caches and processes

  test "a function is compiled once per templates" do
    parent = self()

    fun =
      Nx.Defn.jit(
        fn x ->
          send(parent, :traced)
          Nx.add(x, 1)
        end,
        compiler: Nx.Vulkan
      )

    for _ <- 1..3, do: fun.(Nx.tensor([1, 2]))
    assert_received :traced
    refute_received :traced
    fun.(Nx.tensor([1, 2], type: :u8))
    fun.(Nx.tensor([1, 2], names: [:x]))
    fun.(Nx.tensor([1, 2, 3]))
    for _ <- 1..3, do: assert_received(:traced)
    refute_received :traced
    Nx.Defn.jit_apply(fn x -> send(parent, :traced) && Nx.add(x, 1) end, [1], compiler: Nx.Vulkan, cache: false)
    assert_received :traced
  end

  test "sixteen processes call one function, which is compiled once" do
    parent = self()

    fun =
      Nx.Defn.jit(
        fn x, y ->
          send(parent, :traced)
          Nx.add(Nx.multiply(x, y), 1)
        end,
        compiler: Nx.Vulkan
      )

    results =
      1..16
      |> Enum.map(fn i ->
        Task.async(fn -> for j <- 1..20, do: Nx.to_flat_list(fun.(Nx.tensor([i, j]), Nx.tensor(j))) end)
      end)
      |> Task.await_many(60_000)

    for {rows, i} <- Enum.with_index(results, 1), {row, j} <- Enum.with_index(rows, 1) do
      assert row == [i * j + 1, j * j + 1]
    end

    assert_received :traced
    refute_received :traced
  end

  test "compiling again and again for captured values warns once" do
    log =
      capture_log(fn ->
        for i <- 1..12, do: compiled(fn x -> Nx.add(x, i) end, [Nx.tensor([1.0])])
      end)

    assert [_, _] = String.split(log, "was compiled 10 times")
  end

  def tell(event, measurements, metadata, parent) do
    if self() == parent, do: send(parent, {event, measurements, metadata})
  end

  test "explain tells what was made of a function" do
    told = Nx.Vulkan.Compiler.explain(&clauses/3, [3, Nx.tensor([1.0, 2.0]), 1.0])
    assert %{arguments: 3, kept: 3, constants: [], steps: [{:run, program}]} = told
    assert told.function =~ "CompilerTest"
    assert %{inputs: [[:s32, []], [:f32, [2]], [:f32, []]], outputs: [[:f32, [2]]], ops: %{cond: 1}} = program

    chain = Nx.Vulkan.Compiler.explain(&Nx.tanh(Nx.exp(Nx.add(&1, 1))), [Nx.tensor([1.0, 2.0])])
    assert %{steps: [{:run, %{ops: %{add: 1, exp: 1, tanh: 1}, device: %{waits: 0, commands: commands}}}]} = chain
    assert commands in 1..3

    looped = Nx.Vulkan.Compiler.explain(fn x -> while_with_hook(x) end, [Nx.tensor(1)])
    assert {:while, [{:run, _}], [{:run, _}, {:hook, hook} | _]} = List.keyfind(looped.steps, :while, 0)
    # Nx 0.13 gives hooks without a name one of their own.
    assert is_atom(hook) or hook =~ "CompilerTest"
  end

  defn while_with_hook(x) do
    while x, x < 3 do
      hooked(x + 1, fn _ -> :ok end)
    end
  end

  defn(named_step(x, n), do: x + n)

  test "a definition has its own name, whether it is called, captured or compiled" do
    handler = make_ref()
    :telemetry.attach(handler, [:nx_vulkan, :compiler, :run], &__MODULE__.tell/4, self())
    previous = Nx.Defn.default_options(compiler: Nx.Vulkan)
    named_step(Nx.tensor([1, 2]), 3)
    Nx.Defn.default_options(previous)
    compiled(&named_step/2, [Nx.tensor([1, 2]), 3])
    compiled(&__MODULE__.named_step/2, [Nx.tensor([1, 2]), 3])
    :telemetry.detach(handler)

    expected = "#{inspect(__MODULE__)}.named_step/2"
    for _ <- 1..3, do: assert_received({_, _, %{name: ^expected}})
  end

  test "telemetry tells of runs that raise" do
    handler = make_ref()

    :telemetry.attach_many(
      handler,
      [[:nx_vulkan, :compiler, :run, :exception], [:nx_vulkan, :compiler, :run]],
      &__MODULE__.tell/4,
      self()
    )

    deallocated = Nx.tensor([1])
    Nx.backend_deallocate(deallocated)
    assert_raise Nx.Vulkan.Error, fn -> compiled(&Nx.subtract(&1, 7), [deallocated]) end

    thrown = fn x -> Nx.runtime_call(x, x, [], fn _, _ -> throw(:up) end) end
    assert catch_throw(Nx.Defn.jit(thrown, compiler: Nx.Vulkan).(Nx.tensor([1]))) == :up
    :telemetry.detach(handler)

    assert_received {[_, _, :run, :exception], %{duration: duration},
                     %{name: name, kind: :error, reason: %Nx.Vulkan.Error{kind: :released}, stacktrace: [_ | _]}}
                    when duration >= 0 and is_binary(name)

    assert_received {[_, _, :run, :exception], %{duration: _}, %{kind: :throw, reason: :up}}
    refute_received {[_, _, :run], _, _}
  end

  test "telemetry tells of compilations and runs" do
    handler = make_ref()
    events = [[:nx_vulkan, :compiler, :compile, :stop], [:nx_vulkan, :compiler, :run]]
    parent = self()

    :telemetry.attach_many(
      handler,
      events,
      &__MODULE__.tell/4,
      parent
    )

    compiled(&Nx.subtract(&1, 3), [Nx.tensor([5])])
    :telemetry.detach(handler)
    assert_received {[:nx_vulkan, :compiler, :compile, :stop], %{duration: _}, %{name: name}}
    assert_received {[:nx_vulkan, :compiler, :run], %{duration: duration}, %{name: ^name}} when duration >= 0
  end
end
