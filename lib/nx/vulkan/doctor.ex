defmodule Nx.Vulkan.Doctor do
  @usage """
  usage: [--json | --report] [--timeout SECONDS] | --help

    --json              prints all that was found as an object of JSON
    --report            prints a section of Markdown for a bug report, without paths and names of yours
    --timeout SECONDS   how long Vulkan may take to answer and to compute, 120 unless set
    --help              prints this
  """

  @moduledoc """
  Says what there is of Vulkan on this machine, which device is used and why, whether it computes right, and what to do
  about each problem.

      Nx.Vulkan.Doctor.run([])

  from a release does what `mix nx_vulkan.doctor` does, as `bin/my_app eval "System.halt(Nx.Vulkan.Doctor.run([]))"`. It
  prints

      Nx.Vulkan 0.1.0, Nx 0.13.1, Elixir 1.18.3, OTP 27 on Debian GNU/Linux 13 (trixie), x86_64-pc-linux-gnu, 2 cores
      Library: built, 11.8 MiB, loads, /app/lib/nx_vulkan-0.1.0/priv/native/prod/nx_vulkan_native.so
      Loader: 1.4.309, /usr/lib/x86_64-linux-gnu/libvulkan.so.1.4.309
      Drivers:
        /usr/share/vulkan/icd.d/lvp_icd.json: libvulkan_lvp.so, Vulkan 1.4.305
      Devices:
        0: llvmpipe (LLVM 19.1.7, 256 bits) (cpu, uuid:6d657361323...)
           llvmpipe Mesa 25.0.7-2 (LLVM 19.1.7), Vulkan 1.3.281, subgroups of 8
           memory: 7.8 GiB of the device, 0 bytes in use of 7.8 GiB
      In use: 0: llvmpipe (LLVM 19.1.7, 256 bits), as first cpu
        native types: s2, s4, s8, s16, s32, s64, u2, u4, u8, u16, u32, u64, f8, f8_e4m3fn, bf16, f16, f32, f64, c64, c128
        lowered types: none
        ...
      Computed:
        elementwise: right, 12.31 ms, then 0.21 ms
        ...
      All is well.

  Nothing of Vulkan is called in the VM that asks, but in another one: a driver that crashes or hangs there is named,
  and left out of the rest.

  ## The object

  `examine/1` gives a map, and `--json` prints it; new keys may come.

    * `:status` - the exit status: 1 where one of the problems is an `"error"`
    * `:problems` - a list of `:severity` (`"error"`, `"warning"` or `"note"`), an `:id`, `:what` it is, and a `:remedy`
    * `:versions`, `:system`, `:environment`, `:gpus` (on the PCI bus) and `:nodes` (device files) - of the machine
    * `:library` - the native library: its `:path`, its `:source`, which is `"precompiled"` or `"built"`, and whether it
      `:loads` or the `:error`
    * `:loader` - its `:version`, `:path`, `:validation_layer` and `:error`; nil where it was not reached
    * `:drivers` - a list of each `:manifest`, its `:library`, `:api_version` and `:error`, and how the driver `:ended`
    * `:devices`, `:devices_error` - as `Nx.Vulkan.devices/0`, and why there are none
    * `:device`, `:device_error` - the one in use, as `Nx.Vulkan.device_info/0`, and why there is none
    * `:calibration` - its `:state`: `"measured"`, `"stale"`, `"unreadable"` or `"guess"`
    * `:application_error` - why the application can't be started, which a wrong configuration does
    * `:memory` - bytes of the pool
    * `:cache` - its `:folder`, whether it is `:writable`, and bytes and number of its files
    * `:validation` - the version `:installed`, whether it is `:on`, and its `:messages`
    * `:faults` - those that are known of the driver in use
    * `:checks` - each computation by `:name`: whether it is `:ok`, its `:error`, `:first_ms` and `:again_ms`
    * `:probe` - how the other VM `:ended`, at which `:stage`, with which `:exit_status`, and what it `:said`
  """

  alias Nx.Vulkan.Doctor.{Faults, Host, Probe, Problems, Text}

  @timeout_s 120

  # To list its devices and open one a driver takes a second at most.
  @driver_timeout_ms 20_000

  # What a driver that was not asked yet can break.
  @driver_stages ["start", "loader", "devices", "application", "open"]

  @doc false
  def usage, do: @usage

  @doc """
  Does what the arguments of `mix nx_vulkan.doctor` say, and returns the exit status: 0 where all is well, 1 where there
  is no device to use or it computes wrong, 2 for other arguments.

  ## Options

    * `:print` - a function of a text, `IO.puts/1` unless set
  """
  @spec run([String.t()], keyword) :: 0..2
  def run(args, opts \\ []) do
    print = Keyword.validate!(opts, print: &IO.puts/1)[:print]
    switches = [json: :boolean, report: :boolean, timeout: :integer, help: :boolean]

    case OptionParser.parse(args, strict: switches, aliases: [h: :help]) do
      {[help: true], [], []} -> done(print.(@usage), 0)
      {options, [], []} -> examined(Map.new(options), print)
      _other -> done(print.(@usage), 2)
    end
  end

  defp examined(options, print) do
    seconds = Map.get(options, :timeout, @timeout_s)
    format = Map.delete(options, :timeout)

    if seconds > 0 and format in [%{}, %{json: true}, %{report: true}] do
      facts = examine(timeout_ms: seconds * 1000)
      print.(said(facts, format))
      facts.status
    else
      done(print.(@usage), 2)
    end
  end

  defp said(facts, %{json: true}), do: JSON.encode!(facts)
  defp said(facts, %{report: true}), do: Text.report(facts)
  defp said(facts, _text), do: Text.text(facts)

  defp done(_printed, status), do: status

  @doc """
  All that is to be known, as the module's documentation lists it.

  ## Options

    * `:timeout_ms` - how long the other VM may take, 120,000 unless set
  """
  @spec examine(keyword) :: map
  def examine(opts \\ []) do
    opts = Keyword.validate!(opts, timeout_ms: @timeout_s * 1000)
    host = Host.facts()
    {drivers, probe} = probe(host.drivers, opts)
    conclude(%{host | drivers: drivers}, probe)
  end

  # Where a driver breaks the VM, each is asked in one of its own, and those that are left are asked again together.
  defp probe(drivers, opts) do
    probe = Probe.run(opts)

    if probe.ended != "well" and probe.stage in @driver_stages and length(drivers) > 1 do
      drivers = Enum.map(drivers, &Map.put(&1, :ended, ended(&1, opts)))
      good = for %{ended: "well", manifest: manifest} <- drivers, do: manifest
      {drivers, if(good == [], do: probe, else: Probe.run([manifests: good] ++ opts))}
    else
      {drivers, probe}
    end
  end

  defp ended(driver, opts) do
    timeout_ms = min(opts[:timeout_ms], @driver_timeout_ms)
    stages = ["library", "loader", "devices", "open"]
    Probe.run(manifests: [driver.manifest], stages: stages, timeout_ms: timeout_ms).ended
  end

  @doc false
  # What follows from what was found: a function of data.
  def conclude(host, probe) do
    device = probe[:device]
    library = %{host.library | loads: probe[:loads], error: probe[:library_error]}
    loader = probe[:loader]

    facts =
      Map.merge(host, %{
        library: library,
        loader: loader,
        drivers: Enum.map(host.drivers, &Map.put_new(&1, :ended, nil)),
        devices: probe[:devices] || [],
        devices_error: probe[:devices_error],
        application_error: probe[:application_error],
        device: device,
        device_error: probe[:device_error],
        calibration: device && calibration(device, host.cache.tuning),
        memory: probe[:memory],
        validation: %{
          installed: loader[:validation_layer],
          on: device != nil and device.validation,
          messages: probe[:validation_messages] || []
        },
        faults: if(device, do: Faults.of(device), else: []),
        checks: probe[:checks] || [],
        probe: Map.take(probe, [:ended, :stage, :exit_status, :said])
      })

    problems = Problems.of(facts)
    status = if Enum.any?(problems, &(&1.severity == "error")), do: 1, else: 0
    Map.merge(facts, %{problems: problems, status: status})
  end

  # Files are named after the vendor, the device and its driver; drivers of Mesa have another UUID in each version.
  defp calibration(%{calibration: %{measured: true} = calibration}, _files),
    do: Map.put(calibration, :state, "measured")

  defp calibration(%{calibration: %{path: path} = calibration} = device, files) do
    own = path && Path.basename(path)

    state =
      cond do
        Enum.any?(files, &(&1.file == own)) -> "unreadable"
        Enum.any?(files, &(String.contains?(&1.file, device.uuid) or &1.device == device.name)) -> "stale"
        true -> "guess"
      end

    Map.put(calibration, :state, state)
  end
end
