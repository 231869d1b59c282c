# Measures products, convolutions, attention, rows and whole models in f32, f16 and bf16. Prints a Markdown table.
#
#     MIX_ENV=test BUMBLEBEE=/path/to/bumblebee mix run bench/half.exs [small] [ROWS ...]
#
# ROWS are parts of the names of the rows to measure, all by default; `small` takes sizes for a CPU device. Without
# BUMBLEBEE the models are left out.
# bench/peers/half.py measures the same with torch and transformers. Training steps are in bench/training.exs.

Code.require_file("measure.exs", __DIR__)
Code.require_file("models.exs", __DIR__)

if System.get_env("BUMBLEBEE") do
  Code.require_file("bumblebee.exs", __DIR__)
  Bumblebee.compile(~w(text/bert text/llama text/gpt2 vision/resnet vision/vit))
end

defmodule Half do
  @moduledoc false
  @compile {:no_warn_undefined, Bumblebee}

  alias Bumblebee.{Text, Vision}
  alias Nx.Vulkan.VulkanoBackend

  import Nx.Defn

  @types [f: 32, f: 16, bf: 16]
  @sizes %{
    squares: [1024, 4096, 8192],
    weights: {14_336, 4096},
    dense: {4096, 768},
    image: {64, 56, 64},
    heads: {4, 16, 2048, 64},
    side: 8192,
    batch: 32,
    text: 128,
    prompt: 512,
    tokens: 64,
    pixels: 224
  }
  @small %{
    squares: [256, 512],
    weights: {1024, 512},
    dense: {128, 128},
    image: {2, 28, 32},
    heads: {1, 2, 256, 64},
    side: 2048,
    batch: 1,
    text: 32,
    prompt: 64,
    tokens: 8,
    pixels: 64
  }

  # The small GPT-2 that transformers makes by default; Bumblebee's default has 24 blocks.
  @gpt2 [num_blocks: 12, num_attention_heads: 12]

  def main(["small" | wanted]), do: table(@small, wanted)
  def main(wanted), do: table(@sizes, wanted)

  defp table(sizes, wanted), do: Measure.table(for(type <- @types, row <- rows(sizes, type), do: row), wanted)

  defp rows(sizes, type) do
    rows = products(sizes, type) ++ attention(sizes, type) ++ elements(sizes, type)
    rows = if System.get_env("BUMBLEBEE"), do: rows ++ models(sizes, type), else: rows
    for {name, setup} <- rows, do: {"#{name}, #{Nx.Type.to_string(type)}", setup}
  end

  defp products(sizes, type) do
    squares =
      for n <- sizes.squares do
        {"dot #{n}", fn -> of([{n, n}, {n, n}], type, &Nx.dot(elem(&1, 0), elem(&1, 1))) end}
      end

    {rows, columns} = sizes.weights

    vectors =
      for n <- [1, 2, 4, 8, 16] do
        {"#{rows} x #{columns} by #{n} vectors",
         fn -> of([{rows, columns}, {columns, n}], type, &Nx.dot(elem(&1, 0), elem(&1, 1))) end}
      end ++
        for n <- [1, 4, 8] do
          {"#{n} vectors by #{columns} x #{rows}",
           fn -> of([{n, columns}, {columns, rows}], type, &Nx.dot(elem(&1, 0), elem(&1, 1))) end}
        end

    {m, k} = sizes.dense
    {images, side, channels} = sizes.image

    dense = fn {x, w, b} -> x |> Nx.dot(w) |> Nx.add(b) |> Axon.Activations.gelu() end

    options = [
      padding: :same,
      input_permutation: [0, 3, 1, 2],
      kernel_permutation: [3, 2, 0, 1],
      output_permutation: [0, 3, 1, 2]
    ]

    squares ++
      vectors ++
      [
        {"dense with GELU #{m} x #{k} x #{4 * k}", fn -> of([{m, k}, {k, 4 * k}, {4 * k}], type, dense) end},
        {"conv 3x3, #{images} x #{side} x #{side} x #{channels}",
         fn ->
           of([{images, side, side, channels}, {3, 3, channels, channels}], type, fn {x, k} ->
             Nx.conv(x, k, options)
           end)
         end}
      ]
  end

  defp attention(sizes, type) do
    {batch, heads, n, d} = shape = sizes.heads

    for {causal, causal?} <- [{"", false}, {" causal", true}] do
      {"attention #{batch} x #{heads} x #{n} x #{d}#{causal}",
       fn -> of([shape, shape, shape], type, &attend(&1, causal?)) end}
    end
  end

  defp attend({q, k, v}, causal?) do
    {_, _, n, d} = Nx.shape(q)
    scores = q |> Nx.dot([3], [0, 1], k, [3], [0, 1]) |> Nx.multiply(1 / :math.sqrt(d))
    scores = if causal?, do: causal(scores, n), else: scores
    scores |> Axon.Activations.softmax(axis: 3) |> Nx.dot([3], [0, 1], v, [2], [0, 1])
  end

  defp causal(scores, n) do
    visible = Nx.greater_equal(Nx.iota({n, n}, axis: 0), Nx.iota({n, n}, axis: 1))
    Nx.select(Nx.broadcast(visible, scores), scores, Nx.Constants.neg_infinity(Nx.type(scores)))
  end

  defn(rms_norm(x), do: x * Nx.rsqrt(Nx.mean(x * x, axes: [1], keep_axes: true) + 1.0e-6))

  defp elements(sizes, type) do
    n = sizes.side
    square = fn fun -> fn -> of([{n, n}], type, fn {x} -> fun.(x) end) end end

    [
      {"x + 1, #{n} x #{n}", square.(&Nx.add(&1, 1))},
      {"GELU, #{n} x #{n}", square.(&Axon.Activations.gelu/1)},
      {"tanh(exp(x * 0.5 + 1) * x - 0.1), #{n} x #{n}", square.(&Models.chain/1)},
      {"softmax of rows, #{n} x #{n}", square.(&Models.softmax/1)},
      {"layer norm of rows, #{n} x #{n}", square.(&Models.layer_norm/1)},
      {"RMS norm of rows, #{n} x #{n}", square.(&rms_norm/1)},
      {"sum, #{n} x #{n}", square.(&Nx.sum/1)},
      {"sum of rows, #{n} x #{n}", square.(&Nx.sum(&1, axes: [1]))},
      {"sum of columns, #{n} x #{n}", square.(&Nx.sum(&1, axes: [0]))},
      {"cumulative sum of rows, #{n} x #{n}", square.(&Nx.cumulative_sum(&1, axis: 1))}
    ] ++ casts(n, type)
  end

  defp casts(_, {:f, 32}), do: []

  defp casts(n, type) do
    [
      {"cast to f32, #{n} x #{n}", fn -> of([{n, n}], type, fn {x} -> Nx.as_type(x, :f32) end) end},
      {"cast from f32, #{n} x #{n}", fn -> of([{n, n}], {:f, 32}, fn {x} -> Nx.as_type(x, type) end) end}
    ]
  end

  defp models(%{batch: batch, text: text, prompt: prompt, tokens: tokens, pixels: pixels}, type) do
    classification = [architecture: :for_image_classification, image_size: pixels]
    images = fn n -> fn -> %{"pixel_values" => uniform({n, pixels, pixels, 3}, type)} end end

    # 1.1 billion parameters, with a head of keys for four of queries.
    llama = [
      vocab_size: 50_000,
      hidden_size: 2048,
      intermediate_size: 8192,
      num_blocks: 16,
      num_attention_heads: 32,
      num_key_value_heads: 8,
      attention_head_size: 64
    ]

    [
      {"BERT base, #{batch} x #{text}", model(Text.Bert, [architecture: :base], type, ids({batch, text}))},
      {"ViT base, #{batch} images", model(Vision.Vit, classification, type, images.(batch))},
      {"ResNet-50, #{2 * batch} images",
       model(Vision.ResNet, [architecture: :for_image_classification], type, images.(2 * batch))},
      {"GPT-2, prompt of #{prompt}", model(Text.Gpt2, [architecture: :base] ++ @gpt2, type, ids({1, prompt}))},
      {"Llama 1B, prompt of #{prompt}", model(Text.Llama, [architecture: :base] ++ llama, type, ids({1, prompt}))},
      {"GPT-2, #{tokens} tokens after #{prompt}", generation(Text.Gpt2, @gpt2, type, ids({1, prompt}), tokens)},
      {"Llama 1B, #{tokens} tokens after #{prompt}", generation(Text.Llama, llama, type, ids({1, prompt}), tokens)}
    ]
  end

  # Greedy, with a cache, and no token that ends it.
  defp generation(module, options, type, inputs, tokens) do
    fn ->
      inputs = Map.put(inputs.(), "seed", Nx.tensor([0], type: :s64))
      spec = struct(module, [architecture: :for_causal_language_modeling] ++ options)
      model = Bumblebee.build_model(spec, type)
      {init, _} = Axon.build(model)
      parameters = init.(Map.delete(inputs, "seed"), Axon.ModelState.empty())
      config = struct(Text.GenerationConfig, max_new_tokens: tokens, pad_token_id: 0, eos_token_id: nil)
      generate = Text.Generation.build_generate(model, spec, config)
      requests = for inputs <- requests(inputs), do: {parameters, inputs}
      Measure.turns(requests, fn {parameters, inputs} -> generate.(parameters, inputs).token_ids end)
    end
  end

  # Weights are random, as Bumblebee makes them.
  defp model(module, options, type, inputs) do
    fn ->
      inputs = inputs.()
      {init, predict} = module |> struct(options) |> Bumblebee.build_model(type) |> Axon.build()
      parameters = init.(inputs, Axon.ModelState.empty())
      predict = Bumblebee.result(predict)
      requests = for inputs <- requests(inputs), do: {parameters, inputs}
      Measure.turns(requests, fn {parameters, inputs} -> predict.(parameters, inputs) end)
    end
  end

  # Calls of a model differ from one another, though its weights are the same.
  defp requests(inputs), do: [inputs, Map.new(inputs, fn {name, tensor} -> {name, Nx.reverse(tensor)} end)]

  # A row whose function takes tensors of these shapes as a tuple.
  defp of(shapes, type, fun) do
    tensors = shapes |> Enum.map(&uniform(&1, type)) |> List.to_tuple()
    Measure.same(tensors, fun)
  end

  defp ids(shape) do
    ids = fn -> Nx.remainder(Nx.multiply(Nx.iota(shape), 7919), 30_000) end
    fn -> %{"input_ids" => ids.(), "attention_mask" => Nx.broadcast(1, shape)} end
  end

  defp uniform(shape, type) do
    {values, _} = Nx.Random.uniform(Nx.Random.key(Nx.size(shape)), -1.0, 1.0, shape: shape)
    values |> Nx.as_type(type) |> Nx.backend_copy(VulkanoBackend)
  end
end

Half.main(System.argv())
