defmodule Lora do
  @moduledoc """
  Low-rank adapters beside dense layers of an Axon model: a layer gives `x W + b + (x A) B`, and only A and B learn.
  """

  @doc """
  The model with adapters of a rank beside the dense layers whose names `adapts?` accepts; all else is frozen. B begins
  with zeros, so that the model answers as before. Adapters are of f32, whatever the model is of.
  """
  def adapt(model, rank, adapts?) do
    model
    # Axon 0.8 forgets what `Axon.ModelState.freeze/2` froze when a loop begins.
    |> Axon.map_nodes(fn node -> update_in(node.parameters, &for(p <- &1, do: %{p | frozen: true})) end)
    |> Axon.rewrite_nodes(fn
      %{op: :dense, name: name, meta: %{units: units}} ->
        name = name.(:dense, %{})
        if adapts?.(name), do: fn [x], output -> beside(x, output, name, units, rank) end, else: :skip

      _node ->
        :skip
    end)
  end

  defp beside(x, output, name, units, rank) do
    a = Axon.dense(x, rank, name: name <> ".a", use_bias: false, kernel_initializer: Axon.Initializers.he_uniform())
    b = Axon.dense(a, units, name: name <> ".b", use_bias: false, kernel_initializer: :zeros)
    add = fn output, change, _opts -> Nx.add(output, Nx.as_type(change, Nx.type(output))) end
    Axon.layer(add, [output, b], op_name: :adapted)
  end

  @doc "The parameters `params` of the model before `adapt/3`, with A B of `trained` added to its layers."
  def merge(params, trained) do
    update_in(params.data, &Map.new(&1, fn {layer, tensors} -> {layer, merge(tensors, layer, trained.data)} end))
  end

  defp merge(tensors, layer, trained) do
    case {trained[layer <> ".a"], trained[layer <> ".b"]} do
      {%{"kernel" => a}, %{"kernel" => b}} ->
        Map.update!(tensors, "kernel", &Nx.as_type(Nx.add(&1, Nx.dot(a, b)), Nx.type(&1)))

      {nil, nil} ->
        tensors
    end
  end
end
