defmodule Nx.Vulkan.Library do
  @moduledoc false
  # Where the native library comes from and is, and why it can't be loaded: all that can be known while
  # `Nx.Vulkan.NativeV` can't.

  # Of native_library/0 in mix.exs.
  @from Mix.Project.config()[:native_library]
  @source if @from == :built, do: "built", else: "precompiled"
  @version Mix.Project.config()[:version]
  @built "priv/native/#{Mix.env()}/nx_vulkan_native"

  # What releases have libraries for; native/xtask/src/release.rs has the same.
  @targets ~w(
    aarch64-apple-darwin
    aarch64-unknown-linux-gnu
    aarch64-unknown-linux-musl
    x86_64-apple-darwin
    x86_64-pc-windows-msvc
    x86_64-unknown-freebsd
    x86_64-unknown-linux-gnu
    x86_64-unknown-linux-musl
  )

  # The VM of Windows does not tell its processor, so that rustler_precompiled takes all for x86-64.
  @windows "x86_64-pc-windows-msvc"

  # That of OTP 26, whose enif_set_option the library calls; VMs of later versions load it.
  @nif_versions ["2.17"]

  @doc """
  Makes a module that of the native library: `use Nx.Vulkan.Library`. The library of a release is downloaded while the
  module is compiled; a built one is there before, by the compiler `nx_vulkan_native` of mix.exs.
  """
  defmacro __using__([]), do: loading(@from)

  @doc """
  The code that loads it, by where it comes from.
  """
  def loading(:built) do
    quote do
      use Rustler,
        otp_app: :nx_vulkan,
        crate: "nx_vulkan_native",
        skip_compilation?: true,
        load_from: {:nx_vulkan, unquote(@built)}
    end
  end

  def loading({:precompiled, url}) do
    if not Code.ensure_loaded?(RustlerPrecompiled) do
      raise "rustler_precompiled is missing, which takes the library of the release. " <> to_build()
    end

    quote do
      try do
        use RustlerPrecompiled,
          otp_app: :nx_vulkan,
          crate: "nx_vulkan_native",
          version: unquote(@version),
          base_url: unquote(url),
          targets: unquote(@targets),
          nif_versions: unquote(@nif_versions),
          variants: Nx.Vulkan.Library.variants(),
          force_build: false
      rescue
        error in RuntimeError -> raise Nx.Vulkan.Library.without(error, unquote(url))
      end
    end
  end

  @doc "What releases have libraries for, by Rust's names."
  def targets, do: @targets

  @doc """
  What rustler_precompiled has to choose by, beside the target.
  """
  def variants, do: %{@windows => [aarch64: fn -> System.get_env("PROCESSOR_ARCHITECTURE") == "ARM64" end]}

  @doc """
  The error of a download, with what to do. Its own advice, which is for packages that Rustler builds, is left out.
  """
  @spec without(Exception.t(), String.t()) :: String.t()
  def without(error, url) do
    [said | _advice] = error |> Exception.message() |> String.split("\n\nYou can force")

    """
    nx_vulkan #{@version} has no native library here.

    #{said}

    The libraries of this version are at #{url}
    A download is kept in #{downloads()}, from where the next one takes it without a network. \
    Files can be put there by hand; delete one that does not fit its checksum. \
    RUSTLER_PRECOMPILED_GLOBAL_CACHE_PATH names another folder.

    #{to_build()}
    """
  end

  # As rustler_precompiled has it.
  defp downloads do
    System.get_env("RUSTLER_PRECOMPILED_GLOBAL_CACHE_PATH") ||
      :filename.basedir(
        :user_cache,
        "rustler_precompiled/precompiled_nifs",
        if(System.get_env("MIX_XDG"), do: %{os: :linux}, else: %{})
      )
  end

  defp to_build do
    "To build the library here, install Rust from https://rustup.rs and run " <>
      "`mix deps.compile nx_vulkan --force` with NX_VULKAN_BUILD=1 in the environment."
  end

  @doc """
  Whether the library is `"built"` here or that of a release, `"precompiled"`.
  """
  @spec source() :: String.t()
  def source, do: @source

  @doc """
  The file of the library, whether or not it is there.
  """
  @spec file() :: Path.t()
  def file do
    extension = if match?({:win32, _}, :os.type()), do: ".dll", else: ".so"
    Application.app_dir(:nx_vulkan, place(extension))
  end

  if @source == "built" do
    defp place(extension), do: @built <> extension
  else
    # Its name has the target, which only the build knew. Other versions may lie beside it.
    defp place(extension) do
      pattern = "priv/native/{lib,}nx_vulkan_native-v#{@version}-nif-*#{extension}"
      found = :nx_vulkan |> Application.app_dir(pattern) |> Path.wildcard()
      Path.join("priv/native", Path.basename(List.first(found, pattern)))
    end
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
  As `error/0`, in words that say what to do.
  """
  @spec unloadable() :: String.t() | nil
  def unloadable do
    with why when why != nil <- error(),
         do: "the native library can't be loaded: #{why}; `mix nx_vulkan.doctor` says more"
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
      {:error, {:bad_lib, said}} -> said |> to_string() |> unfit(reason)
      _other -> unfit("", reason)
    end
  end

  # The words of the VM, such as of versions, unless they are of this module in place of that of the library.
  defp unfit(said, reason) do
    if said == "" or said =~ "Elixir.Nx.Vulkan.NativeV",
      do: "its module can't be loaded: #{inspect(reason)}",
      else: said
  end
end
