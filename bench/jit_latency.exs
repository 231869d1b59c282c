# Measures compiled numerical definitions from Elixir: a tiny call, training steps, loops, a gradient. Prints a Markdown table.
#
#     MIX_ENV=prod mix run bench/jit_latency.exs [ROWS ...]
#
# ROWS are parts of the names of the rows to measure, all by default. The rows of Scholar need its package (MIX_ENV=test).
# bench/peers/jit.py measures the same with JAX, torch_graphs.py with torch.

Code.require_file("models.exs", __DIR__)
Code.require_file("workloads.exs", __DIR__)

defmodule JitLatency do
  @moduledoc """
  Medians over batches of calls. "pipelined" calls follow one another and an element of the last result is read; "synchronous" ones read each.
  "synchronous" in the table is the median of single calls on an idle device until an element of the result is read, "host" until they return.
  """

  alias Nx.Vulkan.{NativeV, VulkanoBackend}

  @batches 7
  # A batch takes about this long, in microseconds.
  @batch_us 300_000
  # Calls on an idle device: so many, or what fits into this time.
  @alone_calls 101
  @alone_us 200_000

  def main(rows) do
    Nx.default_backend(VulkanoBackend)
    Nx.Defn.default_options(compiler: Nx.Vulkan)
    {:ok, info} = NativeV.device_info()

    IO.puts("""
    #{info.name}, #{info.driver}; Elixir #{System.version()}, OTP #{System.otp_release()}, Nx #{Application.spec(:nx, :vsn)}

    | | first call | median | synchronous | host | submissions, dispatches, allocations a call |
    |---|---:|---:|---:|---:|---:|\
    """)

    wanted? = fn name -> rows == [] or Enum.any?(rows, &(name =~ &1)) end
    for {name, setup} <- rows(), wanted?.(name), row = setup.(), do: row(name, row)
  end

  defp rows do
    [
      {"tiny call, synchronous", fn -> {vector(16), &Models.tiny/1, & &1, :each} end},
      {"tiny call, pipelined", fn -> {vector(16), &Models.tiny/1, & &1, :last} end},
      {"1,000 tiny calls one after the other, the last read", fn -> {vector(16), &thousand_calls/1, & &1, :each} end},
      {"value_and_grad of eight schools, pipelined",
       fn -> {vector(10), &Workloads.eight_schools/1, &elem(&1, 1), :last} end},
      {"value_and_grad of eight schools, synchronous",
       fn -> {vector(10), &Workloads.eight_schools/1, &elem(&1, 1), :each} end},
      {"while of 1,000 steps of 16 f32", fn -> {vector(16), &Models.thousand/1, & &1, :each} end},
      {"MLP step 784-512-256-10, batch 128, Adam", fn -> mlp([784, 512, 256, 10], 128) end},
      {"MLP step 784-2048-2048-10, batch 1024, Adam", fn -> mlp([784, 2048, 2048, 10], 1024) end},
      {"CNN step, 2 conv, 2 pool, 2 dense, batch 128, Adam", fn -> cnn(128) end},
      {"transformer block and its gradients, 8 x 128 x 256, 4 heads", fn -> transformer(8, 128, 256) end},
      {"value_and_grad of regimes, 200 returns, pipelined", fn -> regime(:last) end},
      {"value_and_grad of regimes, 200 returns, synchronous", fn -> regime(:each) end},
      {"logistic regression of 1,000 x 32 by gradient descent in a while", fn -> regression(1_000, 32) end},
      {"logistic regression of 100,000 x 32 by gradient descent in a while", fn -> regression(100_000, 32) end},
      {"k-means, 20 steps of 20,000 x 16, 8 centres", fn -> k_means(20_000, 16, 8) end},
      {"k-means of Scholar, at most 20 steps of 2,000 x 16, 8 centres", fn -> scholar(&scholar_k_means/0) end},
      {"PCA of Scholar, 2,000 x 32 to 8", fn -> scholar(&scholar_pca/0) end},
      {"softmax of rows, 4096 x 4096", fn -> {uniform({4096, 4096}), &Models.softmax/1, & &1, :last} end},
      {"layer norm of rows, 4096 x 4096", fn -> {uniform({4096, 4096}), &Models.layer_norm/1, & &1, :last} end},
      {"softmax of rows, 16384 x 16384", fn -> same(uniform({16_384, 16_384}), &Models.softmax/1) end},
      {"x + 1, 8192 x 8192", fn -> same(uniform({8192, 8192}), &Nx.add(&1, 1)) end},
      {"tanh(exp(x * 0.5 + 1) * x - 0.1), 8192 x 8192", fn -> same(uniform({8192, 8192}), &Models.chain/1) end}
    ]
  end

  defp thousand_calls(x), do: Enum.reduce(1..1000, x, fn _, x -> Models.tiny(x) end)

  # Each call reads the same argument. The result before is given back, as it is in JAX and torch: the garbage collector, which does not see
  # how large it is, would leave it.
  defp same(x, step) do
    jitted = Nx.Defn.jit(step)

    step = fn x ->
      result = jitted.(x)
      with %Nx.Tensor{} = previous <- Process.put(__MODULE__, result), do: Nx.backend_deallocate(previous)
      result
    end

    {x, step, fn _ -> x end, :last}
  end

  defp vector(n), do: Nx.divide(Nx.iota({n}, type: :f32), n * 10)

  defp uniform(shape, scale \\ 1.0) do
    {values, _} = Nx.Random.uniform(Nx.Random.key(Nx.size(shape)), -scale, scale, shape: shape)
    Nx.backend_copy(values, VulkanoBackend)
  end

  defp labels(batch) do
    Nx.equal(Nx.new_axis(Nx.remainder(Nx.iota({batch}), 10), 1), Nx.iota({1, 10})) |> Nx.as_type(:f32)
  end

  defp mlp(sizes, batch) do
    parameters =
      sizes
      |> Enum.chunk_every(2, 1, :discard)
      |> Enum.flat_map(fn [n, m] -> [uniform({n, m}, :math.sqrt(6 / (n + m))), Nx.broadcast(0.0, {m})] end)

    images = uniform({batch, hd(sizes)})
    labels = labels(batch)
    train(parameters, fn state -> Models.mlp_step(state, images, labels) end)
  end

  defp cnn(batch) do
    shapes = [{32, 1, 3, 3}, {32}, {64, 32, 3, 3}, {64}, {3136, 128}, {128}, {128, 10}, {10}]
    images = uniform({batch, 1, 28, 28})
    labels = labels(batch)
    train(Enum.map(shapes, &uniform(&1, 0.05)), fn state -> Models.cnn_step(state, images, labels) end)
  end

  defp transformer(batch, length, d) do
    parameters = d |> Workloads.block_shapes() |> Enum.map(&uniform(&1, 1 / :math.sqrt(d))) |> List.to_tuple()
    x = uniform({batch, length, d})
    {parameters, fn parameters -> Workloads.block_step(parameters, x) end, &elem(&1, 1), :last}
  end

  defp regime(read) do
    returns = Workloads.returns(200, :f32)
    {Workloads.regime_point(:f32), &Workloads.regime(&1, returns), &elem(&1, 1), read}
  end

  defp regression(n, features) do
    x = uniform({n, features})
    truth = Nx.sin(Nx.iota({features}))
    y = Nx.greater(Nx.dot(x, truth), Nx.multiply(Nx.sin(Nx.iota({n})), 0.7)) |> Nx.as_type(:f32)
    {x, fn x -> Workloads.regression(x, y) end, fn _ -> x end, :each}
  end

  defp k_means(n, features, k) do
    x = uniform({n, features})
    {x[0..(k - 1)], fn centres -> {Workloads.k_means(x, centres), centres} end, &elem(&1, 1), :each}
  end

  # Scholar is there where its package is.
  defp scholar(setup) do
    if Code.ensure_loaded?(Scholar.Cluster.KMeans) and Code.ensure_loaded?(Scholar.Decomposition.PCA), do: setup.()
  end

  defp scholar_k_means do
    x = uniform({2_000, 16})
    opts = [num_clusters: 8, num_runs: 1, max_iterations: 20, init: :random, key: Nx.Random.key(1)]
    {x, fn x -> apply(Scholar.Cluster.KMeans, :fit, [x, opts]).clusters end, fn _ -> x end, :each}
  end

  defp scholar_pca do
    x = uniform({2_000, 32})
    {x, fn x -> apply(Scholar.Decomposition.PCA, :fit, [x, [num_components: 8]]).components end, fn _ -> x end, :each}
  end

  defp train(parameters, step) do
    zeros = Enum.map(parameters, &Nx.broadcast(0.0, &1))
    [parameters, zeros] = Enum.map([parameters, zeros], &List.to_tuple/1)
    {{parameters, zeros, zeros, Nx.tensor(0.0)}, step, &elem(&1, 1), :last}
  end

  # `step` maps an argument to a result and `next` that to the next argument.
  defp row(name, {argument, step, next, read}) do
    {first_us, result} = :timer.tc(fn -> tap(step.(argument), &wait/1) end)
    argument = next.(result)
    argument = run(argument, step, next, read, 2)
    {once_us, argument} = :timer.tc(fn -> run(argument, step, next, read, 2) end)
    calls = max(div(@batch_us * 2, max(once_us, 1)), 1) |> min(20_000)
    # The pool has what calls in flight need after one batch.
    argument = run(argument, step, next, read, calls)
    before = NativeV.device_stats()

    {times, argument} =
      Enum.map_reduce(1..@batches, argument, fn _, argument ->
        {us, argument} = :timer.tc(fn -> run(argument, step, next, read, calls) end)
        {us / calls, argument}
      end)

    later = NativeV.device_stats()
    each = fn key -> :erlang.float_to_binary((later[key] - before[key]) / (calls * @batches), decimals: 2) end
    counts = Enum.map_join([:submissions, :dispatches, :allocations], ", ", each)
    {host, synchronous} = alone(argument, step)
    times = Enum.map_join([first_us, median(times), synchronous, host], " | ", &time/1)
    IO.puts("| #{name} | #{times} | #{counts} |")
  end

  # Medians until a call on an idle device returns, which is before the device has run it, and until it has.
  defp alone(argument, step) do
    stop = now() + @alone_us

    {hosts, waits} =
      1..@alone_calls
      |> Enum.reduce_while([], fn _, times ->
        {if(now() < stop, do: :cont, else: :halt), [once(argument, step) | times]}
      end)
      |> Enum.unzip()

    {median(hosts), median(waits)}
  end

  defp once(argument, step) do
    start = now()
    result = step.(argument)
    returned = now()
    wait_for_one(result)
    {returned - start, now() - start}
  end

  defp now, do: System.monotonic_time(:nanosecond) / 1000

  defp median(times), do: times |> Enum.sort() |> Enum.at(div(length(times), 2))

  defp run(argument, step, next, read, calls) do
    last =
      Enum.reduce(1..calls, argument, fn _, argument ->
        result = step.(argument)
        if read == :each, do: wait(result)
        next.(result)
      end)

    if read == :last, do: wait_for_one(last)
    last
  end

  defp wait(result), do: result |> first() |> Nx.backend_copy(Nx.BinaryBackend)

  # Copying all of a large result to the host would take longer than the calls.
  defp wait_for_one(result), do: result |> first() |> Nx.to_binary(limit: 1)

  defp first(result), do: [result] |> Nx.Defn.Composite.flatten_list() |> hd()

  defp time(us) when us < 1000, do: "#{:erlang.float_to_binary(us / 1.0, decimals: 1)} us"
  defp time(us), do: "#{:erlang.float_to_binary(us / 1.0e3, decimals: 2)} ms"
end

JitLatency.main(System.argv())
