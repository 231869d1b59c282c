# Measures compiled numerical definitions from Elixir: a tiny call, training steps, loops, a gradient. Prints a Markdown
# table.
#
#     MIX_ENV=prod mix run bench/jit_latency.exs [ROWS ...]
#
# ROWS are parts of the names of the rows to measure, all by default. The rows of Scholar need its package
# (MIX_ENV=test). bench/peers/jit.py measures the same with JAX, torch_graphs.py with torch.

Code.require_file("measure.exs", __DIR__)
Code.require_file("models.exs", __DIR__)
Code.require_file("workloads.exs", __DIR__)

defmodule JitLatency do
  @moduledoc false

  alias Nx.Vulkan.VulkanoBackend

  def main(wanted), do: Measure.table(rows(), wanted)

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
      {"softmax of rows, 16384 x 16384", fn -> Measure.same(uniform({16_384, 16_384}), &Models.softmax/1) end},
      {"Nx.Random.uniform, 4096 x 4096", fn -> random(&Nx.Random.uniform_split(&1, 0.0, 1.0, shape: {4096, 4096})) end},
      {"Nx.Random.normal, 4096 x 4096", fn -> random(&Nx.Random.normal_split(&1, 0.0, 1.0, shape: {4096, 4096})) end},
      {"x + 1, 8192 x 8192", fn -> Measure.same(uniform({8192, 8192}), &Nx.add(&1, 1)) end},
      {"tanh(exp(x * 0.5 + 1) * x - 0.1), 8192 x 8192", fn -> Measure.same(uniform({8192, 8192}), &Models.chain/1) end}
    ]
  end

  defp thousand_calls(x), do: Enum.reduce(1..1000, x, fn _, x -> Models.tiny(x) end)

  defp vector(n), do: Nx.divide(Nx.iota({n}, type: :f32), n * 10)

  defp uniform(shape, scale \\ 1.0) do
    {values, _} = Nx.Random.uniform(Nx.Random.key(Nx.size(shape)), -scale, scale, shape: shape)
    Nx.backend_copy(values, VulkanoBackend)
  end

  # One key, since calls that follow one another would otherwise wait for the split of it.
  defp random(draw) do
    key = Nx.backend_copy(Nx.Random.key(1), VulkanoBackend)
    {key, fn key -> {draw.(key), key} end, &elem(&1, 1), :last}
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
end

JitLatency.main(System.argv())
