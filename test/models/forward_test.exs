# The architectures of Bumblebee on the backend and the compiler, beside Nx.BinaryBackend and the evaluator. They take
# minutes, so they are left out otherwise:
#
#     mix test --only models
Code.require_file("models.exs", __DIR__)

alias Nx.Vulkan.Models

# A module each, so that several run beside each other.
for {file, _module, architecture, _options} = row <- Models.rows() do
  defmodule Module.concat(Nx.Vulkan.Models.Forward, Models.name(row)) do
    use ExUnit.Case, async: true

    @compile {:no_warn_undefined, [Axon]}
    @row row
    @moduletag :device
    @moduletag :models
    if Models.missing(), do: @moduletag(skip: Models.missing())

    setup_all do
      example = Models.example(@row)
      {_init, predict} = Axon.build(example.model)
      Map.put(example, :expected, Models.on_binary(Models.outputs(predict), [example.parameters, example.inputs]))
    end

    for type <- [:f32, :bf16, :f16] do
      test "#{file} #{architecture} in #{type}", context do
        type = unquote(type)
        {_init, predict} = context.spec |> Models.model(type) |> Axon.build()
        args = Enum.map([context.parameters, context.inputs], &Models.as_type(&1, type))
        Models.assert_close(Models.on_device(Models.outputs(predict), args), context.expected, type)
      end
    end
  end
end

defmodule Nx.Vulkan.Models.ForwardTest do
  use ExUnit.Case, async: true

  @compile {:no_warn_undefined, [Axon, Axon.MixedPrecision]}
  @moduletag :device
  @moduletag :models
  if Models.missing(), do: @moduletag(skip: Models.missing())

  @everything [global_layer_options: [output_hidden_states: true, output_attentions: true]]

  defp example(file, architecture) do
    Models.rows() |> Enum.find(&match?({^file, _, ^architecture, _}, &1)) |> Models.example()
  end

  # Attention in its parts.
  for {file, architecture} <- [
        {"text/bert", :base},
        {"text/llama", :for_causal_language_modeling},
        {"text/t5", :for_conditional_generation},
        {"vision/vit", :for_image_classification}
      ] do
    test "#{file} #{architecture} with all hidden states and attention weights" do
      example = example(unquote(file), unquote(architecture))
      {_init, predict} = Axon.build(example.model, @everything)
      args = [example.parameters, example.inputs]
      expected = Models.on_binary(predict, args)
      names = for {path, _} <- Models.leaves(expected), do: path
      assert Enum.any?(names, &(&1 =~ "attentions.1")) and Enum.any?(names, &(&1 =~ "hidden_states.2"))
      Models.assert_close(Models.on_device(predict, args), expected, :f32)
    end
  end

  for {file, architecture} <- [
        {"text/bert", :for_multiple_choice},
        {"text/gemma3_text", :for_causal_language_modeling},
        {"text/bart", :for_conditional_generation}
      ] do
    test "#{file} #{architecture} of one sequence, without a mask" do
      example = example(unquote(file), unquote(architecture))
      {_init, predict} = Axon.build(example.model)
      inputs = Map.drop(example.inputs, ["attention_mask", "decoder_attention_mask", "token_type_ids"])
      inputs = Map.new(inputs, fn {name, input} -> {name, input[[0..0]]} end)
      args = [example.parameters, inputs]
      Models.assert_close(Models.on_device(predict, args), Models.on_binary(predict, args), :f32)
    end
  end

  # As a policy for `type:` of Bumblebee.load_model/2.
  for {file, architecture} <- [{"text/qwen3", :for_causal_language_modeling}, {"vision/resnet", :base}] do
    test "#{file} #{architecture} computed in bf16, parameters and results in f32" do
      example = example(unquote(file), unquote(architecture))
      policy = Axon.MixedPrecision.create_policy(params: {:f, 32}, compute: {:bf, 16}, output: {:f, 32})
      {_init, predict} = example.model |> Axon.MixedPrecision.apply_policy(policy) |> Axon.build()
      {_init, reference} = Axon.build(example.model)
      args = [example.parameters, example.inputs]
      actual = Models.on_device(Models.outputs(predict), args)
      for {_path, tensor} <- Models.leaves(actual), do: assert(tensor.type == {:f, 32})
      expected = Models.on_binary(Models.outputs(reference), args)
      Models.assert_close(Models.as_type(actual, :bf16), expected, :bf16)
    end
  end

  test "the images of the safety checker are of both kinds" do
    example = example("diffusion/stable_diffusion/safety_checker", :base)
    {_init, predict} = Axon.build(example.model)
    results = Models.on_binary(predict, [example.parameters, example.inputs])
    assert Enum.sort(Nx.to_flat_list(results.is_unsafe)) == [0, 1]
  end
end
