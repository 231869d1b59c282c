defmodule Nx.Vulkan.Conformance.CompilerMemoryTest do
  use ExUnit.Case, async: true

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
