defmodule Nx.Vulkan.SynthesisChainTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.{ChainShaderSpecs, ChainShaderSpecsF64, NativeV, Synthesis}
  alias Nx.Vulkan.ShaderTemplate.FamilySpec

  @moduletag :device
  if Enum.all?(~w(glslangValidator glslang glslc), &(System.find_executable(&1) == nil)),
    do: @moduletag(skip: "no GLSL compiler is installed")

  # 4 rounding errors of f32 at the largest values for each of the steps; the f64 functions are right to 2 ulp.
  @tolerance %{f32: 2.0e-5, f64: 1.0e-13}

  # The log density of one element and its derivative, in the host's f64.
  defp host("normal", [mu, sigma]) do
    {fn q -> -0.5 * ((q - mu) / sigma) ** 2 - :math.log(sigma) - 0.5 * :math.log(2 * :math.pi()) end,
     fn q -> (mu - q) / (sigma * sigma) end}
  end

  defp host("lognormal", params), do: host("normal", params)

  defp host("cauchy", [location, scale, c]) do
    z = fn q -> (q - location) / scale end
    {fn q -> c - :math.log(1 + z.(q) ** 2) end, fn q -> -2 * z.(q) / (scale * (1 + z.(q) ** 2)) end}
  end

  defp host("exponential", [rate]) do
    {fn q -> :math.log(rate) + q - rate * :math.exp(q) end, fn q -> 1 - rate * :math.exp(q) end}
  end

  defp host("halfnormal", [sigma, c]) do
    w = fn q -> (:math.exp(q) / sigma) ** 2 end
    {fn q -> -0.5 * w.(q) + q + c end, fn q -> 1 - w.(q) end}
  end

  defp host("halfcauchy", [scale, c]) do
    w = fn q -> (:math.exp(q) / scale) ** 2 end
    {fn q -> q - :math.log(1 + w.(q)) + c end, fn q -> 2 / (1 + w.(q)) - 1 end}
  end

  defp host("studentt", [nu, location, scale, c]) do
    z = fn q -> (q - location) / scale end

    {fn q -> c - 0.5 * (nu + 1) * :math.log(1 + z.(q) ** 2 / nu) end,
     fn q -> -(nu + 1) * z.(q) / (scale * (nu + z.(q) ** 2)) end}
  end

  defp host("weibull", [shape, scale, c]) do
    s = fn q -> shape * (q - :math.log(scale)) end
    {fn q -> s.(q) - :math.exp(s.(q)) + c end, fn q -> shape * (1 - :math.exp(s.(q))) end}
  end

  defp host("beta", [alpha, beta, c]) do
    x = fn q -> 1 / (1 + :math.exp(-q)) end

    {fn q -> alpha * :math.log(x.(q)) + beta * :math.log(1 - x.(q)) + c end,
     fn q -> alpha * (1 - x.(q)) - beta * x.(q) end}
  end

  defp host("gamma", [alpha, rate, c]) do
    {fn q -> alpha * q - rate * :math.exp(q) + c end, fn q -> alpha - rate * :math.exp(q) end}
  end

  defp params(%{push_fields: fields}), do: for({_, i} <- Enum.with_index(fields), do: 0.75 + 0.5 * i)

  defp pack(:f32, values), do: for(x <- values, into: <<>>, do: <<x::float-32-little>>)
  defp pack(:f64, values), do: for(x <- values, into: <<>>, do: <<x::float-64-little>>)
  defp unpack(:f32, binary), do: for(<<x::float-32-little <- binary>>, do: x)
  defp unpack(:f64, binary), do: for(<<x::float-64-little <- binary>>, do: x)

  defp state(n, seed) do
    q = for i <- 1..n, do: rem(i * 37 + seed, 64) / 32 - 1
    p = for i <- 1..n, do: rem(i * 11 + seed, 64) / 32 - 1
    inv_mass = for i <- 1..n, do: 0.5 + rem(i + seed, 8) / 8
    {q, p, inv_mass}
  end

  defp run(%{dtype: type} = spec, {q, p, inv_mass}, k, eps) do
    {:ok, spv} = Synthesis.compile(spec)
    run(type, spv, {q, p, inv_mass}, k, ChainShaderSpecs.push(spec, length(q), k, eps))
  end

  defp run(type, spv, {q, p, inv_mass}, k, push) do
    function = if type == :f64, do: &NativeV.leapfrog_chain_synth_f64/6, else: &NativeV.leapfrog_chain_synth/6
    {:ok, chain} = function.(pack(type, q), pack(type, p), pack(type, inv_mass), push, k, spv)
    Tuple.to_list(chain)
  end

  defp suffix(:f32), do: ""
  defp suffix(:f64), do: "_f64"
  defp batch(:f32), do: &NativeV.leapfrog_chain_synth_batch/6
  defp batch(:f64), do: &NativeV.leapfrog_chain_synth_batch_f64/6

  # The same steps on the host.
  defp leapfrog({logp, grad}, {q, p, inv_mass}, k, eps) do
    steps =
      1..k
      |> Enum.scan(Enum.zip([q, p, inv_mass]), fn _step, elements ->
        for {q, p, m} <- elements do
          p = p + eps / 2 * grad.(q)
          q = q + eps * m * p
          {q, p + eps / 2 * grad.(q), m}
        end
      end)

    [
      for(step <- steps, {q, _, _} <- step, do: q),
      for(step <- steps, {_, p, _} <- step, do: p),
      for(step <- steps, {q, _, _} <- step, do: grad.(q)),
      for(step <- steps, do: step |> Enum.map(fn {q, _, _} -> logp.(q) end) |> Enum.sum())
    ]
  end

  defp assert_near(got, wanted, tolerance) do
    scale = wanted |> Enum.map(&abs/1) |> Enum.max() |> max(1.0)
    worst = Enum.zip_with(got, wanted, &abs(&1 - &2)) |> Enum.max()
    assert length(got) == length(wanted) and worst <= tolerance * scale, "off by #{worst} at #{scale}"
  end

  for family <- ChainShaderSpecs.families(), type <- [:f32, :f64] do
    test "#{family} in #{type} is the host's chain, and the bits of the shader that is compiled already" do
      {type, n, k, eps} = {unquote(type), 300, 7, 0.0625}
      spec = ChainShaderSpecs.family(unquote(family), type)
      spec = %{spec | params: params(spec)}
      state = state(n, 0)
      chain = run(spec, state, k, eps)
      wanted = leapfrog(host(spec.name, spec.params), state, k, eps)

      for {got, wanted} <- Enum.zip(chain, wanted), do: assert_near(unpack(type, got), wanted, @tolerance[type])

      compiled = Application.app_dir(:nx_vulkan, "priv/shaders/leapfrog_chain_#{spec.name}#{suffix(type)}.spv")
      assert run(type, compiled, state, k, ChainShaderSpecs.push(spec, n, k, eps)) == chain
    end
  end

  for type <- [:f32, :f64] do
    test "a batch in #{type} has the bits of its instances" do
      {type, d, k, eps, count} = {unquote(type), 17, 5, -0.125, 6}
      spec = ChainShaderSpecs.family(:beta, type, [2.0, 5.0, 0.5])
      batched = ChainShaderSpecsF64.batched(spec)
      {:ok, spv} = Synthesis.compile(batched)
      states = for seed <- 1..count, do: state(d, seed)
      [q, p, inv_mass] = states |> Enum.map(&Tuple.to_list/1) |> Enum.zip_with(&Enum.concat/1)
      push = ChainShaderSpecsF64.batch_push(batched, d, k, eps, count)

      assert {:ok, batch} = batch(type).(pack(type, q), pack(type, p), pack(type, inv_mass), push, k, spv)
      singles = Enum.map(states, &run(spec, &1, k, eps))
      assert Tuple.to_list(batch) == Enum.zip_with(singles, &IO.iodata_to_binary/1)
    end
  end

  test "a family of one's own, with all blocks" do
    spec = %FamilySpec{
      name: "two normals",
      dtype: :f64,
      push_fields: [:gap, :shift],
      params: [1.5, 0.25],
      helpers: "REAL bump(const in REAL q, const in REAL at) { REAL z = q - at; return FN(exp)(REAL(-0.5) * z * z); }",
      derived_block: "derived = gap * REAL(0.5);",
      grad_block: """
      REAL left = bump(q, -derived);
      REAL right = bump(q, derived);
      grad = ((-derived - q) * left + (derived - q) * right) / (left + right);
      """,
      grad_block_n: "REAL t = FN(tanh)(q * derived); grad = derived * t - q;",
      logp_block: "logp = FN(log)(bump(q, -derived) + bump(q, derived));",
      logp_final: "logp = logp + double(n) * shift;"
    }

    state = state(300, 3)
    bump = fn q, at -> :math.exp(-0.5 * (q - at) ** 2) end
    logp = fn q -> :math.log(bump.(q, -0.75) + bump.(q, 0.75)) + 0.25 end
    grad = fn q -> 0.75 * :math.tanh(0.75 * q) - q end
    chain = run(spec, state, 5, 0.1)

    for {got, wanted} <- Enum.zip(chain, leapfrog({logp, grad}, state, 5, 0.1)),
        do: assert_near(unpack(:f64, got), wanted, 1.0e-13)
  end

  test "leapfrog_chain_normal/7 takes and gives tensors" do
    {q, p, inv_mass} = state(40, 1)

    for type <- [:f32, :f64] do
      [tq, tp, tm] = for values <- [q, p, inv_mass], do: Nx.tensor(values, type: type)
      assert {:ok, {tq, tp, tg, tl}} = Nx.Vulkan.leapfrog_chain_normal(tq, tp, tm, 6, 0.1, 0.5, 1.5)
      assert {Nx.shape(tq), Nx.shape(tp), Nx.shape(tg), Nx.shape(tl)} == {{6, 40}, {6, 40}, {6, 40}, {6}}
      wanted = leapfrog(host("normal", [0.5, 1.5]), {q, p, inv_mass}, 6, 0.1)

      for {got, wanted} <- Enum.zip([tq, tp, tg, tl], wanted) do
        assert Nx.type(got) == Nx.Type.normalize!(type)
        assert_near(Nx.to_flat_list(got), wanted, @tolerance[type])
      end
    end

    short = Nx.tensor([1.0])
    assert Nx.Vulkan.leapfrog_chain_normal(Nx.tensor(q), short, short, 6, 0.1, 0.5, 1.5) == {:error, :size_mismatch}

    assert Nx.Vulkan.leapfrog_chain_normal(Nx.tensor(q), Nx.tensor(p), short, 6, 0.1, 0.5, 1.5) ==
             {:error, :size_mismatch}

    assert_raise ArgumentError, ~r/k to be an integer, got: 2.0/, fn ->
      Nx.Vulkan.leapfrog_chain_normal(short, short, short, 2.0, 0.1, 0.5, 1.5)
    end

    assert Nx.Vulkan.leapfrog_chain_normal(short, short, short, 0, 0.1, 0.5, 1.5) == {:error, :bad_input}
    assert {:ok, _} = Nx.Vulkan.leapfrog_chain_normal(Nx.tensor([1]), short, short, 3, 0.1, 0.5, 1.5)

    for {wrong, message} <- [
          {Nx.tensor([Complex.new(1, 2)]), "to be real, got a tensor of type c64: give its parts apart"},
          {Nx.vectorize(short, :x), "to have no vectorized axes, got [x: 1]: Nx.devectorize/1"}
        ],
        {name, at} <- [q: 0, p: 1, inv_mass: 2] do
      [q, p, inv_mass] = List.replace_at([short, short, short], at, wrong)

      assert_raise ArgumentError, ~r/^expected #{name} #{Regex.escape(message)}/, fn ->
        Nx.Vulkan.leapfrog_chain_normal(q, p, inv_mass, 3, 0.1, 0.5, 1.5)
      end
    end
  end

  test "fused_chain/3 applies ops in order" do
    Nx.default_backend(Nx.Vulkan.VulkanoBackend)
    {a, b} = {Nx.tensor([1.0, 4.0, 9.0]), Nx.tensor([3.0, 5.0, 7.0])}
    assert Nx.Vulkan.fused_chain(a, b, [:add, :sqrt, :neg]) |> Nx.to_flat_list() == [-2.0, -3.0, -4.0]

    assert Nx.Vulkan.fused_chain(a, b, [:relu, :square, :reciprocal]) |> Nx.to_flat_list() == [
             1.0,
             0.0625,
             0.012345679104328156
           ]

    assert_raise ArgumentError, ~r/:sin/, fn -> Nx.Vulkan.fused_chain(a, b, [:sin]) end

    for wrong <- [[], [:add | :sub], :add],
        do: assert_raise(ArgumentError, ~r/list of ops/, fn -> Nx.Vulkan.fused_chain(a, b, wrong) end)
  end
end
