defmodule Nx.Vulkan.Doctor.Host do
  @moduledoc false
  # What is to be known of the machine without a call of Vulkan.

  @own ["NX_VULKAN_", "NXV_"]
  # Of the loader, of layers and of drivers.
  @others [
    "VK_",
    "MESA_",
    "RADV_",
    "NVK_",
    "ANV_",
    "LVP_",
    "AMD_",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "DRI_PRIME",
    "NODEVICE_SELECT",
    "LD_PRELOAD"
  ]

  @vendors %{"0x10de" => "NVIDIA", "0x1002" => "AMD", "0x8086" => "Intel", "0x106b" => "Apple"}

  def facts do
    %{
      versions: Map.put(Nx.Vulkan.versions(), :erts, to_string(:erlang.system_info(:version))),
      system: system(),
      library: library(),
      environment: environment(),
      drivers: drivers(),
      gpus: gpus(),
      nodes: nodes(),
      cache: cache()
    }
  end

  defp system do
    release = os_release()

    %{
      os: os(),
      name: release["PRETTY_NAME"] || os(),
      distribution: release["ID"],
      like: String.split(release["ID_LIKE"] || ""),
      architecture: to_string(:erlang.system_info(:system_architecture)),
      cores: System.schedulers_online()
    }
  end

  def os do
    case :os.type() do
      {:win32, _} -> "windows"
      {_, name} -> to_string(name)
    end
  end

  defp os_release do
    case File.read("/etc/os-release") do
      {:ok, text} ->
        for line <- String.split(text, "\n"), [key, value] <- [String.split(line, "=", parts: 2)], into: %{} do
          {key, String.trim(value, "\"")}
        end

      {:error, _reason} ->
        %{}
    end
  end

  defp library do
    file = Nx.Vulkan.Library.file()

    size =
      case File.stat(file) do
        {:ok, %{size: size}} -> size
        {:error, _reason} -> nil
      end

    %{path: file, size_bytes: size, source: Nx.Vulkan.Library.source(), loads: nil, error: nil}
  end

  defp environment do
    for {name, value} <- Enum.sort(System.get_env()), String.starts_with?(name, @own ++ @others) do
      %{name: name, value: if(secret?(name), do: "set", else: String.replace_invalid(value))}
    end
  end

  defp secret?(name), do: name =~ ~r/KEY|TOKEN|SECRET|PASS|CRED|AUTH/i

  @doc """
  The manifests of drivers that the loader reads, by its rules. On Windows it asks the registry, and there are none
  here.
  """
  def drivers do
    chosen = list("VK_DRIVER_FILES") || list("VK_ICD_FILENAMES")
    files = chosen || Enum.flat_map(folders(), &[Path.join([&1, "vulkan", "icd.d"])])
    (files ++ (list("VK_ADD_DRIVER_FILES") || [])) |> Enum.flat_map(&manifests/1) |> Enum.uniq() |> Enum.map(&driver/1)
  end

  # Folders are those whose files end in .json; what is named and missing is told.
  defp manifests(path) do
    cond do
      File.dir?(path) -> for name <- Enum.sort(File.ls!(path)), Path.extname(name) == ".json", do: Path.join(path, name)
      Path.basename(path) == "icd.d" -> []
      true -> [path]
    end
  end

  defp folders do
    case os() do
      "windows" ->
        []

      _unix ->
        home = fn name, folder ->
          [System.get_env(name) || (System.user_home() && Path.join(System.user_home(), folder))]
        end

        system = fn name, folders -> list(name) || folders end

        [
          home.("XDG_CONFIG_HOME", ".config"),
          system.("XDG_CONFIG_DIRS", ["/etc/xdg"]),
          ["/etc", "/usr/local/etc"],
          home.("XDG_DATA_HOME", ".local/share"),
          system.("XDG_DATA_DIRS", ["/usr/local/share", "/usr/share"]),
          if(os() == "darwin", do: ["/opt/homebrew/etc", "/opt/homebrew/share"], else: [])
        ]
        |> Enum.concat()
        |> Enum.reject(&is_nil/1)
        |> Enum.uniq()
    end
  end

  defp list(name) do
    case System.get_env(name, "") do
      "" -> nil
      paths -> String.split(paths, separator(), trim: true)
    end
  end

  @doc "What stands between paths in a variable."
  def separator, do: if(os() == "windows", do: ";", else: ":")

  defp driver(path) do
    with {:ok, text} <- File.read(path),
         {:ok, %{"ICD" => %{"library_path" => library} = icd}} when is_binary(library) <- JSON.decode(text) do
      %{manifest: path, library: library, api_version: icd["api_version"], error: missing(path, library)}
    else
      {:error, reason} when is_atom(reason) -> unreadable(path, "#{:file.format_error(reason)}")
      _other -> unreadable(path, "it is no manifest of a driver")
    end
  end

  defp unreadable(path, error), do: %{manifest: path, library: nil, api_version: nil, error: error}

  # A bare name is looked for by the system's linker, anything else from the folder of the manifest on.
  defp missing(manifest, library) do
    path = Path.expand(library, Path.dirname(manifest))
    if String.contains?(library, ["/", "\\"]) and not File.exists?(path), do: "its library is missing"
  end

  # Only Linux tells, without tools.
  defp gpus do
    for folder <- Path.wildcard("/sys/bus/pci/devices/*"), "0x03" <> _ <- [read(folder, "class")] do
      driver =
        case File.read_link(Path.join(folder, "driver")) do
          {:ok, path} -> Path.basename(path)
          {:error, _reason} -> nil
        end

      vendor = read(folder, "vendor")
      %{pci: Path.basename(folder), vendor: Map.get(@vendors, vendor, vendor), kernel_driver: driver}
    end
  end

  defp read(folder, name) do
    case File.read(Path.join(folder, name)) do
      {:ok, text} -> String.trim(text)
      {:error, _reason} -> ""
    end
  end

  defp nodes do
    for path <- Path.wildcard("/dev/dri/renderD*") ++ Path.wildcard("/dev/nvidia[0-9]*") ++ Path.wildcard("/dev/dxg") do
      %{path: path, accessible: match?({:ok, %{access: :read_write}}, File.stat(path))}
    end
  end

  defp cache do
    alias Nx.Vulkan.Cache
    entries = Cache.entries()

    %{
      folder: Cache.root(),
      writable: Cache.root() && writable?(Cache.root()),
      files: length(entries),
      size_bytes: Cache.size_bytes(entries),
      limit_bytes: Cache.limit_bytes(),
      tuning: for(%{kind: :tuning, path: path} <- entries, do: %{file: Path.basename(path), device: measured(path)})
    }
  end

  # The name of the device that a file is of.
  defp measured(path) do
    with {:ok, file} <- Nx.Vulkan.Calibration.read(path), do: file["device"], else: (:error -> nil)
  end

  # A folder that is not there is made when it is needed, in the nearest one that is.
  defp writable?(folder) do
    case File.stat(folder) do
      {:ok, %{type: :directory, access: access}} -> access in [:read_write, :write]
      {:error, :enoent} -> Path.dirname(folder) != folder and writable?(Path.dirname(folder))
      _other -> false
    end
  end
end
