# Neighbours, distances and groups of Scholar as it is, beside those of scikit-learn (bench/peers/neighbours.py).
#
#     MIX_ENV=test mix run bench/neighbours.exs [small] [ROWS ...]
#
# ROWS are parts of the names of the rows to measure, all by default; `small` takes sizes for a CPU device. "first call"
# has tracing and compilation, "a call" is the median of five (or of as many as fit into 20 s) with the last result
# read, "GB" what a run takes of memory at most.
defmodule Neighbours do
  @moduledoc false

  alias Scholar.Cluster.{DBSCAN, KMeans}
  alias Scholar.Manifold.TSNE
  alias Scholar.Metrics.Distance
  alias Scholar.Neighbors.{BruteKNN, KDTree, KNNClassifier, NNDescent, RandomProjectionForest}

  @calls 5
  @most_us 20_000_000

  def main(arguments) do
    {options, wanted} = Enum.split_with(arguments, &(&1 == "small"))
    Nx.default_backend(Nx.Vulkan.VulkanoBackend)
    IO.puts("#{Nx.Vulkan.device_name()}\n\n| | first call | a call | GB |\n|---|---:|---:|---:|")

    for {name, setup} <- rows(if(options == [], do: 1, else: 25)),
        wanted == [] or Enum.any?(wanted, &(name =~ &1)),
        do: row(name, setup)
  end

  # Sizes of rows are a 25th in `small`.
  defp rows(part) do
    n = &div(&1, part)
    tsne = &[num_iters: 300, perplexity: 30, init: :random, key: key(&1)]
    knn = &BruteKNN.predict(BruteKNN.fit(&1, [num_neighbors: 10] ++ &3), &2)

    [
      {"t-SNE 5k x 50, 300 steps", fn -> {&TSNE.fit(&1, tsne.(&1)), [blobs(n.(5000), 50)]} end},
      {"k-NN 50k x 64, 5k queries", fn -> {&knn.(&1, &2, []), [blobs(n.(50_000), 64), blobs(n.(5000), 64)]} end},
      {"k-NN 50k x 64, all", fn -> {&knn.(&1, &1, []), [blobs(n.(50_000), 64)]} end},
      {"k-NN 50k x 64, all, in batches of 2k",
       fn -> {&knn.(&1, &1, batch_size: n.(2000)), [blobs(n.(50_000), 64)]} end},
      {"k-NN classifier 50k x 64, 5k queries", fn -> classifier(n.(50_000), n.(5000)) end},
      {"nearest of 50k x 64 for 5k", fn -> {&nearest/2, [blobs(n.(50_000), 64), blobs(n.(5000), 64)]} end},
      {"DBSCAN 10k x 2", fn -> {&DBSCAN.fit(&1, eps: 0.1, min_samples: 5), [blobs(n.(10_000), 2)]} end},
      {"DBSCAN 50k x 2", fn -> {&DBSCAN.fit(&1, eps: 0.03, min_samples: 5), [blobs(n.(50_000), 2)]} end},
      {"KD tree 20k x 3, 2k queries", fn -> {&tree/2, [blobs(n.(20_000), 3), blobs(n.(2000), 3)]} end},
      {"projection forest 20k x 64, all", fn -> {&forest/1, [blobs(n.(20_000), 64)]} end},
      {"NN descent 1k x 64", fn -> {&NNDescent.fit(&1, num_neighbors: 10, key: key(&1)), [blobs(n.(1000), 64)]} end},
      {"k-means 100k x 32, 16 clusters",
       fn -> {&KMeans.fit(&1, num_clusters: 16, num_runs: 1, key: key(&1)), [blobs(n.(100_000), 32)]} end}
    ]
  end

  defp nearest(data, queries), do: Nx.argmin(Distance.pairwise_squared_euclidean(queries, data), axis: 1)

  defp tree(data, queries), do: KDTree.predict(KDTree.fit(data, num_neighbors: 10), queries)

  # A key of the function's own: what it closes over would be copied.
  defp key(_data), do: Nx.Random.key(42)

  defp forest(data) do
    forest = RandomProjectionForest.fit(data, num_neighbors: 10, num_trees: 8, key: key(data))
    RandomProjectionForest.predict(forest, data)
  end

  defp classifier(count, queries) do
    labels = Nx.remainder(Nx.iota({count}), 10)
    fit = &KNNClassifier.fit(&1, &2, num_classes: 10, num_neighbors: 5)
    {&KNNClassifier.predict(fit.(&1, &3), &2), [blobs(count, 64), blobs(queries, 64), labels]}
  end

  # Groups of normal numbers around 20 centres.
  defp blobs(count, width) do
    blobs = fn ->
      {centres, key} = Nx.Random.uniform(Nx.Random.key(width), -4.0, 4.0, shape: {20, width})
      {points, _} = Nx.Random.normal(key, 0.0, 0.5, shape: {count, width})
      Nx.add(points, Nx.take(centres, Nx.remainder(Nx.iota({count}), 20)))
    end

    Nx.Defn.jit(blobs, compiler: Nx.Vulkan).()
  end

  defp row(name, setup) do
    {fun, arguments} = setup.()
    call = Nx.Defn.jit(fun, compiler: Nx.Vulkan)

    run = fn ->
      results = Nx.Defn.Composite.flatten_list([apply(call, arguments)])
      Enum.each(results, &Nx.to_binary(&1, limit: 1))
      Enum.each(results, &Nx.backend_deallocate/1)
    end

    {first_us, _} = :timer.tc(run)
    {second_us, _} = :timer.tc(run)
    calls = min(@calls, max(div(@most_us, max(second_us, 1)), 1))
    times = for _ <- 1..calls, do: elem(:timer.tc(run), 0)
    median = times |> Enum.sort() |> Enum.at(div(calls, 2))
    IO.puts("| #{name} | #{number(first_us / 1.0e6)} s | #{number(median / 1.0e3)} ms | #{peak(fun, arguments)} |")
  rescue
    error in [Nx.Vulkan.Error] -> IO.puts("| #{name} | #{error.kind} | | |")
  end

  defp peak(fun, arguments) do
    steps = Nx.Vulkan.Compiler.explain(fun, arguments).steps
    bytes = for {:run, run} <- steps, do: run.device.peak_bytes
    number(Enum.max(bytes, fn -> 0 end) / 1.0e9)
  end

  defp number(value), do: :erlang.float_to_binary(value / 1, decimals: 2)
end

Neighbours.main(System.argv())
