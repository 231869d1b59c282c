defmodule Nx.Vulkan.ColdStartTest do
  # What a VM finds of what others have compiled, in a folder of their own.
  use ExUnit.Case, async: false

  import ExUnit.CaptureLog

  alias Nx.Vulkan.{Cache, RemoteNode}

  @moduletag :device
  @moduletag :tmp_dir

  # A program of more than 64 ops, in a module that each VM compiles anew.
  @model """
  defmodule Model do
    def predict(x, w), do: Enum.reduce(1..30, x, fn i, x -> x |> Nx.dot(w) |> Nx.tanh() |> Nx.add(i / 64) end)
    def templates, do: [Nx.template({4, 8}, :f32), Nx.template({8, 8}, :f32)]

    def call(predict) do
      [x, w] = for shape <- [{4, 8}, {8, 8}], do: Nx.divide(Nx.iota(shape, type: :f32), 100)
      predict.(x, w) |> Nx.to_binary() |> Base.encode16()
    end
  end
  """
  @ahead "Nx.Vulkan.compile(&Model.predict/2, Model.templates()); IO.write(:ahead)"
  @jit "IO.write(Model.call(Nx.Defn.jit(&Model.predict/2, compiler: Nx.Vulkan)))"

  # A VM of its own.
  defp vm(folder, code, env \\ []) do
    paths = Enum.flat_map(Path.wildcard("#{Mix.Project.build_path()}/lib/*/ebin"), &["-pa", &1])
    start = "{:ok, _} = Application.ensure_all_started(:nx_vulkan)\n"
    env = [{"NX_VULKAN_CACHE_DIR", folder} | env]
    {output, 0} = System.cmd("elixir", paths ++ ["-e", start <> @model <> code], env: env)
    output
  end

  defp files(folder) do
    for kind <- ["programs", "shaders"], path <- Path.wildcard("#{folder}/#{kind}/*"), do: {path, File.read!(path)}
  end

  defp age(files), do: for({path, _} <- files, do: File.touch!(path, 0))

  defp made(files), do: for({path, _} <- files, File.stat!(path, time: :posix).mtime != 0, do: path)

  test "what is compiled ahead of time is found by other VMs", %{tmp_dir: folder} do
    wanted = vm(Path.join(folder, "other"), @jit, [{"NX_VULKAN_KEEP_COMPILED", "0"}])
    assert files(Path.join(folder, "other")) == []
    folder = Path.join(folder, "cache")
    assert vm(folder, @ahead) == "ahead"
    ahead = files(folder)
    assert [_program] = Enum.filter(ahead, fn {path, _} -> path =~ "/programs/" end)
    age(ahead)
    assert vm(folder, @jit) == wanted
    # What was found was not made again.
    assert made(ahead) == []
    assert Enum.filter(files(folder), fn {path, _} -> path =~ "/programs/" end) -- ahead == []
  end

  test "several VMs at once, and damaged files", %{tmp_dir: folder} do
    results = 1..3 |> Enum.map(fn _ -> Task.async(fn -> vm(folder, @jit) end) end) |> Task.await_many(:infinity)
    assert [wanted] = Enum.uniq(results)
    whole = files(folder)
    assert Enum.all?(whole, fn {path, _} -> path =~ ~r"/[0-9a-f]{64}\.bin\z" end)

    for {path, bytes} <- whole do
      half = div(byte_size(bytes), 2)
      <<first::binary-size(half), byte, rest::binary>> = bytes
      File.write!(path, <<first::binary, Bitwise.bxor(byte, 1), rest::binary>>)
    end

    assert vm(folder, @jit) == wanted
    # They were written again, as they were.
    assert files(folder) == whole
  end

  test "a node takes from another what it has compiled", %{tmp_dir: folder} do
    RemoteNode.start_distribution()
    [here, there] = for name <- ["here", "there"], do: Path.join(folder, name)
    wanted = vm(here, @jit)
    whole = files(here)
    before = System.get_env("NX_VULKAN_CACHE_DIR")
    System.put_env("NX_VULKAN_CACHE_DIR", here)

    on_exit(fn ->
      if before, do: System.put_env("NX_VULKAN_CACHE_DIR", before), else: System.delete_env("NX_VULKAN_CACHE_DIR")
    end)

    {:ok, _peer, node} = RemoteNode.start_link(%{"NX_VULKAN_CACHE_DIR" => there})
    copied = :erpc.call(node, Cache, :copy_from, [node()], 60_000)
    assert [_one] = Enum.filter(copied, &(&1.kind == :pipelines))
    assert names(files(there)) == names(whole)
    assert :erpc.call(node, Cache, :copy_from, [node()]) == []
    age(files(there))
    # The call of the other node finds all of them.
    {:ok, _} = :erpc.call(node, Code, :eval_string, [@model <> "\n{:ok, nil}"]) |> elem(0)
    call = "Model.call(Nx.Defn.jit(&Model.predict/2, compiler: Nx.Vulkan))"
    assert {^wanted, _} = :erpc.call(node, Code, :eval_string, [call], 120_000)
    assert made(files(there)) == []
    # Others' names are no paths of this node, and other kinds stay where they are.
    assert Cache.part({:programs, "../../etc/passwd"}, 0, 10) == nil
  end

  test "a node takes the larger of two files of pipelines, and copies keep their age", %{tmp_dir: folder} do
    RemoteNode.start_distribution()
    [here, there] = for name <- ["here", "there"], do: Path.join(folder, name)
    [first, second] = for device <- ["a", "b"], do: "pipelines/10de-#{String.duplicate(device, 32)}-00640007.bin"
    program = "programs/#{String.duplicate("c", 64)}.bin"
    hour_ago = System.os_time(:second) - 3600
    write = fn folder, name, bytes -> write(Path.join(folder, name), bytes, hour_ago) end
    for {name, bytes} <- [{first, "poor"}, {second, "as it is"}, {program, "same"}], do: write.(here, name, bytes)
    for {name, bytes} <- [{first, "richer"}, {second, "smaller"}, {program, "other"}], do: write.(there, name, bytes)
    before = System.get_env("NX_VULKAN_CACHE_DIR")
    System.put_env("NX_VULKAN_CACHE_DIR", here)

    on_exit(fn ->
      if before, do: System.put_env("NX_VULKAN_CACHE_DIR", before), else: System.delete_env("NX_VULKAN_CACHE_DIR")
      Application.delete_env(:nx_vulkan, :cache_limit)
    end)

    {:ok, _peer, node} = RemoteNode.start_link(%{"NX_VULKAN_CACHE_DIR" => there})
    # What it grows by counts.
    Application.put_env(:nx_vulkan, :cache_limit, 17)
    assert Cache.copy_from(node) == []
    Application.put_env(:nx_vulkan, :cache_limit, 18)
    path = Path.join(here, first)
    assert [%{kind: :pipelines, path: ^path, size_bytes: 6, written: ^hour_ago}] = Cache.copy_from(node)
    assert File.read!(path) == "richer"
    assert File.stat!(path, time: :posix).mtime == hour_ago
    assert File.read!(Path.join(here, second)) == "as it is"
    assert File.read!(Path.join(here, program)) == "same"
    assert Cache.copy_from(node) == []
  end

  defp write(path, bytes, time) do
    File.mkdir_p!(Path.dirname(path))
    File.write!(path, bytes)
    File.touch!(path, time)
  end

  test "a folder that can't be written is a warning, and other options are errors", %{tmp_dir: folder} do
    file = Path.join(folder, "file")
    File.write!(file, "")
    before = System.get_env("NX_VULKAN_CACHE_DIR")
    System.put_env("NX_VULKAN_CACHE_DIR", file)

    on_exit(fn ->
      if before, do: System.put_env("NX_VULKAN_CACHE_DIR", before), else: System.delete_env("NX_VULKAN_CACHE_DIR")
    end)

    templates = [Nx.template({2}, :s32)]

    log =
      capture_log(fn ->
        double = Nx.Vulkan.compile(&Nx.multiply(&1, 2), templates, compiler: Nx.Vulkan.Compiler, raise_on: :nan)
        assert Nx.to_list(double.(Nx.tensor([1, 2], type: :s32))) == [2, 4]
      end)

    assert log =~ "Nx.Vulkan.compile/3 keeps nothing for other VMs: can't write to #{file}/pipelines: not a directory"
    System.put_env("NX_VULKAN_CACHE_DIR", Path.join(folder, "new"))
    assert capture_log(fn -> Nx.Vulkan.compile(&Nx.multiply(&1, 2), templates) end) == ""
    assert File.ls!(Path.join(folder, "new/pipelines")) |> Enum.reject(&(&1 =~ ~r/\.bin$/)) == []

    for {opts, message} <- [
          {[compiler: Nx.Defn.Evaluator], ~r/expected :compiler to be Nx.Vulkan, got: Nx.Defn.Evaluator/},
          {[compiler: nil], ~r/expected :compiler/},
          {[memroy: 1], ~r/unknown keys \[:memroy\]/},
          {[memory: -1], ~r/:memory must be/}
        ] do
      assert_raise ArgumentError, message, fn -> Nx.Vulkan.compile(&Nx.multiply(&1, 2), templates, opts) end
    end

    assert_raise ArgumentError, ~r/expected a function/, fn -> Nx.Vulkan.compile(:f, templates) end
    assert_raise ArgumentError, ~r/expected the 1 arguments/, fn -> Nx.Vulkan.compile(&Nx.sum/1, []) end
    assert_raise ArgumentError, ~r/expected a list/, fn -> Nx.Vulkan.compile(&Nx.sum/1, hd(templates)) end
  end

  defp names(files), do: for({path, bytes} <- files, do: {Path.basename(path), bytes})
end
