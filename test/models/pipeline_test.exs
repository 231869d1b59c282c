# The architectures of Bumblebee, cut between devices.
#
#     mix test --only models test/models/pipeline_test.exs
Code.require_file("models.exs", __DIR__)

defmodule Nx.Vulkan.Models.PipelineTest do
  # A device may have several stages; with `NX_VULKAN_TEST_DEVICE=several` they are on different ones.
  use ExUnit.Case, async: true

  alias Nx.Vulkan.{Models, Pipeline, TwinDevices}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @compile {:no_warn_undefined, [Axon, Axon.Losses]}
  @moduletag :device
  @moduletag :models
  if Models.missing(), do: @moduletag(skip: Models.missing())

  setup do
    Nx.default_backend(B)
    %{devices: TwinDevices.all()}
  end

  defp on(%{devices: devices}, count), do: TwinDevices.take(devices, count)
  defp info(%{model: model, parameters: parameters, spec: spec}), do: %{model: model, params: parameters, spec: spec}

  defp example(file, architecture) do
    Models.rows() |> Enum.find(&match?({^file, _, ^architecture, _}, &1)) |> Models.example()
  end

  defp run(pipeline, inputs, opts \\ []),
    do: pipeline |> Pipeline.run(inputs, opts) |> Nx.backend_copy(Nx.BinaryBackend)

  defp bits(container),
    do: for({path, tensor} <- Models.leaves(container), do: {path, tensor.shape, Nx.to_binary(tensor)})

  # A cut may go through what one kernel computes in the whole model.
  for {file, _module, architecture, _options} = row <- Models.rows() do
    test "#{file} #{architecture} #{Models.name(row)}", context do
      example = Models.example(unquote(Macro.escape(row)))
      {_init, predict} = Axon.build(example.model)
      expected = Models.on_device(predict, [example.parameters, example.inputs])
      pipeline = Pipeline.from_model(info(example), devices: on(context, 3))
      assert length(pipeline.stages) == 3
      Models.assert_close(run(pipeline, example.inputs), expected, :f32)
    end
  end

  test "cut between blocks they have the bits of the model, also with all hidden states", context do
    for {file, architecture, first} <- [
          {"text/bert", :base, ["encoder.blocks.1.self_attention.query"]},
          {"text/llama", :for_causal_language_modeling, ["decoder.blocks.1.self_attention_norm"]},
          {"vision/vit", :for_image_classification, ["encoder.blocks.1.self_attention_norm"]}
        ] do
      example = example(file, architecture)

      for opts <- [[], [global_layer_options: [output_hidden_states: true, output_attentions: true]]] do
        {_init, predict} = Axon.build(example.model, opts)
        expected = Models.on_device(predict, [example.parameters, example.inputs])
        pipeline = Pipeline.from_model(info(example), [devices: on(context, 2), first: first] ++ opts)
        assert bits(run(pipeline, example.inputs)) == bits(expected)
      end
    end
  end

  test "take micro-batches", context do
    example = example("text/bert", :base)
    inputs = Map.take(example.inputs, ["input_ids", "attention_mask"])
    pipeline = Pipeline.from_model(info(example), devices: on(context, 2))
    whole = run(pipeline, inputs)
    Models.assert_close(run(pipeline, inputs, micro_batches: 2), whole, :f32)
  end

  test "are trained", context do
    example = example("text/distilbert", :for_sequence_classification)
    inputs = Map.take(example.inputs, ["input_ids", "attention_mask"])
    targets = Nx.tensor([[0], [2]])

    loss = fn y, %{logits: logits} ->
      Axon.Losses.categorical_cross_entropy(y, logits, sparse: true, from_logits: true, reduction: :mean)
    end

    {_init, predict} = Axon.build(example.model)

    fun = fn data, inputs, y ->
      Nx.Defn.value_and_grad(data, fn data -> loss.(y, predict.(%{example.parameters | data: data}, inputs)) end)
    end

    {value, expected} = Models.on_device(fun, [example.parameters.data, inputs, targets])
    pipeline = Pipeline.from_model(info(example), devices: on(context, 3), micro_batches: 2)
    {got, gradients, _pipeline} = Pipeline.value_and_grad(pipeline, inputs, targets, loss)
    assert_in_delta Nx.to_number(got), Nx.to_number(value), 1.0e-5
    gradients = for %{data: data} <- gradients, layer <- data, into: %{}, do: layer
    gradients = gradients |> Nx.backend_copy(Nx.BinaryBackend) |> Models.leaves()
    expected = Models.leaves(expected)
    assert Enum.map(gradients, &elem(&1, 0)) == Enum.map(expected, &elem(&1, 0))
    largest = fn t -> t |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number() end
    # Of some it is next to 0, such as that of a bias before a softmax.
    most = expected |> Enum.map(fn {_path, e} -> largest.(e) end) |> Enum.max()

    for {{path, g}, {_path, e}} <- Enum.zip(gradients, expected) do
      assert {path, largest.(Nx.subtract(g, e)) / most} < {path, 1.0e-6}
    end
  end
end
