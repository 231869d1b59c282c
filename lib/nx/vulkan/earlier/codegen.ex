defmodule Nx.Vulkan.Codegen do
  @moduledoc """
  Compiles GLSL text to SPIR-V files for `Nx.Vulkan.NativeV`.

  Only shaders that a program brings along need this: the library's own are compiled already or made without a compiler.
  It runs whichever of `glslangValidator` (Debian's package `glslang-tools`), `glslang` and `glslc` (`shaderc`) is
  installed.

  Modules are cached by the hash of their source in `spv/` of the cache folder: `NX_VULKAN_CACHE_DIR`, else `nx_vulkan`
  in the user's cache folder. A file there is checked before its path is given out, and made again where it is broken.
  """

  alias Nx.Vulkan.NativeV

  @typedoc """
  Why there is no module.

    * `:exit` - the exit status of the compiler; nil where none ran, 0 where what it wrote is no well-formed module
    * `:stderr` - what the compiler said, or why none ran: none is installed, or the cache folder can't be written
    * `:glsl_path` - the source, which is kept; nil where it could not be written
  """
  @type failure :: %{exit: non_neg_integer | nil, stderr: String.t(), glsl_path: Path.t() | nil}

  # By the arguments that make each compile a compute shader for Vulkan 1.2, which is what the engine needs of a device.
  @compilers [
    {"glslangValidator", ~w(--target-env vulkan1.2 -S comp)},
    {"glslang", ~w(--target-env vulkan1.2 -S comp)},
    {"glslc", ~w(--target-env=vulkan1.2 -fshader-stage=compute)}
  ]

  # No compiler takes that long.
  @stale_after_s 3600

  @doc """
  Compiles a compute shader and returns the path of its SPIR-V file.

  ## Options

    * `:exact` - whether no float operation may be contracted, and signed zeros, infinities and NaN are kept, as the
      functions of `priv/shaders/include` need it. False unless set: GLSL's own rules
    * `:compiler` - the name or path of the compiler. The first one that is installed unless set
    * `:folder` - where the module is kept, `folder/0` unless set
    * `:key` - what the module's name there begins with. The hash of the source follows, so that the path of one source
      is never that of another, whoever else compiles under the same key
  """
  @spec compile_cached(String.t(), keyword) :: {:ok, Path.t()} | {:error, failure}
  def compile_cached(glsl, options \\ []) when is_binary(glsl) do
    options = Keyword.validate!(options, exact: false, compiler: nil, folder: nil, key: nil)
    name = [options[:key], hash(glsl, options[:exact])] |> Enum.reject(&is_nil/1) |> Enum.join("-")
    path = Path.join(options[:folder] || folder(), name <> ".spv")

    if File.regular?(path) and NativeV.shader_check(path) == :ok,
      do: {:ok, path},
      else: compile(glsl, path, options)
  end

  @doc """
  Deletes every cached module and kept source. What is being compiled, in this or another VM, stays and takes its place
  later; what crashed compilations left goes when it is an hour old.
  """
  @spec clear_cache() :: :ok
  def clear_cache do
    folder = folder()

    with {:ok, names} <- File.ls(folder) do
      for name <- names, path = Path.join(folder, name), disposable?(name, path), do: File.rm(path)
    end

    :ok
  end

  # What is compiled has the module's name, a process and a number until it is done.
  defp disposable?(name, path) do
    if name =~ ~r/\.spv\.\d+-\d+(\.comp)?\z/, do: stale?(path), else: Path.extname(name) in ~w(.spv .comp)
  end

  defp stale?(path) do
    case File.stat(path, time: :posix) do
      {:ok, %{mtime: written}} -> System.os_time(:second) - written > @stale_after_s
      {:error, _gone} -> false
    end
  end

  @doc """
  The folder of the cached modules.
  """
  @spec folder() :: Path.t()
  def folder do
    case System.get_env("NX_VULKAN_CACHE_DIR", "") do
      "" -> Path.join(:filename.basedir(:user_cache, "nx_vulkan"), "spv")
      folder -> Path.join(folder, "spv")
    end
  end

  defp hash(glsl, exact?) do
    hash = :crypto.hash(:sha256, [glsl, if(exact?, do: "\nexact", else: "")])
    Base.encode16(hash, case: :lower)
  end

  defp compile(glsl, path, options) do
    # Another process may compile the same source: each has files of its own, and renaming is atomic.
    part = "#{path}.#{System.pid()}-#{System.unique_integer([:positive])}"
    source = Path.rootname(path) <> ".comp"
    written = part <> ".comp"

    with :ok <- file(:mkdir_p, [Path.dirname(path)]),
         :ok <- file(:write, [written, glsl]),
         {:ok, compiler, arguments} <- compiler(options[:compiler]),
         :ok <- run(compiler, arguments ++ ["-o", part, written]),
         :ok <- exact(part, options[:exact]),
         :ok <- check(part),
         :ok <- file(:rename, [part, path]) do
      File.rm(written)
      {:ok, path}
    else
      {:error, status, said} ->
        File.rm(part)
        kept = if File.rename(written, source) == :ok, do: source
        said = said |> String.replace(written, source) |> String.replace(part, path)
        {:error, %{exit: status, stderr: said, glsl_path: kept}}
    end
  end

  # The first argument is a path of the cache.
  defp file(function, [path | _] = arguments) do
    with {:error, reason} <- apply(File, function, arguments) do
      {:error, nil, "#{path}: #{:file.format_error(reason)} (the cache: NX_VULKAN_CACHE_DIR can name another folder)"}
    end
  end

  defp compiler(nil) do
    found =
      Enum.find_value(@compilers, fn {name, arguments} ->
        if path = System.find_executable(name), do: {:ok, path, arguments}
      end)

    found || missing("none of #{Enum.map_join(@compilers, ", ", &elem(&1, 0))} is installed")
  end

  defp compiler(name) do
    case {System.find_executable(name), List.keyfind(@compilers, Path.basename(name), 0)} do
      {nil, _} -> missing("#{name} is not installed")
      {path, {_, arguments}} -> {:ok, path, arguments}
      {_, nil} -> missing("#{name} is none of #{Enum.map_join(@compilers, ", ", &elem(&1, 0))}")
    end
  end

  defp missing(reason) do
    {:error, nil, "#{reason}: GLSL needs a compiler, such as glslangValidator of the package glslang-tools"}
  end

  defp run(compiler, arguments) do
    case System.cmd(compiler, arguments, stderr_to_stdout: true) do
      {_said, 0} -> :ok
      {said, status} -> {:error, status, said}
    end
  end

  defp exact(_part, false), do: :ok

  defp exact(part, true) do
    with {:ok, words} <- File.read(part), {:ok, words} <- NativeV.shader_exact_floats(words) do
      file(:write, [part, words])
    else
      {:error, _kind, message} -> {:error, 0, message}
      {:error, reason} -> {:error, 0, "the compiler left no #{part}: #{:file.format_error(reason)}"}
    end
  end

  # glslang can leave a broken module and say that all is well.
  defp check(part) do
    with {:error, _kind, message} <- NativeV.shader_check(part), do: {:error, 0, message}
  end
end
