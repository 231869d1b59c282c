# Modules run at the same time.
for {families, part} <- Enum.with_index(Enum.chunk_every(Nx.Vulkan.Conformance.Cases.families(), 4)) do
  defmodule Module.concat(Nx.Vulkan.Conformance, "Cases#{part}Test") do
    use ExUnit.Case, async: true
    use ExUnitProperties

    alias Nx.Vulkan.Conformance.Cases

    @moduletag :device
    @moduletag timeout: 3_600_000

    # Of all families together; continuous integration asks for 10,000.
    @cases String.to_integer(System.get_env("NX_VULKAN_CASES", "1300"))
    # A kind costs the time of compiling its kernels, a case a few milliseconds.
    @cases_per_kind 20

    for family <- families do
      property "#{family}: random calls give what Nx.BinaryBackend gives" do
        cases = div(@cases, length(Cases.families()))
        run = ExUnit.configuration()[:seed]

        check all(
                kind <- integer(1..max(div(cases, @cases_per_kind), 4)),
                seed <- integer(1..(2 ** 32)),
                max_runs: cases,
                max_shrinking_steps: 0
              ) do
          Cases.check(unquote(family), {run, kind, 0}, seed)
        end
      end
    end
  end
end
