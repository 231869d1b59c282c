defmodule Nx.Vulkan.Spirv do
  @moduledoc """
  Another name for `Nx.Vulkan.NativeV.shader_check/1`, under which other versions of this library check SPIR-V files.
  """

  @doc "Whether a file is a compute module that `Nx.Vulkan.NativeV` would run, and if not, why. Needs no device."
  @spec validate_file(Path.t()) :: :ok | {:error, String.t()}
  def validate_file(path) do
    with {:error, _kind, message} <- Nx.Vulkan.NativeV.shader_check(path), do: {:error, message}
  end
end
