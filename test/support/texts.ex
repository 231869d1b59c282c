defmodule Nx.Vulkan.Texts do
  @moduledoc """
  What tests say of texts that are for people.
  """

  import ExUnit.Assertions

  @doc "Asserts that a text says all of these; a failure tells which are missing, and the text."
  @spec assert_says(String.t(), [String.t() | Regex.t()]) :: :ok
  def assert_says(text, parts) do
    missing = Enum.reject(parts, &(text =~ &1))
    assert missing == [], "#{Enum.map_join(missing, "\n", &inspect/1)}\nis not said by:\n#{text}"
    :ok
  end
end
