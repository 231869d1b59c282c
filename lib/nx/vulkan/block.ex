defmodule Nx.Vulkan.Block do
  @moduledoc false

  # Functions of Nx.Vulkan that the engine has. Each is a block as Nx's own are: a struct of the name and the attributes
  # of the engine's op, which `Nx.Vulkan.Ops` finds, and steps in Nx's ops, which other backends run and gradients
  # follow.

  @doc "The modules whose structs are blocks."
  @spec parents() :: [module]
  def parents, do: [Nx.Block, Nx.Block.LinAlg, __MODULE__]
end
