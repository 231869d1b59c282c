defmodule Nx.Vulkan do
  @moduledoc """
  Nx tensors on any Vulkan device: NVIDIA, AMD, Intel, Apple through MoltenVK, and the CPU through lavapipe.

      Nx.default_backend(Nx.Vulkan.VulkanoBackend)

      Nx.iota({3, 3}, type: :f32) |> Nx.dot(Nx.eye(3)) |> Nx.sum()

  From then on tensors live in the memory of the device and every op runs there. Nothing needs to be called first: the
  first op opens the device. `init/0` opens it earlier, for a program that wants to know at once whether there is one.

  ## Choosing a device

  Without a choice it is the best one there is: discrete before integrated before virtual before the CPU. A choice is an
  index of `devices/0`, the first digits of a UUID (8 or more, or any number after `uuid:`) or a part of the name, in the environment variable
  `NX_VULKAN_DEVICE`, or else in

      config :nx_vulkan, device: "h200"

  A configured device is opened when the application starts. A VM uses one device.

  ## Errors

  Wrong input is an `ArgumentError`, as everywhere in Nx. What the device or this library can't do is a `Nx.Vulkan.Error`:
  match on its `:kind`. On a machine with no device the application starts all the same, and the first op raises `:no_device`.
  """

  @behaviour Nx.Defn.Compiler

  alias Nx.Vulkan.{Compiler, Error, NativeV, Telemetry}

  require Logger

  @typedoc """
  A Vulkan device.

    * `:index` - its place in `devices/0`
    * `:name`, `:driver`, `:api_version` - as the driver has them
    * `:kind` - what sort of device it is; lavapipe is a `:cpu`
    * `:uuid` - 32 hexadecimal digits
    * `:memory_bytes` - its own memory, or the host's where it has none
    * `:has_f64` - whether shaders compute in double precision
    * `:usable`, `:reason` - whether the engine can use it, and if not, why
  """
  @type device :: %{
          index: non_neg_integer,
          name: String.t(),
          kind: :discrete | :integrated | :virtual | :cpu | :other,
          uuid: String.t(),
          driver: String.t(),
          api_version: String.t(),
          memory_bytes: non_neg_integer,
          has_f64: boolean,
          usable: boolean,
          reason: String.t() | nil
        }

  @doc """
  Opens the device. Calling it again is harmless.

  The first failure is logged as well, whoever the caller is.

  ## Errors

    * `:no_device` - no Vulkan loader, no driver, or no device that fits the choice
    * `:invalid_argument` - another device than the chosen one is open already
  """
  @spec init() :: :ok | {:error, Error.t()}
  def init do
    selector = selector()

    Telemetry.device_open(selector, fn ->
      with {:error, kind, message} <- NativeV.device_open(selector) do
        log_once(message)
        {:error, Error.exception(kind: kind, op: :init, message: message)}
      end
    end)
  end

  @doc """
  Every Vulkan device of this machine, in the order of the driver; the ones that the engine can't use say why.

  Empty where there is no Vulkan loader or no driver.
  """
  @spec devices() :: [device]
  def devices do
    case NativeV.device_list() do
      {:ok, devices} -> devices
      {:error, :no_device, _message} -> []
      {:error, kind, message} -> raise Error, kind: kind, op: :devices, message: message
    end
  end

  @doc """
  The name of the device in use, or nil where there is none. Opens the device if it is not open.
  """
  @spec device_name() :: String.t() | nil
  def device_name, do: device(:name)

  @doc """
  Whether the device in use computes in double precision; false where there is none. Opens the device if it is not open.

  Without it, `f64`, `c128` and what needs them raise `Nx.Vulkan.Error` with the kind `:unsupported`: nothing is narrowed unasked.
  """
  @spec has_f64?() :: boolean
  def has_f64?, do: device(:has_f64) || false

  @doc false
  @impl true
  defdelegate __jit__(key, vars, fun, args_list, opts), to: Compiler
  @doc false
  @impl true
  defdelegate __compile__(key, vars, fun, opts), to: Compiler
  @doc false
  @impl true
  defdelegate __partitions_options__(opts), to: Compiler
  @doc false
  @impl true
  defdelegate __to_backend__(opts), to: Compiler
  @doc false
  @impl true
  defdelegate __shard_jit__(key, mesh, vars, fun, args_list, opts), to: Compiler

  defp device(key) do
    with :ok <- init(), {:ok, device} <- NativeV.device_info() do
      Map.fetch!(device, key)
    else
      _ -> nil
    end
  end

  @doc false
  def selector do
    case System.get_env("NX_VULKAN_DEVICE", "") do
      "" -> Application.get_env(:nx_vulkan, :device)
      selector -> selector
    end
  end

  defp log_once(message) do
    if not :persistent_term.get({__MODULE__, :failure_logged}, false) do
      :persistent_term.put({__MODULE__, :failure_logged}, true)
      Logger.warning("no Vulkan device is open: #{message}")
    end
  end
end
