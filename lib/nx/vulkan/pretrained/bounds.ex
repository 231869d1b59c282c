defmodule Nx.Vulkan.Pretrained.Bounds do
  @moduledoc false

  # How large a model of a folder may be: what its files have room for. Bumblebee believes its configuration, and begins
  # at random what is not in the files.

  alias Nx.Vulkan.{Error, Safetensors}

  # Keys of configurations by which as many layers are built. Layers may share their tensors.
  @counts ~r/layers|n_layer|depth|blocks/
  @most_layers 1024

  # Bumblebee computes with sizes in s32. Bases of rotations are no sizes.
  @most 2 ** 31 - 1
  @bases ~r/rotary_embedding_base/

  # How many layers may have the same tensor, such as an embedding that two halves of a model and its output share.
  @layers_of_a_tensor 4

  @doc """
  Holds what `config.json` says of layers against the number of tensors.
  """
  def layers(path, tensors) do
    most = max(length(tensors), @most_layers)

    with {:ok, config} <- Safetensors.json(path) do
      case Enum.find(numbers(config), fn {key, number} -> key =~ @counts and abs(number) > most end) do
        nil ->
          :ok

        {key, number} ->
          {:error, error(path, key, "expected #{most} at most of files of #{length(tensors)} tensors, got: #{number}")}
      end
    end
  end

  @doc """
  Holds the parameters of a model against those of the tensors. Nothing is computed.
  """
  def parameters(path, model, spec, tensors) do
    with :ok <- numbers_fit(path, spec), do: parameters_fit(path, model, spec, tensors)
  end

  defp numbers_fit(path, spec) do
    too_large? = fn {key, number} -> is_integer(number) and number > @most and not ("#{key}" =~ @bases) end

    case spec |> Map.from_struct() |> numbers() |> Enum.find(too_large?) do
      nil -> :ok
      {key, number} -> {:error, error(path, "#{key}", "expected #{@most} at most, got: #{number}")}
    end
  end

  defp parameters_fit(path, model, %module{} = spec, tensors) do
    there = Enum.sum_by(tensors, &weights/1)
    state = model |> axon().map_nodes(&without_random/1) |> axon().trace_init(module.input_template(spec))
    shapes = for {layer, tensors} <- state.data, {name, tensor} <- tensors, do: {"#{layer}.#{name}", shape(tensor)}
    wanted = Enum.sum_by(shapes, fn {_, shape} -> Tuple.product(shape) end)

    if wanted <= @layers_of_a_tensor * there do
      :ok
    else
      {name, shape} = Enum.max_by(shapes, fn {_, shape} -> Tuple.product(shape) end)
      field = field(spec, shape)

      {:error,
       error(
         path,
         field,
         "the model would have #{wanted} parameters, those of #{name} of shape #{inspect(shape)} among them, " <>
           "and the files have #{there}"
       )}
    end
  end

  # Nx.Random can't be asked for so many.
  defp without_random(node) do
    zeros = fn shape, type -> Nx.broadcast(Nx.tensor(0, type: type), shape) end
    %{node | parameters: Enum.map(node.parameters, &%{&1 | initializer: zeros})}
  end

  # It is no dependency.
  defp axon, do: Module.concat(["Axon"])

  # Numbers with the keys that they or their lists have.
  defp numbers(config), do: Enum.flat_map(config, fn {key, value} -> numbers(key, value) end)
  defp numbers(_key, %_{} = spec), do: spec |> Map.from_struct() |> numbers()
  defp numbers(_key, %{} = config), do: numbers(config)
  defp numbers(key, list) when is_list(list), do: Enum.flat_map(list, &numbers(key, &1))
  defp numbers(key, number) when is_number(number), do: [{key, number}]
  defp numbers(_key, _other), do: []

  # Integers may be packed by as little as a bit.
  defp weights(%{format: {kind, _}, bytes: bytes}) when kind in [:u, :s, :unknown], do: 8 * bytes
  defp weights(%{shape: shape}), do: Tuple.product(shape)

  defp shape(%Nx.Tensor{shape: shape}), do: shape
  # Recurrent layers have containers.
  defp shape(container), do: {[container] |> Nx.Defn.Composite.flatten_list() |> Enum.sum_by(&Nx.size/1)}

  # What the specification calls the larger size of the shape.
  defp field(spec, shape) do
    axis = shape |> Tuple.to_list() |> Enum.max(fn -> 1 end)
    names = for {name, ^axis} <- Map.from_struct(spec), do: Atom.to_string(name)
    if names == [], do: "sizes", else: names |> Enum.sort() |> Enum.join(", ")
  end

  defp error(path, field, message) do
    details = %{path: path, field: field, offset: nil}
    Error.exception(kind: :bad_file, op: :safetensors, message: "#{path}: #{field}: #{message}", details: details)
  end
end
