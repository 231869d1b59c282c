# What `mix nx_vulkan.record` records: the op table, the programs of the digit classifier, and steps of what is
# measured.
import Nx.Vulkan.Conformance
alias Nx.Vulkan.Conformance.OpTable

# One type of each way to compute: the tests of the backend have them all, and each kernel takes lavapipe 50 ms to
# compile.
recorded = [s: 8, u: 32, s: 64, bf: 16, f: 32, f: 64, c: 64]

# Fixed, so that recording again changes no file.
:rand.seed(:exsss, {1, 2, 3})

unary =
  for {op, low, high, complex?} <- OpTable.unary() do
    inputs =
      for type <- recorded,
          complex? or not match?({:c, _}, type),
          {low, high} = if(match?({:c, _}, type), do: {0.2, 1.5}, else: {low, high}),
          values_between?(type, low, high),
          do: random({9}, type, low, high)

    # Nx.BinaryBackend approximates erf_inv to eight digits.
    units = if op == :erf_inv, do: 2 ** 30, else: 16
    {"unary_#{op}", inputs, fn list -> List.to_tuple(Enum.map(list, &call(op, [&1]))) end, [units: units]}
  end

bits =
  for op <- [:bitwise_not, :count_leading_zeros, :population_count] do
    inputs = for type <- integers(), type in recorded, do: random_bits({9}, type)
    {"unary_#{op}", inputs, fn list -> List.to_tuple(Enum.map(list, &apply(Nx, op, [&1]))) end, []}
  end

binary =
  for {op, types, {l0, l1}, {r0, r1}} <- OpTable.binary() do
    inputs =
      for type <- apply(Nx.Vulkan.Conformance, types, []),
          type in recorded,
          tensor <- [random({3, 4}, type, l0, l1), random({4}, type, r0, r1)],
          do: tensor

    pairs = fn list -> list |> Enum.chunk_every(2) |> Enum.map(fn [a, b] -> apply(Nx, op, [a, b]) end) end
    {"binary_#{op}", inputs, &List.to_tuple(pairs.(&1)), [units: 16]}
  end

casts =
  for from <- recorded do
    {low, high} = if match?({:u, _}, from), do: {0, 1}, else: {-1, 1}
    targets = for {class, _} = to <- recorded, class != :u or low == 0, do: to

    {"cast_#{Nx.Type.to_string(from)}", [random({9}, from, low, high)],
     fn [t] -> List.to_tuple(Enum.map(targets, &Nx.as_type(t, &1))) end, [units: 2]}
  end

small = fn type -> random({3, 4, 5}, type, 0, 3) end

structured =
  [
    {"movement", [random_bits({4, 6}, {:s, 32}), random_bits({2, 3}, {:s, 32}), Nx.tensor(1), Nx.tensor(7)],
     fn [t, window, one, value] ->
       {
         Nx.reshape(Nx.transpose(t), {3, 8}),
         Nx.reverse(t, axes: [1]),
         Nx.slice(t, [one, 2], [2, 3], strides: [1, 2]),
         Nx.put_slice(t, [one, 5], window),
         Nx.pad(t, value, [{1, -1, 0}, {2, 1, 2}]),
         Nx.concatenate([window, Nx.reverse(window)], axis: 1),
         Nx.stack([window, window], axis: 1),
         Nx.broadcast(Nx.reshape(window, {6, 1}), {2, 6, 3}),
         Nx.select(Nx.greater(t, 0), t, Nx.negate(t)),
         Nx.clip(t, -1000, 1000)
       }
     end, []},
    {"indexing", [random_bits({4, 6}, {:s, 32}), Nx.tensor([[0, 1], [3, 5], [0, 1]]), random_bits({3}, {:s, 32})],
     fn [t, indices, updates] ->
       {
         Nx.gather(t, indices),
         Nx.gather(t, Nx.tensor([[2], [0]]), axes: [1]),
         Nx.indexed_add(t, indices, updates),
         Nx.indexed_put(t, Nx.slice(indices, [0, 0], [2, 2]), Nx.slice(updates, [0], [2])),
         Nx.take(t, Nx.tensor([1, 1, 3]), axis: 0)
       }
     end, []},
    {"creation", [],
     fn [] -> {Nx.iota({3, 4}), Nx.iota({2, 5}, axis: 0, type: :f32), Nx.eye({2, 3}, type: :u8), Nx.tensor(2.5)} end,
     []}
  ] ++
    for op <- [:sum, :product, :reduce_max, :reduce_min, :all, :any, :argmax, :argmin] do
      inputs = for type <- [{:u, 8}, {:s, 32}, {:s, 64}, {:f, 32}, {:f, 64}], do: small.(type)

      reduce = fn t ->
        if op in [:argmax, :argmin] do
          [apply(Nx, op, [t, [axis: 1]]), apply(Nx, op, [t, [tie_break: :high]])]
        else
          [apply(Nx, op, [t, [axes: [0, 2]]]), apply(Nx, op, [t, [axes: [1], keep_axes: true]]), apply(Nx, op, [t, []])]
        end
      end

      {"reduce_#{op}", inputs, fn list -> List.to_tuple(Enum.flat_map(list, reduce)) end, [units: 64, absolute: 1.0e-5]}
    end

