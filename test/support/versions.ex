defmodule Nx.Vulkan.Versions do
  @moduledoc """
  What tests say the same of every version of Nx that mix.exs accepts.
  """

  Code.ensure_loaded!(Nx)
  Code.ensure_loaded!(Nx.Defn.Kernel)

  @hook if function_exported?(Nx.Defn.Kernel, :io_call, 3), do: :io_call, else: :hook

  @doc "The name of `Nx.Defn.Kernel.io_call/3`, which Nx 0.13 calls `hook/3`."
  def hook, do: @hook

  @doc "Whether there are tokens to hang hooks on."
  def tokens?, do: Code.ensure_loaded?(Nx.Defn.Token)

  @doc "Whether there is `Nx.donatable/1`."
  def donatable?, do: Code.ensure_loaded?(Nx) and function_exported?(Nx, :donatable, 1)

  @doc "`Nx.Defn.Kernel.io_call/2`, in a numerical definition or not."
  defmacro hooked(expr, name_or_callback) do
    quote do: Nx.Defn.Kernel.unquote(@hook)(unquote(expr), unquote(name_or_callback))
  end

  @doc "`Nx.Defn.Kernel.io_call/3`."
  defmacro hooked(expr, name, callback) do
    quote do: Nx.Defn.Kernel.unquote(@hook)(unquote(expr), unquote(name), unquote(callback))
  end
end
