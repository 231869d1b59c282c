defmodule Nx.Vulkan.Conformance.ExpertsTest do
  # Products of experts beside those of single rows, in f64, with gradients.
  use ExUnit.Case, async: true

  import Nx.Vulkan.{Numbers, Parity}

  alias Nx.Vulkan.{Compiler, Experts, Quantized, VulkanoBackend}
  alias Nx.Vulkan.Parity.References

  @moduletag :device

  # Roundings of a number on its way (Nx.Vulkan.Parity.check/3).
  @roundings 16

  setup do
    Nx.default_backend(VulkanoBackend)
    :rand.seed(:exsss, 33)
    :ok
  end

  defp f32(shape), do: numbers(shape, :f32)
  defp s32(list), do: Nx.tensor(list, type: :s32, backend: Nx.BinaryBackend)

  defp check_dot(experts, count) do
    inputs = [f32({length(experts), 7}), f32({count, 7, 5}), s32(experts)]

    check(fn [x, weights, experts] -> Experts.dot(x, weights, experts) end, inputs,
      plain: fn [x, weights, experts] -> References.grouped_dot(x, weights, experts) end,
      roundings: @roundings
    )
  end

  test "any number of rows, and none" do
    check_dot([4, 0, 0, 3, 4, 4, 0, 1, 3, 3, 0, 4, 1, 0, 0, 0, 0], 5)
  end

  test "all rows of one expert" do
    check_dot(List.duplicate(2, 11), 3)
    check_dot([0, 0, 0], 1)
  end

  test "fewer rows than experts" do
    check_dot([6, 2, 6], 9)
  end

  test "more rows of an expert than a block has" do
    experts = for i <- 1..300, do: rem(i * i, 3)
    assert 100 < Enum.count(experts, &(&1 == 1))
    check_dot(experts, 2 + Enum.max(experts))
  end

  test "a mixture, with its routing" do
    mixture = fn [x, router, up, down] ->
      {shares, experts} = Experts.route(Nx.dot(x, router), k: 2)
      rows = Nx.broadcast(Nx.new_axis(x, 1), {9, 2, 7})
      hidden = Nx.tanh(Experts.dot(rows, up, experts))
      Nx.sum(Nx.multiply(Experts.dot(hidden, down, experts), Nx.new_axis(shares, 2)), axes: [1])
    end

    # Of all experts, those that are not among the two largest have no share.
    dense = fn [x, router, up, down] ->
      logits = Nx.dot(x, router)
      {top, _} = Nx.top_k(logits, k: 2)
      chosen = Nx.greater_equal(logits, top[[.., 1..1]])
      shares = Nx.exp(logits) |> Nx.multiply(chosen)
      shares = Nx.divide(shares, Nx.sum(shares, axes: [1], keep_axes: true))
      hidden = Nx.tanh(Nx.dot(x, [1], up, [1]))
      all = Nx.dot(Nx.transpose(hidden, axes: [1, 0, 2]), [2], [0], down, [1], [0])
      Nx.sum(Nx.multiply(all, Nx.new_axis(Nx.transpose(shares), 2)), axes: [0])
    end

    check(mixture, [f32({9, 7}), f32({7, 5}), f32({5, 7, 3}), f32({5, 3, 7})], steps: dense, roundings: @roundings)
  end

  test "packed weights" do
    for {format, k} <- [{:q8_0, 64}, {{:affine, 4, 32}, 64}, {{:f8, :tensor}, 12}],
        experts <- [[2, 0, 2], [2, 0, 2, 2, 0, 0, 0]] do
      q = on_host(fn -> quantized(f32({4, 3, k}), format) end)
      values = on_host(fn -> Quantized.dequantize(q) end)
      x = f32({length(experts), k})
      product = &Experts.dot(&1, &2, s32(experts))
      wanted = on_host(fn -> References.grouped_dot(x, Nx.transpose(values, axes: [0, 2, 1]), s32(experts)) end)

      for compiler <- [Nx.Defn.Evaluator, Compiler] do
        args = Enum.map([x, q], &Nx.backend_copy(&1, VulkanoBackend))
        y = Nx.Defn.jit_apply(product, args, compiler: compiler)
        assert %VulkanoBackend{} = y.data
        # Each sum of k products is rounded once for each term at most.
        assert apart(y, wanted) <= k * 2.0 ** -24 * most(wanted)
      end

      templates = [Nx.template(x.shape, :f32), q]
      assert host_steps(Compiler.explain(product, templates).steps) == []
    end
  end

  defp quantized(values, {:f8, :tensor}), do: Quantized.from_fp8(Nx.as_type(values, :f8), Nx.tensor(0.5))
  defp quantized(values, format), do: Quantized.quantize(values, format)
end
