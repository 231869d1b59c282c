defmodule Nx.Vulkan.Yaml do
  @moduledoc """
  The part of YAML in which files of `.github` are written: maps and lists by indentation, lists of words in brackets,
  and plain or quoted scalars, which are strings here. Anything else raises.
  """

  def parse(text) do
    lines =
      for {line, number} <- Enum.with_index(String.split(text, "\n"), 1),
          line = String.replace(line, ~r/(^|\s)#.*$/, ""),
          String.trim(line) != "" do
        [_, indent, rest] = Regex.run(~r/^( *)(\S.*?)\s*$/, line) || raise "line #{number}: #{line}"
        {String.length(indent), rest, number}
      end

    {value, []} = block(lines, 0)
    value
  end

  defp block([{indent, "- " <> _, _} | _] = lines, indent), do: list(lines, indent, [])
  defp block([{indent, _, _} | _] = lines, indent), do: map(lines, indent, %{})

  defp list([{indent, "- " <> rest, number} | lines], indent, items) do
    # What follows the dash stands two columns further in, as do the lines that belong to it.
    if rest =~ ~r/^[\w-]+:( |$)/ do
      {item, lines} = block([{indent + 2, rest, number} | lines], indent + 2)
      list(lines, indent, [item | items])
    else
      list(lines, indent, [scalar(rest, number) | items])
    end
  end

  defp list(lines, _indent, items), do: {Enum.reverse(items), lines}

  defp map([{indent, line, number} | lines], indent, map) do
    [_, key, rest] = Regex.run(~r/^([\w-]+):($| .+)/, line) || raise "line #{number}: #{line}"
    rest = if rest != "", do: String.trim(rest)
    if Map.has_key?(map, key), do: raise("line #{number}: #{key} is there already")

    case {rest, lines} do
      {nil, [{inner, _, _} | _]} when inner > indent ->
        {value, lines} = block(lines, inner)
        map(lines, indent, Map.put(map, key, value))

      {rest, lines} ->
        map(lines, indent, Map.put(map, key, rest && scalar(rest, number)))
    end
  end

  defp map(lines, indent, map) when lines == [] or elem(hd(lines), 0) < indent, do: {map, lines}
  defp map([{_, line, number} | _], _indent, _map), do: raise("line #{number}: #{line}")

  defp scalar("[" <> rest, number) do
    [_, items] = Regex.run(~r/^([^\[\]{}]*)\]$/, rest) || raise "line #{number}: [#{rest}"
    for item <- String.split(items, ","), do: item |> String.trim() |> scalar(number)
  end

  defp scalar(<<quote, rest::binary>>, number) when quote in [?", ?'] do
    [_, text] = Regex.run(~r/^([^"'\\]*)["']$/, rest) || raise "line #{number}: #{rest}"
    text
  end

  defp scalar(text, number) do
    if text =~ ~r/^[>|&*!%@`{]|: /, do: raise("line #{number}: #{text}")
    text
  end
end
