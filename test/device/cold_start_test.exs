defmodule Nx.Vulkan.ColdStartTest do
  # What a VM finds of what others have compiled, in a folder of their own.
  use ExUnit.Case, async: false

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

  defp names(files), do: for({path, bytes} <- files, do: {Path.basename(path), bytes})
end
