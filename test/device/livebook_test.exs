defmodule Nx.Vulkan.LivebookTest do
  # The Elixir cells of the notebooks, in order; test/models has the one that takes Bumblebee.
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO

  @moduletag :device
  @moduletag :capture_log
  if Enum.all?(~w(glslangValidator glslang glslc), &(System.find_executable(&1) == nil)),
    do: @moduletag(skip: "no GLSL compiler is installed")

  for path <- Path.wildcard(Path.expand("../../guides/*.livemd", __DIR__)), not (File.read!(path) =~ "{:bumblebee,") do
    @external_resource path
    needs_axon? = File.read!(path) =~ "{:axon,"

    for backend <- [Nx.BinaryBackend, Nx.Vulkan.VulkanoBackend] do
      if needs_axon? and not Code.ensure_loaded?(Axon), do: @tag(skip: "Axon is none of the packages")
      @tag timeout: to_timeout(minute: 5)
      test "#{Path.basename(path)} with #{inspect(backend)} as default" do
        capture_io(fn ->
          Nx.with_default_backend(unquote(backend), fn -> Nx.Vulkan.Guides.run(unquote(path)) end)
        end)
      end
    end
  end
end
