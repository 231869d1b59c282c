defmodule Nx.Vulkan.TensorFile do
  @moduledoc false

  # Files of tensors that are read in parts, and the errors of these: what GGUF and safetensors have in common.

  alias Nx.Vulkan.{Error, VulkanoBackend}

  # Systems have no file with a byte behind it.
  @last_offset 0x7FFFFFFFFFFFFFFF

  @typedoc """
  What is wrong with a file: damage, with the byte where it begins if that is known, the field, and what came, or what
  `:file` says.
  """
  @type reason :: {:bad_file, non_neg_integer | nil, String.t(), String.t()} | {:io, term} | term

  @typedoc "Part of a file."
  @type part :: %{
          :name => String.t(),
          :offset => non_neg_integer,
          :bytes => non_neg_integer,
          optional(any) => any
        }

  @doc """
  A path as a binary. Raises where it is none.
  """
  @spec path!(term) :: String.t()
  def path!(path) do
    with true <- is_binary(path) or is_list(path),
         {:ok, path} when path != "" <- chardata(path),
         false <- String.contains?(path, <<0>>) do
      path
    else
      _ -> raise ArgumentError, "expected a path, as a string without null bytes, got: #{inspect(path)}"
    end
  end

  defp chardata(path) do
    {:ok, IO.chardata_to_string(path)}
  rescue
    _no_text in [ArgumentError, UnicodeConversionError] -> :error
  end

  @doc """
  The template of a tensor of a file. Raises where there is none of that type, shape and names, or none with elements.
  """
  @spec template!(term, term, term) :: Nx.Tensor.t()
  def template!(type, shape, names) do
    if not (is_tuple(shape) and shape |> Tuple.to_list() |> Enum.all?(&(is_integer(&1) and &1 > 0))) do
      raise ArgumentError, "expected a shape of positive integers, such as {60_000, 784}, got: #{inspect(shape)}"
    end

    if not (names == nil or (is_list(names) and Enum.all?(names, &is_atom/1) and length(names) == tuple_size(shape))) do
      raise ArgumentError,
            "expected :names to be a list of atoms, one for each axis of #{inspect(shape)}, got: #{inspect(names)}"
    end

    # It checks the type.
    Nx.template(shape, type, names: names)
  end

  @doc """
  A backend as `Nx.from_binary/3` takes it. Raises where it is none.
  """
  @spec backend!(term) :: module | {module, keyword}
  def backend!(backend) do
    module = if match?({_module, opts} when is_list(opts), backend), do: elem(backend, 0), else: backend

    if not (is_atom(module) and Code.ensure_loaded?(module) and backend?(module)) do
      raise ArgumentError,
            "expected :backend to be a module, or a module with its options, such as " <>
              "{Nx.Vulkan.VulkanoBackend, device: 0}, got: #{inspect(backend)}"
    end

    backend
  end

  defp backend?(module), do: function_exported?(module, :from_binary, 3)

  @doc """
  What `fun` answers, given the open file and its size in bytes. The file is closed again.
  """
  @spec read(Path.t(), atom, (:file.fd(), non_neg_integer -> {:ok, value} | {:error, reason})) ::
          {:ok, value} | {:error, Error.t()}
        when value: term
  def read(path, op, fun) do
    case :file.open(path, [:read, :raw, :binary]) do
      {:ok, file} ->
        try do
          with {:ok, size} <- :file.position(file, :eof),
               {:ok, value} <- fun.(file, size),
               do: {:ok, value},
               else: ({:error, reason} -> {:error, error(path, op, reason)})
        after
          :file.close(file)
        end

      {:error, reason} ->
        {:error, io_error(path, op, "open", reason)}
    end
  end

  @doc """
  A tensor of part of a file. To a device it goes without a binary of it.

  `part` says what the tensor is called, where its bytes begin and how many they are; `opts` are `Nx.from_binary/3`'s.
  """
  @spec tensor(Path.t(), atom, part, Nx.Type.t(), tuple, keyword) :: {:ok, Nx.Tensor.t()} | {:error, Error.t()}
  def tensor(path, op, part, type, shape, opts) do
    with {module, backend_options} when module in [VulkanoBackend, Nx.Vulkan.Backend] <- backend(opts[:backend]),
         out = Nx.template(shape, type),
         true <- part.bytes == byte_count(out) and part.offset + part.bytes <= @last_offset,
         {:ok, tensor} <- VulkanoBackend.from_file(out, IO.chardata_to_string(path), part.offset, backend_options) do
      {:ok, tensor}
    else
      # Where the file is damaged, this finds out how.
      _ -> read(path, op, &from_binary(&1, &2, part, type, shape, opts))
    end
  end

  @doc """
  The bytes that a tensor has in a file.
  """
  def byte_count(tensor), do: div(Nx.bit_size(tensor) + 7, 8)

  defp backend(nil), do: Nx.default_backend()
  defp backend({module, opts}), do: {module, opts}
  defp backend(module), do: {module, []}

  defp from_binary(_file, size, %{name: name, offset: offset, bytes: bytes}, _type, _shape, _opts)
       when offset + bytes > size,
       do: {:error, {:bad_file, offset, "data of #{name}", "the file ends before #{bytes} bytes of it"}}

  defp from_binary(file, _size, part, type, shape, opts) do
    with {:ok, bytes} <- data(file, part) do
      {:ok, bytes |> without_filling(Nx.template(shape, type)) |> Nx.from_binary(type, opts) |> Nx.reshape(shape)}
    end
  end

  # Elements of less than a byte may end within one.
  defp without_filling(bytes, tensor) do
    size = Nx.bit_size(tensor)

    case bytes do
      <<elements::bitstring-size(^size), filling::bitstring>> when bit_size(filling) < 8 -> elements
      _ -> bytes
    end
  end

  @doc """
  The bytes of a tensor of an open file.
  """
  @spec data(:file.fd(), part) :: {:ok, binary} | {:error, reason}
  def data(file, %{name: name, offset: offset, bytes: bytes}) do
    case :file.pread(file, offset, bytes) do
      {:ok, data} when byte_size(data) == bytes -> {:ok, data}
      {:error, reason} -> {:error, reason}
      _ -> {:error, {:bad_file, offset, "data of #{name}", "the file ends before #{bytes} bytes of it"}}
    end
  end

  @doc """
  The error of a reason, of the kind `:bad_file` or `:io`.
  """
  @spec error(Path.t(), atom, reason) :: Error.t()
  def error(path, op, {:bad_file, offset, field, what}) do
    place = if offset, do: " at byte #{offset}", else: ""

    Error.exception(
      kind: :bad_file,
      op: op,
      message: "#{path}: #{field}#{place}: #{what}",
      details: %{path: path, field: field, offset: offset}
    )
  end

  def error(path, op, {:io, reason}), do: io_error(path, op, "read", reason)
  def error(path, op, reason), do: io_error(path, op, "read", reason)

  @doc """
  The error of a file that could not be opened, read or written, as `what` says.
  """
  @spec io_error(Path.t(), atom, String.t(), term) :: Error.t()
  def io_error(path, op, what, reason) do
    message = "can't #{what} #{path}: #{:file.format_error(reason)}"
    Error.exception(kind: :io, op: op, message: message, details: %{path: path, reason: reason})
  end
end
