defmodule Nx.Vulkan.ChainTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.Chain

  @moduletag :device

  # The same steps by the evaluator, with BinaryBackend.
  defp leapfrog(log_density, q, p, mass, step_size, steps) do
    gradient = fn q -> Nx.Defn.value_and_grad(q, log_density) end
    # Nx takes a number as f32.
    [step_size, half] = Enum.map([step_size, step_size / 2], &Nx.tensor(&1, type: q.type, backend: Nx.BinaryBackend))
    {_, g} = gradient.(q)

    {rows, _} =
      Enum.map_reduce(1..steps, {q, p, g}, fn _, {q, p, g} ->
        p = Nx.add(p, Nx.multiply(half, g))
        q = Nx.add(q, Nx.multiply(step_size, velocity(mass, p)))
        {value, g} = gradient.(q)
        p = Nx.add(p, Nx.multiply(half, g))
        energy = Nx.subtract(Nx.divide(Nx.dot(p, velocity(mass, p)), 2), value)
        {{q, p, g, value, energy}, {q, p, g}}
      end)

    [:q, :p, :gradient, :log_density, :energy]
    |> Enum.with_index()
    |> Map.new(fn {name, i} -> {name, rows |> Enum.map(&elem(&1, i)) |> Nx.stack()} end)
  end

  defp velocity(mass, p), do: if(tuple_size(Nx.shape(mass)) == 1, do: Nx.multiply(mass, p), else: Nx.dot(mass, p))

  defp close?(trace, expected, tolerance) do
    for {name, want} <- expected do
      got = Nx.backend_copy(trace[name], Nx.BinaryBackend)
      assert Nx.shape(got) == Nx.shape(want)
      scale = want |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number() |> max(1.0)
      error = got |> Nx.subtract(want) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()
      assert error <= tolerance * scale, "#{name} is off by #{error} of #{scale}"
    end
  end

  defp schools(%{mu: mu, log_tau: log_tau, effects: t}, %{y: y, sigma: sigma}) do
    tau = Nx.exp(log_tau)
    z = Nx.divide(Nx.subtract(y, Nx.add(mu, Nx.multiply(tau, t))), sigma)
    prior = Nx.subtract(log_tau, Nx.log1p(Nx.pow(Nx.divide(tau, 5), 2)))
    squares = Nx.add(Nx.sum(Nx.multiply(t, t)), Nx.sum(Nx.multiply(z, z)))
    Nx.add(prior, Nx.multiply(-0.5, Nx.add(squares, Nx.divide(Nx.multiply(mu, mu), 25))))
  end

  defp school_data(type) do
    %{
      y: Nx.tensor([28, 8, -3, 7, -1, 1, 18, 12], type: type, backend: Nx.BinaryBackend),
      sigma: Nx.tensor([15, 10, 16, 11, 9, 11, 10, 18], type: type, backend: Nx.BinaryBackend)
    }
  end

  defp school_template(type),
    do: %{mu: Nx.template({}, type), log_tau: Nx.template({}, type), effects: Nx.template({8}, type)}

  defp numbers(count, type),
    do: Nx.tensor(for(i <- 1..count, do: :math.sin(i * 1.3)), type: type, backend: Nx.BinaryBackend)

  for {type, tolerance} <- [{{:f, 64}, 1.0e-11}, {{:f, 32}, 1.0e-4}] do
    test "a model with data and a container of parameters, #{inspect(type)}" do
      type = unquote(Macro.escape(type))
      data = school_data(type)
      chain = Chain.compile(&schools/2, school_template(type), data: data)
      assert chain.parameters == 10
      {q, p} = {numbers(10, type), numbers(10, type)}
      mass = Nx.abs(numbers(10, type))
      trace = Chain.run(chain, q, p, steps: 6, step_size: 0.1, inverse_mass: mass, data: data)
      flat = fn q -> schools(Chain.unflatten(chain, q), data) end
      close?(trace, leapfrog(flat, q, p, mass, Nx.to_number(Nx.tensor(0.1, type: type)), 6), unquote(tolerance))
      parameters = Chain.unflatten(chain, trace.q)
      assert Nx.shape(parameters.effects) == {6, 8}
      assert Nx.shape(parameters.mu) == {6}
      assert Nx.to_flat_list(Chain.flatten(chain, Chain.unflatten(chain, q))) == Nx.to_flat_list(q)
    end
  end

  test "captured tensors, a dense mass matrix, chains at once" do
    x = Nx.reshape(numbers(60, :f64), {20, 3})
    y = Nx.tensor(for(i <- 1..20, do: rem(i, 2)), type: :f64, backend: Nx.BinaryBackend)

    logistic = fn q ->
      eta = Nx.dot(x, q)
      likelihood = Nx.sum(Nx.subtract(Nx.multiply(y, eta), Nx.log1p(Nx.exp(eta))))
      Nx.subtract(likelihood, Nx.multiply(0.5, Nx.dot(q, q)))
    end

    chain = Chain.compile(logistic, Nx.template({3}, :f64), mass: :dense)
    mass = Nx.tensor([[1.0, 0.1, 0.0], [0.1, 0.8, 0.2], [0.0, 0.2, 1.2]], type: :f64, backend: Nx.BinaryBackend)
    {q, p} = {Nx.reshape(numbers(6, :f64), {2, 3}), Nx.reshape(numbers(6, :f64), {2, 3})}
    steps = Nx.tensor([0.2, -0.1], type: :f64, backend: Nx.BinaryBackend)
    trace = Chain.run(chain, q, p, steps: 5, step_size: steps, inverse_mass: mass)
    assert Nx.shape(trace.q) == {2, 5, 3}

    for {c, step_size} <- [{0, 0.2}, {1, -0.1}] do
      one = Map.new(trace, fn {name, tensor} -> {name, tensor[c]} end)
      close?(one, leapfrog(logistic, q[c], p[c], mass, step_size, 5), 1.0e-11)
      alone = Chain.run(chain, q[c], p[c], steps: 3, step_size: step_size, inverse_mass: mass)
      assert Nx.to_binary(alone.q) == one.q |> Nx.slice([0, 0], [3, 3]) |> Nx.to_binary()
    end
  end

  test "parameters of other types become the chain's floats" do
    chain =
      Chain.compile(fn %{a: a, b: b} -> Nx.add(Nx.sum(a), b) end, %{
        a: Nx.template({2}, :f64),
        b: Nx.template({}, :f64)
      })

    for type <- [:s32, :u8, :f32, :f64] do
      vector = Chain.flatten(chain, %{a: Nx.tensor([1, 2], type: type), b: 3})
      assert {Nx.type(vector), Nx.to_flat_list(vector)} == {{:f, 64}, [1.0, 2.0, 3.0]}
    end
  end

  test "parameters keep their names" do
    log_density = fn %{a: a, b: b} ->
      Nx.negate(Nx.add(Nx.sum(Nx.multiply(a, a), axes: [:x]), Nx.sum(Nx.pow(b, 2), axes: [:x, :y])))
    end

    template = %{a: Nx.template({2}, :f64, names: [:x]), b: Nx.template({2, 1}, :f64, names: [:x, :y])}
    chain = Chain.compile(log_density, template)
    assert %{a: a, b: b} = Chain.unflatten(chain, numbers(4, {:f, 64}))
    assert {Nx.names(a), Nx.names(b)} == {[:x], [:x, :y]}
    assert Nx.names(Chain.unflatten(chain, Nx.broadcast(0.0, {5, 4})).b) == [nil, :x, :y]
    draws = Nx.Vulkan.NUTS.sample(log_density, template, num_samples: 3, num_warmup: 3, num_chains: 1).draws
    assert {Nx.names(draws.a), Nx.names(draws.b)} == {[nil, nil, :x], [nil, nil, :x, :y]}
  end

  test "more chains than a dispatch has" do
    chain = Chain.compile(fn q -> Nx.multiply(-0.5, Nx.sum(Nx.multiply(q, q))) end, Nx.template({1}, :f32))
    many = 65_537
    q = Nx.divide(Nx.iota({many, 1}, type: :f32, backend: Nx.BinaryBackend), many)
    steps = Nx.add(0.1, Nx.reshape(q, {many}))
    trace = Chain.run(chain, q, q, steps: 2, step_size: steps)
    assert Nx.shape(trace.q) == {many, 2, 1}
    assert Nx.shape(trace.energy) == {many, 2}

    for i <- [0, 65_534, 65_535, 65_536] do
      alone = Chain.run(chain, q[i], q[i], steps: 2, step_size: steps[i])
      for {name, tensor} <- trace, do: assert(Nx.to_binary(tensor[i]) == Nx.to_binary(alone[name]))
    end
  end

  test "divergence" do
    chain = Chain.compile(fn q -> Nx.negate(Nx.exp(Nx.sum(Nx.multiply(q, q)))) end, Nx.template({2}, :f32))
    q = Nx.tensor([1.0, 1.0], backend: Nx.BinaryBackend)
    trace = Chain.run(chain, q, q, steps: 3, step_size: 100.0)
    assert trace.energy |> Nx.is_nan() |> Nx.logical_or(Nx.is_infinity(trace.energy)) |> Nx.any() |> Nx.to_number() == 1
  end

  test "wrong arguments" do
    normal = fn q -> Nx.multiply(-0.5, Nx.sum(Nx.multiply(q, q))) end
    assert_raise ArgumentError, ~r/one type/, fn -> Chain.compile(normal, Nx.template({3}, :s32)) end
    assert_raise ArgumentError, ~r/scalar/, fn -> Chain.compile(& &1, Nx.template({3}, :f32)) end

    for {name, value} <- [form: :gpu, mass: :full] do
      assert_raise ArgumentError, ~r/#{inspect(name)} to be one of/, fn ->
        Chain.compile(normal, Nx.template({3}, :f32), [{name, value}])
      end
    end

    vectorized = Nx.vectorize(Nx.tensor([1.0, 2.0], backend: Nx.BinaryBackend), :x)
    assert_raise ArgumentError, ~r/parameters without vectorized axes/, fn -> Chain.compile(normal, vectorized) end

    for {fun, reason} <- [
          {fn q -> Nx.multiply(vectorized, normal.(q)) end, ~r/log-density without vectorized axes/},
          {fn q -> Nx.complex(normal.(q), 1.0) end, ~r/log-density to be real, got: c64/}
        ],
        do: assert_raise(ArgumentError, reason, fn -> Chain.compile(fun, Nx.template({3}, :f32)) end)

    for {fun, d} <- [{normal, 300_000}, {&Nx.sum(Nx.window_max(&1, {2})), 3}] do
      compile = fn -> Chain.compile(fun, Nx.template({d}, :f32), form: :workgroup) end
      assert assert_raise(Nx.Vulkan.Error, compile).kind == :unsupported
    end

    chain = Chain.compile(normal, Nx.template({3}, :f32))
    q = Nx.tensor([1.0, 2.0, 3.0], backend: Nx.BinaryBackend)
    assert_raise ArgumentError, ~r/:steps/, fn -> Chain.run(chain, q, q, steps: 0, step_size: 0.1) end

    for large <- [10 ** 400, -(10 ** 400), 1.0e300, -1.0e39] do
      assert_raise ArgumentError, ~r/:step_size to be a number that f32/, fn ->
        Chain.run(chain, q, q, steps: 1, step_size: large)
      end
    end

    assert_raise ArgumentError, ~r/:p of shape/, fn ->
      Chain.run(chain, q, Nx.tensor([1.0]), steps: 1, step_size: 0.1)
    end

    run = fn chain, q, p, opts -> Chain.run(chain, q, p, Keyword.merge([steps: 1, step_size: 0.1], opts)) end
    {two, three} = {Nx.broadcast(q, {2, 3}), Nx.transpose(Nx.broadcast(q, {2, 3}))}
    one = Chain.compile(normal, Nx.template({}, :f32))

    for {fun, reason} <- [
          {fn -> run.(chain, two, three, []) end, ":p of shape {2, 3}, got: {3, 2}"},
          {fn -> run.(chain, three, three, []) end, ":q of shape {3} or {chains, 3}, got: {3, 2}"},
          {fn -> run.(one, Nx.tensor(1.0), Nx.tensor(1.0), []) end, ":q of shape {1} or {chains, 1}, got: {}"},
          {fn -> run.(chain, [1.0, 2.0, 3.0], q, []) end, ":q to be a tensor"},
          {fn -> run.(chain, Nx.vectorize(two, :x), q, []) end, ":q without vectorized axes"},
          {fn -> run.(chain, q, Nx.as_type(q, :c64), []) end, ":p to be real, got: c64"},
          {fn -> run.(chain, Nx.as_type(q, :f64), q, []) end, ":q of type f32"},
          {fn -> run.(chain, q, q, step_size: :small) end,
           ":step_size to be a number, a scalar tensor or a tensor {1}"},
          {fn -> Chain.run(chain, q, q, steps: 1) end,
           ":step_size to be a number, a scalar tensor or a tensor {1}, got: nil"},
          {fn -> run.(chain, Nx.template({3}, :f32), q, []) end, ":q to be a tensor with values, got the template"},
          {fn -> run.(chain, q, Nx.template({3}, :f32), []) end, ":p to be a tensor with values, got the template"},
          {fn -> Chain.unflatten(chain, Nx.iota({4})) end, ":q with a last axis of size 3, got the shape: {4}"},
          {fn -> Chain.unflatten(chain, Nx.iota({2, 2})) end, ":q with a last axis of size 3, got the shape: {2, 2}"},
          {fn -> Chain.unflatten(chain, Nx.tensor(1.0)) end, ":q with a last axis of size 3, got the shape: {}"},
          {fn -> Chain.flatten(chain, Nx.as_type(q, :f64)) end, "expected parameters as"},
          {fn -> Chain.flatten(chain, Nx.as_type(q, :c64)) end, "expected parameters as"},
          {fn -> Chain.flatten(chain, {q}) end, "expected parameters as"},
          {fn -> Chain.flatten(chain, [1.0, 2.0, 3.0]) end, "expected parameters as"},
          {fn -> run.(chain, q, q, step_size: q) end, ":step_size of shape {1}, got: {3}"},
          {fn -> run.(chain, q, q, inverse_mass: [1.0, 1.0, 1.0]) end, ":inverse_mass to be a tensor"},
          {fn -> run.(chain, q, q, inverse_mass: Nx.eye(3)) end, ":inverse_mass of shape {3}, got: {3, 3}"}
        ],
        do: assert_raise(ArgumentError, Regex.compile!(Regex.escape(reason)), fun)

    assert_raise ArgumentError, ~r/without data/, fn -> Chain.run(chain, q, q, steps: 1, step_size: 0.1, data: q) end
    assert %{} = Chain.run(chain, q, q, steps: 1, step_size: 0.1)
  end
end
