# Tokens that models of Bumblebee generate on the backend and the compiler, beside Nx.BinaryBackend and the evaluator:
#
#     mix test --only models
Code.require_file("models.exs", __DIR__)

alias Nx.Vulkan.Models

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
    assert Nx.shape(results.token_ids) == {2, config.max_new_tokens}
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
    logits = Nx.to_list(logits[[.., -@new..-1//1]])

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

causal = for {_, _, :for_causal_language_modeling, _} = row <- Models.rows(), do: row
conditional = for {_, _, :for_conditional_generation, _} = row <- Models.rows(), do: row

for {file, _module, architecture, _options} = row <- causal ++ conditional do
  defmodule Module.concat(Nx.Vulkan.Models.Generation, Models.name(row)) do
    use ExUnit.Case, async: true

    alias Nx.Vulkan.Models.Generations

    @row row
    @moduletag :device
    @moduletag :models
    if Models.missing(), do: @moduletag(skip: Models.missing())

    setup_all do: Generations.suitable(@row)

    test "greedy: #{file} #{architecture} in f32", context do
      assert Generations.generate(context, context.prompt, Generations.config(), &Models.on_device/2) ==
               {context.tokens, context.lengths}
    end

    # Others than those of f32 may be right where two logits are close, and what follows is other then, too.
    for type <- [:bf16, :f16] do
      test "greedy: #{file} #{architecture} in #{type}", context do
        type = unquote(type)

        {tokens, lengths} =
          Generations.generate(context, context.prompt, Generations.config(), &Models.on_device/2, type)

        assert lengths == [8, 8]

        for {below, _} <- List.flatten(Generations.margins(context, context.prompt, tokens, lengths)),
            do: assert(below <= 2 * Models.tolerance(type))
      end
    end
  end
end

defmodule Nx.Vulkan.Models.GenerationTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.Models
  alias Nx.Vulkan.Models.Generations

  @moduletag :device
  @moduletag :models
  if Models.missing(), do: @moduletag(skip: Models.missing())

  @gpt2 {"text/gpt2", :for_causal_language_modeling}
  @llama {"text/llama", :for_causal_language_modeling}
  @t5 {"text/t5", :for_conditional_generation}

  defp suitable({file, architecture}, change \\ & &1, suits? \\ fn _ -> true end) do
    Models.rows()
    |> Enum.find(&match?({^file, _, ^architecture, _}, &1))
    |> Generations.suitable(change, suits?)
  end

  # The tokens and lengths that both give.
  defp same(example, options) do
    config = Generations.config(options)
    expected = Generations.generate(example, example.prompt, config, &Models.on_binary/2)
    assert Generations.generate(example, example.prompt, config, &Models.on_device/2) == expected
    expected
  end

  for {file, _} = model <- [@gpt2, @llama] do
    test "greedy: #{file} after one token" do
      example = suitable(unquote(model), &Generations.single/1)
      assert Nx.shape(example.prompt["input_ids"]) == {2, 1}
      assert same(example, []) == {example.tokens, [8, 8]}
    end
  end

  for {file, _} = model <- [@gpt2, @llama, @t5] do
    test "greedy: #{file} to the end of one sequence, and of both" do
      # A token that one sequence has, not at once, and the other has not.
      stop = fn tokens, others -> Enum.find(tl(tokens), &(&1 not in [hd(tokens) | others])) end

      example =
        suitable(unquote(model), & &1, fn [first, second] -> stop.(first, second) && stop.(second, first) end)

      [first, second] = example.tokens
      [stop, other] = [stop.(first, second), stop.(second, first)]
      length = Enum.find_index(first, &(&1 == stop)) + 1
      padded = Enum.take(first, length) ++ List.duplicate(1, 8 - length)
      assert same(example, eos_token_id: stop) == {[padded, second], [length, 8]}

      length_of_other = Enum.find_index(second, &(&1 == other)) + 1
      padded_other = Enum.take(second, length_of_other) ++ List.duplicate(1, 8 - length_of_other)

      assert same(example, eos_token_id: [stop, other]) ==
               {[padded, padded_other], [length, length_of_other]}
    end
  end

  # The numbers drawn are those of Nx.BinaryBackend to the bit; probabilities differ in the last digits.
  for {file, _} = model <- [@gpt2, @llama, @t5] do
    test "sampling: #{file}" do
      example = suitable(unquote(model))
      options = [strategy: %{type: :multinomial_sampling, top_k: 20, top_p: 0.9}, temperature: 1.5]
      {tokens, [8, 8]} = same(example, options)
      assert tokens != example.tokens

      seeds = Nx.tensor([5, 6], type: :s64, backend: Nx.BinaryBackend)
      assert {different, [8, 8]} = same(put_in(example.prompt["seed"], seeds), options)
      assert different != tokens
      assert {_, [8, 8]} = same(example, strategy: %{type: :multinomial_sampling})
    end
  end

  for {file, _} = model <- [@gpt2, @t5] do
    test "contrastive search: #{file}" do
      example = suitable(unquote(model))
      {tokens, [8, 8]} = same(example, strategy: %{type: :contrastive_search, top_k: 4, alpha: 0.6})
      assert tokens != example.tokens
    end
  end

  test "tokens that are forced, suppressed and not to be repeated: text/gpt2" do
    example = suitable(@gpt2)
    [[first | _], _] = example.tokens

    options = [
      no_repeat_ngram_length: 2,
      suppressed_token_ids: [first],
      forced_eos_token_id: 9,
      min_length: 12,
      eos_token_id: 9,
      temperature: 0.7
    ]

    {tokens, lengths} = same(example, options)
    for tokens <- tokens, do: assert(first not in tokens)
    assert Enum.all?(lengths, &(&1 > 5))
    for {tokens, length} <- Enum.zip(tokens, lengths), do: assert(Enum.at(tokens, length - 1) == 9)
  end

  test "a sequence of zeros, which only fills the batch: text/llama" do
    example = suitable(@llama)
    zeros = Nx.broadcast(Nx.tensor(0, type: :s64, backend: Nx.BinaryBackend), {1, 7})
    example = update_in(example.prompt["input_ids"], &Nx.put_slice(&1, [1, 0], zeros))
    {tokens, lengths} = same(example, [])
    assert tokens == [hd(example.tokens), List.duplicate(1, 8)]
    assert hd(lengths) == 8
  end
end
