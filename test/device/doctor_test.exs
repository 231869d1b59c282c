defmodule Nx.Vulkan.DoctorTest do
  # Variables of the loader are those of the whole VM.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.Doctor

  @moduletag :tmp_dir

  defp doctor(args, env) do
    env = [{"MIX_ENV", to_string(Mix.env())} | env]
    System.cmd("mix", ["nx_vulkan.doctor" | args], env: env, stderr_to_stdout: true)
  end

  defp with_drivers(manifests, fun) do
    names = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"]
    before = Enum.map(names, &{&1, System.get_env(&1)})
    System.put_env(Enum.map(names, &{&1, Enum.join(manifests, ":")}))

    try do
      fun.()
    after
      System.put_env(before)
    end
  end

  # A driver that does what the C code says as soon as the loader has loaded it.
  defp broken(folder, name, code) do
    source = Path.join(folder, name <> ".c")
    library = Path.join(folder, "lib#{name}.so")
    manifest = Path.join(folder, name <> "_icd.json")

    File.write!(
      source,
      "#include <stdlib.h>\n#include <unistd.h>\n__attribute__((constructor)) static void begin(void) { #{code} }\n"
    )

    {_said, 0} = System.cmd("cc", ["-shared", "-fPIC", "-o", library, source], stderr_to_stdout: true)
    icd = %{file_format_version: "1.0.0", ICD: %{library_path: library, api_version: "1.3.0"}}
    File.write!(manifest, JSON.encode!(icd))
    manifest
  end

  @tag :device
  test "says which devices there are, and which types are lowered" do
    {output, 0} = doctor([], [{"NX_VULKAN_LOWER", "f64,s64"}])
    name = Nx.Vulkan.device_name()
    device = Enum.find(Nx.Vulkan.devices(), &(&1.name == name))
    assert output =~ "  #{device.index}: #{name} (#{device.kind}, uuid:#{device.uuid})\n     #{device.driver}"
    assert output =~ "In use: #{device.index}: #{name}, as "
    # A device may lack others, too.
    [_, lowered] = Regex.run(~r/lowered types: (.*)\n/, output)
    assert ~w(s64 u64 f64 c128) -- String.split(lowered, ", ") == []
    assert output =~ ~r/elementwise: right.*product: right.*sort: right/s
    assert output =~ "NX_VULKAN_LOWER=f64,s64"
  end

  @tag :device
  test "examines the device in another VM, as JSON and as a report without folders" do
    me = self()
    assert Doctor.run(["--json"], print: &send(me, &1)) == 0
    assert_received "{" <> _ = json
    object = JSON.decode!(json)
    assert object["device"]["name"] == Nx.Vulkan.device_name()
    assert [%{"ok" => true}, %{"ok" => true}, %{"ok" => true}] = object["checks"]
    assert object["versions"]["nx_vulkan"] == to_string(Application.spec(:nx_vulkan, :vsn))
    assert object["library"]["loads"] == true

    assert Doctor.run(["--report"], print: &send(me, &1)) == 0
    assert_received "## " <> _ = report
    assert report =~ Nx.Vulkan.device_name()
    for folder <- [System.user_home!(), File.cwd!(), System.tmp_dir!()], do: refute(report =~ folder <> "/")
  end

  test "without a driver it says what is missing, and ends with 1" do
    {output, 1} = doctor([], [{"VK_DRIVER_FILES", "/nonexistent.json"}, {"VK_ICD_FILENAMES", "/nonexistent.json"}])
    assert output =~ "error: VK_DRIVER_FILES names no driver that is there"
    assert output =~ "error: no Vulkan device was found"
    assert output =~ "install a driver: "
  end

  @tag :device
  test "drivers that crash or hang hide nobody else", %{tmp_dir: folder} do
    good = "VK_DRIVER_FILES" |> System.get_env("") |> String.split(":", trim: true)
    # Where all drivers of the system are looked for, which ones work is not known here.
    if good != [] do
      crash = broken(folder, "crash", "abort();")
      hang = broken(folder, "hang", "for (;;) pause();")
      facts = with_drivers([crash, hang | good], fn -> Doctor.examine(timeout_ms: 8000) end)
      ended = Map.new(facts.drivers, &{&1.manifest, &1.ended})
      assert {ended[crash], ended[hang]} == {"crashed", "hung"}
      assert facts.device.name == Nx.Vulkan.device_name()
      assert facts.status == 1
      assert Enum.count(facts.problems, &(&1.id == "driver")) == 2
    end
  end
end
