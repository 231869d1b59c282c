defmodule Nx.Vulkan.Conformance.NumericsTest do
  # Special values and edges of types: what Nx.BinaryBackend returns, and the exact result where it raises or where
  # guides/numerics.md states another rule.
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance
  alias Nx.Vulkan.VulkanoBackend

  @moduletag :device

  @special [0.0, -0.0, :infinity, :neg_infinity, :nan, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 2.5, -2.5, 3.0, -3.0, 1.0e9]

  @unary [:abs, :ceil, :floor, :round, :sign, :negate, :is_nan, :is_infinity, :logical_not, :exp, :expm1, :log] ++
           [:log1p, :sigmoid, :cos, :sin, :tan, :cosh, :sinh, :tanh, :acos, :asin, :atan, :acosh, :asinh, :atanh] ++
           [:sqrt, :rsqrt, :cbrt, :erf, :erfc, :erf_inv]

  @predicates [
    :equal,
    :not_equal,
    :less,
    :less_equal,
    :greater,
    :greater_equal,
    :logical_and,
    :logical_or,
    :logical_xor
  ]
  @arithmetic [:add, :subtract, :multiply, :divide, :remainder, :atan2, :min, :max]

  # {op, x} or {op, x, y} => result, where Nx.BinaryBackend has another.
  @exact %{
    # the limits that C has
    {:tanh, :infinity} => 1.0,
    {:tanh, :neg_infinity} => -1.0,
    {:sign, :neg_infinity} => -1.0,
    {:divide, :infinity, -0.0} => :neg_infinity,
    {:divide, :neg_infinity, -0.0} => :infinity
  }

  # Results of every element on Nx.BinaryBackend, :raises where it does.
  defp expected(op, args) do
    exact = Map.fetch(@exact, List.to_tuple([op | Enum.map(args, fn {value, _type} -> value end)]))

    with :error <- exact do
      tensors = Enum.map(args, fn {value, type} -> Nx.tensor([value], type: type, backend: Nx.BinaryBackend) end)
      {:ok, apply(Nx, op, tensors) |> Nx.to_flat_list() |> hd()}
    end
  rescue
    # also where the C library gives what it can't store
    _ -> :raises
  end

  defp actual(op, tensors) do
    result = apply(Nx, op, Enum.map(tensors, &Nx.backend_copy(&1, VulkanoBackend)))
    assert %VulkanoBackend{} = result.data
    {Nx.to_flat_list(result), result.type}
  end

  # The same in a compiled function, where no value raises.
  defp compiled(op, tensors) do
    result = Nx.Defn.jit(&apply(Nx, op, [&1, &2]), compiler: Nx.Vulkan).(hd(tensors), List.last(tensors))
    {Nx.to_flat_list(result), result.type}
  end

  defp compare(op, rows, {actual, type}) do
    wrong =
      for {args, got} <- Enum.zip(rows, actual), {:ok, want} <- [expected(op, args)], not same?(got, want, type) do
        "#{op}(#{Enum.map_join(args, ", ", fn {value, type} -> "#{inspect(value)} #{inspect(type)}" end)}) is " <>
          "#{inspect(want)}, got #{inspect(got)}"
      end

    assert wrong == [], Enum.join(Enum.take(wrong, 10), "\n")
  end

  # Signs of zeros are left to the table of C's rules below.
  defp same?(got, want, _type) when is_number(got) and is_number(want) and want == 0, do: got == 0

  defp same?(got, want, {_, size}) when is_float(got) and is_number(want) do
    abs(got - want) <= abs(want) * if(size == 64, do: 1.0e-15, else: 1.2e-7)
  end

  defp same?(got, want, _type), do: got === want or (is_integer(got) and got == want)

  test "special values of unary ops" do
    for type <- [:f32, :f64], op <- @unary do
      compare(
        op,
        Enum.map(@special, &[{&1, type}]),
        actual(op, [Nx.tensor(@special, type: type, backend: Nx.BinaryBackend)])
      )
    end
  end

  test "special values of binary ops" do
    for type <- [:f32, :f64], op <- @predicates ++ @arithmetic do
      rows =
        for x <- @special,
            y <- @special,
            not (op == :atan2 and y in [:infinity, :neg_infinity]),
            do: [{x, type}, {y, type}]

      operands =
        for k <- 0..1,
            do: rows |> Enum.map(&elem(Enum.at(&1, k), 0)) |> Nx.tensor(type: type, backend: Nx.BinaryBackend)

      compare(op, rows, actual(op, operands))
    end
  end

  # Numbers that the other types of the table can't hold, and their neighbours.
  @mixed %{
    s8: [0, -1, 127, -128],
    s16: [0, 32_767, -32_768, 257, -259],
    s32: [0, 1, -1, 16_777_217, -16_777_217, 2_147_483_647, -2_147_483_648, 123_456_789],
    u32: [0, 1, 16_777_217, 4_294_967_295, 2_147_483_648],
    s64: [0, -1, 16_777_217, 9_007_199_254_740_993, -9_007_199_254_740_993, 2 ** 63 - 1, -(2 ** 63)],
    u64: [0, 1, 9_007_199_254_740_993, 2 ** 63, 2 ** 64 - 1],
    f32: [
      0.0,
      1.0,
      -1.0,
      16_777_216.0,
      16_777_218.0,
      2.0 ** 31,
      -(2.0 ** 31),
      2.0 ** 63,
      2.0 ** 64,
      0.5,
      :nan,
      :infinity
    ],
    f64: [0.0, 1.0, 2.0 ** 53, 2.0 ** 53 + 2, 2.0 ** 63, -(2.0 ** 63), 2.0 ** 64, -0.5, :nan, :neg_infinity],
    f16: [0.0, 2048.0, -0.5, :nan]
  }

  test "operands of different types are the numbers that they are" do
    ops =
      [:equal, :not_equal, :less, :less_equal, :greater, :greater_equal] ++
        [:add, :subtract, :multiply, :min, :max, :remainder]

    # two ops of every pair: each is a kernel of its own
    for {a, xs} <- @mixed, {b, ys} <- @mixed, a != b, op <- Enum.take_random(ops, 2) do
      # Integers by zero raise.
      ys = if op == :remainder, do: ys -- [0], else: ys
      rows = for x <- xs, y <- ys, do: [{x, a}, {y, b}]

      column = fn k, type ->
        rows |> Enum.map(&elem(Enum.at(&1, k), 0)) |> Nx.tensor(type: type, backend: Nx.BinaryBackend)
      end

      compare(op, rows, actual(op, [column.(0, a), column.(1, b)]))
    end
  end

  test "float functions of integers take the integers as they are" do
    for op <- [:sin, :log, :sqrt, :exp, :rsqrt], type <- [:s16, :s32, :u32, :s64, :u64] do
      compare(
        op,
        Enum.map(@mixed[type], &[{&1, type}]),
        actual(op, [Nx.tensor(@mixed[type], type: type, backend: Nx.BinaryBackend)])
      )
    end
  end

  test "clip" do
    values = Nx.tensor([:nan, -5.0, 0.5, 5.0, :infinity, :neg_infinity, -0.0])

    for {low, high} <- [{-1.0, 2.0}, {:neg_infinity, 2.0}, {-1.0, :infinity}, {0.0, 1.0}, {:nan, 1.0}, {0.0, :nan}] do
      bounds = Enum.map([low, high], &Nx.tensor(&1, type: :f32))
      assert_same([values | bounds], &Nx.clip/3)
    end
  end

  # {op, x, y, result}: C99's annex F.
  @c99 [
    {:pow, :nan, 0.0, 1.0},
    {:pow, :nan, -0.0, 1.0},
    {:pow, 1.0, :nan, 1.0},
    {:pow, 1.0, :infinity, 1.0},
    {:pow, 1.0, :neg_infinity, 1.0},
    {:pow, -1.0, :infinity, 1.0},
    {:pow, -1.0, :neg_infinity, 1.0},
    {:pow, 0.5, :infinity, 0.0},
    {:pow, 0.5, :neg_infinity, :infinity},
    {:pow, 2.0, :infinity, :infinity},
    {:pow, 2.0, :neg_infinity, 0.0},
    {:pow, -0.0, -1.0, :neg_infinity},
    {:pow, -0.0, -2.0, :infinity},
    {:pow, 0.0, -1.0, :infinity},
    {:pow, -0.0, 3.0, -0.0},
    {:pow, -0.0, 0.5, 0.0},
    {:pow, :neg_infinity, -3.0, -0.0},
    {:pow, :neg_infinity, 3.0, :neg_infinity},
    {:pow, :neg_infinity, 2.0, :infinity},
    {:pow, :neg_infinity, 0.5, :infinity},
    {:pow, :infinity, -0.5, 0.0},
    {:pow, -8.0, 0.5, :nan},
    {:pow, -2.0, 3.0, -8.0},
    {:pow, -2.0, 1.0e9, :infinity},
    {:pow, 10.0, 400.0, :infinity},
    {:pow, 10.0, -400.0, 0.0},
    {:remainder, 5.5, 2.0, 1.5},
    {:remainder, -5.5, 2.0, -1.5},
    {:remainder, 5.5, -2.0, 1.5},
    {:remainder, -4.0, 2.0, -0.0},
    {:remainder, -0.0, 3.0, -0.0},
    {:remainder, 3.0, :neg_infinity, 3.0},
    {:remainder, :infinity, 2.0, :nan},
    {:remainder, 2.0, 0.0, :nan},
    {:divide, 1.0, 0.0, :infinity},
    {:divide, 1.0, -0.0, :neg_infinity},
    {:divide, -1.0, :infinity, -0.0},
    {:divide, 0.0, 0.0, :nan},
    {:atan2, 0.0, 1.0, 0.0},
    {:atan2, -0.0, 1.0, -0.0},
    {:atan2, 0.0, -1.0, :math.pi()},
    {:atan2, -0.0, -1.0, -:math.pi()},
    {:atan2, 0.0, -0.0, :math.pi()},
    {:atan2, -0.0, 0.0, -0.0},
    {:atan2, -1.0, :infinity, -0.0},
    {:atan2, 1.0, :neg_infinity, :math.pi()},
    {:atan2, -1.0, :neg_infinity, -:math.pi()},
    {:atan2, :infinity, :neg_infinity, 0.75 * :math.pi()},
    {:atan2, :neg_infinity, :infinity, -0.25 * :math.pi()},
    {:atan2, :neg_infinity, 1.0, -0.5 * :math.pi()},
    {:max, -0.0, :nan, :nan},
    {:min, :nan, 1.0, :nan}
  ]

  test "special cases of C99, signs of zeros too" do
    for type <- [:f32, :f64], {op, rows} <- Enum.group_by(@c99, &elem(&1, 0)) do
      column = fn k -> rows |> Enum.map(&elem(&1, k)) |> Nx.tensor(type: type, backend: Nx.BinaryBackend) end
      {got, _} = actual(op, [column.(1), column.(2)])

      assert Enum.zip(rows, got)
             |> Enum.reject(fn {_, g} = pair -> g === wanted(pair, Nx.to_flat_list(column.(3)), rows) end) == []
    end
  end

  # The result of a row as the type has it.
  defp wanted({row, _got}, rounded, rows), do: Enum.at(rounded, Enum.find_index(rows, &(&1 === row)))

  test "erf_inv near its poles" do
    for {type, digits} <- [f32: 24, f64: 53] do
      x = for k <- 1..digits, do: 1.0 - 2.0 ** -k
      {got, _} = actual(:erf_inv, [Nx.tensor(x ++ [1.0, -1.0, 1.5, -0.0], type: type, backend: Nx.BinaryBackend)])
      {tail, special} = Enum.split(got, digits)
      assert special === [:infinity, :neg_infinity, :nan, 0.0]

      for {x, y} <- Enum.zip(x, tail) do
        # y +- 4e-7 y encloses the inverse
        assert :math.erfc(y * (1 + 4.0e-7)) <= 1.0 - x and :math.erfc(y * (1 - 4.0e-7)) >= 1.0 - x,
               "erf_inv(#{x}) is not #{y}"
      end
    end
  end

  # {op, x, y, result} for all signed types, of `bits` bits: edges that Nx.BinaryBackend raises for, or wraps.
  defp integer_edges(bits) do
    {least, most} = {-(2 ** (bits - 1)), 2 ** (bits - 1) - 1}

    [
      {:quotient, 7, 0, -1},
      {:quotient, -7, 2, -3},
      {:quotient, least, -1, least},
      {:remainder, 7, 0, 7},
      {:remainder, -7, 2, -1},
      {:remainder, 7, -2, 1},
      {:remainder, least, -1, 0},
      {:add, most, 1, least},
      {:subtract, least, 1, most},
      {:multiply, most, 2, -2},
      {:multiply, least, -1, least},
      {:pow, 2, bits - 1, least},
      {:pow, 2, bits, 0},
      {:pow, 3, 0, 1},
      {:pow, -1, -3, -1},
      {:pow, 2, -1, 0},
      {:left_shift, 1, bits - 1, least},
      {:left_shift, 1, 64, 0},
      {:right_shift, -8, 1, -4},
      {:right_shift, -8, 64, -1},
      {:right_shift, 8, -1, 0},
      {:max, least, most, most},
      {:min, least, most, least}
    ]
  end

  test "edges of integers" do
    for bits <- [8, 16, 32, 64], {op, rows} <- Enum.group_by(integer_edges(bits), &elem(&1, 0)) do
      column = fn k -> rows |> Enum.map(&elem(&1, k)) |> Nx.tensor(type: {:s, bits}, backend: Nx.BinaryBackend) end
      {got, type} = compiled(op, [column.(1), column.(2)])
      assert type == {:s, bits}
      assert {op, bits, got} == {op, bits, Enum.map(rows, &elem(&1, 3))}
    end

    for bits <- [8, 16, 32, 64] do
      most = 2 ** bits - 1
      u = &Nx.tensor(&1, type: {:u, bits}, backend: Nx.BinaryBackend)
      assert {[^most, ^most, 0], _} = compiled(:quotient, [u.([7, most, 0]), u.([0, 1, 5])])
      assert {[0, 0], _} = actual(:add, [u.([most, 0]), u.([1, 0])])
      assert {[^most, 1], _} = actual(:subtract, [u.([0, 1]), u.([1, 0])])
      assert {[0, 1], _} = actual(:right_shift, [u.([most, most]), u.([64, bits - 1])])
    end
  end

  describe "integers divided by zero" do
    @backends [Nx.BinaryBackend, VulkanoBackend]

    defp raises_everywhere(fun) do
      for backend <- @backends, mode <- [:immediate, :deferred] do
        divided = fn -> Nx.Vulkan.eager(mode, fn -> Nx.with_default_backend(backend, fun) end) end
        assert_raise ArithmeticError, "bad argument in arithmetic expression", divided
      end
    end

    test "raise op by op, wherever the divisor comes from" do
      for op <- [:quotient, :remainder], type <- [:s8, :u8, :s32, :s64, :u64] do
        for divisor <-
              [fn -> 0 end, fn -> Nx.tensor(0, type: type) end, fn -> Nx.tensor([3, 0], type: type) end] ++
                [fn -> Nx.subtract(Nx.tensor(5, type: type), 5) end, fn -> Nx.broadcast(0, {2}) end] do
          raises_everywhere(fn -> apply(Nx, op, [Nx.tensor([7, 8], type: type), divisor.()]) end)
        end
      end

      device = Nx.tensor([7, 8], backend: VulkanoBackend)
      assert_raise ArithmeticError, fn -> Nx.remainder(device, Nx.tensor([1, 0], backend: Nx.BinaryBackend)) end
      halves = Nx.Defn.jit(&Nx.remainder/2, compiler: Nx.Defn.Evaluator)
      assert_raise ArithmeticError, fn -> halves.(device, Nx.tensor(0, backend: VulkanoBackend)) end
      assert Nx.to_flat_list(Nx.remainder(device, Nx.tensor([3, 5], backend: VulkanoBackend))) == [1, 3]
      # Floats have NaN.
      assert [:nan, :nan] = Nx.to_flat_list(Nx.remainder(device, Nx.tensor(0.0, backend: VulkanoBackend)))
    end

    test "raise in random integers between bounds that wrap" do
      for bounds <- [[0, 2 ** 40], [2 ** 33, 2 ** 34], [5, 5]], shape <- [{}, {4}] do
        raises_everywhere(fn ->
          apply(Nx.Random, :randint, [Nx.Random.key(1) | bounds] ++ [[shape: shape]]) |> elem(0) |> Nx.to_flat_list()
        end)
      end
    end
  end
end
