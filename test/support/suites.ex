defmodule Nx.Vulkan.Suites do
  @moduledoc """
  The test files of Nx, Axon and Scholar, run with `Nx.Vulkan.VulkanoBackend` as the default backend of every process,
  and with `Nx.Vulkan.Compiler` or `Nx.Defn.Evaluator` as the default compiler.

  The files come from the source trees of the dependencies. Each runs in a VM of its own, through
  `test/nx_suites/runner.exs`.
  """

  alias Nx.Vulkan.Suites.Differences

  @runner Path.expand("../nx_suites/runner.exs", __DIR__)
  @timeout_seconds 600
  # How often a file runs at most whose failures are races (`Differences.races/2`).
  @race_runs 3

  # Those of Nx that numerical definitions have a part in.
  @defn ~w(defn_test.exs vectorize_test.exs random_test.exs lin_alg_test.exs serving_test.exs optional_test.exs) ++
          ~w(lazy_container_test.exs container_test.exs)

  @type suite :: :nx | :nx_compiled | :axon | :scholar
  @type result :: {name :: String.t(), :passed | :skipped | :excluded | {:failed, String.t()}}

  @doc "The folder of a suite's package, which has no tests when it comes from Hex; nil where there is no such package."
  @spec folder(suite) :: Path.t() | nil
  def folder(suite), do: Mix.Project.deps_paths()[package(suite)]

  defp package(:nx_compiled), do: :nx
  defp package(suite), do: suite

  @doc "The test files of a suite, relative to the folder."
  @spec files(suite) :: [Path.t()]
  def files(:nx_compiled) do
    Enum.filter(files(:nx), &(Path.basename(&1) in @defn or Path.dirname(&1) == "test/nx/defn"))
  end

  def files(suite) do
    case folder(suite) do
      nil ->
        []

      folder ->
        [folder, "test/**/*_test.exs"] |> Path.join() |> Path.wildcard() |> Enum.map(&Path.relative_to(&1, folder))
    end
  end

  @doc "The default compiler of a suite."
  @spec compiler(suite) :: module
  def compiler(:nx), do: Nx.Defn.Evaluator
  def compiler(_suite), do: Nx.Vulkan

  @doc """
  The results of a file, or what the VM wrote if it ended without any.
  """
  @spec run(suite, Path.t()) :: {:ok, [result]} | {:error, String.t()}
  def run(suite, file), do: settle(Differences.races(suite, file), fn -> run_once(suite, file) end)

  @doc """
  The results of `run`, which runs again while one of `races` fails: of these the last result counts, of all other tests
  the first.
  """
  @spec settle([String.t()], (-> {:ok, [result]} | {:error, String.t()})) :: {:ok, [result]} | {:error, String.t()}
  def settle(races, run), do: with({:ok, results} <- run.(), do: settle(results, races, run, @race_runs - 1))

  defp settle(results, races, run, runs) do
    lost = for {name, {:failed, _}} <- results, name in races, do: name

    with true <- lost != [] and runs > 0, {:ok, again} <- run.() do
      again = Map.new(again)
      results = for {name, outcome} <- results, do: {name, if(name in lost, do: again[name], else: outcome)}
      settle(results, races, run, runs - 1)
    else
      false -> {:ok, results}
      error -> error
    end
  end

  defp run_once(suite, file) do
    results = Path.join(System.tmp_dir!(), "nx_suites.#{System.pid()}.#{System.unique_integer([:positive])}")
    paths = for path <- :code.get_path(), path = to_string(path), not consolidated?(path), do: ["-pa", path]
    args = List.flatten(paths) ++ [@runner, folder(suite), file, results, inspect(compiler(suite))]

    try do
      # `timeout` of coreutils ends the VM, which the port alone would leave running.
      {output, status} =
        System.cmd("timeout", ["#{@timeout_seconds}", "elixir" | args],
          stderr_to_stdout: true,
          env: [{"MIX_ENV", "test"}]
        )

      case File.read(results) do
        {:ok, term} -> term |> :erlang.binary_to_term() |> ran(suite, output)
        {:error, _} -> {:error, "status #{status} (124: more than #{@timeout_seconds} s)\n#{output}"}
      end
    after
      File.rm(results)
    end
  end

  @doc """
  The results of a file, an error where none of its tests ran; some files of Axon and Scholar need packages that are not
  there.
  """
  @spec ran([result], suite, String.t()) :: {:ok, [result]} | {:error, String.t()}
  def ran(results, suite, output) do
    if suite in [:axon, :scholar] or
         Enum.any?(results, fn {_name, outcome} -> outcome not in [:skipped, :excluded] end),
       do: {:ok, results},
       else: {:error, "no test ran, #{length(results)} were left out\n#{output}"}
  end

  defp consolidated?(path), do: Path.basename(path) == "consolidated"
end
