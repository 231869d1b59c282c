# Small models of Bumblebee with random weights, and what stands in for the files that come with real ones: a tokenizer
# of letters, and a featurizer.
Code.require_file("../../bench/bumblebee.exs", __DIR__)

Bumblebee.compile(Bumblebee.servings() ++ ~w(text/bert text/gpt2 text/llama vision/vit))

defmodule Tiny.Tokenizer do
  @moduledoc """
  Letters are tokens, and so are letters that begin a word after a space.
  """

  @behaviour Bumblebee.Configurable
  @behaviour Bumblebee.Tokenizer

  @special ~w(<unk> <pad> <eos>)
  @letters for letter <- ?a..?z, do: <<letter>>
  @tokens @special ++ @letters ++ Enum.map(@letters, &(" " <> &1)) ++ String.graphemes(" .,!?-")
  @ids @tokens |> Enum.with_index() |> Map.new()

  defstruct length: nil, pad_direction: :right, return_token_type_ids: false, return_length: false

  def vocab_size, do: length(@tokens)

  @impl true
  def config(tokenizer, options), do: struct!(tokenizer, options)

  # Texts of one call are as long as the longest, or as the shortest of the lengths that is enough. What is longer than
  # all lengths loses its end.
  @impl true
  def apply(tokenizer, texts) do
    rows = for text <- List.wrap(texts), do: ids(String.downcase(text))
    lengths = List.wrap(tokenizer.length)
    rows = if lengths == [], do: rows, else: Enum.map(rows, &Enum.take(&1, Enum.max(lengths)))
    longest = rows |> Enum.map(&length/1) |> Enum.max()
    length = lengths |> Enum.filter(&(&1 >= longest)) |> Enum.min(fn -> longest end)
    padded = &pad(&1, length - length(&1), &2, tokenizer.pad_direction)

    encoded = %{
      "input_ids" => u32(for(row <- rows, do: padded.(row, 1))),
      "attention_mask" => u32(for(row <- rows, do: row |> Enum.map(fn _ -> 1 end) |> padded.(0)))
    }

    if tokenizer.return_length, do: Map.put(encoded, "length", u32(Enum.map(rows, &length/1))), else: encoded
  end

  defp ids(text), do: for([token] <- Regex.scan(~r/ [a-z]|./u, text), do: Map.get(@ids, token, 0))

  defp pad(row, count, value, :left), do: List.duplicate(value, count) ++ row
  defp pad(row, count, value, :right), do: row ++ List.duplicate(value, count)
  defp u32(list), do: Nx.tensor(list, type: :u32, backend: Nx.BinaryBackend)

  @impl true
  def decode(tokenizer, [list | _] = lists) when is_list(list), do: Enum.map(lists, &decode(tokenizer, &1))
  def decode(_tokenizer, ids), do: for(id <- ids, id >= length(@special), into: "", do: Enum.at(@tokens, id))

  @impl true
  def token_to_id(_tokenizer, token), do: @ids[token]

  @impl true
  def id_to_token(_tokenizer, id), do: Enum.at(@tokens, id)

  @impl true
  def special_tokens(_tokenizer), do: %{unk: "<unk>", pad: "<pad>", eos: "<eos>"}

  @impl true
  def additional_special_tokens(_tokenizer), do: MapSet.new()
end

defmodule Tiny.Featurizer do
  @moduledoc """
  Images become squares, by their nearest pixels, and on the device numbers from -1 to 1.
  """

  @behaviour Bumblebee.Configurable
  @behaviour Bumblebee.Featurizer

  defstruct size: 16

  @impl true
  def config(featurizer, options), do: struct!(featurizer, options)

  @impl true
  def process_input(%{size: size}, images) do
    Nx.with_default_backend(Nx.BinaryBackend, fn ->
      for image <- List.wrap(images) do
        {height, width, 3} = Nx.shape(image)
        nearest = fn length -> Nx.quotient(Nx.multiply(Nx.iota({size}), length), size) end
        image |> Nx.backend_copy() |> Nx.take(nearest.(height), axis: 0) |> Nx.take(nearest.(width), axis: 1)
      end
      |> Nx.stack()
    end)
  end

  @impl true
  def batch_template(%{size: size}, batch_size), do: Nx.template({batch_size, size, size, 3}, :u8)

  @impl true
  def process_batch(_featurizer, images), do: %{"pixel_values" => images |> Nx.divide(127.5) |> Nx.subtract(1)}
end

defmodule Tiny do
  @moduledoc """
  What `Bumblebee.load_model/2` and its like would return, of sizes that a CPU runs at once.
  """

  @compile {:no_warn_undefined, [Axon, Axon.ModelState]}

  alias Bumblebee.{Text, Vision}

  @sizes [hidden_size: 32, num_blocks: 2, num_attention_heads: 2, intermediate_size: 64]

  @doc "A model that writes: GPT-2, or Llama where the options ask for `module: Bumblebee.Text.Llama`."
  def writer(options \\ []), do: text(Text.Gpt2, :for_causal_language_modeling, options)

  @doc "A model that reads: BERT."
  def reader(options \\ []), do: text(Text.Bert, :base, options)

  @doc "BERT with classes of texts."
  def text_classifier(options \\ []), do: text(Text.Bert, :for_sequence_classification, [num_labels: 2] ++ options)

  @doc "ViT."
  def image_classifier(options \\ []) do
    options =
      [image_size: 16, patch_size: 4, num_labels: 3, id_to_label: %{0 => "cat", 1 => "dog", 2 => "owl"}] ++ options

    model_info(Vision.Vit, :for_image_classification, options)
  end

  defp text(module, architecture, options) do
    model_info(module, architecture, [vocab_size: Tiny.Tokenizer.vocab_size(), max_positions: 64] ++ options)
  end

  # Of the type `:type`, with weights that are the same every time. With those of this seed, what
  # GPT-2 writes is no tie.
  defp model_info(module, architecture, options) do
    {type, options} = Keyword.pop(options, :type, {:f, 32})
    {module, options} = Keyword.pop(options, :module, module)
    options = Keyword.merge(@sizes, options)
    spec = Bumblebee.configure(module, [architecture: architecture] ++ options)
    model = Bumblebee.build_model(spec, type)
    {init, _predict} = Axon.build(model, seed: 3)
    template = spec.__struct__.input_template(spec)
    params = Nx.Defn.jit_apply(init, [template, Axon.ModelState.empty()])
    %{model: model, spec: spec, params: livelier(params)}
  end

  # Untrained weights are so small that all texts are alike to a model.
  defp livelier(params) do
    update_in(params.data, &Map.new(&1, fn {layer, tensors} -> {layer, livelier(layer, tensors)} end))
  end

  defp livelier(layer, tensors) do
    factor = if layer =~ "embed", do: 8, else: 24

    Map.new(tensors, fn {name, tensor} ->
      {name, if(Nx.rank(tensor) == 2, do: tensor |> Nx.multiply(factor) |> Nx.as_type(tensor.type), else: tensor)}
    end)
  end

  @doc "What takes texts apart."
  def tokenizer, do: %Tiny.Tokenizer{}

  @doc "What makes images ready."
  def featurizer, do: %Tiny.Featurizer{}

  @doc "How texts are written: the likeliest token after each, `count` of them."
  def generation_config(count) do
    Bumblebee.configure(Text.GenerationConfig, max_new_tokens: count, pad_token_id: 1, eos_token_id: 2)
  end
end
