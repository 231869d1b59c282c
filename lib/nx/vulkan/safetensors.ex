defmodule Nx.Vulkan.Safetensors do
  @moduledoc """
  Files of models in the format safetensors, of Hugging Face, MLX and others, whose quantised weights are read as
  `Nx.Vulkan.Quantized`.

      {:ok, file} = Nx.Vulkan.Safetensors.open("model.safetensors")
      {:ok, weight} = Nx.Vulkan.Safetensors.tensor(file, "model.layers.0.mlp.up_proj.weight")
      Nx.Vulkan.Quantized.dot(x, weight)

  ## Fields

    * `:paths` - the files
    * `:metadata` - a map of strings
    * `:tensors` - see `tensors/1`

  ## Quantised weights

  What files have as several tensors is one here, by the name that the layer's weight has in a model that is not
  quantised:

    * MLX: `x.weight` of u32, `x.scales` and `x.biases` become `x.weight`, `{:affine, bits, group}` of 2, 4 or 8 bits.
      The model's configuration has `bits` and `group_size`, also for single layers
    * GPTQ: `x.qweight`, `x.qzeros`, `x.scales` and `x.g_idx` become `x.weight`. Columns that were reordered by
      importance (`desc_act`) stay in the order of their groups, and what is multiplied with them is reordered
    * AWQ, as AutoAWQ stores it for its `gemm`: `x.qweight`, `x.qzeros` and `x.scales` become `x.weight`, of 4 bits
    * floats of 8 bits: `x.weight` of F8_E4M3 or F8_E5M2 and `x.weight_scale_inv` (DeepSeek, Qwen), one for each
      128 x 128 weights, or `x.weight_scale`, one for each row or one for all, become `x.weight`; where these are of U8,
      exponents of MXFP8, one for each 32 weights of a row

  Others that can be told by their names, such as `x.weight_packed` of compressed-tensors, are listed with a format
  `{:unknown, words}` and can't be read. What is not known at all is the integers that the file has.

  ## What is copied

  Opening reads the header alone. A tensor is read when it is asked for, its bytes alone. To the device they go as
  `Nx.Vulkan.from_file/4` has it, and for other backends into one binary outside of the process's heap first, which the
  BEAM frees then. Weights go to the device as they are in the file; those of GPTQ and AWQ are transposed or repacked
  there.

  What a file says is checked before it is used: a damaged or hostile one is an error that names the field and where it
  stands. A header has 100,000,000 bytes and 2 ** 20 tensors at most, and names have 65,535 bytes. As in the reference,
  data of tensors follow one another with nothing between, before or behind them.

  ## Source

  The README of safetensors, and its `tensor.rs`.
  """

  alias Nx.Vulkan.{Error, Quantized, TensorFile}
  alias Nx.Vulkan.Safetensors.{Header, Lazy, Weights, Writer}

  @enforce_keys [:paths, :metadata, :tensors]
  defstruct [:paths, :metadata, :tensors]

  @typedoc """
  A tensor of a model.

    * `:format` - a type of Nx, a format of `Nx.Vulkan.Quantized`, or `{:unknown, words}` of one that is neither
    * `:shape` - that of its values
    * `:bytes` - how many it has in the files
    * `:layout` - `:plain`, `:mlx`, `:gptq`, `:awq`, `:fp8` or `:unknown`
    * `:parts` - the tensors of the files that it is made of, with their `:name`, `:type`, `:shape`, `:path`,
      `:offset`, `:bytes`, and where their names stand, `:at`
  """
  @type info :: %{
          name: String.t(),
          format: Nx.Type.t() | Quantized.format() | {:unknown, String.t()},
          shape: tuple,
          bytes: non_neg_integer,
          layout: atom,
          parts: %{atom => map}
        }

  @type t :: %__MODULE__{paths: [Path.t()], metadata: %{String.t() => String.t()}, tensors: [info]}

  # More is no configuration.
  @most_config 16 * 1024 * 1024

  @doc """
  Reads all of a file, or of the files of one model, but the data of tensors.

  `path` is a file, a list of files, or a folder: then the files that its `model.safetensors.index.json` names, or
  `model.safetensors`.

  ## Options

    * `:quantization` - what the model's `config.json` has as `quantization` or `quantization_config`: a map such as
      `%{"bits" => 4, "group_size" => 64}`; `false` reads all tensors as the files have them. By default that of the
      `config.json` beside the first file is taken

  ## Errors

  `Nx.Vulkan.Error` of the kind `:io` where a file can't be read, and `:bad_file` where it is no safetensors file or a
  damaged one. `:details` has the `:path`, the `:field` and its `:offset` in bytes.
  """
  @spec open(Path.t() | [Path.t()], keyword) :: {:ok, t} | {:error, Error.t()}
  def open(path, opts \\ []) do
    opts = Keyword.validate!(opts, [:quantization])

    with {:ok, paths} <- paths(path),
         {:ok, config} <- config(opts[:quantization], paths),
         {:ok, headers} <- each(paths, &header/1),
         {:ok, tensors} <- once(Enum.flat_map(headers, & &1.tensors)) do
      metadata = Enum.reduce(headers, %{}, &Map.merge(&1.metadata, &2))
      weights = if config, do: Weights.of(tensors, config), else: Weights.of_plain(tensors)
      {:ok, %__MODULE__{paths: paths, metadata: metadata, tensors: weights}}
    end
  end

  @doc """
  `open/2`, which raises its error.
  """
  @spec open!(Path.t() | [Path.t()], keyword) :: t
  def open!(path, opts \\ []), do: ok!(open(path, opts))

  @doc """
  The tensors, in the order of the files.

  ## Examples

      Nx.Vulkan.Safetensors.tensors(file)
      #=> [%{name: "lm_head.weight", format: {:affine, 4, 64}, shape: {32000, 2048}, bytes: 36864000, ...}, ...]
  """
  @spec tensors(t) :: [info]
  def tensors(%__MODULE__{tensors: tensors}), do: tensors

  @doc """
  Reads a tensor: an `Nx.Tensor`, or an `Nx.Vulkan.Quantized`.

  ## Options

    * `:backend` - where it goes, `Nx.default_backend/0` by default

  ## Errors

  `Nx.Vulkan.Error` of the kind `:io` where a file can't be read, `:bad_file` where it has become shorter or what
  belongs together does not fit, and `:unsupported` for types and formats that Nx and `Nx.Vulkan.Quantized` do not have.
  An `ArgumentError` where there is no tensor of this name.
  """
  @spec tensor(t, String.t(), keyword) :: {:ok, Nx.Tensor.t() | Quantized.t()} | {:error, Error.t()}
  def tensor(%__MODULE__{} = file, name, opts \\ []) do
    opts = Keyword.validate!(opts, [:backend])

    info =
      Enum.find(file.tensors, &(&1.name == name)) ||
        raise ArgumentError,
              "there is no tensor #{inspect(name)} in #{Enum.join(file.paths, ", ")}, which has " <>
                "#{length(file.tensors)} tensors"

    value(info, opts)
  end

  @doc """
  `tensor/3`, which raises its error.
  """
  @spec tensor!(t, String.t(), keyword) :: Nx.Tensor.t() | Quantized.t()
  def tensor!(file, name, opts \\ []), do: ok!(tensor(file, name, opts))

  @doc """
  The tensors of a file by their names, as `Bumblebee.load_model/2` takes them from its option `:safetensors_reader`.

      Bumblebee.load_model({:local, folder}, safetensors_reader: &Nx.Vulkan.Safetensors.read!/1)

  Values are lazy (`Nx.LazyContainer`): each is read when it is asked for, to the default backend. Quantised weights
  become their values, in f32: `Nx.Vulkan.Pretrained.load_model/2` keeps them packed. Where an index beside the file
  names it among others, parts of its weights may be in these.

  ## Options

  Those of `open/2`, of which `:type` is another one: that of the values of quantised weights, f32 by default.

  ## Errors

  Those of `open/2`, raised.
  """
  @spec read!(Path.t(), keyword) :: %{String.t() => Nx.LazyContainer.t()}
  def read!(path, opts \\ []) do
    {type, opts} = Keyword.pop(opts, :type, :f32)

    for info <- open!(siblings(path), opts).tensors, path(info) == path, into: %{} do
      {info.name, %Lazy{info: info, type: Nx.Type.normalize!(type)}}
    end
  end

  @doc """
  Writes a file.

  `tensors` is a map or a list of names and tensors of the types that safetensors have, or `Nx.Vulkan.Quantized` of
  affine integers, which become the three tensors of MLX, and of floats of 8 bits, which become two with
  `_scale_inv`. A name of affine integers ends in `.weight`; their bits and group belong in the model's `config.json`,
  as `quantization`.

  ## Options

    * `:metadata` - a map or list of strings and strings

  The file takes its place when it is complete and on the disk. Until then it is beside it, under a name of its own that
  ends in `.part`, and is removed where an error or an exception ends this.

  ## Errors

  `Nx.Vulkan.Error` of the kind `:io` where the file can't be written. An `ArgumentError` for names, values or tensors
  that such a file can't have.

  ## Examples

      :ok = Nx.Vulkan.Safetensors.write("model.safetensors", [{"lm_head.weight", quantised}])
  """
  @spec write(Path.t(), Enumerable.t(), keyword) :: :ok | {:error, Error.t()}
  def write(path, tensors, opts \\ []) do
    opts = Keyword.validate!(opts, metadata: %{})

    with {:error, reason} <- Writer.write(path, tensors, opts[:metadata]),
         do: {:error, TensorFile.io_error(path, :safetensors, "write", reason)}
  end

  @doc false
  def value(%{format: {:unknown, what}, name: name} = info, _opts) do
    path = first(info).path
    message = "#{name} in #{path} has the format #{what}, which can't be read"
    {:error, error(:unsupported, message, %{path: path, format: info.format})}
  end

  def value(info, opts) do
    parts = Map.new(info.parts, fn {key, part} -> {key, part!(part, opts)} end)
    with {:ok, value} <- joined(info, parts), do: {:ok, placed(value, info, opts[:backend])}
  catch
    {:part, error} -> {:error, error}
  end

  defp joined(info, parts) do
    {:ok, Weights.value(info, parts)}
  rescue
    # Shapes of parts.
    exception in ArgumentError ->
      %{path: path, name: name, at: at} = first(info)
      {:error, failure(path, {:bad_file, at, "tensors of #{name}", Exception.message(exception)})}
  end

  # What was repacked may be where it was computed.
  defp placed(value, %{layout: layout}, backend) when layout in [:gptq, :awq] and backend != nil,
    do: Nx.backend_transfer(value, backend)

  defp placed(value, _info, _backend), do: value

  # The file that a tensor is in; that of its first part.
  @doc false
  def path(info), do: first(info).path

  # The part that has the name of the whole, or stands for it.
  defp first(%{parts: parts}), do: parts[:tensor] || parts[:weight] || parts[:qweight]

  defp part!(%{type: {:unknown, dtype}, name: name, path: path}, _opts) do
    message = "#{name} in #{path} has the type #{dtype}, which Nx does not have"
    throw({:part, error(:unsupported, message, %{path: path, format: {:unknown, dtype}})})
  end

  defp part!(%{bytes: 0, name: name, path: path, shape: shape}, _opts) do
    message = "#{name} in #{path} has the shape #{inspect(shape)} of no elements, which Nx does not have"
    throw({:part, error(:unsupported, message, %{path: path, shape: shape})})
  end

  defp part!(%{path: path, type: type, shape: shape} = part, opts) do
    case TensorFile.tensor(path, :safetensors, part, type, shape, opts) do
      {:ok, tensor} -> tensor
      {:error, error} -> throw({:part, error})
    end
  end

  ## Files of a model

  defp paths(paths) when is_list(paths) and paths != [] and not is_integer(hd(paths)), do: {:ok, paths}

  defp paths(path) do
    index = Path.join(path, "model.safetensors.index.json")

    cond do
      not File.dir?(path) -> {:ok, [path]}
      File.regular?(index) -> indexed(index)
      true -> {:ok, [Path.join(path, "model.safetensors")]}
    end
  end

  defp indexed(index) do
    with {:ok, json} <- json(index) do
      names = if is_map(json["weight_map"]), do: json["weight_map"] |> Map.values() |> Enum.uniq(), else: []

      # Files beside the index, and no others.
      if names != [] and Enum.all?(names, &(is_binary(&1) and Path.basename(&1) == &1 and &1 not in [".", ".."])),
        do: {:ok, for(name <- Enum.sort(names), do: Path.join(Path.dirname(index), name))},
        else: {:error, failure(index, {:bad_file, 0, "weight_map", "expected a map of names of files beside it"})}
    end
  end

  # The files of the model that this is one of.
  defp siblings(path) do
    index = Path.join(Path.dirname(path), "model.safetensors.index.json")

    with true <- File.regular?(index), {:ok, paths} <- indexed(index), true <- path in paths do
      paths
    else
      _ -> path
    end
  end

  defp config(false, _paths), do: {:ok, nil}
  defp config(%{} = config, _paths), do: {:ok, config}

  defp config(nil, [path | _]) do
    file = Path.join(Path.dirname(path), "config.json")

    if File.regular?(file) do
      with {:ok, json} <- json(file) do
        config = json["quantization"] || json["quantization_config"]
        {:ok, if(is_map(config), do: config, else: %{})}
      end
    else
      {:ok, %{}}
    end
  end

  defp config(other, _paths) do
    raise ArgumentError, "expected :quantization to be a map or false, got: #{inspect(other)}"
  end

  @doc false
  def json(path) do
    with {:ok, %{size: size}} when size <= @most_config <- File.stat(path), {:ok, text} <- File.read(path) do
      case JSON.decode(text) do
        {:ok, %{} = json} -> {:ok, json}
        {:ok, _} -> {:error, failure(path, {:bad_file, 0, "JSON", "expected an object"})}
        {:error, {:unexpected_end, at}} -> {:error, failure(path, {:bad_file, at, "JSON", "it ends here"})}
        {:error, reason} -> {:error, failure(path, {:bad_file, elem(reason, 1), "JSON", "unexpected"})}
      end
    else
      {:ok, _} -> {:error, failure(path, {:bad_file, 0, "JSON", "expected #{@most_config} bytes at most"})}
      {:error, reason} -> {:error, TensorFile.io_error(path, :safetensors, "read", reason)}
    end
  end

  defp header(path) do
    with {:ok, header} <- TensorFile.read(path, :safetensors, &Header.read/2) do
      {:ok, update_in(header.tensors, &for(tensor <- &1, do: Map.put(tensor, :path, path)))}
    end
  end

  defp once(tensors) do
    names = Enum.frequencies_by(tensors, & &1.name)

    case Enum.find(Enum.reverse(tensors), &(names[&1.name] > 1)) do
      nil -> {:ok, tensors}
      %{path: path, at: at, name: name} -> {:error, failure(path, {:bad_file, at, name, "it is in another file, too"})}
    end
  end

  defp each(list, fun) do
    Enum.reduce_while(list, {:ok, []}, fn item, {:ok, done} ->
      case fun.(item) do
        {:ok, value} -> {:cont, {:ok, done ++ [value]}}
        error -> {:halt, error}
      end
    end)
  end

  ## Errors

  defp ok!({:ok, value}), do: value
  defp ok!({:error, error}), do: raise(error)

  defp failure(path, reason), do: TensorFile.error(path, :safetensors, reason)

  defp error(kind, message, details) do
    Error.exception(kind: kind, op: :safetensors, message: message, details: details)
  end
end
