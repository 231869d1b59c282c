defmodule Nx.Vulkan.GGUF do
  @moduledoc """
  Files of models in the format GGUF, of llama.cpp and others: metadata, and tensors that are read when they are asked
  for.

      {:ok, gguf} = Nx.Vulkan.GGUF.open("model.gguf")
      gguf.metadata["general.architecture"]
      {:ok, weight} = Nx.Vulkan.GGUF.tensor(gguf, "blk.0.attn_q.weight")
      Nx.Vulkan.Quantized.dot(x, weight)

  ## Fields

    * `:path` - the file
    * `:version` - 2 or 3
    * `:metadata` - a map from keys to values: numbers, booleans, strings, and lists of these. Floats that the BEAM does
      not have are `:nan`, `:infinity` and `:neg_infinity`. Strings need not be UTF-8, keys are
    * `:alignment` - of the tensors, in bytes
    * `:tensors` - see `tensors/1`

  Files are little-endian. What a file says is checked before it is used: a damaged or hostile one is an error that
  names the field and where it stands, and no more memory is taken than the file has bytes, besides the terms of
  lists. All that stands before the data of tensors has to end within 1 GiB, and to have no more than 2 ** 24 keys,
  tensors and elements of lists together, some ten times what the largest vocabularies need: a length or a count that is
  wrong by a bit is told before much is read. Keys and names have 65,535 bytes at most.

  ## Source

  docs/gguf.md of ggml.
  """

  alias Nx.Vulkan.{Error, Quantized, TensorFile}
  alias Nx.Vulkan.GGUF.{Header, Writer}
  alias Nx.Vulkan.Quantized.Formats

  @enforce_keys [:path, :version, :metadata, :alignment, :tensors]
  defstruct [:path, :version, :metadata, :alignment, :tensors]

  @typedoc """
  A tensor of a file.

    * `:format` - a type of Nx, a format of `Nx.Vulkan.Quantized`, the name of one that it does not have, or
      `{:unknown, number}` of a type that has no name here
    * `:shape` - in the order of Nx, the reverse of the file's: rows lie along the last axis
    * `:bytes`, `:offset` - how many bytes it has in the file, nil of an unknown type, and where they begin
  """
  @type info :: %{
          name: String.t(),
          format: Nx.Type.t() | atom | {:unknown, non_neg_integer},
          shape: tuple,
          bytes: non_neg_integer | nil,
          offset: non_neg_integer
        }

  @type t :: %__MODULE__{
          path: Path.t(),
          version: 2 | 3,
          metadata: %{String.t() => term},
          alignment: pos_integer,
          tensors: [info]
        }

  @doc """
  Reads all of a file but the data of its tensors.

  ## Errors

  `Nx.Vulkan.Error` of the kind `:io` where the file can't be read, and `:bad_file` where it is no GGUF file or a
  damaged one. `:details` has the `:path` and, of the latter, the `:field` and its `:offset` in bytes.
  """
  @spec open(Path.t()) :: {:ok, t} | {:error, Error.t()}
  def open(path) do
    TensorFile.read(path, :gguf, fn file, size ->
      with {:ok, header} <- Header.read(file, size), do: {:ok, struct!(__MODULE__, Map.put(header, :path, path))}
    end)
  end

  @doc """
  `open/1`, which raises its error.
  """
  @spec open!(Path.t()) :: t
  def open!(path), do: ok!(open(path))

  @doc """
  The tensors, in the order of the file.

  ## Examples

      Nx.Vulkan.GGUF.tensors(gguf)
      #=> [%{name: "token_embd.weight", format: :q4_k, shape: {32000, 2048}, bytes: 36864000, offset: 737280}, ...]
  """
  @spec tensors(t) :: [info]
  def tensors(%__MODULE__{tensors: tensors}), do: tensors

  @doc """
  Reads a tensor: an `Nx.Tensor`, or an `Nx.Vulkan.Quantized` with the blocks as they are.

  ## Options

    * `:backend` - where it goes, `Nx.default_backend/0` by default

  ## Errors

  `Nx.Vulkan.Error` of the kind `:io` where the file can't be read, `:bad_file` where it has become shorter, and
  `:unsupported` for formats that `Nx.Vulkan.Quantized` does not have, and unknown ones. An `ArgumentError` where there
  is no tensor of this name.
  """
  @spec tensor(t, String.t(), keyword) :: {:ok, Nx.Tensor.t() | Quantized.t()} | {:error, Error.t()}
  def tensor(%__MODULE__{path: path} = gguf, name, opts \\ []) do
    opts = Keyword.validate!(opts, [:backend])

    info =
      Enum.find(gguf.tensors, &(&1.name == name)) ||
        raise ArgumentError, "there is no tensor #{inspect(name)} in #{path}, which has #{length(gguf.tensors)} tensors"

    with {:ok, shape, type} <- stored(info, path),
         {:ok, tensor} <- TensorFile.tensor(path, :gguf, info, type, shape, opts),
         do: {:ok, if(is_tuple(info.format), do: tensor, else: Quantized.from_blocks(tensor, info.format))}
  end

  @doc """
  `tensor/3`, which raises its error.
  """
  @spec tensor!(t, String.t(), keyword) :: Nx.Tensor.t() | Quantized.t()
  def tensor!(gguf, name, opts \\ []), do: ok!(tensor(gguf, name, opts))

  @doc """
  Writes a file of version 3.

  `metadata` is a map or a list of keys and values: strings, booleans, numbers and lists of these of one type.
  Integers are u32, or the first of s32, u64 and s64 that has them, lists of them the first of s32, u32, s64 and u64
  that has all; floats are f32. `{type, value}` says another type, `{:array, {type, values}}` that of a list; types
  are `:u8`, `:s8`, `:u16`, `:s16`, `:u32`, `:s32`, `:u64`, `:s64`, `:f32`, `:f64`, `:bool`, `:string`.
  `"general.alignment"` is that of the tensors, 32 where it is not there.

  `tensors` is a map or a list of names and tensors of the types f16, bf16, f32, f64, s8, s16, s32, s64, or
  `Nx.Vulkan.Quantized` of the formats of GGUF.

  The file takes its place when it is complete and on the disk. Until then it is beside it, under a name of its own that
  ends in `.part`, and is removed where an error or an exception ends this.

  ## Errors

  `Nx.Vulkan.Error` of the kind `:io` where the file can't be written. An `ArgumentError` for names, values or tensors
  that such a file can't have.

  ## Examples

      :ok = Nx.Vulkan.GGUF.write("model.gguf", %{"general.architecture" => "llama"}, [{"w", quantised}])
  """
  @spec write(Path.t(), Enumerable.t(), Enumerable.t()) :: :ok | {:error, Error.t()}
  def write(path, metadata, tensors) do
    with {:error, reason} <- Writer.write(path, metadata, tensors),
         do: {:error, TensorFile.io_error(path, :gguf, "write", reason)}
  end

  # The shape and type of what is read.
  defp stored(%{format: {:unknown, number}} = info, path),
    do: unsupported(info, path, "type #{number}, which is unknown")

  defp stored(%{format: {_, _} = type, shape: shape}, _path), do: {:ok, shape, type}

  defp stored(%{format: format, shape: shape} = info, path) do
    if is_map_key(Formats.blocks(), format) do
      {:ok, Formats.shapes(shape, format).blocks, {:u, 8}}
    else
      unsupported(info, path, "format #{format}, which can't be read yet")
    end
  end

  defp unsupported(%{name: name, format: format}, path, what) do
    message = "#{name} in #{path} has the #{what}"
    {:error, Error.exception(kind: :unsupported, op: :gguf, message: message, details: %{path: path, format: format})}
  end

  defp ok!({:ok, value}), do: value
  defp ok!({:error, error}), do: raise(error)
end
