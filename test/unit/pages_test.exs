defmodule Nx.Vulkan.PagesTest do
  # Links and names in the pages of `mix docs`, by their sources: ex_doc need not be there.
  use ExUnit.Case, async: true

  @root Path.expand("../..", __DIR__)

  # Those are there where optional packages are.
  @with_packages [Nx.Vulkan.Timeline.Kino, Nx.Vulkan.LiveDashboardPage]

  defp docs, do: Mix.Project.config()[:docs].()
  defp pages, do: Enum.map(docs()[:extras], &Path.join(@root, with({path, _options} <- &1, do: path)))

  # What is written as blocks of code is no text.
  defp text(path), do: path |> File.read!() |> String.replace(~r/^```.*?^```$|^    .*?$/ms, "")

  defp links(text), do: for([_, link] <- Regex.scan(~r/\]\(([^)\s]+)\)/, text), do: link)

  # As ex_doc and GitHub name headings.
  defp anchors(path) do
    for [_, heading] <- Regex.scan(~r/^#+ (.*)$/m, text(path)) do
      heading |> String.downcase() |> String.replace(~r/[^\w\s-]/u, "") |> String.trim() |> String.replace(" ", "-")
    end
  end

  test "links lead to pages and to headings in them" do
    known = pages()

    wrong =
      for page <- known, link <- links(text(page)), not (link =~ ~r/^https?:/), problem = problem(page, link, known) do
        "#{Path.relative_to(page, @root)}: #{link} #{problem}"
      end

    assert wrong == []
  end

  # ex_doc finds them by the name of the file.
  test "links of modules lead to pages, too" do
    by_name = Map.new(pages(), &{Path.basename(&1), &1})

    wrong =
      for module <- shown(),
          {_module, text} <- docs_of(module),
          link <- links(text),
          not (link =~ ~r/^(https?:|`)/),
          [name | anchor] = String.split(link, "#", parts: 2),
          not is_map_key(by_name, name) or anchor -- anchors(by_name[name]) != [],
          do: {module, link}

    assert wrong == []
  end

  defp problem(page, link, known) do
    [path | anchor] = String.split(link, "#", parts: 2)
    file = if path == "", do: page, else: Path.expand(path, Path.dirname(page))

    cond do
      file not in known -> "is no page"
      anchor != [] and hd(anchor) not in anchors(file) -> "has no such heading"
      true -> nil
    end
  end

  test "no two pages have the same name, and every guide is one" do
    names = Enum.map(pages(), &Path.basename/1)
    assert names -- Enum.uniq(names) == []
    assert Path.wildcard(@root <> "/guides/*") -- pages() == []
  end

  test "modules are in a group where they have documentation, and only such are named" do
    shown = shown()
    tasks = Enum.filter(shown, &match?("Elixir.Mix.Tasks." <> _, to_string(&1)))
    missing = Enum.reject(@with_packages, &Code.ensure_loaded?/1)
    grouped = Enum.flat_map(docs()[:groups_for_modules], &elem(&1, 1)) -- missing
    assert Enum.sort(grouped) == Enum.sort(shown -- tasks)

    hidden = MapSet.new(of_library() -- shown, &inspect/1)
    texts = for(page <- pages(), do: {Path.relative_to(page, @root), text(page)}) ++ Enum.flat_map(shown, &docs_of/1)

    named =
      for {where, text} <- texts, [_, name] <- Regex.scan(~r/`(Nx\.Vulkan[\w.]*[A-Z]\w*)/, text), name in hidden do
        {where, name}
      end

    assert named == []
  end

  defp of_library do
    {:ok, modules} = :application.get_key(:nx_vulkan, :modules)
    for module <- modules, source(module) =~ "/lib/", do: module
  end

  # Those with documentation.
  defp shown, do: for(module <- of_library(), {:docs_v1, _, _, _, %{}, _, _} <- [Code.fetch_docs(module)], do: module)

  defp docs_of(module) do
    {:docs_v1, _, _, _, %{"en" => doc}, _, docs} = Code.fetch_docs(module)
    for doc <- [doc | for({_, _, _, %{"en" => doc}, _} <- docs, do: doc)], do: {inspect(module), doc}
  end

  defp source(module), do: to_string(module.module_info(:compile)[:source])
end
