defmodule Nx.Vulkan.ExamplesTest do
  # Compiles files whose modules other tests may have loaded.
  use ExUnit.Case, async: false

  @root Path.expand("../..", __DIR__)

  for file <- ~w(digits/data digits/network eight_schools/hmc posteriors/models) do
    test "examples/#{file}.exs calls only what there is" do
      {_modules, diagnostics} =
        Code.with_diagnostics(fn -> Code.compile_file(Path.join([@root, "examples", unquote(file) <> ".exs"])) end)

      assert Enum.reject(diagnostics, &(&1.message =~ "redefining module")) == []
    end
  end

  test "guides begin trainings of Axon with a state, not with the map that it warns of" do
    for guide <- Path.wildcard(Path.join(@root, "{guides,docs}/**/*.{md,livemd}")) do
      refute File.read!(guide) =~ ~r/Axon\.Loop\.run\([^)]*, %\{\}/, guide
    end
  end

  test "bench/training.exs names its rows where one is asked for that it has not" do
    arguments = [
      "run",
      "--no-compile",
      Path.join(@root, "bench/training.exs"),
      "small",
      "GPT-2",
      "GTP-2",
      "no such row"
    ]

    env = [{"MIX_ENV", to_string(Mix.env())}]
    {output, status} = System.cmd("mix", arguments, cd: @root, env: env, stderr_to_stdout: true)
    assert status == 1
    assert output =~ ~s(no row has "GTP-2", "no such row" in its name: BERT base)
    refute output =~ "| GPT-2"
  end
end
