defmodule Nx.Vulkan.Checkouts do
  @moduledoc """
  The source control of packages that come from a folder of checkouts: there is nothing to fetch, lock or check.

  It takes every dependency that names neither a path nor a repository: those that the checkouts ask for among
  themselves. Without it Mix would install Hex to look at them, only to find that `override: true` replaces them all.
  """

  @behaviour Mix.SCM

  @impl true
  def fetchable?, do: false
  @impl true
  def format(opts), do: opts[:dest]
  @impl true
  def format_lock(_opts), do: nil
  @impl true
  def accepts_options(app, opts), do: Keyword.put_new(opts, :dest, Path.join(Mix.Project.deps_path(), "#{app}"))
  @impl true
  def checked_out?(opts), do: File.dir?(opts[:dest])
  @impl true
  def checkout(opts), do: Mix.raise("#{opts[:dest]} is in none of the checkouts of NX_VULKAN_DEPS")
  @impl true
  def update(opts), do: opts[:lock]
  @impl true
  def lock_status(_opts), do: :ok
  @impl true
  def equal?(opts1, opts2), do: opts1[:dest] == opts2[:dest]
  @impl true
  def managers(_opts), do: []
end

defmodule Nx.Vulkan.MixProject do
  use Mix.Project

  @version "0.1.0"

  # What draws time lines: Livebook's package, and the dashboard with what it depends on.
  @kino ["kino", "table"]
  @dashboard ["phoenix_live_dashboard", "phoenix_live_view", "phoenix", "phoenix_html", "phoenix_template"] ++
               ["phoenix_pubsub", "plug", "plug_crypto", "mime", "telemetry_metrics", "websock_adapter", "websock"]

  # What ex_doc depends on.
  @of_ex_doc ["earmark_parser", "makeup", "makeup_elixir", "makeup_erlang", "nimble_parsec"]

  # Where the files of a release lie, a line that the release writes into the Hex package. There is none in a checkout.
  @release_url "release_url"

  def project do
    [
      app: :nx_vulkan,
      version: @version,
      elixir: "~> 1.18",
      native_library: native_library(),
      compilers: compilers(native_library()),
      elixirc_paths: elixirc_paths(Mix.env()),
      start_permanent: Mix.env() == :prod,
      deps: deps(),
      name: "Nx.Vulkan",
      description: "Nx tensors and compiled numerical definitions on any Vulkan device",
      package: package(),
      docs: &docs/0
    ]
  end

  # The recordings and the table of ops use the modules of test/support.
  def cli, do: [preferred_envs: ["nx_vulkan.record": :test, "nx_vulkan.ops": :test]]

  def application do
    [
      extra_applications: [:crypto, :logger],
      mod: {Nx.Vulkan.Application, []}
    ]
  end

  # A package of a release takes the library of that release, unless it is told to build; a checkout builds it.
  # Nx.Vulkan.Library is compiled by what this says.
  defp native_library do
    case File.read(Path.join(__DIR__, @release_url)) do
      {:ok, url} -> if build?(), do: :built, else: {:precompiled, String.trim(url)}
      {:error, :enoent} -> :built
    end
  end

  # What makes other packages of rustler_precompiled build makes this one build as well.
  defp build? do
    config = Application.get_all_env(:rustler_precompiled)
    variables = Enum.map(["NX_VULKAN_BUILD", "RUSTLER_PRECOMPILED_FORCE_BUILD_ALL"], &System.get_env/1)

    Enum.any?(variables, &(&1 in ["1", "true"])) or config[:force_build_all] == true or
      !!config[:force_build][:nx_vulkan]
  end

  defp compilers(:built), do: [:nx_vulkan_native | Mix.compilers()]
  defp compilers({:precompiled, _url}), do: Mix.compilers()

  defp elixirc_paths(:test), do: ["lib", "test/support"]
  defp elixirc_paths(_), do: ["lib"]

  defp deps do
    case checkouts() do
      nil -> hex_deps()
      folder -> checkout_deps(folder)
    end
  end

  defp hex_deps do
    [
      {:nx, "~> 0.13 or ~> 1.0"},
      {:telemetry, "~> 0.4 or ~> 1.0"},
      {:rustler, "~> 0.36", runtime: false},
      {:rustler_precompiled, "~> 0.8", runtime: false},
      {:kino, "~> 0.14", optional: true},
      {:phoenix_live_dashboard, "~> 0.8.3", optional: true},
      {:stream_data, "~> 1.1", only: :test},
      {:benchee, "~> 1.3", only: :dev, runtime: false, optional: true},
      {:ex_doc, "~> 0.38", only: :dev, runtime: false}
    ]
  end

  # `override: true` on what the packages themselves depend on: a checkout need not be of the version they ask for.
  defp checkout_deps(folder) do
    Mix.SCM.append(Nx.Vulkan.Checkouts)

    [
      {:nx, "nx/nx", []},
      {:complex, "complex", []},
      {:telemetry, "telemetry", []},
      {:rustler, "rustler/rustler_mix", runtime: false},
      {:jason, "jason", runtime: false},
      {:stream_data, "stream_data", only: :test}
    ]
    |> Enum.concat(if_there(folder, ["rustler_precompiled", "castore"], runtime: false))
    |> Enum.concat(if_there(folder, ["axon", "scholar", "polaris", "nimble_options"], only: :test, runtime: false))
    |> Enum.concat(if_there(folder, @kino, only: :test, runtime: false))
    |> Enum.concat(if_there(folder, @dashboard, only: :test, runtime: false))
    |> Enum.concat(if_there(folder, ["ex_doc" | @of_ex_doc], only: :dev, runtime: false))
    |> Enum.map(fn {app, subfolder, opts} ->
      path = Path.join(folder, subfolder)

      if not File.regular?(Path.join(path, "mix.exs")) do
        # A Mix.raise while the project loads would print its stack trace.
        Mix.shell().error("#{path} is missing: NX_VULKAN_DEPS must hold a checkout of #{app} at #{subfolder}")
        exit({:shutdown, 1})
      end

      {app, [path: path, override: true] ++ opts}
    end)
  end

  # Packages that nothing needs which is built and tested here without them: rustler_precompiled, which packages of
  # releases take their library by, those whose own tests run on this one, those that draw time lines, and ex_doc.
  defp if_there(folder, packages, opts) do
    if Enum.all?(packages, &File.regular?(Path.join([folder, &1, "mix.exs"]))) do
      for package <- packages, do: {String.to_atom(package), package, opts}
    else
      []
    end
  end

  # The folder of source checkouts that stands in for Hex, or nil. An empty NX_VULKAN_DEPS means Hex.
  defp checkouts do
    default = Path.expand("~/.cache/nx_vulkan/deps")

    case System.get_env("NX_VULKAN_DEPS") do
      "" -> nil
      nil -> if File.dir?(default), do: default
      folder -> Path.expand(folder)
    end
  end

  # `mix docs` writes them to the folder doc. ex_doc finds the page of a link by the name of its file alone, so no two
  # pages may have one name.
  defp docs do
    [
      main: "readme",
      extras: [{"README.md", title: "Overview"} | for({_group, paths} <- pages(), path <- paths, do: page(path))],
      groups_for_extras: pages(),
      groups_for_modules: modules(),
      groups_for_docs: [
        "Functions: element-wise": &(&1[:type] == :element),
        "Functions: aggregates": &(&1[:type] == :aggregation),
        "Functions: memory": &(&1[:type] == :memory)
      ],
      formatters: ["html"]
    ]
  end

  # A search is for users.
  defp page("docs/" <> _ = path), do: {path, search_data: []}
  defp page("bench/" <> _ = path), do: {path, search_data: []}
  defp page("THIRD_PARTY" <> _ = path), do: {path, search_data: []}
  defp page(path), do: path

  defp pages do
    guides = fn names -> Enum.map(names, &"guides/#{&1}") end

    [
      "First steps": guides.(~w(getting_started.md cheatsheet.cheatmd axon.md scholar.md coming_from_exla.md)),
      Models: guides.(~w(training.livemd mixed_precision.md quantized.md transformers.livemd)),
      Sampling: guides.(~w(chains.livemd sampling_with_exmc.md)),
      "How it runs":
        guides.(~w(compiler.md deferred.md devices.md memory.md performance.md errors.md numerics.md ops.md)),
      "Where it runs": guides.(~w(configuration.md releases_and_docker.md nerves.md macos.md windows.md)),
      Project: ~w(CHANGELOG.md SECURITY.md CONTRIBUTING.md ARCHITECTURE.md LICENSE THIRD_PARTY_LICENSES.md),
      Design: Path.wildcard("docs/design/*.md"),
      Measured: Path.wildcard("bench/results/*.md")
    ]
  end

  defp modules do
    alias Nx.Vulkan, as: V

    [
      "Tensors and functions": [V, V.VulkanoBackend, V.Compiler, V.Sharding, V.Pipeline, V.Error, V.Telemetry],
      "Layers and weights": [
        V.Recurrences,
        V.Experts,
        V.Quantized,
        V.GGUF,
        V.Safetensors,
        V.PackedLayers,
        V.Pretrained,
        V.Lora
      ],
      Sampling: [V.Chain, V.NUTS, V.NUTS.Diagnostics],
      "Looking inside": [
        V.Compiler.Live,
        V.Profile,
        V.Timeline,
        V.Timeline.Kino,
        V.LiveDashboardPage,
        V.Doctor,
        V.Bench,
        V.Calibration,
        V.Cache
      ],
      "Shaders of your own": [
        V.NativeV,
        V.Node,
        V.Shader,
        V.Spirv,
        V.Synthesis,
        V.ShaderTemplate,
        V.ShaderTemplate.FamilySpec
      ],
      "Names of earlier programs": [
        V.Backend,
        V.ChainShaderSpecs,
        V.ChainShaderSpecsF64,
        V.ChainTrace,
        V.Codegen,
        V.Device,
        V.Fallback,
        V.Native
      ]
    ]
  end

  defp package do
    [
      licenses: ["Apache-2.0"],
      links: %{},
      # What the library is compiled of, which takes the page on faults of drivers as well, and what users read offline.
      files:
        ~w(lib native priv/shaders Cargo.toml Cargo.lock .cargo/config.toml rust-toolchain.toml mix.exs) ++
          ~w(README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE THIRD_PARTY_LICENSES.md) ++
          ~w(guides docs/design/driver-faults.md) ++
          [@release_url, "checksum-Elixir.Nx.Vulkan.NativeV.exs"],
      # What is for tests alone, and the links by which packages of the crates have what lies outside their folders.
      exclude_patterns: [
        ~r"^native/nx_vulkan_faults/",
        ~r"^native/[a-z_]+/(tests|examples)/",
        ~r"^native/[a-z_]+/LICENSE",
        ~r"^native/nx_vulkan_spirv/shaders"
      ]
    ]
  end
