defmodule Nx.Vulkan.ExmcContractTest do
  # What exmc 0.3.0 and its notebooks call, by name and arity.
  use ExUnit.Case, async: true

  alias Nx.Vulkan.ShaderTemplate.FamilySpec

  @called [
    {Nx.Vulkan, init: 0, device_name: 0, has_f64?: 0, fused_chain: 3, leapfrog_chain_normal: 7, __info__: 1},
    {Nx.Vulkan.NativeV,
     leapfrog_chain_synth: 6,
     leapfrog_chain_synth_f64: 6,
     leapfrog_chain_synth_batch: 6,
     leapfrog_chain_synth_batch_f64: 6},
    {Nx.Vulkan.Native, init: 0, device_name: 0, has_f64: 0, leapfrog_chain_synth: 6, reduce_scalar: 3},
    {Nx.Vulkan.Node,
     start_link: 0, start_link: 1, child_spec: 1, with_node: 1, with_node: 2, alive?: 0, alive?: 1, status: 0, status: 1},
    {Nx.Vulkan.Synthesis, compile: 1, compile_with_source: 1, clear_cache: 0},
    {Nx.Vulkan.Codegen, compile_cached: 1},
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

  test "the backend is one" do
    assert {:module, backend} = Code.ensure_loaded(Nx.Vulkan.VulkanoBackend)
    assert Nx.Backend in Keyword.get(backend.module_info(:attributes), :behaviour, [])
  end
end
