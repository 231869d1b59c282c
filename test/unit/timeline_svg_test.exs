defmodule Nx.Vulkan.TimelineSvgTest do
  # Drawings of timelines that nothing was run for.
  use ExUnit.Case, async: true

  alias Nx.Vulkan.Timeline

  @mega 1024 * 1024

  defp sample(at_ms, tensors, processes \\ []) do
    kinds = %{tensors: tensors, copies: 0, other: 0, staging: @mega, free: 2 * @mega}

    %{
      at_ms: at_ms,
      spilled_bytes: 0,
      kinds: kinds,
      processes: for({name, bytes} <- processes, do: %{name: name, bytes: bytes})
    }
  end

  defp timeline(samples, launches) do
    %Timeline{
      device: "A <device> & \"more\"",
      budget_bytes: 2 ** 30,
      duration_ms: 40.0,
      samples: samples,
      launches: launches
    }
  end

  # Elements with their attributes and text. Nothing else may be in the text of XML.
  defp elements(svg) do
    assert "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" <> body = svg
    [_, style] = Regex.run(~r"<style>\n(.*)</style>"s, body)
    body = String.replace(body, "<style>\n#{style}</style>\n", "")

    element =
      ~r"<(svg|title|text|path|rect|line)((?: [a-zA-Z0-9-]+=\"[^\"<>]*\")*)(?:/>|>([^<>]*)(?:</(?:title|text)>)?)\n"

    assert Regex.replace(element, body, "") == "</svg>\n"

    for [_, name, attributes | text] <- Regex.scan(element, body) do
      attributes = Regex.scan(~r/ ([a-zA-Z0-9-]+)="([^"]*)"/, attributes, capture: :all_but_first)
      {String.to_atom(name), Map.new(attributes, fn [name, value] -> {String.to_atom(name), value} end), unescape(text)}
    end
  end

  defp unescape(text) do
    text = Enum.join(text)
    assert Regex.replace(~r/&(amp|lt|gt|quot);/, text, "") =~ ~r/^[^&]*$/

    for {from, to} <- [{"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&amp;", "&"}],
        reduce: text,
        do: (text -> String.replace(text, from, to))
  end

  defp texts(svg), do: for({:text, place, text} <- elements(svg), do: {text, place})

  # Boxes of texts, with letters as wide as those of DejaVu Sans, the widest of the usual fonts.
  @letter 7.6
  @line 12

  defp boxes(svg) do
    for {text, %{x: x, y: y} = place} <- texts(svg) do
      {x, y} = {number(x), number(y)}
      letter = if place[:class] in ["title", "head"], do: @letter * 1.25, else: @letter
      width = letter * String.length(text)

      from =
        case place[:"text-anchor"] do
          nil -> x
          "middle" -> x - width / 2
          "end" -> x - width
        end

      {text, from, from + width, y - @line, y}
    end
  end

  defp number(text), do: text |> Float.parse() |> elem(0)

  defp overlaps(svg) do
    boxes = boxes(svg)

    for {{a, ax, aright, atop, abottom}, i} <- Enum.with_index(boxes),
        {{b, bx, bright, btop, bbottom}, j} <- Enum.with_index(boxes),
        i < j,
        ax < bright and bx < aright and atop < bbottom and btop < abottom,
        do: {a, b}
  end

  test "memory and kernels are drawn with their names, and no name is over another" do
    long = String.duplicate("a_process_with_a_long_name_", 3)

    samples =
      for i <- 0..400 do
        sample(
          i * 0.1,
          i * @mega,
          [{long, div(i * @mega, 2)}, {"<b>&", 10 * @mega}] ++ for(j <- 1..9, do: {"p#{j}", j * @mega})
        )
      end

    launches =
      for i <- 0..999,
          do: %{
            kernel: "map.#{String.duplicate("exp_add_", rem(i, 20))}f32-0123abc#{rem(i, 20)}",
            at_ms: i * 0.04,
            ms: 0.03
          }

    svg = Timeline.svg(timeline(samples, launches))
    texts = Enum.map(texts(svg), &elem(&1, 0))
    assert "Time line of A <device> & \"more\"" in texts
    assert "40 ms in all; names with the most that they had" in texts
    for text <- ["tensors, 400.0 MiB", "staging, 1.0 MiB", "free, 2.0 MiB"], do: assert(text in texts)
    refute Enum.any?(texts, &(&1 =~ "copies" or &1 =~ "spilled"))
    assert "<b>&, 10.0 MiB" in texts
    assert Enum.any?(texts, &(&1 =~ ~r/^a_process_w….*, 200.0 MiB$/))
    assert Enum.any?(texts, &(&1 =~ ~r/^6 others, /))
    assert "Kernels: 1000 launches, 30 ms on the device" in texts
    assert "6 others" in texts
    for text <- ["0", "10 ms", "40 ms"], do: assert(text in texts)
    assert overlaps(svg) == []

    [{:svg, %{width: width, height: height}, _} | _] = elements(svg)

    for {text, left, right, top, bottom} <- boxes(svg) do
      assert left >= 0 and right <= number(width) and top >= 0 and bottom <= number(height), text
    end

    # As many bars as can be told apart.
    assert byte_size(svg) < 200_000
  end

  test "what there is little of, or nothing" do
    for samples <- [[], [sample(0.0, 0)], [sample(0.0, 3), sample(0.0, 4)], [sample(7.5e6, @mega), sample(7.6e6, 0)]],
        launches <- [[], [%{kernel: "copy", at_ms: 0.0, ms: 0.0}]] do
      svg = Timeline.svg(timeline(samples, launches))
      assert [{:svg, _, _} | _] = elements(svg)
      assert overlaps(svg) == []
      refute svg =~ ~r/nan|inf/i
    end
  end

  test "spilled memory has a line of its own" do
    spilled = %{sample(1.0, 5 * @mega) | spilled_bytes: @mega}
    svg = Timeline.svg(timeline([sample(0.0, 0), spilled], []))
    assert Enum.any?(texts(svg), &match?({"spilled to the host, 1.0 MiB", _}, &1))
    assert [_, _] = for({:path, %{class: "spilled"}, _} <- elements(svg), do: 1)
  end

  test "texts have the colours of light and dark pages" do
    svg = Timeline.svg(timeline([sample(0.0, @mega), sample(4.0, @mega)], []))
    assert svg =~ "@media (prefers-color-scheme: dark)"
    classes = for {_, %{class: class}, _} <- elements(svg), class <- String.split(class), uniq: true, do: class
    for class <- classes -- ["title", "head", "line"], do: assert(svg =~ ~r/\.#{class} \{/, class)
  end
end
