# Servings of Bumblebee's models, by its own functions, on the compiler. The tokenizer, the featurizer and the sizes are
# those of examples/transformers/tiny.exs.
#
#     mix test --only models
Code.require_file("generations.exs", __DIR__)

defmodule Nx.Vulkan.Models.ServingTest do
  use ExUnit.Case, async: true

  alias Bumblebee.{Text, Vision}
  alias Nx.Vulkan.Models
  alias Nx.Vulkan.Models.Generations

  @compile {:no_warn_undefined,
            [Axon, Bumblebee.Featurizer, Bumblebee.Text, Bumblebee.Text.Generation, Bumblebee.Tokenizer] ++
              [Bumblebee.Vision, Tiny]}
  @moduletag :device
  @moduletag :models
  if Models.missing(), do: @moduletag(skip: Models.missing())

  @new 8
  @batch_size 4
  @buckets [8, 16]
  # Of the first bucket, and of the second.
  @short ["Go", "an", "No", "ho", "Why not", "Who?", "it", "oh!"]
  @long ["Hello there", "The owl, the dog", "over there", "cats and dogs"]
  @texts @short ++ @long
  # No batch of these tests takes so long to fill.
  @never to_timeout(minute: 10)

  setup_all do
    Models.tiny()
    writer = Tiny.writer()
    %{writer: writer, expected: expected(writer), reader: Tiny.reader(), images: Tiny.image_classifier()}
  end

  # What each text goes on with: `{ids, text}`, by the reference, alone and without padding. That no token is a tie is
  # what makes them the only right ones.
  defp expected(%{model: model, spec: spec, params: params}) do
    example = %{model: model, spec: spec, parameters: params}

    for text <- @texts, into: %{} do
      prompt = Map.put(Bumblebee.apply_tokenizer(Tiny.tokenizer(), [text]), "seed", Nx.tensor([0], type: :s64))
      config = Tiny.generation_config(@new)
      {[ids], [length]} = generated = Generations.generate(example, prompt, config, &Models.on_binary/2)
      [margins] = Generations.margins(example, prompt, elem(generated, 0), elem(generated, 1))
      for {_below, above} <- margins, do: assert(above > 4 * Models.tolerance(:f32))
      ids = Enum.take(ids, length)
      {text, {ids, Bumblebee.Tokenizer.decode(Tiny.tokenizer(), ids)}}
    end
    |> tap(fn all -> assert all |> Map.values() |> Enum.uniq() |> length() == length(@texts) end)
  end

  defp writing(model_info, options \\ [], config \\ Tiny.generation_config(@new)) do
    defaults = [compile: [batch_size: @batch_size, sequence_length: @buckets], defn_options: [compiler: Nx.Vulkan]]
    Text.generation(model_info, Tiny.tokenizer(), config, Keyword.merge(defaults, options))
  end

  defp text(%{results: [%{text: text}]}), do: text

  # A process that serves, under the supervisor of the test; its name, and the process that gathers batches.
  defp serve(serving, name, options \\ []) do
    options = Keyword.merge([name: name, serving: serving, batch_timeout: @never], options)
    start_supervised!({Nx.Serving, options})
    [pid | _] = :pg.get_members(Nx.Serving.PG, name)
    pid
  end

  # Sends this process a message for each batch that a serving has computed.
  defp tell_batches(serving) do
    config = %{serving: serving, test: self()}
    :ok = :telemetry.attach({__MODULE__, serving}, [:nx, :serving, :execute, :stop], &__MODULE__.tell_batch/4, config)
    on_exit(fn -> :telemetry.detach({__MODULE__, serving}) end)
  end

  # In the task that the serving has started.
  def tell_batch(_event, _measurements, _metadata, %{serving: serving, test: test}) do
    if hd(Process.get(:"$callers")) == serving, do: send(test, {:batch, serving})
  end

  defp batches(serving, count \\ 0) do
    receive do
      {:batch, ^serving} -> batches(serving, count + 1)
    after
      0 -> count
    end
  end

  # Until so many rows wait for their batch to be filled.
  defp await_waiting(serving, rows, tries \\ 1000) do
    {:dictionary, dictionary} = Process.info(serving, :dictionary)
    waiting = for {{Nx.Serving, _key}, {_stack, count, _timer}} <- dictionary, do: count

    cond do
      Enum.sum(waiting) == rows -> :ok
      tries == 0 -> flunk("#{inspect(waiting)} rows wait")
      true -> Process.sleep(10) && await_waiting(serving, rows, tries - 1)
    end
  end

  defp clients(inputs, fun) do
    inputs |> Enum.map(&Task.async(fn -> fun.(&1) end)) |> Task.await_many(to_timeout(minute: 5))
  end

  describe "texts" do
    test "in the caller", %{expected: expected, writer: writer} do
      serving = writing(writer)
      texts = Enum.take(@long, 3)
      assert Enum.map(Nx.Serving.run(serving, texts), &text/1) == for(t <- texts, do: elem(expected[t], 1))
      # A single one is padded to the batch, in either bucket.
      for t <- ["Why not", "over there"], do: assert(text(Nx.Serving.run(serving, t)) == elem(expected[t], 1))
      # More rows than a batch has are several batches.
      assert Enum.map(Nx.Serving.run(serving, @texts), &text/1) == for(t <- @texts, do: elem(expected[t], 1))
      # Both of one batch have its length.
      assert Enum.map(Nx.Serving.run(serving, ["an", "Hello there"]), &text/1) ==
               [elem(expected["an"], 1), elem(expected["Hello there"], 1)]
    end

    test "of Llama, in the caller" do
      llama = Tiny.writer(module: Text.Llama, num_attention_heads: 4, num_key_value_heads: 2)
      expected = expected(llama)
      assert Enum.map(Nx.Serving.run(writing(llama), @texts), &text/1) == for(t <- @texts, do: elem(expected[t], 1))
    end

    test "that are drawn, by a seed of each client", %{writer: writer} do
      config = Bumblebee.configure(Tiny.generation_config(@new), strategy: %{type: :multinomial_sampling})
      serving = writing(writer, [], config)
      inputs = for {t, seed} <- [{"Go", 1}, {"Go", 2}, {"Why not", 1}, {"Go", 1}], do: %{text: t, seed: seed}
      alone = for input <- inputs, do: text(Nx.Serving.run(serving, input))
      [first, second, _other, again] = alone
      assert first == again and first != second
      serve(serving, __MODULE__.Drawn)
      assert clients(inputs, &text(Nx.Serving.batched_run(__MODULE__.Drawn, &1))) == alone
    end

    test "compiled at the first call, for any size and length", %{expected: expected, writer: writer} do
      serving = writing(writer, compile: nil, preallocate_params: true)
      for t <- ["Go", "cats and dogs"], do: assert(text(Nx.Serving.run(serving, t)) == elem(expected[t], 1))
    end

    test "how many tokens there were", %{expected: expected, writer: writer} do
      %{results: [%{token_summary: summary}]} = Nx.Serving.run(writing(writer), "over there")
      assert summary == %{input: 9, output: length(elem(expected["over there"], 0)), padding: 7}
    end

    test "of clients that fill batches of two lengths", %{expected: expected, writer: writer} do
      pid = serve(writing(writer), __MODULE__.Full)
      tell_batches(pid)
      results = clients(@texts, &text(Nx.Serving.batched_run(__MODULE__.Full, &1)))
      assert results == for(t <- @texts, do: elem(expected[t], 1))
      # Nothing waits for the time of a batch to be over: two batches of short texts and one of long ones.
      assert {length(@short), length(@long)} == {2 * @batch_size, @batch_size}
      stop_supervised!(__MODULE__.Full)
      assert batches(pid) == 3
    end

    test "of a batch that is not filled in time", %{expected: expected, writer: writer} do
      serve(writing(writer, preallocate_params: true), __MODULE__.Padded, batch_timeout: 10)
      assert text(Nx.Serving.batched_run(__MODULE__.Padded, "No")) == elem(expected["No"], 1)
    end

    test "of more rows than a batch has", %{expected: expected, writer: writer} do
      pid = serve(writing(writer), __MODULE__.Split)
      tell_batches(pid)
      texts = @short ++ ["an", "Go", "ho", "No"]
      results = Nx.Serving.batched_run(__MODULE__.Split, texts)
      assert Enum.map(results, &text/1) == for(t <- texts, do: elem(expected[t], 1))
      stop_supervised!(__MODULE__.Split)
      assert batches(pid) == 3
    end

    test "of many clients, again and again, on two partitions", %{expected: expected, writer: writer} do
      serving = writing(writer, preallocate_params: true, defn_options: [compiler: Nx.Vulkan, max_concurrency: 2])
      serve(serving, __MODULE__.Parts, batch_timeout: 5, partitions: true)

      clients(1..6, fn client ->
        for i <- 0..4 do
          t = Enum.at(@texts, rem(5 * client + 3 * i, length(@texts)))
          assert {t, text(Nx.Serving.batched_run(__MODULE__.Parts, t))} == {t, elem(expected[t], 1)}
        end
      end)
    end
  end

  describe "streams" do
    # The events of the hook instead of text.
    defp raw(serving), do: Nx.Serving.client_postprocessing(serving, fn stream, _info -> stream end)

    test "have each token, in order", %{expected: expected, writer: writer} do
      serving = raw(writing(writer, stream: true))

      # The last one ends early.
      assert length(elem(expected["No"], 0)) < @new

      for t <- ["Hello there", "Go", "No"], {ids, _text} = expected[t] do
        assert {:batch, _ignored, _metadata} = serving |> Nx.Serving.run(t) |> Enum.at(-1)

        events =
          for {:token, event} <- Nx.Serving.run(serving, t), do: Map.new(event, fn {k, v} -> {k, Nx.to_list(v)} end)

        assert for(%{token_id: [id]} <- events, do: id) == ids
        assert for(%{length: [length]} <- events, do: length) == Enum.to_list(1..length(ids))
        assert for(%{finished?: [finished]} <- events, do: finished) == List.duplicate(0, length(ids) - 1) ++ [1]
      end
    end

    defp tokens(text), do: Nx.axis_size(Bumblebee.apply_tokenizer(Tiny.tokenizer(), [text])["input_ids"], 1)

    test "have the text", %{expected: expected, writer: writer} do
      serving = writing(writer, stream: true, stream_done: true)

      for t <- @texts, {ids, text} = expected[t] do
        {chunks, [done]} = serving |> Nx.Serving.run(t) |> Enum.split_while(&is_binary/1)
        assert Enum.join(chunks) == text
        # A word each.
        assert Enum.all?(tl(chunks), &String.starts_with?(&1, " "))
        assert {:done, %{token_summary: %{input: input, output: output}}} = done
        assert {input, output} == {tokens(t), length(ids)}
      end
    end

    test "end where one text of a batch ends", %{expected: expected, writer: writer} do
      {ids, _text} = expected["Why not"]
      # A token that is not there before, nor in the other text.
      {others, other} = expected["Who?"]
      stop = Enum.find_index(ids, &(&1 not in [hd(ids) | others]))
      config = Bumblebee.configure(Tiny.generation_config(@new), eos_token_id: Enum.at(ids, stop))
      serve(writing(writer, [stream: true, compile: [batch_size: 2, sequence_length: 8]], config), __MODULE__.Ends)
      chunks = clients(["Why not", "Who?"], &Enum.join(Nx.Serving.batched_run(__MODULE__.Ends, &1)))
      ended = Bumblebee.Tokenizer.decode(Tiny.tokenizer(), Enum.take(ids, stop + 1))
      assert chunks == [ended, other]
      assert stop + 1 < @new and length(others) == @new
    end

    # Alone the loop is one run of the device, in a stream each token is.
    test "have the text that there is without a stream, in 16 bits" do
      for type <- [{:bf, 16}, {:f, 16}] do
        llama = Tiny.writer(module: Text.Llama, type: type)
        serving = writing(llama)
        whole = for t <- @texts, do: text(Nx.Serving.run(serving, t))
        streaming = writing(llama, stream: true)
        assert for(t <- @texts, do: Enum.join(Nx.Serving.run(streaming, t))) == whole
      end
    end

    test "of clients that share a batch have each its own text", %{expected: expected, writer: writer} do
      pid = serve(writing(writer, stream: true), __MODULE__.Streams)
      tell_batches(pid)
      texts = @texts -- ["Hello there", "over there", "cats and dogs", "The owl, the dog"]
      chunks = clients(texts, &Enum.to_list(Nx.Serving.batched_run(__MODULE__.Streams, &1)))
      assert Enum.map(chunks, &Enum.join/1) == for(t <- texts, do: elem(expected[t], 1))
      stop_supervised!(__MODULE__.Streams)
      assert batches(pid) == 2
    end

    # A serving that goes on after a token once this process says so.
    defp stepwise(%{model: model, spec: spec, params: params}) do
      me = self()
      generate = Text.Generation.build_generate(model, spec, Tiny.generation_config(@new), ignore_output: true)

      wait = fn hook ->
        fn token ->
          hook.(token)
          send(me, {:written, self()})

          receive do
            :go -> :ok
          end
        end
      end

      Nx.Serving.new(
        fn options ->
          generate = Nx.Defn.jit(generate, update_in(options[:hooks][:token], wait))
          fn batch -> generate.(params, Nx.Batch.pad(batch, @batch_size - batch.size)) end
        end,
        compiler: Nx.Vulkan
      )
      |> Nx.Serving.batch_size(@batch_size)
      |> Nx.Serving.streaming(hooks: [:token])
      |> Nx.Serving.client_preprocessing(fn texts ->
        tokenizer = Bumblebee.configure(Tiny.tokenizer(), length: 8, pad_direction: :left)
        seed = Nx.tensor(List.duplicate(0, length(texts)), type: :s64, backend: Nx.BinaryBackend)
        {Nx.Batch.concatenate([Map.put(Bumblebee.apply_tokenizer(tokenizer, texts), "seed", seed)]), :ok}
      end)
    end

    # A client that sends on what it gets.
    defp client(name, texts) do
      me = self()

      spawn(fn ->
        for event <- Nx.Serving.batched_run(name, texts) do
          case event do
            {:token, %{token_id: ids}} -> send(me, {:token, self(), Nx.to_list(ids)})
            {:batch, _, _} -> send(me, {:done, self()})
          end
        end
      end)
    end

    # With what follows the end of a text.
    defp written(expected, text) do
      {ids, _text} = expected[text]
      ids ++ List.duplicate(1, @new - length(ids))
    end

    defp go_on do
      assert_receive {:written, pid}, 60_000
      send(pid, :go)
    end

    test "bring a token before the next is computed", %{expected: expected, writer: writer} do
      serve(stepwise(writer), __MODULE__.Stepwise)
      client = client(__MODULE__.Stepwise, @short |> Enum.take(@batch_size))

      for ids <- @short |> Enum.take(@batch_size) |> Enum.map(&written(expected, &1)) |> Enum.zip_with(& &1) do
        assert_receive {:token, ^client, ^ids}, 60_000
        refute_received {:token, _, _}
        go_on()
      end

      assert_receive {:done, ^client}, 60_000
    end

    test "go on when one of the clients of a batch dies", %{expected: expected, writer: writer} do
      pid = serve(stepwise(writer), __MODULE__.Deaths)
      victim = client(__MODULE__.Deaths, ["Go", "an"])
      await_waiting(pid, 2)
      other = client(__MODULE__.Deaths, ["No", "ho"])
      [first | rest] = Enum.zip(written(expected, "No"), written(expected, "ho"))
      assert_receive {:token, ^victim, _}, 60_000
      assert_receive {:token, ^other, ids}, 60_000
      assert List.to_tuple(ids) == first
      Process.exit(victim, :kill)
      go_on()

      for {a, b} <- rest do
        assert_receive {:token, ^other, [^a, ^b]}, 60_000
        go_on()
      end

      assert_receive {:done, ^other}, 60_000
      refute_received {:token, ^victim, _}

      # The next batch.
      last = client(__MODULE__.Deaths, Enum.take(@short, @batch_size))
      for _ <- 1..@new, do: go_on()
      assert_receive {:done, ^last}, 60_000
      [ids | _] = for {:token, ^last, ids} <- messages(), do: ids
      assert ids == for(t <- Enum.take(@short, @batch_size), do: hd(elem(expected[t], 0)))
    end

    defp messages do
      receive do
        message -> [message | messages()]
      after
        0 -> []
      end
    end
  end

  describe "what goes wrong" do
    test "a client that dies before its batch is full", %{expected: expected, writer: writer} do
      pid = serve(writing(writer), __MODULE__.Queue)
      victim = spawn(fn -> Nx.Serving.batched_run(__MODULE__.Queue, ["Go", "an"]) end)
      await_waiting(pid, 2)
      Process.exit(victim, :kill)
      texts = ["No", "ho"]

      assert clients(texts, &text(Nx.Serving.batched_run(__MODULE__.Queue, &1))) ==
               for(t <- texts, do: elem(expected[t], 1))
    end

    test "input of another kind", %{expected: expected, writer: writer, images: images} do
      serve(writing(writer), __MODULE__.Kind, batch_timeout: 10)

      for input <- [42, %{prompt: "Go"}],
          do:
            assert_raise(ArgumentError, ~r/^invalid input, expected/, fn ->
              Nx.Serving.batched_run(__MODULE__.Kind, input)
            end)

      assert_raise ArgumentError, ~r/^invalid input in the batch, expected/, fn ->
        Nx.Serving.batched_run(__MODULE__.Kind, ["Go", nil])
      end

      assert text(Nx.Serving.batched_run(__MODULE__.Kind, "Go")) == elem(expected["Go"], 1)

      serving = Vision.image_classification(images, Tiny.featurizer(), defn_options: [compiler: Nx.Vulkan])

      assert_raise ArgumentError, "invalid input, expected an image, got: \"owl\"", fn ->
        Nx.Serving.run(serving, "owl")
      end
    end

    test "several texts for one stream", %{writer: writer} do
      assert_raise ArgumentError, ~r/only accepts singular input when stream is enabled/, fn ->
        Nx.Serving.run(writing(writer, stream: true), ["Go", "an"])
      end
    end

    test "a batch that the function was not compiled for", %{reader: %{model: model, params: params}} do
      {_init, predict} = Axon.build(model)
      template = %{"input_ids" => Nx.template({2, 8}, :u32), "attention_mask" => Nx.template({2, 8}, :u32)}

      serving =
        Nx.Serving.new(
          fn options ->
            predict = Nx.Defn.compile(&predict.(&1, &2).pooled_state, [params, template], options)
            fn batch -> predict.(params, Nx.Batch.pad(batch, 2 - batch.size)) end
          end,
          compiler: Nx.Vulkan
        )

      serve(serving, __MODULE__.Shapes, batch_size: 2, batch_timeout: 10)
      batch = fn text -> Nx.Batch.concatenate([Bumblebee.apply_tokenizer(Tiny.tokenizer(), [text])]) end

      ExUnit.CaptureLog.capture_log(fn ->
        call = fn -> Nx.Serving.batched_run(__MODULE__.Shapes, batch.("eleven long")) end
        assert {{%ArgumentError{message: message}, _stacktrace}, _call} = catch_exit(call.())
        assert message =~ "argument at position 2 is not compatible with compiled function template"
      end)

      assert {1, 32} = Nx.shape(Nx.Serving.batched_run(__MODULE__.Shapes, batch.("8 letters")))
    end
  end

  describe "embeddings" do
    defp reading(model_info, options \\ []) do
      defaults = [
        compile: [batch_size: @batch_size, sequence_length: @buckets],
        output_attribute: :hidden_state,
        output_pool: :mean_pooling,
        embedding_processor: :l2_norm,
        defn_options: [compiler: Nx.Vulkan]
      ]

      Text.text_embedding(model_info, Tiny.tokenizer(), Keyword.merge(defaults, options))
    end

    # By the reference, alone and without padding.
    defp embedding(%{model: model, params: params}, text) do
      {_init, predict} = Axon.build(model)

      Models.on_binary(
        fn params, inputs ->
          mean = Nx.mean(predict.(params, inputs).hidden_state, axes: [1])
          Nx.divide(mean, Nx.sqrt(Nx.sum(Nx.multiply(mean, mean), axes: [1], keep_axes: true)))
        end,
        [params, Bumblebee.apply_tokenizer(Tiny.tokenizer(), [text])]
      )[0]
    end

    test "of clients are those of direct calls", %{reader: reader} do
      serve(reading(reader, preallocate_params: true), __MODULE__.Embeddings)
      results = clients(@texts, &Nx.Serving.batched_run(__MODULE__.Embeddings, &1).embedding)

      for {text, result} <- Enum.zip(@texts, results) do
        assert %Nx.BinaryBackend{} = result.data
        Models.assert_close(result, embedding(reader, text), :f32)
      end
    end

    test "have the same bits whatever else is in the batch", %{reader: reader} do
      serving = reading(reader)
      bits = fn %{embedding: tensor} -> Nx.to_binary(tensor) end

      for texts <- [Enum.take(@short, @batch_size), @long] do
        alone = for text <- texts, do: bits.(Nx.Serving.run(serving, text))
        assert Enum.map(Nx.Serving.run(serving, texts), bits) == alone
        assert Enum.map(Nx.Serving.run(serving, Enum.reverse(texts)), bits) == Enum.reverse(alone)
      end
    end
  end

  describe "images" do
    defp image(seed, shape) do
      :rand.seed(:exsss, seed)
      values = for _ <- 1..Nx.size(shape), do: :rand.uniform(256) - 1
      values |> Nx.tensor(type: :u8, backend: Nx.BinaryBackend) |> Nx.reshape(shape)
    end

    # Classes with their scores, the likeliest first, by the reference.
    defp classes(%{model: model, params: params, spec: spec}, image) do
      {_init, predict} = Axon.build(model)
      scores = fn params, inputs -> Axon.Activations.softmax(predict.(params, inputs).logits) end
      image = Bumblebee.Featurizer.process_input(Tiny.featurizer(), image)
      inputs = Bumblebee.Featurizer.process_batch(Tiny.featurizer(), image)
      [scores] = Nx.to_list(Models.on_binary(scores, [params, inputs]))
      scores |> Enum.with_index() |> Enum.sort(:desc) |> Enum.map(fn {score, i} -> {spec.id_to_label[i], score} end)
    end

    test "of clients have the classes of direct calls", %{images: model_info} do
      options = [compile: [batch_size: @batch_size], top_k: 2, defn_options: [compiler: Nx.Vulkan]]
      serve(Vision.image_classification(model_info, Tiny.featurizer(), options), __MODULE__.Images)
      # Of several sizes.
      images = for i <- 1..(2 * @batch_size), do: image(i, {14 + i, 16, 3})
      results = clients(images, &Nx.Serving.batched_run(__MODULE__.Images, &1).predictions)

      for {image, predictions} <- Enum.zip(images, results) do
        expected = model_info |> classes(image) |> Enum.take(2)
        assert Enum.map(predictions, & &1.label) == Enum.map(expected, &elem(&1, 0))

        for {%{score: score}, {_label, expected}} <- Enum.zip(predictions, expected),
            do: assert_in_delta(score, expected, Models.tolerance(:f32))
      end
    end
  end
end
