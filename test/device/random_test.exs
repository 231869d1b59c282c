defmodule Nx.Vulkan.RandomTest do
  use ExUnit.Case, async: true

  import Nx.Defn

  alias Nx.Vulkan.Compiler

  @moduletag :device

  defn dropout(x, key) do
    {draw, key} = Nx.Random.uniform(key, shape: Nx.shape(x))
    {Nx.select(draw < 0.9, x / 0.9, 0), key}
  end

  defn twice(key) do
    {_, {key, _}} =
      while {i = 0, {key, n = 0}}, i < 2 do
        {i + 1, {Nx.Random.split(key)[1], n + 1}}
      end

    key
  end

  defp launches(fun, args) do
    assert [{:run, program}] = Compiler.explain(fun, args).steps
    length(program.launches)
  end

  # The rounds are loops, each of which would take several launches an iteration.
  test "rounds of random numbers are written out and fused" do
    key = Nx.Random.key(42)
    x = Nx.broadcast(1.0, {256, 512})

    assert launches(&Nx.Random.split(&1, parts: 2), [key]) == 1
    assert launches(&Nx.Random.split(&1, parts: 20_000), [key]) == 1
    assert launches(&Nx.Random.fold_in(&1, 7), [key]) <= 2
    assert launches(&Nx.Random.uniform_split(&1, 0.0, 1.0, shape: {256, 512}), [key]) == 1
    assert launches(&Nx.Random.normal_split(&1, 0.0, 1.0, shape: {256, 512}), [key]) == 1
    assert launches(&Nx.Random.randint_split(&1, 0, 9, shape: {256, 512}), [key]) == 1
    assert launches(&dropout/2, [x, key]) <= 4
  end

  test "what is written out has the digits of the host" do
    key = Nx.Random.key(7)

    for fun <- [
          &Nx.Random.split(&1, parts: 5),
          &Nx.Random.split(&1, parts: 4000),
          &Nx.Random.fold_in(&1, 99),
          &Nx.Random.randint_split(&1, 0, 100, shape: {33, 31}, type: :s64),
          &Nx.Random.randint_split(&1, 0, 100, shape: {64, 50}),
          &Nx.Random.uniform_split(&1, 0.0, 1.0, shape: {33, 31}),
          &Nx.Random.uniform_split(&1, 0.0, 1.0, shape: {50, 64}, type: :bf16),
          &Nx.Random.uniform_split(&1, 0.0, 1.0, shape: {64, 50}, type: :f64),
          &twice/1
        ] do
      expected = Nx.Defn.jit(fun, compiler: Nx.Defn.Evaluator).(Nx.backend_copy(key, Nx.BinaryBackend))
      assert Nx.to_binary(Nx.Defn.jit(fun, compiler: Compiler).(key)) == Nx.to_binary(expected)
    end
  end
end
