if Code.ensure_loaded?(Kino.Render) do
  defimpl Kino.Render, for: Nx.Vulkan.Timeline do
    def to_livebook(timeline) do
      timeline |> Nx.Vulkan.Timeline.svg() |> Kino.Image.new(:svg) |> Kino.Render.to_livebook()
    end
  end

  defmodule Nx.Vulkan.Timeline.Kino do
    @moduledoc """
    A time line in Livebook that goes on while other cells run: memory of a device by kind and by process, and kernels.

        Nx.Vulkan.Timeline.Kino.new(launches: false)

    There where Kino is a dependency, as in a notebook with `Mix.install([:nx_vulkan, :kino])`. A cell whose value is a
    `Nx.Vulkan.Timeline`, as `Nx.Vulkan.Timeline.record/2` gives it, is drawn without this.
    """

    alias Nx.Vulkan.Timeline

    # What is drawn unless `:last_ms` says another time.
    @last_ms 60_000

    @doc """
    A frame with a drawing that is renewed until its cell runs again.

    ## Options

    Those of `Nx.Vulkan.Timeline`, of which `:last_ms` is a minute unless it is given, and

      * `:refresh_ms` - how often it is drawn, 1,000 by default
    """
    @spec new(keyword) :: Kino.Frame.t()
    def new(opts \\ []) do
      {refresh_ms, opts} = Keyword.pop(opts, :refresh_ms, 1_000)

      if not (is_integer(refresh_ms) and refresh_ms > 0) do
        raise ArgumentError,
              "expected :refresh_ms to be a positive number of milliseconds, got: #{inspect(refresh_ms)}"
      end

      frame = Kino.Frame.new()
      # Wrong options are errors here, rather than in Kino's supervisor.
      prepared = Timeline.prepared!(Keyword.put_new(opts, :last_ms, @last_ms))
      start = {GenServer, :start_link, [Timeline, {nil, prepared}]}
      recorder = Kino.start_child!(%{id: Timeline, start: start, restart: :temporary})
      draw = fn _ -> Kino.Frame.render(frame, Timeline.get(recorder)) end
      draw.(0)
      Kino.listen(refresh_ms, draw)
      frame
    end
  end
end
