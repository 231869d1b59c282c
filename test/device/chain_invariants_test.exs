defmodule Nx.Vulkan.ChainInvariantsTest do
  # What does not depend on the parameters is computed once. Profiles are of the whole VM.
  use ExUnit.Case, async: false

  import Nx.Defn
  import Nx.Vulkan.Numbers

  alias Nx.Vulkan.{Chain, Profile, ProgramInterpreter}
  alias Nx.Vulkan.Chain.Invariants
  alias Nx.Vulkan.VulkanoBackend, as: B

  @moduletag :device

  setup do
    :rand.seed(:exsss, {2, 7, 1})
    :ok
  end

  @points 12

  # The covariance of a Gaussian process at points on a line.
  defp covariance(length, type) do
    Nx.with_default_backend(Nx.BinaryBackend, fn ->
      x = Nx.divide(Nx.iota({@points}, type: type), 2)
      far = Nx.divide(Nx.subtract(Nx.new_axis(x, 1), x), length)
      smooth = Nx.exp(Nx.multiply(like(-0.5, x), Nx.multiply(far, far)))
      Nx.add(smooth, Nx.multiply(like(0.1, x), Nx.eye(@points, type: type)))
    end)
  end

  # A regression whose errors are that process: by the factor of the covariance, and by solving with it.
  defp by_factor(x, y) do
    fn beta, covariance ->
      factor = Nx.LinAlg.cholesky(covariance)
      z = Nx.LinAlg.triangular_solve(factor, Nx.subtract(y, Nx.dot(x, beta)))
      half = Nx.multiply(like(-0.5, y), Nx.sum(Nx.multiply(z, z)))
      Nx.subtract(half, Nx.sum(Nx.log(Nx.take_diagonal(factor))))
    end
  end

  defp by_solving(x, y) do
    fn beta, covariance ->
      error = Nx.subtract(y, Nx.dot(x, beta))
      Nx.multiply(like(-0.5, y), Nx.dot(error, Nx.LinAlg.solve(covariance, error)))
    end
  end

  defp evaluated(fun, q, covariance) do
    jit = Nx.Defn.jit(fn q, c -> Nx.Defn.value_and_grad(q, &fun.(&1, c)) end, compiler: Nx.Defn.Evaluator)
    jit.(cpu(q), covariance)
  end

  defp right?(trace, fun, covariance, tolerance) do
    for chain <- 0..1, step <- [0, 2] do
      {value, gradient} = evaluated(fun, trace.q[[chain, step]], covariance)
      assert apart(trace.log_density[[chain, step]], value) < tolerance * max(1, abs(Nx.to_number(value)))
      most = gradient |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()
      assert apart(trace.gradient[[chain, step]], gradient) < tolerance * max(1, most)
    end
  end

  for {type, tolerance} <- [f64: 1.0e-9, f32: 1.0e-3] do
    test "a Gaussian process regression in both forms, its covariance captured or data, in #{type}" do
      {type, tolerance} = {unquote(type), unquote(tolerance)}
      {x, y} = {numbers({@points, 3}, type), numbers({@points}, type)}
      template = Nx.template({3}, type)
      [q, p] = for _ <- 1..2, do: numbers({2, 3}, type)
      opts = [steps: 3, step_size: 0.05]
      covariances = for length <- [1.0, 2.0], do: covariance(length, type)

      for fun <- [by_factor(x, y), by_solving(x, y)] do
        assert Chain.compile(fun, template, data: hd(covariances)).form == :workgroup

        for form <- [:workgroup, :device] do
          with_data = Chain.compile(fun, template, data: Nx.to_template(hd(covariances)), form: form)

          # One compiled chain, two data.
          [one, other] =
            for covariance <- covariances do
              captured = Chain.compile(&fun.(&1, covariance), template, form: form)
              traces = [Chain.run(with_data, q, p, [data: covariance] ++ opts), Chain.run(captured, q, p, opts)]
              for trace <- traces, do: right?(trace, fun, covariance, tolerance)
              hd(traces)
            end

          assert apart(one.log_density, other.log_density) > 0.01
        end
      end
    end
  end

  test "ill-conditioned covariances are as right as by substitution" do
    q = numbers({30}, :f64)

    covariance =
      Nx.with_default_backend(Nx.BinaryBackend, fn ->
        x = Nx.divide(Nx.iota({30}, type: :f64), 4)
        far = Nx.divide(Nx.subtract(Nx.new_axis(x, 1), x), 3.0)
        Nx.exp(Nx.multiply(like(-0.5, x), Nx.multiply(far, far))) |> Nx.add(Nx.multiply(1.0e-8, Nx.eye(30)))
      end)

    # A factor with a condition of 5e4, and a right side that is near its first columns.
    factor = covariance |> Nx.backend_copy(B) |> Nx.LinAlg.cholesky() |> cpu()
    value = fn q -> Nx.dot(factor, q) |> then(&Nx.LinAlg.triangular_solve(factor, &1)) |> Nx.pow(2) |> Nx.sum() end
    chain = Chain.compile(value, Nx.template({30}, :f64))
    trace = Chain.run(chain, q, q, steps: 1, step_size: 0.0)
    want = q |> Nx.multiply(q) |> Nx.sum() |> Nx.to_number()
    # By the inverse alone 2e-11 to 6e-10.
    assert_in_delta Nx.to_number(trace.log_density[0]), want, 1.0e-11 * want
  end

  test "factorizations run once for a run with data, and never after compiling without" do
    {x, y} = {numbers({@points, 3}, :f64), numbers({@points}, :f64)}
    covariance = covariance(1.0, :f64)
    fun = by_factor(x, y)
    [q, p] = for _ <- 1..2, do: numbers({2, 3}, :f64)
    on_exit(fn -> Profile.reset() end)

    for form <- [:workgroup, :device], {data, times} <- [{[data: covariance], 1}, {[], 0}] do
      density = if data == [], do: &fun.(&1, covariance), else: fun
      chain = Chain.compile(density, Nx.template({3}, :f64), [form: form] ++ data)
      run = fn -> Nx.to_binary(Chain.run(chain, q, p, [steps: 10, step_size: 0.01] ++ data).q) end
      run.()
      Profile.reset()
      Profile.start()
      run.()
      Profile.stop()
      factorizations = for row <- Profile.rows(), row.kernel =~ "cholesky", do: row.calls
      assert Enum.sum(factorizations) == times
      assert Enum.all?(Profile.rows(), &(not String.contains?(&1.kernel, "triangular_solve") or &1.calls <= 2))
    end
  end

  defn in_loop(q, a) do
    {sum, _, _} =
      while {sum = q[0] * 0.0, parts = {q, a}, i = 0}, i < 3 do
        {q, a} = parts
        {sum - Nx.sum(Nx.LinAlg.triangular_solve(Nx.LinAlg.cholesky(a), q * (i + 1)) ** 2), parts, i + 1}
      end

    sum
  end

  test "factorizations in loops of a log-density, and of what the parameters change" do
    a = Nx.add(Nx.eye(3, type: :f64, backend: Nx.BinaryBackend), like(0.2, %{type: {:f, 64}}))
    q = numbers({2, 3}, :f64)
    # Its gradient has that of the matrix, too, which changes.
    chain = Chain.compile(&in_loop/2, Nx.template({3}, :f64), data: a)
    right?(Chain.run(chain, q, q, steps: 3, step_size: 0.01, data: a), &in_loop/2, a, 1.0e-9)

    changing = fn q, a -> Nx.negate(Nx.sum(elem(Nx.LinAlg.qr(Nx.add(a, Nx.exp(q))), 1))) end
    assert Chain.compile(changing, Nx.template({3}, :f64), data: a).form == :device

    assert_raise Nx.Vulkan.Error, ~r/one workgroup can run, not \w+ of f64\[3, 3\]/, fn ->
      Chain.compile(changing, Nx.template({3}, :f64), data: a, form: :workgroup)
    end
  end

  test "systems in all positions are solved as before" do
    n = 5
    # Both triangles have numbers.
    matrices = Nx.add(numbers({2, n, n}, :f64), Nx.multiply(4.0, Nx.eye(n, backend: Nx.BinaryBackend)))

    triangular =
      for lower <- [true, false],
          left <- [true, false],
          transform <- [:none, :transpose, :conjugate],
          vector <- [true, false] do
        options = [lower: lower, left_side: left, transform_a: transform]
        shape = if vector, do: {2, n}, else: if(left, do: {2, n, 3}, else: {2, 3, n})
        {:triangular_solve, shape, &Nx.LinAlg.triangular_solve(&2, &1, options)}
      end

    solve = for shape <- [{2, n}, {2, n, 3}], do: {:solve, shape, &Nx.LinAlg.solve(&2, &1)}

    for {op, shape, fun} <- triangular ++ solve do
      inputs = [numbers(shape, :f64), matrices]
      {program, [0, 1]} = Chain.program(fun, Enum.map(inputs, &Nx.to_template/1))
      references = for input <- inputs, do: B.reference(input)
      tensor = fn [ref] -> %{hd(inputs) | data: %B{ref: ref, type: hd(inputs).type}} end
      want = program |> ProgramInterpreter.run(references) |> tensor.()

      case Invariants.split(program, [0]) do
        nil ->
          assert inspect(program) =~ "conjugate"

        {before, taken, rest} ->
          refute Enum.any?(Enum.at(rest, 1), &(hd(&1) == op))
          ahead = ProgramInterpreter.run(before, Enum.map(taken, &Enum.at(references, &1)))
          got = rest |> ProgramInterpreter.run(references ++ ahead) |> tensor.()
          assert apart(got, want) < 1.0e-12
      end
    end
  end
end
