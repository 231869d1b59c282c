defmodule Nx.Vulkan.PackageTest do
  # The files of the Hex package, as Hex takes them from mix.exs.
  use ExUnit.Case, async: true

  defp files do
    package = Mix.Project.config()[:package]

    for path <- package[:files],
        file <- [path | Path.wildcard(path <> "/**", match_dot: true)],
        File.regular?(file),
        not Enum.any?(package[:exclude_patterns], &(file =~ &1)),
        do: file
  end

  test "has what the library is built of" do
    built_of =
      ["Cargo.toml", "Cargo.lock", ".cargo/config.toml", "rust-toolchain.toml", "mix.exs", "LICENSE"] ++
        Enum.flat_map(
          ~w(lib/**/*.ex native/*/Cargo.toml native/*/build.rs native/*/src/**/*.rs) ++
            ~w(native/nx_vulkan_engine/src/**/*.{comp,glsl} priv/shaders/*.{spv,toml}) ++
            ~w(priv/shaders/{lib,soft,template,include,src}/**/*.*),
          &Path.wildcard/1
        )

    built_of = Enum.reject(built_of, &String.starts_with?(&1, "native/nx_vulkan_faults/"))
    assert built_of -- files() == []
    assert length(built_of) > 1000

    # Files that modules are compiled with, beside those of priv.
    for source <- Path.wildcard("lib/**/*.ex"),
        [_, resource] <- Regex.scan(~r/Path\.expand\("([^"]+)", __DIR__\)/, File.read!(source)) do
      path = resource |> Path.expand(Path.dirname(source)) |> Path.relative_to_cwd()
      assert Enum.any?(files(), &(&1 == path or String.starts_with?(&1, path <> "/"))), "#{source} reads #{path}"
    end
  end

  test "has nothing else but pages" do
    others =
      Enum.reject(files(), fn file ->
        file =~ ~r"^(lib|priv/shaders|native/[a-z_]+/(src|benches))/" or
          file =~ ~r"^native/[a-z_]+/(Cargo.toml|build.rs|README.md)$" or file =~ ~r"^guides/" or
          file =~ ~r"^[A-Z_]+(\.md)?$"
      end)

    made = ["release_url", "checksum-Elixir.Nx.Vulkan.NativeV.exs"]

    assert Enum.sort(others -- made) ==
             Enum.sort(
               ~w(Cargo.toml Cargo.lock .cargo/config.toml rust-toolchain.toml mix.exs) ++
                 ~w(docs/design/driver-faults.md)
             )
  end

  test "every version is that of mix.exs" do
    version = Mix.Project.config()[:version]
    manifest = File.read!("Cargo.toml")
    assert manifest =~ "\nversion = \"#{version}\"\n"
    pinned = Regex.scan(~r/^nx_vulkan_[a-z]+ = .*version = "=([^"]+)"/m, manifest, capture: :all_but_first)
    assert List.duplicate([version], 5) == pinned
  end
end
