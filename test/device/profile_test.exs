defmodule Nx.Vulkan.Device.ProfileTest do
  # Times are taken of the whole VM.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.{Profile, VulkanoBackend}

  @moduletag :device

  setup_all do: Nx.Vulkan.DeviceMemory.await_idle()

  setup do
    on_exit(fn ->
      Profile.stop()
      Profile.reset()
    end)
  end

  defp place(value), do: Nx.tensor(value, type: :f32, backend: VulkanoBackend)

  defp row(rows, name), do: Enum.find(rows, &String.starts_with?(&1.kernel, name))

  test "eager ops and compiled functions have rows with what they moved" do
    jitted = Nx.Defn.jit(fn x, y -> Nx.tanh(Nx.multiply(x, y)) end, compiler: Nx.Vulkan)
    {x, y} = {place(Enum.to_list(1..100)), place(Enum.to_list(1..100))}
    assert :ok = Profile.start()
    for _ <- 1..3, do: Nx.to_binary(jitted.(x, y))
    for _ <- 1..2, do: Nx.to_binary(Nx.cbrt(x))
    rows = Profile.rows()

    assert %{calls: 3, flops: 600, read_bytes: 2400, written_bytes: 1200, time_ns: time} =
             row(rows, "map.multiply_tanh.f32")

    assert time > 0
    assert %{calls: 2, flops: 200} = row(rows, "map.cbrt.f32")

    Profile.stop()
    Nx.to_binary(Nx.cbrt(x))
    assert Profile.rows() == rows
    table = Profile.table(limits: {1.0e9, 1.0e9})
    assert table =~ ~r/Limits: 1.00? GB\/s, 1.00? GFLOP\/s/
    assert table =~ ~r/map\.cbrt\.f32-[0-9a-f]{8} +2 /
    Profile.reset()
    assert Profile.rows() == []
  end

  test "limits are a pair of numbers" do
    assert_raise ArgumentError, ~r/expected :limits to be/, fn -> Profile.table(limits: 3) end
  end

  test "the environment asks for a table at the end, and for modules by name" do
    folder = Path.join(System.tmp_dir!(), "nx_vulkan_spirv_#{System.unique_integer([:positive])}")
    on_exit(fn -> File.rm_rf!(folder) end)
    paths = Enum.flat_map(:code.get_path(), &["-pa", to_string(&1)])

    script = """
    Application.ensure_all_started(:nx_vulkan)
    Nx.to_binary(Nx.erf(Nx.iota({33}, type: :f32, backend: Nx.Vulkan.VulkanoBackend)))
    """

    env = [{"NX_VULKAN_PROFILE", "1"}, {"NX_VULKAN_DUMP_SPIRV", folder}]
    {output, 0} = System.cmd("elixir", paths ++ ["-e", script], env: env, stderr_to_stdout: true)
    assert [_] = Regex.scan(~r/launches took/, output)
    assert [[_, kernel]] = Regex.scan(~r/(map\.erf\.f32-[0-9a-f]{8}) +1 .* %/, output)
    assert output =~ "Limits: "
    assert File.regular?(Path.join(folder, kernel <> ".spv"))
  end
end
