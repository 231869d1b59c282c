# The programs of `native/nx_vulkan_engine/examples/digits`, as `mix nx_vulkan.record` takes them: a step of the
# training from its initial state on the first batch, and what the network sees in the test images.
Code.require_file("data.exs", __DIR__)
Code.require_file("network.exs", __DIR__)

alias Digits.{Data, Network}

Nx.with_default_backend(Nx.BinaryBackend, fn ->
  {{images, labels}, {test_images, _labels}} = Data.split(1437, 42)
  {parameters, _means, _squares, _t} = state = Network.init(Nx.Random.key(42))

  step = fn list ->
    {state, [images, labels]} = Enum.split(list, 13)
    [parameters, means, squares, [t]] = Enum.chunk_every(state, 4)
    [parameters, means, squares] = Enum.map([parameters, means, squares], &List.to_tuple/1)
    arguments = [{parameters, means, squares, t}, images, labels]
    {loss, state} = Nx.Defn.jit_apply(&Network.step/3, arguments, compiler: Nx.Defn.Evaluator)
    List.to_tuple(Nx.Defn.Composite.flatten_list([state, loss]))
  end

  classify = fn [w1, b1, w2, b2, images] -> Network.classify({w1, b1, w2, b2}, images) end

  [
    # Sums of 64 terms that cancel: the units count from values much larger than the outputs.
    {"digits_step", Nx.Defn.Composite.flatten_list([state]) ++ [images[0..63], labels[0..63]], step,
     units: 256, absolute: 1.0e-5},
    {"digits_classify", Tuple.to_list(parameters) ++ [test_images], classify, []}
  ]
end)
