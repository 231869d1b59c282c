defmodule Nx.Vulkan.ExpertsTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Numbers

  alias Nx.Vulkan.Experts
  alias Nx.Vulkan.Parity.References

  doctest Experts

  setup do
    Nx.default_backend(Nx.BinaryBackend)
    :rand.seed(:exsss, 33)
    :ok
  end

  test "other backends compute f64 as f64" do
    [x, weights] = [numbers({13, 3}, :f64), numbers({4, 3, 2}, :f64)]
    experts = Nx.tensor([3, 0, 0, 3, 3, 1, 0, 0, 0, 1, 3, 3, 0])
    y = Experts.dot(x, weights, experts)
    assert y.type == {:f, 64}
    assert apart(y, References.grouped_dot(x, weights, experts)) < 1.0e-15
  end

  test "shares of all experts" do
    logits = numbers({3, 5}, :f64)
    {shares, experts} = Experts.route(logits, k: 5, normalize: false)
    all = Nx.exp(logits)
    wanted = all |> Nx.divide(Nx.sum(all, axes: [1], keep_axes: true)) |> Nx.take_along_axis(experts, axis: 1)
    assert apart(shares, wanted) < 1.0e-15
    {two, _} = Experts.route(logits, k: 2, normalize: false)
    assert apart(two, shares[[.., 0..1]]) < 1.0e-15
  end

  test "shares of whole numbers" do
    for {type, logits} <- [u8: [1, 200, 3], s8: [-128, 127, 3]], normalize <- [true, false] do
      share = &elem(Experts.route(Nx.tensor(logits, type: &1), k: 3, normalize: normalize), 0)
      assert share.(type) == share.(:f32)
    end
  end

  test "the last axis has the name of that of the weights" do
    weights = Nx.iota({2, 3, 4}, type: :f32, names: [:expert, :in, :out])

    for rows <- [1, 5] do
      x = Nx.broadcast(1.0, {rows, 3}, names: [:row, :in])
      assert Experts.dot(x, weights, Nx.broadcast(0, {rows})).names == [:row, :out]
    end
  end

  test "experts that there are not are the nearest" do
    weights = Nx.tensor([[[1.0]], [[2.0]]])

    assert Nx.to_flat_list(Experts.dot(Nx.tensor([[1.0], [1.0], [1.0]]), weights, Nx.tensor([-1, 7, 0]))) == [
             1.0,
             2.0,
             1.0
           ]
  end

  test "what does not fit is said" do
    t = &Nx.broadcast(1.0, &1)

    for {message, call} <- [
          {~r/:k to be from 1 to the 3 experts, got: 4/, fn -> Experts.route(t.({2, 3}), k: 4) end},
          {~r/:k to be from 1 to the 3 experts, got: nil/, fn -> Experts.route(t.({2, 3})) end},
          {~r/weights of three axes/, fn -> Experts.dot(t.({2, 3}), t.({3, 4}), Nx.tensor([0, 0])) end},
          {~r/an x of rows of 3/, fn -> Experts.dot(t.({2, 4}), t.({2, 3, 4}), Nx.tensor([0, 0])) end},
          {~r/an expert for each row/, fn -> Experts.dot(t.({2, 3}), t.({2, 3, 4}), Nx.tensor([0])) end},
          {~r/experts to be integers/, fn -> Experts.dot(t.({2, 3}), t.({2, 3, 4}), t.({2})) end},
          {~r/without vectorized axes/,
           fn -> Experts.dot(Nx.vectorize(t.({2, 3}), :x), t.({2, 3, 4}), Nx.tensor(0)) end}
        ] do
      assert_raise ArgumentError, message, call
    end
  end
end
