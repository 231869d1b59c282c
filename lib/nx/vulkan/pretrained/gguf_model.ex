defmodule Nx.Vulkan.Pretrained.GGUFModel do
  @moduledoc false

  # What a GGUF file says of a model, in the words of Hugging Face: `config.json`, and tensors by the names and with the
  # values that transformers has. Names are those of gguf-py's constants.py and tensor_mapping.py, changes of values
  # those of convert_hf_to_gguf.py.

  alias Nx.Vulkan.{Error, GGUF, Quantized}

  # Which class of transformers an architecture is, and what is particular to it:
  #   names     - how layers are called
  #   permuted  - rows of queries and keys are in the order of another kind of rotation
  #   shifted   - 1 was added to the weights of norms
  @architectures %{
    "llama" => %{class: "LlamaForCausalLM", type: "llama", names: :llama, permuted: true, shifted: false},
    "qwen3" => %{class: "Qwen3ForCausalLM", type: "qwen3", names: :llama, permuted: false, shifted: false},
    "gemma" => %{class: "GemmaForCausalLM", type: "gemma", names: :llama, permuted: false, shifted: true},
    "gemma3" => %{class: "Gemma3ForCausalLM", type: "gemma3_text", names: :gemma3, permuted: false, shifted: true},
    "bert" => %{class: "BertModel", type: "bert", names: :bert, permuted: false, shifted: false}
  }

  @outside %{
    llama: %{"token_embd" => "model.embed_tokens", "output_norm" => "model.norm", "output" => "lm_head"},
    bert: %{
      "token_embd" => "bert.embeddings.word_embeddings",
      "position_embd" => "bert.embeddings.position_embeddings",
      "token_types" => "bert.embeddings.token_type_embeddings",
      "token_embd_norm" => "bert.embeddings.LayerNorm"
    }
  }

  @llama %{
    "attn_norm" => "input_layernorm",
    "attn_q" => "self_attn.q_proj",
    "attn_k" => "self_attn.k_proj",
    "attn_v" => "self_attn.v_proj",
    "attn_output" => "self_attn.o_proj",
    "attn_q_norm" => "self_attn.q_norm",
    "attn_k_norm" => "self_attn.k_norm",
    "ffn_norm" => "post_attention_layernorm",
    "ffn_gate" => "mlp.gate_proj",
    "ffn_up" => "mlp.up_proj",
    "ffn_down" => "mlp.down_proj"
  }

  @inside %{
    llama: @llama,
    gemma3:
      Map.merge(@llama, %{
        "post_attention_norm" => "post_attention_layernorm",
        "ffn_norm" => "pre_feedforward_layernorm",
        "post_ffw_norm" => "post_feedforward_layernorm"
      }),
    bert: %{
      "attn_q" => "attention.self.query",
      "attn_k" => "attention.self.key",
      "attn_v" => "attention.self.value",
      "attn_output" => "attention.output.dense",
      "attn_output_norm" => "attention.output.LayerNorm",
      "ffn_up" => "intermediate.dense",
      "ffn_down" => "output.dense",
      "layer_output_norm" => "output.LayerNorm"
    }
  }

  # Of Gemma 3: one block of six attends to all, and rotations of the others have this base, which files have under
  # the first of these keys or not at all. The largest model scales scores by another size.
  @full_every 6
  @local_base_keys ["rope.freq_base_swa", "rope.local.freq_base"]
  @local_base 10_000.0
  @blocks_of_27b 62

  # How Llama 3.1 and later stretch rotations; files have the factors alone.
  @low_factor 1.0
  @high_factor 4.0
  @original_positions 8192

  @doc """
  The configuration, a map as `config.json` has it. `scaled?` says that the caller knows how rotations are stretched.
  """
  def config(gguf, scaled?) do
    {:ok, config!(gguf, scaled?)}
  rescue
    # Factors of rotations that can't be read.
    error in Error -> {:error, error}
  catch
    {kind, message, details} ->
      details = Map.put(details, :path, gguf.path)
      {:error, Error.exception(kind: kind, op: :gguf, message: "#{gguf.path}: #{message}", details: details)}
  end

  defp config!(gguf, scaled?) do
    name = text!(gguf, "general.architecture")

    known =
      @architectures[name] ||
        throw(
          {:unsupported,
           "the architecture #{name} is none of #{@architectures |> Map.keys() |> Enum.sort() |> Enum.join(", ")}",
           %{architecture: name}}
        )

    if number(gguf, name, "expert_count", 0) > 0,
      do: throw({:unsupported, "models of experts can't be loaded", %{architecture: name}})

    tokens =
      for {key, id} <- [{"bos_token_id", "bos"}, {"eos_token_id", "eos"}, {"pad_token_id", "padding"}],
          value = gguf.metadata["tokenizer.ggml.#{id}_token_id"],
          is_integer(value),
          into: %{},
          do: {key, value}

    sizes = sizes(gguf, name)
    # Each block has tensors, so that no more are built than there are.
    if sizes["num_hidden_layers"] > length(gguf.tensors),
      do: missing("#{name}.block_count", "expected less than the #{length(gguf.tensors)} tensors")

    heads = sizes["num_attention_heads"]
    heads_fit!(gguf, "blk.0.attn_q.weight", heads, head_size(gguf, name))

    heads_fit!(
      gguf,
      "blk.0.attn_k.weight",
      natural!(gguf, name, "attention.head_count_kv", heads),
      head_size(gguf, name)
    )

    shapes_fit!(gguf, name, known.names, sizes)
    if known.permuted, do: rotates_all!(gguf, name)

    %{"architectures" => [known.class], "model_type" => known.type}
    |> Map.merge(tokens)
    |> Map.merge(sizes)
    |> Map.merge(particular(known.names, gguf, name, scaled?))
    |> Map.merge(if(name == "gemma3", do: gemma3(gguf, name), else: %{}))
    |> Map.reject(fn {_, value} -> is_nil(value) end)
  end

  defp sizes(gguf, name) do
    %{
      "vocab_size" => rows!(gguf, "token_embd.weight"),
      "max_position_embeddings" => natural!(gguf, name, "context_length"),
      "hidden_size" => natural!(gguf, name, "embedding_length"),
      "num_hidden_layers" => natural!(gguf, name, "block_count"),
      "num_attention_heads" => natural!(gguf, name, "attention.head_count"),
      "intermediate_size" => natural!(gguf, name, "feed_forward_length")
    }
  end

  defp particular(:bert, gguf, name, _scaled?) do
    %{
      "layer_norm_eps" => number!(gguf, name, "attention.layer_norm_epsilon"),
      "type_vocab_size" => rows!(gguf, "token_types.weight"),
      "max_position_embeddings" => rows!(gguf, "position_embd.weight"),
      "hidden_act" => "gelu"
    }
  end

  defp particular(_names, gguf, name, scaled?) do
    heads = natural!(gguf, name, "attention.head_count")
    activation = if name in ["gemma", "gemma3"], do: "gelu_pytorch_tanh", else: "silu"

    %{
      "num_key_value_heads" => natural!(gguf, name, "attention.head_count_kv", heads),
      "head_dim" => head_size(gguf, name),
      "rms_norm_eps" => number!(gguf, name, "attention.layer_norm_rms_epsilon"),
      "rope_theta" => positive!(gguf, name, "rope.freq_base", 10_000.0),
      "rope_scaling" => if(not scaled?, do: scaling(gguf, name)),
      "tie_word_embeddings" => info(gguf, "output.weight") == nil,
      "hidden_act" => activation,
      "hidden_activation" => activation
    }
  end

  defp gemma3(gguf, name) do
    blocks = natural!(gguf, name, "block_count")
    size = head_size(gguf, name)
    base = Enum.find_value(@local_base_keys, @local_base, &number(gguf, name, &1, nil))

    scale_base =
      if blocks == @blocks_of_27b,
        do: div(natural!(gguf, name, "embedding_length"), natural!(gguf, name, "attention.head_count")),
        else: size

    types =
      for block <- 1..blocks, do: if(rem(block, @full_every) == 0, do: "full_attention", else: "sliding_attention")

    %{
      "sliding_window" => natural!(gguf, name, "attention.sliding_window"),
      "query_pre_attn_scalar" => scale_base,
      "rope_local_base_freq" => base,
      "layer_types" => types
    }
  end

  # Axon would say less of it.
  defp heads_fit!(gguf, name, heads, size) do
    rows = rows!(gguf, name)

    if rows != heads * size or rem(size, 2) != 0,
      do: missing("shape of #{name}", "expected rows of #{heads} heads of #{size}, an even number, got: #{rows}")
  end

  # Other models of this architecture would rotate a part of each head.
  defp rotates_all!(gguf, name) do
    {size, rotated} = {head_size(gguf, name), number(gguf, name, "rope.dimension_count", nil)}

    if rotated not in [nil, size] do
      message = "rotations of #{rotated} of the #{size} numbers of a head can't be computed"
      throw({:unsupported, message, %{field: "#{name}.rope.dimension_count"}})
    end
  end

  # Bumblebee begins at random what is not there, and what has another shape.
  defp shapes_fit!(gguf, architecture, names, sizes) do
    {hidden, inner, heads} = {sizes["hidden_size"], sizes["intermediate_size"], sizes["num_attention_heads"]}
    size = head_size(gguf, architecture)
    kv = size * natural!(gguf, architecture, "attention.head_count_kv", heads)
    by_name = Map.new(gguf.tensors, &{&1.name, &1.shape})

    inside = %{
      "attn_q" => {heads * size, hidden},
      "attn_k" => {kv, hidden},
      "attn_v" => {kv, hidden},
      "attn_output" => {hidden, heads * size},
      "attn_q_norm" => {size},
      "attn_k_norm" => {size},
      "ffn_gate" => {inner, hidden},
      "ffn_up" => {inner, hidden},
      "ffn_down" => {hidden, inner}
    }

    for block <- 0..(sizes["num_hidden_layers"] - 1), layer <- Map.keys(@inside[names]) do
      name = "blk.#{block}.#{layer}"
      weight = Map.get(inside, layer, {hidden})
      # Queries and keys have norms in some architectures alone.
      optional? = layer in ["attn_q_norm", "attn_k_norm"] and architecture not in ["qwen3", "gemma3"]
      shape_fits!(by_name, name <> ".weight", weight, optional?)
      if names == :bert, do: shape_fits!(by_name, name <> ".bias", {elem(weight, 0)}, false)
    end

    vocabulary = {sizes["vocab_size"], hidden}

    outside =
      if names == :bert do
        rows = for name <- ["position_embd", "token_types"], do: {name, {rows!(gguf, name <> ".weight"), hidden}}
        [{"token_embd", vocabulary}, {"token_embd_norm", {hidden}} | rows]
      else
        [{"token_embd", vocabulary}, {"output_norm", {hidden}}]
      end

    for {name, shape} <- outside, do: shape_fits!(by_name, name <> ".weight", shape, false)
    shape_fits!(by_name, "output.weight", vocabulary, true)
    if names == :bert, do: shape_fits!(by_name, "token_embd_norm.bias", {hidden}, false)
  end

  defp shape_fits!(shapes, name, shape, optional?) do
    case shapes do
      %{^name => ^shape} ->
        :ok

      %{^name => other} ->
        missing("shape of #{name}", "expected #{inspect(shape)} from the metadata, got: #{inspect(other)}")

      %{} ->
        optional? || missing(name, "there is no such tensor")
    end
  end

  defp head_size(gguf, name) do
    default = div(natural!(gguf, name, "embedding_length"), natural!(gguf, name, "attention.head_count"))
    natural!(gguf, name, "attention.key_length", default)
  end

  ## Stretched rotations

  defp scaling(gguf, name) do
    case gguf.metadata["#{name}.rope.scaling.type"] do
      "linear" ->
        %{"type" => "linear", "factor" => positive!(gguf, name, "rope.scaling.factor", nil)}

      type when type in [nil, "none"] ->
        if info(gguf, "rope_freqs.weight"), do: llama3(gguf, name)

      type ->
        unknown_scaling("the type #{inspect(type)}")
    end
  end

  defp llama3(gguf, name) do
    factors = factors!(gguf)
    size = head_size(gguf, name)
    base = positive!(gguf, name, "rope.freq_base", 10_000.0)
    factor = Enum.max(factors)
    original = positive!(gguf, name, "rope.scaling.original_context_length", @original_positions)

    wanted =
      for i <- 0..(div(size, 2) - 1) do
        length = 2 * :math.pi() * base ** (2 * i / size)
        smooth = (original / length - @low_factor) / (@high_factor - @low_factor)

        cond do
          length < original / @high_factor -> 1.0
          length > original / @low_factor -> factor
          true -> 1 / ((1 - smooth) / factor + smooth)
        end
      end

    cond do
      Enum.all?(factors, &(&1 == 1.0)) ->
        nil

      length(factors) == length(wanted) and
          Enum.all?(Enum.zip(factors, wanted), fn {a, b} -> abs(a - b) < 1.0e-3 * b end) ->
        %{
          "rope_type" => "llama3",
          "factor" => factor,
          "low_freq_factor" => @low_factor,
          "high_freq_factor" => @high_factor,
          "original_max_position_embeddings" => original
        }

      true ->
        unknown_scaling("the factors of rope_freqs.weight, which are not those of Llama 3")
    end
  end

  defp factors!(gguf) do
    with %Nx.Tensor{type: {type, _}} = tensor when type in [:f, :bf] <-
           GGUF.tensor!(gguf, "rope_freqs.weight", backend: Nx.BinaryBackend),
         factors = Nx.to_flat_list(tensor),
         true <- Enum.all?(factors, &(is_number(&1) and &1 > 0)) do
      factors
    else
      _ -> missing("rope_freqs.weight", "expected positive floats, got others")
    end
  end

  defp unknown_scaling(what) do
    throw(
      {:unsupported,
       "rotations are stretched by #{what}: say how in spec_overrides: [rotary_embedding_scaling_strategy: ...]", %{}}
    )
  end

  ## Metadata

  defp number!(gguf, name, key),
    do: number(gguf, name, key, nil) || missing("#{name}.#{key}", "expected a number, got none")

  defp natural!(gguf, name, key, default \\ nil) do
    case number(gguf, name, key, default) || number!(gguf, name, key) do
      value when is_integer(value) and value > 0 -> value
      other -> missing("#{name}.#{key}", "expected a positive integer, got: #{other}")
    end
  end

  defp positive!(gguf, name, key, default) do
    case number(gguf, name, key, default) || number!(gguf, name, key) do
      value when value > 0 -> value
      other -> missing("#{name}.#{key}", "expected a positive number, got: #{other}")
    end
  end

  defp number(gguf, name, key, default) do
    case Map.get(gguf.metadata, "#{name}.#{key}", default) do
      value when is_number(value) and value >= 0 -> value
      nil -> nil
      other -> missing("#{name}.#{key}", "expected a number, got: #{inspect(other, limit: 8)}")
    end
  end

  defp text!(gguf, key) do
    case gguf.metadata[key] do
      text when is_binary(text) -> text
      other -> missing(key, "expected a text, got: #{inspect(other, limit: 8)}")
    end
  end

  defp info(gguf, name), do: Enum.find(gguf.tensors, &(&1.name == name))

  defp rows!(gguf, name) do
    case info!(gguf, name).shape do
      {} -> missing("shape of #{name}", "expected one axis or more, got: {}")
      shape -> elem(shape, 0)
    end
  end

  defp info!(gguf, name), do: info(gguf, name) || missing(name, "there is no such tensor")

  @spec missing(String.t(), String.t()) :: no_return
  defp missing(field, what), do: throw({:bad_file, "#{field}: #{what}", %{field: field, offset: nil}})

  ## Tensors

  @doc """
  The tensors, by their names in transformers: `{name, shape, read}` each.
  """
  def tensors(gguf) do
    name = gguf.metadata["general.architecture"]
    known = Map.fetch!(@architectures, name)
    heads = natural!(gguf, name, "attention.head_count")
    heads = %{"attn_q" => heads, "attn_k" => natural!(gguf, name, "attention.head_count_kv", heads)}

    for info <- gguf.tensors, {layer, other, end_of_name} <- [renamed(info.name, known.names)] do
      change =
        cond do
          known.permuted and is_map_key(heads, layer) -> &rows_in_order(&1, heads[layer], info.name)
          known.shifted and String.ends_with?(info.name, "norm.weight") -> &Nx.subtract(&1, 1)
          true -> & &1
        end

      {other <> end_of_name, info.shape, fn -> gguf |> GGUF.tensor!(info.name) |> change.() end}
    end
  end

  # The name of a layer within its block, that in transformers, and the end, or nil.
  defp renamed(name, names) do
    outside = Map.get(@outside, names, @outside.llama)

    case Regex.run(~r/^(?:blk\.(\d+)\.)?([a-z_]+)(\.weight|\.bias)$/, name) do
      [_, "", layer, ending] when is_map_key(outside, layer) ->
        {layer, outside[layer], ending}

      [_, block, layer, ending] ->
        with(inner when inner != nil <- @inside[names][layer], do: {layer, block(names, block, inner), ending})

      nil ->
        nil
    end
  end

  defp block(:bert, block, layer), do: "bert.encoder.layer.#{block}.#{layer}"
  defp block(_names, block, layer), do: "model.layers.#{block}.#{layer}"

  # Pairs of rows that rotate together are neighbours in the file, and half a head apart in transformers. Rows are
  # packed each by itself.
  defp rows_in_order(%Quantized{tensors: %{blocks: blocks}} = q, heads, name) do
    %{q | tensors: %{blocks: rows_in_order(blocks, heads, name)}}
  end

  defp rows_in_order(%Nx.Tensor{shape: shape} = tensor, heads, name) do
    [rows | rest] = Tuple.to_list(shape)

    if rem(rows, 2 * heads) != 0 do
      raise Error,
        kind: :bad_file,
        op: :gguf,
        message: "shape of #{name}: expected rows of #{heads} heads of even size, got: #{rows}",
        details: %{field: "shape of #{name}", offset: nil}
    end

    axes = Enum.to_list(3..(2 + length(rest))//1)

    tensor
    |> Nx.reshape(List.to_tuple([heads, div(rows, 2 * heads), 2 | rest]))
    |> Nx.transpose(axes: [0, 2, 1 | axes])
    |> Nx.reshape(shape)
  end
end
