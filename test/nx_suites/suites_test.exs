# The tests of Nx, Axon and Scholar. They take minutes, so they are left out otherwise:
#
#     mix test --only nx_suites              Nx on the backend
#     mix test --only compiler_suites        those of Nx that use numerical definitions, on the backend and the compiler
#     mix test --only quick_compiler_suites  those without gradients, whose hundreds of kernels take lavapipe minutes
#     mix test --only axon_suites            Axon on both
#     mix test --only scholar_suites         Scholar on both
alias Nx.Vulkan.Suites
alias Nx.Vulkan.Suites.Differences

{:ok, _} = Agent.start(fn -> %{} end, name: Nx.Vulkan.Suites.Rows)

ExUnit.after_suite(fn _results ->
  for {suite, rows} <- Enum.sort(Agent.get(Nx.Vulkan.Suites.Rows, & &1)) do
    IO.puts("\n#{String.pad_trailing("#{suite}", 52)} passed failed different excluded seconds")
    rows = Enum.sort(rows)

    for {file, row, seconds} <- rows do
      counts = [row.passed, length(row.failed), row.different, row.excluded, Float.round(seconds, 1)]

      IO.puts([
        String.pad_trailing(file, 52) | Enum.zip_with(counts, [7, 7, 10, 9, 8], &String.pad_leading("#{&1}", &2))
      ])
    end

    IO.puts("\nDifferent, with the reason:")

    for {file, _, _} <- rows, {name, reason} <- Differences.listed(suite, file) do
      IO.puts("#{file}: #{name}: #{reason}")
    end
  end
end)

# A module each, so that several VMs run beside each other.
for {suite, tag} <- [nx: :nx_suites, nx_compiled: :compiler_suites, axon: :axon_suites, scholar: :scholar_suites],
    file <- if(Suites.files(suite) == [], do: [nil], else: Suites.files(suite)) do
  name = if file, do: file |> Path.rootname() |> Macro.camelize(), else: "Missing"

  defmodule Module.concat([Nx.Vulkan.Suites, Macro.camelize(to_string(suite)), name]) do
    use ExUnit.Case, async: true

    @suite suite
    @file_under_test file
    @moduletag :device
    @moduletag tag
    @moduletag timeout: 700_000

    if (suite == :nx_compiled and file) && Path.basename(file) != "grad_test.exs",
      do: @moduletag(:quick_compiler_suites)

    # Packages from Hex have no tests.
    if file == nil, do: @moduletag(skip: "#{suite}: NX_VULKAN_DEPS must hold a checkout of the package")

    test "#{file || "the tests"} of #{suite}" do
      started = System.monotonic_time(:millisecond)

      case Suites.run(@suite, @file_under_test) do
        {:ok, results} ->
          row = Differences.sort(@suite, @file_under_test, results)
          line = {@file_under_test, row, (System.monotonic_time(:millisecond) - started) / 1000}
          Agent.update(Nx.Vulkan.Suites.Rows, &Map.update(&1, @suite, [line], fn lines -> [line | lines] end))
          assert row.failed == [], Enum.map_join(row.failed, "\n", &elem(&1, 1))
          assert row.passing == [], "these pass and are listed as different: #{inspect(row.passing)}"
          assert row.unknown == [], "these are listed as different and are no tests: #{inspect(row.unknown)}"

        {:error, output} ->
          flunk(output)
      end
    end
  end
end