dots =
  for type <- [{:s, 32}, {:s, 64}, {:f, 32}, {:f, 64}, {:c, 64}] do
    {"dot_#{Nx.Type.to_string(type)}", [random({2, 3, 4}, type, -4, 4), random({2, 4, 5}, type, -4, 4)],
     fn [a, b] -> {Nx.dot(a, [2], [0], b, [1], [0]), Nx.dot(a, [0, 2], b, [0, 1])} end, [units: 64, absolute: 1.0e-4]}
  end

{digits, _bindings} = Code.eval_file("examples/digits/recordings.exs")
{workloads, _bindings} = Code.eval_file("bench/recordings.exs")

# Seeded again, so that what stands above does not count.
:rand.seed(:exsss, {4, 5, 6})

solvers =
  for type <- [{:f, 32}, {:f, 64}, {:c, 64}] do
    a = Nx.add(random({2, 6, 6}, type, -1, 1), Nx.multiply(Nx.eye(6, backend: Nx.BinaryBackend), 6))

    {"solvers_#{Nx.Type.to_string(type)}", [a, random({2, 6, 3}, type, -4, 4)],
     fn [a, b] ->
       {p, l, u} = Nx.LinAlg.lu(a)
       hermitian = Nx.dot(a, [2], [0], Nx.LinAlg.adjoint(a), [1], [0])

       {p, l, u, Nx.LinAlg.solve(a, b), Nx.LinAlg.determinant(a), Nx.LinAlg.cholesky(hermitian),
        Nx.LinAlg.triangular_solve(a, b, lower: false),
        Nx.LinAlg.triangular_solve(a, b, transform_a: :transpose, lower: true)}
     end, [units: 256, absolute: if(type == {:f, 64}, do: 1.0e-8, else: 1.0e-4)]}
  end

# Seeded again for the same reason. Nx.BinaryBackend folds and scatters windows in 32 bits.
:rand.seed(:exsss, {7, 8, 9})
image = fn type -> random({2, 4, 6, 5}, type, -3, 3) end

windows =
  for type <- [{:u, 8}, {:s, 64}, {:f, 32}, {:f, 64}] do
    options = [padding: [{0, 0}, {0, 0}, {1, -1}, {0, 2}], strides: [1, 2, 1, 2], window_dilations: [1, 1, 2, 1]]
    pools = [:window_sum, :window_product, :window_max, :window_min]

    {"windows_#{Nx.Type.to_string(type)}", [image.(type), random({2, 4, 3, 2}, type, -3, 3)],
     fn [t, source] ->
       scatter = [strides: [1, 1, 2, 2], padding: [{0, 0}, {0, 0}, {0, 0}, {0, 0}]]

       List.to_tuple(
         Enum.map(pools, &apply(Nx, &1, [t, {1, 2, 2, 2}, options])) ++
           [
             Nx.window_scatter_max(t, source, 1, {1, 1, 2, 2}, scatter),
             Nx.window_scatter_min(t, source, 0, {1, 1, 2, 2}, scatter)
           ]
       )
     end, [units: 64, absolute: 1.0e-6]}
  end

convolutions =
  for type <- [{:s, 8}, {:f, 32}, {:f, 64}, {:c, 64}] do
    {"conv_#{Nx.Type.to_string(type)}",
     [image.(type), random({4, 2, 2, 3}, type, -3, 3), random({4, 4, 1, 1}, type, -3, 3)],
     fn [t, grouped, point] ->
       {
         Nx.conv(t, grouped, feature_group_size: 2, padding: [{1, 0}, {-1, 2}], strides: [2, 1], input_dilation: [1, 2]),
         Nx.conv(t, Nx.reshape(Nx.slice(Nx.reshape(grouped, {48}), [0], [32]), {4, 4, 2, 1}),
           batch_group_size: 2,
           kernel_dilation: 2,
           output_permutation: [0, 3, 1, 2]
         ),
         Nx.conv(t, point)
       }
     end, [units: 64, absolute: 1.0e-4]}
  end

folds =
  for type <- [{:s, 32}, {:f, 32}, {:f, 64}] do
    {"folds_#{Nx.Type.to_string(type)}", [random({3, 4}, type, -3, 3), random({}, type, 1, 3)],
     fn [t, captured] ->
       fun = fn x, acc -> Nx.select(Nx.greater(x, acc), Nx.subtract(x, captured), Nx.add(acc, x)) end
       {Nx.reduce(t, 1, [axes: [1]], fun), Nx.reduce(t, 0, fun), Nx.window_reduce(t, 1, {2, 2}, [padding: :same], fun)}
     end, [units: 16, absolute: 1.0e-6]}
  end

unary ++
  bits ++ binary ++ casts ++ structured ++ dots ++ digits ++ solvers ++ windows ++ convolutions ++ folds ++ workloads
