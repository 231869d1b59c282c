# Transformers of Bumblebee on the Vulkan device: streamed text, embeddings and classes of images from servings that
# several clients share, and fine-tuning with adapters (LoRA). The models are small and their weights random, so nothing
# is downloaded, and what is written means nothing; all of it is checked, and the script exits with 1 where something is
# wrong.
#
# It takes Bumblebee and Axon from source checkouts, as test/models does (CONTRIBUTING.md):
#
#     MIX_ENV=test BUMBLEBEE=/path/to/bumblebee mix run examples/transformers.exs

with {:error, error} <- Nx.Vulkan.init(), do: raise(error)
Nx.global_default_backend(Nx.Vulkan.VulkanoBackend)
Nx.Defn.global_default_options(compiler: Nx.Vulkan)
Logger.configure(level: :warning)

Code.require_file("transformers/tiny.exs", __DIR__)
Code.require_file("transformers/lora.exs", __DIR__)

defmodule Transformers do
  @moduledoc false

  @compile {:no_warn_undefined, [Axon, Axon.Loop, Axon.Losses, Bumblebee.Text, Bumblebee.Vision, Polaris.Optimizers]}

  # Elements of normed embeddings, which rounding moves by some 1e-7: padding makes other sums of them.
  @embedding_tolerance 1.0e-5
  # Logits of some units, from weights that were added up before and after the product.
  @merged_tolerance 1.0e-4
  # Measured: the loss falls to a hundredth and less, and all texts are right.
  @loss_share 0.2
  @right 0.95

  @batch_size 4
  @options [defn_options: [compiler: Nx.Vulkan]]

  def main do
    IO.puts("transformers with random weights, on #{Nx.Vulkan.device_name()}")
    faults = writing() ++ embeddings() ++ images() ++ fine_tuning()
    Enum.each(faults, &IO.puts(:stderr, "wrong: #{&1}"))
    if faults != [], do: System.halt(1)
  end

  # A serving under a name, with a process for each input.
  defp serve(name, serving, inputs) do
    {:ok, pid} = Nx.Serving.start_link(name: name, serving: serving, batch_timeout: 50)
    results = inputs |> Enum.map(&Task.async(fn -> Nx.Serving.batched_run(name, &1) end)) |> Task.await_many(:infinity)
    Supervisor.stop(pid)
    results
  end

  # GPT-2: what is streamed has to be what comes at the end.
  defp writing do
    IO.puts("\nGPT-2 goes on with a text:")
    compile = [compile: [batch_size: 1, sequence_length: [16, 32]]]

    generation = fn options ->
      Bumblebee.Text.generation(
        Tiny.writer(),
        Tiny.tokenizer(),
        Tiny.generation_config(40),
        @options ++ compile ++ options
      )
    end

    prompt = "The owl, the dog"
    IO.write("  #{prompt}")

    streamed =
      for chunk <- Nx.Serving.run(generation.(stream: true), prompt), into: "" do
        IO.write("|#{chunk}")
        chunk
      end

    IO.puts("")
    %{results: [%{text: text}]} = Nx.Serving.run(generation.([]), prompt)

    fault(
      streamed != text or String.length(text) < 20,
      "#{inspect(streamed)} was streamed, and the text is #{inspect(text)}"
    )
  end

  # BERT: the embedding of each text has to be the one that the model gives by itself.
  defp embeddings do
    %{model: model, params: params} = reader = Tiny.reader()
    options = [output_attribute: :hidden_state, output_pool: :mean_pooling, embedding_processor: :l2_norm]
    compile = [compile: [batch_size: @batch_size, sequence_length: 16]]
    serving = Bumblebee.Text.text_embedding(reader, Tiny.tokenizer(), @options ++ options ++ compile)
    texts = ["The owl flies", "the owl flew", "dogs bark", "a dog barks", "cats sleep", "Fish swim"]
    embeddings = for %{embedding: embedding} <- serve(Transformers.Reader, serving, texts), do: embedding

    {_init, predict} = Axon.build(model)

    direct =
      for text <- texts do
        state = predict.(params, Bumblebee.apply_tokenizer(Tiny.tokenizer(), [text])).hidden_state
        mean = Nx.mean(state[0], axes: [0])
        Nx.divide(mean, Nx.LinAlg.norm(mean))
      end

    IO.puts("\nBERT, likeness of texts to the first one, from #{length(texts)} clients of a serving:")

    for {text, embedding} <- Enum.zip(texts, embeddings),
        do: IO.puts("  #{format(Nx.dot(hd(embeddings), embedding))}  #{text}")

    far = for {a, b} <- Enum.zip(embeddings, direct), do: Nx.to_number(Nx.reduce_max(Nx.abs(Nx.subtract(a, b))))
    fault(Enum.max(far) > @embedding_tolerance, "embeddings differ by #{Enum.max(far)} from those of the model")
  end

  # ViT: an image and the same image as another client's have the same classes to the bit.
  defp images do
    options = [compile: [batch_size: @batch_size], top_k: 2]
    serving = Bumblebee.Vision.image_classification(Tiny.image_classifier(), Tiny.featurizer(), @options ++ options)
    images = for seed <- 1..6, do: Nx.Random.randint_split(Nx.Random.key(seed), 0, 256, shape: {16, 16, 3}, type: :u8)
    results = serve(Transformers.Images, serving, images ++ images)
    {first, second} = Enum.split(results, length(images))
    IO.puts("\nViT, classes of images:")

    for %{predictions: classes} <- first,
        do: IO.puts("  " <> Enum.map_join(classes, ", ", &"#{&1.label} #{format(&1.score)}"))

    fault(first != second, "the same images have other classes: #{inspect(results)}")
  end

  @animals ~w(owl dog cat fox hen bee)

  # BERT with adapters learns whether a text has an owl.
  defp fine_tuning do
    %{model: model, params: params} = Tiny.text_classifier(dropout_rate: 0.0, attention_dropout_rate: 0.0)
    model = Axon.nx(model, & &1.logits)
    adapted = Lora.adapt(model, 4, &String.ends_with?(&1, ["attention.query", "attention.value", "head.output"]))

    :rand.seed(:exsss, 1)

    examples =
      Enum.shuffle(
        for a <- @animals, b <- @animals, do: {"the #{a} sees the #{b}", if("owl" in [a, b], do: 1, else: 0)}
      )

    batches =
      for examples <- Enum.chunk_every(examples, 12) do
        {texts, labels} = Enum.unzip(examples)
        {Bumblebee.apply_tokenizer(Tiny.tokenizer(), texts), Nx.tensor(labels)}
      end

    {init, _predict} = Axon.build(adapted)
    state = init.(batches |> hd() |> elem(0), params)
    loss = &Axon.Losses.categorical_cross_entropy(&1, &2, from_logits: true, sparse: true, reduction: :mean)

    trained =
      adapted
      |> Axon.Loop.trainer(loss, Polaris.Optimizers.adam(learning_rate: 0.01), log: 0)
      |> Axon.Loop.run(batches, state, epochs: 30, compiler: Nx.Vulkan)

    # Of all texts.
    judge = fn model, state ->
      {_init, predict} = Axon.build(model)
      logits = Nx.concatenate(for {inputs, _} <- batches, do: predict.(state, inputs))
      labels = Nx.concatenate(for {_, labels} <- batches, do: labels)
      {Nx.to_number(loss.(labels, logits)), Nx.to_number(Nx.mean(Nx.equal(Nx.argmax(logits, axis: 1), labels))), logits}
    end

    {loss_before, right_before, _} = judge.(model, params)
    {loss_after, right_after, logits} = judge.(adapted, trained)
    {_, _, merged} = judge.(model, Lora.merge(params, trained))
    apart = Nx.to_number(Nx.reduce_max(Nx.abs(Nx.subtract(logits, merged))))

    changed =
      for {layer, tensors} <- params.data,
          {name, tensor} <- tensors,
          Nx.to_binary(tensor) != Nx.to_binary(trained.data[layer][name]),
          do: layer

    IO.puts("""

    BERT with adapters, #{count(trained) - count(params)} numbers beside #{count(params)} that stay as they are:
      before  loss #{format(loss_before)}, right #{format(right_before)}
      after   loss #{format(loss_after)}, right #{format(right_after)}\
    """)

    fault(loss_after > @loss_share * loss_before, "the loss went from #{loss_before} to #{loss_after}") ++
      fault(right_after < @right, "it is right of #{right_after} of the texts") ++
      fault(changed != [], "#{inspect(changed)} were frozen and have changed") ++
      fault(apart > @merged_tolerance, "merged, the model answers otherwise by #{apart}")
  end

  defp count(%{data: data}), do: Nx.Defn.Composite.reduce(data, 0, &(&2 + Nx.size(&1)))
  defp fault(wrong?, what), do: if(wrong?, do: [what], else: [])
  defp format(%Nx.Tensor{} = x), do: format(Nx.to_number(x))
  defp format(x), do: :erlang.float_to_binary(x / 1, decimals: 3)
end

Transformers.main()
