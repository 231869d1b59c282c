defmodule Nx.Vulkan.NxSuites do
  @moduledoc """
  Nx's own test files, run with `Nx.Vulkan.VulkanoBackend` as the default backend of every process.

  The files come from the source tree of the dependency. Each runs in a VM of its own, through `test/nx_suites/runner.exs`.
  """

  @runner Path.expand("../nx_suites/runner.exs", __DIR__)
  @timeout_seconds 300

  @type result :: {name :: String.t(), :passed | :skipped | :excluded | {:failed, String.t()}}

  @doc "The folder of Nx, which has no tests when it comes from Hex."
  def folder, do: Mix.Project.deps_paths()[:nx]

  @doc "The test files, relative to the folder."
  def files do
    [folder(), "test/**/*_test.exs"] |> Path.join() |> Path.wildcard() |> Enum.map(&Path.relative_to(&1, folder()))
  end

  @doc """
  The results of a file, or what the VM wrote if it ended without any.
  """
  @spec run(String.t(), module) :: {:ok, [result]} | {:error, String.t()}
  def run(file, compiler \\ Nx.Defn.Evaluator) do
    results = Path.join(System.tmp_dir!(), "nx_suites.#{System.pid()}.#{System.unique_integer([:positive])}")
    paths = for path <- :code.get_path(), path = to_string(path), not consolidated?(path), do: ["-pa", path]
    args = List.flatten(paths) ++ [@runner, folder(), file, results, inspect(compiler)]

    try do
      # `timeout` of coreutils ends the VM, which the port alone would leave running.
      {output, status} =
        System.cmd("timeout", ["#{@timeout_seconds}", "elixir" | args],
          stderr_to_stdout: true,
          env: [{"MIX_ENV", "test"}]
        )

      case File.read(results) do
        {:ok, term} -> {:ok, :erlang.binary_to_term(term)}
        {:error, _} -> {:error, "status #{status} (124: more than #{@timeout_seconds} s)\n#{output}"}
      end
    after
      File.rm(results)
    end
  end

  defp consolidated?(path), do: Path.basename(path) == "consolidated"
end
