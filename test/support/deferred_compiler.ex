defmodule Nx.Vulkan.Conformance.DeferredCompiler do
  @moduledoc """
  `Nx.Defn.Evaluator` with deferred ops: what tests give as a compiler to compare deferred ops with immediate ones.
  """

  @behaviour Nx.Defn.Compiler

  @impl true
  def __jit__(key, vars, fun, args_list, opts) do
    Nx.Vulkan.eager(:deferred, fn -> Nx.Defn.Evaluator.__jit__(key, vars, fun, args_list, opts) end)
  end

  @impl true
  defdelegate __compile__(key, vars, fun, opts), to: Nx.Defn.Evaluator
  @impl true
  defdelegate __partitions_options__(opts), to: Nx.Defn.Evaluator
  @impl true
  defdelegate __to_backend__(opts), to: Nx.Defn.Evaluator
  @impl true
  defdelegate __shard_jit__(key, mesh, vars, fun, args_list, opts), to: Nx.Defn.Evaluator
end
