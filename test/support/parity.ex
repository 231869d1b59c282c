defmodule Nx.Vulkan.Parity do
  @moduledoc """
  Runs a function of tensors op by op and compiled on the device, with its gradients, and compares both with numbers of
  twice as many bits. Calls of other backends are counted meanwhile.
  """

  import ExUnit.Assertions
  import Nx.Vulkan.Numbers, only: [most: 1, numbers: 2]

  alias Nx.Defn.Evaluator
  alias Nx.Vulkan.{Compiler, VulkanoBackend}

  # The rounding of f32, relative to the number that is rounded.
  @rounding 2.0 ** -24
  # The step of differences of f64 and what they may be off: the step squared, besides 2^-53 over the step.
  @step 1.0e-5
  @difference 1.0e-6
  # Functions of backends that compute nothing.
  @bytes [:backend_copy, :from_binary, :to_binary]

  @doc """
  Compares `fun`, of a list of tensors to one or to a tuple of them, with what it gives on the host in f64.

  Results may differ by `:roundings` times 2^-24 of the largest number of each: a number that is rounded so often on its
  way, from numbers that are no larger, is off by no more. Without roundings, and for integers, they are equal.

  ## Options

    * `:roundings` - see above
    * `:steps` - another function of the same list, whose results and gradients are the expected ones
    * `:plain` - another one that computes in Elixir, with which results are compared and, by differences along a random
      direction, gradients
    * `:waits` - of how many loops of gradients the host may read the condition; 0 by default
    * `:gradients` - the places of the inputs that have gradients; all floats by default, `[]` for none
  """
  def check(fun, inputs, opts) do
    opts = Keyword.validate!(opts, [:roundings, :steps, :plain, gradients: floats(inputs), waits: 0])
    places = opts[:gradients]
    wide = Enum.map(inputs, &widened/1)
    steps = opts[:steps] || fun
    outputs = on_host(fn -> flat((opts[:plain] || steps).(wide)) end)
    weights = for tensor <- outputs, float?(tensor), do: weights_of(tensor)
    args = fn inputs, weights -> [List.to_tuple(inputs), List.to_tuple(weights)] end
    wanted = on_host(fn -> flat(compile(all(steps, places), args.(wide, weights), Evaluator).()) end)
    gradients = Enum.drop(wanted, length(outputs))

    if opts[:plain] do
      compare("on the host", Enum.take(wanted, length(outputs)), outputs, @difference)
      check_slopes(opts[:plain], wide, weights, Enum.zip(places, gradients))
    end

    device = Enum.map(inputs, &Nx.backend_copy(&1, VulkanoBackend))
    args = args.(device, Enum.map(weights, &(&1 |> Nx.as_type(:f32) |> Nx.backend_copy(VulkanoBackend))))
    if opts[:waits] > 0, do: assert(host_steps(Compiler.explain(all(fun, []), args).steps) == [])
    assert host_steps(Compiler.explain(all(fun, places), args).steps) -- List.duplicate(:wait, opts[:waits]) == []

    for {how, compiler} <- ["op by op": Evaluator, compiled: Compiler] do
      {results, calls} = fun |> all(places) |> compile(args, compiler) |> host_calls()
      assert calls == [], "#{how} the host computes #{inspect(calls)}"
      results = flat(results)
      for result <- results, do: assert(%VulkanoBackend{} = result.data)
      compare(how, Enum.map(results, &Nx.backend_copy(&1, Nx.BinaryBackend)), wanted, opts[:roundings] * @rounding)
    end
  end

  # What is known of a definition's numbers Nx computes when it is compiled.
  defp compile(fun, args, compiler) do
    compiled = Nx.Defn.compile(fun, Enum.map(args, &Nx.to_template/1), compiler: compiler)
    fn -> apply(compiled, args) end
  end

  @doc """
  Calls `fun` and returns its result and the functions of `Nx.BinaryBackend` that it called in this process, but for
  those that hand on the bytes of a tensor, such as a number of a definition.
  """
  def host_calls(fun) do
    {:module, _} = Code.ensure_loaded(Nx.BinaryBackend)
    collector = spawn_link(fn -> collect([]) end)
    session = :trace.session_create(:host_calls, collector, [])

    try do
      true = :trace.function(session, {Nx.BinaryBackend, :_, :_}, true, []) > 0
      1 = :trace.process(session, self(), true, [:call, :arity])
      result = fun.()
      1 = :trace.process(session, self(), false, [:call, :arity])
      delivered = :trace.delivered(session, self())

      receive do
        {:trace_delivered, _, ^delivered} -> :ok
      end

      send(collector, {:calls, self()})

      receive do
        {:host_calls, calls} -> {result, Enum.reject(calls, &(&1 in @bytes))}
      end
    after
      :trace.session_destroy(session)
    end
  end

  defp collect(calls) do
    receive do
      {:trace, _pid, :call, {_module, name, _arity}} -> collect([name | calls])
      {:calls, pid} -> send(pid, {:host_calls, Enum.reverse(calls)})
    end
  end

  @doc """
  What the host does in the steps of `Nx.Vulkan.Compiler.explain/3`: `:wait` for each time that it reads a value to go
  on, hooks, calls, and loops and branches that hold such.
  """
  def host_steps(steps), do: Enum.flat_map(steps, &host_step/1)

  defp host_step({:run, %{device: %{waits: waits}}}), do: List.duplicate(:wait, waits)
  defp host_step(step), do: [elem(step, 0)]

  @doc "Calls `fun` with `Nx.BinaryBackend` as the default."
  def on_host(fun), do: Nx.with_default_backend(Nx.BinaryBackend, fun)

  # The results and the gradients, as one function.
  defp all(fun, []), do: fn inputs, _weights -> inputs |> Tuple.to_list() |> fun.() end

  defp all(fun, places) do
    fn inputs, weights -> {fun.(Tuple.to_list(inputs)), gradient(fun, inputs, Tuple.to_list(weights), places)} end
  end

  # The gradient of the weighted sum of all results that are floats.
  defp gradient(fun, inputs, weights, places) do
    chosen = places |> Enum.map(&elem(inputs, &1)) |> List.to_tuple()

    chosen
    |> Nx.Defn.grad(fn chosen ->
      inputs =
        places
        |> Enum.zip(Tuple.to_list(chosen))
        |> Enum.reduce(inputs, fn {place, tensor}, inputs -> put_elem(inputs, place, tensor) end)

      weighted(flat(fun.(Tuple.to_list(inputs))), weights)
    end)
    |> Tuple.to_list()
    |> Enum.map(&real/1)
    |> List.to_tuple()
  end

  # Where complex numbers are on the way, Nx gives real inputs complex gradients.
  defp real(%{type: {:c, _}} = gradient), do: Nx.real(gradient)
  defp real(gradient), do: gradient

  defp weighted(results, weights) do
    results
    |> Enum.filter(&float?/1)
    |> Enum.zip_with(weights, &Nx.sum(Nx.multiply(&1, &2)))
    |> Enum.reduce(&Nx.add/2)
  end

  # Differences of the results along a direction are the gradient's product with it.
  defp check_slopes(plain, inputs, weights, gradients) do
    for {place, gradient} <- gradients do
      input = Enum.at(inputs, place)
      direction = numbers(input.shape, :f64)

      on_host(fn ->
        at = fn step ->
          moved = Nx.add(input, Nx.multiply(direction, Nx.tensor(step, type: :f64)))
          inputs |> List.replace_at(place, moved) |> plain.() |> flat() |> weighted(weights) |> Nx.to_number()
        end

        slope = (at.(@step) - at.(-@step)) / (2 * @step)
        terms = Nx.multiply(gradient, direction)
        scale = terms |> Nx.abs() |> Nx.sum() |> Nx.to_number()
        assert_in_delta slope, Nx.to_number(Nx.sum(terms)), @difference * (1 + scale), "the gradient of input #{place}"
      end)
    end
  end

  defp compare(how, results, wanted, bound) do
    assert length(results) == length(wanted)

    for {result, wanted, i} <- Enum.zip([results, wanted, 0..(length(wanted) - 1)]) do
      where = "result #{i}, #{how}"
      assert result.shape == wanted.shape, where
      assert float?(result) == float?(wanted), where

      if float?(result) do
        {apart, most} = on_host(fn -> {most(Nx.subtract(Nx.as_type(result, :f64), wanted)), most(wanted)} end)
        if apart > bound * most, do: flunk("#{where} is off by #{apart}, where numbers are up to #{most}")
      else
        assert Nx.to_flat_list(result) == Nx.to_flat_list(wanted), where
      end
    end
  end

  # Numbers of f32, for whatever their type is.
  defp weights_of(tensor), do: tensor.shape |> numbers(:f32) |> Nx.as_type(:f64)
  defp widened(tensor), do: if(float?(tensor), do: Nx.as_type(tensor, :f64), else: tensor)
  defp float?(%{type: {class, _}}), do: class in [:f, :bf]
  defp floats(inputs), do: for({tensor, place} <- Enum.with_index(inputs), float?(tensor), do: place)
  defp flat(results), do: Nx.Defn.Composite.flatten_list([results])
end
