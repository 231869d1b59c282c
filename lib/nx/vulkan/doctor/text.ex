defmodule Nx.Vulkan.Doctor.Text do
  @moduledoc false
  # What was found, for people to read: functions of data.

  alias Nx.Vulkan.{Cache, Ops}

  @types Enum.map(Ops.Table.types(), &Ops.type_name/1)

  @doc "All of it, a line for each thing."
  def text(facts), do: facts |> lines() |> Enum.join("\n")

  @doc """
  A section for a bug report: without the user's folders, the names of user and machine, and what numbers a device.
  """
  def report(facts) do
    what = facts |> lines() |> Enum.join("\n") |> without_blanks(paths(facts)) |> redact()
    "## `mix nx_vulkan.doctor`\n\n```text\n#{what}\n```"
  end

  defp lines(facts) do
    [versions(facts), library(facts), loader(facts)] ++
      block("Variables", Enum.map(facts.environment, &"#{&1.name}=#{&1.value}")) ++
      block("Drivers", Enum.map(facts.drivers, &driver/1)) ++
      block("GPUs on the bus", Enum.map(facts.gpus, &gpu/1)) ++
      block("Devices", Enum.flat_map(facts.devices, &device/1)) ++
      in_use(facts) ++
      block("Computed", Enum.map(facts.checks, &check/1)) ++
      block("Printed by drivers", if(facts.probe.ended == "well", do: [], else: facts.probe.said)) ++
      problems(facts)
  end

  defp block(_title, []), do: []
  defp block(title, lines), do: ["#{title}:" | Enum.map(lines, &"  #{&1}")]

  defp versions(%{versions: versions, system: system}) do
    "Nx.Vulkan #{versions.nx_vulkan}, Nx #{versions.nx}, Elixir #{versions.elixir}, OTP #{versions.otp} on " <>
      "#{system.name}, #{system.architecture}, #{system.cores} cores"
  end

  defp library(%{library: library}) do
    size = if library.size_bytes, do: Cache.size(library.size_bytes), else: "missing"
    loads = %{true => "loads", false => "does not load", nil => "not tried"}[library.loads]
    "Library: #{library.source}, #{size}, #{loads}, #{library.path}"
  end

  defp loader(%{loader: %{version: version} = loader}) when version != nil,
    do:
      "Loader: " <>
        listed([version, loader.path, loader.validation_layer && "validation layer #{loader.validation_layer}"])

  defp loader(%{loader: %{error: _why}}), do: "Loader: missing"
  defp loader(_facts), do: "Loader: not tried"

  defp driver(driver) do
    state = driver.error || if(driver.ended in ["crashed", "hung"], do: driver.ended)
    "#{driver.manifest}: " <> listed([driver.library, driver.api_version && "Vulkan #{driver.api_version}", state])
  end

  defp gpu(gpu), do: "#{gpu.pci}: " <> listed([gpu.vendor, "kernel driver #{gpu.kernel_driver || "none"}"])

  defp device(device) do
    [least, usual, most] = device.subgroup_sizes
    subgroups = if least == most, do: "#{usual}", else: "#{least} to #{most}, #{usual} by themselves"
    place = device.pci && "PCI #{device.pci}"

    [
      "#{device.index}: #{device.name} (#{device.kind}, uuid:#{device.uuid})",
      "   " <> listed([device.driver, "Vulkan #{device.api_version}", "subgroups of #{subgroups}", place])
    ] ++
      Enum.map(device.heaps, &"   memory: #{heap(&1)}") ++
      if(device.matrices == [], do: [], else: ["   matrix units: #{matrices(device.matrices)}"]) ++
      if(device.usable, do: [], else: ["   can't be used: #{device.reason}"])
  end

  defp heap(heap) do
    whose = if heap.device_local, do: "the device", else: "the host"
    used = heap.used_bytes && "#{Cache.size(heap.used_bytes)} in use of #{Cache.size(heap.budget_bytes)}"
    listed(["#{Cache.size(heap.size_bytes)} of #{whose}", used])
  end

  defp matrices(matrices) do
    matrices
    |> Enum.map(fn %{sizes: sizes, types: [a, _b, _c, result]} -> "#{Enum.join(sizes, "x")} #{a} to #{result}" end)
    |> Enum.uniq()
    |> Enum.join(", ")
  end

  defp in_use(%{device: nil}), do: ["In use: none"]

  defp in_use(%{device: device} = facts) do
    native = Enum.reject(@types, &(&1 in device.lowered))

    units =
      case {device.f16_matrices, device.bf16_matrices} do
        {true, true} -> "used for f16, and for f32 in parts of bf16"
        {true, false} -> "used for f16"
        _none -> "not used"
      end

    block("In use: #{device.index}: #{device.name}, as #{device.selected_by}", [
      "native types: #{Enum.join(native, ", ")}",
      "lowered types: #{none(device.lowered)}",
      "matrix units: #{units}",
      "small floats are kept, as it says, of: #{none(device.denormals)}",
      memory(facts.memory),
      pipelines(facts),
      calibration(facts.calibration),
      "validation layer: " <> if(facts.validation.on, do: "on", else: "off"),
      faults(facts.faults)
    ])
    |> List.update_at(0, &String.trim_trailing(&1, ":"))
  end

  defp none([]), do: "none"
  defp none(list), do: Enum.join(list, ", ")

  defp memory(nil), do: "memory of tensors: not known"
  defp memory(stats), do: "memory of tensors: #{Cache.size(stats.budget_bytes)} at most"

  defp pipelines(%{cache: cache, device: device}) do
    loaded = if(cached = device.pipeline_cache, do: cached.loaded_bytes, else: 0)

    "cache: " <>
      listed([
        cache.folder || "no folder",
        "#{cache.files} files, #{Cache.size(cache.size_bytes)} of #{Cache.size(cache.limit_bytes)} at most",
        "#{Cache.size(loaded)} of pipelines loaded"
      ])
  end

  defp calibration(calibration) do
    state =
      %{
        "measured" => "measured",
        "stale" => "measured with another driver, a guess until then",
        "unreadable" => "a guess, the file is damaged",
        "guess" => "a guess"
      }[calibration.state]

    "calibration: #{state}, for #{calibration.class}, #{calibration.processors} processors"
  end

  defp faults([]), do: "known faults of the driver: none"

  defp faults(faults) do
    {same, other} = Enum.split_with(faults, & &1.same_version)
    left = Enum.count(faults, & &1.left)

    "known faults of the driver: " <>
      listed([
        "#{length(same)} of this version",
        other != [] && "#{length(other)} of other versions",
        "#{length(faults) - left} of them with a way round"
      ])
  end

  defp check(%{ok: true} = check), do: "#{check.name}: right, #{check.first_ms} ms, then #{check.again_ms} ms"
  defp check(check), do: "#{check.name}: WRONG, #{check.error}"

  defp problems(%{problems: []}), do: ["All is well."]

  defp problems(%{problems: problems} = facts) do
    lines = Enum.flat_map(problems, &["#{&1.severity}: #{&1.what}", "  what to do: #{&1.remedy}"])
    block("Problems", lines) ++ if(facts.status == 0, do: ["All that is needed works."], else: [])
  end

  defp listed(parts), do: parts |> Enum.filter(& &1) |> Enum.join(", ")

  # Where a path ends is not to be seen where it has blanks.
  defp paths(facts) do
    named = for %{manifest: manifest, library: library} <- facts.drivers, path <- [manifest, library], do: path
    values = for %{value: value} <- facts.environment, path <- String.split(value, [":", ";"]), do: path
    Enum.filter([facts.library.path, facts.cache.folder | named ++ values], &(is_binary(&1) and &1 =~ ~r{[/\\].*\s}))
  end

  defp without_blanks(text, paths) do
    Enum.reduce(paths, text, &String.replace(&2, &1, String.replace(&1, ~r/\s/, "_")))
  end

  # Folders of the system, which say nothing of the user.
  @system [
    "/usr/",
    "/etc/",
    "/opt/homebrew/",
    "/opt/amdgpu/",
    "/opt/rocm/",
    "/lib/",
    "/lib64/",
    "/proc/",
    "/dev/",
    "/sys/",
    "/nix/store/",
    "/run/opengl-driver",
    "/System/"
  ]

  @doc false
  def redact(text, who \\ who()) do
    # A home folder goes with what is below it.
    text
    |> replace(who.home, "/~")
    |> String.replace(
      ~r{(?<![\w.~…])/[^\s"'`:,;()|=]+},
      &if(String.starts_with?(&1, @system), do: &1, else: "…/" <> Path.basename(&1))
    )
    |> String.replace(~r/\b[A-Za-z]:\\[^\s"'`:,;()|]+/, &("…\\" <> (&1 |> String.split("\\") |> List.last())))
    # Numbers of one device: UUIDs, also where a variable names its first digits.
    |> String.replace(~r/\b(?=[0-9a-f-]*[0-9])[0-9a-f]{8}[0-9a-f-]*\b/i, "…")
    |> name(who.user, "user")
    |> name(who.host, "host")
  end

  defp who do
    {:ok, host} = :inet.gethostname()
    %{home: System.user_home(), user: System.get_env("USER") || System.get_env("USERNAME"), host: to_string(host)}
  end

  defp replace(text, folder, _with) when folder in [nil, "", "/"], do: text
  defp replace(text, folder, with), do: String.replace(text, folder, with)

  # Words that this itself uses are no secrets, and would be missed.
  @words ~w(root user host localhost vulkan nvidia mesa linux debian ubuntu fedora alpine arch cpu gpu amd
            intel nx elixir)

  defp name(text, name, with) do
    if name in [nil, ""] or String.length(name) < 3 or String.downcase(name) in @words,
      do: text,
      else: String.replace(text, ~r/(?<![\w])#{Regex.escape(name)}(?![\w])/i, with)
  end
end
