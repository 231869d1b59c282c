defmodule Nx.Vulkan.SuitesTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.Suites

  test "a file from which no test ran is an error" do
    assert {:error, "no test ran, 0 were left out\nnothing"} = Suites.ran([], :nx, "nothing")
    assert {:error, _} = Suites.ran([{"test a", :excluded}, {"test b", :skipped}], :nx, "")
    assert {:ok, [_, _]} = Suites.ran([{"test a", :excluded}, {"test b", :passed}], :nx, "")
    assert {:ok, [_]} = Suites.ran([{"test a", {:failed, "no"}}], :nx, "")
  end

  describe "a race" do
    # Runs that give these results, one after the other.
    defp runs(results) do
      {:ok, left} = Agent.start_link(fn -> results end)
      fn -> Agent.get_and_update(left, fn [result | rest] -> {result, rest} end) end
    end

    @lost {:ok, [{"test race", {:failed, "lost"}}, {"test a", :passed}]}
    @won {:ok, [{"test race", :passed}, {"test a", {:failed, "no"}}]}

    test "that is lost is run again" do
      assert {:ok, [{"test race", :passed}, {"test a", :passed}]} =
               Suites.settle(["test race"], runs([@lost, @lost, @won]))

      assert @won == Suites.settle(["test race"], runs([@won]))
    end

    test "that is always lost is a failure" do
      assert @lost == Suites.settle(["test race"], runs([@lost, @lost, @lost]))
    end

    test "is a listed one: other failures stay" do
      assert @lost == Suites.settle([], runs([@lost]))
      assert @won == Suites.settle(["test race", "test b"], runs([@won]))
    end

    test "is not settled by a run that ends without results" do
      assert {:error, "killed"} = Suites.settle(["test race"], runs([@lost, {:error, "killed"}]))
    end
  end
end
