defmodule Nx.Vulkan.Parity.TableTest do
  # Which tests cover what rlx's Vulkan backend has: ops by their names there, and its parity cases.
  use ExUnit.Case, async: true

  @ops %{
    "Input, Param, Constant, StopGradient" => [rlx: "elementwise_chain"],
    "Cast, Compare" => [rlx: "all_compare_ops"],
    "Reshape" => [rlx: "reshape_passthrough"],
    "Binary" => [rlx: "all_binary_ops", rlx: "binary_broadcasting"],
    "Activation" => [rlx: "all_activations", rlx: "elementwise_chain"],
    "Where" => [rlx: "where_compare"],
    "Fma" => [rlx: "fma_decomposed"],
    "Reduce" => [rlx: "all_reduce_ops", rlx: "reduce_sum_last_axis"],
    "Softmax" => [rlx: "softmax_last_axis", rlx: "softmax_ranks"],
    "LayerNorm" => [rlx: "layer_norm", rlx: "dit_packed_ada_layer_norm_backward"],
    "RmsNorm" => [rlx: "rms_norm"],
    "LayerNorm2d" => [rlx: "layer_norm_2d"],
    "GroupNorm" => [rlx: "group_norm_decomposed", layers: "instance norm"],
    "BatchNormInference" => [rlx: "batch_norm_inference_decomposed"],
    "Rope" => [rlx: "rope_default_style", rlx: "rope_styles_and_partial"],
    "Attention" => [rlx: "attention_causal_bshd", rlx: "attention_masks_and_layout"],
    "FusedAttentionBlock" => [rlx: "transformer_attention_block_parity"],
    "FusedTransformerLayer" => [layers: "a transformer's layer"],
    "FusedMatMulBiasAct" => [rlx: "fused_matmul_bias_act_parity"],
    "FusedResidualLN" => [layers: "a residual and its layer norm"],
    "FusedResidualRmsNorm" => [rlx: "fused_residual_rms_norm_parity"],
    "FusedSwiGLU" => [rlx: "fused_swiglu_ffn_parity"],
    "MatMul" => [rlx: "matmul_batched"],
    "DotGeneral" => [layers: "dot of several axes and batches"],
    "LoraMatMul" => [layers: "a product with low-rank weights beside it"],
    "Transpose" => [rlx: "transpose_2d"],
    "Narrow" => [rlx: "narrow_axis1"],
    "Concat" => [rlx: "concat_axis1"],
    "Expand" => [rlx: "expand_broadcast"],
    "Reverse" => [rlx: "reverse_axes"],
    "Gather" => [rlx: "gather_embedding"],
    "Cumsum" => [rlx: "cumsum_last_axis"],
    "ArgMax, ArgMin" => [rlx: "argmax_argmin"],
    "Conv" => [rlx: "conv2d_variants"],
    "ConvTranspose2d" => [rlx: "conv_transpose2d_host", layers: "transposed convolution of volumes"],
    "Pool" => [rlx: "pool2d_max_avg"],
    "Im2Col" => [rlx: "im2col_unfold"],
    "ResizeNearest2x" => [rlx: "resize_nearest_2x_decomposed", layers: "bilinear resize, larger and smaller"],
    "GroupedMatMul" => [rlx: "grouped_matmul_moe", experts: "any number of rows, and none"],
    "DequantMatMul" => [rlx: "dequant_matmul_host", quantized: "products are those of the values, in the type of x"],
    "DequantGroupedMatMul" => [experts: "packed weights"],
    "DequantMoEWeights" => [layers: "packed weights of experts that are taken by rows"],
    "SelectiveScan" => [rlx: "selective_scan_mamba", recurrences: "selective_scan, in two parts"],
    "Mamba2" => [rlx: "mamba2_host"],
    "GatedDeltaNet" => [layers: "GatedDeltaNet, with a state before and behind"],
    "Lstm" => [rlx: "lstm_host", layers: "Axon's LSTM, as a loop and spelled out"],
    "Gru" => [rlx: "gru_host", layers: "Axon's GRU, as a loop and spelled out"],
    "Rnn" => [rlx: "rnn_host"],
    "ScatterAdd" => [rlx: "scatter_add_axis0"],
    "TopK" => [rlx: "topk_indices"],
    "Fft" => [rlx: "fft_host"],
    "RngNormal, RngUniform, Sample" => [rlx: "rng_and_sample_host"],
    "If, While, Scan" => [layers: "if, while and scan"],
    "LogMel" => [layers: "log-mel"],
    "WelchPeaks" => [layers: "Welch"],
    "llada2.group_limited_gate" => [layers: "a gate that is limited to groups of experts"],
    "umap.knn" => [layers: "the graph of nearest neighbours"]
  }

  @cases ~w(elementwise_chain matmul_batched softmax_last_axis rms_norm reduce_sum_last_axis transpose_2d
             gather_embedding rope_default_style layer_norm dit_packed_ada_layer_norm_backward
             dit_packed_gated_residual_backward narrow_axis1 concat_axis1 expand_broadcast where_compare
             cumsum_last_axis attention_causal_bshd all_binary_ops all_activations all_compare_ops all_reduce_ops
             attention_masks_and_layout rope_styles_and_partial softmax_ranks binary_broadcasting reshape_passthrough
             fma_decomposed fused_matmul_bias_act_parity fused_residual_rms_norm_parity fused_swiglu_ffn_parity
             transformer_attention_block_parity reverse_axes argmax_argmin layer_norm_2d pool2d_max_avg
             group_norm_decomposed batch_norm_inference_decomposed resize_nearest_2x_decomposed grouped_matmul_moe
             conv2d_variants selective_scan_mamba im2col_unfold scatter_add_axis0 topk_indices rnn_host gru_host
             lstm_host mamba2_host conv_transpose2d_host fft_host dequant_matmul_host rng_and_sample_host)

  @files %{
    rlx: "rlx_test.exs",
    layers: "layers_test.exs",
    experts: "../conformance/experts_test.exs",
    recurrences: "../conformance/recurrences_test.exs",
    quantized: "../conformance/quantized_test.exs"
  }

  setup_all do
    %{sources: Map.new(@files, fn {name, path} -> {name, File.read!(Path.expand(path, __DIR__))} end)}
  end

  defp there?(sources, file, name), do: String.contains?(sources[file], "test #{inspect(name)}")

  test "each op of rlx has tests", %{sources: sources} do
    for {op, tests} <- @ops, {file, name} <- tests, not there?(sources, file, name), do: flunk("#{op}: no test #{name}")
  end

  test "each parity case of rlx is a test", %{sources: sources} do
    assert length(Enum.uniq(@cases)) == 52
    assert Enum.reject(@cases, &there?(sources, :rlx, &1)) == []
  end
end
