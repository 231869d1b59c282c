defmodule Nx.Vulkan.SuitesTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.Suites

  test "a file from which no test ran is an error" do
    assert {:error, "no test ran, 0 were left out\nnothing"} = Suites.ran([], "nothing")
    assert {:error, _} = Suites.ran([{"test a", :excluded}, {"test b", :skipped}], "")
    assert {:ok, [_, _]} = Suites.ran([{"test a", :excluded}, {"test b", :passed}], "")
    assert {:ok, [_]} = Suites.ran([{"test a", {:failed, "no"}}], "")
  end
end
