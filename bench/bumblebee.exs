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

  # What a model is asked for, of all that it answers.
  def result(predict) do
    fn parameters, inputs ->
      outputs = predict.(parameters, inputs)
      Enum.find_value([:logits, :hidden_state], &outputs[&1])
    end
  end
end

defmodule Bumblebee.Text.Generation do
  @moduledoc false

  @callback init_cache(map, integer, integer, map) :: map
  @callback traverse_cache(map, map, fun) :: map
end

names =
  ~w(model_spec configurable huggingface/transformers/config huggingface/transformers/model shared shared/converters
     utils/nx utils/axon utils utils/model layers layers/decoder layers/transformer text/bert text/llama text/gpt2
     vision/resnet vision/vit)

files = for name <- names, do: Path.join([System.fetch_env!("BUMBLEBEE"), "lib/bumblebee", name <> ".ex"])
{:ok, _, _} = files |> Enum.filter(&File.regular?/1) |> Kernel.ParallelCompiler.compile(return_diagnostics: true)
