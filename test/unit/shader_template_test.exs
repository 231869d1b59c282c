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

    assert_raise ArgumentError, ~r"normal is not batched: batched/1 makes it so", fn ->
      ChainShaderSpecsF64.batch_push(normal, 3, 4, 0.5, 9)
    end

    for huge <- [2 ** 1100, -(2 ** 1100)] do
      assert_raise ArgumentError, ~r/numbers that f64 holds, got: an integer of more than 308 digits$/, fn ->
        ChainShaderSpecs.push(ChainShaderSpecsF64.normal(huge, 2), 3, 4, 0.5)
      end
    end

    # The largest there is.
    assert <<_::128, 0x7FEFFFFFFFFFFFFF::64-little, _::64>> =
             ChainShaderSpecs.push(ChainShaderSpecsF64.normal(2 ** 1024 - 2 ** 971, 2), 3, 4, 0.5)
  end

  test "families and types that there are not" do
    for name <- [:foo, nil, "beta"] do
      message = "expected a family, one of :normal, .*, :lognormal, got: #{Regex.escape(inspect(name))}$"
      assert_raise ArgumentError, Regex.compile!(message), fn -> ChainShaderSpecs.family(name) end
    end

    assert_raise ArgumentError, ~r/beta: dtype is :f32 or :f64, not :f16/, fn ->
      ChainShaderSpecs.family(:beta, :f16, [1.0, 2.0, 3.0])
    end
  end

  test "fields of another type, to every reader of a spec" do
    batched = fn spec -> if spec.batched == false, do: ChainShaderSpecsF64.batched(spec), else: spec end

    readers = [
      &ShaderTemplate.render/1,
      &ShaderTemplate.push_bytes/1,
      &ChainShaderSpecs.push(&1, 3, 4, 0.5),
      &ChainShaderSpecsF64.batch_push(batched.(&1), 3, 4, 0.5, 9)
    ]

    for {change, message} <- [
          {%{batched: nil}, "line: batched is true or false, not nil"},
          {%{batched: 1}, "line: batched is true or false, not 1"},
          {%{push_fields: nil}, "line: push_fields is a list of names, strings or atoms, not nil"},
          {%{push_fields: [{1}]}, "line: push_fields is a list of names, strings or atoms, not [{1}]"},
          {%{push_fields: ["a" | "b"]}, "line: push_fields is a list of names, strings or atoms, not [\"a\" | \"b\"]"},
          {%{params: nil}, "line: params is a list of numbers, not nil"},
          {%{dtype: :f16}, "line: dtype is :f32 or :f64, not :f16"}
        ],
        read <- readers do
      assert_raise ArgumentError, message, fn -> read.(Map.merge(@spec_, change)) end
    end
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
