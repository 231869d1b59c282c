# Steps of what bench/jit_latency.exs measures, in small, for `mix nx_vulkan.record`.
import Nx.Vulkan.Conformance
Code.require_file("models.exs", __DIR__)
Code.require_file("workloads.exs", __DIR__)

:rand.seed(:exsss, {10, 11, 12})
f32 = fn shape -> random(shape, {:f, 32}, -1, 1) end

steps =
  [
    {"transformer_block", [f32.({2, 6, 8}) | Enum.map(Workloads.block_shapes(8), f32)],
     fn [x | parameters] -> Workloads.block_step(List.to_tuple(parameters), x) end, [units: 64, absolute: 1.0e-4]},
    {"regression_step", [f32.({40, 5}), f32.({5}), f32.({40})],
     fn [x, w, y] -> Nx.divide(Nx.dot(Nx.subtract(Nx.sigmoid(Nx.dot(x, w)), y), x), 40) end,
     [units: 64, absolute: 1.0e-5]},
    {"k_means_step", [f32.({60, 3}), f32.({4, 3})], fn [x, centres] -> Workloads.lloyd(x, centres) end,
     [units: 64, absolute: 1.0e-5]},
    {"pca_variances", [f32.({30, 6})],
     fn [x] ->
       {_, s, _} = Nx.LinAlg.svd(Nx.subtract(x, Nx.mean(x, axes: [0])), full_matrices?: false)
       Nx.divide(Nx.multiply(s, s), 29)
     end, [units: 256, absolute: 1.0e-4]},
    {"eight_schools_gradient", [f32.({10})], fn [q] -> Workloads.eight_schools(q) end, [units: 64, absolute: 1.0e-4]},
    {"regime_gradient", [Workloads.regime_point(:f64), Workloads.returns(40, :f64)],
     fn [q, r] -> Workloads.regime(q, r) end, [units: 4096, absolute: 1.0e-7]}
  ]

# Seeded again, so that what stands above does not count.
:rand.seed(:exsss, {13, 14, 15})

# What a step of Adam takes: the parameters three times and its number, then images and labels.
train = fn step, parameters, images, classes ->
  state =
    Enum.concat([parameters, Enum.map(parameters, &Nx.multiply(&1, 0.1)), Enum.map(parameters, &Nx.multiply(&1, &1))])

  labels =
    Nx.equal(Nx.iota({Nx.axis_size(images, 0), 1}) |> Nx.remainder(classes), Nx.iota({1, classes})) |> Nx.as_type(:f32)

  count = length(parameters)

  run = fn inputs ->
    {state, [t, images, labels]} = Enum.split(inputs, 3 * count)
    [p, m, s] = state |> Enum.chunk_every(count) |> Enum.map(&List.to_tuple/1)
    step.({p, m, s, t}, images, labels)
  end

  {state ++ [Nx.tensor(2.0), images, labels], run, [units: 256, absolute: 1.0e-5, compiled: true]}
end

dense = fn sizes, batch ->
  shapes = sizes |> Enum.chunk_every(2, 1, :discard) |> Enum.flat_map(fn [n, m] -> [{n, m}, {m}] end)
  train.(&Models.mlp_step/3, Enum.map(shapes, f32), f32.({batch, hd(sizes)}), List.last(sizes))
end

convolutional =
  train.(
    &Models.cnn_step/3,
    Enum.map([{3, 1, 3, 3}, {3}, {5, 3, 3, 3}, {5}, {20, 7}, {7}, {7, 4}, {4}], f32),
    f32.({6, 1, 8, 8}),
    4
  )

{mlp_small, mlp_small_step, opts} = dense.([14, 10, 6, 5], 8)
{mlp_large, mlp_large_step, _} = dense.([18, 24, 24, 5], 12)
{cnn, cnn_step, _} = convolutional

wholes = [
  {"tiny_call", [f32.({16})], fn [x] -> Models.tiny(x) end, [compiled: true]},
  {"while_of_1000_steps", [f32.({16})], fn [x] -> Models.thousand(x) end, [units: 4096, compiled: true]},
  {"mlp_small_step", mlp_small, mlp_small_step, opts},
  {"mlp_large_step", mlp_large, mlp_large_step, opts},
  {"cnn_step", cnn, cnn_step, opts},
  {"k_means", [f32.({60, 3}), f32.({4, 3})], fn [x, centres] -> Workloads.k_means(x, centres) end,
   [units: 64, absolute: 1.0e-5, compiled: true]},
  {"logistic_regression", [f32.({40, 5}), Nx.remainder(Nx.iota({40}), 2) |> Nx.as_type(:f32)],
   fn [x, y] -> Workloads.regression(x, y) end, [units: 256, absolute: 1.0e-4, compiled: true]}
]

steps ++ wholes
