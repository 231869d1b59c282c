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

  test "in defn, and outside" do
    assert Nx.to_number(in_defn(2.0)) == Nx.to_number(Nx.exp(2.0))
    x = Nx.tensor([1.0, 2.0], backend: VulkanoBackend)
    assert Nx.to_binary(Nx.Vulkan.checkpoint(&Nx.sin/1).(x)) == Nx.to_binary(Nx.sin(x))
    assert Nx.Vulkan.checkpoint({x, 1}) == {x, 1}
    assert_raise ArgumentError, ~r/12 arguments/, fn -> Nx.Vulkan.checkpoint(&wide/13) end
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

    train_step = &Axon.Loop.train_step(&1, loss, Polaris.Optimizers.adam(learning_rate: 0.01), seed: 3)
    # One for both: Axon's numbers depend on the order of its nodes' numbers.
    {init, _step} = train_step.(model)
    state = Nx.Defn.jit_apply(init, [data, Axon.ModelState.empty()], compiler: Nx.Vulkan)

    [{plain, states}, {checked, others}] =
      for model <- [model, checked] do
        {_init, step} = train_step.(model)
        assert %{steps: [run: program]} = Compiler.explain(step, [data, state])

        {program,
         Enum.scan(1..3, state, fn _, state -> Nx.Defn.jit_apply(step, [data, state], compiler: Nx.Vulkan) end)}
      end

    bits = fn states -> for state <- states, do: state |> leaves() |> Enum.map(&Nx.to_binary/1) end
    assert bits.(states) == bits.(others)
    assert checked.device.arena_bytes < 0.6 * plain.device.arena_bytes
  end

  defp leaves(state), do: Nx.Defn.Composite.flatten_list([state.loss, state.model_state.data])
end
