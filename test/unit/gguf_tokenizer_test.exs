# What `tokenizer.json` is made of a GGUF file's tables.
defmodule Nx.Vulkan.Pretrained.GGUFTokenizerTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.{Error, GGUF}
  alias Nx.Vulkan.Pretrained.GGUFTokenizer

  @moduletag :tmp_dir

  @pairs %{
    "general.architecture" => "llama",
    "tokenizer.ggml.model" => "gpt2",
    "tokenizer.ggml.pre" => "llama-bpe",
    "tokenizer.ggml.tokens" => ~w(a b c Ġ ab abc <|begin|> <|end|> <|user|>),
    "tokenizer.ggml.merges" => ["a b", "ab c"],
    "tokenizer.ggml.token_type" => [1, 1, 1, 1, 1, 1, 3, 3, 4],
    "tokenizer.ggml.bos_token_id" => 6,
    "tokenizer.ggml.eos_token_id" => 7
  }

  @pieces %{
    "general.architecture" => "llama",
    "tokenizer.ggml.model" => "llama",
    "tokenizer.ggml.tokens" => ~w(<unk> <s> </s> <0x0A> ▁ a b ▁a ab ▁ab é),
    "tokenizer.ggml.scores" => [0.0, 0.0, 0.0, 0.0, -5.0, -6.0, -7.0, -2.0, -1.0, -3.0, -8.0],
    "tokenizer.ggml.token_type" => [2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1],
    "tokenizer.ggml.bos_token_id" => 1,
    "tokenizer.ggml.eos_token_id" => 2,
    "tokenizer.ggml.unknown_token_id" => 0
  }

  # Read back, as the package tokenizers reads it.
  defp tokenizer(folder, metadata) do
    path = Path.join(folder, "model.gguf")
    :ok = GGUF.write(path, Map.reject(metadata, fn {_, value} -> value == nil end), [])

    with {:ok, tokenizer} <- path |> GGUF.open!() |> GGUFTokenizer.tokenizer(),
         do: {:ok, %{tokenizer | json: tokenizer.json |> JSON.encode!() |> JSON.decode!()}}
  end

  defp put(metadata, key, value), do: Map.put(metadata, "tokenizer.ggml." <> key, value)

  defp special(token, type \\ 0), do: %{"SpecialToken" => %{"id" => token, "type_id" => type}}
  defp text(name, type), do: %{"Sequence" => %{"id" => name, "type_id" => type}}

  test "pairs of bytes, as Llama 3 has them", %{tmp_dir: folder} do
    {:ok, %{json: json, special_tokens: special, type: :llama}} = tokenizer(folder, @pairs)
    tokens = @pairs["tokenizer.ggml.tokens"]

    assert %{"type" => "BPE", "ignore_merges" => true, "byte_fallback" => false, "unk_token" => nil} = json["model"]
    assert json["model"]["vocab"] == tokens |> Enum.with_index() |> Map.new()
    assert json["model"]["merges"] == [["a", "b"], ["ab", "c"]]
    assert json["normalizer"] == nil
    assert %{"type" => "ByteLevel"} = json["decoder"]

    assert %{"type" => "Sequence", "pretokenizers" => [split, bytes]} = json["pre_tokenizer"]
    assert %{"type" => "Split", "behavior" => "Isolated", "invert" => false} = split
    assert %{"type" => "ByteLevel", "use_regex" => false, "add_prefix_space" => false} = bytes

    assert split["pattern"]["Regex"] ==
             ~S"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" <>
               ~S"\s*[\r\n]+|\s+(?!\S)|\s+"

    assert [%{"id" => 6, "content" => "<|begin|>", "special" => true, "normalized" => false}, end_of, user] =
             json["added_tokens"]

    assert %{"id" => 7, "special" => true} = end_of
    assert %{"id" => 8, "content" => "<|user|>", "special" => false} = user

    assert %{"type" => "TemplateProcessing"} = json["post_processor"]
    assert json["post_processor"]["single"] == [special("<|begin|>"), text("A", 0)]

    assert json["post_processor"]["pair"] ==
             [special("<|begin|>"), text("A", 0), special("<|begin|>", 1), text("B", 1)]

    assert json["post_processor"]["special_tokens"] ==
             %{"<|begin|>" => %{"id" => "<|begin|>", "ids" => [6], "tokens" => ["<|begin|>"]}}

    assert special == %{"bos_token" => "<|begin|>", "eos_token" => "<|end|>", "sep_token" => "<|end|>"}
  end

  test "pre-tokenizers of other models", %{tmp_dir: folder} do
    json = fn metadata -> elem(tokenizer(folder, metadata), 1).json end
    of = &json.(put(@pairs, "pre", &1))

    assert %{"type" => "ByteLevel", "use_regex" => true} = of.("gpt-2")["pre_tokenizer"]
    assert of.("gpt-2")["post_processor"]["single"] == [text("A", 0)]
    assert of.("gpt-2")["model"]["ignore_merges"] == false

    assert [%{"type" => "Digits", "individual_digits" => true}, %{"type" => "ByteLevel", "use_regex" => true}] =
             of.("smollm")["pre_tokenizer"]["pretokenizers"]

    assert [%{"pattern" => %{"Regex" => regex}}, _] = of.("qwen2")["pre_tokenizer"]["pretokenizers"]
    assert regex =~ ~S"\p{L}+|\p{N}| ?["
    assert of.("qwen2")["normalizer"] == %{"type" => "NFC"}
    assert of.("llama-v3") == of.("llama-bpe")

    both = @pairs |> put("add_bos_token", false) |> put("add_eos_token", true)
    assert json.(both)["post_processor"]["single"] == [text("A", 0), special("<|end|>")]

    # Without types no token is a special one.
    assert json.(put(@pairs, "token_type", nil))["added_tokens"] == []
  end

  test "SentencePiece: merges in the order of scores", %{tmp_dir: folder} do
    {:ok, %{json: json, special_tokens: special, type: :llama}} = tokenizer(folder, @pieces)

    assert %{"unk_token" => "<unk>", "byte_fallback" => true, "fuse_unk" => true, "ignore_merges" => false} =
             json["model"]

    assert json["model"]["merges"] == [["a", "b"], ["▁", "a"], ["▁a", "b"], ["▁", "ab"]]
    assert json["pre_tokenizer"] == nil

    assert json["normalizer"]["normalizers"] == [
             %{"type" => "Prepend", "prepend" => "▁"},
             %{"type" => "Replace", "pattern" => %{"String" => " "}, "content" => "▁"}
           ]

    assert Enum.map(json["decoder"]["decoders"], & &1["type"]) == ["Replace", "ByteFallback", "Fuse", "Strip"]
    assert Enum.map(json["added_tokens"], & &1["content"]) == ["<unk>", "<s>", "</s>"]
    assert json["post_processor"]["single"] == [special("<s>"), text("A", 0)]

    assert special ==
             %{"bos_token" => "<s>", "eos_token" => "</s>", "sep_token" => "</s>", "unk_token" => "<unk>"}

    gemma = @pieces |> put("add_space_prefix", false) |> Map.put("general.architecture", "gemma3")
    {:ok, %{json: json, type: :gemma}} = tokenizer(folder, gemma)
    assert json["normalizer"] == %{"type" => "Replace", "pattern" => %{"String" => " "}, "content" => "▁"}
    assert Enum.map(json["decoder"]["decoders"], & &1["type"]) == ["Replace", "ByteFallback", "Fuse"]
  end

  test "tables that are missing, or don't fit together", %{tmp_dir: folder} do
    path = Path.join(folder, "model.gguf")

    for {metadata, key, kind, message} <- [
          {put(@pairs, "model", nil), "model", :bad_file, "expected a text, got: nil"},
          {put(@pairs, "model", "t5"), "model", :unsupported, "the tokenizer t5 is none of gpt2, llama"},
          {put(@pairs, "pre", nil), "pre", :bad_file, "expected a text, got: nil"},
          {put(@pairs, "pre", "tekken"), "pre", :unsupported,
           "the pre-tokenizer tekken is none of gpt-2, llama-bpe, llama-v3, llama3, qwen2, smollm"},
          {put(@pairs, "tokens", nil), "tokens", :bad_file, "expected a list of texts, got none"},
          {put(@pairs, "tokens", []), "tokens", :bad_file, "expected a token at least, got none"},
          {put(@pairs, "tokens", [1, 2]), "tokens", :bad_file, "expected a list of texts, got at 0: 1"},
          {put(@pairs, "tokens", "a"), "tokens", :bad_file, "expected a list of texts, got: \"a\""},
          {put(@pairs, "tokens", ~w(a b c a)), "tokens", :bad_file, "expected each token once, got \"a\" at 0 and 3"},
          {put(@pairs, "tokens", ["a", <<255>>]), "tokens", :bad_file, "expected UTF-8 at 1, got: <<255>>"},
          {put(@pairs, "merges", nil), "merges", :bad_file, "expected a list of texts, got none"},
          {put(@pairs, "merges", ["a b", "ab"]), "merges", :bad_file,
           "expected two tokens that make a third at 1, with a space between, got: \"ab\""},
          {put(@pairs, "merges", ["b c"]), "merges", :bad_file, "got: \"b c\""},
          {put(@pairs, "merges", ["a b c"]), "merges", :bad_file, "got: \"a b c\""},
          {put(@pairs, "token_type", [1, 1]), "token_type", :bad_file, "expected as many as the 9 tokens, got: 2"},
          {put(@pairs, "token_type", List.duplicate(9, 9)), "token_type", :bad_file,
           "expected a list of numbers from 0 to 6, got at 0: 9"},
          {put(@pairs, "bos_token_id", 9), "bos_token_id", :bad_file, "expected one of 9 tokens, got: 9"},
          {put(@pairs, "bos_token_id", -1), "bos_token_id", :bad_file, "expected one of 9 tokens, got: -1"},
          {put(@pairs, "bos_token_id", nil), "bos_token_id", :bad_file, "expected an id, got none"},
          {@pairs |> put("eos_token_id", nil) |> put("add_eos_token", true), "eos_token_id", :bad_file,
           "expected an id, got none"},
          {put(@pairs, "add_bos_token", 1), "add_bos_token", :bad_file, "expected true or false, got: 1"},
          {put(@pieces, "scores", nil), "scores", :bad_file, "expected a list of numbers, got none"},
          {put(@pieces, "scores", [0.0]), "scores", :bad_file, "expected as many as the 11 tokens, got: 1"},
          {put(@pieces, "scores", List.duplicate(:nan, 11)), "scores", :bad_file,
           "expected a list of numbers, got at 0: :nan"},
          {@pieces |> put("unknown_token_id", nil) |> put("token_type", nil), "unknown_token_id", :bad_file,
           "expected the id of a token, got none"},
          {put(@pieces, "tokens", List.replace_at(@pieces["tokenizer.ggml.tokens"], 5, String.duplicate("a", 1025))),
           "tokens", :bad_file, "expected pieces of 1024 bytes at most, got one of 1025"}
        ] do
      field = "tokenizer.ggml." <> key
      assert {:error, %Error{kind: ^kind, details: %{field: ^field, path: ^path}} = error} = tokenizer(folder, metadata)
      assert error.message =~ "#{path}: #{field}: "
      assert error.message =~ message
    end
  end
end
