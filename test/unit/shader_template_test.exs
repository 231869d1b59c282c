defmodule Nx.Vulkan.ShaderTemplateTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.{ChainShaderSpecs, ChainShaderSpecsF64, ShaderTemplate}
  alias Nx.Vulkan.ShaderTemplate.FamilySpec

  @spec_ %FamilySpec{name: "line", push_fields: ["slope"], grad_block: "grad = slope;", logp_block: "logp = slope * q;"}

  test "families have the parameters of their shaders" do
    assert ChainShaderSpecs.beta().push_fields == ~w(alpha beta logp_const)
    assert ChainShaderSpecs.gamma().push_fields == ~w(alpha rate logp_const)
    assert ChainShaderSpecs.lognormal().push_fields == ~w(mu sigma)
    assert ChainShaderSpecsF64.studentt(4, 0, 1, 0.5).push_fields == ~w(nu location scale logp_const)
    assert Enum.map(ChainShaderSpecsF64.all(), & &1.name) == Enum.map(ChainShaderSpecs.families(), &Atom.to_string/1)
  end

  test "push data are the words and floats that the shader declares" do
    assert <<3::32-little, 32::32-little, 0.0625::float-32-little, rest::binary>> =
             ChainShaderSpecs.beta_push(3, 32, 0.0625, 2, 5.0, 0.25)

    assert rest == <<2.0::float-32-little, 5.0::float-32-little, 0.25::float-32-little>>
    assert byte_size(ChainShaderSpecs.beta_push(3, 32, 0.0625, 2, 5.0, 0.25)) == 24
    assert byte_size(ChainShaderSpecs.gamma_push(3, 32, 0.05, 2, 5.0, 0.25)) == 24
    assert byte_size(ChainShaderSpecs.lognormal_push(3, 32, 0.05, 2, 5.0)) == 20

    normal = ChainShaderSpecsF64.normal(1, 2)

    assert ChainShaderSpecs.push(normal, 3, 4, 0.5) ==
             <<3::32-little, 4::32-little, 0.5::float-64-little, 1.0::float-64-little, 2.0::float-64-little>>

    batched = ChainShaderSpecsF64.batched(normal)

    assert <<4::32-little, 0::32, 3::32-little, 9::32-little, 0.5::float-64-little, _::128>> =
             ChainShaderSpecsF64.batch_push(batched, 3, 4, 0.5, 9)

    for spec <- ChainShaderSpecsF64.all(), spec <- [spec, %{spec | dtype: :f32}] do
      spec = %{spec | params: Enum.map(spec.push_fields, fn _ -> 1.0 end)}
      assert byte_size(ChainShaderSpecs.push(spec, 1, 1, 0.1)) == ShaderTemplate.push_bytes(spec)
      batched = ChainShaderSpecsF64.batched(spec)
      assert byte_size(ChainShaderSpecsF64.batch_push(batched, 1, 1, 0.1, 1)) == ShaderTemplate.push_bytes(batched)
    end

    for eps <- [1.0e300, -1.0e39, nil] do
      assert_raise ArgumentError, ~r/numbers that f32 holds, got: /, fn ->
        ChainShaderSpecs.beta_push(3, 32, eps, 2, 5.0, 0.25)
      end
    end

    for {n, k} <- [{-1, 4}, {2 ** 32 + 2, 4}, {3, -4}, {3.0, 4}] do
      assert_raise ArgumentError, ~r/expected [nk] to be an integer from 0/, fn ->
        ChainShaderSpecs.push(normal, n, k, 0.5)
      end
    end

    assert_raise ArgumentError, ~r/expected n_instances/, fn ->
      ChainShaderSpecsF64.batch_push(batched, 3, 4, 0.5, 2 ** 32)
    end

    assert_raise ArgumentError, ~r/beta has the parameters alpha, beta, logp_const, got \[\]/, fn ->
      ChainShaderSpecs.push(ChainShaderSpecs.beta(), 1, 1, 0.1)
    end

    assert_raise ArgumentError, ~r/batched/, fn -> ChainShaderSpecs.push(batched, 1, 1, 0.1) end
  end

  test "the source holds all that it needs" do
    glsl = ShaderTemplate.render(%{@spec_ | grad_block: "grad = slope * FN(exp)(q);", dtype: :f64})
    assert glsl =~ "double nx_exp_f64("
    refute glsl =~ "nx_log1p_f64("
    refute glsl =~ "nx_exp_f32("
    refute glsl =~ "#include"
    assert glsl =~ "    REAL slope;"
    assert ShaderTemplate.render(@spec_) == ShaderTemplate.render(%{@spec_ | push_fields: [:slope]})
    assert ShaderTemplate.render(@spec_) == ShaderTemplate.render(%{@spec_ | push_fields: ["float slope"]})
  end

  test "specs that make no shader" do
    for {change, message} <- [
          {%{name: ""}, ~r/the name ""/},
          {%{name: "a\n#error"}, ~r/the name/},
          {%{dtype: :f16}, ~r/line: dtype is :f32 or :f64, not :f16/},
          {%{grad_block: nil}, ~r/line: grad_block is no text/},
          {%{helpers: 1}, ~r/line: helpers is no text/},
          {%{push_fields: ["q"]}, ~r/line: parameter "q"/},
          {%{push_fields: ["a;b"]}, ~r/line: parameter "a;b"/},
          {%{push_fields: ["a", "a"]}, ~r/line: parameters \["a", "a"\]/},
          {%{push_fields: Enum.map(1..30, &"a#{&1}")}, ~r/30 parameters take 132 bytes of push data, more than 128/}
        ] do
      assert_raise ArgumentError, message, fn -> ShaderTemplate.render(Map.merge(@spec_, change)) end
    end

    assert ShaderTemplate.render(%{@spec_ | push_fields: Enum.map(1..29, &"a#{&1}"), grad_block: "", logp_block: ""})
  end
end
