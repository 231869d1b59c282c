defmodule Nx.Vulkan.Ops.Table do
  @moduledoc false

  # Written by `cargo xtask ops` from native/nx_vulkan_ir/src/program/ops/ and dtype.rs: the ops, those that are
  # functions of elements, those that move elements and the others, and the types, by Nx's names. Whatever else speaks
  # of them asks `Nx.Vulkan.Ops`.

  # `{op, operands, kind}`: a `:predicate` gives 0 or 1, of u8; `:integer` takes integers alone; `:complex` is about the
  # parts of complex numbers; `:cast` gives the type that it is asked for; `:number` is all others.
  @elementwise [
    {:exp, 1, :number},
    {:expm1, 1, :number},
    {:log, 1, :number},
    {:log1p, 1, :number},
    {:log2, 1, :number},
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
    {:phase, 1, :complex},
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

  # `{op, attributes, operands, results, whether it takes complex numbers}`.
  @structured [
    {:sum, [:axes], 1, 1, true},
    {:product, [:axes], 1, 1, true},
    {:reduce_max, [:axes], 1, 1, false},
    {:reduce_min, [:axes], 1, 1, false},
    {:all, [:axes], 1, 1, true},
    {:any, [:axes], 1, 1, true},
    {:argmax, [:axes, :tie_break], 1, 1, false},
    {:argmin, [:axes, :tie_break], 1, 1, false},
    {:reduce, [:axes, :function], 3, 1, false},
    {:all_close, [:equal_nan, :rtol, :atol], 2, 1, true},
    {:window_sum, [:window, :low, :high, :strides, :dilations], 1, 1, true},
    {:window_product, [:window, :low, :high, :strides, :dilations], 1, 1, true},
    {:window_max, [:window, :low, :high, :strides, :dilations], 1, 1, false},
    {:window_min, [:window, :low, :high, :strides, :dilations], 1, 1, false},
    {:window_reduce, [:window, :low, :high, :strides, :dilations, :function], 3, 1, false},
    {:window_scatter_max, [:window, :low, :high, :strides, :dilations], 3, 1, false},
    {:window_scatter_min, [:window, :low, :high, :strides, :dilations], 3, 1, false},
    {:cumulative_sum, [:axis, :reverse], 1, 1, true},
    {:cumulative_product, [:axis, :reverse], 1, 1, true},
    {:cumulative_max, [:axis, :reverse], 1, 1, false},
    {:cumulative_min, [:axis, :reverse], 1, 1, false},
    {:sort, [:axis, :descending], 1, 1, false},
    {:argsort, [:axis, :descending], 1, 1, false},
    {:top_k, [:k], 1, 2, false},
    {:searchsorted, [:side], 2, 1, false},
    {:dot, [:contract_a, :batch_a, :contract_b, :batch_b], 2, 1, true},
    {:conv,
     [
       :strides,
       :low,
       :high,
       :input_dilation,
       :kernel_dilation,
       :feature_groups,
       :batch_groups,
       :input_axes,
       :kernel_axes,
       :output_axes
     ], 2, 1, true},
    {:gather, [:axes], 2, 1, true},
    {:take, [:axis], 2, 1, true},
    {:take_along_axis, [:axis], 2, 1, true},
    {:indexed_add, [:axes], 3, 1, true},
    {:indexed_put, [:axes], 3, 1, true},
    {:fft, [:axis, :length, :eps], 1, 1, true},
    {:ifft, [:axis, :length, :eps], 1, 1, true},
    {:rfft, [:axis, :length, :eps], 1, 1, false},
    {:irfft, [:axis, :length, :eps], 1, 1, false},
    {:triangular_solve, [:lower, :left_side, :transform_a], 2, 1, true},
    {:cholesky, [], 1, 1, true},
    {:lu, [], 1, 3, true},
    {:solve, [], 2, 2, true},
    {:determinant, [], 1, 1, true},
    {:qr, [:complete], 1, 2, true},
    {:eigh, [], 1, 2, true},
    {:svd, [:full], 1, 3, false}
  ]

  # `{op, kind, attributes}`.
  @moves [
    {:constant, :source, [:value]},
    {:eye, :source, []},
    {:iota, :source, [:axis]},
    {:bitcast, :view, []},
    {:reshape, :view, []},
    {:squeeze, :view, []},
    {:broadcast, :view, [:axes]},
    {:transpose, :view, [:axes]},
    {:slice, :view, [:starts, :strides, :lengths]},
    {:concatenate, :placement, [:axis]},
    {:stack, :placement, [:axis]},
    {:put_slice, :placement, [:starts]},
    {:reverse, :view, [:axes]},
    {:pad, :placement, [:low, :high, :interior]}
  ]

  @types [s: 2, s: 4, s: 8, s: 16, s: 32, s: 64, u: 2, u: 4, u: 8, u: 16, u: 32, u: 64] ++
           [f: 8, f8_e4m3fn: 8, bf: 16, f: 16, f: 32, f: 64, c: 64, c: 128]

  @type kind :: :predicate | :integer | :complex | :cast | :number

  @doc "Ops each of whose results is a function of the operands' elements at its place."
  @spec elementwise :: [{op :: atom, operands :: pos_integer, kind}]
  def elementwise, do: @elementwise

  @doc "The other ops that compute."
  @spec structured :: [{op :: atom, attributes :: [atom], operands :: non_neg_integer, results :: pos_integer, boolean}]
  def structured, do: @structured

  @doc "The ops whose results have elements of their operands, or are made of nothing, each in their place."
  @spec moves :: [{op :: atom, kind :: :source | :view | :placement, attributes :: [atom]}]
  def moves, do: @moves

  @doc "The types."
  @spec types :: [Nx.Type.t()]
  def types, do: @types
end
