# What files call the layers of models.
defmodule Nx.Vulkan.Models.Names do
  @moduledoc """
  Names of layers in Bumblebee, in transformers and in GGUF.
  """

  @inside [
    {"self_attention.query", "self_attn.q_proj", "attn_q"},
    {"self_attention.key", "self_attn.k_proj", "attn_k"},
    {"self_attention.value", "self_attn.v_proj", "attn_v"},
    {"self_attention.output", "self_attn.o_proj", "attn_output"},
    {"ffn.gate", "mlp.gate_proj", "ffn_gate"},
    {"ffn.intermediate", "mlp.up_proj", "ffn_up"},
    {"ffn.output", "mlp.down_proj", "ffn_down"},
    {"self_attention_norm", "input_layernorm", "attn_norm"},
    {"self_attention.query_norm", "self_attn.q_norm", "attn_q_norm"},
    {"self_attention.key_norm", "self_attn.k_norm", "attn_k_norm"}
  ]
  @plain [{"output_norm", "post_attention_layernorm", "ffn_norm"}]
  @norms_of_gemma3 [
    {"post_attention_norm", "post_attention_layernorm", "post_attention_norm"},
    {"pre_ffn_norm", "pre_feedforward_layernorm", "ffn_norm"},
    {"post_ffn_norm", "post_feedforward_layernorm", "post_ffw_norm"}
  ]
  @outside [
    {"embedder.token_embedding", "model.embed_tokens", "token_embd"},
    {"output_norm", "model.norm", "output_norm"},
    {"language_modeling_head.output", "lm_head", "output"}
  ]
  @bert [
    {"self_attention.query", "attention.self.query", "attn_q"},
    {"self_attention.key", "attention.self.key", "attn_k"},
    {"self_attention.value", "attention.self.value", "attn_v"},
    {"self_attention.output", "attention.output.dense", "attn_output"},
    {"self_attention_norm", "attention.output.LayerNorm", "attn_output_norm"},
    {"ffn.intermediate", "intermediate.dense", "ffn_up"},
    {"ffn.output", "output.dense", "ffn_down"},
    {"output_norm", "output.LayerNorm", "layer_output_norm"}
  ]
  @outside_bert [
    {"embedder.token_embedding", "bert.embeddings.word_embeddings", "token_embd"},
    {"embedder.position_embedding", "bert.embeddings.position_embeddings", "position_embd"},
    {"embedder.token_type_embedding", "bert.embeddings.token_type_embeddings", "token_types"},
    {"embedder.norm", "bert.embeddings.LayerNorm", "token_embd_norm"},
    {"pooler.output", "bert.pooler.dense", nil}
  ]

  @doc """
  `{layer, name in transformers, name in GGUF}` of a model of two blocks; the last is nil where GGUF has none.
  """
  def layers(:bert), do: @outside_bert ++ blocks(@bert, "encoder.blocks", "bert.encoder.layer")
  def layers(:gemma3), do: @outside ++ blocks(@inside ++ @norms_of_gemma3, "decoder.blocks", "model.layers")
  def layers(_name), do: @outside ++ blocks(@inside ++ @plain, "decoder.blocks", "model.layers")

  defp blocks(inside, of_model, of_transformers) do
    for n <- 0..1, {layer, name, gguf} <- inside do
      {"#{of_model}.#{n}.#{layer}", "#{of_transformers}.#{n}.#{name}", "blk.#{n}.#{gguf}"}
    end
  end
end
