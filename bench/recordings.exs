# Steps of what bench/jit_latency.exs measures, in small, for `mix nx_vulkan.record`.
import Nx.Vulkan.Conformance
Code.require_file("workloads.exs", __DIR__)

:rand.seed(:exsss, {10, 11, 12})
f32 = fn shape -> random(shape, {:f, 32}, -1, 1) end

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
