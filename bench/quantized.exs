# Measures products with weights of few bits (Nx.Vulkan.Quantized) beside those with the same weights in bf16, and a map
# over as many bytes. Six tensors of weights are taken in turns, so that no cache holds them. Prints a Markdown table.
#
#     MIX_ENV=test mix run bench/quantized.exs [small] [ROWS ...]
#
# ROWS are parts of the names of the rows to measure, all by default; `small` takes sizes for a CPU device.

Code.require_file("measure.exs", __DIR__)

defmodule QuantizedRows do
  @moduledoc false

  alias Nx.Vulkan.{Quantized, VulkanoBackend}

  @formats [{:affine, 4, 64}, {:affine, 8, 64}, :q4_0, :q8_0, :q4_k, :q6_k, :mxfp4, {:f8_e4m3fn, :channel}]
  @turns 6

  def main(["small" | wanted]), do: table({1024, 512}, wanted)
  def main(wanted), do: table({14_336, 4096}, wanted)

  defp table({n, k} = shape, wanted) do
    products =
      for format <- @formats, rows <- [1, 2, 4, 512] do
        {"#{rows} x #{k} by #{n} x #{k}, #{inspect(format)}",
         fn -> turns(x({rows, k}), Quantized.quantize(weights(shape), format), &Quantized.dot/2) end}
      end

    plain =
      for rows <- [1, 2, 4, 512] do
        {"#{rows} x #{k} by #{n} x #{k}, bf16",
         fn -> turns(x({rows, k}), Nx.as_type(weights(shape), :bf16), &Nx.dot(&1, [1], &2, [1])) end}
      end

    words =
      {"x + 1 of #{div(n * k, 8)} u32", fn -> turns(0, iota({n, div(k, 8)}, :u32), fn _, w -> Nx.add(w, 1) end) end}

    Measure.table(products ++ plain ++ [words], wanted)
  end

  # The same weights in memory of their own each.
  defp turns(x, weights, step) do
    {x, weights} = {on_device(x), on_device(weights)}
    arguments = for _ <- 1..@turns, do: {x, Nx.backend_copy(weights, VulkanoBackend)}
    Measure.turns(arguments, fn {x, weights} -> step.(x, weights) end)
  end

  defp on_device(x) when is_number(x), do: x
  defp on_device(x), do: Nx.backend_copy(x, VulkanoBackend)

  defp x(shape), do: shape |> weights() |> Nx.as_type(:bf16)

  # Numbers from -1 to 1 in no order that a group has.
  defp weights(shape), do: shape |> iota(:f32) |> Nx.multiply(0.7548776662466927) |> Nx.sin()

  defp iota(shape, type), do: Nx.iota(shape, type: type, backend: VulkanoBackend)
end

QuantizedRows.main(System.argv())
