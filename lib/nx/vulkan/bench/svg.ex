defmodule Nx.Vulkan.Bench.Svg do
  @moduledoc false
  # A drawing of what was measured: a bar for each row, as long as its share of what the device can do.

  alias Nx.Vulkan.Bench.Text

  @width 900
  # Where bars begin, and how long the longest is; then come figures.
  @left 230
  @longest 400
  @line 22
  @bar 14
  @top 86
  # Where columns of figures end: shares, rates, times.
  @columns [698, 798, 884]

  @style """
  text { font: 13px system-ui, sans-serif; font-variant-numeric: tabular-nums; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .quiet { fill: #59636e }
  .wrong { fill: #c62828; font-weight: 600 }
  .paper { fill: #ffffff }
  .bar { fill: #2563a8 }
  .grid { stroke: #d1d9e0 }
  .limit { stroke: #59636e }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .quiet { fill: #9198a1 }
    .wrong { fill: #ff8a80 }
    .paper { fill: #0d1117 }
    .bar { fill: #6cb2ff }
    .grid { stroke: #3d444d }
    .limit { stroke: #9198a1 }
  }
  """

  @doc "The drawing as a text of XML."
  def draw(%{device: device, rows: rows}) do
    scale = rows |> Enum.map(& &1.share) |> Enum.filter(& &1) |> scale()
    height = @top + @line * length(rows) + 20
    title = escape("What #{device.name} does with Nx")

    IO.iodata_to_binary([
      ~s(<?xml version="1.0" encoding="UTF-8"?>\n),
      ~s(<svg xmlns="http://www.w3.org/2000/svg" width="#{@width}" height="#{height}" ),
      ~s(viewBox="0 0 #{@width} #{height}" role="img" aria-labelledby="title">\n),
      ~s(<title id="title">#{title}</title>\n<style>\n#{@style}</style>\n),
      ~s(<rect class="paper" width="#{@width}" height="#{height}"/>\n),
      ~s(<text class="title" x="16" y="26">#{title}</text>\n),
      ~s(<text class="quiet" x="16" y="46">#{escape(device.driver)}. ),
      ~s(Bars: share of what bounds the row#{note(scale)}</text>\n),
      grid(scale, height),
      rows |> Enum.with_index() |> Enum.map(fn {row, at} -> row(row, @top + @line * at, scale) end),
      "</svg>\n"
    ])
  end

  # Where most shares are below a tenth, the scale has decades, from a thousandth on. Shares above 1 are no mistake.
  defp scale(shares) do
    longest = Enum.max([1.0 | shares])
    small = Enum.count(shares, &(&1 < 0.1))
    if 2 * small > length(shares), do: {:decades, longest}, else: {:linear, longest}
  end

  defp note({:decades, _longest}), do: ", in decades"
  defp note({:linear, _longest}), do: ""

  defp length_of(share, {:linear, longest}), do: round(@longest * share / longest)

  defp length_of(share, {:decades, longest}),
    do: round(@longest * max(:math.log10(max(share, 1.0e-3) / 1.0e-3) / :math.log10(longest / 1.0e-3), 0.005))

  defp grid({kind, longest} = scale, height) do
    step = Float.ceil(longest) / 4
    shares = if kind == :linear, do: Enum.map(0..4, &(&1 * step)), else: [1.0e-3, 1.0e-2, 0.1, 1.0]

    for share <- shares, share <= longest do
      x = @left + if(share == 1.0e-3, do: 0, else: length_of(share, scale))

      [
        ~s(<line class="#{if share == 1.0, do: "limit", else: "grid"}" x1="#{x}" y1="#{@top - 8}" x2="#{x}" y2="#{height - 16}"/>\n),
        ~s(<text class="quiet" x="#{x}" y="#{@top - 12}" text-anchor="middle">#{Text.percent(share)}</text>\n)
      ]
    end
  end

  defp row(row, top, scale) do
    base = top + @bar - 3

    [
      ~s(<text x="#{@left - 10}" y="#{base}" text-anchor="end">#{escape(row.name)}</text>\n),
      if(row.share, do: bar(top, length_of(row.share, scale)), else: []),
      for({figure, x} <- Enum.zip(figures(row), @columns), figure != nil, do: figure(figure, x, base))
    ]
  end

  # One that can be told from none.
  defp bar(top, length),
    do: ~s(<rect class="bar" x="#{@left}" y="#{top}" width="#{max(length, 1)}" height="#{@bar}"/>\n)

  defp figure(text, x, base) do
    class = if text in ["WRONG", "failed"], do: "wrong", else: "quiet"
    ~s(<text class="#{class}" x="#{x}" y="#{base}" text-anchor="end">#{escape(text)}</text>\n)
  end

  defp figures(%{left_out: why}) when why != nil, do: ["left out"]
  defp figures(%{time_s: nil}), do: ["failed"]

  defp figures(row) do
    share = if row.wrong, do: "WRONG", else: row.share && Text.percent(row.share)
    [share, rate(Text.per_second(row)), Text.time(row.time_s)]
  end

  defp rate("-"), do: nil
  defp rate(rate), do: rate

  defp escape(text) do
    text |> String.replace("&", "&amp;") |> String.replace("<", "&lt;") |> String.replace(">", "&gt;")
  end
end
