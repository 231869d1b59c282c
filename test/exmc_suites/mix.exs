# The Mix project of the exmc checkout that is the current folder: its own, except that config/test.exs is read, which
# is where EXMC_COMPILER is, and that NX_VULKAN_DEPS stands in for Hex. bin/exmc_suite names this file in MIX_EXS.

# Mix reads our mix.exs a second time, as that of a dependency.
Code.put_compiler_option(:ignore_module_conflict, true)

root = Path.expand("../..", __DIR__)

for folder <- [root, File.cwd!()] do
  Code.compile_file("mix.exs", folder)
  Mix.Project.pop()
end

defmodule Nx.Vulkan.ExmcSuites.MixProject do
  use Mix.Project

  @root root

  def project do
    Exmc.MixProject.project()
    |> Keyword.merge(config_path: "config/test.exs", deps_path: "deps", lockfile: "nx_vulkan.lock")
    |> Keyword.update!(:deps, &deps(&1, System.get_env("NX_VULKAN_DEPS", "")))
  end

  def application, do: Exmc.MixProject.application()

  defp deps(theirs, ""), do: theirs

  defp deps(_theirs, folder) do
    Mix.SCM.append(Nx.Vulkan.Checkouts)

    packages = [
      {:nx, "nx/nx", []},
      {:complex, "complex", []},
      {:telemetry, "telemetry", []},
      {:rustler, "rustler/rustler_mix", runtime: false},
      {:jason, "jason", []},
      {:propcheck, "propcheck", only: :test, runtime: false},
      # A copy that Mix can build without rebar3.
      {:proper, Path.expand("../proper"), only: :test, runtime: false},
      {:libgraph, "libgraph", only: :test, runtime: false}
    ]

    [{:nx_vulkan, path: @root, override: true}] ++
      for({app, path, opts} <- packages, do: {app, [path: Path.expand(path, folder), override: true] ++ opts})
  end
end
