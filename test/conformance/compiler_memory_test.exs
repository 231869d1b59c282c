defmodule Nx.Vulkan.Conformance.CompilerMemoryTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Versions, only: [hooked: 2]

  alias Nx.Vulkan.{Compiler, Error, VulkanoBackend}

  @moduletag :device

  # Activations of a layer take 4 MiB.
  @rows 8192
  @units 128
  @layers 6

  setup do
    Nx.default_backend(VulkanoBackend)
    :ok
  end

  defp gradients(x, weights) do
    Nx.Defn.value_and_grad(weights, fn weights ->
      h =
        Enum.reduce(Tuple.to_list(weights), x, fn w, h ->
          a = Nx.dot(h, w)
          Nx.multiply(Nx.erf(a), a)
        end)

      Nx.sum(Nx.multiply(h, h))
    end)
  end

  defp arguments do
    key = Nx.Random.key(3)
    {x, key} = Nx.Random.normal(key, shape: {@rows, @units})
    {weights, _} = Nx.Random.normal(key, 0.0, 0.1, shape: {@layers, @units, @units})
    [x, List.to_tuple(for i <- 0..(@layers - 1), do: weights[i])]
  end

  defp peak(arguments, opts) do
    %{steps: [{:run, %{device: device}}]} = Compiler.explain(&gradients/2, arguments, opts)
    device.peak_bytes
  end

  defp run(arguments, opts), do: Nx.Defn.jit_apply(&gradients/2, arguments, [compiler: Nx.Vulkan] ++ opts)

  test "what a run may take is what it takes, with the same results" do
    arguments = arguments()
    most = peak(arguments, memory: 1_000_000_000_000)
    # Activations that nothing keeps are computed again, those of a layer after the other.
    less = div(most, 3) * 2
    assert peak(arguments, memory: less) <= less
    {loss, gradients} = run(arguments, [])
    {same_loss, same_gradients} = run(arguments, memory: less)
    assert Nx.to_binary(loss) == Nx.to_binary(same_loss)

    for {a, b} <- Enum.zip(Tuple.to_list(gradients), Tuple.to_list(same_gradients)) do
      assert Nx.to_binary(a) == Nx.to_binary(b)
    end
  end

  test "too little is an error that says how much is needed, which is enough then" do
    arguments = arguments()
    error = assert_raise(Error, fn -> run(arguments, memory: 1000) end)
    assert %Error{kind: :out_of_memory, details: %{needed_bytes: needed, budget_bytes: 1000}} = error

    assert Exception.message(error) =~
             "a run takes #{needed} bytes at least besides its arguments, and the option memory"

    assert Exception.message(error) =~ "allows 1000"
    assert Exception.message(error) =~ inspect(__MODULE__)
    assert peak(arguments, memory: needed) == needed
    assert_raise Error, ~r/takes #{needed} bytes/, fn -> run(arguments, memory: needed - 1) end
  end

  # What Axon does: functions inside functions that a library compiles.
  for {name, wrap} <- [
        jit: quote(do: &Nx.Defn.jit(&1, compiler: Nx.Vulkan, memory: 1000)),
        jit_in_jit:
          quote(do: &(&1 |> Nx.Defn.jit(on_conflict: :reuse) |> Nx.Defn.jit(compiler: Nx.Vulkan, memory: 1000))),
        options: quote(do: fn fun -> &Nx.Defn.jit_apply(fun, [&1, &2], compiler: Nx.Vulkan, memory: 1000) end)
      ] do
    test "too little names the function that is meant, and that others have needs of their own: #{name}" do
      error = assert_raise(Error, fn -> apply(unquote(wrap).(&gradients/2), arguments()) end)
      assert Exception.message(error) =~ ", in #{inspect(__MODULE__)}.gradients/2; other functions that get the option"
    end
  end

  if Nx.Vulkan.Versions.donatable?() do
    defp halved(%{s: s}, x), do: {%{s: Nx.add(Nx.multiply(s, 0.5), x)}, Nx.sum(x)}

    test "results that lie in donated memory don't count" do
      x = Nx.iota({1024, 1024}, type: :f32)
      state = fn -> %{s: Nx.add(x, 1)} end
      donated = fn -> %{s: Nx.donatable(state.().s)} end

      needed = fn state ->
        call = fn memory -> Nx.Defn.jit_apply(&halved/2, [state.(), x], compiler: Nx.Vulkan, memory: memory) end
        %{details: %{needed_bytes: bytes}} = assert_raise Error, fn -> call.(1) end
        {%{s: s}, sum} = call.(bytes)
        {bytes, {Nx.to_binary(s), Nx.to_number(sum)}}
      end

      {kept_bytes, kept} = needed.(state)
      {donated_bytes, given} = needed.(donated)
      assert kept == given
      assert kept_bytes >= 4 * 1024 * 1024
      assert kept_bytes - donated_bytes >= 4 * 1024 * 1024 - 4096

      %{steps: [run: %{device: device}]} = Compiler.explain(&halved/2, [donated.(), x])
      assert device.donated_bytes == 4 * 1024 * 1024
      assert device.peak_bytes < 4 * 1024 * 1024 + 4096
      %{steps: [run: %{device: device}]} = Compiler.explain(&halved/2, [state.(), x])
      assert device.donated_bytes == 0
      # With hooks nothing is donated in a call, and so not here.
      hooked = fn state, x -> hooked(halved(state, x), :hook) end
      told = Compiler.explain(hooked, [donated.(), x], hooks: %{hook: fn _ -> :ok end})
      assert [0] == for({:run, %{device: device}} <- told.steps, do: device.donated_bytes)
    end
  end

  defp less(x), do: Nx.subtract(Nx.sum(x), 7919)

  test "too little leaves what was compiled before" do
    kept = fn -> Nx.to_number(Nx.Defn.jit_apply(&less/1, [Nx.iota({3})], compiler: Nx.Vulkan)) end
    assert kept.() == -7916
    {test, id} = {self(), make_ref()}
    forward = fn _event, _measurements, %{name: name}, _config -> send(test, {:compiled, name}) end
    :telemetry.attach(id, [:nx_vulkan, :compiler, :compile, :start], forward, nil)
    assert_raise Error, fn -> run(arguments(), memory: 1000) end
    assert kept.() == -7916
    :telemetry.detach(id)
    name = "#{inspect(__MODULE__)}.less/1"
    refute_received {:compiled, ^name}
  end

  test "what is no number of bytes is refused" do
    for wrong <- [0, -1, 1.5, :little, "1"] do
      assert_raise ArgumentError, ~r/^:memory must be a positive number of bytes, or nil, got: /, fn ->
        run([Nx.iota({2, 2}, type: :f32), {Nx.iota({2, 2}, type: :f32)}], memory: wrong)
      end
    end
  end
end
