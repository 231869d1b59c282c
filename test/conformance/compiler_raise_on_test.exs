defmodule Nx.Vulkan.Conformance.CompilerRaiseOnTest do
  use ExUnit.Case, async: true

  import Nx.Defn
  import Nx.Vulkan.Versions, only: [hooked: 2]

  alias Nx.Vulkan.{Error, NativeV, Versions, VulkanoBackend}

  @moduletag :device

  setup do
    Nx.default_backend(VulkanoBackend)
    :ok
  end

  defp compiled(fun, args, kinds) do
    Nx.Defn.jit_apply(fun, args, compiler: Nx.Vulkan, raise_on: kinds)
  end

  defp error(fun, args, kinds \\ :nan), do: assert_raise(Error, fn -> compiled(fun, args, kinds) end)

  defn(logs(x), do: Nx.sum(Nx.log(x) * 2))
  defn(quotient(%{a: a, b: b}, c), do: (a - 1) / (b * 0) + c)

  describe "NaN" do
    test "of a logarithm names it, what it took, its argument and the function" do
      assert Nx.to_number(compiled(&logs/1, [Nx.tensor([1.0, 1.0])], :nan)) == 0.0
      error = error(&logs/1, [Nx.tensor([1.0, -1.0])])
      assert %Error{kind: :nan, op: :log} = error
      assert %{operands: [[:f32, [2]]], outs: [[:f32, [2]]], within: [], argument: %{argument: 1}} = error.details

      assert Exception.message(error) ==
               "log: the NaN in the results begins here, in the result f32[2] of the operand f32[2], which has " <>
                 "none; the argument used last before is argument 1 (f32[2]), in #{inspect(__MODULE__)}.logs/1, " <>
                 "at call 2 since it was compiled (nan)"

      assert error.details.call == 2
    end

    test "of zero by zero names the division, not the sum after it" do
      error = error(&quotient/2, [%{a: Nx.tensor([[1.0], [2.0]]), b: Nx.tensor([[3.0], [4.0]])}, Nx.tensor([1.0, 2.0])])
      assert %Error{op: :divide, details: %{operands: [[:f32, [2, 1]], [:f32, [2, 1]]]}} = error
      assert error.details.argument.path in [[:a], [:b]]
    end

    test "of infinities says with which op those begin" do
      fun = fn x -> Nx.subtract(Nx.exp(x), Nx.exp(Nx.multiply(x, 2))) end
      error = error(fun, [Nx.tensor([100.0, 1.0])])
      assert error.op == :subtract
      assert error.message =~ "their infinities begin with exp, whose result is f32[2]"
      error = error(&Nx.subtract(&1, &2), [Nx.Constants.infinity(), Nx.Constants.infinity()])
      assert error.message =~ "their infinities come with an argument, f32"
    end

    test "of arguments and of captured tensors is named as such" do
      nan = Nx.tensor([1.0, :nan])
      error = error(fn _, %{x: x} -> Nx.exp(x) end, [Nx.tensor([:nan]), %{x: nan}])
      assert %Error{kind: :nan, op: nil, details: %{arguments: [%{argument: 2, path: [:x]}]}} = error
      assert error.message =~ "argument 2 at :x (f32[2]) has NaN already, in "
      # Also where it comes out as it is.
      assert error(&{&1, Nx.add(&2, 1)}, [nan, Nx.tensor(1.0)]).message =~ "argument 1 (f32[2]) has NaN already"

      captured = Nx.backend_copy(nan, Nx.BinaryBackend)
      error = error(fn x -> Nx.add(x, captured) end, [Nx.tensor([1.0, 2.0])])
      assert error.message =~ "a tensor that the function captured (f32[2]) has NaN already"

      error = error(fn x -> Nx.add(x, Nx.Constants.nan()) end, [Nx.tensor([1.0, 2.0])])
      assert %Error{op: :constant} = error
      assert error.message =~ "in the result f32 of no operands"
    end

    test "that does not come into the results is none" do
      masked = fn x -> Nx.select(Nx.greater(x, 0), Nx.log(x), 0) end
      assert Nx.to_flat_list(compiled(masked, [Nx.tensor([1.0, -1.0])], :nan)) == [0.0, 0.0]
      assert Nx.to_flat_list(compiled(&Nx.is_nan(Nx.log(&1)), [Nx.tensor([1.0, -1.0])], :nan)) == [0, 1]
      # Of two that have some, the one that is taken.
      fun = fn x -> Nx.select(Nx.greater(x, 0), Nx.log(x), Nx.sqrt(Nx.subtract(Nx.abs(x), 2))) end
      assert error(fun, [Nx.tensor([3.0, -3.0, -1.0])]).op == :sqrt
      fun = fn x -> Nx.select(Nx.less(x, 0), Nx.sqrt(Nx.subtract(1, x)), Nx.log(Nx.subtract(x, 4))) end
      assert error(fun, [Nx.tensor([3.0, -1.0])]).op == :log
    end

    test "in every type that has it, and in one result of several" do
      for type <- [f: 16, bf: 16, f: 32, f: 64, c: 64] do
        x = Nx.tensor([4.0, 0.0], type: type)
        fun = fn x -> {Nx.sum(x), %{y: Nx.divide(x, Nx.multiply(x, 0)), n: Nx.size(x)}} end
        assert %Error{op: :divide} = error(fun, [x])
        assert {sum, %{n: _}} = compiled(fn x -> {Nx.sum(x), %{n: Nx.size(x)}} end, [x], :nan)
        assert Nx.to_binary(sum) == Nx.to_binary(Nx.tensor(4, type: type))
      end

      assert Nx.to_flat_list(compiled(&Nx.add(&1, 1), [Nx.tensor([1, 2])], :nan)) == [2, 3]
    end

    test "of ops of several results and of functions of reduce" do
      error = error(&elem(Nx.LinAlg.qr(Nx.log(&1)), 1), [Nx.tensor([[1.0, -1.0], [1.0, 2.0]])])
      assert error.op == :log
      fun = fn x -> Nx.reduce(x, 0.0, fn a, b -> Nx.add(Nx.sqrt(a), b) end) end
      assert error(fun, [Nx.tensor([1.0, -1.0])]).op == :reduce
    end
  end

  describe "control flow" do
    defn loop(x) do
      {_, y} =
        while {i = 0, x}, i < 20 do
          {i + 1, if(Nx.sum(x) > 100, do: Nx.log(x - 200), else: x * 2)}
        end

      y + 1
    end

    defn outside(x) do
      {_, y} =
        while {i = 0, y = Nx.sqrt(x)}, i < 3 do
          {i + 1, y * 2}
        end

      y
    end

    test "is entered: iterations and branches are named" do
      error = error(&loop/1, [Nx.tensor([1.0, 2.0])])
      assert error.op == :log
      # 3, 6, 12, 24, 48, 96, 192: the seventh doubles no more.
      assert error.details.within == ["iteration 7 of a while", "the true branch of a cond"]

      assert error.message =~
               "begins here, in the true branch of a cond, in iteration 7 of a while, in the result f32[2]"

      error = error(&outside/1, [Nx.tensor([-1.0])])
      assert %Error{op: :sqrt, details: %{within: []}} = error
    end

    defn told(x) do
      {_, y} =
        while {i = 0, x}, i < 3 do
          {i + 1, hooked(Nx.sqrt(x - 1), &send(self(), {:seen, Nx.to_number(&1)}))}
        end

      y
    end

    test "with hooks, which are not called again" do
      assert %Error{op: :sqrt, details: %{within: ["iteration 2 of a while"]}} = error(&told/1, [Nx.tensor(1.5)])
      seen = for _ <- 1..3, do: assert_receive({:seen, seen}) && seen
      assert [_, :nan, :nan] = seen
      refute_received {:seen, _}
    end

    test "and functions of the host" do
      root = fn x, _ -> Nx.sqrt(x) end
      fun = fn x -> Nx.add(Nx.runtime_call(Nx.template({2}, :f32), Nx.subtract(x, 2), [], root), 1) end
      assert %Error{op: :runtime_call, details: %{operands: [[:f32, [2]]]}} = error(fun, [Nx.tensor([1.0, 2.0])])
      assert Nx.to_flat_list(compiled(fun, [Nx.tensor([3.0, 6.0])], :nan)) == [2.0, 3.0]
    end
  end

  test "infinities are told where they are asked for" do
    fun = fn x -> Nx.exp(Nx.multiply(x, 2)) end
    x = Nx.tensor([60.0])
    assert Nx.to_flat_list(compiled(fun, [x], :nan)) == [:infinity]
    assert Nx.to_flat_list(compiled(fun, [x], [])) == [:infinity]

    for kinds <- [:infinity, [:infinity], [:infinity, :nan]] do
      assert %Error{kind: :infinity, op: :exp} = error(fun, [x], kinds)
    end

    assert error(fun, [x], :infinity).message =~ "the infinity in the results begins here, in the result f32[1]"
    assert error(&Nx.add(&1, 1), [Nx.tensor([:infinity])], :infinity).message =~ "has an infinity already"
    # NaN is no infinity.
    assert Nx.to_flat_list(compiled(&Nx.log(&1), [Nx.tensor([-1.0])], :infinity)) == [:nan]
    assert error(&Nx.log(&1), [Nx.tensor([-1.0])], [:infinity, :nan]).kind == :nan
  end

  test "other values of the option are refused" do
    for wrong <- [true, :inf, [:nan, :inf], nil] do
      assert_raise ArgumentError, ~r/:raise_on must be :nan, :infinity or a list of them/, fn ->
        compiled(&Nx.add(&1, 1), [1], wrong)
      end
    end
  end

  test "results have the same bits, from the same kernels" do
    softmax = fn x ->
      e = Nx.exp(Nx.subtract(x, Nx.reduce_max(x, axes: [1], keep_axes: true)))
      Nx.divide(e, Nx.sum(e, axes: [1], keep_axes: true))
    end

    fun = fn x, y -> Nx.Defn.value_and_grad(x, &Nx.sum(Nx.log(softmax.(Nx.dot(&1, y))))) end
    {x, key} = Nx.Random.normal(Nx.Random.key(1), shape: {17, 33})
    {y, _} = Nx.Random.normal(key, shape: {33, 9})
    {loss, gradient} = Nx.Defn.jit_apply(fun, [x, y], compiler: Nx.Vulkan)
    {same_loss, same_gradient} = compiled(fun, [x, y], [:nan, :infinity])
    assert Nx.to_binary(same_loss) == Nx.to_binary(loss)
    assert Nx.to_binary(same_gradient) == Nx.to_binary(gradient)
  end

  if Versions.donatable?() do
    test "donated tensors are there for the search, and released by a call that succeeds" do
      released? = &match?({:error, :released, _, _, _}, NativeV.tensor_info(&1.data.ref))
      fun = fn x, y -> Nx.log(Nx.add(x, y)) end
      {x, y} = {Nx.donatable(Nx.tensor([1.0, 2.0])), Nx.tensor([-1.5, 1.0])}
      error = error(fun, [x, y])
      assert error.op == :log
      assert not released?.(x)
      assert [_, _] = Nx.to_flat_list(compiled(fun, [x, Nx.tensor([1.0, 1.0])], :nan))
      assert released?.(x) and not released?.(y)
    end
  end

  if Code.ensure_loaded?(Axon) do
    test "a training that explodes names the op and the parameters before it" do
      model =
        Axon.input("x")
        |> Axon.dense(16, activation: :tanh, name: "first")
        |> Axon.dense(16, activation: :relu, name: "second")
        |> Axon.dense(4, name: "last")

      data = List.duplicate({Nx.iota({8, 8}, type: :f32), Nx.iota({8, 4}, type: :f32)}, 20)
      optimizer = Polaris.Optimizers.sgd(learning_rate: 1.0e12)
      loop = Axon.Loop.trainer(model, :mean_squared_error, optimizer, log: 0, seed: 1)
      run = &Axon.Loop.run(loop, data, Axon.ModelState.empty(), [compiler: Nx.Vulkan] ++ &1)
      assert %Axon.ModelState{data: %{"last" => %{"bias" => bias}}} = run.([])
      assert Nx.to_number(Nx.any(Nx.is_nan(bias))) == 1
      error = assert_raise(Error, fn -> run.(raise_on: :nan) end)
      assert error.kind == :nan and error.op != nil
      assert [:model_state, :data, layer, _] = error.details.argument.path
      assert layer in ["first", "second", "last"]
      assert error.message =~ "at :model_state, :data, #{inspect(layer)}, "
      assert error.message =~ "in Axon.Loop" or error.message =~ "in anonymous fn/4 in Axon.Loop"
    end
  end
end
