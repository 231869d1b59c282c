defmodule Nx.Vulkan.Quantized.Fit do
  @moduledoc false

  # Scales and biases of groups, f32 `{groups, n}`; they come as `{groups, 1}`.

  import Nx.Defn

  @doc """
  The scale and bias with which integers from 0 to `:levels` reach from the least to the largest number.
  """
  defn extremes(x, opts) do
    min = Nx.reduce_min(x, axes: [1], keep_axes: true)
    max = Nx.reduce_max(x, axes: [1], keep_axes: true)
    {(max - min) / opts[:levels], min}
  end

  @doc """
  The scale with which integers from `-half` to `half - 1` reach the number of the largest magnitude.
  """
  defn(symmetric(x, opts), do: extreme(x) / -opts[:half])

  @doc """
  The scale of such integers with the least squares of errors, times `weights`: as ggml's make_qx_quants has it, the
  best of those for which the number of the largest magnitude is up to 0.9 levels within or beyond the last.
  """
  defn symmetric_least_squares(x, weights, opts) do
    extreme = extreme(x)
    first = fitted(sums(x, weights, extreme, 0.0, opts))

    {{scale, _}, _, _} =
      while {best = first, {x, weights, extreme}, i = -9.0}, i < 10 do
        {better_scale(best, sums(x, weights, extreme, i, opts)), {x, weights, extreme}, i + 1}
      end

    scale
  end

  # The scale with the least squares, of the sums of `x q` and of `q q`, and how much it takes from the squares of x.
  defnp fitted({xq, qq}) do
    scale = xq * reciprocal(qq)
    {scale, scale * xq}
  end

  defnp better_scale({scale, gain}, {xq, qq}) do
    better? = qq > 0 and xq * xq > gain * qq
    {new_scale, new_gain} = fitted({xq, qq})
    {Nx.select(better?, new_scale, scale), Nx.select(better?, new_gain, gain)}
  end

  defnp sums(x, weights, extreme, i, opts) do
    half = opts[:half]
    q = Nx.clip(even(x * (-(half + 0.1 * i) * reciprocal(extreme))), -half, half - 1)
    {total(weights * x * q), total(weights * q * q)}
  end

  @doc """
  The number of the largest magnitude, the first of several.
  """
  defn extreme(x) do
    Nx.take_along_axis(x, Nx.argmax(Nx.abs(x), axis: 1, keep_axis: true), axis: 1)
  end

  @doc """
  The scale and bias, which is no more than `:most` where that is given, of integers from 0 to `:levels` with the least
  squares of errors, times `weights`: as ggml's make_qkx2_quants has it, the best of the extremes and of those for which
  numbers are rounded from the best bias so far, and so that the largest number is `:first + i * :step` levels beyond
  the last, for `:count` of `i`.
  """
  defn least_squares(x, weights, opts) do
    opts = keyword!(opts, [:levels, :first, :step, :count, most: :infinity])
    min = bounded(Nx.reduce_min(x, axes: [1], keep_axes: true), opts)
    max = Nx.reduce_max(x, axes: [1], keep_axes: true)
    sums = {total(weights), total(weights * x)}
    inverse = reciprocal(max - min) * opts[:levels]
    scale = reciprocal(inverse)
    best = {scale, min, total(weights * (scale * rounded(x, min, inverse, opts) + min - x) ** 2)}

    {{scale, bias, _}, _, _, _} =
      while {best, {x, weights, max}, sums, i = 0}, i < opts[:count] do
        {better(best, x, weights, max, i, sums, opts), {x, weights, max}, sums, i + 1}
      end

    {scale, bias}
  end

  defnp better({scale, bias, error}, x, weights, max, i, {w, wx}, opts) do
    q = rounded(x, bias, (opts[:first] + opts[:step] * i + opts[:levels]) * reciprocal(max - bias), opts)
    wq = total(weights * q)
    wqq = total(weights * q * q)
    wxq = total(weights * x * q)
    determinant = w * wqq - wq * wq
    over = reciprocal(determinant)
    {new_scale, new_bias} = through_most((w * wxq - wx * wq) * over, (wqq * wx - wq * wxq) * over, wxq, wqq, opts)
    new_error = total(weights * (new_scale * q + new_bias - x) ** 2)
    better? = determinant > 0 and new_error < error

    {
      Nx.select(better?, new_scale, scale),
      Nx.select(better?, new_bias, bias),
      Nx.select(better?, new_error, error)
    }
  end

  # A bias of 0 in the place of larger ones, with the scale for it.
  deftransformp through_most(scale, bias, wxq, wqq, opts) do
    case opts[:most] do
      :infinity ->
        {scale, bias}

      0 ->
        over? = Nx.greater(bias, 0)
        {Nx.select(over?, Nx.multiply(wxq, reciprocal(wqq)), scale), Nx.min(bias, 0)}
    end
  end

  deftransformp bounded(min, opts) do
    case opts[:most] do
      :infinity -> min
      most -> Nx.min(min, most)
    end
  end

  # kvalues_iq4nl of ggml-common.h, and what is halfway between them.
  @nonlinear [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
  @least -127
  @steps Enum.zip_with(@nonlinear, tl(@nonlinear), fn a, b -> {(a + b) / 2, b - a} end)

  @doc """
  Which of the 16 numbers of IQ4 is nearest, and that number.
  """
  deftransform nearest(x) do
    Enum.reduce(@steps, {Nx.multiply(x, 0), Nx.add(Nx.multiply(x, 0), @least)}, fn {middle, step}, {index, value} ->
      beyond? = Nx.greater_equal(x, middle)
      {Nx.add(index, beyond?), Nx.add(value, Nx.multiply(beyond?, step))}
    end)
  end

  @doc """
  The scale of such numbers with the least squares of errors, times the squares of `x`: the best of those for which the
  number of the largest magnitude is up to seven beside the least one, and of one with the other sign.
  """
  defn nonlinear(x) do
    extreme = extreme(x)
    weights = x * x
    first = fitted(nonlinear_sums(x, weights, -@least * reciprocal(extreme)))

    {{scale, _}, _, _} =
      while {best = first, {x, weights, extreme}, i = -7.0}, i < 8 do
        sums = nonlinear_sums(x, weights, (@least + i) * reciprocal(extreme))
        {better_scale(best, sums), {x, weights, extreme}, i + 1}
      end

    scale
  end

  defnp nonlinear_sums(x, weights, inverse) do
    {_, q} = nearest(x * inverse)
    {total(weights * x * q), total(weights * q * q)}
  end

  defnp(rounded(x, min, inverse, opts), do: Nx.clip(even((x - min) * inverse), 0, opts[:levels]))
  defnp(total(x), do: Nx.sum(x, axes: [1], keep_axes: true))

  @doc """
  `1 / x`, and 0 of 0.
  """
  defn(reciprocal(x), do: Nx.select(x == 0, 0, 1 / Nx.select(x == 0, 1, x)))

  @doc """
  `x / scale`, and 0 where the scale is 0.
  """
  defn(quotient(x, scale), do: x / Nx.select(scale == 0, 1, scale) * (scale != 0))

  @doc """
  The nearest integers from 0 to `levels`, as f32.
  """
  deftransform(integers(x, levels), do: x |> even() |> Nx.clip(0, levels))

  # Adding it leaves no fraction to numbers up to 2 ** 22.
  @no_fraction 12_582_912.0

  @doc """
  The nearest integers of numbers up to 2 ** 22, even ones halfway.
  """
  defn(even(x), do: Nx.clip(x, -4_194_303, 4_194_303) + @no_fraction - @no_fraction)
end
