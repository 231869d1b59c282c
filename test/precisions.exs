# Traces the same functions in several types, as programs without values, for the engine's test of their launches
# (native/nx_vulkan_engine/tests/runs/passes/precisions.rs):
#
#     MIX_ENV=test BUMBLEBEE=/path/to/bumblebee mix run test/precisions.exs
#
# Axon comes from the checkouts of mix.exs, Bumblebee's models from bench/bumblebee.exs. Each function becomes a file of
# compressed lines, one for each type.

Code.require_file("../bench/bumblebee.exs", __DIR__)
Code.require_file("../bench/models.exs", __DIR__)
Code.require_file("../bench/workloads.exs", __DIR__)

Bumblebee.compile(~w(text/bert text/llama text/gpt2 vision/resnet vision/vit))

defmodule Precisions do
  alias Axon.{Activations, Layers, Losses, MixedPrecision}
  alias Bumblebee.{Text, Vision}
  alias Nx.Vulkan.Compiler
  alias Nx.Vulkan.Compiler.Lowering.Plan

  @blocks [vocab_size: 512, num_blocks: 2]
  @small [hidden_size: 256, num_attention_heads: 4, intermediate_size: 1024] ++ @blocks

  # Functions with the templates of their arguments, for computing in a type.
  def traced(type), do: models(type) ++ trained(type) ++ functions(type)

  defp models(type) do
    pixels = %{"pixel_values" => Nx.template({2, 64, 64, 3}, type)}
    images = [image_size: 64, patch_size: 16, num_labels: 10]
    layers = [embedding_size: 16, hidden_sizes: [16, 32], depths: [1, 1], residual_block_type: :basic, num_labels: 10]
    heads = [num_key_value_heads: 2, max_positions: 128]

    [
      # Bumblebee's own sizes: products that run on matrix units.
      bert: model(struct(Text.Bert, [architecture: :base] ++ @blocks), ids({8, 128}, true), type),
      gpt2: model(struct(Text.Gpt2, causal([max_positions: 128] ++ @small)), ids({2, 64}, false), type),
      llama: model(struct(Text.Llama, causal(heads ++ @small)), ids({2, 64}, false), type),
      vit: model(struct(Vision.Vit, [architecture: :for_image_classification] ++ images ++ @small), pixels, type),
      resnet: model(struct(Vision.ResNet, [architecture: :for_image_classification] ++ layers), pixels, type)
    ]
  end

  defp causal(opts), do: [architecture: :for_causal_language_modeling] ++ opts

  defp ids(shape, types?) do
    names = ["input_ids", "attention_mask"] ++ if(types?, do: ["token_type_ids"], else: [])
    Map.new(names, &{&1, Nx.template(shape, :s64)})
  end

  defp model(spec, inputs, type) do
    {init, predict} = spec |> Bumblebee.build_model(type) |> Axon.build()
    parameters = templates(Nx.Defn.debug_expr(init).(inputs, Axon.ModelState.empty()))
    {Bumblebee.result(predict), [parameters, inputs]}
  end

  # Steps of training whose parameters are f32 whatever the type.
  defp trained(type) do
    dense =
      Axon.input("x", shape: {nil, 64})
      |> Axon.dense(128, activation: :gelu)
      |> Axon.layer_norm()
      |> Axon.dropout(rate: 0.1)
      |> Axon.dense(128, activation: :silu)
      |> Axon.dense(10)

    convolution = &(&1 |> Axon.conv(16, kernel_size: 3, padding: :same) |> Axon.batch_norm() |> Axon.relu())

    convolutional =
      Axon.input("x", shape: {nil, 16, 16, 3})
      |> convolution.()
      |> convolution.()
      |> Axon.global_avg_pool()
      |> Axon.dense(10)

    [
      train_dense: step(dense, Nx.template({32, 64}, :f32), type),
      train_convolutional: step(convolutional, Nx.template({4, 16, 16, 3}, :f32), type),
      train_adam: adam(type)
    ]
  end

  defp step(model, images, type) do
    policy = MixedPrecision.create_policy(params: {:f, 32}, compute: type, output: {:f, 32})
    loss = &Losses.categorical_cross_entropy(&1, &2, from_logits: true, reduction: :mean)
    optimizer = Polaris.Optimizers.adam(learning_rate: 1.0e-3)
    {init, step} = model |> MixedPrecision.apply_policy(policy) |> Axon.Loop.train_step(loss, optimizer)
    data = {images, Nx.template({Nx.axis_size(images, 0), 10}, :f32)}
    {step, [data, templates(Nx.Defn.debug_expr(init).(data, Axon.ModelState.empty()))]}
  end

  # As it is written by hand: parameters are cast where they are used.
  defp adam(type) do
    parameters =
      [{64, 32}, {32}, {32, 32}, {32}, {32, 10}, {10}] |> Enum.map(&Nx.template(&1, :f32)) |> List.to_tuple()

    run = fn {parameters, means, squares, t}, images, labels ->
      {loss, gradients} =
        Nx.Defn.value_and_grad(parameters, fn parameters ->
          cast = parameters |> Tuple.to_list() |> Enum.map(&Nx.as_type(&1, type)) |> List.to_tuple()
          images |> Nx.as_type(type) |> Models.mlp(cast) |> Nx.as_type(:f32) |> Models.cross_entropy(labels)
        end)

      state = Enum.map([parameters, means, squares, gradients], &Tuple.to_list/1)
      {loss, state |> Enum.zip_with(&update(&1, t)) |> List.to_tuple()}
    end

    {run,
     [
       {parameters, parameters, parameters, Nx.template({}, :f32)},
       Nx.template({32, 64}, :f32),
       Nx.template({32, 10}, :f32)
     ]}
  end

  defp update([p, m, s, g], t) do
    m = Nx.add(Nx.multiply(0.9, m), Nx.multiply(0.1, g))
    s = Nx.add(Nx.multiply(0.999, s), Nx.multiply(0.001, Nx.multiply(g, g)))
    root = s |> Nx.divide(Nx.subtract(1, Nx.pow(0.999, t))) |> Nx.sqrt() |> Nx.add(1.0e-8)
    step = m |> Nx.divide(Nx.subtract(1, Nx.pow(0.9, t))) |> Nx.divide(root)
    {Nx.subtract(p, Nx.multiply(0.001, step)), m, s}
  end

  defp functions(type) do
    [x, v, y, c] = for shape <- [{128, 256}, {256}, {128, 128}, {8}], do: Nx.template(shape, type)
    [w, b] = for shape <- [{256, 128}, {128}], do: Nx.template(shape, type)
    key = Nx.template({2}, :u32)
    image = Nx.template({2, 16, 16, 8}, type)
    block = Workloads.block_shapes(64) |> Enum.map(&Nx.template(&1, type)) |> List.to_tuple()
    classes = Nx.template({256, 16}, type)

    [
      chain: {&chain(&1, &2, type), [x, v]},
      softmax: {&Models.softmax/1, [x]},
      layer_norm: {&Models.layer_norm/1, [x]},
      norms:
        {fn x, g, b -> x |> Layers.layer_norm(g, b) |> Activations.softmax() |> Activations.log_softmax() end,
         [x, v, v]},
      statistics:
        {fn x ->
           {Nx.mean(x, axes: [0]), Nx.variance(x, axes: [0]), Nx.standard_deviation(x, axes: [1]),
            Nx.logsumexp(x, axes: [1])}
         end, [x]},
      reductions: {&reductions(&1, type), [x]},
      casts:
        {fn x, w, b ->
           x |> Nx.dot(Nx.as_type(w, type)) |> Nx.add(Nx.as_type(b, type)) |> Nx.max(0) |> Nx.as_type(:f32)
         end, [x, Nx.template({256, 128}, :f32), Nx.template({128}, :f32)]},
      dense: {fn x, w, b, y -> x |> Layers.dense(w, b) |> Activations.gelu() |> Nx.add(y) end, [x, w, b, y]},
      dense_tanh: {fn x, w, b, y -> x |> Layers.dense(w, b) |> gelu_tanh() |> Nx.add(y) end, [x, w, b, y]},
      dropout: {&dropout/2, [x, key]},
      random: {&random(&1, type), [key]},
      embedding:
        {fn ids, e, p, g, b -> e |> Nx.take(ids) |> Nx.add(p) |> Layers.layer_norm(g, b) end,
         [Nx.template({4, 32}, :s64), Nx.template({512, 256}, type), Nx.template({32, 256}, type), v, v]},
      loss: {&loss(&1, &2, &3, []), [classes, x, Nx.template({128, 16}, type)]},
      sparse_loss: {&loss(&1, &2, &3, sparse: true), [classes, x, Nx.template({128, 1}, :s64)]},
      block: {&Workloads.block_step(&2, &1), [Nx.template({2, 64, 64}, type), block]},
      convolution: {&convolution/7, [image, Nx.template({3, 3, 8, 8}, type), c, c, c, c, c]},
      pools:
        {fn x ->
           opts = [kernel_size: 2, channels: :last]
           {Layers.max_pool(x, opts), Layers.avg_pool(x, opts), Layers.global_avg_pool(x, channels: :last)}
         end, [image]}
    ]
  end

  defp chain(x, y, type) do
    x = x |> Nx.multiply(0.5) |> Nx.add(1) |> Nx.as_type(:f32) |> Nx.exp()
    x |> Nx.as_type(type) |> Nx.multiply(y) |> Nx.tanh()
  end

  defp gelu_tanh(x) do
    cubed = x |> Nx.pow(3) |> Nx.multiply(0.044715) |> Nx.add(x) |> Nx.multiply(:math.sqrt(2 / :math.pi()))
    cubed |> Nx.tanh() |> Nx.add(1) |> Nx.multiply(x) |> Nx.multiply(0.5)
  end

  defp reductions(x, type) do
    y = x |> Nx.as_type(:f32) |> Nx.multiply(2)

    {Nx.argmax(y, axis: 1), Nx.cumulative_sum(y, axis: 1), Nx.sum(x), Nx.reduce_max(x, axes: [1]),
     Nx.as_type(Nx.sum(y, axes: [0]), type), Nx.all(Nx.greater(x, 0)), Nx.argsort(x, axis: 1),
     Nx.cumulative_sum(x, axis: 1), x |> Nx.multiply(3) |> Nx.as_type(type) |> Nx.argmin(axis: 0)}
  end

  defp dropout(x, key) do
    %Axon.StatefulOutput{output: output, state: state} = Layers.dropout(x, key, rate: 0.1, mode: :train)
    {Nx.multiply(output, 2), state["key"]}
  end

  defp random(key, type) do
    {uniform, key} = Nx.Random.uniform(key, shape: {64, 64}, type: type)
    {normal, key} = Nx.Random.normal(key, shape: {64, 64}, type: type)
    {Nx.add(uniform, normal), key}
  end

  defp loss(w, x, labels, opts) do
    opts = [from_logits: true, reduction: :mean] ++ opts
    Nx.Defn.value_and_grad(w, &Losses.categorical_cross_entropy(labels, Nx.dot(x, &1), opts))
  end

  defp convolution(x, kernel, bias, gamma, beta, mean, variance) do
    y = Layers.conv(x, kernel, bias, padding: :same, channels: :last)
    y = Layers.batch_norm(y, gamma, beta, mean, variance, mode: :inference, channel_index: 3)
    Activations.relu(Nx.add(y, x))
  end

  # The header of a recording.
  def header(name, fun, args) do
    {plan, constants, _, _} = Compiler.lower_for(fun, args, %{})
    %Plan{steps: [{:run, [_types, instructions, outputs], slots, _}]} = plan
    tensors = Nx.Defn.Composite.flatten_list(args) ++ constants
    type = fn %{type: type, shape: shape} -> %{type: Nx.Type.to_string(type), shape: Tuple.to_list(shape)} end

    instructions =
      for [op, attrs, operands, outs] <- instructions do
        outs = for [type, shape] <- outs, do: %{type: type, shape: shape}
        %{op: op, attrs: Map.new(attrs, fn [name, value] -> {name, value} end), operands: operands, outs: outs}
      end

    inputs = for [:input, i] <- slots, do: type.(Enum.at(tensors, i))
    tolerances = for _ <- outputs, do: %{absolute: 0.0, relative: 0.0}

    JSON.encode_to_iodata!(%{
      format: "nx_vulkan program 1",
      name: name,
      inputs: inputs,
      instructions: instructions,
      outputs: outputs,
      tolerances: tolerances
    })
  end

  defp templates(container), do: Nx.Defn.Composite.traverse(container, &Nx.template(&1.shape, &1.type))
end

folder = Path.join(__DIR__, "../native/nx_vulkan_engine/tests/data/precisions")
File.mkdir_p!(folder)

lines =
  for type <- [f: 32, f: 16, bf: 16], {name, {fun, args}} <- Precisions.traced(type) do
    {name, [Precisions.header(name, fun, args), ?\n]}
  end

for {name, lines} <- Enum.group_by(lines, &elem(&1, 0), &elem(&1, 1)) do
  File.write!(Path.join(folder, "#{name}.jsonl.gz"), :zlib.gzip(lines))
end
