defmodule Nx.Vulkan.Pretrained do
  @moduledoc """
  Models of Bumblebee from quantised files, whose weights stay packed.

      {:ok, llama} = Nx.Vulkan.Pretrained.load_model("Llama-3.2-1B-Instruct-Q4_K_M.gguf", type: :bf16)
      {:ok, qwen} = Nx.Vulkan.Pretrained.load_model("Qwen3-8B-4bit", backend: Nx.Vulkan.VulkanoBackend)

  What comes is what `Bumblebee.load_model/2` gives: `%{model: model, params: params, spec: spec}`, for servings,
  generation, `Axon.predict/3` and `Nx.Vulkan.Lora`. Dense layers and embeddings whose weights are quantised in the file
  multiply them packed (`Nx.Vulkan.PackedLayers`).

  Bumblebee and Axon have to be dependencies of the project.
  """

  alias Nx.Vulkan.{Checkpoint, Error, GGUF, PackedLayers, Quantized, Safetensors, TensorFile, WholeFile}
  alias Nx.Vulkan.Pretrained.{Asked, Bounds, Deferred, GGUFModel, GGUFTokenizer}

  @of_bumblebee [:spec, :spec_overrides, :module, :architecture, :log_params_diff, :type]

  @doc """
  Loads a model.

  `path` is one of:

    * a GGUF file of the architectures `llama` (Llama, Mistral), `qwen3`, `gemma`, `gemma3` or `bert`. Names of layers
      become those of Hugging Face, rows of queries and keys get their order there, and a configuration is made from the
      file's metadata. Of GPT-like models the architecture is `:for_causal_language_modeling`, of BERT `:base`
    * a folder with `config.json` and `model.safetensors`, or several files and their index: of MLX, GPTQ, AWQ or
      floats of 8 bits (`Nx.Vulkan.Safetensors`), and of any model that Bumblebee knows

  Bumblebee's own mapping of parameters says which tensor belongs to which layer. Tensors are read one by one, and each
  that no layer wants is not read at all. A quantised weight that Bumblebee takes apart, or that belongs to another kind
  of layer, becomes its values. Parameters that the files lack, or have in another shape, begin at random, and are
  logged, as Bumblebee has it; but a quantised weight of another shape is an error, and so are a matrix of integers of
  no known format, and all of a GGUF file whose shape is not that of its metadata, and a block that lacks a weight. So
  is a model of more than four times as many parameters as the files of a folder have, before anything is begun.

  ## Options

    * `:backend` - where parameters go, `Nx.default_backend/0` by default
    * `:type` - the type in which the model computes, and of the parameters that are not quantised; f32 by default
    * `:quantization` - see `Nx.Vulkan.Safetensors.open/2`
    * `:spec`, `:spec_overrides`, `:module`, `:architecture`, `:log_params_diff` - as in `Bumblebee.load_model/2`

  ## Errors

  `{:error, error}` with an `Nx.Vulkan.Error` of the kind `:io` or `:bad_file` for files that can't be read or are
  damaged, and `:unsupported` for an architecture that is none of these and formats that can't be read, of weights that
  the model wants. What Bumblebee answers or raises. An `ArgumentError` where Bumblebee or Axon are missing.

  A Gemma of the first kind needs `spec_overrides: [activation: :gelu]`, or its like, with Bumblebee 0.7, which has no
  function for its own activation.
  """
  @spec load_model(Path.t(), keyword) ::
          {:ok, %{model: struct, params: struct, spec: struct}} | {:error, Error.t() | String.t()}
  def load_model(path, opts \\ []) do
    opts = Keyword.validate!(opts, [:backend, :quantization] ++ @of_bumblebee)

    there!([Module.concat(["Axon"]), bumblebee()])

    with_backend(opts[:backend], fn ->
      cond do
        File.dir?(path) -> from_safetensors(path, opts)
        Path.extname(path) == ".safetensors" -> raise ArgumentError, not_a_folder(path)
        true -> from_gguf(path, opts)
      end
    end)
  catch
    {:read, error} -> {:error, error}
  end

  @doc """
  `load_model/2`, which raises its error.
  """
  @spec load_model!(Path.t(), keyword) :: %{model: struct, params: struct, spec: struct}
  def load_model!(path, opts \\ []) do
    case load_model(path, opts) do
      {:ok, model_info} -> model_info
      {:error, %Error{} = error} -> raise error
      {:error, message} -> raise message
    end
  end

  @doc """
  Loads the tokenizer of a GGUF file.

      {:ok, tokenizer} = Nx.Vulkan.Pretrained.load_tokenizer("Llama-3.2-1B-Instruct-Q4_K_M.gguf")

  What comes is what `Bumblebee.load_tokenizer/2` gives, a `Bumblebee.Text.PreTrainedTokenizer`, made of the tables in
  the file's metadata by the package tokenizers, which Bumblebee depends on:

    * `gpt2`: pairs of bytes, with the pre-tokenizers `gpt-2`, `llama-bpe` (also `llama3`, `llama-v3`), `qwen2` and
      `smollm`
    * `llama`: SentencePiece with scores, as of Llama 2, Mistral and Gemma

  Control tokens are special ones. Whether texts begin or end with a token of their own is what the file says, or what
  llama.cpp has where it says nothing. A chat template is `metadata["tokenizer.chat_template"]` of
  `Nx.Vulkan.GGUF.open/1`. Tokenizers of folders come from `Bumblebee.load_tokenizer/2`.

  ## Errors

  `{:error, error}` with an `Nx.Vulkan.Error` of the kind `:io` or `:bad_file` for a file that can't be read or is
  damaged, or whose tables are missing or don't fit together, and `:unsupported` for another tokenizer or pre-tokenizer.
  An `ArgumentError` where Bumblebee or tokenizers are missing.
  """
  @spec load_tokenizer(Path.t()) :: {:ok, struct} | {:error, Error.t()}
  def load_tokenizer(path) do
    there!([bumblebee(), Module.concat(["Tokenizers", "Tokenizer"])])

    with {:ok, gguf} <- GGUF.open(path), {:ok, tokenizer} <- GGUFTokenizer.tokenizer(gguf) do
      files = %{
        "tokenizer.json" => JSON.encode!(tokenizer.json),
        "tokenizer_config.json" => JSON.encode!(tokenizer.special_tokens)
      }

      in_folder(files, &bumblebee().load_tokenizer({:local, &1}, type: tokenizer.type))
    end
  end

  defp there!(modules) do
    for module <- modules, not Code.ensure_loaded?(module) do
      raise ArgumentError, "expected #{inspect(module)} to be there: add bumblebee to the dependencies of the project"
    end
  end

  defp not_a_folder(path) do
    "expected a GGUF file, or the folder of a model's config.json and safetensors, got a file of the latter: #{path}"
  end

  defp with_backend(nil, fun), do: fun.()
  defp with_backend(backend, fun), do: Nx.with_default_backend(backend, fun)

  defp from_safetensors(folder, opts) do
    config = Path.join(folder, "config.json")

    with :ok <- configured(config, opts[:spec]),
         {:ok, file} <- Safetensors.open(folder, Keyword.take(opts, [:quantization])),
         {:ok, spec} <- spec(folder, config, file, opts),
         :ok <- Bounds.parameters(config, bumblebee().build_model(spec), spec, file.tensors) do
      asked = for info <- file.tensors, do: Asked.new(info, fn -> read(Safetensors.tensor(file, info.name)) end)

      # Each file's own: a weight lies in that of its first part.
      reader = fn path ->
        for %{info: info} = one <- asked, Safetensors.path(info) == path, into: %{}, do: {info.name, one}
      end

      opts = opts |> Keyword.delete(:spec_overrides) |> Keyword.put(:spec, spec)
      load(folder, reader, opts, fn params -> all_fit!(asked, params) end)
    end
  end

  # That of the options, or of a configuration.
  defp spec(folder, config, file, opts) do
    given = opts[:spec]

    with {:ok, spec} <- if(given, do: {:ok, given}, else: configuration(folder, config, file, opts)) do
      {:ok, if(overrides = opts[:spec_overrides], do: bumblebee().configure(spec, overrides), else: spec)}
    end
  end

  defp configuration(folder, config, file, opts) do
    with :ok <- Bounds.layers(config, file.tensors),
         do: bumblebee().load_spec({:local, folder}, Keyword.take(opts, [:module, :architecture]))
  end

  defp configured(_path, spec) when spec != nil, do: :ok

  defp configured(path, nil) do
    with {:error, reason} <- File.stat(path),
         do: {:error, TensorFile.io_error(path, :safetensors, "open", reason)},
         else: (_ -> :ok)
  end

  # Bumblebee leaves out what has another shape than its layer.
  defp all_fit!(asked, params) do
    placed = MapSet.new(names(params.data))

    for %{info: %{layout: layout, name: name} = info} = one <- asked,
        layout != :plain and Asked.left?(one) and name not in placed do
      message =
        "#{Safetensors.path(info)}: shape of #{name}: #{inspect(info.shape)} of #{inspect(info.format)} is not that " <>
          "of the model's layer; bits and groups are those of config.json, or of :quantization"

      details = %{path: Safetensors.path(info), field: "shape of #{name}", offset: nil}
      throw({:read, Error.exception(kind: :bad_file, op: :safetensors, message: message, details: details)})
    end
  end

  # Bumblebee is given a folder with the configuration, and a file that only its reader knows.
  defp from_gguf(path, opts) do
    scaled? = opts[:spec] != nil or Keyword.has_key?(opts[:spec_overrides] || [], :rotary_embedding_scaling_strategy)

    with {:ok, gguf} <- GGUF.open(path), {:ok, config} <- GGUFModel.config(gguf, scaled?) do
      reader = fn _path ->
        for {name, shape, read} <- GGUFModel.tensors(gguf), into: %{} do
          {name, Deferred.tensor(name, shape, fn -> caught(read) end)}
        end
      end

      in_folder(%{"config.json" => JSON.encode!(config), "model.safetensors" => ""}, fn folder ->
        load(folder, reader, opts, fn _params -> :ok end)
      end)
    end
  end

  # What `fun` answers of a folder of these files, which is removed again.
  defp in_folder(files, fun) do
    folder = Path.join(System.tmp_dir!(), "nx_vulkan-#{WholeFile.unique()}")
    File.mkdir_p!(folder)

    try do
      for {name, content} <- files, do: File.write!(Path.join(folder, name), content)
      fun.(folder)
    after
      File.rm_rf!(folder)
    end
  end

  defp caught(read) do
    read.()
  rescue
    error in Error -> throw({:read, error})
  end

  defp read({:ok, value}), do: value
  defp read({:error, error}), do: throw({:read, error})

  defp load(folder, reader, opts, check) do
    opts = Keyword.take(opts, @of_bumblebee) ++ [params_filename: "model.safetensors", safetensors_reader: reader]

    with {:ok, %{model: model, params: params} = model_info} <- bumblebee().load_model({:local, folder}, opts) do
      check.(params)
      {model, params} = read_all(model, params)
      {:ok, %{model_info | model: model, params: params}}
    end
  end

  # It is no dependency.
  defp bumblebee, do: Module.concat(["Bumblebee"])

  ## Parameters

  # Reads what Bumblebee has put into its place. A tensor that several layers have is read once.
  defp read_all(model, params) do
    nodes = Map.new(Checkpoint.layers(model))
    shared = params.data |> names() |> Enum.frequencies()

    {data, {kernels, _read}} =
      Enum.map_reduce(params.data, {%{}, %{}}, fn {layer, tensors}, acc ->
        {tensors, acc} =
          Enum.map_reduce(tensors, acc, fn {name, tensor}, {kernels, read} ->
            {value, read} = value(tensor, read, shared)

            if name == "kernel" and match?(%Quantized{}, value) and packs?(nodes[layer], tensor),
              do: {{name, nil}, {Map.put(kernels, layer, value), read}},
              else: {{name, values(tensor, value)}, {kernels, read}}
          end)

        {{layer, Map.new(tensors)}, acc}
      end)

    PackedLayers.pack(model, %{params | data: Map.new(data)}, kernels)
  end

  defp names(data) do
    for {_layer, tensors} <- data, {_name, %Nx.Tensor{data: %Deferred{name: name}}} <- tensors, do: name
  end

  defp value(%Nx.Tensor{data: %Deferred{name: name, read: read}}, values, shared) do
    case values do
      %{^name => value} ->
        {value, values}

      %{} ->
        value = read.()
        {value, if(shared[name] > 1, do: Map.put(values, name, value), else: values)}
    end
  end

  defp value(tensor, values, _shared), do: {tensor, values}

  # A weight of a dense layer is transposed, unless the layer's kernel is.
  defp packs?(node, %Nx.Tensor{data: %Deferred{transposed?: transposed?}}) do
    case node && PackedLayers.kind(node) do
      nil -> false
      kind -> transposed? == (kind == :dense)
    end
  end

  defp values(%Nx.Tensor{data: %Deferred{}} = tensor, value), do: Deferred.values(tensor, value)
  # Containers of several tensors, as those of recurrent layers, have been read.
  defp values(tensor, _value), do: tensor
end