end

defmodule Mix.Tasks.Compile.NxVulkanNative do
  @moduledoc """
  Builds the NIF library with Cargo and puts it where `Nx.Vulkan.NativeV` loads it from, where the library is not that
  of a release.

  Each Mix environment has a library of its own, `priv/native/<env>/nx_vulkan_native.so`:
  `_build/<env>/lib/nx_vulkan/priv` is a link to `priv`, so that one file for all of them would be whatever was built
  last. `prod`, which is also what a project that depends on this one builds, uses Cargo's release profile; `dev` and
  `test` the dev profile, and `test` shares all crates but the library's own with `cargo test`.
  """

  use Mix.Task.Compiler

  @crate "nx_vulkan_native"

  @impl true
  def run(_args) do
    cargo =
      System.find_executable("cargo") ||
        Mix.raise("cargo is missing: nx_vulkan builds its NIF with Rust here, install it from https://rustup.rs")

    case System.cmd(cargo, cargo_args(Mix.env()), into: "") do
      {messages, 0} -> messages |> library!() |> install()
      {_messages, status} -> Mix.raise("cargo build of #{@crate} failed with status #{status}")
    end
  end

  @impl true
  def clean do
    File.rm_rf!(Path.dirname(destination()))
  end

  defp cargo_args(env) do
    profile =
      case env do
        :prod -> ["--release"]
        # What is opened to tests, so that the engine is the one that `cargo test` has built.
        :test -> ["--features", "nx_vulkan_engine/testing"]
        _ -> []
      end

    ["build", "--package", @crate, "--message-format", "json-render-diagnostics", "--quiet"] ++ profile
  end

  # Cargo says where the library is: its folder depends on the profile, on CARGO_TARGET_DIR and on the target.
  defp library!(messages) do
    artifact =
      messages
      |> String.split("\n", trim: true)
      |> Enum.map(&JSON.decode!/1)
      |> Enum.find(&match?(%{"reason" => "compiler-artifact", "target" => %{"name" => @crate}}, &1))

    Enum.find(artifact["filenames"], &(Path.extname(&1) in [".so", ".dylib", ".dll"]))
  end

  defp install(library) do
    destination = destination()

    if same?(library, destination) do
      :noop
    else
      # Moved into place in one step: a VM that has the old file loaded keeps it, and none sees half of a new one.
      File.mkdir_p!(Path.dirname(destination))
      part = "#{destination}.#{System.pid()}.part"
      File.cp!(library, part)
      File.rename!(part, destination)
      Mix.Project.build_structure()
      :ok
    end
  end

  defp same?(library, destination) do
    with {:ok, %{size: size, mtime: built}} <- File.stat(library),
         {:ok, %{size: ^size, mtime: copied}} <- File.stat(destination) do
      copied >= built and File.read!(library) == File.read!(destination)
    else
      _ -> false
    end
  end

  # :erlang.load_nif adds ".dll" on Windows and ".so" everywhere else, macOS included.
  defp destination do
    extension = if match?({:win32, _}, :os.type()), do: "dll", else: "so"
    Path.join(["priv", "native", "#{Mix.env()}", "#{@crate}.#{extension}"])
  end
end
