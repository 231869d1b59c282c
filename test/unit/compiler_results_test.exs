defmodule Nx.Vulkan.Compiler.ResultsTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.Compiler.Results
  alias Nx.Vulkan.Quantized
  alias Nx.Vulkan.VulkanoBackend, as: B

  # What a call answers by references has the looks of the template.
  defp filled(template) do
    {_, references} = references(template, [])
    references = Enum.reverse(references)
    {Results.new(template) |> Results.fill(Enum.map(references, &elem(&1, 0))), Map.new(references)}
  end

  defp references(template, all),
    do: Nx.Defn.Composite.traverse(template, all, fn leaf, all -> {leaf, [{make_ref(), leaf} | all]} end)

  defp check(template) do
    {result, leaves} = filled(template)

    {_, count} =
      Nx.Defn.Composite.traverse(result, 0, fn %Nx.Tensor{data: %B{ref: ref, type: type}} = tensor, count ->
        leaf = Map.fetch!(leaves, ref)
        assert {type, %{tensor | data: leaf.data}} == {leaf.type, leaf}
        {tensor, count + 1}
      end)

    assert count == map_size(leaves)
    result
  end

  test "tensors of every type, with names or without, and with many axes" do
    for type <- Nx.Vulkan.Ops.Table.types() do
      check(Nx.template({}, type))
      check(Nx.template({2, 3}, type, names: [:rows, nil]))
    end

    for rank <- 0..12, do: check(Nx.template(Tuple.duplicate(1, rank), :f32))
  end

  test "vectorized axes" do
    template = {4, 2, 3} |> Nx.template(:s32, names: [nil, nil, :last]) |> Nx.vectorize(:batch)
    assert %Nx.Tensor{vectorized_axes: [batch: 4], shape: {2, 3}, names: [nil, :last]} = check(template)
  end

  test "containers, with what they hold beside tensors" do
    [a, b, c] = for n <- 1..3, do: Nx.template({n}, :f32)

    quantized = %Quantized{format: :q8_0, shape: {2}, tensors: %{blocks: b, others: {c}}}

    assert {%{one: %{shape: {1}}}, {}, %Quantized{format: :q8_0, shape: {2}, tensors: %{blocks: %{shape: {2}}}}} =
             check({%{one: a}, {}, quantized})
  end

  test "a tensor takes few words of the cache" do
    assert :erts_debug.flat_size(Results.new(Nx.template({2, 3}, :f32))) <= 9
  end
end
