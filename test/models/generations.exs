Code.require_file("models.exs", __DIR__)

defmodule Nx.Vulkan.Models.Generations do
  @moduledoc """
  Generation, and the same tokens given to the model at once, without a cache.
  """

  import ExUnit.Assertions

  alias Bumblebee.Text.{Generation, GenerationConfig}
  alias Nx.Vulkan.Models

  @compile {:no_warn_undefined, [Axon, Bumblebee.Text.Generation]}

  @new 8
  @start 2

  def config(options \\ []) do
    defaults = [max_new_tokens: @new, pad_token_id: 1, eos_token_id: nil, decoder_start_token_id: @start]
    Bumblebee.configure(GenerationConfig, Keyword.merge(defaults, options))
  end

  @doc """
  The first example of a row whose tokens are more than two different ones and no tie: they are the only ones that are
  right in f32, with a cache and without. `change` makes another prompt, `suits?` asks for more.
  """
  def suitable(row, change \\ & &1, suits? \\ fn _tokens -> true end) do
    Enum.find_value(0..19, fn seed ->
      example = Models.example(row, seed)
      prompt = example |> prompt() |> change.()
      {tokens, [@new, @new] = lengths} = generate(example, prompt, config(), &Models.on_binary/2)
      above = for {_below, above} <- List.flatten(margins(example, prompt, tokens, lengths)), do: above
      varied? = length(Enum.uniq(List.flatten(tokens))) > 2

      if varied? and Enum.min(above) > 4 * Models.tolerance(:f32) and suits?.(tokens),
        do: Map.merge(example, %{prompt: prompt, tokens: tokens, lengths: lengths})
    end) || flunk("no seed has tokens to compare")
  end

  @doc "What an example is given to go on from: without tokens of a decoder, with a seed for each sequence."
  def prompt(example) do
    example.inputs
    |> Map.drop(["decoder_input_ids", "decoder_attention_mask", "token_type_ids"])
    |> Map.put("seed", Nx.tensor([3, 4], type: :s64, backend: Nx.BinaryBackend))
  end

  @doc "One token for each sequence."
  def single(prompt) do
    ids = Nx.slice_along_axis(prompt["input_ids"], 6, 1, axis: 1)
    # The loop goes on with the type of argmax.
    ids = Nx.as_type(ids, :s32)
    %{prompt | "input_ids" => ids, "attention_mask" => Nx.broadcast(Nx.tensor(1, backend: Nx.BinaryBackend), ids)}
  end

  @doc "Tokens and lengths as lists, by `on`, a function of `Nx.Vulkan.Models`."
  def generate(example, prompt, config, on, type \\ :f32) do
    generate = Generation.build_generate(Models.model(example.spec, type), example.spec, config)
    results = on.(generate, Enum.map([example.parameters, prompt], &Models.as_type(&1, type)))
    assert Nx.shape(results.token_ids) == {Nx.size(prompt["seed"]), config.max_new_tokens}
    {Nx.to_list(results.token_ids), Nx.to_list(results.length)}
  end

  @doc """
  By how much of the largest logit each token that was generated is below the most likely one and above the best of the
  others, in f32 on `Nx.BinaryBackend`: pairs, a list for each sequence.
  """
  def margins(example, prompt, tokens, lengths) do
    {_init, predict} = Axon.build(example.model)
    inputs = prompt |> Map.delete("seed") |> with_tokens(example.model, tokens)
    logits = Models.on_binary(&predict.(&1, &2).logits, [example.parameters, inputs])
    logits = Nx.to_list(logits[[.., -length(hd(tokens))..-1//1]])

    for {logits, tokens, length} <- Enum.zip([logits, tokens, lengths]) do
      for {row, token} <- Enum.take(Enum.zip(logits, tokens), length) do
        largest = row |> Enum.map(&abs/1) |> Enum.max()
        {chosen, others} = List.pop_at(row, token)
        {(Enum.max(row) - chosen) / largest, (chosen - Enum.max(others)) / largest}
      end
    end
  end

  # The last token is not read.
  defp with_tokens(inputs, model, tokens) do
    tokens = Nx.tensor(tokens, type: :s64, backend: Nx.BinaryBackend)
    read = tokens[[.., 0..-2//1]]

    if encoder_decoder?(model) do
      start = Nx.broadcast(Nx.tensor(@start, backend: Nx.BinaryBackend), {2, 1})
      with_positions(inputs, model, "decoder_", Nx.concatenate([start, read], axis: 1), Nx.iota({2, @new}, axis: 1))
    else
      ones = Nx.broadcast(Nx.tensor(1, backend: Nx.BinaryBackend), read)
      mask = Nx.concatenate([inputs["attention_mask"], ones], axis: 1)
      positions = Nx.subtract(Nx.cumulative_sum(mask, axis: 1), mask)
      ids = Nx.concatenate([inputs["input_ids"], read], axis: 1)
      inputs |> Map.put("attention_mask", mask) |> with_positions(model, "", ids, positions)
    end
  end

  defp encoder_decoder?(model), do: Map.has_key?(Axon.get_inputs(model), "decoder_input_ids")

  # As in generation, from 0 on, wherever padding is.
  defp with_positions(inputs, model, prefix, ids, positions) do
    inputs = Map.put(inputs, prefix <> "input_ids", ids)
    name = prefix <> "position_ids"
    if Map.has_key?(Axon.get_inputs(model), name), do: Map.put(inputs, name, positions), else: inputs
  end
end
