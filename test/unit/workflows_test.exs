defmodule Nx.Vulkan.WorkflowsTest do
  # The workflows of GitHub Actions hold no logic: what they run are files of bin/, which run anywhere.
  use ExUnit.Case, async: true

  alias Nx.Vulkan.Yaml

  @root Path.expand("../..", __DIR__)
  @workflows Path.wildcard(Path.join(@root, ".github/workflows/*"), match_dot: true)

  # What is wrong with a workflow.
  defp faults(yaml) do
    unknown = Map.keys(yaml) -- ~w(name on permissions defaults jobs)
    jobs = for {name, job} <- yaml["jobs"], fault <- job_faults(job), do: "#{name}: #{fault}"

    for(key <- unknown, do: "the key #{key}") ++
      if(yaml["permissions"] == %{"contents" => "read"}, do: [], else: ["permissions that are not: contents: read"]) ++
      if(yaml["defaults"] == %{"run" => %{"shell" => "bash"}}, do: [], else: ["another shell than bash"]) ++
      jobs
  end

  defp job_faults(%{"uses" => "./.github/workflows/" <> file} = job) do
    if map_size(job) == 1 and File.regular?(Path.join(@root, ".github/workflows/#{file}")),
      do: [],
      else: ["calls #{file}"]
  end

  defp job_faults(job) do
    minutes = if job["timeout-minutes"], do: [], else: ["no timeout-minutes"]
    minutes ++ Enum.flat_map(job["steps"], &step_faults/1)
  end

  defp step_faults(%{"run" => run} = step) do
    [file | arguments] = String.split(run)
    plain? = Enum.join(arguments, " ") =~ ~r/^([\w -]|\$\{\{ matrix\.\w+ \}\})*$/

    cond do
      Map.keys(step) -- ["run", "env"] != [] -> ["more than run and env: #{run}"]
      not (file =~ ~r"^(bin|\.ci)/\w+$") or not plain? -> ["not one call of a file of bin/: #{run}"]
      not executable?(file) -> ["#{file} is not there, or can't be executed"]
      true -> []
    end
  end

  # GitHub's own actions by their major version, those of others by a commit, as their tags may move.
  defp step_faults(%{"uses" => uses} = step) do
    cond do
      Map.keys(step) -- ["uses", "with"] != [] -> ["more than uses and with: #{uses}"]
      uses =~ ~r"^actions/[\w-]+@v\d+$" or uses =~ ~r"^[\w-]+/[\w-]+@[0-9a-f]{40}$" -> []
      true -> ["#{uses} is by no version of GitHub's or commit of others"]
    end
  end

  defp step_faults(step), do: ["neither run nor uses: #{inspect(step)}"]

  defp executable?(file) do
    case File.stat(Path.join(@root, file)) do
      {:ok, %{type: :regular, mode: mode}} -> Bitwise.band(mode, 0o111) == 0o111
      _other -> false
    end
  end

  test "each workflow keeps the rules" do
    assert Enum.map(@workflows, &Path.basename/1) == ["release.yml", "test.yml"]
    for file <- @workflows, do: assert({file, []} == {file, file |> File.read!() |> Yaml.parse() |> faults()})
  end

  test "what breaks a rule is found" do
    text = File.read!(Path.join(@root, ".github/workflows/test.yml"))
    assert faults(Yaml.parse(text)) == []

    for {old, new, fault} <- [
          {"run: bin/test\n", "run: bin/nothing\n", "bin/nothing is not there"},
          {"run: bin/test\n", "run: README.md\n", "not one call"},
          {"run: bin/test\n", "run: bin/test && bin/demo\n", "not one call"},
          {"run: bin/test\n", "run: cargo test\n", "not one call"},
          {"run: bin/test\n", "run: bin/environment.sh\n", "not one call"},
          {"actions/checkout@v6", "actions/checkout@main", "by no version"},
          {~r/@[0-9a-f]{40}/, "@v1", "by no version"},
          {"contents: read", "contents: write", "permissions"},
          {"shell: bash", "shell: pwsh", "another shell"},
          {~r/    timeout-minutes.*\n/, "", "no timeout-minutes"},
          {"permissions:", "env:", "the key env"}
        ] do
      assert text |> String.replace(old, new) |> Yaml.parse() |> faults() |> Enum.any?(&(&1 =~ fault)), fault
    end

    for damaged <- ["jobs", "a: {b: c}", "a: b: c", "a:\n    b: c\n  d: e", "a: b\na: c", "a: |\n  b", "a: \"b"] do
      assert_raise RuntimeError, fn -> Yaml.parse(damaged) end
    end
  end

  test "a release has libraries for the targets that are downloaded" do
    release = @root |> Path.join(".github/workflows/release.yml") |> File.read!() |> Yaml.parse()
    built = for %{"target" => target} <- release["jobs"]["library"]["strategy"]["matrix"]["include"], do: target

    [_, list] =
      Regex.run(~r/const TARGETS: .*?= \[(.*?)\];/s, File.read!(Path.join(@root, "native/xtask/src/release.rs")))

    assert built == for([_, target] <- Regex.scan(~r/"(.*?)"/, list), do: target)

    # Windows on Arm is a variant there.
    assert built -- ["aarch64-pc-windows-msvc"] == Nx.Vulkan.Library.targets()
    assert [{"x86_64-pc-windows-msvc", [aarch64: arm?]}] = Map.to_list(Nx.Vulkan.Library.variants())
    assert is_boolean(arm?.())
  end
end
