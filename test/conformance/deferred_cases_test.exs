defmodule Nx.Vulkan.Conformance.DeferredCasesTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.Conformance.{Cases, DeferredCompiler, Graphs}

  @moduletag :device
  @moduletag timeout: 3_600_000

  # More than the runs after which a structure is compiled.
  @repeats 18

  # In a numerical definition Nx makes one slice of two and one broadcast of two, with other starts and axes at times;
  # so that of the evaluator is no measure for these families.
  @merged [:slices, :movement]

  for family <- @merged do
    test "#{family}: random calls give deferred what Nx.BinaryBackend gives" do
      run = ExUnit.configuration()[:seed]

      Nx.Vulkan.eager(:deferred, fn ->
        for kind <- 1..2, seed <- 1..3, do: Cases.check(unquote(family), {run, kind, 0}, seed)
      end)
    end
  end

  for family <- Cases.families() -- @merged do
    test "#{family}: random calls give deferred what they give immediately, to the bit" do
      run = ExUnit.configuration()[:seed]
      for kind <- 1..2, seed <- 1..3, do: Cases.check(unquote(family), {run, kind, 0}, seed, DeferredCompiler)
    end
  end

  test "random graphs give deferred what they give immediately, to the bit, compiled or not" do
    run = ExUnit.configuration()[:seed]
    for kind <- 1..12, do: Graphs.check({run, kind, 0}, kind, 4 + kind, DeferredCompiler)
    for _ <- 1..@repeats, kind <- 1..2, do: Graphs.check({run, kind, 0}, kind, 12, DeferredCompiler)
  end
end
