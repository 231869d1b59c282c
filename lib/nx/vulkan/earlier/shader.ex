defmodule Nx.Vulkan.Shader do
  @moduledoc """
  Another name for `Nx.Vulkan.Codegen`, under which other versions of this library compile GLSL.
  """

  alias Nx.Vulkan.Codegen

  @doc """
  As `Nx.Vulkan.Codegen.compile_cached/2`.

  ## Options

    * `:cache_dir` - where the module is kept, `default_cache_dir/0` unless set
    * `:key` - what its name there begins with, before the hash of the source

  ## Errors

  A `t:Nx.Vulkan.Codegen.failure/0`; where the compiler wrote no well-formed module, it says why as `:invalid_spirv`,
  too.
  """
  @spec compile(String.t(), keyword) :: {:ok, Path.t()} | {:error, map}
  def compile(glsl, options \\ []) do
    options = Keyword.validate!(options, [:cache_dir, :key])

    with {:error, %{exit: 0} = failure} <-
           Codegen.compile_cached(glsl, folder: options[:cache_dir], key: options[:key]) do
      {:error, Map.put(failure, :invalid_spirv, failure.stderr)}
    end
  end

  @doc "As `Nx.Vulkan.Codegen.folder/0`."
  @spec default_cache_dir() :: Path.t()
  defdelegate default_cache_dir, to: Codegen, as: :folder
end
