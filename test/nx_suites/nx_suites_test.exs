defmodule Nx.Vulkan.NxSuitesTest do
  # `mix test --only nx_suites`: Nx's own tests. They take three minutes on two cores, so they are left out otherwise.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.NxSuites
  alias Nx.Vulkan.NxSuites.Differences

  @moduletag :device
  @moduletag :nx_suites
  @moduletag timeout: 400_000
  # The package of Nx on Hex has no tests.
  if NxSuites.files() == [],
    do: @moduletag(skip: "#{NxSuites.folder()} has no tests: NX_VULKAN_DEPS must hold a checkout of Nx")

  setup_all do
    {:ok, table} = Agent.start(fn -> [] end)

    on_exit(fn ->
      rows = Agent.get(table, &Enum.sort/1)
      print(rows)
      explain(rows)
    end)

    %{table: table}
  end

  if NxSuites.files() == [], do: test("the tests of Nx", do: :ok)

  for file <- NxSuites.files() do
    test file, %{table: table} do
      started = System.monotonic_time(:millisecond)

      case NxSuites.run(unquote(file)) do
        {:ok, results} ->
          row = Differences.sort(unquote(file), results)
          seconds = (System.monotonic_time(:millisecond) - started) / 1000
          Agent.update(table, &[{unquote(file), row, seconds} | &1])
          assert row.failed == [], Enum.map_join(row.failed, "\n", &elem(&1, 1))
          assert row.passing == [], "these pass and are listed as different: #{inspect(row.passing)}"
          assert row.unknown == [], "these are listed as different and are no tests: #{inspect(row.unknown)}"

        {:error, output} ->
          flunk(output)
      end
    end
  end

  defp print(rows) do
    IO.puts("\n#{cell("file", 46)} passed failed different excluded seconds")

    for {file, row, seconds} <- rows do
      counts = [row.passed, length(row.failed), row.different, row.excluded, Float.round(seconds, 1)]
      IO.puts([cell(file, 46) | Enum.zip_with(counts, [7, 7, 10, 9, 8], &String.pad_leading("#{&1}", &2))])
    end
  end

  defp explain(rows) do
    IO.puts("\nDifferent, with the reason:")
    for {file, _, _} <- rows, {name, reason} <- Differences.listed(file), do: IO.puts("#{file}: #{name}: #{reason}")
  end

  defp cell(text, width), do: String.pad_trailing(text, width)
end
