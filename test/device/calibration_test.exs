defmodule Nx.Vulkan.Device.CalibrationTest do
  # What is measured depends on who else uses the device.
  use ExUnit.Case, async: false

  @moduletag :device

  setup do
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
  """

  test "measures the device, keeps what it found, and ignores a damaged file", %{folder: folder} do
    env = [{"NX_VULKAN_CACHE_DIR", folder}, {"MIX_ENV", to_string(Mix.env())}]
    {output, status} = System.cmd("mix", ["nx_vulkan.calibrate"], env: env, stderr_to_stdout: true)
    assert status == 0, output
    assert output =~ ~r/copies +\d+\.\d+ GB\/s/
    assert output =~ ~r/fma in f32 +\d+\.\d+ GFLOP\/s/
    assert output =~ ~r/one that waits +\d+\.\d+ us/
    assert output =~ ~r/products of f32 +\d+\.\d+ GFLOP\/s/
    assert [file] = Path.wildcard(Path.join(folder, "tuning/*.json"))
    assert output =~ "kept in #{file}"
    assert File.read!(file) =~ ~s("bytes_per_second")

    {measured, 0} = vm(folder, @product)
    assert measured =~ ~r/sum \d/
    File.write!(file, "no numbers")
    {guessed, 0} = vm(folder, @product)
    assert guessed =~ ~r/sum \d/
  end

  test "takes no arguments" do
    assert_raise Mix.Error, ~r/takes no arguments/, fn -> Mix.Tasks.NxVulkan.Calibrate.run(["again"]) end
  end
end
