defmodule Nx.Vulkan.Application do
  @moduledoc false
  # An application that has this one among its dependencies boots on any machine. The first use opens the device, which
  # is when its absence is an error; only a device that the configuration names is opened here, since the NIFs
  # can't read the configuration by themselves.

  use Application

  alias Nx.Vulkan.NativeV

  @impl true
  def start(_type, _args) do
    configure()
    # It says by itself what fails.
    if Application.get_env(:nx_vulkan, :device), do: Nx.Vulkan.init()
    save_at_end()

    Supervisor.start_link([Nx.Vulkan.Compiler.Cache], strategy: :one_for_one, name: Nx.Vulkan.Supervisor)
  end

  @impl true
  def prep_stop(state) do
    Nx.Vulkan.Profile.print()
    save()
    state
  end

  # A VM that ends with a script stops no applications.
  defp save_at_end do
    if not :persistent_term.get({__MODULE__, :saves}, false) do
      :persistent_term.put({__MODULE__, :saves}, true)
      System.at_exit(fn _status -> save() end)
    end
  end

  # Where nothing was computed there is no library to load for this.
  defp save do
    if :erlang.module_loaded(NativeV), do: NativeV.device_save_pipelines()
    Nx.Vulkan.Cache.trim()
  end

  @precision {__MODULE__, :precision}

  @doc """
  How exact products of f32 are in this VM: `:highest`, or `:high` where the configuration or the environment says so at
  the start.
  """
  @spec precision() :: :high | :highest
  def precision, do: :persistent_term.get(@precision, :highest)

  defp configure do
    profile? = Nx.Vulkan.Profile.wanted?()
    folder = Application.get_env(:nx_vulkan, :dump_spirv)
    high? = high?(Application.get_env(:nx_vulkan, :precision, :default))
    exact? = exact?(Application.get_env(:nx_vulkan, :attention, :fused))
    lower = lower(Application.get_env(:nx_vulkan, :lower, []))
    limit = time_limit(Application.get_env(:nx_vulkan, :time_limit))
    process_limit = process_limit(Application.get_env(:nx_vulkan, :process_memory_limit, :infinity))
    Nx.Vulkan.Cache.limit_bytes()

    if (profile? || folder || high? || exact? || lower || limit || process_limit) && Nx.Vulkan.Library.error() == nil,
      do: NativeV.device_configure(profile?, folder, high?, exact?, lower, limit, process_limit)

    # The engine reads the variable by itself.
    if high? or System.get_env("NX_VULKAN_PRECISION") == "high", do: :persistent_term.put(@precision, :high)
    if profile?, do: Nx.Vulkan.Profile.print_at_end()
  end

  defp exact?(:exact), do: true
  defp exact?(:fused), do: false

  defp exact?(other) do
    raise ArgumentError, "expected config :nx_vulkan, :attention to be :fused or :exact, got: #{inspect(other)}"
  end

  # The engine knows the types.
  defp lower([]), do: nil
  defp lower(:all), do: "all"

  defp lower(types) do
    if is_list(types) and Enum.all?(types, &is_atom/1) do
      Enum.map_join(types, ",", &Atom.to_string/1)
    else
      raise ArgumentError,
            "expected config :nx_vulkan, :lower to be a list of types, as [:f64, :s64], or :all, got: #{inspect(types)}"
    end
  end

  defp time_limit(limit) when is_nil(limit) or (is_integer(limit) and limit in 1..0xFFFFFFFF), do: limit

  defp time_limit(other) do
    raise ArgumentError,
          "expected config :nx_vulkan, :time_limit to be a number of milliseconds or nil, got: #{inspect(other)}"
  end

  defp process_limit(:infinity), do: nil

  defp process_limit(bytes) do
    if Nx.Vulkan.Memory.limit?(bytes) do
      bytes
    else
      raise ArgumentError,
            "expected config :nx_vulkan, :process_memory_limit to be a number of bytes below 2 ** 63, or :infinity, " <>
              "got: #{inspect(bytes)}"
    end
  end

  defp high?(:high), do: true
  defp high?(precision) when precision in [:default, :highest], do: false

  defp high?(other) do
    raise ArgumentError,
          "expected config :nx_vulkan, :precision to be :default, :high or :highest, got: #{inspect(other)}"
  end
end
