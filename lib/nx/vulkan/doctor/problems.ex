defmodule Nx.Vulkan.Doctor.Problems do
  @moduledoc false
  # What is wrong, from what was found, and what to do about it: a function of data.

  def of(facts) do
    [
      &library/1,
      &loader/1,
      &variables/1,
      &drivers/1,
      &probe/1,
      &application/1,
      &devices/1,
      &chosen/1,
      &checks/1,
      &hardware/1,
      &validation/1,
      &cache/1,
      &calibration/1,
      &faults/1
    ]
    |> Enum.flat_map(& &1.(facts))
    |> Enum.sort_by(&Enum.find_index(["error", "warning", "note"], fn severity -> severity == &1.severity end))
  end

  defp error(id, what, remedy), do: [%{severity: "error", id: id, what: what, remedy: remedy}]
  defp warning(id, what, remedy), do: [%{severity: "warning", id: id, what: what, remedy: remedy}]
  defp note(id, what, remedy), do: [%{severity: "note", id: id, what: what, remedy: remedy}]

  defp library(%{library: %{loads: false, size_bytes: nil, source: source}}) do
    remedy =
      case source do
        "built" -> "build it: `mix deps.compile nx_vulkan --force` with Rust (https://rustup.rs)"
        "precompiled" -> "download it: `mix deps.compile nx_vulkan --force`"
      end

    error("library", "the native library is missing", remedy)
  end

  defp library(%{library: %{loads: false, error: why, source: source}}) do
    remedy =
      case source do
        "built" ->
          "build it on this system, or on one with the same C library and processor: " <>
            "`mix deps.compile nx_vulkan --force`"

        "precompiled" ->
          "build it on this system, with Rust (https://rustup.rs): " <>
            "`NX_VULKAN_BUILD=1 mix deps.compile nx_vulkan --force`"
      end

    error("library", "the native library can't be loaded: #{why}", remedy)
  end

  defp library(_facts), do: []

  defp loader(%{loader: %{error: why}, system: system}) when why != nil do
    error("loader", "there is no Vulkan loader: #{why}", "install it and a driver: #{install(system)}")
  end

  defp loader(_facts), do: []

  defp variables(%{drivers: drivers, environment: environment}) do
    named = for %{name: name} <- environment, name in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"], do: name

    if named != [] and drivers != [] and Enum.all?(drivers, &(&1.library == nil)) do
      error(
        "variables",
        "#{hd(named)} names no driver that is there",
        "unset it, or let it name the manifest of a driver"
      )
    else
      []
    end
  end

  # Of a list of packages' manifests many are of no use here, so that it is an error only where nothing else is found.
  defp drivers(%{drivers: drivers}) do
    Enum.flat_map(drivers, fn
      %{error: why, manifest: manifest} when why != nil ->
        warning("driver", "#{manifest}: #{why}", "install its driver again, or delete the manifest")

      %{ended: ended, manifest: manifest} when ended in ["crashed", "hung"] ->
        error(
          "driver",
          "the driver of #{manifest} #{ended}, and is left out here",
          "update it, or leave it out: VK_DRIVER_FILES with the manifests of the others, or " <>
            "VK_LOADER_DRIVERS_DISABLE=#{Path.basename(manifest)}"
        )

      _driver ->
        []
    end)
  end

  defp probe(%{probe: %{ended: ended, stage: stage}}) when ended != "well" do
    error(
      "probe",
      "asking Vulkan #{ended} at the stage #{inspect(stage)}",
      "update the driver; VK_LOADER_DEBUG=all tells what the loader does"
    )
  end

  defp probe(_facts), do: []

  defp application(%{application_error: why}) when why != nil do
    error("application", "the application can't be started: #{why}", "see the guide to the configuration")
  end

  defp application(_facts), do: []

  defp devices(%{loader: %{error: nil}, devices: [], probe: %{ended: "well"}} = facts) do
    why = if error = facts.devices_error, do: ": #{error.message}", else: ""
    error("devices", "no Vulkan device was found#{why}", "install a driver: #{install(facts.system)}")
  end

  defp devices(%{devices: devices}) do
    Enum.flat_map(devices, fn
      %{usable: false} = device ->
        note(
          "device",
          "#{device.index}: #{device.name} can't be used: #{device.reason}",
          "a newer driver may change it"
        )

      _usable ->
        []
    end)
  end

  defp chosen(%{devices: [_ | _], device: nil, device_error: %{kind: kind, message: message}, environment: environment}) do
    names = for %{name: name} <- environment, String.starts_with?(name, ["NX_VULKAN_", "NXV_"]), do: name

    remedy =
      case {kind, names} do
        {:invalid_argument, [_ | _]} -> "correct or unset what is wrong of #{Enum.join(names, ", ")}"
        {_kind, [_ | _]} -> "see what #{Enum.join(names, ", ")} say, and the guide to the configuration"
        _unset -> "see `config :nx_vulkan` and the guide to the configuration"
      end

    error("chosen", "no device can be opened: #{message}", remedy)
  end

  defp chosen(_facts), do: []

  defp checks(%{checks: checks}) do
    Enum.flat_map(checks, fn
      %{ok: false, name: name, error: why} ->
        error("check", "the #{name} computation is wrong: #{why}", "update the driver, and report it with `--report`")

      _right ->
        []
    end)
  end

  # A GPU that is there and is not what computes.
  defp hardware(%{gpus: gpus, nodes: nodes, devices: devices, device: device}) do
    locked = for %{accessible: false, path: path} <- nodes, do: path
    found = for %{kind: kind, usable: true} <- devices, kind in [:discrete, :integrated, :virtual], do: kind

    cond do
      locked != [] ->
        warning(
          "access",
          "this user may not use #{Enum.join(locked, ", ")}",
          "add the user to the groups `render` and `video`"
        )

      found == [] and Enum.any?(gpus, &(&1.vendor == "NVIDIA")) and device != nil ->
        warning(
          "hardware",
          "there is a GPU of NVIDIA, and no driver of Vulkan for it",
          "install NVIDIA's driver with its Vulkan part; in a container, NVIDIA_DRIVER_CAPABILITIES=all gives it"
        )

      found == [] and Enum.any?(gpus, &(&1.vendor in ["AMD", "Intel"])) and device != nil ->
        warning(
          "hardware",
          "there is a GPU, and no driver of Vulkan for it",
          "install Mesa's drivers; in a container, pass the GPU on with `--device /dev/dri`"
        )

      true ->
        chosen_over(device, found)
    end
  end

  defp chosen_over(%{kind: :cpu, selected_by: by}, [_ | _]) do
    note(
      "cpu",
      "the device in use is the CPU although there is a GPU, chosen by #{by}",
      "leave the choice out for the GPU"
    )
  end

  defp chosen_over(_device, _found), do: []

  defp validation(%{validation: %{messages: [first | _] = messages}}) do
    warning(
      "validation",
      "the validation layer complains #{length(messages)} times: #{first}",
      "report it with `--report`"
    )
  end

  defp validation(%{validation: %{on: true}}) do
    note("validation", "the validation layer watches, which takes time", "unset NX_VULKAN_VALIDATION for speed")
  end

  defp validation(%{loader: %{version: _}, validation: %{installed: nil}, environment: environment, system: system}) do
    if Enum.any?(environment, &(&1.name == "NX_VULKAN_VALIDATION" and &1.value not in ["", "0"])) do
      warning("validation", "NX_VULKAN_VALIDATION asks for the validation layer, which is not installed", layer(system))
    else
      []
    end
  end

  defp validation(_facts), do: []

  defp cache(%{cache: %{folder: nil}}) do
    warning(
      "cache",
      "there is no folder for compiled pipelines: every start compiles all of them",
      "set NX_VULKAN_CACHE_DIR"
    )
  end

  defp cache(%{cache: %{writable: false, folder: folder}}) do
    warning("cache", "#{folder} can't be written: every start compiles all pipelines", "set NX_VULKAN_CACHE_DIR")
  end

  defp cache(_facts), do: []

  @measure "`mix nx_vulkan.calibrate`, or `Nx.Vulkan.Calibration.run([])` in a release, measures it"

  defp calibration(%{calibration: %{state: "stale"}}),
    do: note("calibration", "the device was measured with another driver, which does not count", @measure)

  defp calibration(%{calibration: %{state: "unreadable"}}),
    do:
      note(
        "calibration",
        "the file of what was measured is damaged or of another version, and does not count",
        @measure
      )

  # On CPUs guesses are as good as it gets.
  defp calibration(%{calibration: %{state: "guess", class: class}, device: %{kind: kind}}) when kind != :cpu,
    do: note("calibration", "nothing was measured on the device: kernels are chosen by guesses for #{class}", @measure)

  defp calibration(_facts), do: []

  defp faults(%{faults: faults}) do
    case for(%{left: true, what: what} <- faults, do: what) do
      [] ->
        []

      left ->
        note(
          "faults",
          "what this driver is known to do otherwise, and shows: #{Enum.join(left, " ")}",
          "docs/design/driver-faults.md"
        )
    end
  end

  @doc """
  How the loader and drivers are installed on a system.
  """
  def install(%{os: "darwin"}),
    do: "`brew install vulkan-loader molten-vk`; where it is not found, DYLD_FALLBACK_LIBRARY_PATH=/opt/homebrew/lib"

  def install(%{os: "windows"}), do: "the driver of the GPU's vendor brings both"

  def install(%{os: "freebsd"}),
    do: "`pkg install vulkan-loader mesa-dri`, for GPUs of AMD and Intel `drm-kmod` as well"

  def install(system) do
    case package_manager(system) do
      "apt" -> "`apt install libvulkan1 mesa-vulkan-drivers`"
      "dnf" -> "`dnf install vulkan-loader mesa-vulkan-drivers`"
      "pacman" -> "`pacman -S vulkan-icd-loader vulkan-swrast`, and vulkan-radeon, vulkan-intel or nvidia-utils"
      "apk" -> "`apk add vulkan-loader mesa-vulkan-swrast`, and mesa-vulkan-ati or mesa-vulkan-intel"
      "zypper" -> "`zypper install libvulkan1 libvulkan_lvp`, and libvulkan_radeon or libvulkan_intel"
      "nix" -> "`hardware.graphics.enable = true`"
      nil -> "the packages of the Vulkan loader (libvulkan.so.1) and of Mesa's Vulkan drivers"
    end <> "; for NVIDIA, the vendor's driver"
  end

  defp layer(%{os: "darwin"}), do: "`brew install vulkan-validationlayers`"
  defp layer(%{os: "freebsd"}), do: "`pkg install vulkan-validation-layers`"

  defp layer(system) do
    case package_manager(system) do
      "apt" -> "`apt install vulkan-validationlayers`"
      "dnf" -> "`dnf install vulkan-validation-layers`"
      "pacman" -> "`pacman -S vulkan-validation-layers`"
      "apk" -> "`apk add vulkan-validation-layers`"
      "zypper" -> "`zypper install vulkan-validationlayers`"
      _other -> "install the Vulkan SDK of LunarG"
    end
  end

  @managers %{
    "debian" => "apt",
    "ubuntu" => "apt",
    "fedora" => "dnf",
    "rhel" => "dnf",
    "centos" => "dnf",
    "arch" => "pacman",
    "alpine" => "apk",
    "suse" => "zypper",
    "opensuse" => "zypper",
    "nixos" => "nix"
  }

  defp package_manager(%{distribution: id, like: like}), do: Enum.find_value([id | like], &@managers[&1])
end
