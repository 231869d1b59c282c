defmodule Nx.Vulkan.Profile do
  @moduledoc """
  How long each kernel takes on the device, and how near that is to what the device can do.

  All functions take the option `:device`, a selector (`Nx.Vulkan`) of the device that is meant; without it that is the
  default device. With `NX_VULKAN_PROFILE=1` in the environment, or

      config :nx_vulkan, profile: true

  times are taken from the start, and the table is printed when the VM ends. `start/0` and `stop/0` do so for a part of
  a program:

      Nx.Vulkan.Profile.start()
      MyModel.train(data)
      IO.puts(Nx.Vulkan.Profile.table())

  Times are timestamps of the device around every launch, of eager ops and compiled functions alike. Launches don't
  overlap while times are taken, so that each time is that of one kernel; a program takes longer then. Where nothing is
  measured, it costs nothing.

  ## The table

  One row for each kernel, those that took longest first: calls, total and mean time, bytes that had to move and
  operations per second, and the larger of the two shares of what the device can do. `Nx.Vulkan.Compiler.explain/3` says
  how bytes and operations are counted, and shows the same names. `copy` and `fill` are the driver's, uploads and
  downloads among them. `-` is what is not known.

  What the device can do is measured at the first table, by copies of its memory and a kernel of fused multiply-adds in
  f32, unless `limits:` or

      config :nx_vulkan, profile_limits: {4.8e12, 67.0e12}

  says it, in bytes and operations per second. So shares of f64 and of matrix units mean little.

  With `NX_VULKAN_STATISTICS=1` in the environment, a line for each kernel follows with what the driver's compiler made
  of it, where the driver tells (`VK_KHR_pipeline_executable_properties`): registers, spills, shared memory, subgroups
  at once, instructions, estimated cycles. Asking makes kernels compile slower.
  """

  alias Nx.Vulkan.{Devices, NativeV}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @typedoc "All launches of a kernel. `:flops` is nil where it is not known."
  @type row :: %{
          kernel: String.t(),
          calls: pos_integer,
          time_ns: non_neg_integer,
          read_bytes: non_neg_integer,
          written_bytes: non_neg_integer,
          flops: non_neg_integer | nil
        }

  @doc """
  Takes times from now on, in addition to those taken before. Opens the device if it is not open.

  ## Errors

  `Nx.Vulkan.Error` with the kind `:unsupported` where the device has no timestamps, `:no_device` where there is none.
  """
  @spec start(keyword) :: :ok
  def start(opts \\ []), do: call(&NativeV.profile_start/1, opts)

  @doc "Takes no more times. Those that were taken stay."
  @spec stop(keyword) :: :ok
  def stop(opts \\ []), do: call(&NativeV.profile_stop/1, opts)

  @doc "Forgets the times that were taken."
  @spec reset(keyword) :: :ok
  def reset(opts \\ []), do: call(&NativeV.profile_reset/1, opts)

  @doc """
  The times taken so far, what took longest first. Waits for the device.

  ## Examples

      Nx.Vulkan.Profile.rows()
      #=> [%{kernel: "map.exp.f32-93e0b25c", calls: 3, time_ns: 41250, read_bytes: 12000, written_bytes: 12000, flops: 3000}]
  """
  @spec rows(keyword) :: [row]
  def rows(opts \\ []) do
    opts = Keyword.validate!(opts, [:device])

    case get(nil, false, opts) do
      nil -> []
      profile -> profile.rows
    end
  end

  @doc """
  The times taken so far as a table. Waits for the device, and measures what it can do.

  ## Options

    * `:limits` - bytes and operations per second that the device can do, such as `{4.8e12, 67.0e12}`, in place of a
      measurement
  """
  @spec table(keyword) :: String.t()
  def table(opts \\ []) do
    opts = Keyword.validate!(opts, [:device, :limits])

    case get(limits(opts[:limits]), true, opts) do
      nil -> "The device is not open, so nothing was measured.\n"
      profile -> profile.table
    end
  end

  @doc false
  # What the device can do, measured unless that was done or said before; nil where the memory for it is lacking.
  def device_limits do
    with %{limits: limits} <- get(limits(Application.get_env(:nx_vulkan, :profile_limits)), true, []), do: limits
  end

  @doc false
  # Whether the environment or the configuration asks for a profile of the whole run.
  def wanted? do
    System.get_env("NX_VULKAN_PROFILE") in ["1", "true"] or Application.get_env(:nx_vulkan, :profile, false) == true
  end

  @doc false
  # Prints the table when the VM ends, by whichever way comes first. A device that is lost by then has nothing to tell.
  def print_at_end do
    printed = :atomics.new(1, [])
    :persistent_term.put(__MODULE__, printed)
    System.at_exit(fn _status -> print() end)
  end

  @doc false
  def print do
    with printed when printed != nil <- :persistent_term.get(__MODULE__, nil),
         0 <- :atomics.exchange(printed, 1, 1) do
      try do
        limits = Application.get_env(:nx_vulkan, :profile_limits)
        open = for %{open: true, index: index} <- Nx.Vulkan.devices(), do: index
        for index <- open, do: IO.puts(:stderr, table(limits: limits, device: index))
      rescue
        error in Nx.Vulkan.Error -> IO.puts(:stderr, "No profile: " <> Exception.message(error))
      end
    end
  end

  defp call(fun, opts) do
    device = opts |> Keyword.validate!([:device]) |> device()
    call = fn -> fun.(device) end
    B.settle(call.(), call)
    :ok
  end

  defp device(opts), do: Devices.index!(opts[:device])

  defp get(limits, measure, opts) do
    device = device(opts)
    get = fn -> NativeV.profile_get(limits, measure, device) end
    B.settle(get.(), get)
  end

  defp limits(nil), do: nil

  defp limits({bytes, flops}) when is_number(bytes) and is_number(flops) and bytes > 0 and flops > 0 do
    {bytes / 1, flops / 1}
  end

  defp limits(other) do
    raise ArgumentError, "expected :limits to be {bytes_per_second, flops_per_second}, got: #{inspect(other)}"
  end
end
