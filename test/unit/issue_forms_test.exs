defmodule Nx.Vulkan.IssueFormsTest do
  # The forms for issues of GitHub: one that it does not understand is not shown, and nobody is told.
  use ExUnit.Case, async: true

  alias Nx.Vulkan.Yaml

  @root Path.expand("../..", __DIR__)
  @folder Path.join(@root, ".github/ISSUE_TEMPLATE")

  # GitHub's syntax for issue forms: what each kind of field has to have, and may have.
  @attributes %{
    "markdown" => {~w(value), []},
    "textarea" => {~w(label), ~w(description placeholder value render)},
    "input" => {~w(label), ~w(description placeholder value)},
    "dropdown" => {~w(label options), ~w(description multiple default)},
    "checkboxes" => {~w(label options), ~w(description)}
  }

  defp form(name), do: @folder |> Path.join(name) |> File.read!() |> Yaml.parse()

  defp faults(form) do
    fields = Enum.reject(form["body"], &(&1["type"] == "markdown"))

    missing(form, ~w(name description body), ~w(labels title assignees)) ++
      Enum.flat_map(form["body"], &field_faults/1) ++
      twice(fields, & &1["id"]) ++
      twice(fields, & &1["attributes"]["label"]) ++ doctor_faults(fields)
  end

  defp missing(map, needed, allowed) do
    for(key <- needed, map[key] in [nil, "", []], do: "#{key} is missing") ++
      for key <- Map.keys(map) -- (needed ++ allowed), do: "#{key} is not known"
  end

  defp field_faults(%{"type" => type} = field) when is_map_key(@attributes, type) do
    {needed, allowed} = @attributes[type]
    needs_id = if type == "markdown", do: [], else: ["id"]

    missing(field, ["type", "attributes" | needs_id], ["validations"]) ++
      missing(field["attributes"] || %{}, needed, allowed) ++
      if(field["validations"] in [nil, %{"required" => "true"}], do: [], else: ["other validations"]) ++
      if(type == "markdown" or (field["id"] || "-") =~ ~r/^[\w-]+$/, do: [], else: ["an id of other letters"])
  end

  defp field_faults(field), do: ["no kind of field: #{field["type"]}"]

  defp twice(fields, of) do
    names = Enum.map(fields, of)
    for name <- Enum.uniq(names -- Enum.uniq(names)), do: "#{name} is there twice"
  end

  # What the doctor prints is Markdown, which a field with `render` would show as it is written.
  defp doctor_faults(fields) do
    case Enum.find(fields, &(&1["id"] == "doctor")) do
      %{"attributes" => attributes, "validations" => %{"required" => "true"}} ->
        if(attributes["label"] =~ "mix nx_vulkan.doctor --report", do: [], else: ["the doctor's command"]) ++
          if(attributes["render"], do: ["the doctor's output is Markdown"], else: [])

      _none ->
        ["no output of the doctor"]
    end
  end

  test "are what GitHub understands, and ask for the doctor's output" do
    assert @folder |> File.ls!() |> Enum.sort() == ["bug.yml", "config.yml", "device.yml", "performance.yml"]
    for name <- ["bug.yml", "device.yml", "performance.yml"], do: assert({name, []} == {name, faults(form(name))})
    assert form("config.yml") == %{"blank_issues_enabled" => "true"}
  end

  test "ask for what the library has" do
    text = for name <- File.ls!(@folder), into: "", do: File.read!(Path.join(@folder, name))

    for [_, task, option] <- Regex.scan(~r/mix nx_vulkan\.(\w+)(?: (--\w+))?/, text) do
      module = Module.concat(Mix.Tasks.NxVulkan, String.capitalize(task))
      assert Code.ensure_loaded?(module)
      {:docs_v1, _, _, _, %{"en" => doc}, _, _} = Code.fetch_docs(module)
      assert doc =~ option
    end

    for [variable] <- Regex.scan(~r/NX_VULKAN_\w+/, text) do
      documents = Enum.map(["CONTRIBUTING.md", "guides/configuration.md", "README.md"], &Path.join(@root, &1))
      assert Enum.any?([Path.join(@root, "lib/nx/vulkan/profile.ex") | documents], &(File.read!(&1) =~ variable))
    end
  end

  test "what breaks a rule is found" do
    text = File.read!(Path.join(@folder, "performance.yml"))
    assert faults(Yaml.parse(text)) == []

    for {old, new, fault} <- [
          {"name: Something is slow\n", "", "name is missing"},
          {"labels:", "label:", "label is not known"},
          {"type: textarea", "type: text", "no kind of field: text"},
          {"    id: bench\n", "", "id is missing"},
          {"id: bench", "id: script", "script is there twice"},
          {"id: bench", "id: the bench", "an id of other letters"},
          {"label: What is slow", "title: What is slow", "label is missing"},
          {"required: true", "required: yes", "other validations"},
          {"id: doctor", "id: physician", "no output of the doctor"},
          {"nx_vulkan.doctor --report", "nx_vulkan.doctor", "the doctor's command"}
        ] do
      assert text |> String.replace(old, new) |> Yaml.parse() |> faults() |> Enum.any?(&(&1 =~ fault)), fault
    end
  end

  test "SECURITY.md names what there is" do
    text = File.read!(Path.join(@root, "SECURITY.md"))

    for [_, path] <- Regex.scan(~r/\]\(([^)#]+)(?:#[^)]*)?\)/, text),
        do: assert(File.exists?(Path.join(@root, path)), path)

    for [_, name] <- Regex.scan(~r/`(Nx\.Vulkan(?:\.[A-Z]\w+)+)/, text),
        do: assert(Code.ensure_loaded?(Module.concat([name])), name)

    assert text =~ "mix nx_vulkan.doctor --report"
    assert "SECURITY.md" in Mix.Project.config()[:package][:files]
  end

  test "the first change of CONTRIBUTING.md begins where it says" do
    text = File.read!(Path.join(@root, "CONTRIBUTING.md"))
    [_, change] = Regex.run(~r/^## A first change(.*?)^### /ms, text)
    paths = for [_, path] <- Regex.scan(~r"`((?:native|priv|lib|test|bin)/[\w./]+)", change), do: path
    assert length(paths) > 8
    for path <- paths, do: assert(File.exists?(Path.join(@root, path)), path)

    # What it adds is not there yet, and what it puts it beside is.
    read = fn path -> File.read!(Path.join(@root, path)) end
    ops = read.("native/nx_vulkan_ir/src/program/ops/elementwise.rs")
    assert ops =~ "PopulationCount" and not (ops =~ "Parity")
    assert read.("native/nx_vulkan_engine/tests/ops/scalar/of_int.rs") =~ "fn unary_ops_are_exact"
    assert read.("lib/nx/vulkan/block.ex") =~ "defmodule Log2"

    for type <- ["s32", "u32"],
        do: assert(read.("priv/shaders/include/nx_int32.glsl") =~ "nx_population_count_#{type}(")

    for type <- ["s64", "u64"],
        do: assert(read.("priv/shaders/include/nx_int64.glsl") =~ "nx_population_count_#{type}(")
  end
end
