Code.require_file("../../bench/bumblebee.exs", __DIR__)

defmodule Nx.Vulkan.Models do
  @moduledoc """
  Small random configurations of Bumblebee's architectures, their weights and their inputs.

  Weights and inputs are integers of at most 8 bits times a power of two, which f32, f16 and bf16 all hold: one result
  in f32 is the reference for every type.
  """

  @compile {:no_warn_undefined, [Axon, Axon.ModelState]}

  import ExUnit.Assertions

  alias Bumblebee.{Audio, Diffusion, Multimodal, Text, Vision}
  alias Nx.Vulkan.VulkanoBackend

  # Sequences are longer than the windows of models that have one, and no power of two.
  @batch 2
  @length 7
  @decoder_length 5
  @vocabulary 61

  @sizes [vocab_size: @vocabulary, hidden_size: 32, num_blocks: 2, num_attention_heads: 2, intermediate_size: 48]
  @text [max_positions: 32] ++ @sizes
  @grouped [num_attention_heads: 4, num_key_value_heads: 2] ++ Keyword.delete(@text, :num_attention_heads)
  @two [
    vocab_size: @vocabulary,
    max_positions: 32,
    hidden_size: 32,
    encoder_num_blocks: 2,
    decoder_num_blocks: 2,
    encoder_num_attention_heads: 4,
    decoder_num_attention_heads: 4,
    encoder_intermediate_size: 48,
    decoder_intermediate_size: 40
  ]
  @t5 [
    vocab_size: @vocabulary,
    hidden_size: 32,
    attention_head_size: 16,
    encoder_num_blocks: 2,
    decoder_num_blocks: 2,
    encoder_num_attention_heads: 2,
    decoder_num_attention_heads: 2,
    intermediate_size: 48,
    relative_attention_num_buckets: 8,
    relative_attention_max_distance: 6
  ]
  # More keys than a subgroup has invocations.
  @long [length: 67, hidden_size: 64]
  @far [max_positions: 96] ++ @long
  @vision [
    image_size: 16,
    patch_size: 4,
    hidden_size: 32,
    num_blocks: 2,
    num_attention_heads: 2,
    intermediate_size: 48
  ]
  @classes [num_labels: 3]

  @clip_text {Text.ClipText, :base, @text}
  @clip_vision {Vision.ClipVision, :base, @vision}
  @clip {Multimodal.Clip, :base, [text_spec: @clip_text, vision_spec: @clip_vision, projection_size: 16]}

  @blip_text {Text.BlipText, :for_causal_language_modeling, [encoder_hidden_size: 32] ++ @text}
  @blip_vision {Vision.BlipVision, :base, @vision}

  @local [local_attention_window: 4, layer_types: [:full_attention, :sliding_attention]]
  @gemma3 [
    attention_head_size: 16,
    attention_scale_base: 16,
    attention_window_size: 4,
    layer_types: [:sliding_attention, :full_attention]
  ]
  # Wavelengths below, between and above both bounds.
  @llama3 %{
    type: :llama3,
    factor: 8.0,
    low_frequency_factor: 1.0,
    high_frequency_factor: 4.0,
    original_max_positions: 64
  }

  @dino Keyword.delete(@vision, :intermediate_size)
  @swin [
    image_size: 16,
    patch_size: 2,
    embedding_size: 16,
    num_blocks: [2, 2],
    num_attention_heads: [2, 4],
    window_size: 4
  ]
  @resnet [embedding_size: 8, hidden_sizes: [16, 24], depths: [1, 1]]
  @whisper [feature_size: 10, encoder_max_positions: 12, decoder_max_positions: 16] ++
             Keyword.delete(@two, :max_positions)

  # Norms have 32 groups, whatever the options say.
  @unet [
    sample_size: 4,
    hidden_sizes: [32, 64],
    depth: 1,
    down_block_types: [:cross_attention_down_block, :down_block],
    up_block_types: [:up_block, :cross_attention_up_block],
    num_attention_heads: 2,
    cross_attention_size: 16
  ]
  @vae [
    hidden_sizes: [32, 32],
    sample_size: 8,
    down_block_types: [:down_block, :down_block],
    up_block_types: [:up_block, :up_block]
  ]

  @doc """
  The models: the file below `lib/bumblebee`, the module, the architecture, and options; `:length` is that of texts.
  """
  def rows do
    masked = :for_masked_language_modeling
    causal = :for_causal_language_modeling
    conditional = :for_conditional_generation
    sequence = :for_sequence_classification
    token = :for_token_classification
    answers = :for_question_answering
    image = :for_image_classification

    [
      {"text/bert", Text.Bert, :base, @text},
      {"text/bert", Text.Bert, :for_pre_training, @text},
      {"text/bert", Text.Bert, :for_multiple_choice, @text},
      {"text/bert", Text.Bert, causal, @text},
      {"text/roberta", Text.Roberta, masked, @text},
      {"text/roberta", Text.Roberta, answers, @text},
      {"text/albert", Text.Albert, masked, [embedding_size: 16] ++ @text},
      {"text/distilbert", Text.Distilbert, sequence, @classes ++ @text},
      {"text/mpnet", Text.MpNet, masked, [relative_attention_num_buckets: 8] ++ @text},
      {"text/modernbert", Text.ModernBert, masked, @local ++ @text},
      {"text/modernbert", Text.ModernBert, sequence, @classes ++ @local ++ @text},
      {"text/modernbert_decoder", Text.ModernBertDecoder, causal, @local ++ @text},
      {"text/nomic_bert", Text.NomicBert, :base, @text},
      {"text/gpt2", Text.Gpt2, causal, @text},
      {"text/gpt2", Text.Gpt2, token, @classes ++ @text},
      {"text/gpt_neo_x", Text.GptNeoX, causal, @sizes},
      {"text/gpt_neo_x", Text.GptNeoX, token, [use_parallel_transformer_block: false] ++ @classes ++ @sizes},
      {"text/gpt_big_code", Text.GptBigCode, causal, [num_key_value_heads: 1] ++ @text},
      {"text/llama", Text.Llama, causal, @grouped},
      {"text/llama", Text.Llama, :base, [rotary_embedding_scaling_strategy: @llama3] ++ @grouped},
      {"text/llama", Text.Llama, sequence, @classes ++ @grouped},
      {"text/mistral", Text.Mistral, causal, [attention_window_size: 4] ++ @grouped},
      # Its own activation is one that it has no function for.
      {"text/gemma", Text.Gemma, causal, [attention_head_size: 16, activation: :gelu] ++ @grouped},
      {"text/gemma3_text", Text.Gemma3Text, causal, @gemma3 ++ @grouped},
      {"text/qwen3", Text.Qwen3, causal, [attention_head_size: 16] ++ @grouped},
      {"text/smollm3", Text.SmolLm3, causal, [rotary_embedding_enabled: [true, false]] ++ @grouped},
      {"text/phi", Text.Phi, causal, @text},
      {"text/phi3", Text.Phi3, causal, [attention_window_size: 4, activation: :silu] ++ @grouped},
      {"text/t5", Text.T5, conditional, @t5},
      {"text/t5", Text.T5, :encoder, [ffn_gated_activation: true, activation: :gelu] ++ @t5},
      {"text/bart", Text.Bart, conditional, @two},
      {"text/bart", Text.Bart, causal, @two},
      {"text/bart", Text.Bart, answers, @two},
      {"text/mbart", Text.Mbart, conditional, @two},
      {"text/m2m100", Text.M2m100, conditional, @two},
      {"text/blenderbot", Text.Blenderbot, conditional, @two},
      {"text/clip_text", Text.ClipText, :for_embedding, [projection_size: 16] ++ @text},
      {"text/blip_text", Text.BlipText, causal, [encoder_hidden_size: 16] ++ @text},
      {"text/bert", Text.Bert, masked, @far ++ @text},
      {"text/llama", Text.Llama, causal, [num_key_value_heads: 1] ++ @far ++ @text},
      {"text/mistral", Text.Mistral, causal, [num_key_value_heads: 1, attention_window_size: 10] ++ @far ++ @text},
      # It scales no scores: those of larger heads would be too far apart for 16 bits.
      {"text/t5", Text.T5, conditional, [attention_head_size: 4] ++ @long ++ @t5},
      {"vision/vit", Vision.Vit, image, @classes ++ @vision},
      {"vision/vit", Vision.Vit, :for_masked_image_modeling, @vision},
      {"vision/deit", Vision.Deit, :for_image_classification_with_teacher, @classes ++ @vision},
      {"vision/clip_vision", Vision.ClipVision, :for_embedding, [projection_size: 16] ++ @vision},
      {"vision/blip_vision", Vision.BlipVision, :base, @vision},
      {"vision/dino_v2", Vision.DinoV2, :base, [ffn_swiglu_activation: true] ++ @dino},
      {"vision/dino_v2", Vision.DinoV2, :backbone, [backbone_output_indices: [1, 2]] ++ @dino},
      {"vision/swin", Vision.Swin, image, @swin ++ @classes},
      {"vision/convnext", Vision.ConvNext, image, [hidden_sizes: [8, 16], depths: [1, 1]] ++ @classes},
      {"vision/resnet", Vision.ResNet, image, [residual_block_type: :bottleneck] ++ @classes ++ @resnet},
      {"vision/resnet", Vision.ResNet, :base, [residual_block_type: :basic] ++ @resnet},
      {"audio/whisper", Audio.Whisper, conditional, @whisper},
      {"multimodal/clip", Multimodal.Clip, :base, elem(@clip, 2)},
      {"multimodal/blip", Multimodal.Blip, conditional, [text_spec: @blip_text, vision_spec: @blip_vision]},
      {"multimodal/layout_lm", Multimodal.LayoutLm, token, [max_spatial_positions: 40] ++ @classes ++ @text},
      {"diffusion/unet_2d_conditional", Diffusion.UNet2DConditional, :base, @unet},
      {"diffusion/controlnet", Diffusion.ControlNet, :base, [conditioning_embedding_hidden_sizes: [8, 16]] ++ @unet},
      {"diffusion/vae_kl", Diffusion.VaeKl, :encoder, @vae},
      {"diffusion/vae_kl", Diffusion.VaeKl, :decoder, @vae},
      {"diffusion/stable_diffusion/safety_checker", Diffusion.StableDiffusion.SafetyChecker, :base, [clip_spec: @clip]}
    ]
  end

  @doc "Compiles what the rows name, once."
  def compile do
    files = for {file, _module, _architecture, _options} <- rows(), do: file
    Bumblebee.compile(["diffusion/layers", "diffusion/layers/unet"] ++ Enum.uniq(files))
  end

  @doc "Compiles the small models of the examples, once: the module `Tiny`."
  def tiny, do: Code.require_file("../../examples/transformers/tiny.exs", __DIR__)

  @doc "A model of Bumblebee."
  def spec({module, architecture, options}) do
    options =
      Enum.map(options, fn
        {key, {_module, _architecture, _options} = inner} -> {key, spec(inner)}
        option -> option
      end)

    # The first of the same name counts.
    Bumblebee.configure(module, [architecture: architecture] ++ Enum.uniq_by(options, &elem(&1, 0)))
  end

  @doc """
  What the model takes, with texts of a length; `pad` is the side on which the second of two is shorter.
  """
  def inputs(spec, model, length, pad) do
    for {name, shape} <- Axon.get_inputs(model),
        input = input(name, shape, spec, {length, pad}),
        into: %{},
        do: {name, input}
  end

  defp input("input_ids", {nil, nil, nil}, _spec, {length, pad}),
    do: Nx.reshape(ids({2 * @batch, length}, pad), {@batch, 2, length})

  defp input("input_ids", _shape, _spec, {length, pad}), do: ids({@batch, length}, pad)

  defp input("attention_mask", {nil, nil, nil}, _spec, {length, pad}),
    do: Nx.reshape(mask({2 * @batch, length}, pad), {@batch, 2, length})

  defp input("attention_mask", _shape, _spec, {length, pad}), do: mask({@batch, length}, pad)
  defp input("token_type_ids", {nil, nil, nil}, _spec, {length, _}), do: integers({@batch, 2, length}, 0, 1)
  defp input("token_type_ids", _shape, _spec, {length, _}), do: integers({@batch, length}, 0, 1)
  defp input("decoder_input_ids", _shape, _spec, _text), do: ids({@batch, @decoder_length}, :right)
  defp input("decoder_attention_mask", _shape, _spec, _text), do: mask({@batch, @decoder_length}, :right)
  defp input("bounding_box", _shape, spec, {length, _}), do: boxes({@batch, length, 2}, spec.max_spatial_positions)
  # A size that is free, or one in the shape that is only a default.
  defp input("pixel_values", {nil, nil, nil, channels}, _spec, _text), do: floats({@batch, 16, 16, channels}, 1)
  defp input("pixel_values", {nil, 224, 224, channels}, _spec, _text), do: floats({@batch, 16, 16, channels}, 1)
  defp input("pixel_values", shape, _spec, _text), do: floats(put_elem(shape, 0, @batch), 1)
  defp input("input_features", shape, _spec, _text), do: floats(put_elem(shape, 0, @batch), 1)
  defp input("sample", shape, _spec, _text), do: floats(put_elem(shape, 0, @batch), 1)
  defp input("conditioning", shape, _spec, _text), do: floats(put_elem(shape, 0, @batch), 1)
  defp input("conditioning_scale", _shape, _spec, _text), do: Nx.tensor(0.75, backend: Nx.BinaryBackend)
  defp input("timestep", _shape, _spec, _text), do: Nx.tensor(13, type: :u32, backend: Nx.BinaryBackend)
  # Heads that count less or not at all, with which attention can't be one kernel.
  defp input("attention_head_mask", {blocks, heads}, %{architecture: :for_pre_training}, _text),
    do: Nx.reshape(Nx.tensor([1.0, 0.5, 0.0, 1.0], backend: Nx.BinaryBackend), {blocks, heads})

  defp input("encoder_hidden_state", {nil, nil, size}, %{cross_attention_size: size}, _text),
    do: floats({@batch, @decoder_length, size}, 1)

  defp input("encoder_hidden_state", {nil, nil, size}, %{encoder_hidden_size: size}, _text),
    do: floats({@batch, @decoder_length, size}, 1)

  defp input(_name, _shape, _spec, _text), do: nil

  # Tokens of padding are 1, which means padding to all models that ask for it.
  defp ids(shape, pad) do
    mask = mask(shape, pad)
    Nx.select(mask, integers(shape, 3, @vocabulary - 1), Nx.tensor(1, type: :s64, backend: Nx.BinaryBackend))
  end

  # Every second row lacks two tokens.
  defp mask({rows, length}, pad) do
    short = List.duplicate(1, length - 2)
    short = if pad == :left, do: [0, 0 | short], else: short ++ [0, 0]
    rows = for row <- 1..rows, do: if(rem(row, 2) == 0, do: short, else: List.duplicate(1, length))
    Nx.tensor(rows, type: :s64, backend: Nx.BinaryBackend)
  end

  # Left, top, right, bottom.
  defp boxes(shape, positions) do
    low = integers(shape, 0, div(positions, 2) - 1)
    high = integers(shape, div(positions, 2), positions - 1)
    Nx.concatenate([low, high], axis: 2)
  end

  defp integers(shape, low, high) do
    values = for _ <- 1..Nx.size(shape), do: low + :rand.uniform(high - low + 1) - 1
    values |> Nx.tensor(type: :s64, backend: Nx.BinaryBackend) |> Nx.reshape(shape)
  end

  # Between -`high` and `high`, a power of two.
  defp floats(shape, high, steps \\ 128, middle \\ 0) do
    values = for _ <- 1..Nx.size(shape), do: middle + (:rand.uniform(2 * steps + 1) - 1 - steps) * high / steps
    values |> Nx.tensor(type: :f32, backend: Nx.BinaryBackend) |> Nx.reshape(shape)
  end

  @doc """
  Random weights of a model: of all the parameters whose defaults are 0 and 1, too.
  """
  def parameters(model, inputs) do
    {init, _predict} = Axon.build(model)
    templates = Map.new(inputs, fn {name, input} -> {name, Nx.to_template(input)} end)
    state = Nx.Defn.debug_expr(init).(templates, Axon.ModelState.empty())
    Axon.ModelState.new(weights(state.data, nil))
  end

  defp weights(%Nx.Tensor{} = template, name) do
    if Nx.Type.float?(template.type),
      do: weight(name, template.shape),
      else: Nx.broadcast(Nx.tensor(0, type: template.type, backend: Nx.BinaryBackend), template.shape)
  end

  # In the order of names, for the same numbers every time.
  defp weights(map, _name), do: map |> Enum.sort() |> Map.new(fn {name, value} -> {name, weights(value, name)} end)

  defp weight(name, shape) when name in ["gamma", "weight", "scale", "var"], do: floats(shape, 0.25, 32, 1)
  defp weight(name, shape) when name in ["bias", "beta", "mean"], do: floats(shape, 0.25)

  # A standard deviation of about one after the product.
  defp weight("kernel", shape) when tuple_size(shape) > 1 do
    inputs = div(Nx.size(shape), elem(shape, tuple_size(shape) - 1))
    floats(shape, 2.0 ** round(:math.log2(:math.sqrt(3 / inputs))))
  end

  # So that one image is and the other is not.
  defp weight("unsafe_concept_thresholds", shape), do: floats(shape, 0.125, 32, 0.5)
  defp weight(_name, shape), do: floats(shape, 1)

  @doc "A model of a row with weights and inputs, which are the same every time."
  def example({_file, module, architecture, options} = row, seed \\ 0) do
    compile()
    :rand.seed(:exsss, :erlang.phash2({row, seed}))
    {length, options} = Keyword.pop(options, :length, @length)
    spec = spec({module, architecture, options})
    model = Bumblebee.build_model(spec)
    pad = if architecture == :for_causal_language_modeling, do: :left, else: :right
    inputs = inputs(spec, model, length, pad)
    %{spec: spec, model: model, inputs: inputs, parameters: parameters(model, inputs)}
  end

  @doc "The model of a row in a type."
  def model(spec, :f32), do: Bumblebee.build_model(spec)
  def model(spec, type), do: Bumblebee.build_model(spec, Nx.Type.normalize!(type))

  @doc "A name of a module for the tests of a row."
  def name({file, _module, architecture, _options} = row) do
    same = Enum.filter(rows(), &match?({^file, _, ^architecture, _}, &1))
    number = if length(same) > 1, do: Enum.find_index(same, &(&1 == row))
    "#{file}_#{architecture}#{number}" |> Macro.camelize() |> String.replace(["/", "."], "")
  end

  @doc "Why no model can be tested, or nil."
  def missing do
    cond do
      Bumblebee.folder() == nil ->
        "there is no checkout of Bumblebee: NX_VULKAN_DEPS must hold it as `bumblebee`, or BUMBLEBEE be its folder"

      not Code.ensure_loaded?(Axon) ->
        "there is no Axon: NX_VULKAN_DEPS must hold checkouts of axon, scholar, polaris and nimble_options"

      true ->
        nil
    end
  end

  @doc """
  Runs a function on `Nx.BinaryBackend` with the evaluator.
  """
  def on_binary(fun, args) do
    Nx.with_default_backend(Nx.BinaryBackend, fn -> Nx.Defn.jit_apply(fun, args, compiler: Nx.Defn.Evaluator) end)
  end

  @doc """
  Runs a function on the device with our compiler. What it gives comes back.
  """
  def on_device(fun, args) do
    Nx.with_default_backend(VulkanoBackend, fn ->
      results =
        Nx.Defn.jit_apply(fun, Enum.map(args, &Nx.backend_copy(&1, VulkanoBackend)), compiler: Nx.Vulkan.Compiler)

      Nx.Defn.Composite.traverse(results, fn tensor ->
        %VulkanoBackend{} = tensor.data
        Nx.backend_copy(tensor, Nx.BinaryBackend)
      end)
    end)
  end

  @doc """
  What a model answers, without what is of interest by itself: attention whose weights are asked for is not one kernel.
  """
  def outputs(predict) do
    fn parameters, inputs ->
      predict.(parameters, inputs)
      |> Enum.reject(fn {name, _} -> String.ends_with?(Atom.to_string(name), ["hidden_states", "attentions"]) end)
      |> Map.new()
    end
  end

  @doc "The floats of a container as a type."
  def as_type(container, type) do
    Nx.Defn.Composite.traverse(container, &if(Nx.Type.float?(&1.type), do: Nx.as_type(&1, type), else: &1))
  end

  # f32: lavapipe is within 2e-6 of the reference, which rounds f64 after each op. Other devices' functions are less
  # exact.
  @f32 2.0e-5

  # The others: by how many halves of an ulp of the largest element one element may be off, and the root of the mean
  # square. Each of about 100 ops on the way from a weight to a result rounds by up to half an ulp, independently of the
  # others: the root of 100 is ten, of which most get less than half. Measured: at most 11 and 4.
  @largest 16
  @mean 6

  @doc "How far from the reference an element may be, relative to the largest."
  def tolerance(:f32), do: @f32
  def tolerance(type), do: @largest * half_ulp(type)

  # Relative, of a number just above a power of two.
  defp half_ulp(:bf16), do: 2.0 ** -8
  defp half_ulp(:f16), do: 2.0 ** -11

  @doc """
  Asserts that what a model of a type gave is what the reference in f32 gave.
  """
  def assert_close(actual, expected, type) do
    {actual, expected} = {leaves(actual), leaves(expected)}
    assert Enum.map(actual, &elem(&1, 0)) == Enum.map(expected, &elem(&1, 0))
    assert expected != []

    for {{path, a}, {_path, e}} <- Enum.zip(actual, expected) do
      assert {path, a.shape} == {path, e.shape}
      float? = Nx.Type.float?(e.type)
      assert {path, a.type} == {path, if(float?, do: Nx.Type.normalize!(type), else: e.type)}

      if float?,
        do: assert_floats(Nx.to_flat_list(a), Nx.to_flat_list(e), path, type),
        else: assert({path, a} == {path, e})
    end
  end

  defp assert_floats(actual, expected, path, type) do
    assert Enum.all?(actual ++ expected, &is_float/1), "#{path} is not finite"
    largest = expected |> Enum.map(&abs/1) |> Enum.max()
    assert largest > 0.1 and length(Enum.uniq(expected)) > 1, "#{path}: there is nothing to compare"
    errors = Enum.zip_with(actual, expected, &(abs(&1 - &2) / largest))
    mean = :math.sqrt(Enum.sum_by(errors, &(&1 * &1)) / length(errors))
    assert Enum.max(errors) <= tolerance(type), "#{path}, #{type}: #{Enum.max(errors)} of the largest"

    if type != :f32,
      do: assert(mean <= @mean * half_ulp(type), "#{path}, #{type}: #{mean} of the largest, in the mean")
  end

  @doc """
  The tensors of a container by their paths.
  """
  def leaves(container, path \\ "")
  def leaves(%Nx.Tensor{} = tensor, path), do: [{path, tensor}]

  def leaves(%module{} = struct, path) do
    # Outputs that are not asked for.
    if module == Axon.None, do: [], else: leaves(Map.from_struct(struct), path)
  end

  def leaves(tuple, path) when is_tuple(tuple),
    do: for({part, index} <- Enum.with_index(Tuple.to_list(tuple)), leaf <- leaves(part, "#{path}.#{index}"), do: leaf)

  def leaves(map, path), do: for({key, part} <- Enum.sort(map), leaf <- leaves(part, "#{path}.#{key}"), do: leaf)
end

# ExUnit prints no reasons.
if Nx.Vulkan.Models.missing() && :models in Keyword.get(ExUnit.configuration(), :include, []),
  do: IO.puts("The models are not tested: #{Nx.Vulkan.Models.missing()}")
