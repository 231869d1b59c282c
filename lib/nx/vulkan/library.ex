defmodule Nx.Vulkan.Library do
  @moduledoc false
  # Where the native library is, and why it can't be loaded: all that can be known while `Nx.Vulkan.NativeV` can't.

  @folder "priv/native/#{Mix.env()}"
  @name "nx_vulkan_native"

  @doc """
  The library for `:erlang.load_nif/2`, which adds the extension of the system, within the application's folder.
  """
  @spec path() :: Path.t()
  def path, do: Path.join(@folder, @name)

  @doc """
  The file of the library, whether or not it is there.
  """
  @spec file() :: Path.t()
  def file do
    extension = if match?({:win32, _}, :os.type()), do: ".dll", else: ".so"
    Application.app_dir(:nx_vulkan, path() <> extension)
  end

  @doc """
  Why the library can't be loaded, or nil where it is.
  """
  @spec error() :: String.t() | nil
  def error do
    case Code.ensure_loaded(Nx.Vulkan.NativeV) do
      {:module, _module} -> nil
      {:error, reason} -> why(file(), reason)
    end
  end

  @doc """
  Why a file can't be loaded as a library of this version, as the dynamic linker says it.
  """
  @spec why(Path.t(), term) :: String.t()
  def why(file, reason \\ :on_load_failure) do
    # A library is for the module that it names. The attempt of any other ends with an error of the linker, where it has
    # one, and else with that of the wrong module.
    case :erlang.load_nif(file |> Path.rootname() |> to_charlist(), 0) do
      {:error, {:load_failed, said}} -> to_string(said)
      _for_another_module -> "its module can't be loaded: #{inspect(reason)}"
    end
  end
end
