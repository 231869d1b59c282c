defmodule Nx.Vulkan.Conformance.TrainingTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance
  alias Nx.Vulkan.Training

  @moduletag :device
  @moduletag timeout: 600_000

  test "a training step of a classifier" do
    {parameters, images, labels} = Training.problem(8, 16, 12, 5)

    assert_same(Training.flatten(parameters) ++ [images, labels], &Training.step/6,
      ulp: 64,
      absolute: 1.0e-6
    )
  end

  test "training lowers the loss as on Nx.BinaryBackend" do
    {parameters, images, labels} = Training.problem(8, 16, 12, 5)
    inputs = Training.flatten(parameters) ++ [images, labels]
    [expected] = on(Nx.BinaryBackend, inputs, &Training.losses(&1, &2, &3, &4, &5, &6, 20))
    [actual] = on(Nx.Vulkan.VulkanoBackend, inputs, &Training.losses(&1, &2, &3, &4, &5, &6, 20))
    assert_close(Nx.backend_copy(actual, Nx.BinaryBackend), expected, absolute: 1.0e-3)
    assert Nx.to_number(expected[19]) < Nx.to_number(expected[0]) * 0.85
  end

  test "gradients through indexing and padding" do
    assert_same([random({5}, {:f, 32}, 0.5, 2), Nx.tensor([[3], [0], [3]])], &Training.spread_grad/2, ulp: 8)
  end

  test "gradients through while and cond" do
    assert_same([random({4}, {:f, 64}, 0.5, 2)], &Training.loop_grad/1, ulp: 8)
    assert_same([random({4}, {:f, 32}, 0.5, 2)], &Training.loop_grad/1, ulp: 8)
  end
end
