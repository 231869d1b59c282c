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

  # The mask, and what else reads the draws, have their elements elsewhere than the draws themselves.
  defn odd_dropout(key) do
    draw = Nx.Random.uniform_split(key, 0.0, 1.0, shape: {33, 31})
    {Nx.select(draw < 0.9, Nx.iota({33, 31}) / 0.9, 0), Nx.reverse(draw * 2), Nx.sum(draw > 0.5)}
  end

  defn draws(key) do
    {_, _, sum} =
      while {i = 0, key, sum = Nx.broadcast(0.0, {33, 31})}, i < 3 do
        {draw, key} = Nx.Random.uniform(key, shape: {33, 31})
        {i + 1, key, sum + draw}
      end

    sum
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
    assert launches(&Nx.Random.fold_in(&1, 7), [key]) == 1
    assert launches(&Nx.Random.fold_in(&1, &2), [key, Nx.iota({100})]) == 1
    assert launches(&Nx.Random.uniform_split(&1, 0.0, 1.0, shape: {256, 512}), [key]) == 1
    assert launches(&Nx.Random.normal_split(&1, 0.0, 1.0, shape: {256, 512}), [key]) == 1
    assert launches(&Nx.Random.randint_split(&1, 0, 9, shape: {256, 512}), [key]) == 1
    assert launches(&dropout/2, [x, key]) == 2
  end

  # Random bits come in pairs, of which an odd count drops the last one.
  test "odd counts take as many launches as even ones" do
    key = Nx.Random.key(42)

    for shape <- [{7}, {131_071}, {3, 5, 7}] do
      assert launches(&Nx.Random.uniform_split(&1, 0.0, 1.0, shape: shape), [key]) == 1
      assert launches(&Nx.Random.normal_split(&1, 0.0, 1.0, shape: shape, type: :bf16), [key]) == 1
      assert launches(&Nx.Random.randint_split(&1, 0, 9, shape: shape), [key]) == 1
    end
  end

  test "the number that pads the counters of odd counts is no operand" do
    assert [{:run, program}] =
             Compiler.explain(&Nx.Random.normal_split(&1, 0.0, 1.0, shape: {131_071}), [Nx.Random.key(42)]).steps

    assert program.inputs == [[:u32, [2]]]
  end

  test "numbers of two words, and such of two blocks, are one kernel" do
    key = Nx.Random.key(42)

    for shape <- [{256, 512}, {33, 31}] do
      assert launches(&Nx.Random.randint_split(&1, 0, 9, shape: shape, type: :s64), [key]) == 1
      assert launches(&Nx.Random.uniform_split(&1, 0.0, 1.0, shape: shape, type: :f64), [key]) == 1
      assert launches(&Nx.Random.uniform_split(&1, 0.0, 1.0, shape: shape, type: :c64), [key]) <= 4
      assert launches(&Nx.Random.normal_split(&1, 0.0, 1.0, shape: shape, type: :c64), [key]) <= 4
    end
  end

  test "keys that are split on the way take a launch" do
    key = Nx.Random.key(42)
    assert launches(&elem(Nx.Random.gumbel(&1, shape: {256, 512}), 0), [key]) == 2
    assert launches(&elem(Nx.Random.uniform(&1, shape: {256, 512}), 0), [key]) == 2
    assert launches(&Nx.Random.uniform_split(&1, 0.0, 1.0, shape: {256, 512}, type: :f64), [key]) == 1
  end

  test "draws from several keys take as many launches as from one" do
    keys = Nx.vectorize(Nx.tensor([[1, 2], [3, 4], [5, 6]], type: :u32), :keys)

    for shape <- [{256, 512}, {33}] do
      assert launches(&Nx.Random.uniform_split(&1, 0.0, 1.0, shape: shape), [keys]) == 1
      assert launches(&Nx.Random.uniform_split(&1, 0.0, 1.0, shape: shape, type: :f64), [keys]) == 1
      assert launches(&Nx.Random.normal_split(&1, 0.0, 1.0, shape: shape), [keys]) == 1
      assert launches(&Nx.Random.randint_split(&1, 0, 9, shape: shape), [keys]) == 1
      assert launches(&elem(Nx.Random.normal(&1, shape: shape), 0), [keys]) == 2
      assert launches(&Nx.Random.gumbel(&1, shape: shape), [keys]) == 2
      assert launches(&Nx.Random.randint(&1, 0, 9, shape: shape), [keys]) == 2
    end

    assert launches(&Nx.Random.split(&1, parts: 3), [keys]) == 1
    assert launches(&Nx.Random.fold_in(&1, 7), [keys]) == 1
  end

  test "shuffles, choices and vectors take few launches" do
    key = Nx.Random.key(42)
    {mean, covariance} = {Nx.tensor([1.0, 2.0]), Nx.tensor([[2.0, 0.3], [0.3, 1.0]])}

    iota = Nx.iota({1000})
    assert launches(&Nx.Random.shuffle(&1, &2), [key, iota]) == 4
    assert launches(&Nx.Random.shuffle(&1, &2, independent: true), [key, iota]) == 4
    assert launches(&Nx.Random.choice(&1, &2, samples: 100), [key, iota]) == 3
    assert launches(&Nx.Random.choice(&1, &2, samples: 100, replace: false), [key, iota]) == 4
    assert launches(&Nx.Random.multivariate_normal(&1, mean, covariance, shape: {1000}), [key]) <= 8
  end

  test "what is written out has the digits of the host" do
    key = Nx.Random.key(7)

    for fun <- [
          &Nx.Random.split(&1, parts: 5),
          &Nx.Random.split(&1, parts: 4000),
          &Nx.Random.fold_in(&1, 99),
          &Nx.Random.fold_in(&1, Nx.iota({3, 5}, type: :s64)),
          &Nx.Random.randint_split(&1, 0, 100, shape: {33, 31}, type: :s64),
          &Nx.Random.randint_split(&1, 0, 100, shape: {64, 50}),
          &Nx.Random.uniform_split(&1, 0.0, 1.0, shape: {33, 31}),
          &Nx.Random.uniform_split(&1, 0.0, 1.0, shape: {50, 64}, type: :bf16),
          &Nx.Random.uniform_split(&1, 0.0, 1.0, shape: {64, 50}, type: :f64),
          &Nx.Random.normal_split(&1, 1.0, 2.0, shape: {64, 50}),
          &Nx.Random.normal_split(&1, 1.0, 2.0, shape: {33, 31}),
          &Nx.Random.uniform_split(&1, 0.0, 1.0, shape: {33, 31}, type: :f64),
          &Nx.Random.uniform_split(&1, 0.0, 1.0, shape: {33, 31}, type: :c64),
          &Nx.Random.uniform_split(&1, -1.0, 1.0, shape: {64, 50}, type: :c64),
          &Nx.Random.randint_split(&1, -3, 100, shape: {64, 50}, type: :u64),
          &Nx.Random.gumbel_split(&1, shape: {33, 31}),
          &Nx.Random.gumbel_split(&1, shape: {1}),
          &Nx.Random.uniform_split(&1, 0.0, 1.0, shape: {3}),
          &Nx.Random.uniform_split(&1, 0.0, 1.0, shape: {2}),
          &odd_dropout/1,
          &draws/1,
          &twice/1
        ] do
      assert_same(fun, key)
    end
  end

  test "vectorized keys have the digits of the host" do
    keys = Nx.vectorize(Nx.Random.split(Nx.Random.key(7), parts: 3), :keys)

    for shape <- [{4}, {33}, {16, 31}] do
      assert_same(&Nx.Random.normal_split(&1, 0.0, 1.0, shape: shape), keys)
      assert_same(&Nx.Random.uniform_split(&1, 0.0, 1.0, shape: shape, type: :f64), keys)
      assert_same(&Nx.Random.uniform_split(&1, 0.0, 1.0, shape: shape, type: :c64), keys)
      assert_same(&Nx.Random.randint(&1, 0, 100, shape: shape), keys)
      assert_same(&Nx.Random.randint_split(&1, 0, 100, shape: shape, type: :s64), keys)
      assert_same(&Nx.Random.uniform(&1, shape: shape), keys)
    end

    assert_same(&Nx.Random.split(&1, parts: 3), keys)
    assert_same(&Nx.Random.fold_in(&1, 99), keys)
  end

  test "shuffles and choices have the elements that the host has" do
    key = Nx.Random.key(7)

    for fun <- [
          &Nx.Random.shuffle(&1, Nx.iota({100, 3})),
          &Nx.Random.shuffle(&1, Nx.iota({3, 100}), axis: 1),
          &Nx.Random.shuffle(&1, Nx.iota({10, 10}), axis: 1, independent: true),
          &Nx.Random.shuffle(&1, Nx.iota({5})),
          &Nx.Random.choice(&1, Nx.iota({1000}), samples: 100),
          &Nx.Random.choice(&1, Nx.iota({1000}), samples: 100, replace: false),
          &Nx.Random.choice(&1, Nx.iota({30, 20}), samples: 7, replace: false, axis: 1)
        ] do
      assert_same(fun, key)
    end
  end

  defp assert_same(fun, key) do
    expected = Nx.Defn.jit(fun, compiler: Nx.Defn.Evaluator).(Nx.backend_copy(key, Nx.BinaryBackend))
    actual = Nx.Defn.jit(fun, compiler: Compiler).(key)
    binaries = fn result -> for tensor <- List.flatten([tuple(result)]), do: Nx.to_binary(tensor) end
    assert binaries.(actual) == binaries.(expected), inspect(fun)
  end

  defp tuple(result) when is_tuple(result), do: Tuple.to_list(result)
  defp tuple(result), do: [result]
end
