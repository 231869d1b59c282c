defmodule Nx.Vulkan.Application do
  @moduledoc false
  # Starting touches no device: an application that has this one among its dependencies boots on any machine, and
  # the device is opened by the first use.

  use Application

  @impl true
  def start(_type, _args) do
    Supervisor.start_link([], strategy: :one_for_one, name: Nx.Vulkan.Supervisor)
  end
end
