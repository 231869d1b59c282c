defmodule Nx.Vulkan.Notebooks do
  @moduledoc """
  Runs the cells of a notebook as Livebook does. They hold their own assertions, as matches.
  """

  import ExUnit.Assertions

  @doc """
  Runs the Elixir cells of a file in order, without the first one, which installs packages. `replace` may give other
  code for a cell.
  """
  @spec run(Path.t(), (String.t() -> String.t())) :: :ok
  def run(path, replace \\ & &1) do
    [install | cells] = cells(path)
    assert install =~ "Mix.install"
    assert length(cells) > 1

    # A cell sees what those before it defined.
    Enum.reduce(cells, {[], Code.env_for_eval(file: path)}, fn cell, {binding, env} ->
      quoted = cell |> replace.() |> Code.string_to_quoted!(file: path)
      {_value, binding, env} = Code.eval_quoted_with_env(quoted, binding, env)
      # The next test defines its modules again.
      for [_, name] <- Regex.scan(~r/^defmodule (\S+) do$/m, cell) do
        module = Module.concat([name])
        ExUnit.Callbacks.on_exit(fn -> {:code.purge(module), :code.delete(module)} end)
      end

      {binding, env}
    end)

    :ok
  end

  @doc "The Elixir cells of a file."
  @spec cells(Path.t()) :: [String.t()]
  def cells(path), do: for([_, cell] <- Regex.scan(~r/^```elixir\n(.*?)^```$/ms, File.read!(path)), do: cell)
end
