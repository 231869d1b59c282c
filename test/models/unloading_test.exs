# A model that nobody has any more leaves nothing on the device: what its parameters, its compiled functions and its
# servings took is given back.
#
#     mix test --only models
Code.require_file("models.exs", __DIR__)

defmodule Nx.Vulkan.Models.UnloadingTest do
  # What is in use is counted for the whole VM.
  use ExUnit.Case, async: false

  alias Bumblebee.{Text, Vision}
  alias Nx.Vulkan.{Compiler, DeviceMemory, Models, VulkanoBackend}

  @compile {:no_warn_undefined,
            [Axon, Axon.Loop, Axon.Losses, Bumblebee.Text, Bumblebee.Text.Generation, Bumblebee.Vision, Lora] ++
              [Polaris.Optimizers, Tiny]}
  @moduletag :device
  @moduletag :models
  # Of a process that is killed, and what Axon is told.
  @moduletag :capture_log
  if Models.missing(), do: @moduletag(skip: Models.missing())

  # Every scalar that a program needs is on the device once, for the whole VM, until there are 4,096 of them: the first
  # run of a model makes its own.
  @scalar_bytes 256

  # Constants of compiled functions, which are kept when their model is gone: models have identities, so that a second
  # load compiles anew. Measured, of one load: at most 1,024 bytes, of a serving of two lengths.
  @compiled_bytes 4096

  @runs 3
  @options [compiler: Nx.Vulkan]

  setup_all do
    Models.tiny()
    :ok
  end

  # `fun` loads a model, uses it and calls the function that it gets while the model's parameters are on the device,
  # with the bytes that they are at least. When its process has ended nothing is left but constants of compiled
  # functions, and without these nothing at all.
  defp assert_unloads(fun) do
    Compiler.clear_cache()
    empty = DeviceMemory.in_use_bytes()
    run(fun)
    Compiler.clear_cache()
    before = DeviceMemory.in_use_bytes()
    assert rem(before - empty, @scalar_bytes) == 0
    assert before - empty <= 64 * @scalar_bytes

    for i <- 1..@runs do
      run(fun)
      assert DeviceMemory.in_use_bytes() - before <= i * @compiled_bytes
    end

    Compiler.clear_cache()
    assert DeviceMemory.in_use_bytes() == before
  end

  defp run(fun) do
    before = DeviceMemory.in_use_bytes()
    me = self()

    in_use = fn bytes ->
      used = DeviceMemory.in_use_bytes() - before
      assert bytes > @runs * @compiled_bytes
      assert used >= bytes
      send(me, :loaded)
    end

    Task.await(Task.async(fn -> fun.(in_use) end), to_timeout(minute: 5))
    assert_received :loaded
  end

  # Of those parameters that are not one number again and again, which is one element on the device.
  defp bytes(%{data: data}) do
    for {_path, tensor} <- Models.leaves(data), Nx.rank(tensor) > 1, reduce: 0, do: (sum -> sum + Nx.byte_size(tensor))
  end

  # As `Bumblebee.load_model(repository, backend: Nx.Vulkan.VulkanoBackend)` does.
  defp load(model_info), do: update_in(model_info.params, &Nx.backend_copy(&1, VulkanoBackend))

  defp texts, do: Bumblebee.apply_tokenizer(Tiny.tokenizer(), ["Hello there", "Go"])

  test "after forward passes of models of each type" do
    for type <- [{:f, 32}, {:bf, 16}] do
      assert_unloads(fn in_use ->
        %{model: model, params: params} = load(Tiny.reader(type: type, hidden_size: 64))
        {_init, predict} = Axon.build(model, @options)
        assert {2, 10, 64} = Nx.shape(predict.(params, texts()).hidden_state)
        in_use.(bytes(params))
        # It is needed until here.
        assert %VulkanoBackend{} = params.data["pooler.output"]["kernel"].data
      end)
    end
  end

  test "after generation" do
    assert_unloads(fn in_use ->
      %{model: model, params: params, spec: spec} = load(Tiny.writer())
      generate = Text.Generation.build_generate(model, spec, Tiny.generation_config(8))
      inputs = Map.put(texts(), "seed", Nx.tensor([1, 2]))
      assert {2, 8} = Nx.shape(Nx.Defn.jit_apply(generate, [params, inputs], @options).token_ids)
      in_use.(bytes(params))
      assert %VulkanoBackend{} = params.data["norm"]["gamma"].data
    end)
  end

  defp serve(serving, input, in_use) do
    name = __MODULE__.Serving
    {:ok, pid} = Supervisor.start_link([{Nx.Serving, name: name, serving: serving}], strategy: :one_for_one)
    result = Nx.Serving.batched_run(name, input)
    in_use.()
    # A stream is read to its end, or left.
    if is_function(result), do: assert([_ | _] = Enum.take(result, 2))
    Supervisor.stop(pid)
  end

  for stream <- [false, true] do
    test "after a serving of texts, streamed: #{stream}" do
      assert_unloads(fn in_use ->
        model_info = Tiny.writer()

        serving =
          Text.generation(model_info, Tiny.tokenizer(), Tiny.generation_config(8),
            compile: [batch_size: 2, sequence_length: [8, 16]],
            stream: unquote(stream),
            preallocate_params: true,
            defn_options: @options
          )

        # Bumblebee allocates parameters for each length.
        serve(serving, "Hello there", fn -> in_use.(2 * bytes(model_info.params)) end)
      end)
    end
  end

  test "after a serving of embeddings whose parameters were loaded to the device" do
    assert_unloads(fn in_use ->
      model_info = load(Tiny.reader())
      compile = [compile: [batch_size: 2, sequence_length: [8, 16]], defn_options: @options]
      serving = Text.text_embedding(model_info, Tiny.tokenizer(), compile)
      serve(serving, ["Hello there", "Go", "No"], fn -> in_use.(bytes(model_info.params)) end)
      assert %VulkanoBackend{} = model_info.params.data["pooler.output"]["kernel"].data
    end)
  end

  test "after a serving that is killed" do
    assert_unloads(fn in_use ->
      Process.flag(:trap_exit, true)
      model_info = Tiny.image_classifier()
      options = [compile: [batch_size: 2], preallocate_params: true, defn_options: @options]
      serving = Vision.image_classification(model_info, Tiny.featurizer(), options)
      {:ok, pid} = Nx.Serving.start_link(name: __MODULE__.Killed, serving: serving)
      image = Nx.iota({16, 16, 3}, type: :u8, backend: Nx.BinaryBackend)
      assert %{predictions: [_ | _]} = Nx.Serving.batched_run(__MODULE__.Killed, image)
      in_use.(bytes(model_info.params))
      Process.exit(pid, :kill)
      assert_receive {:EXIT, ^pid, :killed}
    end)
  end

  test "after training adapters" do
    # The guide defines it, too.
    [{Lora, _code}] = Code.compile_file("../../examples/transformers/lora.exs", __DIR__)
    on_exit(fn -> {:code.purge(Lora), :code.delete(Lora)} end)

    assert_unloads(fn in_use ->
      %{model: model, params: params} = load(Tiny.text_classifier())

      adapted =
        model |> Axon.nx(& &1.logits) |> Lora.adapt(4, &String.ends_with?(&1, ["attention.query", "head.output"]))

      inputs = Map.new(texts(), fn {name, tensor} -> {name, Nx.backend_copy(tensor, VulkanoBackend)} end)
      batches = List.duplicate({inputs, Nx.tensor([0, 1])}, 3)
      {init, _predict} = Axon.build(adapted, @options)
      loss = &Axon.Losses.categorical_cross_entropy(&1, &2, from_logits: true, sparse: true, reduction: :mean)

      trained =
        adapted
        |> Axon.Loop.trainer(loss, Polaris.Optimizers.adam(learning_rate: 0.01), log: 0)
        |> Axon.Loop.run(batches, init.(inputs, params), [epochs: 2] ++ @options)

      in_use.(bytes(params))
      kernel = trained.data["encoder.blocks.0.self_attention.query.b"]["kernel"]
      assert Nx.to_number(Nx.reduce_max(Nx.abs(kernel))) > 0
    end)
  end
end
