defmodule Nx.Vulkan.Conformance.CompilerHooksTest do
  use ExUnit.Case, async: true

  import Nx.Defn
  import Nx.Vulkan.Versions, only: [hooked: 2, hooked: 3]

  alias Nx.Vulkan.{Versions, VulkanoBackend}

  @moduletag :device

  setup do
    Nx.default_backend(VulkanoBackend)
    :ok
  end

  defp compiled(fun, args, opts \\ []), do: Nx.Defn.jit_apply(fun, args, [compiler: Nx.Vulkan] ++ opts)
  defp tell(tag), do: fn value -> send(self(), {tag, numbers(value)}) end

  defp numbers(%Nx.Tensor{} = tensor) do
    assert %VulkanoBackend{} = tensor.data
    Nx.to_flat_list(Nx.devectorize(tensor))
  end

  defp numbers(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> Enum.map(&numbers/1) |> List.to_tuple()
  defp numbers(%{} = map), do: Map.new(map, fn {key, value} -> {key, numbers(value)} end)

  defn named(x) do
    y = hooked(x + 1, :first)
    z = hooked({y * 2, %{sum: Nx.sum(y)}}, :second)
    {pair, %{sum: sum}} = z
    pair + sum
  end

  test "named hooks are called in order, with tensors and containers, or not at all" do
    hooks = %{first: tell(:first), second: tell(:second)}
    assert numbers(compiled(&named/1, [Nx.tensor([1, 2])], hooks: hooks)) == [9, 11]
    assert {:messages, [first: [2, 3], second: {[4, 6], %{sum: [5]}}]} = Process.info(self(), :messages)
    flush()
    assert numbers(compiled(&named/1, [Nx.tensor([1, 2])])) == [9, 11]
    assert {:messages, []} = Process.info(self(), :messages)
    assert numbers(compiled(&named/1, [Nx.tensor([1, 2])], hooks: %{second: tell(:other)})) == [9, 11]
    assert {:messages, [other: {[4, 6], %{sum: [5]}}]} = Process.info(self(), :messages)
  end

  defp flush do
    receive do
      _ -> flush()
    after
      0 -> :ok
    end
  end

  defn in_loop(x) do
    {_, x} =
      while {i = 0, x}, i < 3 do
        x = hooked(x * 2, :step)
        {i + 1, x}
      end

    Nx.sum(x)
  end

  test "hooks in while run in every iteration" do
    assert Nx.to_number(compiled(&in_loop/1, [Nx.tensor([1, 2])], hooks: %{step: tell(:step)})) == 24
    assert {:messages, [step: [2, 4], step: [4, 8], step: [8, 16]]} = Process.info(self(), :messages)
  end

  defn in_branches(p, x) do
    y =
      cond do
        p > 1 -> hooked(x + 1, :one)
        p > 0 -> hooked(in_loop(x) + x, :two)
        true -> x
      end

    y * 2
  end

  test "hooks in cond run in the branch that is taken, with hooks in loops within" do
    hooks = %{one: tell(:one), two: tell(:two), step: tell(:step)}
    run = fn p -> numbers(compiled(&in_branches/2, [p, Nx.tensor([1, 2])], hooks: hooks)) end
    assert run.(2) == [4, 6]
    assert {:messages, [one: [2, 3]]} = Process.info(self(), :messages)
    flush()
    assert run.(1) == [50, 52]
    assert {:messages, [step: [2, 4], step: [4, 8], step: [8, 16], two: [25, 26]]} = Process.info(self(), :messages)
    flush()
    assert run.(0) == [2, 4]
    assert {:messages, []} = Process.info(self(), :messages)
  end

  def scaled(t, opts) do
    send(self(), {:call, numbers(t)})
    Nx.multiply(t, opts[:by])
  end

  def both(%{a: a, b: b}, _opts), do: {Nx.add(a, b), Nx.tensor(7, backend: Nx.BinaryBackend)}
  def wrong(_, _opts), do: Nx.tensor([1.0, 2.0, 3.0])

  defn called(x) do
    y = Nx.runtime_call(x, x + 1, [by: 3], &__MODULE__.scaled/2)
    z = Nx.runtime_call(y, y - x, [by: 10], &__MODULE__.scaled/2)
    {sum, seven} = Nx.runtime_call({z, Nx.tensor(0)}, %{a: y, b: z}, &__MODULE__.both/2)
    sum * seven + Nx.exp(x * 0)
  end

  test "the results of runtime_call feed what follows" do
    assert numbers(compiled(&called/1, [Nx.tensor([1, 2])])) == [(6 + 50) * 7 + 1.0, (9 + 70) * 7 + 1.0]
    assert {:messages, [call: [2, 3], call: [5, 7]]} = Process.info(self(), :messages)
  end

  test "a result of runtime_call that is not as the template says" do
    assert_raise RuntimeError, ~r/match the given output template/, fn ->
      compiled(fn x -> Nx.runtime_call(x, x, [], &__MODULE__.wrong/2) end, [Nx.tensor([1, 2])])
    end
  end

  defn called_in_loop(x) do
    {_, x} =
      while {i = 0, x}, i < 2 do
        {i + 1, Nx.runtime_call(x, x + i, [by: 2], &__MODULE__.scaled/2)}
      end

    x
  end

  test "runtime_call in while" do
    assert numbers(compiled(&called_in_loop/1, [Nx.tensor([1, 2])])) == [6, 10]
    assert {:messages, [call: [1, 2], call: [3, 5]]} = Process.info(self(), :messages)
  end

  test "hooks without a callback are not called, and callbacks are functions" do
    assert numbers(compiled(&named/1, [Nx.tensor([1, 2])], hooks: %{first: nil, second: tell(:second)})) == [9, 11]
    assert {:messages, [second: {[4, 6], %{sum: [5]}}]} = Process.info(self(), :messages)

    message = ~r/:hooks must be a map of functions of one argument by the names of hooks, got/

    for wrong <- [%{first: 1}, %{first: fn -> :ok end}] do
      assert_raise ArgumentError, message, fn -> compiled(&named/1, [Nx.tensor([1, 2])], hooks: wrong) end
    end

    explain = fn -> Nx.Vulkan.Compiler.explain(&named/1, [Nx.tensor([1, 2])], hooks: [first: tell(:first)]) end
    assert_raise ArgumentError, message, explain
  end

  if Versions.donatable?() do
    test "a donated tensor that a callback was given stays" do
      me = self()
      fun = fn x -> Nx.add(hooked(x, fn t -> send(me, {:given, t}) end), 1) end
      assert numbers(compiled(fun, [Nx.donatable(Nx.tensor([1, 2]))])) == [2, 3]
      assert_receive {:given, tensor}
      assert numbers(tensor) == [1, 2]
    end
  end

  test "an exception of a hook is the caller's" do
    assert_raise RuntimeError, "from a hook", fn ->
      compiled(&in_loop/1, [Nx.tensor([1, 2])], hooks: %{step: fn _ -> raise "from a hook" end})
    end
  end

  test "hooks of a compiled function see vectorized tensors" do
    fun =
      Nx.Defn.compile(fn x -> hooked(Nx.add(x, 1), tell(:seen)) end, [Nx.template({2}, :s32)], compiler: Nx.Vulkan)

    assert numbers(fun.(Nx.tensor([1, 2]))) == [2, 3]
    assert_received {:seen, [2, 3]}
  end

  # The nodes of Nx 0.13, which later versions don't make.
  test "hooks of Nx 0.13, on values and on tokens" do
    fun = fn x ->
      y = Nx.add(x, 1)

      node = fn data, spec, type ->
        %{type | data: %{y.data | id: make_ref(), op: :hook, args: [data, spec, type, make_ref()]}}
      end

      z = node.(y, {:named, :first, nil}, y)
      z = node.(z, {:token_hook, %{product: Nx.multiply(y, 2)}, {:named, :second, tell(:second)}}, y)
      z = node.(z, {:token_hook, Nx.sum(y), {:named, :third, nil}}, y)
      Nx.multiply(node.(z, {:fn, tell(:fourth)}, y), 10)
    end

    assert numbers(compiled(fun, [Nx.tensor([1, 2])], hooks: %{first: tell(:first)})) == [20, 30]
    seen = [first: [2, 3], second: %{product: [4, 6]}, fourth: [2, 3]]
    assert Process.info(self(), :messages) == {:messages, seen}
  end

  # Results and messages, which are those of the evaluator.
  defp told(fun, args, hooks) do
    [expected, given] =
      for compiler <- [Nx.Defn.Evaluator, Nx.Vulkan] do
        result = numbers(Nx.Defn.jit_apply(fun, args, compiler: compiler, hooks: hooks))
        {:messages, messages} = Process.info(self(), :messages)
        flush()
        {result, messages}
      end

    assert given == expected
    given
  end

  defn shared(p, x) do
    y = hooked({x + 1, x * 2}, :pair)
    {a, b} = y
    left = if p, do: a, else: hooked(-a, :negative)
    right = if p, do: hooked(b * 2, :twice), else: b
    left * right + a
  end

  test "what branches share is told once, and hooks of a branch where it is taken" do
    hooks = Map.new([:pair, :negative, :twice], &{&1, tell(&1)})
    assert {[10], [pair: {[2], [2]}, twice: [4]]} = told(&shared/2, [1, 1], hooks)
    assert {[-2], [pair: {[2], [2]}, negative: [-2]]} = told(&shared/2, [0, 1], hooks)
    assert {[-2], []} = told(&shared/2, [0, 1], %{})
  end

  defn(differentiated(x), do: hooked(value_and_grad(x, &Nx.sum(hooked(&1 ** 2, :square))), :both))

  test "hooks within a gradient and on one" do
    hooks = %{square: tell(:square), both: tell(:both)}
    assert {{[5.0], [2.0, 4.0]}, messages} = told(&differentiated/1, [Nx.tensor([1.0, 2.0])], hooks)
    assert Enum.sort(messages) == [both: {[5.0], [2.0, 4.0]}, square: [1.0, 4.0]]
  end

  test "another callback for a name is another's, and the default is where none is given" do
    fun = fn a, b -> hooked(Nx.add(a, b), :sum, tell(:default)) end
    assert {[3], [default: [3]]} = told(fun, [1, 2], %{})
    assert {[3], [given: [3]]} = told(fun, [1, 2], %{sum: tell(:given)})
  end

  defn(printed(x), do: print_value(x + 1, &(&1 * 2), label: "doubled"))

  test "print_value prints what its function makes of a value" do
    assert ExUnit.CaptureIO.capture_io(fn -> compiled(&printed/1, [Nx.tensor([1, 2])]) end) =~ ~r/doubled.*\[4, 6\]/s
  end

  if Versions.tokens?() do
    # They are deprecated.
    defp token(hooks, result) do
      kernel = Nx.Defn.Kernel

      {token, _} =
        Enum.reduce(hooks, {apply(kernel, :create_token, []), nil}, fn {arguments, value}, {token, _} ->
          apply(kernel, :hook_token, [token, value | arguments])
        end)

      apply(kernel, :attach_token, [token, result])
    end

    test "hooks on a token are called in their order, and what it is attached to passes through" do
      fun = fn a, b ->
        {c, d} = token([{[:b], b}, {[:a], %{a: a, sum: Nx.add(a, b)}}], {a, Nx.multiply(b, 3)})
        Nx.add(c, d)
      end

      all = %{a: tell(:a), b: tell(:b)}
      assert {[7], [b: [2], a: %{a: [1], sum: [3]}]} = told(fun, [1, 2], all)
      assert {[7], [b: [2]]} = told(fun, [1, 2], Map.take(all, [:b]))
      assert {[7], [a: _]} = told(fun, [1, 2], Map.take(all, [:a]))
      assert {[7], []} = told(fun, [1, 2], %{})
    end

    test "hooks on a token and on what it is attached to, with callbacks of their own" do
      fun = fn a, b ->
        a = token([{[:b, tell(:default)], b}, {[tell(:nameless)], Nx.add(b, 1)}], a)
        Nx.add(hooked(a, :a), 1)
      end

      assert {[2], [default: [2], nameless: [3], a: [1]]} = told(fun, [1, 2], %{a: tell(:a)})
      assert {[2], [given: [2], nameless: [3]]} = told(fun, [1, 2], %{b: tell(:given)})
    end

    deftransform(on_token(value, seen, name: name), do: token([{[name], seen}], value))

    defn token_in_loop(x) do
      {_, x} =
        while {i = 0, x}, i < 3 do
          {i + 1, if(i > 0, do: on_token(x * 2, {i, x}, name: :step), else: x + 1)}
        end

      x
    end

    test "hooks on a token in a branch of a loop" do
      assert {[8], [step: {[1], [2]}, step: {[2], [4]}]} = told(&token_in_loop/1, [1], %{step: tell(:step)})
    end
  end
end
