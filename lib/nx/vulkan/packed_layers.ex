defmodule Nx.Vulkan.PackedLayers do
  @moduledoc """
  Models of Axon whose layers multiply packed weights: kernels of dense layers and embeddings become
  `Nx.Vulkan.Quantized`.

      {model, params} = Nx.Vulkan.PackedLayers.quantize(model, params, :q4_k)
      Axon.predict(model, params, inputs)

  The model has the same layers, by the same names. In the parameters, which are an `Axon.ModelState` as before,
  `"kernel"` of a packed layer is a map of the tensors that its quantised weight stores, by the names of
  `Nx.Vulkan.Quantized`, as strings; `kernels/2` has the weights themselves. So all that Axon does to parameters goes
  on: `Axon.Loop`, `Nx.serialize/2`, frozen parameters, printing. Kernels that are packed have no gradient and are not
  trained, while biases are; `Nx.Vulkan.Lora` trains adapters beside them.

  Layers that can be packed are `Axon.dense/3` and `Axon.embedding/4`, and the output layers of Bumblebee's language
  models, whose kernels are transposed. Groups lie along what is summed up in a product. A packed layer computes in the
  type that the policy of the layer says (`Axon.MixedPrecision`), f32 without one. Policies that are applied later than
  this may round scales.

  A compiler sees the ordinary operations of `Nx.Vulkan.Quantized.dot/2` and `take/3`, so that any backend gives the
  same values. `Nx.Vulkan.Pretrained` loads such models from files.
  """

  alias Nx.Vulkan.{Checkpoint, Quantized}
  alias Nx.Vulkan.Quantized.Formats

  @doc """
  Quantises kernels of a model.

  ## Options

    * `:layers` - a function that takes the name of a layer and says whether it is quantised; all by default

  Others are those of `Nx.Vulkan.Quantized.quantize/3`. Kernels whose shape does not fit the format stay as they are,
  and so do those that are packed already.

  ## Errors

  An `ArgumentError` for a format or an option that there is not, and what is no model of Axon.
  """
  @spec quantize(struct, struct, Quantized.format(), keyword) :: {struct, struct}
  def quantize(model, params, format, opts \\ []) do
    {layers, opts} = Keyword.pop(opts, :layers, fn _name -> true end)
    Formats.check!(format)
    state!(params)

    if not is_function(layers, 1) do
      raise ArgumentError, "expected :layers to be a function of a layer's name, got: #{inspect(layers)}"
    end

    kernels =
      for {name, node} <- layers!(model),
          kind = kind(node),
          %Nx.Tensor{} = kernel <- [params.data[name]["kernel"]],
          layers.(name),
          kernel = if(kind == :dense, do: Nx.transpose(kernel), else: kernel),
          rem(Nx.axis_size(kernel, 1), Formats.unit(format)) == 0,
          into: %{},
          do: {name, Quantized.quantize(kernel, format, opts)}

    pack(model, params, kernels)
  end

  @doc """
  Gives layers of a model packed kernels.

  `kernels` is a map of names of layers and `Nx.Vulkan.Quantized` of shape `{n, k}`: `n` is the number of results of a
  dense layer, or of tokens of an embedding.

  ## Errors

  An `ArgumentError` for a name that no layer has, a layer that is none of those that can be packed, and a shape that is
  not that of the layer's kernel.
  """
  @spec pack(struct, struct, %{String.t() => Quantized.t()}) :: {struct, struct}
  def pack(model, params, kernels) do
    layers = Map.new(layers!(model))
    state!(params)

    for {name, q} <- kernels do
      node =
        layers[name] ||
          raise ArgumentError,
                "there is no layer #{inspect(name)}, only #{Enum.map_join(layers, ", ", &inspect(elem(&1, 0)))}"

      kind =
        kind(node) || raise(ArgumentError, "expected a layer that can be packed, dense or an embedding, got: #{name}")

      fits!(name, q, kind, params.data[name]["kernel"])
    end

    nodes = Map.new(kernels, fn {name, q} -> {layers[name].id, packed(layers[name], q)} end)
    data = Enum.reduce(kernels, params.data, fn {name, q}, data -> put_kernel(data, name, stored(q)) end)
    {%{model | nodes: Map.merge(model.nodes, nodes)}, %{params | data: data}}
  end

  @doc """
  The packed kernels of a model: a map of names of layers and `Nx.Vulkan.Quantized`.

  ## Errors

  An `ArgumentError` for parameters that are not packed as the model is.
  """
  @spec kernels(struct, struct) :: %{String.t() => Quantized.t()}
  def kernels(model, params) do
    state!(params)

    for {name, %{meta: %{packed: packed}}} <- layers!(model), into: %{} do
      {name, quantised(params.data[name]["kernel"], packed)}
    end
  end

  # Axon is no dependency.
  defp layers!(%{__struct__: Axon} = model), do: Checkpoint.layers(model)
  defp layers!(other), do: raise(ArgumentError, "expected a model of Axon, got: #{inspect(other)}")

  defp state!(%{__struct__: Axon.ModelState}), do: :ok

  defp state!(other),
    do: raise(ArgumentError, "expected parameters, an Axon.ModelState, got: #{inspect(other, limit: 4)}")

  # How a layer's kernel lies, and nil where it can't be packed.
  @doc false
  def kind(%{meta: %{packed: _}}), do: nil
  def kind(%{op: :dense}), do: :dense
  def kind(%{op: :embedding}), do: :embedding
  # Of Bumblebee.Layers.
  def kind(%{op_name: :dense_transposed}), do: :dense_transposed
  def kind(_node), do: nil

  defp fits!(name, %Quantized{shape: {n, k} = shape}, kind, kernel) do
    want = if kind == :dense, do: {k, n}, else: {n, k}

    case kernel do
      %Nx.Tensor{shape: other} when other != want ->
        raise ArgumentError,
              "expected a kernel of shape #{inspect(other)} for #{name}, got the values #{inspect(shape)}"

      _ ->
        :ok
    end
  end

  defp fits!(name, other, _kind, _kernel) do
    raise ArgumentError, "expected a quantised tensor of two axes for #{name}, got: #{inspect(other)}"
  end

  defp put_kernel(data, name, kernel), do: Map.update(data, name, %{"kernel" => kernel}, &Map.put(&1, "kernel", kernel))

  ## Nodes

  # The same node with another op. What it takes stays in its place: the input, the kernel, a bias where there is one.
  defp packed(node, %Quantized{shape: {n, _}} = q) do
    type = node.policy.compute || node.policy.params || {:f, 32}
    packed = %{format: q.format, shape: q.shape, names: Map.keys(q.tensors)}
    meta = Map.merge(node.meta || %{}, %{packed: packed, units: n})
    templates = Map.new(q.tensors, fn {key, tensor} -> {Atom.to_string(key), Nx.to_template(tensor)} end)

    parameters =
      for parameter <- node.parameters do
        # State of a layer is what no optimizer is given.
        if parameter.name == "kernel",
          do: %{parameter | initializer: initializer(templates), kind: :state},
          else: parameter
      end

    # Tensors of the kernel have types of their own, and what else is computed with has that of the layer.
    policy = %{node.policy | compute: nil}
    %{node | op: op(kind(node), packed, type, length(node.args)), meta: meta, parameters: parameters, policy: policy}
  end

  defp initializer(templates) do
    fn _shape, _type ->
      Map.new(templates, fn {key, %{type: type, shape: shape}} ->
        {key, Nx.broadcast(Nx.as_type(Nx.tensor(0, type: :u8), type), shape)}
      end)
    end
  end

  defp op(:embedding, packed, type, 2) do
    fn indices, kernel, _opts -> kernel |> quantised(packed) |> Quantized.take(indices, type: type) end
  end

  defp op(_dense, packed, type, 2), do: fn x, kernel, _opts -> product(x, kernel, packed, type) end

  defp op(_dense, packed, type, 3) do
    fn x, kernel, bias, _opts -> Nx.add(product(x, kernel, packed, type), Nx.as_type(bias, type)) end
  end

  defp product(x, kernel, packed, type) do
    x |> Nx.as_type(type) |> Quantized.dot(quantised(kernel, packed)) |> Nx.as_type(type)
  end

  defp stored(%Quantized{tensors: tensors}), do: Map.new(tensors, fn {key, tensor} -> {Atom.to_string(key), tensor} end)

  defp quantised(kernel, %{format: format, shape: shape, names: names}) do
    keys = Enum.map(names, &Atom.to_string/1)

    if is_struct(kernel) or not is_map(kernel) or Enum.sort(Map.keys(kernel)) != Enum.sort(keys) do
      raise ArgumentError,
            "expected the packed kernel of a layer, a map of #{Enum.join(keys, ", ")}, as the parameters that were " <>
              "packed with the model have it, got: #{inspect(kernel, limit: 4)}"
    end

    %Quantized{format: format, shape: shape, tensors: Map.new(names, &{&1, Map.fetch!(kernel, Atom.to_string(&1))})}
  end
end
