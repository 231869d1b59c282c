defmodule Nx.Vulkan.Lora do
  @moduledoc """
  Low-rank adapters (LoRA) beside dense layers of Axon models, whose weights stay as they are: packed ones, too (QLoRA).

      {:ok, %{model: model, params: params}} = Nx.Vulkan.Pretrained.load_model("Qwen3-8B-4bit")
      adapted = Nx.Vulkan.Lora.adapt(model, 8, layers: &(&1 =~ ~r/query|value/))
      {init, _predict} = Axon.build(adapted)
      state = init.(inputs, params)

      adapted
      |> Axon.Loop.trainer(loss, Polaris.Optimizers.adam(learning_rate: 1.0e-4))
      |> Axon.Loop.run(batches, state, compiler: Nx.Vulkan)

  An adapted layer gives `y + alpha / rank * (x A) B`, where `y` is what it gave before. A and B are the parameters
  `"kernel"` of two further layers, by the names `name <> ".lora_a"` and `name <> ".lora_b"`. All other parameters are
  frozen: gradients pass through them and not to them, and an optimizer keeps nothing of them.
  """

  alias Nx.Vulkan.Checkpoint

  @a ".lora_a"
  @b ".lora_b"

  @doc """
  The model with adapters of a rank.

  B begins with zeros, so that the model answers as before. Parameters of the model before are those of this one, and
  adapters come from `Axon.build/2`'s function of initialization.

  ## Options

    * `:layers` - a function that takes the name of a dense layer and says whether it is adapted; all by default
    * `:alpha` - a number, `rank` by default: adapters are multiplied by `alpha / rank`

  ## Shapes

  Of a layer from `k` to `n`, A is `{k, rank}` and B `{rank, n}`.

  ## Types

  Adapters are f32 and are computed in f32, whatever the model is of. The sum has the type of the layer.

  ## Errors

  An `ArgumentError` where no layer is adapted, for a rank that is no positive integer or is larger than a layer that is
  adapted, as far as the model says its sizes, for a model that has adapters, and what is no model of Axon.
  """
  @spec adapt(struct, pos_integer, keyword) :: struct
  def adapt(model, rank, opts \\ [])

  def adapt(%{__struct__: Axon} = model, rank, opts) when is_integer(rank) and rank > 0 do
    opts = Keyword.validate!(opts, layers: fn _name -> true end, alpha: rank)
    if not is_function(opts[:layers], 1), do: wrong(:layers, "a function of a layer's name", opts[:layers])
    if not is_number(opts[:alpha]), do: wrong(:alpha, "a number", opts[:alpha])
    names = Map.new(Checkpoint.layers(model), fn {name, node} -> {node.id, name} end)

    for {_id, name} <- names, adapter?(name) do
      raise ArgumentError, "expected a model without adapters, got one with #{name}: adapt the model it was made of"
    end

    adapted = for {id, name} <- names, dense?(model.nodes[id]), opts[:layers].(name), into: MapSet.new(), do: id

    if adapted == MapSet.new() do
      dense = for {id, name} <- names, dense?(model.nodes[id]), do: inspect(name)
      raise ArgumentError, "the function :layers holds for no dense layer, of which there are #{Enum.join(dense, ", ")}"
    end

    for id <- adapted, do: rank_fits!(rank, model.nodes[id], names[id])

    model
    |> axon().map_nodes(&frozen(&1, names[&1.id]))
    |> axon().rewrite_nodes(fn node ->
      if node.id in adapted,
        do: fn [x], output -> beside(x, output, names[node.id], node.meta.units, rank, opts[:alpha] / rank) end,
        else: :skip
    end)
  end

  def adapt(%{__struct__: Axon}, rank, _opts) do
    raise ArgumentError, "expected a positive integer as the rank of adapters, got: #{inspect(rank)}"
  end

  def adapt(other, _rank, _opts), do: raise(ArgumentError, "expected a model of Axon, got: #{inspect(other)}")

  @spec wrong(atom, String.t(), term) :: no_return
  defp wrong(option, wanted, got),
    do: raise(ArgumentError, "expected #{inspect(option)} to be #{wanted}, got: #{inspect(got)}")

  defp adapter?(name), do: String.ends_with?(name, [@a, @b])

  # Packed ones know how many there are of what they take, too.
  defp rank_fits!(rank, %{meta: %{units: units} = meta}, name) do
    most =
      case meta do
        %{packed: %{shape: {n, k}}} -> min(n, k)
        _ -> units
      end

    if rank > most do
      raise ArgumentError,
            "expected a rank of #{most} at most, the size of #{name}, got: #{rank}: choose others by :layers"
    end
  end

  # Packed ones keep the name of their op.
  defp dense?(%{op_name: :dense, meta: %{units: _}}), do: true
  defp dense?(_node), do: false

  # Axon 0.8 forgets what `Axon.ModelState.freeze/2` froze when a loop begins. Names are those that layers have without
  # adapters, which Axon would count.
  defp frozen(node, name) do
    node = update_in(node.parameters, &for(p <- &1, do: %{p | frozen: p.kind == :parameter}))
    if name, do: %{node | name: fn _op, _counts -> name end}, else: node
  end

  defp beside(x, output, name, units, rank, scale) do
    # Without it a x of 16 bits and an A of f32 would be computed in f32, too, but in a policy that is applied later.
    x = axon().nx(x, &Nx.as_type(&1, :f32))
    a = axon().dense(x, rank, name: name <> @a, use_bias: false, kernel_initializer: :he_uniform)
    b = axon().dense(a, units, name: name <> @b, use_bias: false, kernel_initializer: :zeros)
    add = fn output, change, _opts -> Nx.add(output, Nx.as_type(Nx.multiply(change, scale), Nx.type(output))) end
    axon().layer(add, [output, b], op_name: :adapted)
  end

  @doc """
  The adapters of trained parameters, a map from names of layers: what there is to save.

  They are put back by `put/2`.
  """
  @spec adapters(struct) :: %{String.t() => %{String.t() => Nx.Tensor.t()}}
  def adapters(%{data: data}), do: Map.filter(data, fn {name, _} -> adapter?(name) end)

  @doc """
  Parameters of a model with adapters that `adapters/1` gave: those of the model `adapt/3` made of it.

  ## Errors

  An `ArgumentError` for adapters of a layer that the parameters do not have, for an A without its B, and for shapes
  that do not fit together or to the layer.
  """
  @spec put(struct, %{String.t() => map}) :: struct
  def put(params, adapters) do
    if not is_map(adapters), do: raise(ArgumentError, "expected a map of adapters, got: #{inspect(adapters)}")

    for {name, _} <- adapters do
      base = String.replace_suffix(String.replace_suffix(name, @a, ""), @b, "")

      if not adapter?(name) or not is_map_key(params.data, base) do
        layers = params.data |> Map.keys() |> Enum.reject(&adapter?/1) |> Enum.map_join(", ", &inspect/1)

        raise ArgumentError,
              "expected adapters of layers that there are, by names that end in #{@a} or #{@b}, got: " <>
                "#{inspect(name)}, and layers are #{layers}"
      end

      shapes = for part <- [@a, @b], do: shape(adapters[base <> part])
      if not fit?(shapes, params.data[base]["kernel"]), do: unfit(base, shapes, params.data[base]["kernel"])
    end

    %{params | data: Map.merge(params.data, adapters)}
  end

  defp shape(%{"kernel" => %Nx.Tensor{shape: shape}}), do: shape
  defp shape(_other), do: nil

  defp fit?([{k, rank}, {rank, n}], %Nx.Tensor{shape: shape}), do: shape == {k, n}
  # Parts of a packed kernel have rows of the layer's results, and what they take is not known by them.
  defp fit?([{_, rank}, {rank, n}], %{} = kernel),
    do: Enum.any?(kernel, fn {_, part} -> match?({^n, _}, part.shape) or match?({^n, _, _}, part.shape) end)

  defp fit?(_shapes, _kernel), do: false

  @spec unfit(String.t(), list, term) :: no_return
  defp unfit(base, [a, b], kernel) do
    layer = if is_struct(kernel, Nx.Tensor), do: "a kernel #{inspect(kernel.shape)}", else: "its packed kernel"

    raise ArgumentError,
          "expected #{base}#{@a} {k, rank} and #{base}#{@b} {rank, n} beside #{layer} of k by n, " <>
            "got: #{inspect(a)} and #{inspect(b)}"
  end

  # It is no dependency.
  defp axon, do: Module.concat(["Axon"])
end
