defmodule Nx.Vulkan.SuitesTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.Suites

  test "a file from which no test ran is an error" do
    assert {:error, "no test ran, 0 were left out\nnothing"} = Suites.ran([], :nx, "nothing")
    assert {:error, _} = Suites.ran([{"test a", :excluded}, {"test b", :skipped}], :nx, "")
    assert {:ok, [_, _]} = Suites.ran([{"test a", :excluded}, {"test b", :passed}], :nx, "")
    assert {:ok, [_]} = Suites.ran([{"test a", {:failed, "no"}}], :nx, "")
  end
end
