defmodule Nx.Vulkan.SynthesisTest do
  # It sets NX_VULKAN_CACHE_DIR and PATH.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.{ChainShaderSpecs, Codegen, NativeV, Synthesis}

  @moduletag :tmp_dir
  if Enum.all?(~w(glslangValidator glslang glslc), &(System.find_executable(&1) == nil)),
    do: @moduletag(skip: "no GLSL compiler is installed")

  @glsl """
  #version 460
  layout(local_size_x = 64) in;
  layout(set = 0, binding = 0, std430) buffer Out { float values[]; };
  void main() { values[gl_GlobalInvocationID.x] = 2.0 * float(gl_GlobalInvocationID.x) + 1.0; }
  """

  setup %{tmp_dir: folder} do
    before = {System.get_env("NX_VULKAN_CACHE_DIR"), System.get_env("PATH")}
    System.put_env("NX_VULKAN_CACHE_DIR", folder)

    on_exit(fn ->
      {cache, path} = before
      if cache, do: System.put_env("NX_VULKAN_CACHE_DIR", cache), else: System.delete_env("NX_VULKAN_CACHE_DIR")
      System.put_env("PATH", path)
    end)
  end

  test "a source is compiled once", %{tmp_dir: folder} do
    assert {:ok, path} = Codegen.compile_cached(@glsl)
    assert Path.dirname(path) == Path.join(folder, "spv")
    assert NativeV.shader_check(path) == :ok
    assert File.ls!(Codegen.folder()) == [Path.basename(path)]
    # Nothing but the file is looked at.
    System.put_env("PATH", folder)
    assert Codegen.compile_cached(@glsl) == {:ok, path}
  end

  test "exact floats are another module" do
    assert {:ok, plain} = Codegen.compile_cached(@glsl)
    assert {:ok, exact} = Codegen.compile_cached(@glsl, exact: true)
    assert plain != exact
    assert File.read!(exact) == plain |> File.read!() |> NativeV.shader_exact_floats() |> elem(1)
  end

  test "a broken file in the cache is made again" do
    {:ok, path} = Codegen.compile_cached(@glsl)
    words = File.read!(path)

    for broken <- ["", "junk", binary_part(words, 0, byte_size(words) - 8)] do
      File.write!(path, broken)
      assert Codegen.compile_cached(@glsl) == {:ok, path}
      assert File.read!(path) == words
    end
  end

  test "what the compiler says, and the source that it refused" do
    broken = String.replace(@glsl, "2.0 *", "missing +")
    assert {:error, %{exit: status, stderr: said, glsl_path: source}} = Codegen.compile_cached(broken)
    assert status > 0
    assert said =~ "missing"
    assert said =~ source
    assert File.read!(source) == broken
    assert File.ls!(Codegen.folder()) == [Path.basename(source)]
  end

  test "no compiler", %{tmp_dir: folder} do
    assert {:error, %{exit: nil, stderr: said}} = Codegen.compile_cached(@glsl, compiler: "no_such_compiler")
    assert said =~ "no_such_compiler is not installed"
    System.put_env("PATH", folder)
    assert {:error, %{exit: nil, stderr: said, glsl_path: source}} = Codegen.compile_cached(@glsl)
    assert said =~ "none of glslangValidator, glslang, glslc is installed"
    assert File.read!(source) == @glsl
  end

  test "a compiler that leaves a broken module and says that all is well", %{tmp_dir: folder} do
    liar = Path.join(folder, "glslc")
    File.write!(liar, "#!/bin/sh\nwhile [ $# -gt 1 ]; do [ \"$1\" = -o ] && echo junk > \"$2\"; shift; done\n")
    File.chmod!(liar, 0o755)
    assert {:error, %{exit: 0, stderr: said}} = Codegen.compile_cached(@glsl, compiler: liar)
    assert said =~ "not a whole number of words"
    File.write!(liar, "#!/bin/sh\n")
    assert {:error, %{exit: 0, stderr: said}} = Codegen.compile_cached(@glsl, compiler: liar, exact: true)
    assert said =~ "the compiler left no"
    assert {:ok, _path} = Codegen.compile_cached(@glsl)
  end

  test "a cache folder that can't be used", %{tmp_dir: folder} do
    file = Path.join(folder, "file")
    File.write!(file, "")
    System.put_env("NX_VULKAN_CACHE_DIR", file)

    for compile <- [&Synthesis.compile/1, &Synthesis.compile_with_source/1] do
      assert {:error, %{exit: nil, stderr: said, glsl_path: nil}} = compile.(ChainShaderSpecs.beta())
      assert said =~ "#{file}/spv: not a directory (the cache: NX_VULKAN_CACHE_DIR"
    end

    assert Synthesis.clear_cache() == :ok
  end

  test "a cache folder whose name has wildcards is cleared", %{tmp_dir: folder} do
    System.put_env("NX_VULKAN_CACHE_DIR", Path.join(folder, "a[b]{c,d}*"))
    {:ok, path} = Codegen.compile_cached(@glsl)
    assert Codegen.clear_cache() == :ok
    refute File.exists?(path)
    assert Codegen.clear_cache() == :ok
  end

  # A source for each number.
  defp numbered(x),
    do: "#version 450\nlayout(set = 0, binding = 0) buffer Out { float x; };\nvoid main() { x = #{x}.0; }\n"

  test "another source under the same key is another module" do
    {:ok, path} = Codegen.compile_cached(numbered(1), key: "mine")
    assert Path.basename(path) =~ ~r/^mine-[0-9a-f]{64}\.spv$/
    one = File.read!(path)
    %{ctime: made} = File.stat!(path)
    assert Codegen.compile_cached(numbered(1), key: "mine") == {:ok, path}
    assert {:ok, other} = Codegen.compile_cached(numbered(2), key: "mine")
    assert File.read!(other) != one
    assert File.read!(path) == one
    assert %{ctime: ^made} = File.stat!(path)
    assert Codegen.clear_cache() == :ok
    assert File.ls!(Codegen.folder()) == []
  end

  test "sources that race under one key keep their modules" do
    want =
      for x <- 1..3, into: %{} do
        {:ok, path} = Codegen.compile_cached(numbered(x))
        {x, File.read!(path)}
      end

    1..12
    |> Enum.map(fn i ->
      Task.async(fn ->
        x = rem(i, 3) + 1

        for _ <- 1..5 do
          assert {:ok, path} = Codegen.compile_cached(numbered(x), key: "mine")
          # Whoever holds a path reads it later.
          assert File.read!(path) == want[x]
        end
      end)
    end)
    |> Task.await_many(120_000)
  end

  test "clearing leaves what others compile alone" do
    clearing = Task.async(fn -> clear_until_told() end)

    1..4
    |> Enum.map(fn task ->
      Task.async(fn ->
        for i <- 1..3, key <- [nil, "mine"] do
          assert {:ok, _path} = Codegen.compile_cached(numbered(100 * task + i), key: key)
        end
      end)
    end)
    |> Task.await_many(120_000)

    send(clearing.pid, :enough)
    Task.await(clearing)
    assert Synthesis.clear_cache() == :ok
    assert File.ls!(Codegen.folder()) == []
  end

  defp clear_until_told do
    Synthesis.clear_cache()
    receive(do: (:enough -> :ok), after: (0 -> clear_until_told()))
  end

  test "clearing deletes what crashed compilations left once it is old", %{tmp_dir: folder} do
    folder = Path.join(folder, "spv")
    File.mkdir_p!(folder)
    parts = for name <- ~w(0a.spv.12-3 0a.spv.12-3.comp mine-0a.spv.12-4.comp), do: Path.join(folder, name)
    Enum.each(parts, &File.write!(&1, ""))
    others = Path.join(folder, "notes.txt")
    File.write!(others, "")
    assert Synthesis.clear_cache() == :ok
    assert Enum.all?(parts, &File.exists?/1)
    Enum.each([others | parts], &File.touch!(&1, System.os_time(:second) - 4_000))
    assert Synthesis.clear_cache() == :ok
    assert File.ls!(folder) == ["notes.txt"]
  end

  test "a module that can't take its place keeps its source", %{tmp_dir: folder} do
    {:ok, path} = Codegen.compile_cached(@glsl)
    File.rm!(path)
    File.mkdir_p!(Path.join(path, "full"))
    assert {:error, %{exit: nil, stderr: said, glsl_path: source}} = Codegen.compile_cached(@glsl)
    assert said =~ path
    assert File.read!(source) == @glsl

    assert folder |> Path.join("spv") |> File.ls!() |> Enum.sort() ==
             Enum.sort([Path.basename(path), Path.basename(source)])
  end

  test "many processes compile one source at once" do
    paths =
      1..16 |> Enum.map(fn _ -> Task.async(fn -> Codegen.compile_cached(@glsl) end) end) |> Task.await_many(60_000)

    assert [{:ok, path}] = Enum.uniq(paths)
    assert File.ls!(Codegen.folder()) == [Path.basename(path)]
  end

  test "families, with their source" do
    spec = ChainShaderSpecs.beta()
    assert {:ok, path} = Synthesis.compile(spec)
    assert {:ok, ^path, glsl} = Synthesis.compile_with_source(spec)
    assert glsl =~ "REAL family_grad("
    broken = %{spec | grad_block: "grad = no_such_function(q);"}
    assert {:error, %{exit: status, stderr: said, glsl_path: source} = failure} = Synthesis.compile(broken)
    assert status > 0 and said =~ "no_such_function"
    assert {:error, with_source} = Synthesis.compile_with_source(broken)
    assert with_source == Map.put(failure, :glsl, File.read!(source))
    assert Synthesis.clear_cache() == :ok
    assert File.ls!(Codegen.folder()) == []
  end

  test "checking a file needs no device" do
    assert {:error, :spv_read_failed, message} = NativeV.shader_check("/no/such.spv")
    assert message =~ "/no/such.spv"
    assert {:error, :spv_read_failed, _} = NativeV.shader_exact_floats("junk")
    assert_raise ArgumentError, fn -> NativeV.shader_exact_floats(:junk) end
  end
end
