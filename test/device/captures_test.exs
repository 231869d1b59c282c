defmodule Nx.Vulkan.CapturesTest do
  # Log-densities with data on any backend, captured or given as :data, under any default backend.
  use ExUnit.Case, async: true

  import Nx.Vulkan.Numbers, only: [cpu: 1]

  alias Nx.Vulkan.{Chain, Closure, NUTS}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @moduletag :device

  @backends [Nx.BinaryBackend, B]

  defp tensor(values, backend), do: Nx.tensor(values, type: :f64, backend: backend)
  defp density(q, x), do: Nx.multiply(-0.5, Nx.sum(Nx.pow(Nx.subtract(q, x), 2)))

  defp results(x, form, data?) do
    template = Nx.template({3}, :f64)
    {log_density, data} = if data?, do: {&density/2, [data: x]}, else: {&density(&1, x), []}
    chain = Chain.compile(log_density, template, [form: form] ++ data)
    trace = Chain.run(chain, x, x, [steps: 3, step_size: 0.1] ++ data)
    opts = [num_samples: 3, num_warmup: 3, num_chains: 1, max_tree_depth: 3, form: form] ++ data
    draws = NUTS.sample(log_density, template, opts).draws
    for tensor <- [trace.q, trace.energy, draws], do: Nx.to_binary(tensor)
  end

  for form <- [:workgroup, :device] do
    test "the default backend and that of data don't matter, #{form}" do
      form = unquote(form)

      # Captured tensors are constants and data inputs, which the compiler may treat differently.
      for data? <- [false, true] do
        all =
          for default <- @backends, backend <- @backends do
            Nx.with_default_backend(default, fn -> results(tensor([1.0, 2.0, 3.0], backend), form, data?) end)
          end

        assert all |> Enum.uniq() |> length() == 1
      end
    end
  end

  test "guides' snippet of sampling draws the same with every default backend" do
    draws =
      for default <- @backends do
        Nx.with_default_backend(default, fn ->
          {%{tau: tau}, _output} =
            ExUnit.CaptureIO.with_io(fn -> Nx.Vulkan.Guides.run("guides/sampling_with_exmc.md") end)

          Nx.to_binary(tau)
        end)
      end

    assert [same, same] = draws
  end

  test "tensors are found in what functions capture" do
    for backend <- @backends do
      x = tensor([1.0, 2.0], backend)
      scale = fn y -> Nx.multiply(y, x) end
      nested = fn q -> density(scale.(q), elem(%{a: [{x, 1}]}.a |> hd(), 0)) end
      vectorized = Nx.vectorize(tensor([[1.0, 2.0]], backend), :rows)
      {evaluated, _} = Code.eval_string("fn q -> Nx.sum(Nx.multiply(Nx.negate(q), Nx.multiply(q, x))) end", x: x)
      # What the function reads on the host.
      read = fn q -> Nx.multiply(Nx.sum(Nx.pow(q, 2)), -Nx.to_number(x[1])) end
      made = fn q -> density(q, Nx.tensor([3.0, 4.0])) end

      by_vectors = fn q ->
        Nx.sum(Nx.devectorize(Nx.multiply(-1, Nx.multiply(Nx.multiply(q, q), vectorized)))) |> Nx.add(Nx.sum(x))
      end

      for log_density <- [nested, evaluated, read, made, by_vectors] do
        q = tensor([0.5, -0.25], Nx.BinaryBackend)
        {value, gradient} = Nx.Defn.value_and_grad(q, Closure.on_binary_backend(log_density))

        for default <- @backends do
          Nx.with_default_backend(default, fn ->
            chain = Chain.compile(log_density, Nx.template({2}, :f64))
            trace = Chain.run(chain, q, q, steps: 1, step_size: 0.0)

            for {got, want} <- [{trace.log_density[0], value}, {trace.gradient[0], gradient}] do
              assert_in_delta got |> cpu() |> Nx.subtract(want) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number(),
                              0,
                              1.0e-13
            end
          end)
        end
      end
    end
  end

  test "functions without device tensors stay what they are" do
    x = tensor([1.0], Nx.BinaryBackend)

    for fun <- [fn q -> Nx.add(q, x) end, &Nx.sum/1, &density(&1, x), fn q -> q end] do
      assert Closure.on_binary_backend(fun) == fun
    end

    reference = tensor([1.0], B)
    copied = Closure.on_binary_backend(fn -> {reference, [1 | 2], self(), make_ref()} end)
    assert {%{data: %Nx.BinaryBackend{}}, [1 | 2], pid, _} = copied.()
    assert pid == self()
  end

  test "data may hold numbers, and must hold tensors" do
    log_density = fn q, %{y: y, n: n} -> Nx.sum(Nx.multiply(n, Nx.subtract(Nx.multiply(y, q), Nx.exp(q)))) end
    template = Nx.template({}, :f64)

    for default <- @backends do
      Nx.with_default_backend(default, fn ->
        data = %{y: Nx.tensor([3, 4, 5]), n: 3}
        opts = [num_samples: 5, num_warmup: 5, num_chains: 2]
        assert Nx.shape(NUTS.sample(log_density, template, opts ++ [data: data]).draws) == {2, 5}
        chain = Chain.compile(log_density, template, data: data)
        q = tensor([0.5], B)
        trace = Chain.run(chain, q, q, steps: 1, step_size: 0.0, data: data)
        assert_in_delta Nx.to_number(trace.log_density[0]), 3 * (12 * 0.5 - 3 * :math.exp(0.5)), 1.0e-12

        assert_raise ArgumentError, ~r/:data to be a container of tensors/, fn ->
          NUTS.sample(log_density, template, opts ++ [data: Nx.to_template(data)])
        end
      end)
    end
  end
end
