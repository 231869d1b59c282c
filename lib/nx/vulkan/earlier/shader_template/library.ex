defmodule Nx.Vulkan.ShaderTemplate.Library do
  @moduledoc false
  # The text of the scalar functions of priv/shaders/include that a source uses. Compilers are given one text without
  # includes, so that its hash stands for all of it; all functions at once would take them ten times as long.

  @include ~r/^\s*#include "([^"]+)"\s*$/m

  # The text of `priv/shaders/src/nativev/<name>`, where nx_f32.glsl or nx_f64.glsl stands for the functions that
  # `source` uses.
  def inline(name, dtype, source) do
    nativev = Path.join(folder(), "src/nativev/#{name}")

    @include
    |> Regex.replace(File.read!(nativev), fn _line, included -> functions(included, dtype, source) end)
    |> String.replace(~r/^#extension GL_GOOGLE_include_directive.*\n/m, "")
  end

  defp functions(included, dtype, source) do
    if included == "nx_#{dtype}.glsl", do: source |> used(dtype) |> text(dtype), else: ""
  end

  defp used(source, type) do
    macros = for [_, op] <- Regex.scan(~r/\bFN\((\w+)\)/, source), do: "nx_#{op}_#{type}"
    MapSet.new(macros ++ List.flatten(Regex.scan(~r/\bnx_\w+/, source)))
  end

  defp text(used, type) do
    sources =
      for path <- Path.wildcard(Path.join(folder(), "include/nx_#{type}_*.glsl")),
          into: %{},
          do: {Path.basename(path), File.read!(path)}

    wanted =
      for {name, source} <- Enum.sort(sources),
          Enum.any?(Regex.scan(~r/^\w+ (nx_\w+)\(/m, source), fn [_, function] -> function in used end),
          do: name

    {texts, _seen} = Enum.map_reduce(wanted, MapSet.new(), &expand(&1, &2, sources))
    IO.iodata_to_binary(texts)
  end

  # A file after those that it includes, each once.
  defp expand(name, seen, sources) do
    if name in seen do
      {"", seen}
    else
      source = Map.fetch!(sources, name)
      included = for [_, file] <- Regex.scan(@include, source), do: file
      {texts, seen} = Enum.map_reduce(included, MapSet.put(seen, name), &expand(&1, &2, sources))
      {[texts, Regex.replace(@include, source, "")], seen}
    end
  end

  defp folder, do: Application.app_dir(:nx_vulkan, "priv/shaders")
end
