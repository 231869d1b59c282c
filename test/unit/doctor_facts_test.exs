defmodule Nx.Vulkan.DoctorFactsTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Texts

  alias Nx.Vulkan.Doctor
  alias Nx.Vulkan.Doctor.{Faults, Host, Problems, Text}

  # What Doctor.Host finds.
  @host %{
    versions: %{nx_vulkan: "0.1.0", nx: "0.13.1", elixir: "1.18.3", otp: "27", erts: "15.2.7"},
    system: %{
      os: "linux",
      name: "Debian GNU/Linux 13 (trixie)",
      distribution: "debian",
      like: [],
      architecture: "x86_64-pc-linux-gnu",
      cores: 8
    },
    library: %{
      path: "/home/anna/app/nx_vulkan_native.so",
      size_bytes: 9_000_000,
      source: "built",
      loads: nil,
      error: nil
    },
    environment: [],
    drivers: [
      %{
        manifest: "/usr/share/vulkan/icd.d/nvidia_icd.json",
        library: "libGLX_nvidia.so.0",
        api_version: "1.4.312",
        error: nil
      }
    ],
    gpus: [%{pci: "0000:41:00.0", vendor: "NVIDIA", kernel_driver: "nvidia"}],
    nodes: [%{path: "/dev/nvidia0", accessible: true}],
    cache: %{
      folder: "/home/anna/.cache/nx_vulkan",
      writable: true,
      files: 2,
      size_bytes: 4096,
      limit_bytes: 2 ** 29,
      tuning: []
    }
  }

  @device %{
    index: 0,
    name: "NVIDIA H200",
    kind: :discrete,
    uuid: "0123456789abcdef0123456789abcdef",
    pci: "0000:41:00.0",
    vendor_id: 4318,
    device_id: 9013,
    driver: "NVIDIA 580.159.03",
    driver_name: "NVIDIA",
    driver_info: "580.159.03",
    api_version: "1.4.312",
    memory_bytes: 139 * 2 ** 30,
    subgroup_sizes: [32, 32, 32],
    matrices: [%{sizes: [16, 16, 16], types: ["f16", "f16", "f32", "f32"]}],
    has_f64: true,
    lowered: [],
    usable: true,
    reason: nil
  }

  @heaps [%{size_bytes: 139 * 2 ** 30, device_local: true, used_bytes: 0, budget_bytes: 138 * 2 ** 30}]

  @in_use Map.merge(@device, %{
            selected_by: "first discrete",
            versions: %{},
            calibration: %{
              measured: true,
              class: "NVIDIA",
              processors: 132,
              path: "/home/anna/.cache/nx_vulkan/tuning/10de-0123456789abcdef0123456789abcdef-00000001.json"
            },
            pipeline_cache: %{path: "/home/anna/.cache/nx_vulkan/pipelines/a.bin", loaded_bytes: 2048},
            f16_matrices: true,
            bf16_matrices: true,
            denormals: [:f16, :f64],
            validation: false
          })

  # What Doctor.Probe finds.
  @probe %{
    loads: true,
    library_error: nil,
    loader: %{
      version: "1.4.309",
      error: nil,
      validation_layer: nil,
      cache_dir: "/home/anna/.cache/nx_vulkan",
      path: "/usr/lib/libvulkan.so.1"
    },
    devices: [Map.put(@device, :heaps, @heaps)],
    devices_error: nil,
    application_error: nil,
    device: @in_use,
    device_error: nil,
    memory: %{in_use_bytes: 0, peak_bytes: 0, reserved_bytes: 0, budget_bytes: 130 * 2 ** 30},
    validation_messages: nil,
    checks: [%{name: "sort", ok: true, error: nil, first_ms: 12.5, again_ms: 0.2}],
    ended: "well",
    stage: "done",
    exit_status: 0,
    said: []
  }

  defp facts(host \\ %{}, probe \\ %{}), do: Doctor.conclude(Map.merge(@host, host), Map.merge(@probe, probe))
  defp ids(facts, severity), do: for(%{severity: ^severity, id: id} <- facts.problems, do: id)

  test "where all is well" do
    facts = facts()
    assert facts.status == 0
    assert ids(facts, "error") == [] and ids(facts, "warning") == []

    assert_says(Text.text(facts), [
      "Nx.Vulkan 0.1.0, Nx 0.13.1, Elixir 1.18.3, OTP 27 on Debian",
      "Loader: 1.4.309, /usr/lib/libvulkan.so.1\n",
      "  0: NVIDIA H200 (discrete, uuid:0123456789abcdef0123456789abcdef)\n",
      "subgroups of 32, PCI 0000:41:00.0",
      "matrix units: 16x16x16 f16 to f32\n",
      "memory: 139.0 GiB of the device, 0 bytes in use of 138.0 GiB",
      "In use: 0: NVIDIA H200, as first discrete\n",
      "lowered types: none",
      "calibration: measured, for NVIDIA, 132 processors",
      "sort: right, 12.5 ms, then 0.2 ms"
    ])
  end

  test "the object has the keys that are documented" do
    assert %{"status" => 0, "device" => %{"selected_by" => "first discrete"}} =
             object = facts() |> JSON.encode!() |> JSON.decode!()

    {:docs_v1, _, _, _, %{"en" => doc}, _, _} = Code.fetch_docs(Doctor)
    [_, keys] = String.split(doc, "## The object")

    documented =
      ~r/^  \* (.*?) - /m |> Regex.scan(keys) |> Enum.flat_map(fn [_, names] -> Regex.scan(~r/`:(\w+)`/, names) end)

    documented = for [_, name] <- documented, do: name
    assert documented -- Map.keys(object) == []
    assert Map.keys(object) -- documented == []
  end

  test "a wrong computation, and a driver that crashed, are errors" do
    wrong = %{checks: [%{name: "sort", ok: false, error: "1 of 2 results are wrong", first_ms: 1.0, again_ms: 1.0}]}
    facts = facts(%{}, wrong)
    assert {facts.status, ids(facts, "error")} == {1, ["check"]}
    assert Text.text(facts) =~ "sort: WRONG, 1 of 2 results are wrong"

    broken = Enum.map(@host.drivers, &Map.put(&1, :ended, "crashed"))
    facts = facts(%{drivers: broken})
    assert {facts.status, ids(facts, "error")} == {1, ["driver"]}
    assert Text.text(facts) =~ "VK_LOADER_DRIVERS_DISABLE=nvidia_icd.json"

    hung = %{ended: "hung", stage: "open", exit_status: nil, device: nil, checks: [], said: ["waiting"]}
    facts = facts(%{}, hung)
    assert facts.status == 1
    assert_says(Text.text(facts), ["asking Vulkan hung at the stage \"open\"", "Printed by drivers:\n  waiting"])
  end

  test "without library, loader, driver or device it says what to do" do
    nothing = %{device: nil, devices: [], checks: [], memory: nil}

    none =
      Map.merge(nothing, %{
        loader: nil,
        loads: false,
        library_error: "GLIBC_2.38 not found",
        stage: "library",
        ended: "well"
      })

    facts = facts(%{environment: [%{name: "NX_VULKAN_VALIDATION", value: "1"}]}, none)
    assert {facts.status, ids(facts, "error")} == {1, ["library"]}
    assert ids(facts, "warning") == [], "what was not asked is not known to be missing"
    assert_says(Text.text(facts), ["GLIBC_2.38 not found", "with the same C library"])
    library = %{@host.library | source: "precompiled"}
    what_to_do = ["Library: precompiled, 8.6 MiB, does not load", "NX_VULKAN_BUILD=1 mix deps.compile nx_vulkan"]
    assert_says(Text.text(facts(%{library: library}, none)), what_to_do)
    assert Text.text(facts(%{library: %{library | size_bytes: nil}}, none)) =~ "download it: `mix deps.compile"

    missing = Map.merge(nothing, %{loader: %{@probe.loader | version: nil, error: "libvulkan.so.1: cannot open"}})
    facts = facts(%{}, missing)
    assert "loader" in ids(facts, "error")
    assert Text.text(facts) =~ "apt install libvulkan1 mesa-vulkan-drivers"

    facts = facts(%{drivers: []}, Map.merge(nothing, %{devices_error: %{kind: :no_device, message: "no devices"}}))
    assert ids(facts, "error") == ["devices"]

    chosen = %{device: nil, checks: [], device_error: %{kind: :no_device, message: "no usable device matches \"x\""}}
    facts = facts(%{environment: [%{name: "NX_VULKAN_DEVICE", value: "x"}]}, chosen)
    assert ids(facts, "error") == ["chosen"]
    assert Text.text(facts) =~ "NX_VULKAN_DEVICE"
  end

  test "how it is installed is told for each system" do
    linux = %{os: "linux", distribution: nil, like: []}
    assert Problems.install(%{linux | distribution: "ubuntu"}) =~ "apt install"
    assert Problems.install(%{linux | distribution: "rocky", like: ["rhel", "centos", "fedora"]}) =~ "dnf install"
    assert Problems.install(%{linux | distribution: "arch"}) =~ "pacman"
    assert Problems.install(%{linux | distribution: "opensuse-leap", like: ["suse"]}) =~ "zypper"
    assert Problems.install(%{linux | distribution: "alpine"}) =~ "apk add"
    assert Problems.install(linux) =~ "libvulkan.so.1"
    assert Problems.install(%{linux | os: "darwin"}) =~ "brew install"
    assert Problems.install(%{linux | os: "freebsd"}) =~ "pkg install"
    assert Problems.install(%{linux | os: "windows"}) =~ "driver"
  end

  test "what was measured with another driver is stale, and a damaged file is told" do
    guess = put_in(@in_use.calibration.measured, false)
    state = fn tuning -> facts(%{cache: %{@host.cache | tuning: tuning}}, %{device: guess}).calibration.state end
    assert state.([]) == "guess"
    assert state.([%{file: "10de-#{@device.uuid}-00000000.json", device: nil}]) == "stale"
    assert state.([%{file: "10de-00-00000000.json", device: @device.name}]) == "stale"
    assert state.([%{file: "10de-00-00000000.json", device: "another"}]) == "guess"
    assert state.([%{file: "10de-#{@device.uuid}-00000001.json", device: nil}]) == "unreadable"
    assert facts().calibration.state == "measured"
  end

  test "a report has no folder, name or number of the user" do
    environment = [
      %{
        name: "VK_DRIVER_FILES",
        value: "/home/anna/drivers/my icd.json:/srv/anna/other_icd.json:/mnt/our plans/of may/x.json"
      },
      %{name: "NX_VULKAN_CACHE_DIR", value: "/data/projects/secret/cache"},
      %{name: "LD_PRELOAD", value: "/home/anna/clients/acme/x.so:/opt/release7/lib/y.so"}
    ]

    cache = %{@host.cache | folder: "/data/one two/three four/cache"}
    report = %{environment: environment, cache: cache} |> facts() |> Text.report()
    who = %{home: "/home/anna", user: "anna", host: "workstation7"}
    report = Text.redact(report <> " on workstation7 by anna in C:\\Users\\anna\\app", who)

    words = ~w(anna /home clients acme release7 plans may/ two three four projects secret workstation7)
    for word <- [@device.uuid | words], do: refute(report =~ word, word)

    assert_says(report, ["NVIDIA H200", "/usr/lib/libvulkan.so.1", "0000:41:00.0", "## `mix nx_vulkan.doctor`"])
  end

  test "variables that hold secrets are told without their values" do
    values = %{"NX_VULKAN_API_KEY" => "nvapi-12", "NVIDIA_API_KEY" => "nvapi-34", "VK_LOADER_DEBUG" => "all"}
    System.put_env(values)
    on_exit(fn -> values |> Map.keys() |> Enum.each(&System.delete_env/1) end)
    told = Map.new(Host.facts().environment, &{&1.name, &1.value})
    assert %{"NX_VULKAN_API_KEY" => "set", "VK_LOADER_DEBUG" => "all"} = told
    refute is_map_key(told, "NVIDIA_API_KEY")
  end

  test "faults are those of the page, by driver and version" do
    assert {[_ | _], []} = Faults.headings()
    nvidia = Faults.of(@device)
    assert length(nvidia) > 10 and Enum.all?(nvidia, & &1.same_version)
    assert Enum.any?(nvidia, &(&1.left and &1.what =~ "Denormals of f32"))
    assert Enum.all?(nvidia, &(&1.what != "" and &1.here != ""))
    older = Faults.of(%{@device | driver_info: "535.54.03"})
    assert length(older) == length(nvidia) and not Enum.any?(older, & &1.same_version)
    lavapipe = %{driver_name: "llvmpipe", driver_info: "Mesa 25.0.7-2 (LLVM 19.1.7)"}
    assert Enum.all?(Faults.of(lavapipe), &(&1.seen_with =~ "25.0"))
    assert Enum.any?(Faults.of(%{lavapipe | driver_info: "Mesa 22.3.6 (LLVM 15.0.6)"}), &(&1.what =~ "u64"))
    assert Faults.of(%{driver_name: "SwiftShader driver", driver_info: ""}) != []
    assert Faults.of(%{driver_name: "anv", driver_info: "Mesa 25.0.7"}) == []
  end

  test "arguments that mean nothing" do
    for args <- [["all"], ["--all"], ["--json", "--report"], ["--timeout", "0"], ["--timeout", "soon"]] do
      assert Doctor.run(args, print: &send(self(), {:line, &1})) == 2
      assert_received {:line, "usage: " <> _}, inspect(args)
    end

    assert Doctor.run(["--help"], print: &send(self(), {:line, &1})) == 0
    assert_received {:line, "usage: " <> _}
  end
end
