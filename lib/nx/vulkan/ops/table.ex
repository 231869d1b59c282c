defmodule Nx.Vulkan.Ops.Table do
  @moduledoc false

  # Written by `cargo xtask ops` from native/nx_vulkan_ir/src/program/ops/elementwise.rs and dtype.rs: the ops that are
  # functions of elements, and the types, by Nx's names. Whatever else speaks of such ops asks `Nx.Vulkan.Ops` for them.

  # `{op, operands, kind}`: a `:predicate` gives 0 or 1, of u8; `:integer` takes integers alone; `:complex` is about the
  # parts of complex numbers; `:cast` gives the type that it is asked for; `:number` is all others.
  @elementwise [
    {:exp, 1, :number},
    {:expm1, 1, :number},
    {:log, 1, :number},
    {:log1p, 1, :number},
    {:sigmoid, 1, :number},
    {:cos, 1, :number},
    {:sin, 1, :number},
    {:tan, 1, :number},
    {:cosh, 1, :number},
    {:sinh, 1, :number},
    {:tanh, 1, :number},
    {:acos, 1, :number},
    {:asin, 1, :number},
    {:atan, 1, :number},
    {:acosh, 1, :number},
    {:asinh, 1, :number},
    {:atanh, 1, :number},
    {:sqrt, 1, :number},
    {:rsqrt, 1, :number},
    {:cbrt, 1, :number},
    {:erf, 1, :number},
    {:erfc, 1, :number},
    {:erf_inv, 1, :number},
    {:abs, 1, :number},
    {:bitwise_not, 1, :integer},
    {:ceil, 1, :number},
    {:conjugate, 1, :complex},
    {:floor, 1, :number},
    {:negate, 1, :number},
    {:round, 1, :number},
    {:sign, 1, :number},
    {:count_leading_zeros, 1, :integer},
    {:population_count, 1, :integer},
    {:real, 1, :complex},
    {:imag, 1, :complex},
    {:is_nan, 1, :predicate},
    {:is_infinity, 1, :predicate},
    {:add, 2, :number},
    {:subtract, 2, :number},
    {:multiply, 2, :number},
    {:pow, 2, :number},
    {:remainder, 2, :number},
    {:divide, 2, :number},
    {:atan2, 2, :number},
    {:min, 2, :number},
    {:max, 2, :number},
    {:quotient, 2, :integer},
    {:bitwise_and, 2, :integer},
    {:bitwise_or, 2, :integer},
    {:bitwise_xor, 2, :integer},
    {:left_shift, 2, :integer},
    {:right_shift, 2, :integer},
    {:equal, 2, :predicate},
    {:not_equal, 2, :predicate},
    {:greater, 2, :predicate},
    {:less, 2, :predicate},
    {:greater_equal, 2, :predicate},
    {:less_equal, 2, :predicate},
    {:logical_and, 2, :predicate},
    {:logical_or, 2, :predicate},
    {:logical_xor, 2, :predicate},
    {:select, 3, :number},
    {:clip, 3, :number},
    {:as_type, 1, :cast}
  ]

  @types [s: 2, s: 4, s: 8, s: 16, s: 32, s: 64, u: 2, u: 4, u: 8, u: 16, u: 32, u: 64] ++
           [f: 8, f8_e4m3fn: 8, bf: 16, f: 16, f: 32, f: 64, c: 64, c: 128]

  @type kind :: :predicate | :integer | :complex | :cast | :number

  @doc "Ops each of whose results is a function of the operands' elements at its place."
  @spec elementwise :: [{op :: atom, operands :: pos_integer, kind}]
  def elementwise, do: @elementwise

  @doc "The types."
  @spec types :: [Nx.Type.t()]
  def types, do: @types
end
