defmodule Nx.Vulkan.LivebookTest do
  # The Elixir cells of the notebooks, in order. They hold their own assertions, as matches.
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO

  @moduletag :device
  @moduletag :capture_log
  if Enum.all?(~w(glslangValidator glslang glslc), &(System.find_executable(&1) == nil)),
    do: @moduletag(skip: "no GLSL compiler is installed")

  for path <- Path.wildcard(Path.expand("../../guides/*.livemd", __DIR__)) do
    @external_resource path
    needs_axon? = File.read!(path) =~ "{:axon,"

    for backend <- [Nx.BinaryBackend, Nx.Vulkan.VulkanoBackend] do
      if needs_axon? and not Code.ensure_loaded?(Axon), do: @tag(skip: "Axon is none of the packages")
      @tag timeout: to_timeout(minute: 5)
      test "#{Path.basename(path)} with #{inspect(backend)} as default" do
        capture_io(fn -> Nx.with_default_backend(unquote(backend), fn -> run(unquote(path)) end) end)
      end
    end
  end

  defp run(path) do
    [install | cells] = for [_, cell] <- Regex.scan(~r/^```elixir\n(.*?)^```$/ms, File.read!(path)), do: cell
    assert install =~ "Mix.install"
    assert length(cells) > 1

    # A cell sees what those before it defined.
    Enum.reduce(cells, {[], Code.env_for_eval(file: path)}, fn cell, {binding, env} ->
      {_value, binding, env} = cell |> Code.string_to_quoted!(file: path) |> Code.eval_quoted_with_env(binding, env)
      # The next test defines its modules again.
      for [_, name] <- Regex.scan(~r/^defmodule (\S+) do$/m, cell) do
        module = Module.concat([name])
        on_exit(fn -> {:code.purge(module), :code.delete(module)} end)
      end

      {binding, env}
    end)
  end
end
