defmodule Nx.Vulkan.Application do
  @moduledoc false
  # An application that has this one among its dependencies boots on any machine. The first use opens the device, which
  # is when its absence is an error; only a device that the configuration names is opened here, since the NIFs
  # can't read the configuration by themselves.

  use Application

  @impl true
  def start(_type, _args) do
    configure()
    if Application.get_env(:nx_vulkan, :device), do: Nx.Vulkan.init()

    Supervisor.start_link([Nx.Vulkan.Compiler.Cache], strategy: :one_for_one, name: Nx.Vulkan.Supervisor)
  end

  @impl true
  def prep_stop(state) do
    Nx.Vulkan.Profile.print()
    Nx.Vulkan.NativeV.device_save_pipelines()
    state
  end

  defp configure do
    profile? = Nx.Vulkan.Profile.wanted?()
    folder = Application.get_env(:nx_vulkan, :dump_spirv)
    if profile? or folder, do: Nx.Vulkan.NativeV.device_configure(profile?, folder)
    if profile?, do: Nx.Vulkan.Profile.print_at_end()
  end
end
