defmodule Nx.Vulkan.NUTSTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Numbers, only: [cpu: 1]

  alias Nx.Vulkan.{Chain, NUTS}
  alias Nx.Vulkan.NUTS.{Diagnostics, Random, Transition}

  @moduletag :device

  doctest Nx.Vulkan.NUTS

  defp tensor(values, type), do: Nx.tensor(values, type: type, backend: Nx.BinaryBackend)

  # A normal with dependent parameters and a heavy tail.
  defp density(q) do
    Nx.subtract(
      Nx.multiply(-0.5, Nx.add(Nx.sum(Nx.multiply(q, q)), Nx.multiply(q[0], q[1]))),
      Nx.sum(Nx.log1p(Nx.multiply(q, q)))
    )
  end

  describe "a transition" do
    for {type, tolerance} <- [{{:f, 64}, 1.0e-10}, {{:f, 32}, 2.0e-3}], mass <- [:diagonal, :dense] do
      test "is that of the evaluator, #{inspect(type)}, #{mass}" do
        {type, mass, d, depth} = {unquote(Macro.escape(type)), unquote(mass), 3, 5}
        value_and_grad = &Chain.value_and_grad(&1, type, fn q -> density(q) end)
        transition = Transition.compile(value_and_grad, d, type, mass, depth, :auto)
        {own, state} = beginning(type, mass)
        shared = %{first_draw: 7, max_depth: depth, adapt: 1, force: 0, target_accept: 0.8}
        {states, statistics} = Transition.run(transition, state, own, shared, 2, 3)
        got = [cpu(states.q), cpu(states.log_step), cpu(statistics)]

        numbers =
          Map.new(shared, fn {name, x} -> {name, tensor(x, if(name == :target_accept, do: type, else: :u32))} end)

        draw =
          Nx.Defn.jit(&Transition.draw(&1, &2, &3, value_and_grad, max_tree_depth: depth), compiler: Nx.Defn.Evaluator)

        for chain <- 0..1 do
          mine = &Map.new(&1, fn {name, x} -> {name, x[chain]} end)

          {rows, _} =
            Enum.map_reduce(0..2, mine.(state), fn i, state ->
              {next, statistics} = draw.(tensor(i, :u32), state, Map.merge(mine.(own), numbers))
              {[next.q, next.log_step, statistics], next}
            end)

          # Trees that grow at all.
          assert Enum.any?(rows, fn [_, _, statistics] -> Nx.to_number(statistics[4]) >= 2 end)

          for {got, want} <- Enum.zip(got, Enum.zip_with(rows, &Nx.stack/1)) do
            error = got[chain] |> Nx.subtract(want) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()
            assert error < unquote(tolerance)
          end
        end
      end
    end

    defp beginning(type, mass) do
      q = tensor([[0.1, 0.2, -0.3], [1.0, -1.0, 0.5]], type)
      gradient = Nx.stack(for chain <- 0..1, do: Nx.Defn.grad(q[chain], &density/1))
      value = Nx.stack(for chain <- 0..1, do: density(q[chain]))
      zeros = tensor([0.0, 0.0], type)
      steps = tensor([:math.log(0.3), :math.log(0.2)], type)
      state = %{q: q, gradient: gradient, log_density: value, log_step: steps}

      inverse_mass =
        case mass do
          :diagonal -> tensor([[1.0, 0.5, 2.0], [1.0, 1.0, 1.0]], type)
          :dense -> tensor(List.duplicate([[1.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0.0, 0.1, 2.0]], 2), type)
        end

      scale = inverse_mass |> Nx.backend_copy(Nx.Vulkan.VulkanoBackend) |> NUTS.Adaptation.momentum_scale(mass) |> cpu()
      own = %{key: tensor([[1, 2], [3, 4]], :u32), mu: tensor([0.5, 0.5], type)}

      {Map.merge(own, %{inverse_mass: inverse_mass, momentum_scale: scale}),
       Map.merge(state, %{mean_log_step: zeros, error: zeros, updates: zeros})}
    end

    test "has momenta of the mass that is the inverse of its inverse" do
      inverse_mass = Nx.tensor([[[1.0, 0.3], [0.3, 0.5]]], type: :f64, backend: Nx.Vulkan.VulkanoBackend)
      scale = cpu(NUTS.Adaptation.momentum_scale(inverse_mass, :dense))[0]
      product = Nx.dot(Nx.dot(scale, Nx.transpose(scale)), cpu(inverse_mass)[0])
      assert product |> Nx.subtract(cpu(Nx.eye(2))) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number() < 1.0e-14
    end
  end

  test "starts are of the chains' keys and the number of the try alone, on any device" do
    keys = Nx.tensor(for(i <- 1..40, do: [i, 0xFFFFFFFF - i]), type: :u32, backend: Nx.BinaryBackend)

    for type <- [:f32, :f64] do
      starts = fn keys, number, compiler ->
        like = Nx.broadcast(tensor(0.0, type), {100})
        cpu(Nx.Defn.jit_apply(&Random.starts/3, [keys, tensor(number, :u32), like], compiler: compiler))
      end

      all = starts.(keys, 1, Nx.Vulkan.Compiler)
      assert {all.shape, all.type} == {{40, 100}, Nx.Type.normalize!(type)}
      assert Nx.to_binary(all) == Nx.to_binary(starts.(keys, 1, Nx.Defn.Evaluator))
      assert Nx.to_binary(all[7..8]) == Nx.to_binary(starts.(keys[7..8], 1, Nx.Vulkan.Compiler))
      values = Nx.to_flat_list(Nx.concatenate([all, starts.(keys, 2, Nx.Vulkan.Compiler)]))
      # Some of 23 bits are equal.
      assert values |> Enum.uniq() |> length() > 7980
      assert Enum.all?(values, &(abs(&1) < 1))
      # Four standard errors.
      assert abs(Diagnostics.mean(values)) < 4 * :math.sqrt(1 / 3 / 8000)
      assert_in_delta Diagnostics.mean(Enum.map(values, &(&1 * &1))), 1 / 3, 4 * :math.sqrt(4 / 45 / 8000)
    end
  end

  test "random words are those of Nx.Random's hash, and normals are normal" do
    counters = Nx.tensor([[3, 3, 3], [0, 1, 0xFFFFFFFF]], type: :u32, backend: Nx.BinaryBackend)
    key = Nx.tensor([0xDEADBEEF, 42], type: :u32, backend: Nx.BinaryBackend)
    jit = &Nx.Defn.jit(&1, compiler: Nx.Defn.Evaluator)
    {a, b} = jit.(fn key, counters -> Random.words(key, counters[0][0], counters[1]) end).(key, counters)
    assert Nx.to_flat_list(Nx.concatenate([a, b])) == Nx.to_flat_list(Nx.Random.threefry2x32_20_concat(counters, key))

    for type <- [:f32, :f64] do
      like = Nx.broadcast(tensor(0.0, type), {4000})
      z = jit.(fn key, draw, like -> Random.normals(key, draw, like) end).(key, tensor(5, :u32), like)
      values = Nx.to_flat_list(z)
      moment = fn k -> Diagnostics.mean(Enum.map(values, &(&1 ** k))) end
      # Four standard errors.
      for {k, mean, error} <- [{1, 0, 1}, {2, 1, :math.sqrt(2)}, {3, 0, :math.sqrt(15)}, {4, 3, :math.sqrt(96)}] do
        assert abs(moment.(k) - mean) < 4 * error / :math.sqrt(4000)
      end
    end
  end

  describe "sample" do
    @normal_opts [num_samples: 400, num_warmup: 300, key: 3]

    test "finds correlated scales with a dense mass matrix, in a container, in f32" do
      fun = fn {%{a: a}, b} ->
        z = Nx.divide(Nx.subtract(b, Nx.multiply(0.9, Nx.sum(a))), 0.3)
        Nx.multiply(-0.5, Nx.add(Nx.sum(Nx.multiply(a, a)), Nx.sum(Nx.multiply(z, z))))
      end

      template = {%{a: Nx.template({1}, :f32)}, Nx.template({2, 1}, :f32)}
      result = NUTS.sample(fun, template, @normal_opts ++ [mass_matrix: :dense])
      {%{a: a}, b} = result.draws
      assert {Nx.shape(a), Nx.shape(b), Nx.type(a)} == {{4, 400, 1}, {4, 400, 2, 1}, {:f, 32}}
      assert Nx.shape(result.warmup.inverse_mass) == {4, 3, 3}
      assert Nx.shape(result.warmup.stats.energy) == {4, 300}

      # b is N(0.9 a, 0.3), so its variance is 0.81 + 0.09.
      for {x, sd} <- [{a[[.., .., 0]], 1.0}, {b[[.., .., 0, 0]], :math.sqrt(0.9)}, {b[[.., .., 1, 0]], :math.sqrt(0.9)}] do
        {mean, error} = Diagnostics.mean_error(x)
        assert abs(mean) < 4 * error
        {got, error} = Diagnostics.sd_error(x)
        assert abs(got - sd) < 4 * error
        assert Diagnostics.rhat(x) < 1.02
      end

      assert Nx.to_number(Nx.sum(result.stats.divergent)) == 0
      assert_in_delta Nx.to_number(Nx.mean(result.stats.accept_prob)), 0.85, 0.1
    end

    test "gives the same bits for the same key, whatever the dispatches, in f32" do
      opts = [num_samples: 10, num_warmup: 30, num_chains: 3, mass_matrix: :dense]

      [a, b] =
        for us <- [1, 1_000_000_000],
            do: NUTS.sample(&density/1, Nx.template({3}, :f32), opts ++ [dispatch_us: us])

      assert Nx.to_binary(a.draws) == Nx.to_binary(b.draws)
      assert Nx.to_binary(a.stats.energy) == Nx.to_binary(b.stats.energy)
      assert Nx.to_binary(a.stats.leapfrog_steps) == Nx.to_binary(b.stats.leapfrog_steps)
    end

    test "gives the same bits for the same key, whatever the chains beside and the dispatches" do
      fun = fn q -> density(q) end
      template = Nx.template({3}, :f64)
      opts = [num_samples: 30, num_warmup: 160]
      pid = self()
      report = &send(pid, &1)

      # Dispatches of one leapfrog step of some chains, and ever longer ones of all chains, whatever the clock says.
      [a, b] =
        for us <- [1, 1_000_000_000] do
          NUTS.sample(fun, template, opts ++ [num_chains: 3, progress: report, dispatch_us: us])
        end

      assert a.dispatches > b.dispatches + 100
      assert Nx.to_binary(a.draws) == Nx.to_binary(b.draws)
      assert Nx.to_binary(a.stats.energy) == Nx.to_binary(b.stats.energy)
      assert_received %{phase: :warmup, done: 160, total: 160}
      assert_received %{phase: :sampling, done: 30, total: 30, divergent: 0}
      alone = NUTS.sample(fun, template, opts ++ [num_chains: 1])
      assert Nx.to_binary(alone.draws[0]) == Nx.to_binary(a.draws[0])
      other = NUTS.sample(fun, template, opts ++ [num_chains: 1, key: Nx.Random.key(9)])
      assert Nx.to_binary(other.draws) != Nx.to_binary(alone.draws)
    end

    test "starts where the log-density is finite, and says so where it can't" do
      # Half of the starts are NaN.
      fun = fn x -> Nx.subtract(Nx.log(x), x) end
      result = NUTS.sample(fun, Nx.template({}, :f64), num_chains: 8, num_samples: 50, num_warmup: 100)
      assert result.draws |> Nx.reduce_min() |> Nx.to_number() > 0

      opts = [num_samples: 5, num_warmup: 0, step_size: 0.25, num_chains: 2]
      result = NUTS.sample(fun, Nx.template({}, :f64), opts ++ [init: Nx.tensor(1.5)])
      assert Nx.to_flat_list(result.stats.step_size) |> Enum.all?(&(abs(&1 - 0.25) < 1.0e-12))
      assert result.warmup.stats == nil

      assert_raise ArgumentError, ~r/:init/, fn ->
        NUTS.sample(fun, Nx.template({}, :f64), opts ++ [init: Nx.tensor(-1.5)])
      end

      assert_raise ArgumentError, ~r/100 starts/, fn ->
        NUTS.sample(fn x -> Nx.log(Nx.subtract(-1, Nx.multiply(x, x))) end, Nx.template({}, :f32), opts)
      end
    end

    test "starts however far below 0 the log-density is" do
      far = fn x -> Nx.subtract(Nx.multiply(-0.5, Nx.sum(Nx.multiply(x, x))), 5000) end
      result = NUTS.sample(far, Nx.template({2}, :f64), num_samples: 10, num_warmup: 10, num_chains: 1)
      assert Nx.to_number(Nx.sum(result.stats.divergent)) == 0
    end

    test "writes a progress bar for terminals alone" do
      normal = fn x -> Nx.multiply(-0.5, Nx.multiply(x, x)) end
      opts = [num_samples: 2, num_warmup: 0, num_chains: 1, progress: true]
      before = Application.get_env(:elixir, :ansi_enabled)
      on_exit(fn -> Application.put_env(:elixir, :ansi_enabled, before) end)

      for {terminal?, wanted} <- [{false, ""}, {true, "\rsampling ["}] do
        Application.put_env(:elixir, :ansi_enabled, terminal?)
        written = ExUnit.CaptureIO.capture_io(fn -> NUTS.sample(normal, Nx.template({}, :f32), opts) end)
        assert String.starts_with?(written, wanted) and (terminal? or written == "")
      end
    end

    test "reports divergences" do
      # A step far too long for the scale.
      fun = fn x -> Nx.multiply(-5.0e5, Nx.multiply(x, x)) end

      result =
        NUTS.sample(fun, Nx.template({}, :f64), num_samples: 5, num_warmup: 0, num_chains: 1, init: Nx.tensor(1.0e-3))

      assert Nx.to_flat_list(result.stats.divergent) == [1, 1, 1, 1, 1]
      assert Nx.to_flat_list(result.draws) |> Enum.uniq() |> length() == 1
    end

    test "takes an energy of minus infinity for a divergence" do
      # Beyond 1 the log-density is infinite.
      fun = fn x -> Nx.select(Nx.greater(x, 1), Nx.Constants.infinity(:f64), Nx.multiply(-0.5, Nx.multiply(x, x))) end

      for form <- [:workgroup, :device] do
        opts = [num_samples: 40, num_warmup: 0, num_chains: 1, step_size: 0.5, init: Nx.tensor(0.5), form: form]
        result = NUTS.sample(fun, Nx.template({}, :f64), opts)
        assert result.draws |> Nx.reduce_max() |> Nx.to_number() <= 1
        assert result.stats.divergent |> Nx.sum() |> Nx.to_number() > 0
        # Chains go on after it.
        assert result.draws |> Nx.to_flat_list() |> Enum.uniq() |> length() > 10
      end
    end

    test "warns of log-densities that have no first step size" do
      import ExUnit.CaptureLog
      opts = [num_samples: 2, num_warmup: 20, num_chains: 2, max_tree_depth: 2]
      # Tests beside this one may log what they do.
      sample = fn fun -> capture_log([level: :warning], fn -> NUTS.sample(fun, Nx.template({2}, :f64), opts) end) end
      assert sample.(fn x -> Nx.sum(Nx.floor(x)) |> Nx.multiply(0.0) end) =~ "2 of 2 chains: every step is accepted"
      assert sample.(fn x -> Nx.multiply(-0.5, Nx.sum(Nx.multiply(x, x))) end) == ""
    end

    test "refuses what it can't do" do
      normal = fn x -> Nx.multiply(-0.5, Nx.sum(Nx.multiply(x, x))) end
      template = Nx.template({2}, :f32)

      for opts <- [
            [num_chains: 0],
            [num_samples: 0],
            [max_tree_depth: 21],
            [target_accept: 1.0],
            [mass_matrix: :full],
            [form: :gpu],
            [step_size: 10 ** 400],
            [step_size: 1.0e-300],
            [step_size: 1.0e300],
            [key: 2 ** 63],
            [key: -(2 ** 63) - 1],
            [key: "a"]
          ] do
        [{name, _}] = opts
        assert_raise ArgumentError, ~r/#{inspect(name)}/, fn -> NUTS.sample(normal, template, opts) end
      end

      for fun <- [fn _ -> Nx.tensor(1.0) end, fn _ -> 1.0 end] do
        assert_raise Nx.Vulkan.Error, ~r/must depend on its parameters/, fn -> NUTS.sample(fun, template, []) end
        assert_raise Nx.Vulkan.Error, ~r/must depend on its parameters/, fn -> Chain.compile(fun, template) end
      end

      hooked = fn q -> Nx.Defn.Kernel.print_value(normal.(q)) end
      assert_raise Nx.Vulkan.Error, ~r/can't call the host/, fn -> NUTS.sample(hooked, template, []) end
      assert_raise Nx.Vulkan.Error, ~r/can't call the host/, fn -> Chain.compile(hooked, template) end

      for {fun, opts, reason} <- [
            {fn a, _b -> normal.(a) end, [], ~r/of one argument, the parameters/},
            {normal, [data: Nx.tensor([1.0])], ~r/of two arguments, the parameters and what the option :data holds/},
            {:normal, [], ~r/of one argument, the parameters.*got: :normal/}
          ],
          compile <- [&NUTS.sample/3, &Chain.compile/3] do
        assert_raise ArgumentError, reason, fn -> compile.(fun, template, opts) end
      end

      for compile <- [&NUTS.sample/2, &Chain.compile/2], wrong <- [nil, :x, [], [template], "x"] do
        assert_raise ArgumentError, ~r/parameters as a container.*got: #{Regex.escape(inspect(wrong))}/s, fn ->
          compile.(normal, wrong)
        end
      end

      for value <- [nil, :x, "x", [1.0], {Nx.tensor(1.0)}, %{}], compile <- [&NUTS.sample/2, &Chain.compile/2] do
        assert_raise ArgumentError, ~r/log-density to return a scalar.*got: #{Regex.escape(inspect(value))}/s, fn ->
          compile.(fn _ -> value end, template)
        end
      end

      for data <- [[Nx.tensor(1.0)], false, "x"], compile <- [&NUTS.sample/3, &Chain.compile/3] do
        assert_raise ArgumentError, ~r/:data as a container.*got: #{Regex.escape(inspect(data))}/s, fn ->
          compile.(fn q, _ -> normal.(q) end, template, data: data)
        end
      end

      assert_raise ArgumentError, ~r/:key to be an integer/, fn ->
        NUTS.sample(normal, template, key: Nx.template({2}, :u32))
      end

      assert_raise ArgumentError, ~r/:init.* got the template/s, fn -> NUTS.sample(normal, template, init: template) end
      error = assert_raise ArgumentError, fn -> NUTS.sample(normal, template, num_draws: 3) end
      assert error.message =~ ":num_draws" and not (error.message =~ "dispatch_us")

      for init <- [[1.0, 2.0], "x", :x] do
        assert_raise ArgumentError, ~r/:init as a container of tensors/, fn ->
          NUTS.sample(normal, template, init: init)
        end
      end

      assert_raise ArgumentError, ~r/one type/, fn -> NUTS.sample(normal, Nx.template({2}, :s32)) end
      assert_raise ArgumentError, ~r/scalar/, fn -> NUTS.sample(& &1, template) end

      windows = fn -> NUTS.sample(&Nx.sum(Nx.window_max(&1, {2})), template, form: :workgroup) end
      assert assert_raise(Nx.Vulkan.Error, windows).kind == :unsupported
    end
  end
end
