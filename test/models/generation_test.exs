# Tokens that models of Bumblebee generate on the backend and the compiler, beside Nx.BinaryBackend and the evaluator:
#
#     mix test --only models
Code.require_file("generations.exs", __DIR__)

alias Nx.Vulkan.Models

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
