# Models of Bumblebee from a source checkout (BUMBLEBEE=/path/to/bumblebee), without the rest of it: no tokenizer is
# needed. Axon is there already.

defmodule Bumblebee do
  @moduledoc false

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

names =
  ~w(model_spec configurable huggingface/transformers/config huggingface/transformers/model shared shared/converters
     utils/nx utils/axon utils utils/model logits_processor text/generation_config text/generation
     text/generation/logits_processing text/generation/stateless_logits_processor layers layers/decoder layers/transformer text/bert text/llama text/gpt2
     vision/resnet vision/vit)

files = for name <- names, do: Path.join([System.fetch_env!("BUMBLEBEE"), "lib/bumblebee", name <> ".ex"])

# Nx 0.13 has no tokens any more, by which Bumblebee 0.7 streams; nothing streams here.
{tokens, files} = files |> Enum.filter(&File.regular?/1) |> Enum.split_with(&(Path.basename(&1) == "generation.ex"))
{:ok, _, _} = Kernel.ParallelCompiler.compile(files, return_diagnostics: true)

for file <- tokens do
  source = File.read!(file)

  source =
    for {from, to} <- [
          {"token = create_token()", ""},
          {"{token, _} = hook_token(token, data, :token)", "_ = data"},
          {"attach_token(token, state)", "state"}
        ],
        reduce: source do
      source -> String.replace(source, from, to)
    end

  Code.compile_string(source, file)
end
