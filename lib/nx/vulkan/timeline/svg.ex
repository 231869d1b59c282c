defmodule Nx.Vulkan.Timeline.Svg do
  @moduledoc false
  # A drawing of a timeline: memory by kind as layers, memory by process as lines, and a lane for each kernel, over one
  # axis of time. Names stand in a column to the left, so that nothing is written over what is drawn.

  alias Nx.Vulkan.Cache

  @width 1060
  # Where time begins and ends; to the left of it are names and numbers of the axis, to the right the times of kernels.
  @left 370
  @right 970
  @names 16
  @layers_height 150
  @lines_height 110
  @lane_height 18
  @bar_height 11
  @line 19
  # What has most; the rest is summed up.
  @most_lanes 14
  @most_lines 5
  # What fits into the column of names, in letters.
  @name_letters 20
  @kernel_letters 42

  # What has less than this part of what the largest one has is among the others.
  @least_part 1.0e-3

  # What begins within this part of its length from zero begins at zero.
  @zero_part 0.01

  # From the bottom up, as numbers of colours.
  @kinds [tensors: 0, copies: 1, other: 2, staging: 3, free: 4]

  @style """
  text { font: 12px system-ui, sans-serif; font-variant-numeric: tabular-nums; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .head { font-weight: 600 }
  .quiet { fill: #59636e }
  .paper { fill: #ffffff }
  .grid { stroke: #d1d9e0 }
  .lane { fill: #f3f5f7 }
  .line { fill: none; stroke-width: 1.6; stroke-linejoin: round }
  .spilled { fill: none; stroke: #c62828; stroke-width: 1.6; stroke-dasharray: 5 3 }
  .f0 { fill: #2563a8 } .f1 { fill: #c96a1a } .f2 { fill: #3c8d4d } .f3 { fill: #8250bf } .f4 { fill: #c3ccd5 }
  .s0 { stroke: #2563a8 } .s1 { stroke: #c96a1a } .s2 { stroke: #3c8d4d }
  .s3 { stroke: #8250bf } .s4 { stroke: #b0307a } .s5 { stroke: #59636e }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .quiet { fill: #9198a1 }
    .paper { fill: #0d1117 }
    .grid { stroke: #3d444d }
    .lane { fill: #161b22 }
    .spilled { stroke: #ff8a80 }
    .f0 { fill: #6cb2ff } .f1 { fill: #f0a35e } .f2 { fill: #7fd08f } .f3 { fill: #c4a2f0 } .f4 { fill: #4a525c }
    .s0 { stroke: #6cb2ff } .s1 { stroke: #f0a35e } .s2 { stroke: #7fd08f }
    .s3 { stroke: #c4a2f0 } .s4 { stroke: #ff8ac8 } .s5 { stroke: #9198a1 }
  }
  """

  @doc "The drawing as a text of XML."
  def draw(%{samples: samples, launches: launches} = timeline) do
    span = span(samples, launches)
    samples = by_pixel(samples, span)
    lines = lines(samples)
    lanes = lanes(launches)

    {panels, bottom} =
      Enum.map_reduce(
        [&layers(samples, span, &1), &processes(samples, lines, span, &1), &kernels(lanes, launches, span, &1)],
        64,
        fn panel, top -> panel.(top) end
      )

    height = bottom + 24
    title = escape("Time line of #{timeline.device}")

    IO.iodata_to_binary([
      ~s(<?xml version="1.0" encoding="UTF-8"?>\n),
      ~s(<svg xmlns="http://www.w3.org/2000/svg" width="#{@width}" height="#{height}" ),
      ~s(viewBox="0 0 #{@width} #{height}" role="img" aria-label="#{title}">\n),
      ~s(<title>#{title}</title>\n<style>\n#{@style}</style>\n),
      ~s(<rect class="paper" width="#{@width}" height="#{height}"/>\n),
      text("title", @names, 28, "Time line of #{timeline.device}"),
      text("quiet", @names, 48, "#{time(timeline.duration_ms)} in all; names with the most that they had"),
      panels,
      for({at, label} <- times(span), do: text("quiet", x(at, span), bottom + 10, label, "middle")),
      "</svg>\n"
    ])
  end

  ## Time

  defp span([], launches), do: span([%{at_ms: 0.0}], launches)

  defp span(samples, launches) do
    first = hd(samples).at_ms
    last = Enum.max([List.last(samples).at_ms | for(launch <- launches, do: launch.at_ms + launch.ms)])
    first = if first < @zero_part * last, do: 0.0, else: first
    {first, max(last, first + 1.0e-3)}
  end

  defp x(at, {first, last}), do: Float.round(@left + (@right - @left) * (at - first) / (last - first), 2)

  # The largest of the samples that fall onto one pixel.
  defp by_pixel(samples, span) do
    samples
    |> Enum.chunk_by(&trunc(x(&1.at_ms, span)))
    |> Enum.map(fn chunk -> Enum.max_by(chunk, &total/1) end)
  end

  defp total(%{kinds: kinds}), do: kinds |> Map.values() |> Enum.sum()

  # Places on the axis that are round numbers, eight at most.
  defp times({first, last} = _span) do
    step = step((last - first) / 8)
    from = Float.ceil(first / step)
    for i <- 0..8, at = (from + i) * step, at <= last, do: {at, time(at)}
  end

  # The smallest of 1, 2, 5, 10, 20, ... that is no less.
  defp step(least) do
    power = :math.pow(10, Float.floor(:math.log10(least)))
    Enum.find([1, 2, 5, 10], &(&1 * power >= least * 0.999)) * power
  end

  defp time(ms) when ms == 0, do: "0"
  defp time(ms) when ms < 0.1, do: "#{number(ms * 1000)} us"
  defp time(ms) when ms < 1000, do: "#{number(ms)} ms"
  defp time(ms) when ms < 120_000, do: "#{number(ms / 1000)} s"
  defp time(ms), do: "#{number(ms / 60_000)} min"

  defp number(x) when x >= 100, do: "#{round(x)}"
  defp number(x), do: x |> Kernel./(1) |> Float.round(if(x < 1, do: 2, else: 1)) |> short()

  defp short(x), do: if(x == trunc(x), do: "#{trunc(x)}", else: "#{x}")

  defp grid(top, height, span) do
    for {at, _label} <- times(span) do
      ~s(<line class="grid" x1="#{x(at, span)}" y1="#{top}" x2="#{x(at, span)}" y2="#{top + height}"/>\n)
    end
  end

  ## Memory

  defp layers(samples, span, top) do
    used = for {kind, colour} <- @kinds, peak = peak(samples, & &1.kinds[kind]), peak > 0, do: {kind, colour, peak}
    most = scale(peak(samples, &total/1))
    plot = top + 22
    y = &y(&1, most, plot, @layers_height)

    {drawn, _} =
      Enum.map_reduce(used, [], fn {kind, colour, _peak}, below ->
        kinds = [kind | below]
        [upper, lower] = for sum <- [kinds, below], do: edge(samples, sum, y, span)
        {~s(<path class="f#{colour}" d="M#{upper}L#{reverse(lower)}Z"/>\n), kinds}
      end)

    spilled = peak(samples, & &1.spilled_bytes)

    legend =
      for({kind, colour, peak} <- Enum.reverse(used), do: {~s(class="f#{colour}"), "#{kind}", peak}) ++
        if(spilled > 0, do: [{:spilled, "spilled to the host", spilled}], else: [])

    panel = [
      text("head", @names, top + 10, "Memory by kind"),
      grid(plot, @layers_height, span),
      sizes(most, plot, @layers_height),
      drawn,
      if(spilled > 0, do: stepped("spilled", samples, & &1.spilled_bytes, y, span), else: []),
      legend(legend, plot)
    ]

    {panel, plot + @layers_height + 30}
  end

  # Memory is as it was until it is looked at again: points of the upper edge of these kinds together.
  defp edge(samples, kinds, y, span) do
    samples
    |> Enum.map(fn sample -> {x(sample.at_ms, span), y.(kinds |> Enum.map(&sample.kinds[&1]) |> Enum.sum())} end)
    |> steps()
  end

  defp steps([{x, y} | points]) do
    {points, {_, _}} =
      Enum.flat_map_reduce(points, {x, y}, fn {x, y}, {_, before} -> {[{x, before}, {x, y}], {x, y}} end)

    points([{x, y} | points])
  end

  defp steps([]), do: ""

  defp points(points), do: Enum.map_join(points, "L", fn {x, y} -> "#{x} #{y}" end)
  defp reverse(points), do: points |> String.split("L") |> Enum.reverse() |> Enum.join("L")

  defp stepped(class, samples, bytes, y, span) do
    path = samples |> Enum.map(&{x(&1.at_ms, span), y.(bytes.(&1))}) |> steps()
    ~s(<path class="#{class}" d="M#{path}"/>\n)
  end

  defp peak(samples, bytes), do: samples |> Enum.map(bytes) |> Enum.max(fn -> 0 end)

  # Processes by name, those that had most, and all others as one.
  defp lines(samples) do
    names =
      samples
      |> Enum.flat_map(&Map.to_list(by_name(&1)))
      |> Enum.reduce(%{}, fn {name, bytes}, peaks -> Map.update(peaks, name, bytes, &max(&1, bytes)) end)
      |> Enum.filter(fn {_name, peak} -> peak > 0 end)
      |> Enum.sort_by(fn {name, peak} -> {-peak, name} end)

    largest = names |> Enum.map(&elem(&1, 1)) |> Enum.max(fn -> 0 end)

    {first, rest} =
      names |> Enum.take(@most_lines) |> Enum.split_while(fn {_name, peak} -> peak >= @least_part * largest end)

    rest = for {name, _peak} <- rest ++ Enum.drop(names, @most_lines), do: name
    named = for {name, _peak} <- first, do: {name, &Map.get(by_name(&1), name, 0)}
    others = &(&1 |> by_name() |> Map.take(rest) |> Map.values() |> Enum.sum())
    if rest == [], do: named, else: named ++ [{"#{length(rest)} others", others}]
  end

  defp by_name(%{processes: processes}) do
    Enum.reduce(processes, %{}, fn %{name: name, bytes: bytes}, sums ->
      Map.update(sums, name, bytes, &(&1 + bytes))
    end)
  end

  defp processes(_samples, [], _span, top), do: {[], top}

  defp processes(samples, lines, span, top) do
    lines = for {name, bytes} <- lines, do: {name, bytes, peak(samples, bytes)}
    most = lines |> Enum.map(&elem(&1, 2)) |> Enum.max() |> scale()
    plot = top + 22
    height = max(@lines_height, @line * length(lines))
    y = &y(&1, most, plot, height)
    numbered = Enum.with_index(lines)

    panel = [
      text("head", @names, top + 10, "Memory by process"),
      grid(plot, height, span),
      sizes(most, plot, height),
      for({{_name, bytes, _peak}, i} <- numbered, do: stepped("line s#{i}", samples, bytes, y, span)),
      legend(for({{name, _bytes, peak}, i} <- numbered, do: {{:line, i}, name, peak}), plot)
    ]

    {panel, plot + height + 30}
  end

  # The top of an axis: a power of two, or three quarters of one.
  defp scale(bytes) do
    power = 2 ** max(ceil(:math.log2(max(bytes, 1))), 12)
    if bytes <= div(power * 3, 4), do: div(power * 3, 4), else: power
  end

  defp y(bytes, most, top, height), do: Float.round(top + height * (1 - bytes / most), 2)

  defp sizes(most, top, height) do
    for part <- 0..2 do
      y = top + height * (2 - part) / 2

      [
        ~s(<line class="grid" x1="#{@left}" y1="#{y}" x2="#{@right}" y2="#{y}"/>\n),
        text("quiet", @left - 8, y + 4, if(part == 0, do: "0", else: Cache.size(div(most * part, 2))), "end")
      ]
    end
  end

  defp legend(entries, top) do
    for {{mark, name, peak}, i} <- Enum.with_index(entries) do
      y = top + @line * i

      [
        mark(mark, y),
        text(nil, @names + 20, y + 10, [shortened(name, @name_letters), ", ", Cache.size(peak)])
      ]
    end
  end

  defp mark({:line, i}, y), do: ~s(<path class="line s#{i}" d="M#{@names} #{y + 6}h14"/>\n)
  defp mark(:spilled, y), do: ~s(<path class="spilled" d="M#{@names} #{y + 6}h14"/>\n)
  defp mark(class, y), do: ~s(<rect #{class} x="#{@names}" y="#{y}" width="14" height="12"/>\n)

  ## Kernels

  # Those that took longest first, and all others as one.
  defp lanes(launches) do
    lanes =
      launches
      |> Enum.group_by(& &1.kernel)
      |> Enum.map(fn {kernel, launches} -> {kernel, launches, took(launches)} end)
      |> Enum.sort_by(fn {kernel, _launches, ms} -> {-ms, kernel} end)

    case Enum.split(lanes, @most_lanes) do
      {lanes, []} ->
        lanes

      {lanes, rest} ->
        launches = rest |> Enum.flat_map(&elem(&1, 1)) |> Enum.sort_by(& &1.at_ms)
        lanes ++ [{"#{length(rest)} others", launches, took(launches)}]
    end
  end

  defp took(launches), do: launches |> Enum.map(& &1.ms) |> Enum.sum()

  defp kernels([], _launches, _span, top), do: {[], top}

  defp kernels(lanes, launches, span, top) do
    plot = top + 22
    height = @lane_height * length(lanes)

    panel = [
      text("head", @names, top + 10, "Kernels: #{length(launches)} launches, #{time(took(launches))} on the device"),
      for {{kernel, _launches, ms}, i} <- Enum.with_index(lanes) do
        y = plot + @lane_height * i

        [
          if(rem(i, 2) == 0, do: ~s(<rect class="lane" x="#{@names - 6}" y="#{y}" ), else: []),
          if(rem(i, 2) == 0, do: ~s(width="#{@width - 2 * (@names - 6)}" height="#{@lane_height}"/>\n), else: []),
          text(nil, @names, y + 13, shortened(kernel, @kernel_letters)),
          text("quiet", @width - @names, y + 13, time(ms), "end")
        ]
      end,
      grid(plot, height, span),
      for({{_kernel, launches, _ms}, i} <- Enum.with_index(lanes), do: bars(launches, plot + @lane_height * i, span))
    ]

    {panel, plot + height + 6}
  end

  # Launches that are too near to be told apart are one bar; what is too short to be seen is as wide as can be.
  defp bars(launches, y, span) do
    launches
    |> Enum.map(&{x(&1.at_ms, span), max(x(&1.at_ms + &1.ms, span), x(&1.at_ms, span) + 0.7)})
    |> Enum.sort()
    |> Enum.reduce([], fn
      {from, to}, [{first, last} | bars] when from - last < 0.5 -> [{first, max(to, last)} | bars]
      bar, bars -> [bar | bars]
    end)
    |> Enum.reverse()
    |> Enum.map_join(fn {from, to} ->
      height = @bar_height
      "M#{from} #{y + div(@lane_height - height, 2) + 1}H#{Float.round(to, 2)}v#{height}H#{from}z"
    end)
    |> then(&~s(<path class="f0" d="#{&1}"/>\n))
  end

  ## Text

  defp text(class, x, y, text, anchor \\ "start") do
    class = if class, do: ~s( class="#{class}"), else: ""
    anchor = if anchor == "start", do: "", else: ~s( text-anchor="#{anchor}")
    ~s(<text#{class} x="#{x}" y="#{y}"#{anchor}>#{text |> IO.chardata_to_string() |> escape()}</text>\n)
  end

  # Names of kernels differ in their ends as well.
  defp shortened(name, letters) do
    if String.length(name) <= letters,
      do: name,
      else: String.slice(name, 0, letters - 9) <> "…" <> String.slice(name, -8, 8)
  end

  defp escape(text) do
    text
    |> String.replace("&", "&amp;")
    |> String.replace("<", "&lt;")
    |> String.replace(">", "&gt;")
    |> String.replace("\"", "&quot;")
    # XML has none of these, not even as a reference.
    |> String.replace(~r/[\x00-\x08\x0B\x0C\x0E-\x1F]/, "")
  end
end
