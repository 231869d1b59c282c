defmodule Nx.Vulkan.Guides do
  @moduledoc """
  Runs the Elixir cells of guides and notebooks in order, as Livebook does.

  They hold their own assertions: matches, and after the last line of a cell a comment `#=>`, in which `...` stands for
  anything, that says what the cell's value is or, of a text, what it reads.
  """

  import ExUnit.Assertions

  @doc """
  Runs the cells of a file, of a notebook without the first one, which installs packages, and returns what they bound.
  `replace` may give other code for a cell.
  """
  @spec run(Path.t(), (String.t() -> String.t())) :: map
  def run(path, replace \\ & &1) do
    # A cell sees what those before it defined.
    {binding, _env} =
      Enum.reduce(to_run(path), {[], Code.env_for_eval(file: path)}, fn cell, {binding, env} ->
        cell = replace.(cell)
        # The next test defines its modules again.
        for [_, name] <- Regex.scan(~r/^defmodule (\S+) do$/m, cell) do
          module = Module.concat([name])
          ExUnit.Callbacks.on_exit(fn -> {:code.purge(module), :code.delete(module)} end)
        end

        {value, binding, env} = cell |> Code.string_to_quoted!(file: path) |> Code.eval_quoted_with_env(binding, env)
        assert_value(cell, value)
        {binding, env}
      end)

    Map.new(binding)
  end

  defp to_run(path) do
    cells = cells(path)
    assert cells != []

    if Path.extname(path) == ".livemd" do
      [install | cells] = cells
      assert install =~ "Mix.install"
      cells
    else
      cells
    end
  end

  @doc "The Elixir cells of a file."
  @spec cells(Path.t()) :: [String.t()]
  def cells(path), do: for([_, cell] <- Regex.scan(~r/^```elixir\n(.*?)^```$/ms, File.read!(path)), do: cell)

  defp assert_value(cell, value) do
    with [_, said] <- Regex.run(~r/^#=> (.*)\z/ms, cell) do
      said = said |> String.replace(~r/^#(=>)?/m, "") |> words()
      got = words(if is_binary(value), do: value, else: inspect(value, pretty: true))
      pattern = said |> Regex.escape() |> String.replace("\\.\\.\\.", ".*")
      assert got =~ ~r/\A#{pattern}\z/s, "#{cell}\ngives\n\n#{got}"
    end
  end

  # Lines of a page break elsewhere.
  defp words(text), do: text |> String.split() |> Enum.join(" ")
end
