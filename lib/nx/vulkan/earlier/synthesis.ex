defmodule Nx.Vulkan.Synthesis do
  @moduledoc """
  Chain shaders of distribution families, compiled when they are asked for.

      spec = Nx.Vulkan.ChainShaderSpecsF64.normal(0.5, 1.5)
      {:ok, spv} = Nx.Vulkan.Synthesis.compile(spec)
      push = Nx.Vulkan.ChainShaderSpecs.push(spec, n, k, eps)
      {:ok, {q, p, grad, logp}} = Nx.Vulkan.NativeV.leapfrog_chain_synth_f64(q, p, inv_mass, push, k, spv)

  `Nx.Vulkan.ShaderTemplate` writes the source and `Nx.Vulkan.Codegen` compiles and caches it: it needs a GLSL compiler.
  """

  alias Nx.Vulkan.{Codegen, ShaderTemplate}
  alias Nx.Vulkan.ShaderTemplate.FamilySpec

  @doc """
  The path of the SPIR-V file of a family's chain.

  ## Errors

  A map with what the compiler said (`:stderr`), its exit status (`:exit`) and the path of the source (`:glsl_path`), as
  `t:Nx.Vulkan.Codegen.failure/0` says. A spec that makes no source is an `ArgumentError`.
  """
  @spec compile(FamilySpec.t()) :: {:ok, Path.t()} | {:error, Codegen.failure()}
  def compile(%FamilySpec{} = spec), do: spec |> ShaderTemplate.render() |> Codegen.compile_cached(exact: true)

  @doc """
  As `compile/1`, with the source; a failure has it as `:glsl`.
  """
  @spec compile_with_source(FamilySpec.t()) :: {:ok, Path.t(), String.t()} | {:error, map}
  def compile_with_source(%FamilySpec{} = spec) do
    glsl = ShaderTemplate.render(spec)

    case Codegen.compile_cached(glsl, exact: true) do
      {:ok, path} -> {:ok, path, glsl}
      {:error, failure} -> {:error, Map.put(failure, :glsl, glsl)}
    end
  end

  @doc """
  `Nx.Vulkan.Codegen.clear_cache/0`, which deletes every compiled module.
  """
  @spec clear_cache() :: :ok
  defdelegate clear_cache, to: Codegen
end
