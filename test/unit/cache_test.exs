defmodule Nx.Vulkan.CacheTest do
  # It sets NX_VULKAN_CACHE_DIR.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.{Cache, NativeV}

  @moduletag :tmp_dir

  @pipelines "pipelines/10de-#{String.duplicate("a", 32)}-00640007.bin"
  @tuning "tuning/10de-#{String.duplicate("a", 32)}-00640007.json"
  @program "programs/#{String.duplicate("c", 64)}.bin"
  @code "shaders/#{String.duplicate("d", 64)}.bin"
  @shader "spv/#{String.duplicate("b", 64)}.spv"

  setup %{tmp_dir: folder} do
    before = System.get_env("NX_VULKAN_CACHE_DIR")
    System.put_env("NX_VULKAN_CACHE_DIR", folder)

    on_exit(fn ->
      if before, do: System.put_env("NX_VULKAN_CACHE_DIR", before), else: System.delete_env("NX_VULKAN_CACHE_DIR")
      Application.delete_env(:nx_vulkan, :cache_limit)
    end)
  end

  # Files by their age in seconds and their size.
  defp write(folder, files) do
    for {name, age, size} <- files do
      path = Path.join(folder, name)
      File.mkdir_p!(Path.dirname(path))
      File.write!(path, :binary.copy("x", size))
      File.touch!(path, System.os_time(:second) - age)
    end
  end

  defp run(args) do
    me = self()
    status = Cache.run(args, print: &send(me, {:line, &1}))
    {status, lines([])}
  end

  defp lines(found) do
    receive do
      {:line, line} -> lines([line | found])
    after
      0 -> found |> Enum.reverse() |> Enum.join("\n")
    end
  end

  test "what is there, and how large", %{tmp_dir: folder} do
    assert {0, text} = run([])
    assert text =~ "in all     0 files, 0 bytes; at most 512.0 MiB are kept"
    write(folder, [{@pipelines, 10, 3000}, {@tuning, 30, 400}, {@shader, 20, 100}, {"notes.bin", 1, 5}])
    write(folder, [{@program, 50, 30}, {@code, 40, 20}])
    assert Enum.map(Cache.entries(), & &1.kind) == [:programs, :shaders, :tuning, :spv, :pipelines]
    assert {0, text} = run([])
    assert text =~ ~r"pipelines  1 file, 2.9 KiB +#{Regex.escape(folder)}/pipelines\n"
    assert text =~ ~r"programs   1 file, 30 bytes +#{Regex.escape(folder)}/programs\n"
    assert text =~ ~r"shaders    1 file, 20 bytes +#{Regex.escape(folder)}/shaders\n"
    assert text =~ "in all     5 files, 3.5 KiB; "
  end

  test "only what this library wrote goes", %{tmp_dir: folder} do
    foreign =
      [
        "notes.bin",
        "programs/notes.bin",
        "#{@code}.12-3-4.tmp",
        "pipelines/notes.bin",
        "pipelines/10de-aa.bin",
        "tuning/package.json"
      ] ++
        ["spv/readme", "spv/my_kernel.comp", "spv/my_kernel.spv", "#{@shader}.12-3.comp", "#{@shader}.12-3"]

    own = for name <- [@pipelines, @program, @code, @tuning, @shader], do: {name, 10, 3}
    write(folder, own ++ Enum.map(foreign, &{&1, 1, 3}))
    File.ln_s!(Path.join(folder, "notes.bin"), Path.join(folder, String.replace(@pipelines, "10de", "8086")))
    assert {0, "deleted 5 files, 15 bytes"} = run(["--clear"])
    assert Cache.entries() == []
    for name <- foreign, do: assert(File.exists?(Path.join(folder, name)), name)
    assert {0, "deleted 0 files, 0 bytes"} = run(["--clear"])
  end

  test "what was written longest ago goes first, but for what was measured", %{tmp_dir: folder} do
    other = String.replace(@pipelines, "10de", "8086")
    write(folder, [{@pipelines, 10, 3000}, {other, 40, 2000}, {@tuning, 50, 400}, {@shader, 20, 100}])
    Application.put_env(:nx_vulkan, :cache_limit, 3500)
    assert {[%{kind: :pipelines, size_bytes: 2000}], []} = Cache.trim()
    assert Cache.trim() == {[], []}
    assert {0, "deleted 1 file, 100 bytes"} = run(["--trim", "3400"])
    assert {0, _} = run(["--trim", "0"])
    assert [%{kind: :tuning}] = Cache.entries()
  end

  test "what killed processes left half written is bounded, and goes", %{tmp_dir: folder} do
    stem = &String.replace_suffix(&1, ".bin", "")
    old = ["#{stem.(@code)}.12-0-345.tmp", "#{@program}.12-34.tmp", "#{stem.(@pipelines)}.9-1-2.tmp"]
    young = ["#{stem.(@program)}.13-0-345.tmp", "#{@code}.13-34.tmp"]
    foreign = ["programs/notes.12-0-3.tmp", "shaders/#{String.duplicate("d", 64)}.tmp"]
    write(folder, Enum.map(old, &{&1, 100_000, 50}) ++ Enum.map(young, &{&1, 10, 50}))
    write(folder, Enum.map(foreign, &{&1, 100_000, 50}) ++ [{@code, 10, 20}])
    assert Cache.size_bytes() == 170
    assert {[_, _, _], []} = Cache.trim(20)
    for name <- old, do: refute(File.exists?(Path.join(folder, name)), name)
    for name <- [@code | young ++ foreign], do: assert(File.exists?(Path.join(folder, name)), name)
    assert Cache.trim(20) == {[], []}
  end

  test "arguments that mean nothing", %{tmp_dir: folder} do
    write(folder, [{@pipelines, 10, 3}])

    for args <- [["--all"], ["clear"], ["--clear", "--trim", "3"], ["--trim", "-1"], ["--trim", "3GiB"], ["--no-clear"]] do
      assert {2, text} = run(args)
      assert text =~ "--trim BYTES", inspect(args)
    end

    assert {0, help} = run(["--help"])
    assert help =~ "--clear"
    assert [_] = Cache.entries()
    Application.put_env(:nx_vulkan, :cache_limit, "1GiB")
    assert_raise ArgumentError, ~r/cache_limit to be a number of bytes/, fn -> Cache.trim() end
  end

  test "the task prints the same, and ends with the status", %{tmp_dir: folder} do
    Mix.shell(Mix.Shell.Process)
    on_exit(fn -> Mix.shell(Mix.Shell.IO) end)
    write(folder, [{@pipelines, 10, 3}])
    Mix.Tasks.NxVulkan.Cache.run(["--clear"])
    assert_received {:mix_shell, :info, ["deleted 1 file, 3 bytes"]}
    assert catch_exit(Mix.Tasks.NxVulkan.Cache.run(["--all"])) == {:shutdown, 2}
    assert_received {:mix_shell, :info, ["usage: " <> _]}
  end

  test "the engine's folder" do
    assert NativeV.device_loader().cache_dir != nil
    rule = "IO.write(inspect({Nx.Vulkan.Cache.root(), Nx.Vulkan.NativeV.device_loader().cache_dir}))"
    paths = Enum.flat_map(Path.wildcard("#{Mix.Project.build_path()}/lib/*/ebin"), &["-pa", &1])

    for env <- [
          [{"NX_VULKAN_CACHE_DIR", "/a"}],
          [{"NX_VULKAN_CACHE_DIR", ""}, {"XDG_CACHE_HOME", "/b"}],
          [{"NX_VULKAN_CACHE_DIR", nil}, {"XDG_CACHE_HOME", nil}, {"HOME", "/c"}]
        ] do
      {output, 0} = System.cmd("elixir", paths ++ ["-e", rule], env: env)
      assert {root, root} = output |> Code.eval_string() |> elem(0)
      assert root in ["/a", "/b/nx_vulkan", "/c/.cache/nx_vulkan"]
    end
  end
end
