defmodule Nx.Vulkan.NativeV do
  @moduledoc """
  The functions of the native library.

  `Nx.Vulkan` and `Nx.Vulkan.VulkanoBackend` are what programs use. This module is the layer below: references to device
  memory in, references out. A reference owns its memory: when the BEAM collects it, the memory goes back to the pool.

  An `error` is `{:error, kind, op, message, details}` with the fields of `Nx.Vulkan.Error`, or `{:error, kind, message}`
  where there is no op. `:needs_compile` asks for the same call through the twin that runs on a dirty scheduler: the device
  is not open yet, or the kernel is not compiled.
  """

  # mix.exs builds the library before this module is compiled.
  use Rustler,
    otp_app: :nx_vulkan,
    crate: "nx_vulkan_native",
    skip_compilation?: true,
    load_from: {:nx_vulkan, "priv/native/#{Mix.env()}/nx_vulkan_native"}

  @type ref :: reference
  @type error :: {:error, Nx.Vulkan.Error.kind(), atom, String.t(), map}
  @type short_error :: {:error, Nx.Vulkan.Error.kind(), String.t()}
  @type tensor_result :: {:ok, ref} | {:ok, ref, :pressure} | error

  ## The device

  @doc """
  Every Vulkan device of this machine, usable or not. Dirty IO scheduler.
  """
  @spec device_list() :: {:ok, [map]} | short_error
  def device_list, do: nif_error()

  @doc """
  The device in use, which this opens if need be. Dirty IO scheduler.
  """
  @spec device_info() :: {:ok, map} | short_error
  def device_info, do: nif_error()

  @doc """
  Opens the device that `selector` names: an index, the digits of its UUID or a part of its name; with nil the one of
  `NX_VULKAN_DEVICE`, or the best there is. A VM uses one device: once one is open, naming another is an error. Dirty IO scheduler.
  """
  @spec device_open(String.t() | nil) :: :ok | short_error
  def device_open(_selector), do: nif_error()

  @doc """
  Counters of the engine: memory in bytes, submissions, dispatches, copies, barriers, pipelines. All zero while no device is open.
  """
  @spec device_stats() :: map
  def device_stats, do: nif_error()

  @doc """
  What the Vulkan validation layer has said so far; nil where it is not watching, see `NX_VULKAN_VALIDATION`. Dirty IO scheduler.
  """
  @spec device_validation_messages() :: [String.t()] | nil
  def device_validation_messages, do: nif_error()

  ## Tensors

  @doc """
  Uploads a tensor in Nx's binary layout, a bitstring of a sub-byte type filled up to whole bytes.

  `type` is Nx's short name, such as `:f32`. Normal scheduler, so only for small binaries; see `tensor_from_binary_dirty/3`.
  """
  @spec tensor_from_binary(atom, tuple, binary) :: tensor_result | :needs_compile
  def tensor_from_binary(_type, _shape, _binary), do: nif_error()

  @doc """
  As `tensor_from_binary/3`, for binaries of any size. Dirty IO scheduler.
  """
  @spec tensor_from_binary_dirty(atom, tuple, binary) :: tensor_result
  def tensor_from_binary_dirty(_type, _shape, _binary), do: nif_error()

  @doc """
  Waits for a tensor and reads it in Nx's binary layout, filled up to whole bytes: all of it, or the first `limit` elements.
  Dirty IO scheduler.
  """
  @spec tensor_to_binary(ref, non_neg_integer | nil) :: {:ok, binary} | error
  def tensor_to_binary(_ref, _limit), do: nif_error()

  @doc """
  Gives up the reference's hold on its memory without waiting for the garbage collector. Later uses are `:released` errors.
  """
  @spec tensor_release(ref) :: :ok | :already_deallocated
  def tensor_release(_ref), do: nif_error()

  @doc """
  How a tensor lies in memory: type, shape, strides and offset in elements, bytes of the storage.
  """
  @spec tensor_info(ref) :: {:ok, map} | error
  def tensor_info(_ref), do: nif_error()

  @doc """
  Runs one op of Nx by its name: records it and returns a reference to memory that the device fills later.

  `type` and `shape` are those of the result. `:pressure` beside the reference asks the caller to collect garbage, because
  device memory is short. Normal scheduler, below 1 ms.
  """
  @spec program_run(atom, keyword, [ref], atom, tuple) :: tensor_result | :needs_compile
  def program_run(_op, _attrs, _operands, _type, _shape), do: nif_error()

  @doc """
  As `program_run/5`, and it compiles the kernel if need be. Dirty CPU scheduler.
  """
  @spec program_run_compile(atom, keyword, [ref], atom, tuple) :: tensor_result
  def program_run_compile(_op, _attrs, _operands, _type, _shape), do: nif_error()

  defp nif_error, do: :erlang.nif_error(:nif_not_loaded)
end
