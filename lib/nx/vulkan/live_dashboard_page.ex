if Code.ensure_loaded?(Phoenix.LiveDashboard.PageBuilder) do
  defmodule Nx.Vulkan.LiveDashboardPage do
    @moduledoc """
    A page of Phoenix LiveDashboard with the time line of a device: its memory by kind and by process over the last
    minutes, and its kernels. There where `:phoenix_live_dashboard` is a dependency.

        live_dashboard "/dashboard", additional_pages: [vulkan: Nx.Vulkan.LiveDashboardPage]

    It is recorded on the node that the dashboard shows, from when the page is opened until it is left.

    ## Options

    As in `additional_pages: [vulkan: {Nx.Vulkan.LiveDashboardPage, launches: true}]`: those of `Nx.Vulkan.Timeline`.
    Other than there `:launches` is `false`, as launches that are recorded don't overlap and so whoever opens the page
    slows the node down; `:interval_ms` is 100, and `:last_ms` five minutes.
    """

    use Phoenix.LiveDashboard.PageBuilder

    alias Nx.Vulkan.Timeline

    @defaults [launches: false, interval_ms: 100, last_ms: 300_000]

    @impl true
    def init(opts), do: {:ok, %{recorded: Keyword.merge(@defaults, opts)}, module: Nx.Vulkan}

    @impl true
    def menu_link(_session, %{modules: modules}) do
      if Nx.Vulkan in modules, do: {:ok, "Vulkan"}, else: :skip
    end

    @impl true
    def mount(_params, %{recorded: opts}, socket) do
      socket = assign(socket, recorder: nil, drawing: nil, error: nil)
      {:ok, if(connected?(socket), do: recorded(socket, opts), else: socket)}
    end

    @impl true
    def handle_refresh(socket), do: {:noreply, drawn(socket)}

    @impl true
    def render(assigns) do
      ~H"""
      <p :if={@error} class="nx-vulkan-error">{@error}</p>
      <img
        :if={@drawing}
        src={"data:image/svg+xml;base64," <> Base.encode64(@drawing)}
        alt="Memory and kernels over time"
        style="width: 100%; max-width: 1060px"
      />
      """
    end

    defp recorded(socket, opts) do
      recorder = :erpc.call(socket.assigns.page.node, Timeline, :start_for, [self(), opts])
      socket |> assign(recorder: recorder) |> drawn()
    rescue
      # An error of the node comes as one of erpc, whose reason has it.
      error -> assign(socket, error: message(error))
    end

    defp drawn(%{assigns: %{recorder: nil}} = socket), do: socket

    defp drawn(%{assigns: %{recorder: recorder}} = socket) do
      assign(socket, drawing: recorder |> Timeline.get() |> Timeline.svg())
    catch
      :exit, reason -> assign(socket, recorder: nil, error: "Nothing is recorded any more: #{inspect(reason)}")
    end

    defp message(%ErlangError{original: {:exception, error, _stacktrace}}) when is_exception(error),
      do: Exception.message(error)

    defp message(error), do: Exception.message(error)
  end
end
