defmodule Nx.Vulkan.ExmcContractTest do
  # What exmc 0.3.0, its notebooks and later versions of it call, by name and arity.
  use ExUnit.Case, async: true

  alias Nx.Vulkan.ShaderTemplate.FamilySpec

  alias Nx.Vulkan.{Fallback, Shader, Spirv}

  @called [
    {Nx.Vulkan, init: 0, device_name: 0, has_f64?: 0, fused_chain: 3, leapfrog_chain_normal: 7, __info__: 1},
    {Nx.Vulkan.NativeV,
     leapfrog_chain_synth: 6,
     leapfrog_chain_synth_f64: 6,
     leapfrog_chain_synth_batch: 6,
     leapfrog_chain_synth_batch_f64: 6,
     device_name: 0,
     device_info: 0},
    {Nx.Vulkan.Device, info: 0},
    {Nx.Vulkan.Native, init: 0, device_name: 0, has_f64: 0, leapfrog_chain_synth: 6, reduce_scalar: 3},
    {Nx.Vulkan.Node,
     start_link: 0, start_link: 1, child_spec: 1, with_node: 1, with_node: 2, alive?: 0, alive?: 1, status: 0, status: 1},
    {Nx.Vulkan.Synthesis, compile: 1, compile_with_source: 1, clear_cache: 0},
    {Nx.Vulkan.Codegen, compile_cached: 1},
    {Shader, compile: 1, compile: 2, default_cache_dir: 0},
    {Spirv, validate_file: 1},
    {Nx.Vulkan.ChainTrace, dispatch_f64: 6, dispatch_f64: 7, record: 1, replay: 2, replay: 3, info: 1},
    {Nx.Vulkan.Backend, init: 1, from_binary: 3, constant: 3},
    {Fallback, count: 1, count_total: 1, strict: 1, strict: 2},
    {Nx.Vulkan.ShaderTemplate, render: 1},
    {Nx.Vulkan.ChainShaderSpecs,
     beta: 0, beta_push: 6, gamma: 0, gamma_push: 6, lognormal: 0, lognormal_push: 5, push: 4},
    {Nx.Vulkan.ChainShaderSpecsF64,
     normal: 2, cauchy: 3, exponential: 1, halfnormal: 2, studentt: 4, weibull: 3, all: 0, batched: 1, batch_push: 5}
  ]

  for {module, functions} <- @called do
    test inspect(module) do
      assert {:module, module} = Code.ensure_loaded(unquote(module))
      missing = for {name, arity} <- unquote(functions), not function_exported?(module, name, arity), do: {name, arity}
      assert missing == []
    end
  end

  test "specs have the fields that notebooks change" do
    spec = Nx.Vulkan.ChainShaderSpecs.beta()

    assert %FamilySpec{} = %{
             spec
             | name: "x",
               push_fields: [],
               grad_block: "",
               grad_block_n: nil,
               logp_block: "",
               logp_final: nil
           }

    assert %FamilySpec{} = %{spec | dtype: :f64, params: [], helpers: nil}
  end

  test "the name and kind of the device" do
    case Nx.Vulkan.device_name() do
      nil ->
        assert {:error, :vulkan_init_failed, _message} = Nx.Vulkan.NativeV.device_name()

      name ->
        assert {:ok, ^name, kind} = Nx.Vulkan.NativeV.device_name()
        assert kind in ["DiscreteGpu", "IntegratedGpu", "VirtualGpu", "Cpu", "Other"]
    end
  end

  test "no op is computed on the host" do
    assert Fallback.count(fn -> :value end) == {:value, %{}}
    assert Fallback.count_total(fn -> :value end) == 0
    assert Fallback.strict(fn -> :value end) == :value
    for mode <- [:allow, :warn, :raise], do: assert(Fallback.strict(mode, fn -> :value end) == :value)
  end

  @tag :tmp_dir
  test "shaders in a folder and under a name of the caller's", %{tmp_dir: folder} do
    glsl =
      "#version 460\nlayout(local_size_x = 1) in;\nlayout(set = 0, binding = 0) buffer Out { float x; };\n" <>
        "void main() { x = 1.0; }\n"

    case Shader.compile(glsl, cache_dir: folder, key: "mine") do
      {:ok, path} ->
        assert Path.dirname(path) == folder
        assert Path.basename(path) =~ ~r/^mine-.*\.spv$/
        assert Spirv.validate_file(path) == :ok

      # No compiler is installed.
      {:error, %{exit: nil, glsl_path: source}} ->
        assert File.read!(source) == glsl
    end

    junk = Path.join(folder, "junk.spv")
    File.write!(junk, "junk")
    assert {:error, reason} = Spirv.validate_file(junk)
    assert is_binary(reason)
    assert Shader.default_cache_dir() == Nx.Vulkan.Codegen.folder()
  end

  test "the backend is one" do
    assert {:module, backend} = Code.ensure_loaded(Nx.Vulkan.VulkanoBackend)
    assert Nx.Backend in Keyword.get(backend.module_info(:attributes), :behaviour, [])
  end
end
