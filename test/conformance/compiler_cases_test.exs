defmodule Nx.Vulkan.Conformance.CompilerCasesTest do
  use ExUnit.Case, async: true
  use ExUnitProperties

  alias Nx.Vulkan.Conformance.{Cases, Graphs}

  @moduletag :device
  @moduletag timeout: 3_600_000

  # Of all families together.
  @cases div(String.to_integer(System.get_env("NX_VULKAN_CASES", "1300")), 10)

  for family <- Cases.families() do
    property "#{family}: random calls give compiled what they give eagerly, to the bit" do
      cases = max(div(@cases, length(Cases.families())), 4)
      run = ExUnit.configuration()[:seed]

      check all(
              kind <- integer(1..max(div(cases, 4), 2)),
              seed <- integer(1..(2 ** 32)),
              max_runs: cases,
              max_shrinking_steps: 0
            ) do
        Cases.check(unquote(family), {run, kind, 0}, seed, Nx.Vulkan)
      end
    end
  end

  property "random graphs give compiled what their ops give one by one, to the bit" do
    run = ExUnit.configuration()[:seed]

    check all(
            kind <- integer(1..max(div(@cases, 25), 10)),
            seed <- integer(1..(2 ** 32)),
            steps <- integer(1..24),
            max_runs: max(div(@cases, 13), 20),
            max_shrinking_steps: 0
          ) do
      Graphs.check({run, kind, 0}, seed, steps, Nx.Vulkan)
    end
  end
end
