defmodule Nx.Vulkan.Fallback do
  @moduledoc """
  For programs that count or forbid ops which other versions of this library compute on the host.

  Here no op is: what the device can't do raises `Nx.Vulkan.Error`. So there is nothing to count, and every mode is
  strict.
  """

  @doc "Runs `fun`. Returns its value and how often each op was computed on the host: none."
  @spec count((-> result)) :: {result, %{}} when result: var
  def count(fun) when is_function(fun, 0), do: {fun.(), %{}}

  @doc "Runs `fun`. Returns how many ops were computed on the host: none."
  @spec count_total((-> term)) :: 0
  def count_total(fun) when is_function(fun, 0) do
    _ = fun.()
    0
  end

  @doc "Runs `fun` and returns its value. The mode changes nothing."
  @spec strict(:allow | :warn | :raise, (-> result)) :: result when result: var
  def strict(mode \\ :raise, fun) when mode in [:allow, :warn, :raise] and is_function(fun, 0), do: fun.()
end
