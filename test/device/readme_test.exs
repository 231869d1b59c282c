defmodule Nx.Vulkan.ReadmeTest do
  # What README.md shows runs as it stands.
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO

  @moduletag :device

  @readme Path.expand("../../README.md", __DIR__)
  @external_resource @readme

  test "the ten lines fit a line, and the sampler draws around the mean of the numbers" do
    {%{w: w, draws: draws, y: y}, output} = with_io(fn -> Nx.Vulkan.Guides.run(@readme) end)
    assert output =~ "weights, near 1 and 2, on #{Nx.Vulkan.device_name()}"
    for {w, near} <- Enum.zip(Nx.to_flat_list(w), [1, 2]), do: assert_in_delta(w, near, 0.01)
    assert Nx.Defn.default_options()[:compiler] == Nx.Vulkan

    assert output =~ "mean of mu, near 2.3"
    assert Nx.shape(draws.mu) == {4, 1000}
    assert_in_delta Nx.to_number(Nx.mean(draws.mu)), Nx.to_number(Nx.mean(y)), 0.1
  end
end
