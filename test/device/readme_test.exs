defmodule Nx.Vulkan.ReadmeTest do
  # What README.md shows runs as it stands.
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO

  @moduletag :device

  @readme Path.expand("../../README.md", __DIR__)
  @external_resource @readme
  @blocks ~r/```elixir\n(.*?)```/s |> Regex.scan(File.read!(@readme), capture: :all_but_first) |> List.flatten()

  defp run(beginning) do
    [code] = Enum.filter(@blocks, &String.starts_with?(&1, beginning))
    {bindings, output} = with_io(fn -> code |> Code.eval_string([], file: @readme) |> elem(1) end)
    {output, Map.new(bindings)}
  end

  test "the ten lines fit a line" do
    {output, %{w: w}} = run("Nx.default_backend(")
    assert output =~ "weights, near 1 and 2, on #{Nx.Vulkan.device_name()}"
    for {w, near} <- Enum.zip(Nx.to_flat_list(w), [1, 2]), do: assert_in_delta(w, near, 0.01)
    assert Nx.Defn.default_options()[:compiler] == Nx.Vulkan
  end

  test "the sampler draws around the mean of the numbers" do
    {output, %{draws: draws, y: y}} = run("y = Nx.tensor([2.1")
    assert output =~ "mean of mu, near 2.3"
    assert Nx.shape(draws.mu) == {4, 1000}
    assert_in_delta Nx.to_number(Nx.mean(draws.mu)), Nx.to_number(Nx.mean(y)), 0.1
  end
end
