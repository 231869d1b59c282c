defmodule Nx.Vulkan.Conformance.OpTable do
  @moduledoc """
  The elementwise ops with the arguments that tests and recordings give them.
  """

  alias Nx.Vulkan.Ops.Table

  @unary [
    {:exp, -5, 5, true},
    {:expm1, 0.6, 5, true},
    {:log, 0.01, 100, true},
    {:log1p, 0.5, 100, true},
    {:sigmoid, -5, 5, true},
    {:cos, -20, 20, true},
    {:sin, -20, 20, true},
    {:tan, -1.4, 1.4, true},
    {:cosh, -5, 5, true},
    {:sinh, -5, 5, true},
    {:tanh, -5, 5, true},
    {:acos, -0.99, 0.99, true},
    {:asin, -0.99, 0.99, true},
    {:atan, -50, 50, true},
    {:acosh, 1.1, 50, true},
    {:asinh, -50, 50, true},
    {:atanh, -0.99, 0.99, true},
    {:sqrt, 0.01, 100, true},
    {:rsqrt, 0.01, 100, true},
    {:cbrt, 0.01, 100, false},
    {:erf, -3, 3, false},
    {:erfc, -3, 3, false},
    {:erf_inv, -0.95, 0.95, false},
    {:abs, -100, 100, true},
    {:ceil, -100, 100, false},
    {:floor, -100, 100, false},
    {:round, -100, 100, false},
    {:negate, -100, 100, true},
    {:sign, -100, 100, false},
    {:conjugate, -100, 100, true},
    {:is_nan, -100, 100, true},
    {:is_infinity, -100, 100, true}
  ]

  @binary [
    {:add, :types, {-100, 100}, {-100, 100}},
    {:subtract, :types, {-100, 100}, {-100, 100}},
    {:multiply, :types, {-100, 100}, {-100, 100}},
    {:divide, :types, {-100, 100}, {1, 100}},
    {:pow, :reals, {1, 5}, {0, 3}},
    {:remainder, :reals, {-100, 100}, {1, 9}},
    {:atan2, :reals, {-100, 100}, {-100, 100}},
    {:min, :reals, {-100, 100}, {-100, 100}},
    {:max, :reals, {-100, 100}, {-100, 100}},
    {:quotient, :integers, {-100, 100}, {1, 9}},
    {:bitwise_and, :integers, {-100, 100}, {-100, 100}},
    {:bitwise_or, :integers, {-100, 100}, {-100, 100}},
    {:bitwise_xor, :integers, {-100, 100}, {-100, 100}},
    {:left_shift, :integers, {-100, 100}, {0, 7}},
    {:right_shift, :integers, {-100, 100}, {0, 7}},
    {:equal, :types, {-2, 2}, {-2, 2}},
    {:not_equal, :types, {-2, 2}, {-2, 2}},
    {:greater, :reals, {-2, 2}, {-2, 2}},
    {:less, :reals, {-2, 2}, {-2, 2}},
    {:greater_equal, :reals, {-2, 2}, {-2, 2}},
    {:less_equal, :reals, {-2, 2}, {-2, 2}},
    {:logical_and, :types, {-1, 1}, {-1, 1}},
    {:logical_or, :types, {-1, 1}, {-1, 1}},
    {:logical_xor, :types, {-1, 1}, {-1, 1}}
  ]

  # Ops of the table that need no arguments of their own.
  @plain for {op, operands, kind} <- Table.elementwise(),
             kind in [:number, :predicate],
             not List.keymember?(@unary ++ @binary, op, 0),
             do: {op, operands}

  @doc "`{op, lowest argument, highest argument, whether it takes complex numbers}`."
  def unary, do: @unary ++ for({op, 1} <- @plain, do: {op, 0.05, 0.95, false})

  @doc """
  `{op, types, {lowest, highest} left operand, the same of the right one}`; types name a function of
  `Nx.Vulkan.Conformance`.
  """
  def binary, do: @binary ++ for({op, 2} <- @plain, do: {op, :reals, {-2, 2}, {-2, 2}})
end
