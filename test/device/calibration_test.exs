defmodule Nx.Vulkan.Device.CalibrationTest do
  # What is measured depends on who else uses the device.
  use ExUnit.Case, async: false

  @moduletag :device

  setup do
    Mix.shell(Mix.Shell.Process)
    on_exit(fn -> Mix.shell(Mix.Shell.IO) end)
    folder = Path.join(System.tmp_dir!(), "nx_vulkan_tuning_#{System.unique_integer([:positive])}")
    on_exit(fn -> File.rm_rf!(folder) end)
    {:ok, folder: folder}
  end

  # A VM of its own, which keeps its cache in the folder.
  defp vm(folder, script) do
    paths = Enum.flat_map(:code.get_path(), &["-pa", to_string(&1)])
    env = [{"NX_VULKAN_CACHE_DIR", folder}]
    System.cmd("elixir", paths ++ ["-e", script], env: env, stderr_to_stdout: true)
  end

  @product """
  {:ok, _} = Application.ensure_all_started(:nx_vulkan)
  a = Nx.iota({64, 64}, type: :f32, backend: Nx.Vulkan.VulkanoBackend)
  IO.puts("sum " <> inspect(Nx.to_number(Nx.sum(Nx.dot(a, a)))))
  {:ok, device} = Nx.Vulkan.device_info()
  IO.puts("measured " <> inspect(device.calibration.measured))
  """

  test "measures the device, keeps what it found, and ignores a damaged file", %{folder: folder} do
    env = [{"NX_VULKAN_CACHE_DIR", folder}, {"MIX_ENV", to_string(Mix.env())}]
    {output, status} = System.cmd("mix", ["nx_vulkan.calibrate"], env: env, stderr_to_stdout: true)
    assert status == 0, output
    assert output =~ ~r/  1 of \d: copies\n  2 of \d: fma in f32, about \d+\.\d s left\n/
    assert output =~ ~r/copies +\d+\.\d+ GB\/s/
    assert output =~ ~r/fma in f32 +\d+\.\d+ GFLOP\/s/
    assert output =~ ~r/one that waits +\d+\.\d+ us/
    assert output =~ ~r/products of f32 +\d+\.\d+ GFLOP\/s/
    assert [file] = Path.wildcard(Path.join(folder, "tuning/*.json"))
    assert output =~ "kept in #{file}"
    assert File.read!(file) =~ ~s("bytes_per_second")

    {measured, 0} = vm(folder, @product)
    assert measured =~ ~r/sum \d.*measured true/s
    File.write!(file, "no numbers")
    {guessed, 0} = vm(folder, @product)
    assert guessed =~ ~r/sum \d.*measured false/s
  end

  @trapping """
  {:ok, _} = Application.ensure_all_started(:nx_vulkan)
  Process.flag(:trap_exit, true)
  {:ok, _} = Nx.Vulkan.Calibration.measure()
  Process.sleep(100)
  IO.puts("messages " <> inspect(Process.info(self(), :messages)))
  """

  test "callers that trap exits get no messages", %{folder: folder} do
    {output, 0} = vm(folder, @trapping)
    assert output =~ "messages {:messages, []}"
  end

  test "what was measured is found by the device, whatever its driver was, and can be forgotten", %{folder: folder} do
    {:ok, device} = Nx.Vulkan.device_info()
    tuning = Path.join(folder, "tuning")
    File.mkdir_p!(tuning)
    json = &JSON.encode!(%{format: 1, device: &1, uuid: &2})

    for {name, text} <- [
          {"a", json.(device.name, "00")},
          {"b", json.("another name", device.uuid)},
          {"c", json.("another device", "00")},
          {"10005-#{device.uuid}-00000001", "no numbers"},
          {"d", "no numbers"}
        ],
        do: File.write!(Path.join(tuning, name <> ".json"), text)

    script = """
    {:ok, device} = Nx.Vulkan.device_info()
    3 = length(Nx.Vulkan.Calibration.files(device))
    0 = Nx.Vulkan.Calibration.run(["--forget"])
    [] = Nx.Vulkan.Calibration.files(device)
    0 = Nx.Vulkan.Calibration.run(["--forget"])
    """

    {output, status} = vm(folder, script)
    assert status == 0, output
    assert [_, _, _] = Regex.scan(~r"^deleted .*/tuning/.*\.json$"m, output)
    assert output =~ "nothing was measured on #{device.name}"
    assert tuning |> File.ls!() |> Enum.sort() == ["c.json", "d.json"]
  end

  test "other arguments are not taken" do
    assert catch_exit(Mix.Tasks.NxVulkan.Calibrate.run(["again"])) == {:shutdown, 2}
    assert_received {:mix_shell, :info, [text]}
    assert text =~ "--forget"
    Mix.Tasks.NxVulkan.Calibrate.run(["--help"])
    assert_received {:mix_shell, :info, [help]}
    assert help =~ "kept in"
  end
end
