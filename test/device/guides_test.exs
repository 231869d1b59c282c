defmodule Nx.Vulkan.GuidesTest do
  # The Elixir cells of the guides, in order. Some guides have tests of their own, which look at more.
  # Alone: pages count compilations, and take times of the whole VM.
  use ExUnit.Case, async: false

  import ExUnit.CaptureIO

  alias Nx.Vulkan.Guides

  @moduletag :device
  @moduletag :capture_log

  @folder Path.expand("../../guides", __DIR__)
  @elsewhere ~w(mixed_precision.md quantized.md sampling_with_exmc.md)
  @packages [axon: Axon, scholar: Scholar.Stats]

  for path <- Path.wildcard(@folder <> "/*.{md,cheatmd}"), name = Path.basename(path), name not in @elsewhere do
    @external_resource path
    text = File.read!(path)

    cells = Guides.cells(path)

    if cells != [] do
      missing =
        for {package, module} <- @packages, text =~ "{:#{package},", not Code.ensure_loaded?(module), do: package

      if missing != [], do: @tag(skip: "#{Enum.join(missing, ", ")} is none of the packages")
      if Enum.any?(cells, &(&1 =~ "device: 1")), do: @tag(:several_devices)
      @tag timeout: to_timeout(minute: 5)
      test "#{name} runs" do
        capture_io(fn -> Guides.run(unquote(path), &here/1) end)
      end
    end
  end

  # A project that follows a guide lies beside the checkout, and has devices of its own.
  defp here(cell), do: cell |> String.replace("../nx_vulkan/", "") |> String.replace(~s("iris"), "0")

  test "errors.md has every kind of error" do
    {:ok, types} = Code.Typespec.fetch_types(Nx.Vulkan.Error)
    [kinds] = for {:type, {:kind, {:type, _, :union, kinds}, []}} <- types, do: for({:atom, _, kind} <- kinds, do: kind)
    headings = for [heading] <- Regex.scan(~r/^### .*$/m, File.read!(@folder <> "/errors.md")), do: heading
    told = for [_, kind] <- Regex.scan(~r/`:(\w+)`/, Enum.join(headings)), do: String.to_existing_atom(kind)
    assert Enum.sort(told) == Enum.sort(kinds)
  end
end
