defmodule Nx.Vulkan.TimelinePagesTest do
  # What draws time lines in Livebook and in Phoenix LiveDashboard, where a checkout of these is there.
  use ExUnit.Case, async: false

  @moduletag :device

  if Code.ensure_loaded?(Kino.Render) do
    alias Nx.Vulkan.Timeline

    setup_all do
      {:ok, _} = Application.ensure_all_started(:kino)
      :ok
    end

    test "Livebook draws a timeline" do
      {_, timeline} = Timeline.record(fn -> :ok end, launches: false)
      assert %{type: :image, mime_type: "image/svg+xml", content: svg} = Kino.Render.to_livebook(timeline)
      assert svg == Timeline.svg(timeline)
    end

    test "Livebook's frame goes on" do
      for {opts, message} <- [{[refresh_ms: 0], ~r/:refresh_ms/}, {[interval_ms: 0], ~r/:interval_ms/}] do
        assert_raise ArgumentError, message, fn -> Timeline.Kino.new(opts) end
      end

      frame = Timeline.Kino.new(launches: false, interval_ms: 5, refresh_ms: 20)
      [%Timeline{} = first] = Kino.Frame.get_items(frame)
      later = later(frame, first.duration_ms, 200)
      assert later.duration_ms > first.duration_ms
    end

    defp later(frame, before_ms, tries) do
      [timeline] = Kino.Frame.get_items(frame)

      if timeline.duration_ms > before_ms or tries == 0 do
        timeline
      else
        Process.sleep(20)
        later(frame, before_ms, tries - 1)
      end
    end
  else
    @tag skip: "there are no checkouts of kino and table"
    test "Livebook draws a timeline", do: :ok
  end

  if Code.ensure_loaded?(Phoenix.LiveDashboard.PageBuilder) do
    alias Nx.Vulkan.LiveDashboardPage, as: Page
    alias Phoenix.LiveDashboard.PageBuilder

    # As a browser that is connected has it, or one that is not yet.
    defp socket(connected?) do
      socket = %Phoenix.LiveView.Socket{transport_pid: if(connected?, do: self())}
      Phoenix.Component.assign(socket, page: %PageBuilder{node: node(), module: Page})
    end

    defp html(socket) do
      socket.assigns |> Page.render() |> Phoenix.HTML.Safe.to_iodata() |> IO.iodata_to_binary()
    end

    test "the page of the dashboard draws anew when it is refreshed, and ends with its browser" do
      assert {:ok, session, requirements} = Page.init([])
      assert requirements == [module: Nx.Vulkan]
      assert Page.menu_link(session, %{modules: [Nx.Vulkan]}) == {:ok, "Vulkan"}
      assert Page.menu_link(session, %{modules: []}) == :skip

      {:ok, static} = Page.mount(%{}, session, socket(false))
      assert String.trim(html(static)) == ""
      assert {:noreply, ^static} = Page.handle_refresh(static)

      task =
        Task.async(fn ->
          {:ok, socket} = Page.mount(%{}, session, socket(true))
          assert [_, svg] = Regex.run(~r/src="data:image\/svg\+xml;base64,([^"]+)"/, html(socket))
          assert Base.decode64!(svg) =~ "Memory by kind"
          Nx.to_number(Nx.add(Nx.tensor(1, backend: Nx.Vulkan.VulkanoBackend), 1))
          {:noreply, refreshed} = Page.handle_refresh(socket)
          refute html(refreshed) == html(socket)
          socket
        end)

      %{assigns: %{recorder: recorder}} = socket = Task.await(task, 60_000)
      monitor = Process.monitor(recorder)
      assert_receive {:DOWN, ^monitor, :process, _, _}, 5_000
      {:noreply, gone} = Page.handle_refresh(socket)
      assert html(gone) =~ "Nothing is recorded any more"
    end

    test "the page says what is wrong" do
      {:ok, session, _} = Page.init(device: "no such device")
      {:ok, socket} = Page.mount(%{}, session, socket(true))
      assert html(socket) =~ ~r/no usable device matches/
      {:ok, session, _} = Page.init(interval_ms: 0)
      {:ok, socket} = Page.mount(%{}, session, socket(true))
      assert html(socket) =~ "expected :interval_ms to be a positive number of milliseconds, got: 0"
    end

    defmodule Router do
      use Phoenix.Router
      import Phoenix.LiveDashboard.Router

      scope "/" do
        pipe_through(:browser)
        live_dashboard("/dashboard", additional_pages: [vulkan: {Page, launches: true}])
      end

      pipeline :browser do
        plug(:fetch_session)
      end
    end

    defmodule Endpoint do
      use Phoenix.Endpoint, otp_app: :nx_vulkan_dashboard
    end

    test "the dashboard has the page" do
      for app <- [:phoenix, :phoenix_live_view, :phoenix_live_dashboard], do: Application.ensure_all_started(app)

      Application.put_env(:nx_vulkan_dashboard, Endpoint,
        secret_key_base: String.duplicate("a", 64),
        live_view: [signing_salt: "long enough a salt"],
        pubsub_server: Nx.Vulkan.Dashboard
      )

      start_supervised!({Phoenix.PubSub, name: Nx.Vulkan.Dashboard})
      start_supervised!(Endpoint)

      # What an endpoint leads to the router, whose errors are raised here.
      conn =
        %{Plug.Test.conn(:get, "/dashboard/vulkan") | secret_key_base: String.duplicate("a", 64)}
        |> Plug.Test.init_test_session(%{})
        |> Plug.Conn.put_private(:phoenix_endpoint, Endpoint)
        |> Router.call(Router.init([]))

      assert {conn.status, Plug.Conn.get_resp_header(conn, "location")} == {200, []}
      assert conn.resp_body =~ ~r/active[^>]*>\s*Vulkan\s*</
    end
  else
    @tag skip: "there are no checkouts of phoenix_live_dashboard and what it depends on"
    test "the dashboard has the page", do: :ok
  end
end
