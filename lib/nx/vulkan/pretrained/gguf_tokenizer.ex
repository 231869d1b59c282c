defmodule Nx.Vulkan.Pretrained.GGUFTokenizer do
  @moduledoc false

  # What a GGUF file says of a tokenizer, in the words of Hugging Face: `tokenizer.json` of its package tokenizers, and
  # the names of special tokens. Pre-tokenizers and defaults are those of llama-vocab.cpp, the model of SentencePiece is
  # that of convert_slow_tokenizer.py.

  alias Nx.Vulkan.Error

  @letters "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
  @rest " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

  # How texts are cut before bytes are merged:
  #   digits  - at most so many stand together; :each is by a rule of its own, nil as GPT-2 has it
  #   whole   - a piece that is a token is not merged from its bytes
  #   bos     - texts begin with a token of their own, unless the file says something else
  @cuts %{
    "gpt-2" => %{digits: nil, normalizer: nil, whole: false, bos: false},
    "smollm" => %{digits: :each, normalizer: nil, whole: false, bos: false},
    "llama-bpe" => %{digits: "\\p{N}{1,3}", normalizer: nil, whole: true, bos: true},
    "qwen2" => %{digits: "\\p{N}", normalizer: %{"type" => "NFC"}, whole: false, bos: false}
  }
  @cut_names %{"llama3" => "llama-bpe", "llama-v3" => "llama-bpe"}

  # enum llama_token_type
  @normal 1
  @unknown 2
  @control 3
  @user_defined 4
  @byte 6
  @types 0..6

  # What stands for a space in SentencePiece.
  @space "▁"
  # Bytes of a piece: how it is merged takes time with the square of them.
  @longest_piece 1024

  @doc """
  The tokenizer: `:json`, as `tokenizer.json` has it, `:special_tokens` as `tokenizer_config.json` has them, and the
  `:type` that Bumblebee calls it by.
  """
  def tokenizer(gguf) do
    {:ok, tokenizer!(gguf)}
  catch
    {kind, message, details} ->
      details = Map.put(details, :path, gguf.path)
      {:error, Error.exception(kind: kind, op: :gguf, message: "#{gguf.path}: #{message}", details: details)}
  end

  defp tokenizer!(gguf) do
    model = text!(gguf, "model")

    {parts, bos?} =
      case model do
        "gpt2" -> byte_pairs(gguf)
        "llama" -> sentence_pieces(gguf)
        other -> unsupported("model", "the tokenizer #{other} is none of gpt2, llama")
      end

    tokens = tokens!(gguf)

    ids =
      for name <- ~w(bos eos unknown padding),
          id = id(gguf, name, tokens),
          into: %{},
          do: {name, {id, elem(tokens, id)}}

    special = for {name, key} <- special_names(), {_, token} <- [ids[name]], into: %{}, do: {key, token}

    json =
      Map.merge(parts, %{
        "version" => "1.0",
        "truncation" => nil,
        "padding" => nil,
        "added_tokens" => added(tokens, types!(gguf, tokens)),
        "post_processor" => template(gguf, ids, bos?)
      })

    %{json: json, special_tokens: special, type: type(gguf.metadata["general.architecture"], model)}
  end

  defp special_names do
    [
      {"bos", "bos_token"},
      {"eos", "eos_token"},
      {"eos", "sep_token"},
      {"unknown", "unk_token"},
      {"padding", "pad_token"}
    ]
  end

  # Types differ in names of special tokens alone, which are those of the file where it has them.
  defp type("gemma" <> _, _model), do: :gemma
  defp type("qwen" <> _, _model), do: :qwen2
  defp type("llama", _model), do: :llama
  defp type(_architecture, "gpt2"), do: :gpt2
  defp type(_architecture, "llama"), do: :llama

  ## Pairs of bytes

  defp byte_pairs(gguf) do
    name = text!(gguf, "pre")
    names = @cuts |> Map.keys() |> Enum.concat(Map.keys(@cut_names)) |> Enum.sort() |> Enum.join(", ")

    cut =
      @cuts[Map.get(@cut_names, name, name)] || unsupported("pre", "the pre-tokenizer #{name} is none of #{names}")

    vocabulary = vocabulary!(gguf)

    merges =
      for {merge, at} <- gguf |> list!("merges", &is_binary/1, "texts") |> Enum.with_index() do
        with [left, right] <- String.split(merge, " "),
             true <- Enum.all?([left, right, left <> right], &is_map_key(vocabulary, &1)) do
          [left, right]
        else
          _ ->
            what = inspect(merge, printable_limit: 64)
            bad("merges", "expected two tokens that make a third at #{at}, with a space between, got: #{what}")
        end
      end

    bytes = fn regex? ->
      %{"type" => "ByteLevel", "add_prefix_space" => false, "trim_offsets" => true, "use_regex" => regex?}
    end

    pre_tokenizer =
      case cut.digits do
        nil -> bytes.(true)
        :each -> sequence("pretokenizers", [%{"type" => "Digits", "individual_digits" => true}, bytes.(true)])
        digits -> sequence("pretokenizers", [split("#{@letters}|#{digits}|#{@rest}"), bytes.(false)])
      end

    parts = %{
      "normalizer" => cut.normalizer,
      "pre_tokenizer" => pre_tokenizer,
      "decoder" => bytes.(true),
      "model" => model(vocabulary, merges, %{"ignore_merges" => cut.whole})
    }

    {parts, cut.bos}
  end

  defp split(pattern) do
    %{"type" => "Split", "pattern" => %{"Regex" => pattern}, "behavior" => "Isolated", "invert" => false}
  end

  ## SentencePiece

  defp sentence_pieces(gguf) do
    tokens = tokens!(gguf)
    types = types!(gguf, tokens)
    scores = list!(gguf, "scores", &is_number/1, "numbers")
    same_length!("scores", scores, tokens)
    vocabulary = vocabulary!(gguf)

    unknown =
      id(gguf, "unknown", tokens) || Enum.find_index(types, &(&1 == @unknown)) ||
        bad("unknown_token_id", "expected the id of a token, got none")

    prefix? = flag(gguf, "add_space_prefix", true)
    spaces = %{"type" => "Replace", "pattern" => %{"String" => " "}, "content" => @space}
    prefix = %{"type" => "Prepend", "prepend" => @space}

    decoders =
      [
        %{"type" => "Replace", "pattern" => %{"String" => @space}, "content" => " "},
        %{"type" => "ByteFallback"},
        %{"type" => "Fuse"}
      ] ++ if(prefix?, do: [%{"type" => "Strip", "content" => " ", "start" => 1, "stop" => 0}], else: [])

    options = %{"unk_token" => elem(tokens, unknown), "fuse_unk" => true, "byte_fallback" => @byte in types}

    parts = %{
      "normalizer" => if(prefix?, do: sequence("normalizers", [prefix, spaces]), else: spaces),
      "pre_tokenizer" => nil,
      "decoder" => sequence("decoders", decoders),
      "model" => model(vocabulary, merges(tokens, types, scores, vocabulary), options)
    }

    {parts, true}
  end

  # SentencePiece merges the neighbours whose piece has the highest score.
  defp merges(tokens, types, scores, vocabulary) do
    pieces =
      for {piece, @normal, score} <- Enum.zip([Tuple.to_list(tokens), types, scores]) do
        if byte_size(piece) > @longest_piece,
          do: bad("tokens", "expected pieces of #{@longest_piece} bytes at most, got one of #{byte_size(piece)}")

        for {left, right} <- Enum.sort_by(halves(piece, vocabulary), fn {l, r} -> {vocabulary[l], vocabulary[r]} end),
            do: {{-score, -String.length(left), -String.length(right)}, [left, right]}
      end

    pieces |> Enum.concat() |> Enum.sort_by(&elem(&1, 0)) |> Enum.map(&elem(&1, 1))
  end

  defp halves(piece, vocabulary) do
    for at <- 1..(byte_size(piece) - 1)//1,
        <<left::binary-size(at), right::binary>> = piece,
        is_map_key(vocabulary, left) and is_map_key(vocabulary, right),
        do: {left, right}
  end

  ## Both

  defp sequence(name, list), do: %{"type" => "Sequence", name => list}

  defp model(vocabulary, merges, options) do
    Map.merge(
      %{
        "type" => "BPE",
        "dropout" => nil,
        "unk_token" => nil,
        "continuing_subword_prefix" => nil,
        "end_of_word_suffix" => nil,
        "fuse_unk" => false,
        "byte_fallback" => false,
        "ignore_merges" => false,
        "vocab" => vocabulary,
        "merges" => merges
      },
      options
    )
  end

  # Tokens that are found in texts before anything else is done to these.
  defp added(tokens, types) do
    for {token, id, type} <- Enum.zip([Tuple.to_list(tokens), 0..(tuple_size(tokens) - 1), types]),
        type in [@unknown, @control, @user_defined] do
      %{
        "id" => id,
        "content" => token,
        "single_word" => false,
        "lstrip" => false,
        "rstrip" => false,
        "normalized" => false,
        "special" => type != @user_defined
      }
    end
  end

  defp template(gguf, ids, bos?) do
    bos = if flag(gguf, "add_bos_token", bos?), do: [ids["bos"] || bad("bos_token_id", "expected an id, got none")]
    eos = if flag(gguf, "add_eos_token", false), do: [ids["eos"] || bad("eos_token_id", "expected an id, got none")]
    {bos, eos} = {bos || [], eos || []}

    around = fn name, type ->
      of = &Enum.map(&1, fn {_, token} -> %{"SpecialToken" => %{"id" => token, "type_id" => type}} end)
      of.(bos) ++ [%{"Sequence" => %{"id" => name, "type_id" => type}}] ++ of.(eos)
    end

    special =
      for {id, token} <- bos ++ eos, into: %{}, do: {token, %{"id" => token, "ids" => [id], "tokens" => [token]}}

    %{
      "type" => "TemplateProcessing",
      "single" => around.("A", 0),
      "pair" => around.("A", 0) ++ around.("B", 1),
      "special_tokens" => special
    }
  end

  ## Tables

  defp tokens!(gguf) do
    case list!(gguf, "tokens", &is_binary/1, "texts") do
      [] -> bad("tokens", "expected a token at least, got none")
      tokens -> List.to_tuple(tokens)
    end
  end

  # Ids by tokens.
  defp vocabulary!(gguf) do
    tokens = tokens!(gguf)

    for {token, id} <- tokens |> Tuple.to_list() |> Enum.with_index(), reduce: %{} do
      %{^token => first} ->
        bad("tokens", "expected each token once, got #{inspect(token, printable_limit: 64)} at #{first} and #{id}")

      vocabulary ->
        if not String.valid?(token), do: bad("tokens", "expected UTF-8 at #{id}, got: #{inspect(token, limit: 64)}")
        Map.put(vocabulary, token, id)
    end
  end

  # Files without types have normal tokens alone.
  defp types!(gguf, tokens) do
    if is_map_key(gguf.metadata, key("token_type")) do
      types = list!(gguf, "token_type", &(&1 in @types), "numbers from 0 to 6")
      same_length!("token_type", types, tokens)
      types
    else
      List.duplicate(@normal, tuple_size(tokens))
    end
  end

  defp same_length!(name, list, tokens) do
    if length(list) != tuple_size(tokens),
      do: bad(name, "expected as many as the #{tuple_size(tokens)} tokens, got: #{length(list)}")
  end

  defp list!(gguf, name, valid?, what) do
    case gguf.metadata[key(name)] do
      list when is_list(list) ->
        case Enum.find_index(list, &(not valid?.(&1))) do
          nil -> list
          at -> bad(name, "expected a list of #{what}, got at #{at}: #{inspect(Enum.at(list, at), limit: 8)}")
        end

      nil ->
        bad(name, "expected a list of #{what}, got none")

      other ->
        bad(name, "expected a list of #{what}, got: #{inspect(other, limit: 8)}")
    end
  end

  defp text!(gguf, name) do
    case gguf.metadata[key(name)] do
      text when is_binary(text) -> text
      other -> bad(name, "expected a text, got: #{inspect(other, limit: 8)}")
    end
  end

  defp id(gguf, name, tokens) do
    case gguf.metadata[key("#{name}_token_id")] do
      nil -> nil
      id when is_integer(id) and id >= 0 and id < tuple_size(tokens) -> id
      other -> bad("#{name}_token_id", "expected one of #{tuple_size(tokens)} tokens, got: #{inspect(other, limit: 8)}")
    end
  end

  defp flag(gguf, name, default) do
    case Map.get(gguf.metadata, key(name), default) do
      value when is_boolean(value) -> value
      other -> bad(name, "expected true or false, got: #{inspect(other, limit: 8)}")
    end
  end

  defp key(name), do: "tokenizer.ggml.#{name}"

  @spec bad(String.t(), String.t()) :: no_return
  defp bad(name, what), do: throw({:bad_file, "#{key(name)}: #{what}", %{field: key(name), offset: nil}})

  @spec unsupported(String.t(), String.t()) :: no_return
  defp unsupported(name, what), do: throw({:unsupported, "#{key(name)}: #{what}", %{field: key(name)}})
end
