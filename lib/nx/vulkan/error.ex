defmodule Nx.Vulkan.Error do
  @moduledoc """
  The exception of this library: what a device, a driver or this library can't do. Match on `:kind`.

  A wrong argument of the user's is an `ArgumentError` in Nx's words, never this. [Errors](errors.md) says what to do
  about each kind.

  ## Fields

    * `:kind` - what sort of failure it is, see `t:kind/0`
    * `:op` - the operation that failed, by Nx's name, or `nil` where it is a program as a whole or none. Where several
      ops became one kernel it is `:fused` or `:workgroup`, and the message lists them; what is no op of Nx has the name
      of what was called, such as `:tensor_from_binary`
    * `:message` - what happened, in words
    * `:details` - a map of what a program may want to look at, such as the sizes in bytes of an `:out_of_memory` and
      the index of its `:device`, and of an op in a compiled function the types of its `:operands` and `:outs`
  """

  @typedoc """
  The kinds of failure.

    * `:no_device` - no Vulkan loader, no driver, or no device that fits `NX_VULKAN_DEVICE` and the needs of the engine
    * `:unsupported` - this device, or this version, has no such operation for this type
    * `:invalid_program`, `:invalid_argument` - a rule of the engine was broken
    * `:too_large` - never fits on this device
    * `:out_of_memory` - does not fit now, or not in what the option `:memory` of a compiled function allows, or the
      limit of this process (`Nx.Vulkan.memory_limit/2`)
    * `:released` - the tensor was deallocated before
    * `:stopped` - a loop was left because the process that called it has ended
    * `:device_lost` - the driver gave up; a new VM is needed for this device. `details` has the indices of the
      `:devices` that are lost
    * `:timed_out` - the device completed nothing for the time limit of the
      [configuration](configuration.md#a-time-limit). It may still do so: asking again waits again
    * `:bad_shader` - a SPIR-V file that can't be read, is malformed or does not fit the call
    * `:bad_file` - a file of a model is none of its format, or damaged: `details` has the field and its offset
    * `:no_convergence` - an iteration did not settle
    * `:node_down` - the node that has a tensor's memory does not answer
    * `:vulkan` - a Vulkan call failed
    * `:io` - a file could not be read or written
    * `:nan`, `:infinity` - a result has some, and the option `:raise_on` of `Nx.Vulkan.Compiler` asks for an error
  """
  @type kind ::
          :no_device
          | :unsupported
          | :invalid_program
          | :invalid_argument
          | :too_large
          | :out_of_memory
          | :released
          | :stopped
          | :device_lost
          | :timed_out
          | :bad_shader
          | :bad_file
          | :no_convergence
          | :node_down
          | :vulkan
          | :io
          | :nan
          | :infinity

  @type t :: %__MODULE__{kind: kind, op: atom | nil, message: String.t(), details: map}

  @enforce_keys [:kind, :message]
  defexception [:kind, :op, :message, details: %{}]

  @doc """
  Builds the exception from its fields; `:kind` and `:message` are required.

  ## Examples

      iex> error = Nx.Vulkan.Error.exception(kind: :unsupported, op: :sort, message: "no kernel for c64")
      iex> Exception.message(error)
      "sort: no kernel for c64 (unsupported)"

      iex> Exception.message(Nx.Vulkan.Error.exception(kind: :no_device, message: "no Vulkan driver is installed"))
      "no Vulkan driver is installed (no_device)"
  """
  @impl true
  @spec exception(keyword) :: t
  def exception(fields), do: struct!(__MODULE__, fields)

  @impl true
  def message(%__MODULE__{kind: kind, op: nil, message: message}), do: "#{message} (#{kind})"
  def message(%__MODULE__{kind: kind, op: op, message: message}), do: "#{op}: #{message} (#{kind})"
end
