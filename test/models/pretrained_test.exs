# Models from quantised files, beside the same models of Bumblebee with the values that the files stand for.
#
#     mix test --only models
Code.require_file("generations.exs", __DIR__)
Code.require_file("names.exs", __DIR__)

defmodule Nx.Vulkan.Models.PretrainedTest do
  use ExUnit.Case, async: true

  alias Bumblebee.Text
  alias Nx.Vulkan.{Error, GGUF, Lora, Models, PackedLayers, Pretrained, Quantized, Safetensors, VulkanoBackend}
  alias Nx.Vulkan.Models.{Generations, Names}

  @compile {:no_warn_undefined,
            [Axon, Axon.Loop, Axon.Losses, Axon.ModelState, Bumblebee.Text.Generation, Polaris.Optimizers]}
  @moduletag :device
  @moduletag :models
  @moduletag :tmp_dir
  # What parameters Bumblebee did not find.
  @moduletag :capture_log
  if Models.missing(), do: @moduletag(skip: Models.missing())

  # Blocks of K-quants have 256 weights.
  @sizes [
    vocab_size: 61,
    max_positions: 32,
    hidden_size: 256,
    num_blocks: 2,
    num_attention_heads: 4,
    intermediate_size: 256
  ]
  @grouped [num_key_value_heads: 2] ++ @sizes
  @causal :for_causal_language_modeling

  # One of its blocks attends to all.
  @gemma3 [
    attention_head_size: 64,
    attention_scale_base: 64,
    attention_window_size: 4,
    layer_types: [:sliding_attention, :full_attention]
  ]

  @models %{
    llama: {Text.Llama, @causal, @grouped},
    qwen3: {Text.Qwen3, @causal, [attention_head_size: 64] ++ @grouped},
    # Its own activation is one that it has no function for.
    gemma: {Text.Gemma, @causal, [attention_head_size: 64, activation: :gelu] ++ @grouped},
    gemma3: {Text.Gemma3Text, @causal, @gemma3 ++ @grouped},
    bert: {Text.Bert, :base, [max_token_types: 2] ++ @sizes}
  }

  # How far from each other results in f32 may be that add the same products in other orders, relative to the largest.
  @tolerance 2.0e-5

  setup_all do
    Models.compile()
    :ok
  end

  setup do
    Nx.default_backend(VulkanoBackend)
    :ok
  end

  defp example(name, options \\ []) do
    {module, architecture, defaults} = Map.fetch!(@models, name)
    :rand.seed(:exsss, System.unique_integer())
    spec = Models.spec({module, architecture, options ++ defaults})
    model = Bumblebee.build_model(spec)
    inputs = Models.inputs(spec, model, 7, if(architecture == @causal, do: :left, else: :right))
    parameters = Models.parameters(model, inputs)
    parameters = parameters |> tied(spec) |> Nx.backend_copy(VulkanoBackend)
    %{spec: spec, model: model, inputs: inputs, parameters: parameters}
  end

  # Models whose output is the embedding.
  defp tied(parameters, spec) do
    if Map.get(spec, :tie_word_embeddings, spec.__struct__ == Text.Gemma) and spec.architecture == @causal,
      do: put_in(parameters.data["language_modeling_head.output"], parameters.data["embedder.token_embedding"]),
      else: parameters
  end

  ## What a model is in files: names and tensors of transformers

  # {layer, parameter, name in transformers, name in GGUF, values as transformers has them}
  defp tensors(name, parameters, tied?) do
    for {layer, other, gguf} <- Names.layers(name),
        not (tied? and gguf == "output"),
        {parameter, value} <- Enum.sort(parameters.data[layer] || %{}) do
      ending = if parameter in ["bias", "beta"], do: ".bias", else: ".weight"
      dense? = parameter == "kernel" and not (layer =~ "embedding" or layer == "language_modeling_head.output")
      {layer, parameter, other <> ending, gguf && gguf <> ending, if(dense?, do: Nx.transpose(value), else: value)}
    end
  end

  # The model with the values that quantised ones stand for: what a file of them has to give.
  defp rounded(example, quantised) do
    data =
      Enum.reduce(quantised, example.parameters.data, fn {layer, q}, data ->
        values = Quantized.dequantize(q)
        dense? = not (layer =~ "embedding" or layer == "language_modeling_head.output")
        put_in(data[layer]["kernel"], if(dense?, do: Nx.transpose(values), else: values))
      end)

    %{example | parameters: tied(%{example.parameters | data: data}, example.spec)}
  end

  defp answers(predict, parameters, inputs) do
    Models.outputs(predict)
    |> Models.on_device([parameters, inputs])
    |> Map.take([:logits, :hidden_state])
    |> Models.leaves()
  end

  defp assert_same(loaded, example) do
    [got, want] =
      for {model, parameters} <- [{loaded.model, loaded.params}, {example.model, example.parameters}] do
        {_init, predict} = Axon.build(model, compiler: Nx.Vulkan)
        answers(predict, parameters, example.inputs)
      end

    assert Enum.map(got, &elem(&1, 0)) == Enum.map(want, &elem(&1, 0))
    assert want != []

    for {{path, got}, {_, want}} <- Enum.zip(got, want) do
      assert got.shape == want.shape
      largest = want |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()
      error = got |> Nx.subtract(want) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()
      assert largest > 0.1
      assert error <= @tolerance * largest, "#{path}: #{error / largest} of the largest"
    end
  end

  # Tokens of both, one after the other, by the packed model and by the other.
  defp assert_generates(loaded, example) do
    prompt = Generations.prompt(example)

    [got, want] =
      for {model, parameters} <- [{loaded.model, loaded.params}, {example.model, example.parameters}] do
        generate = Text.Generation.build_generate(model, example.spec, Generations.config())
        Models.on_device(generate, [parameters, prompt])
      end

    assert Nx.shape(got.token_ids) == {2, 8}
    {tokens, lengths} = {Nx.to_list(got.token_ids), Nx.to_list(got.length)}

    # The same, or others that are as likely, after which all may differ.
    if tokens != Nx.to_list(want.token_ids) do
      for {below, _} <- List.flatten(Generations.margins(example, prompt, tokens, lengths)),
          do: assert(below <= 4 * @tolerance)
    end
  end

  ## GGUF

  # Rows of queries and keys as convert_hf_to_gguf.py has them.
  defp permuted(values, heads) do
    {n, k} = values.shape
    values |> Nx.reshape({heads, 2, div(n, 2 * heads), k}) |> Nx.transpose(axes: [0, 2, 1, 3]) |> Nx.reshape({n, k})
  end

  # The rows of a quantised tensor back in their order, for the reference.
  defp in_order(%Quantized{shape: {n, _}} = q, heads) do
    blocks = q.tensors.blocks
    rows = Nx.iota({heads, 2, div(n, 2 * heads)}) |> Nx.transpose(axes: [0, 2, 1]) |> Nx.flatten()
    %{q | tensors: %{blocks: Nx.take(blocks, Nx.argsort(rows))}}
  end

  defp metadata(name, spec) do
    prefix = Atom.to_string(name)

    common = %{
      "context_length" => spec.max_positions,
      "embedding_length" => spec.hidden_size,
      "block_count" => spec.num_blocks,
      "feed_forward_length" => spec.intermediate_size,
      "attention.head_count" => spec.num_attention_heads
    }

    own =
      case name do
        :bert ->
          %{"attention.layer_norm_epsilon" => spec.layer_norm_epsilon}

        _ ->
          %{
            "attention.head_count_kv" => spec.num_key_value_heads,
            "attention.layer_norm_rms_epsilon" => spec.layer_norm_epsilon,
            "rope.freq_base" => spec.rotary_embedding_base * 1.0
          }
      end

    own = if name in [:qwen3, :gemma, :gemma3], do: Map.put(own, "attention.key_length", 64), else: own
    own = if name == :gemma3, do: Map.put(own, "attention.sliding_window", 4), else: own

    Map.new(Map.merge(common, own), fn {key, value} -> {"#{prefix}.#{key}", value} end)
    |> Map.put("general.architecture", prefix)
    |> Map.put("tokenizer.ggml.eos_token_id", 2)
  end

  # Writes a model and gives it with the values of the file.
  defp gguf(path, name, example, format, more \\ %{}, more_tensors \\ []) do
    tied? = Map.get(example.spec, :tie_word_embeddings, name == :gemma)
    heads = %{"attn_q" => example.spec.num_attention_heads, "attn_k" => Map.get(example.spec, :num_key_value_heads)}

    {tensors, quantised} =
      for {layer, parameter, _, gguf, values} <- tensors(name, example.parameters, tied?),
          gguf != nil,
          reduce: {[], %{}} do
        {tensors, quantised} ->
          permute? = name == :llama and gguf =~ ~r/attn_[qk]\./
          heads = permute? && heads[Regex.run(~r/attn_[qk]/, gguf) |> hd()]
          values = if permute?, do: permuted(values, heads), else: values

          # Norms and small embeddings stay f32, as llama.cpp has them.
          if parameter == "kernel" and not (gguf =~ ~r/position|types/) do
            q = Quantized.quantize(values, format)
            {[{gguf, q} | tensors], Map.put(quantised, layer, if(permute?, do: in_order(q, heads), else: q))}
          else
            shifted? = name in [:gemma, :gemma3] and gguf =~ "norm.weight"
            {[{gguf, if(shifted?, do: Nx.add(values, 1), else: values)} | tensors], quantised}
          end
      end

    :ok = GGUF.write(path, Map.merge(metadata(name, example.spec), more), more_tensors ++ Enum.reverse(tensors))
    {quantised, rounded(example, quantised)}
  end

  for {name, format} <- [llama: :q8_0, llama: :q4_0, llama: :q4_k, qwen3: :q4_k, gemma3: :q4_0] do
    test "GGUF: #{name} in #{format} answers and writes as the values of the file do", %{tmp_dir: folder} do
      {name, overrides} =
        unquote({name, if(name == :gemma3, do: [layer_types: [:sliding_attention, :full_attention]], else: [])})

      path = Path.join(folder, "model.gguf")
      example = example(name)
      {quantised, example} = gguf(path, name, example, unquote(format))
      {:ok, loaded} = Pretrained.load_model(path, backend: VulkanoBackend, spec_overrides: overrides)
      assert_spec(loaded.spec, example.spec)

      kernels = PackedLayers.kernels(loaded.model, loaded.params)
      assert Enum.sort(Map.keys(kernels)) == packed(quantised, example.spec)

      for {layer, q} <- quantised, do: assert(bits(kernels[layer]) == bits(q), layer)

      assert_same(loaded, example)
      assert_generates(loaded, example)
    end
  end

  test "GGUF: gemma, whose activation is another one here", %{tmp_dir: folder} do
    path = Path.join(folder, "model.gguf")
    {_, example} = gguf(path, :gemma, example(:gemma), :q4_0)
    {:ok, loaded} = Pretrained.load_model(path, spec_overrides: [activation: :gelu], backend: VulkanoBackend)
    assert_spec(loaded.spec, example.spec)
    assert_same(loaded, example)
  end

  test "GGUF: bert, with biases and norms, and a pooler that it lacks", %{tmp_dir: folder} do
    path = Path.join(folder, "model.gguf")
    {quantised, example} = gguf(path, :bert, example(:bert), :q4_k)
    {:ok, loaded} = Pretrained.load_model(path, backend: VulkanoBackend)
    assert_spec(loaded.spec, example.spec)
    assert Enum.sort(Map.keys(PackedLayers.kernels(loaded.model, loaded.params))) == Enum.sort(Map.keys(quantised))
    assert_same(loaded, example)
  end

  test "GGUF: an output that is the embedding, and rotations of Llama 3", %{tmp_dir: folder} do
    path = Path.join(folder, "model.gguf")

    strategy = %{
      type: :llama3,
      factor: 32.0,
      low_frequency_factor: 1.0,
      high_frequency_factor: 4.0,
      original_max_positions: 8192
    }

    example =
      example(:llama,
        tie_word_embeddings: true,
        rotary_embedding_base: 500_000,
        rotary_embedding_scaling_strategy: strategy
      )

    # As convert_hf_to_gguf.py computes them.
    factors =
      for i <- 0..31 do
        length = 2 * :math.pi() * 500_000 ** (2 * i / 64)
        smooth = (8192 / length - 1) / 3

        cond do
          length < 2048 -> 1.0
          length > 8192 -> 32.0
          true -> 1 / ((1 - smooth) / 32 + smooth)
        end
      end

    assert Enum.any?(factors, &(&1 not in [1.0, 32.0]))
    stretch = &[{"rope_freqs.weight", Nx.tensor(&1, type: :f32)}]
    {_, rounded} = gguf(path, :llama, example, :q8_0, %{}, stretch.(factors))
    {:ok, loaded} = Pretrained.load_model(path, backend: VulkanoBackend)
    assert loaded.spec.rotary_embedding_scaling_strategy == strategy
    assert loaded.spec.tie_word_embeddings
    assert_same(loaded, rounded)

    # One tensor on the device for both layers.
    kernels = PackedLayers.kernels(loaded.model, loaded.params)
    assert kernels["embedder.token_embedding"].tensors == kernels["language_modeling_head.output"].tensors

    gguf(path, :llama, example, :q8_0, %{}, stretch.(Enum.reverse(factors)))
    assert {:error, %Error{kind: :unsupported} = error} = Pretrained.load_model(path)
    assert error.message =~ "the factors of rope_freqs.weight, which are not those of Llama 3"
    assert {:ok, _} = Pretrained.load_model(path, spec_overrides: [rotary_embedding_scaling_strategy: strategy])

    gguf(path, :llama, example, :q8_0, %{"llama.rope.scaling.type" => "yarn"})
    assert {:error, %Error{kind: :unsupported, message: message}} = Pretrained.load_model(path)
    assert message =~ "the type \"yarn\""

    linear = %{"llama.rope.scaling.type" => "linear", "llama.rope.scaling.factor" => 4.0}

    stretched = example(:llama, rotary_embedding_scaling_strategy: %{type: :linear, factor: 4.0})
    {_, rounded} = gguf(path, :llama, stretched, :q8_0, linear)
    {:ok, loaded} = Pretrained.load_model(path, backend: VulkanoBackend)
    assert_same(loaded, rounded)
  end

  # Bumblebee depends on it, these tests do not: `elixir -pa` has it on the path, mix takes it from there.
  @tokenizers Module.concat(["Tokenizers", "Tokenizer"])

  test "GGUF: the tokenizer of the file, by the package tokenizers", %{tmp_dir: folder} do
    path = Path.join(folder, "model.gguf")

    metadata = %{
      "general.architecture" => "llama",
      "tokenizer.ggml.model" => "gpt2",
      "tokenizer.ggml.pre" => "llama-bpe",
      "tokenizer.ggml.tokens" => ~w(a b c Ġ ab abc <|begin|> <|end|>),
      "tokenizer.ggml.merges" => ["a b", "ab c"],
      "tokenizer.ggml.token_type" => [1, 1, 1, 1, 1, 1, 3, 3],
      "tokenizer.ggml.bos_token_id" => 6,
      "tokenizer.ggml.eos_token_id" => 7
    }

    :ok = GGUF.write(path, metadata, [])

    if Code.ensure_loaded?(@tokenizers) do
      {:ok, tokenizer} = Pretrained.load_tokenizer(path)
      inputs = Bumblebee.apply_tokenizer(tokenizer, ["abc ab<|end|>", "c"])
      assert Nx.to_list(inputs["input_ids"]) == [[6, 5, 3, 4, 7], [6, 2, 7, 7, 7]]
      assert Nx.to_list(inputs["attention_mask"]) == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
      assert tokenizer.__struct__.decode(tokenizer, [6, 5, 3, 4, 7]) == "abc ab"
      assert {:error, %Error{kind: :io}} = Pretrained.load_tokenizer(path <> "s")
    else
      message = ~r/expected Tokenizers.Tokenizer to be there: add bumblebee to the dependencies/
      assert_raise ArgumentError, message, fn -> Pretrained.load_tokenizer(path) end
    end
  end

  test "GGUF: what can't be loaded", %{tmp_dir: folder} do
    path = Path.join(folder, "model.gguf")

    tensors =
      for name <- ~w(token_embd blk.0.attn_q blk.0.attn_k), do: {name <> ".weight", Nx.iota({256, 256}, type: :f32)}

    write = &GGUF.write(path, &1, tensors)
    example = example(:llama)

    for {metadata, kind, message} <- [
          {%{"general.architecture" => "mamba"}, :unsupported,
           "the architecture mamba is none of bert, gemma, gemma3, llama, qwen3"},
          {%{}, :bad_file, "general.architecture: expected a text, got: nil"},
          {%{"general.architecture" => "llama"}, :bad_file, "llama.context_length: expected a number, got none"},
          {Map.put(metadata(:llama, example.spec), "llama.block_count", "two"), :bad_file,
           "llama.block_count: expected a number, got: \"two\""},
          {Map.put(metadata(:llama, example.spec), "llama.block_count", 2 ** 60), :bad_file,
           "llama.block_count: expected less than the 3 tensors"},
          {Map.put(metadata(:llama, example.spec), "llama.attention.head_count", 0), :bad_file,
           "llama.attention.head_count: expected a positive integer, got: 0"},
          {Map.put(metadata(:llama, example.spec), "llama.expert_count", 8), :unsupported,
           "models of experts can't be loaded"}
        ] do
      :ok = write.(metadata)
      assert {:error, %Error{kind: ^kind} = error} = Pretrained.load_model(path)
      assert error.message =~ message
      assert error.details.path == path
      assert_raise Error, fn -> Pretrained.load_model!(path) end
    end

    # Heads that do not divide the rows of queries.
    gguf(path, :llama, example, :q8_0, %{"llama.attention.head_count" => 3})
    assert {:error, %Error{kind: :bad_file} = error} = Pretrained.load_model(path)
    assert error.message =~ "shape of blk.0.attn_q.weight: expected rows of 3 heads of 85, an even number, got: 256"
    assert {:error, %Error{kind: :io}} = Pretrained.load_model(Path.join(folder, "none.gguf"))
    # A format that can't be read is told by the tensor's name.
    gguf(path, :llama, example, :q8_0)
    bytes = File.read!(path)
    [{at, length}] = Regex.run(~r/token_embd\.weight/, bytes, return: :index)
    <<before::binary-size(at + length + 4 + 16), 8::little-32, rest::binary>> = bytes
    File.write!(path, <<before::binary, 99::little-32, rest::binary>>)
    assert {:error, %Error{kind: :unsupported} = error} = Pretrained.load_model(path)
    assert error.message =~ "token_embd.weight in #{path} has the type 99"
  end

  test "GGUF: tensors that are not what the metadata says", %{tmp_dir: folder} do
    path = Path.join(folder, "model.gguf")
    example = example(:llama)
    gguf(path, :llama, example, :q8_0)
    file = GGUF.open!(path)
    tensors = Map.new(file.tensors, &{&1.name, GGUF.tensor!(file, &1.name)})

    load = fn tensors, metadata ->
      :ok = GGUF.write(path, Map.merge(metadata(:llama, example.spec), metadata), tensors)
      Pretrained.load_model(path)
    end

    narrow = Quantized.quantize(Nx.iota({128, 256}, type: :f32), :q8_0)
    factors = &Map.put(tensors, "rope_freqs.weight", &1)

    for {tensors, metadata, message} <- [
          {%{tensors | "blk.1.ffn_up.weight" => narrow}, %{},
           "shape of blk.1.ffn_up.weight: expected {256, 256} from the metadata, got: {128, 256}"},
          {%{tensors | "blk.1.attn_q.weight" => narrow}, %{},
           "shape of blk.1.attn_q.weight: expected {256, 256} from the metadata, got: {128, 256}"},
          {%{tensors | "output.weight" => narrow}, %{},
           "shape of output.weight: expected {61, 256} from the metadata, got: {128, 256}"},
          {%{tensors | "blk.1.ffn_up.weight" => Nx.broadcast(1.0, {256})}, %{},
           "shape of blk.1.ffn_up.weight: expected {256, 256} from the metadata, got: {256}"},
          {%{tensors | "token_embd.weight" => Nx.tensor(1.0)}, %{}, "shape of token_embd.weight: expected one axis"},
          {Map.delete(tensors, "blk.1.ffn_norm.weight"), %{}, "blk.1.ffn_norm.weight: there is no such tensor"},
          {Map.delete(tensors, "output_norm.weight"), %{}, "output_norm.weight: there is no such tensor"},
          # No parameters of this size begin at random.
          {tensors, %{"llama.feed_forward_length" => 2 ** 40}, "from the metadata, got: {256, 256}"},
          {tensors, %{"llama.rope.freq_base" => 0.0}, "llama.rope.freq_base: expected a positive number, got: 0.0"},
          {tensors, %{"llama.rope.scaling.type" => "linear", "llama.rope.scaling.factor" => 0.0},
           "llama.rope.scaling.factor: expected a positive number, got: 0.0"},
          {factors.(Nx.broadcast(2.0, {32})), %{"llama.rope.scaling.original_context_length" => 0},
           "llama.rope.scaling.original_context_length: expected a positive number, got: 0"},
          {factors.(Nx.broadcast(0.0, {32})), %{}, "rope_freqs.weight: expected positive floats"},
          {factors.(Nx.broadcast(Nx.tensor(:nan), {32})), %{}, "rope_freqs.weight: expected positive floats"},
          {factors.(Quantized.quantize(Nx.broadcast(1.0, {32}), :q8_0)), %{},
           "rope_freqs.weight: expected positive floats"}
        ] do
      assert {:error, %Error{kind: :bad_file} = error} = load.(tensors, metadata)
      assert error.message =~ message
      assert error.details.path == path
    end

    assert {:ok, _} = load.(tensors, %{"llama.rope.dimension_count" => 64})
    assert {:error, %Error{kind: :unsupported} = error} = load.(tensors, %{"llama.rope.dimension_count" => 32})
    assert error.message =~ "rotations of 32 of the 64 numbers of a head"

    # What is read for the configuration: an answer, too, and not raised.
    load.(factors.(Nx.broadcast(2.0, {32})), %{})
    bytes = File.read!(path)
    [{at, length}] = Regex.run(~r/rope_freqs\.weight/, bytes, return: :index)
    <<before::binary-size(at + length + 4 + 8), 0::little-32, rest::binary>> = bytes
    File.write!(path, <<before::binary, 99::little-32, rest::binary>>)
    assert {:error, %Error{kind: :unsupported} = error} = Pretrained.load_model(path)
    assert error.message =~ "rope_freqs.weight in #{path} has the type 99"
  end

  defp bits(q), do: Nx.backend_copy(q, Nx.BinaryBackend)

  defp packed(quantised, spec) do
    more = if Map.get(spec, :tie_word_embeddings, false), do: ["language_modeling_head.output"], else: []
    Enum.sort(Map.keys(quantised) ++ more)
  end

  # What the file says of the model; others have no meaning for it.
  defp assert_spec(spec, want) do
    assert spec.__struct__ == want.__struct__

    for key <-
          ~w(architecture vocab_size max_positions hidden_size num_blocks num_attention_heads num_key_value_heads
             intermediate_size activation attention_head_size attention_window_size layer_types
             attention_scale_base max_token_types rotary_embedding_base rotary_embedding_base_local)a,
        is_map_key(want, key),
        Map.get(want, key) != nil do
      assert {key, Map.get(spec, key)} == {key, Map.get(want, key)} or Map.get(spec, key) == 1.0 * Map.get(want, key)
    end

    assert_in_delta spec.layer_norm_epsilon, want.layer_norm_epsilon, 1.0e-7 * want.layer_norm_epsilon
  end

  ## Safetensors

  defp config(:llama, spec, quantization) do
    Map.merge(
      %{
        "architectures" => ["LlamaForCausalLM"],
        "model_type" => "llama",
        "vocab_size" => spec.vocab_size,
        "max_position_embeddings" => spec.max_positions,
        "hidden_size" => spec.hidden_size,
        "num_hidden_layers" => spec.num_blocks,
        "num_attention_heads" => spec.num_attention_heads,
        "num_key_value_heads" => spec.num_key_value_heads,
        "intermediate_size" => spec.intermediate_size,
        "hidden_act" => "silu",
        "rms_norm_eps" => spec.layer_norm_epsilon,
        "rope_theta" => spec.rotary_embedding_base,
        "tie_word_embeddings" => spec.tie_word_embeddings
      },
      quantization
    )
  end

  # Writes a model in two files and gives the values that these have.
  defp safetensors(folder, example, quantize, quantization) do
    {tensors, quantised} =
      for {layer, parameter, name, _, values} <- tensors(:llama, example.parameters, false), reduce: {[], %{}} do
        {tensors, quantised} ->
          case parameter == "kernel" && quantize.(layer, values) do
            %Quantized{} = q -> {[{name, q} | tensors], Map.put(quantised, layer, q)}
            _ -> {[{name, values} | tensors], quantised}
          end
      end

    File.write!(Path.join(folder, "config.json"), JSON.encode!(config(:llama, example.spec, quantization)))
    parts = tensors |> Enum.split(div(length(tensors), 2)) |> Tuple.to_list()

    map =
      for {tensors, n} <- Enum.with_index(parts, 1), reduce: %{} do
        map ->
          path = Path.join(folder, "model-0000#{n}-of-00002.safetensors")
          :ok = Safetensors.write(path, tensors)
          names = for %{name: name} <- Safetensors.open!(path, quantization: false).tensors, do: name
          Map.merge(map, Map.new(names, &{&1, Path.basename(path)}))
      end

    File.write!(Path.join(folder, "model.safetensors.index.json"), JSON.encode!(%{"weight_map" => map}))
    {quantised, rounded(example, quantised)}
  end

  @mlx %{"quantization" => %{"bits" => 4, "group_size" => 64}}

  test "MLX of 4 bits answers and writes as its values do", %{tmp_dir: folder} do
    quantize = fn _layer, values -> Quantized.quantize(values, {:affine, 4, 64}, scale_type: :bf16) end
    {quantised, example} = safetensors(folder, example(:llama), quantize, @mlx)
    {:ok, loaded} = Pretrained.load_model(folder, backend: VulkanoBackend)
    assert_spec(loaded.spec, example.spec)
    kernels = PackedLayers.kernels(loaded.model, loaded.params)
    assert Enum.sort(Map.keys(kernels)) == Enum.sort(Map.keys(quantised))
    for {layer, q} <- quantised, do: assert(bits(kernels[layer]) == bits(q))
    assert_same(loaded, example)
    assert_generates(loaded, example)

    # The parameters are what the files have, and a printed state is one.
    bytes = loaded.params.data |> Models.leaves() |> Enum.sum_by(fn {_, tensor} -> Nx.byte_size(tensor) end)
    assert bytes == Enum.sum_by(Safetensors.open!(folder, quantization: false).tensors, & &1.bytes)
    assert inspect(loaded.params) =~ "Parameters: "
  end

  test "adapters of a model of 4 bits learn, and the model stays as it is in its file (QLoRA)", %{tmp_dir: folder} do
    quantize = fn _layer, values -> Quantized.quantize(values, {:affine, 4, 64}) end
    {_, example} = safetensors(folder, example(:llama), quantize, @mlx)
    {:ok, loaded} = Pretrained.load_model(folder, backend: VulkanoBackend)
    before = Nx.backend_copy(loaded.params.data, Nx.BinaryBackend)

    # Texts whose next token is the one before it, once more.
    batches =
      for _ <- 1..4 do
        ids = Nx.tensor(for(_ <- 1..4, do: List.duplicate(:rand.uniform(61) - 1, 6)), type: :s64)
        {%{"input_ids" => ids}, Nx.flatten(ids)}
      end

    loss = fn wanted, logits ->
      Axon.Losses.categorical_cross_entropy(wanted, logits, from_logits: true, sparse: true, reduction: :mean)
    end

    adapted =
      loaded.model
      |> Axon.nx(&Nx.reshape(&1.logits, {:auto, 61}))
      |> Lora.adapt(4, layers: &(&1 =~ ~r/query|value|ffn.output/))

    {init, _} = Axon.build(adapted, compiler: Nx.Vulkan)
    state = init.(elem(hd(batches), 0), loaded.params)
    assert map_size(Axon.ModelState.trainable_parameters(state)) == 12

    of = fn state ->
      {_init, predict} = Axon.build(adapted, compiler: Nx.Vulkan)
      Enum.sum_by(batches, fn {inputs, wanted} -> wanted |> loss.(predict.(state, inputs)) |> Nx.to_number() end)
    end

    trained =
      adapted
      |> Axon.Loop.trainer(loss, Polaris.Optimizers.adam(learning_rate: 0.01), log: 0)
      |> Axon.Loop.run(batches, state, epochs: 8, compiler: Nx.Vulkan)

    assert of.(trained) < 0.5 * of.(state)
    for {name, tensors} <- before, do: assert(bits(trained.data[name]) == tensors, name)

    assert_same(
      %{loaded | params: %{loaded.params | data: Map.drop(trained.data, Map.keys(Lora.adapters(trained)))}},
      example
    )
  end

  test "in bf16 a packed model is as near as Bumblebee's own", %{tmp_dir: folder} do
    quantize = fn _layer, values -> Quantized.quantize(values, {:affine, 4, 64}) end
    {_, example} = safetensors(folder, example(:llama), quantize, @mlx)
    {:ok, loaded} = Pretrained.load_model(folder, type: :bf16, backend: VulkanoBackend)
    {_init, predict} = Axon.build(loaded.model, compiler: Nx.Vulkan)
    {_init, reference} = Axon.build(example.model)
    outputs = &Map.take(Models.outputs(&1).(&2, &3), [:logits])
    got = Models.on_device(&outputs.(predict, &1, &2), [loaded.params, example.inputs])
    want = Models.on_device(&outputs.(reference, &1, &2), [example.parameters, example.inputs])
    Models.assert_close(got, want, :bf16)
  end

  test "floats of 8 bits with blocks, beside layers that are not quantised", %{tmp_dir: folder} do
    quantize = fn layer, values ->
      if layer =~ "blocks", do: Quantized.quantize(values, {:f8_e4m3fn, :block}), else: nil
    end

    quantization = %{"quantization_config" => %{"quant_method" => "fp8", "weight_block_size" => [128, 128]}}
    {quantised, example} = safetensors(folder, example(:llama), quantize, quantization)
    {:ok, loaded} = Pretrained.load_model(folder, backend: VulkanoBackend)
    assert Enum.sort(Map.keys(PackedLayers.kernels(loaded.model, loaded.params))) == Enum.sort(Map.keys(quantised))
    assert_same(loaded, example)
  end

  test "GPTQ with reordered columns", %{tmp_dir: folder} do
    example = example(:llama)

    # Random integers in place of weights: {name in transformers, its tensors, the quantised tensor}.
    layers =
      for {layer, "kernel", name, _, %{shape: {n, k}}} <- tensors(:llama, example.parameters, false),
          layer =~ "blocks" do
        words = fn shape ->
          (4 * Tuple.product(shape))
          |> :rand.bytes()
          |> Nx.from_binary(:s32, backend: Nx.BinaryBackend)
          |> Nx.reshape(shape)
        end

        g_idx =
          0..(k - 1) |> Enum.map(&div(&1, 64)) |> Enum.shuffle() |> Nx.tensor(type: :s32, backend: Nx.BinaryBackend)

        scales = Nx.broadcast(Nx.tensor(2.0 ** -7, type: :f16, backend: Nx.BinaryBackend), {div(k, 64), n})

        parts = %{
          qweight: words.({div(k, 8), n}),
          qzeros: words.({div(k, 64), div(n, 8)}),
          scales: scales,
          g_idx: g_idx
        }

        # Zero points of 8, less one.
        parts = %{
          parts
          | qzeros: Nx.broadcast(Nx.tensor(0x77777777, type: :s32, backend: Nx.BinaryBackend), parts.qzeros)
        }

        q =
          Quantized.from_gptq(parts.qweight, parts.qzeros, scales, bits: 4, group: 64, g_idx: g_idx)

        {layer, String.replace_suffix(name, ".weight", ""), parts, q}
      end

    rest =
      for {layer, parameter, name, _, values} <- tensors(:llama, example.parameters, false),
          parameter != "kernel" or not (layer =~ "blocks"),
          do: {name, values}

    parts = for {_, name, parts, _} <- layers, {part, tensor} <- parts, do: {"#{name}.#{part}", tensor}
    :ok = Safetensors.write(Path.join(folder, "model.safetensors"), rest ++ parts)

    quantization = %{
      "quantization_config" => %{"quant_method" => "gptq", "bits" => 4, "group_size" => 64, "desc_act" => true}
    }

    File.write!(Path.join(folder, "config.json"), JSON.encode!(config(:llama, example.spec, quantization)))
    {:ok, loaded} = Pretrained.load_model(folder, backend: VulkanoBackend)
    assert map_size(PackedLayers.kernels(loaded.model, loaded.params)) == 14
    example = rounded(example, Map.new(layers, fn {layer, _, _, q} -> {layer, q} end))
    assert_same(loaded, example)
  end

  test "Bumblebee's own loading, by our reader", %{tmp_dir: folder} do
    quantize = fn _layer, values -> Quantized.quantize(values, {:affine, 4, 64}) end
    {_, example} = safetensors(folder, example(:llama), quantize, @mlx)

    {:ok, loaded} =
      Bumblebee.load_model({:local, folder}, safetensors_reader: &Safetensors.read!/1, backend: VulkanoBackend)

    for {path, want} <- Models.leaves(example.parameters.data) do
      got = loaded.params.data |> Models.leaves() |> Map.new() |> Map.fetch!(path)
      assert Nx.to_binary(got) == Nx.to_binary(want), path
    end
  end

  # Bumblebee's default reader, of a checkout beside it.
  @package Path.wildcard(Path.join(Path.dirname(Bumblebee.folder() || ""), "safetensors/lib/**/*.ex"))

  if @package != [] do
    test "the package safetensors reads what is written, and writes what is read", %{tmp_dir: folder} do
      # It is told that protocols are consolidated.
      ExUnit.CaptureIO.capture_io(:stderr, fn ->
        {:ok, _, _} = Kernel.ParallelCompiler.compile(@package, return_diagnostics: true)
      end)

      package = Module.concat(["Safetensors"])
      Nx.default_backend(Nx.BinaryBackend)

      tensors =
        for type <- [:u8, :s8, :f8, :f8_e4m3fn, :u16, :s16, :f16, :bf16, :u32, :s32, :f32, :u64, :s64, :f64],
            into: %{"one" => Nx.tensor(7.5)},
            do: {"of \"#{type}\"", Nx.iota({2, 3, 5}, type: type)}

      path = Path.join(folder, "package.safetensors")
      :ok = Safetensors.write(path, tensors, metadata: %{"format" => "pt"})
      assert package.read!(path) == tensors
      :ok = package.write!(path, tensors)
      file = Safetensors.open!(path)
      for {name, tensor} <- tensors, do: assert(Safetensors.tensor!(file, name) == tensor)
    end
  end

  test "quantised weights that can't be read or do not fit are told, and do not begin at random", %{tmp_dir: folder} do
    quantize = fn _layer, values -> Quantized.quantize(values, {:affine, 4, 64}) end
    example = example(:llama)
    safetensors(folder, example, quantize, @mlx)

    for {quantization, kind, message} <- [
          {%{}, :unsupported, ~r/has the format affine of unknown bits and group: say them in :quantization/},
          {%{"quantization" => %{"bits" => 4, "group_size" => 16}}, :unsupported, ~r/4 bits in groups of 16/},
          {%{"quantization" => %{"bits" => 3, "group_size" => 64}}, :unsupported, ~r/3 bits in groups of 64/},
          # As many words for each scale.
          {%{"quantization" => %{"bits" => 8, "group_size" => 32}}, :bad_file,
           ~r/shape of .*\.weight: \{\d+, 128\} of \{:affine, 8, 32\} is not that of the model's layer/}
        ] do
      File.write!(Path.join(folder, "config.json"), JSON.encode!(config(:llama, example.spec, quantization)))
      assert {:error, %Error{kind: ^kind} = error} = Pretrained.load_model(folder)
      assert error.message =~ message
      assert error.message =~ folder
    end

    assert {:ok, _} = Pretrained.load_model(folder, quantization: @mlx["quantization"])
    assert {:error, %Error{kind: :unsupported} = error} = Pretrained.load_model(folder, quantization: false)
    assert error.message =~ ~r/weight in #{folder}.* has integers, u32 of shape/

    # The layer's own shape, and packed in a way of others; `weight_scale` is what would be lost.
    {_, _, name, _, values} = :llama |> tensors(example.parameters, false) |> Enum.find(&(elem(&1, 0) =~ "query"))

    for {part, tensor, message} <- [
          {name, Nx.as_type(values, :s8), "#{name} in"},
          {name <> "_packed", Nx.as_type(values, :s32), "weight_packed of compressed-tensors, which can't be read"}
        ] do
      File.rm_rf!(folder)
      File.mkdir_p!(folder)

      plain =
        for {_, _, other, _, values} <- tensors(:llama, example.parameters, false), other != name, do: {other, values}

      scales = {name <> "_scale", Nx.broadcast(0.5, {elem(values.shape, 0), 1})}
      :ok = Safetensors.write(Path.join(folder, "model.safetensors"), [{part, tensor}, scales | plain])
      File.write!(Path.join(folder, "config.json"), JSON.encode!(config(:llama, example.spec, %{})))
      assert {:error, %Error{kind: :unsupported} = error} = Pretrained.load_model(folder)
      assert error.message =~ message
    end

    [path | _] = Path.wildcard(folder <> "/*.safetensors")
    assert_raise ArgumentError, ~r/or the folder of .* got a file of the latter/, fn -> Pretrained.load_model(path) end
    File.rm!(Path.join(folder, "config.json"))
    assert {:error, %Error{kind: :io} = error} = Pretrained.load_model(folder)
    assert error.message =~ Path.join(folder, "config.json")
  end

  test "sizes of config.json that the files have no room for are told before anything begins", %{tmp_dir: folder} do
    quantize = fn _layer, values -> Quantized.quantize(values, {:affine, 4, 64}) end
    example = example(:llama)
    safetensors(folder, example, quantize, @mlx)
    path = Path.join(folder, "config.json")
    {large, huge} = {10 ** 9, 10 ** 12}

    for {key, field} <- [
          {"hidden_size", "hidden_size"},
          {"intermediate_size", "intermediate_size"},
          {"vocab_size", "vocab_size"},
          {"head_dim", "attention_head_size"},
          {"max_position_embeddings", "max_positions"}
        ] do
      File.write!(path, JSON.encode!(Map.put(config(:llama, example.spec, @mlx), key, huge)))
      assert {:error, %Error{kind: :bad_file} = error} = Pretrained.load_model(folder)
      assert error.message =~ "#{path}: #{field}: expected 2147483647 at most, got: #{huge}"
    end

    for {key, field, message} <- [
          {"hidden_size", "hidden_size", "the model would have"},
          {"intermediate_size", "intermediate_size", "of shape {"},
          {"vocab_size", "vocab_size", "embedder.token_embedding.kernel of shape {#{large}, 256}"},
          {"head_dim", "sizes", "#{4 * large}"},
          {"num_hidden_layers", "num_hidden_layers", "expected 1024 at most of files of 21 tensors, got: #{large}"}
        ] do
      File.write!(path, JSON.encode!(Map.put(config(:llama, example.spec, @mlx), key, large)))
      assert {:error, %Error{kind: :bad_file} = error} = Pretrained.load_model(folder)
      assert error.message =~ "#{path}: #{field}: "
      assert error.message =~ message
      assert %{path: ^path, field: ^field} = error.details
    end

    # Lists and what is further in count, too, and a specification is held against the files as well.
    nested = %{"text_config" => %{"depths" => [2, -huge]}}
    File.write!(path, JSON.encode!(Map.merge(config(:llama, example.spec, @mlx), nested)))
    assert {:error, %Error{details: %{field: "depths"}}} = Pretrained.load_model(folder)
    File.write!(path, JSON.encode!(config(:llama, example.spec, @mlx)))

    for opts <- [[spec_overrides: [vocab_size: large]], [spec: %{example.spec | vocab_size: large}]] do
      assert {:error, %Error{details: %{field: "vocab_size"}}} = Pretrained.load_model(folder, opts)
    end

    assert {:ok, loaded} = Pretrained.load_model(folder, spec_overrides: [num_blocks: 1])
    assert loaded.spec.num_blocks == 1
  end

  test "no configuration takes more than the files have room for", %{tmp_dir: folder} do
    quantize = fn _layer, values -> Quantized.quantize(values, {:affine, 4, 64}) end
    example = example(:llama)
    safetensors(folder, example, quantize, @mlx)
    config = config(:llama, example.spec, @mlx)
    keys = config |> Map.keys() |> Enum.filter(&is_integer(config[&1]))
    values = [0, 1, 3, 7, 1000, 2 ** 31, 2 ** 63, 10 ** 24, -1, -(10 ** 12), 1.5, 1.0e300, nil, "256", [], %{}, true]

    answers =
      for _ <- 1..40 do
        damage = for key <- Enum.take_random(keys, Enum.random(1..2)), into: %{}, do: {key, Enum.random(values)}
        File.write!(Path.join(folder, "config.json"), JSON.encode!(Map.merge(config, damage)))

        # A process that would take a gigabyte is ended.
        task =
          Task.async(fn ->
            Process.flag(:max_heap_size, %{
              size: 2 ** 27,
              kill: true,
              error_logger: false,
              include_shared_binaries: true
            })

            try do
              elem(Pretrained.load_model(folder, backend: Nx.BinaryBackend), 0)
            rescue
              _ -> :raised
            end
          end)

        assert {:ok, answer} = Task.yield(task, 60_000) || Task.shutdown(task, :brutal_kill), inspect(damage)
        answer
      end

    assert :error in answers
  end

  test "a damaged file is told, and nothing is left behind", %{tmp_dir: folder} do
    quantize = fn _layer, values -> Quantized.quantize(values, {:affine, 4, 64}) end
    safetensors(folder, example(:llama), quantize, @mlx)
    [path | _] = Path.wildcard(folder <> "/*.safetensors")
    bytes = File.read!(path)
    File.write!(path, binary_part(bytes, 0, byte_size(bytes) - 1))
    assert {:error, %Error{kind: :bad_file, details: %{field: "data_offsets of " <> _}}} = Pretrained.load_model(folder)
    assert {:error, %Error{kind: :io}} = Pretrained.load_model(Path.join(folder, "none"))
  end

  test "any model is packed, beside what it was", %{tmp_dir: _folder} do
    example = example(:bert)
    names = &(&1 =~ "ffn" or &1 =~ "token_embedding")
    {model, params} = PackedLayers.quantize(example.model, example.parameters, :q8_0, layers: names)
    kernels = PackedLayers.kernels(model, params)

    assert Enum.sort(Map.keys(kernels)) ==
             Enum.sort(for {layer, %{"kernel" => _}} <- example.parameters.data, names.(layer), do: layer)

    assert_same(%{model: model, params: params}, rounded(example, kernels))

    assert_raise ArgumentError, ~r/there is no layer "x", only/, fn ->
      PackedLayers.pack(model, params, %{"x" => nil})
    end

    assert_raise ArgumentError, ~r/expected a layer that can be packed.*embedder.norm/, fn ->
      PackedLayers.pack(model, params, %{"embedder.norm" => kernels["embedder.token_embedding"]})
    end

    assert_raise ArgumentError,
                 ~r/expected a kernel of shape \{256, 256\} for pooler.output, got the values \{61, 256\}/,
                 fn ->
                   PackedLayers.pack(model, params, %{"pooler.output" => kernels["embedder.token_embedding"]})
                 end
  end
end
