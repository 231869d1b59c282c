# The tests of Nx, Axon and Scholar. They take minutes, so they are left out otherwise:
#
#     mix test --only nx_suites          Nx on the backend
#     mix test --only compiler_suites    those of Nx that use numerical definitions, on the backend and the compiler
#     mix test --only quick_compiler_suites    those without the gradients, whose hundreds of kernels take lavapipe minutes
#     mix test --only axon_suites        Axon on both
#     mix test --only scholar_suites     Scholar on both
for {suite, tag} <- [nx: :nx_suites, nx_compiled: :compiler_suites, axon: :axon_suites, scholar: :scholar_suites] do
  defmodule Module.concat(Nx.Vulkan, "#{Macro.camelize(to_string(suite))}SuitesTest") do
    use ExUnit.Case, async: false

    alias Nx.Vulkan.Suites
    alias Nx.Vulkan.Suites.Differences

    @suite suite
    @moduletag :device
    @moduletag tag
    @moduletag timeout: 700_000
    # Packages from Hex have no tests.
    if Suites.files(suite) == [],
      do: @moduletag(skip: "#{suite}: NX_VULKAN_DEPS must hold a checkout of the package")

    setup_all do
      {:ok, table} = Agent.start(fn -> [] end)

      on_exit(fn ->
        rows = Agent.get(table, &Enum.sort/1)
        print(rows)
        explain(rows)
      end)

      %{table: table}
    end

    if Suites.files(suite) == [], do: test("the tests of #{suite}", do: :ok)

    for file <- Suites.files(suite) do
      if suite == :nx_compiled and Path.basename(file) != "grad_test.exs", do: @tag(:quick_compiler_suites)

      test file, %{table: table} do
        started = System.monotonic_time(:millisecond)

        case Suites.run(@suite, unquote(file)) do
          {:ok, results} ->
            row = Differences.sort(@suite, unquote(file), results)
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
      IO.puts("\n#{cell("#{@suite}", 52)} passed failed different excluded seconds")

      for {file, row, seconds} <- rows do
        counts = [row.passed, length(row.failed), row.different, row.excluded, Float.round(seconds, 1)]
        IO.puts([cell(file, 52) | Enum.zip_with(counts, [7, 7, 10, 9, 8], &String.pad_leading("#{&1}", &2))])
      end
    end

    defp explain(rows) do
      IO.puts("\nDifferent, with the reason:")

      for {file, _, _} <- rows, {name, reason} <- Differences.listed(@suite, file) do
        IO.puts("#{file}: #{name}: #{reason}")
      end
    end

    defp cell(text, width), do: String.pad_trailing(text, width)
  end
end
