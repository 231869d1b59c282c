defmodule Nx.Vulkan.TensorFile do
  @moduledoc false

  # Files of tensors that are read in parts, and the errors of these: what GGUF and safetensors have in common.

  alias Nx.Vulkan.Error

  @typedoc """
  What is wrong with a file: damage, with the byte where it begins if that is known, the field, and what came, or what
  `:file` says.
  """
  @type reason :: {:bad_file, non_neg_integer | nil, String.t(), String.t()} | {:io, term} | term

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
  The bytes of a tensor of an open file.
  """
  @spec data(:file.fd(), %{name: String.t(), offset: non_neg_integer, bytes: non_neg_integer}) ::
          {:ok, binary} | {:error, reason}
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
