defmodule Nx.Vulkan.Compiler.LoweringTest do
  use ExUnit.Case, async: true

  import Nx.Defn
  import Nx.Vulkan.Versions, only: [hooked: 2]

  alias Nx.Vulkan.Compiler.Lowering
  alias Nx.Vulkan.Compiler.Lowering.Plan

  defp plan(fun, templates, hooks \\ []) do
    expr = apply(Nx.Defn.debug_expr(fun), templates)
    {scope, constants} = Lowering.lower(expr, templates, hooks)
    {Plan.new(scope), constants}
  end

  defp program(fun, templates) do
    {%Plan{steps: [{:run, program, inputs, outputs}], outputs: outputs}, constants} = plan(fun, templates)
    {program, inputs, constants}
  end

  @vector Nx.template({3}, :f32)
  @number Nx.template({}, :s32)

  test "nodes become instructions once, in the order of their operands, and unused arguments stay out" do
    fun = fn _unused, x, n ->
      y = Nx.exp(x)
      {Nx.sum(Nx.multiply(y, y)), y, n}
    end

    assert {program, [[:input, 1], [:input, 2]], []} = program(fun, [@vector, @vector, @number])

    assert program == [
             [[:f32, [3]], [:s32, []]],
             [
               [:exp, [], [[:input, 0]], [[:f32, [3]]]],
               [:multiply, [], [[:result, 0], [:result, 0]], [[:f32, [3]]]],
               [:sum, [[:axes, [0]]], [[:result, 1]], [[:f32, []]]]
             ],
             [[:result, 2], [:result, 0], [:input, 1]]
           ]
  end

  test "numbers are instructions, and captured tensors inputs after the arguments" do
    weights = Nx.tensor([1.0, 2.0, 3.0], backend: Nx.BinaryBackend)
    assert {[inputs, instructions, _], slots, [constant]} = program(&Nx.add(Nx.dot(&1, weights), 2), [@vector])
    assert inputs == [[:f32, [3]], [:f32, [3]]] and slots == [[:input, 0], [:input, 1]]
    assert constant.shape == {3}
    assert Enum.sort(Enum.map(instructions, &hd/1)) == [:add, :constant, :dot]
    assert [:constant, [[:value, 2]], [], [[:s32, []]]] in instructions
  end

  test "columns that count are spelled out, those of a diagonal, and others are inputs" do
    diagonal = &Nx.put_diagonal(&1, Nx.broadcast(0.0, {3}), offset: 1)
    assert {[[[:f32, [3, 4]]], instructions, _], _, []} = program(diagonal, [Nx.template({3, 4}, :f32)])
    names = Enum.map(instructions, &hd/1)
    assert [:add, :concatenate, :indexed_put, :iota, :iota] == Enum.sort(names -- [:constant, :constant, :broadcast])

    for {numbers, inputs} <- [
          {[[0, 5], [2, 4], [4, 3]], 0},
          {[[7, -1]], 0},
          {[[0, 1], [1, 1], [2, 2]], 1},
          {[[0, 0], [1, 1], [3, 2]], 1}
        ] do
      numbers = Nx.tensor(numbers, type: :s64, backend: Nx.BinaryBackend)
      {_, _, constants} = program(&Nx.add(&1, numbers), [Nx.template({}, :s64)])
      assert length(constants) == inputs
    end
  end

  test "several results are counted over all instructions" do
    assert {[_, instructions, outputs], _, []} = program(&Nx.top_k(&1, k: 2), [@vector])
    assert instructions == [[:top_k, [[:k, 2]], [[:input, 0]], [[:f32, [2]], [:s32, [2]]]]]
    assert outputs == [[:result, 0], [:result, 1]]
  end

  defn branch(p, a, b) do
    shared = a * b
    chosen = if p, do: Nx.sin(a) + shared, else: b - 1
    chosen + shared
  end

  test "a branch captures what is needed outside too, and computes the rest itself" do
    assert {[_, instructions, _], _, []} = program(&branch/3, [@number, @vector, @vector])
    [_, attrs, [predicate | captured], [[:f32, [3]]]] = Enum.find(instructions, &match?([:cond | _], &1))
    [[:on_true, on_true], [:on_false, on_false]] = attrs
    assert match?([:result, _], predicate)
    assert length(captured) == 3
    assert [inputs, [[:sin, [], _, _], [:add, [], _, _]], [[:result, 1]]] = on_true
    assert inputs == List.duplicate([:f32, [3]], 3)
    assert [^inputs, [[:constant | _], [:subtract | _]], [[:result, 1]]] = on_false
    refute Enum.any?(instructions, &match?([:sin | _], &1))
  end

  defn loop(x) do
    {_, x} =
      while {i = 0, x}, i < 3 do
        {i + 1, x * Nx.tensor([1.0, 2.0, 3.0], backend: Nx.BinaryBackend)}
      end

    x
  end

  test "a loop has its state, then what it captures, as operands" do
    assert {[inputs, instructions, [[:result, _]]], _, [_]} = program(&loop/1, [@vector])
    assert inputs == [[:f32, [3]], [:f32, [3]]]
    assert [:while, [[:condition, condition], [:body, body]], operands, types] = List.last(instructions)
    assert types == [[:s32, []], [:f32, [3]]]
    assert [[:result, _], [:input, 0], [:input, 1]] = operands
    assert [[[:s32, []], [:f32, [3]], [:f32, [3]]], [[:constant | _], [:less | _]], [[:result, 1]]] = condition
    assert [_, body_instructions, [_, _]] = body
    assert [:multiply, [], [[:input, 1], [:input, 2]], [[:f32, [3]]]] in body_instructions
  end

  def callback(t, _opts), do: t

  defn staged(x) do
    y = Nx.runtime_call(x, Nx.exp(x), [], &__MODULE__.callback/2)
    z = hooked(Nx.sin(x), :seen)
    y + z
  end

  test "a call of the host divides the Program, and an op runs as early as it can" do
    {plan, []} = plan(&staged/1, [@vector], [:seen])
    assert [{:run, first, _, _}, host1, host2, {:run, second, _, _}] = plan.steps
    assert first |> Enum.at(1) |> Enum.map(&hd/1) |> Enum.sort() == [:exp, :sin]
    assert Enum.sort([elem(host1, 0), elem(host2, 0)]) == [:call, :hook]
    assert second |> Enum.at(1) |> Enum.map(&hd/1) == [:add]
    # Without a callback there is no hook.
    {plan, []} = plan(&staged/1, [@vector])
    refute List.keymember?(plan.steps, :hook, 0)
  end

  test "what is only passed through needs no Program" do
    assert {%Plan{steps: [], outputs: [[:input, 1], [:input, 0]]}, []} = plan(&{&2, &1}, [@vector, @number])
  end
end
