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
end
