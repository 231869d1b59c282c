# Models of Bumblebee from a source checkout, without the rest of it: no tokenizer is needed. Axon is there already.
#
#     Code.require_file("bumblebee.exs", __DIR__)
#     Bumblebee.compile(~w(text/bert vision/resnet))

defmodule Bumblebee do
  @moduledoc false

  # The modules that users call for servings, and those of some servings.
  @servings ~w(text text/text_generation text/text_embedding text/text_classification
               vision vision/image_classification)

  # What all models need, in lib/bumblebee of the checkout.
  @shared ~w(model_spec configurable huggingface/transformers/config huggingface/transformers/model
             huggingface/transformers/utils shared shared/converters utils utils/nx utils/axon utils/model
             layers layers/decoder layers/transformer tokenizer featurizer logits_processor text/generation_config
             text/generation text/generation/logits_processing text/generation/stateless_logits_processor)

  # The folder of the checkout: BUMBLEBEE, or `bumblebee` among the checkouts of mix.exs; nil where there is none.
  def folder do
    deps = System.get_env("NX_VULKAN_DEPS", "~/.cache/nx_vulkan/deps")
    default = if deps != "", do: Path.join(Path.expand(deps), "bumblebee")
    folder = System.get_env("BUMBLEBEE", default || "")
    if File.dir?(Path.join(folder, "lib/bumblebee")), do: folder
  end

  # Files for `Bumblebee.Text` and `Bumblebee.Vision`: generation, embeddings, classes of texts and of images.
  def servings, do: @servings

  # Compiles files of lib/bumblebee and what they need, once, whoever asks.
  def compile(names) do
    folder = folder() || raise "BUMBLEBEE must be the folder of a checkout of Bumblebee"
    :global.trans({__MODULE__, self()}, fn -> compile(folder, Enum.uniq(@shared ++ names)) end, [node()])
    :ok
  end

  defp compile(folder, names) do
    compiled = :persistent_term.get(__MODULE__, [])
    # They name modules that are not compiled.
    warned = Code.get_compiler_option(:no_warn_undefined)
    Code.put_compiler_option(:no_warn_undefined, :all)
    files = for name <- names -- compiled, do: Path.join([folder, "lib/bumblebee", name <> ".ex"])

    # The behaviour of generation comes before the models that have it.
    {shared, models} = Enum.split_with(files, &(relative(&1, folder) in @shared))
    {generation, shared} = Enum.split_with(shared, &(Path.basename(&1) == "generation.ex"))
    {:ok, _, _} = Kernel.ParallelCompiler.compile(shared, return_diagnostics: true)
    for file <- generation, do: file |> File.read!() |> without_tokens() |> Code.compile_string(file)
    {:ok, _, _} = Kernel.ParallelCompiler.compile(models, return_diagnostics: true)
    Code.put_compiler_option(:no_warn_undefined, warned)
    :persistent_term.put(__MODULE__, Enum.uniq(compiled ++ names))
  end

  defp relative(file, folder), do: file |> Path.relative_to(Path.join(folder, "lib/bumblebee")) |> Path.rootname()

  # Bumblebee 0.7 hangs the hook of its streams on a token, and Nx has none any more. Here it is on the ids that are
  # written, so that a generation that nobody streams has no launch more.
  @hook [
    {"token_ids = Nx.new_axis(token_id, -1)\n    sequences = Nx.put_slice(sequences, [0, length], token_ids)\n",
     "position = length\n"},
    {"token = create_token()\n    {token, _} = hook_token(token, data, :token)\n",
     "%{token_id: token_id} = io_call(data, :token)\n" <>
       "    sequences = Nx.put_slice(sequences, [0, position], Nx.new_axis(token_id, -1))\n"},
    {"attach_token(token, state)", "state"}
  ]

  defp without_tokens(source) do
    if function_exported?(Nx.Defn.Kernel, :hook_token, 3),
      do: source,
      else: Enum.reduce(@hook, source, &replace/2)
  end

  defp replace({from, to}, source) do
    [before, behind] = String.split(source, from)
    before <> to <> behind
  end

  def configure(spec, options \\ []) do
    %module{} = spec = struct!(spec)
    module.config(spec, options)
  end

  def apply_tokenizer(%module{} = tokenizer, texts), do: module.apply(tokenizer, texts)

  # Bumblebee's own, of local files: its main module under another name, which is this one's.
  def load_model(repository, options), do: call_original(:load_model, [repository, options])
  def load_spec(repository, options), do: call_original(:load_spec, [repository, options])

  # Where the package tokenizers is there.
  def load_tokenizer(repository, options) do
    compile(~w(text/pre_trained_tokenizer))
    call_original(:load_tokenizer, [repository, options])
  end

  defp call_original(function, arguments) do
    compile(~w(conversion/pytorch_params))
    :global.trans({__MODULE__.Original, self()}, fn -> original() end, [node()])
    apply(__MODULE__.Original, function, arguments)
  end

  defp original do
    if not Code.ensure_loaded?(__MODULE__.Original) do
      [_docs, source] =
        folder() |> Path.join("lib/bumblebee.ex") |> File.read!() |> String.split(~s(\n  """\n), parts: 2)

      warned = Code.get_compiler_option(:no_warn_undefined)
      Code.put_compiler_option(:no_warn_undefined, :all)
      {_, _} = Code.with_diagnostics(fn -> Code.compile_string("defmodule Bumblebee.Original do\n" <> source) end)
      Code.put_compiler_option(:no_warn_undefined, warned)
    end
  end

  def build_model(%module{} = spec), do: module.model(spec)

  # A model whose parameters, arithmetic and results are of a type.
  def build_model(spec, type) do
    policy = Axon.MixedPrecision.create_policy(params: type, compute: type, output: type)
    spec |> build_model() |> Axon.MixedPrecision.apply_policy(policy)
  end

  def logits_processor_init(%module{} = processor, context), do: module.init(processor, context)

  def logits_processor_process(%module{} = processor, state, logits, context),
    do: module.process(processor, state, logits, context)

  # What a model is asked for, of all that it answers.
  def result(predict) do
    fn parameters, inputs ->
      outputs = predict.(parameters, inputs)
      Enum.find_value([:logits, :hidden_state], &outputs[&1])
    end
  end
end
