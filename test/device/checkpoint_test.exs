defmodule Nx.Vulkan.Device.CheckpointTest do
  use ExUnit.Case, async: true

  import Nx.Defn

  alias Nx.Vulkan.{Compiler, VulkanoBackend}

  @moduletag :device
  @moduletag timeout: 600_000

  # Every way to compute: our compiler, and Nx's evaluator on the device op by op and on the host.
  @ways [
    {VulkanoBackend, [compiler: Nx.Vulkan]},
    {VulkanoBackend, [compiler: Nx.Defn.Evaluator]},
    {Nx.BinaryBackend, [compiler: Nx.Defn.Evaluator]}
  ]

  defp numbers(shape, salt, type \\ :f32) do
    n = Tuple.product(shape)

    Nx.tensor(for(i <- 1..n, do: rem(i * 7919 + salt * 31, 997) / 997 - 0.5), type: type, backend: Nx.BinaryBackend)
    |> Nx.reshape(shape)
  end

  # The leaves of what the functions give for the arguments, in every way; the same bits.
  defp same(plain, checked, args) do
    for {backend, opts} <- @ways do
      args = for arg <- args, do: Nx.Defn.Composite.traverse(arg, &Nx.backend_copy(&1, backend))

      [expected, got] =
        for fun <- [plain, checked] do
          for leaf <- Nx.Defn.Composite.flatten_list([Nx.Defn.jit_apply(fun, args, opts)]) do
            {leaf.type, leaf.shape, leaf.vectorized_axes, Nx.to_binary(leaf)}
          end
        end

      assert got == expected, "#{inspect(backend)}, #{inspect(opts)}"
    end
  end

  defp same_gradients(fun, args) do
    checked = Nx.Vulkan.checkpoint(fun)
    loss = fn fun, args -> args |> then(&apply(fun, Tuple.to_list(&1))) |> weighed() end
    gradients = fn fun -> fn args -> Nx.Defn.value_and_grad(args, &loss.(fun, &1)) end end
    same(gradients.(fun), gradients.(checked), [List.to_tuple(args)])
  end

  # A number that depends on each of all leaves. It has no constant factors: Nx moves those through what it simplifies,
  # but not through a checkpoint.
  defp weighed(container) do
    [container]
    |> Nx.Defn.Composite.flatten_list()
    |> Enum.map(fn leaf -> Nx.sum(Nx.multiply(Nx.sin(leaf), Nx.iota(leaf.shape))) end)
    |> Enum.reduce(&Nx.add/2)
  end

  defn(block(x, {w, b}), do: x + Nx.tanh(Nx.dot(Nx.exp(-x * x), w) + b))

  defp parameters(n, salt \\ 0), do: {numbers({n, n}, salt), numbers({n}, salt + 1)}

  test "values and gradients are those of the function" do
    same_gradients(&block/2, [numbers({3, 8}, 5), parameters(8)])
    same_gradients(&Nx.sin/1, [numbers({4}, 1)])
    same_gradients(fn -> Nx.tensor(2.0) end, [])
    # Several results in a container, some integers, of arguments of which one is none, with numbers between them.
    same_gradients(
      fn %{x: x, i: i}, y -> %{a: Nx.multiply(x, Nx.cos(y)), b: {Nx.take(x, i), Nx.add(i, 1)}} end,
      [%{x: numbers({5}, 3), i: Nx.tensor([1, 4, 1], backend: Nx.BinaryBackend)}, numbers({5}, 4)]
    )

    # What has no gradient gets none: signs of zeros stay what they are.
    same_gradients(fn x, y -> Nx.select(Nx.greater(y, 0), x, Nx.negate(x)) end, [numbers({6}, 1), numbers({6}, 2)])
    same_gradients(fn x, y -> {Nx.negate(x), Nx.multiply(y, 0)} end, [numbers({6}, 1), numbers({6}, 2)])
    # Gradients of narrow types stay narrow.
    same_gradients(fn x -> Nx.exp(Nx.multiply(x, x)) end, [numbers({7}, 1, :bf16)])
    same_gradients(fn x -> Nx.as_type(Nx.exp(Nx.as_type(x, :bf16)), :f32) end, [numbers({7}, 1)])
  end

  test "what the function captured has a gradient" do
    for wrap <- [& &1, &Nx.Vulkan.checkpoint/1] do
      send(self(), fn w, x ->
        h = Nx.sin(w)
        f = wrap.(fn x -> Nx.multiply(Nx.exp(x), Nx.add(h, w)) end)
        Nx.Defn.grad({w, x}, fn {w, x} -> Nx.sum(f.(Nx.multiply(x, w))) end)
      end)

      send(self(), fn w, x ->
        Nx.Defn.grad({w, x}, fn {w, x} ->
          h = Nx.sin(w)
          f = wrap.(fn x -> Nx.multiply(Nx.exp(x), %{a: {h, w}}.a |> Tuple.to_list() |> Enum.reduce(&Nx.add/2)) end)
          Nx.sum(f.(x))
        end)
      end)
    end

    [f1, f2, g1, g2] = for _ <- 1..4, do: receive(do: (fun -> fun))
    args = [numbers({5}, 1), numbers({5}, 2)]
    same(f1, g1, args)
    same(f2, g2, args)
  end

  test "checkpoints in checkpoints and in branches" do
    nested = fn wrap ->
      fn x, {p, q} ->
        inner = wrap.(&block/2)
        wrap.(fn x, q -> x |> inner.(p) |> Nx.sin() |> inner.(q) end).(x, q)
      end
    end

    gradient = fn wrap ->
      fn x, p -> Nx.Defn.value_and_grad({x, p}, fn {x, p} -> Nx.sum(nested.(wrap).(x, p)) end) end
    end

    args = [numbers({3, 8}, 5), {parameters(8), parameters(8, 7)}]
    same(gradient.(& &1), gradient.(&Nx.Vulkan.checkpoint/1), args)
    [plain, checked] = for wrap <- [& &1, &Nx.Vulkan.checkpoint/1], do: &branches(&1, wrap: wrap)
    same(plain, checked, [numbers({5}, 1)])
  end

  defn branches(x, opts \\ []) do
    value_and_grad(x, fn x ->
      y = if Nx.sum(x) > 0, do: wrapped(x, opts), else: wrapped(x * 2, opts)
      Nx.sum(wrapped(y, opts))
    end)
  end

  deftransformp(wrapped(x, opts), do: opts[:wrap].(&Nx.exp(Nx.sin(&1))).(x))

  test "custom gradients, one after the other" do
    # What one of them captured is of the first computation; its expressions would be copied by each.
    clipped = fn x ->
      y = Nx.multiply(x, x)
      Nx.Defn.Kernel.custom_grad(y, [x], fn g -> [Nx.multiply(Nx.clip(g, -0.5, 0.5), Nx.subtract(x, y))] end)
    end

    chain = fn x -> Enum.reduce(1..30, x, fn _, x -> clipped.(x) end) end
    same_gradients(chain, [numbers({9}, 2)])
    same_gradients(fn x -> x |> chain.() |> Nx.Vulkan.checkpoint() |> chain.() end, [numbers({9}, 2)])
  end

  test "gradients of gradients" do
    twice = fn wrap ->
      fn x ->
        f = wrap.(fn x -> Nx.exp(Nx.sin(Nx.multiply(x, x))) end)
        Nx.Defn.grad(x, fn x -> Nx.sum(Nx.sin(Nx.Defn.grad(x, &Nx.sum(f.(&1))))) end)
      end
    end

    same(twice.(& &1), twice.(&Nx.Vulkan.checkpoint/1), [numbers({9}, 2)])
  end

  test "vectorized tensors" do
    gradient = fn wrap ->
      fn x, y ->
        [x, y] = for t <- [x, y], do: Nx.vectorize(t, :rows)
        f = wrap.(fn x, y -> Nx.multiply(Nx.sin(x), Nx.exp(y)) end)
        Nx.Defn.value_and_grad({x, y}, fn {x, y} -> Nx.sum(Nx.cos(f.(x, y))) end)
      end
    end

    same(gradient.(& &1), gradient.(&Nx.Vulkan.checkpoint/1), [numbers({3, 4}, 1), numbers({3, 4}, 2)])
  end

  test "random numbers are drawn again from the same key" do
    dropped = fn wrap ->
      fn key, x ->
        f =
          wrap.(fn key, x ->
            {uniform, key} = Nx.Random.uniform(key, shape: {64})
            {Nx.select(Nx.greater(uniform, 0.5), Nx.exp(x), 0), key}
          end)

        Nx.Defn.value_and_grad(
          x,
          fn x ->
            {y, key} = f.(key, x)
            {z, key} = f.(key, Nx.sin(y))
            {Nx.sum(Nx.multiply(z, z)), key}
          end,
          &elem(&1, 0)
        )
      end
    end

    same(dropped.(& &1), dropped.(&Nx.Vulkan.checkpoint/1), [Nx.Random.key(7), numbers({64}, 2)])
  end

  test "values that are kept" do
    chain = fn wrap ->
      fn x, parameters ->
        Nx.Defn.value_and_grad(parameters, fn parameters ->
          Enum.reduce(parameters |> Tuple.to_list(), x, fn p, x -> wrap.(block(x, p)) end) |> weighed()
        end)
      end
    end

    args = [numbers({3, 8}, 5), {parameters(8), parameters(8, 2), parameters(8, 4)}]
    same(chain.(& &1), chain.(&Nx.Vulkan.checkpoint/1), args)
  end

  # Containers with what has no gradient in them: integers, numbers, constants, and what nothing uses.
  @containers [
    tuple: quote(do: fn x, y -> {Nx.multiply(x, y), Nx.sin(Nx.add(x, y))} end),
    one: quote(do: fn x, y -> {Nx.multiply(Nx.sin(x), y)} end),
    map: quote(do: fn x, y -> %{a: %{b: {Nx.multiply(x, y), {Nx.cos(x)}}}, c: Nx.exp(y)} end),
    mixed: quote(do: fn x, y -> {Nx.multiply(x, y), 2, Nx.tensor(0.5), {Nx.argmax(x), 1.5}, Nx.sin(y)} end),
    unused:
      quote(do: fn x, y -> {Nx.multiply(x, y), Nx.Defn.Kernel.stop_grad(Nx.exp(x)), Nx.iota({5}, type: :f32)} end),
    vectorized: quote(do: fn x, y -> {Nx.multiply(x, y) |> Nx.vectorize(:rows), Nx.vectorize(Nx.sin(y), :rows)} end)
  ]

  # Two floats of what a function above gives.
  defp two(container) do
    leaves = for %Nx.Tensor{} = leaf <- Nx.Defn.Composite.flatten_list([container]), do: Nx.devectorize(leaf)
    floats = for %{type: {:f, _}, shape: {5}} = leaf <- leaves, do: Nx.rename(leaf, [nil])
    {hd(floats), List.last(floats)}
  end

  for {name, fun} <- @containers do
    test "containers that are kept or computed again, one after the other: #{name}" do
      fun = unquote(fun)

      chains = fn values, functions ->
        [
          # Values after values, a single one among them. No value has three uses, whose gradients would add up in
          # another order.
          fn x, y ->
            {a, b} = two(values.(fun.(x, y)))
            {c, d} = two(values.(fun.(Nx.sin(a), b)))
            {e, _} = two(values.(fun.(c, values.(Nx.sin(d)))))
            Nx.add(e, values.(Nx.multiply(c, d)))
          end,
          # The same value twice, what is kept already.
          fn x, y ->
            {a, b} = two(values.(values.(fun.(x, y))))
            {a, c} = values.({a, Nx.multiply(a, b)})
            Nx.add(values.(a), c)
          end,
          # Functions after functions and after values, and in each other.
          fn x, y ->
            {a, b} = two(functions.(fun).(x, y))
            {c, d} = two(functions.(fun).(a, Nx.sin(b)))
            {e, f} = two(values.(fun.(c, d)))
            {g, _} = two(functions.(fn e, f -> functions.(fun).(f, Nx.add(e, a)) end).(e, f))
            {h, _} = two(functions.(fn e, g -> values.(fun.(g, Nx.sin(e))) end).(e, g))
            h
          end
        ]
      end

      args = [numbers({5}, 1), numbers({5}, 2)]

      [chains.(& &1, & &1), chains.(&Nx.Vulkan.checkpoint/1, &Nx.Vulkan.checkpoint/1)]
      |> Enum.zip_with(fn [plain, checked] ->
        loss = fn fun -> fn x, y -> Nx.Defn.value_and_grad({x, y}, fn {x, y} -> weighed(fun.(x, y)) end) end end
        same(loss.(plain), loss.(checked), args)
      end)
    end
  end

  defn loop(x, opts \\ []) do
    value_and_grad(x, fn x ->
      {x, _, _} =
        while {x, y = Nx.sin(x), i = 0}, i < 3 do
          {a, b} = wrapped_values({x * y, Nx.sin(y)}, opts)
          {c, d} = wrapped_values({a + b, a}, opts)
          {c, wrapped_values(d, opts), i + 1}
        end

      Nx.sum(x)
    end)
  end

  deftransformp(wrapped_values(values, opts), do: opts[:wrap].(values))

  test "containers that are kept in a loop" do
    [plain, checked] = for wrap <- [& &1, &Nx.Vulkan.checkpoint/1], do: &loop(&1, wrap: wrap)
    same(plain, checked, [numbers({5}, 1)])
  end

  test "in defn, and outside" do
    assert Nx.to_number(in_defn(2.0)) == Nx.to_number(Nx.exp(2.0))
    x = Nx.tensor([1.0, 2.0], backend: VulkanoBackend)
    assert Nx.to_binary(Nx.Vulkan.checkpoint(&Nx.sin/1).(x)) == Nx.to_binary(Nx.sin(x))
    assert Nx.Vulkan.checkpoint({x, 1}) == {x, 1}
    assert Nx.Vulkan.checkpoint(&wide/13).(x, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13) == x
    too_wide = Function.capture(__MODULE__, :too_wide, 129)
    assert_raise ArgumentError, ~r/128 arguments/, fn -> Nx.Vulkan.checkpoint(too_wide) end
  end

  defn(in_defn(x), do: grad(x, fn x -> Nx.Vulkan.checkpoint(&Nx.exp/1).(x) end))

  defp wide(a, _, _, _, _, _, _, _, _, _, _, _, _), do: a

  test "raise_on: :nan names the op that is computed again" do
    nan = fn x -> Nx.Defn.value_and_grad(x, fn x -> Nx.sum(Nx.Vulkan.checkpoint(&Nx.sqrt(Nx.sin(&1))).(x)) end) end
    x = Nx.tensor([-1.0, 2.0], backend: VulkanoBackend)

    assert_raise Nx.Vulkan.Error, ~r/sqrt/, fn ->
      Nx.Defn.jit_apply(nan, [x], compiler: Nx.Vulkan, raise_on: :nan)
    end
  end

  # An MLP of n blocks: its loss, and all of the gradients.
  defp step(blocks, wrap) do
    fn x, parameters ->
      Nx.Defn.value_and_grad(parameters, fn parameters ->
        layer = fn x, i, k -> x |> Nx.dot(parameters["#{i}#{k}"]) |> Nx.tanh() end
        block = fn x, i -> Nx.add(x, Enum.reduce(1..4, x, &layer.(&2, i, &1))) end
        Enum.reduce(1..blocks, x, fn i, x -> wrap.(&block.(&1, i)).(x) end) |> Nx.sin() |> Nx.sum()
      end)
    end
  end

  defp problem(blocks) do
    parameters = for i <- 1..blocks, k <- 1..4, into: %{}, do: {"#{i}#{k}", numbers({32, 32}, i * 4 + k)}
    args = [numbers({4096, 32}, 0), parameters]
    for arg <- args, do: Nx.Defn.Composite.traverse(arg, &Nx.backend_copy(&1, VulkanoBackend))
  end

  test "the backward pass takes less memory, and no launch but those of the second forward pass" do
    blocks = 8
    args = problem(blocks)

    [plain, checked] =
      for wrap <- [& &1, &Nx.Vulkan.checkpoint/1] do
        assert %{steps: [run: program]} = Compiler.explain(step(blocks, wrap), args)
        program
      end

    assert 2 * checked.device.arena_bytes <= plain.device.arena_bytes
    held = fn program -> program.held |> Enum.map(& &1.size_bytes) |> Enum.sum() end
    assert 2 * held.(checked) <= held.(plain)
    products = &Enum.count(&1.launches, fn launch -> launch.kernel =~ "dot" end)
    assert products.(checked) == products.(plain) + blocks * 4
    assert length(checked.launches) <= length(plain.launches) + blocks * 4

    results =
      for wrap <- [& &1, &Nx.Vulkan.checkpoint/1] do
        leaves = [Nx.Defn.jit_apply(step(blocks, wrap), args, compiler: Nx.Vulkan)]
        leaves |> Nx.Defn.Composite.flatten_list() |> Enum.map(&Nx.to_binary/1)
      end

    assert Enum.uniq(results) |> length() == 1
  end

  # Blocks as transformers have them, less attention.
  defp model(blocks) do
    Enum.reduce(1..blocks, Axon.input("x") |> Axon.dense(32), fn i, x ->
      x
      |> Axon.layer_norm(name: "blocks.#{i}.norm")
      |> Axon.dense(128, activation: :gelu)
      |> Axon.dense(32)
      |> Axon.dropout(rate: 0.1)
      |> Axon.add(x)
    end)
    |> Axon.dense(4)
  end

  test "models of Axon keep what goes into the layers that are named" do
    model = model(6)
    checked = Nx.Vulkan.checkpoint(model, &(&1 =~ ~r/blocks\.\d+\.norm/))
    data = {numbers({4096, 16}, 1), Nx.remainder(Nx.iota({4096, 1}), 4)}
    data = Nx.Defn.Composite.traverse(data, &Nx.backend_copy(&1, VulkanoBackend))
    loss = &Axon.Losses.categorical_cross_entropy(&1, &2, from_logits: true, reduction: :mean, sparse: true)
    [plain, checked] = for model <- [model, checked], do: training(model, loss, data)
    assert plain.bits == checked.bits
    assert checked.program.device.arena_bytes < 0.6 * plain.program.device.arena_bytes
  end

  # The bits of the state before and after each of three steps, and what a step is compiled to.
  defp training(model, loss, data) do
    {init, step} = Axon.Loop.train_step(model, loss, Polaris.Optimizers.adam(learning_rate: 0.01), seed: 3)
    state = Nx.Defn.jit_apply(init, [data, Axon.ModelState.empty()], compiler: Nx.Vulkan)
    states = Enum.scan(1..3, state, fn _, state -> Nx.Defn.jit_apply(step, [data, state], compiler: Nx.Vulkan) end)
    assert %{steps: [run: program]} = Compiler.explain(step, [data, state])
    states = for state <- [state | states], do: leaves(state)
    %{states: states, bits: for(state <- states, do: Enum.map(state, &Nx.to_binary/1)), program: program}
  end

  # Models with layers of all kinds before and after the ones that are named, and names that begin blocks in them.
  defp models do
    x = Axon.input("x", shape: {nil, 6, 4})
    flat = x |> Axon.flatten() |> Axon.dense(8)
    deep = Enum.reduce(1..12, flat, fn _, x -> x |> Axon.dense(8, activation: :tanh) |> Axon.add(x) end)
    twice = Axon.block(fn x -> x |> Axon.dense(8, kernel_initializer: :ones) |> Axon.tanh() end)
    split = fn x -> x |> Axon.split(2) |> Tuple.to_list() end
    {sequence, carry} = Axon.lstm(x, 8, unroll: :static, name: "first")

    pair = fn a, b, _ ->
      %{a: Nx.sin(a), b: {Nx.cos(b), Nx.multiply(a, b)}, i: Nx.iota({3})}
    end

    %{
      # Nodes of Axon are in another order from 33 on. Dense layers have the names that Axon counts.
      many: {Axon.dense(deep, 2), &(&1 in ["dense_3", "dense_9", "dense_13"])},
      few: {flat |> Axon.dense(8, activation: :gelu) |> Axon.dense(8) |> Axon.dense(2), &(&1 =~ "dense")},
      every: {deep |> Axon.layer_norm() |> Axon.dropout(rate: 0.2, seed: 5) |> Axon.dense(2), fn _ -> true end},
      sums: {deep, &(&1 =~ "add")},
      images:
        {x
         |> Axon.reshape({:batch, 6, 4, 1})
         |> Axon.conv(4, kernel_size: 3, padding: :same)
         |> Axon.batch_norm(name: "norm")
         |> Axon.relu(name: "relu")
         |> Axon.max_pool(kernel_size: 2)
         |> Axon.depthwise_conv(2, kernel_size: 2, name: "conv")
         |> Axon.group_norm(2)
         |> Axon.global_avg_pool(name: "pool")
         |> Axon.dense(2), &(&1 in ["norm", "relu", "conv", "pool", "dense_0"])},
      recurrent:
        {sequence
         |> Axon.lstm(carry, 8, unroll: :static, name: "second")
         |> elem(0)
         |> Axon.gru(4, unroll: :static, name: "third")
         |> elem(0)
         |> Axon.flatten()
         |> Axon.dense(2, name: "last"), &(&1 in ["second", "third", "last"])},
      blocks: {twice.(flat) |> twice.() |> Axon.dense(2, name: "last"), &(&1 in ["block_0", "last"])},
      parts: {split.(flat) |> Enum.map(&Axon.dense(&1, 8)) |> Axon.concatenate(name: "cat"), &(&1 == "cat")},
      several:
        {pair
         |> Axon.layer([flat, deep], name: "pair")
         |> then(&Axon.layer(fn p, _ -> elem(p.b, 1) end, [&1], name: "p"))
         |> then(&Axon.container(%{one: &1, other: {deep}})), &(&1 in ["pair", "p"])},
      options:
        {Axon.layer(
           fn a, b, _ -> if is_struct(b, Axon.None), do: Nx.sin(a), else: Nx.add(a, b) end,
           [flat, Axon.optional(Axon.dense(Axon.input("none", optional: true), 8))],
           name: "some"
         )
         |> Axon.or_else(flat, name: "or")
         |> Axon.dense(2), &(&1 in ["some", "or", "dense_2"])},
      embedded:
        {x
         |> Axon.nx(&Nx.as_type(Nx.abs(Nx.multiply(&1, 9)), :u8))
         |> Axon.embedding(10, 4, name: "e")
         |> Axon.flatten()
         |> Axon.bias(name: "b")
         |> Axon.dense(2), &(&1 in ["e", "b"])}
    }
  end

  for name <- [:many, :few, :every, :sums, :images, :recurrent, :blocks, :parts, :several, :options, :embedded] do
    test "models have the parameters, results and gradients that they have anyway: #{name}" do
      {model, first?} = models()[unquote(name)]
      data = {%{"x" => numbers({3, 6, 4}, 1)}, Nx.tensor(0.0, backend: Nx.BinaryBackend)}
      data = Nx.Defn.Composite.traverse(data, &Nx.backend_copy(&1, VulkanoBackend))
      checked = Nx.Vulkan.checkpoint(model, first?)
      loss = fn _, prediction -> weighed(prediction) end
      plain = training(model, loss, data)
      twice = Nx.Vulkan.checkpoint(checked, first?)

      for checked <- [training(checked, loss, data), training(twice, loss, data)] do
        # What is computed again waits for gradients.
        assert checked.program.ops[:after] > 0
        assert hd(checked.bits) == hd(plain.bits), "the parameters at the beginning"

        if unquote(name) == :recurrent do
          # Gradients of what each step of the sequence reads add up in another order.
          for {one, other} <- Enum.zip(List.flatten(plain.states), List.flatten(checked.states)) do
            assert Nx.to_number(Nx.all_close(one, other, atol: 1.0e-6, rtol: 1.0e-5)) == 1
          end
        else
          assert checked.bits == plain.bits
        end
      end
    end
  end

  test "a model's layers are told where none begins a block" do
    {model, _} = models().few

    assert_raise ArgumentError, ~r/none of the names "x", "flatten_0", "dense_0", "dense_1",/, fn ->
      Nx.Vulkan.checkpoint(model, &(&1 == "nrom"))
    end

    assert_raise ArgumentError, ~r/expected a model of Axon, got: 5/, fn -> Nx.Vulkan.checkpoint(5, & &1) end

    assert_raise ArgumentError, ~r/takes the name of a layer, got: "norm"/, fn ->
      Nx.Vulkan.checkpoint(model, "norm")
    end

    # A layer that takes the model's input begins a block, of which nothing is before it.
    assert Nx.Vulkan.checkpoint(model, &(&1 == "flatten_0")).nodes |> Map.keys() == Map.keys(model.nodes)
  end

  test "a container that is kept can still be popped" do
    {model, first?} = models().parts
    {_, [plain]} = Axon.pop_node(model)
    {_, [checked]} = model |> Nx.Vulkan.checkpoint(first?) |> Axon.pop_node()
    assert {_, {%Axon{}, %Axon{}}} = Axon.pop_node(plain)
    assert {_, {%Axon{}, %Axon{}}} = Axon.pop_node(checked)
  end

  defp leaves(state), do: Nx.Defn.Composite.flatten_list([state.loss, state.model_state.data])
end
