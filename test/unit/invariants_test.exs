defmodule Nx.Vulkan.InvariantsTest do
  use ExUnit.Case, async: true

  import Nx.Defn

  alias Nx.Vulkan.Chain
  alias Nx.Vulkan.Chain.Invariants

  @vector Nx.template({3}, :f64)
  @matrix Nx.template({3, 3}, :f64)

  # The program of a function of q and what stays.
  defp program(fun, templates) do
    {program, inputs} = Chain.program(fun, templates)
    assert inputs == Enum.to_list(0..(length(templates) - 1))
    program
  end

  defp ops([_, instructions, _]), do: Enum.map(instructions, &hd/1)

  test "what takes long and stays is parted from the rest, with what it needs" do
    fun = fn q, a ->
      l = Nx.LinAlg.cholesky(Nx.multiply(a, 2))
      Nx.add(Nx.dot(Nx.transpose(l), q), Nx.sum(Nx.log(l[0])))
    end

    assert {before, [1], rest} = fun |> program([@vector, @matrix]) |> Invariants.split([0])
    assert ops(before) == [:constant, :multiply, :cholesky, :slice, :squeeze, :log, :sum]
    assert [[[:f64, [3, 3]]], _, [[:result, 2], [:result, 6]]] = before
    # A view stays where it is used.
    assert ops(rest) == [:transpose, :dot, :add]
    assert [[[:f64, [3]], [:f64, [3, 3]], [:f64, [3, 3]], [:f64, []]], instructions, _] = rest
    assert hd(instructions) == [:transpose, [[:axes, [1, 0]]], [[:input, 2]], [[:f64, [3, 3]]]]
    assert {[[_, _, _], [[_, _, [[:input, 1]], _] | _], _], [0, 2, 3]} = Invariants.narrow(rest, &(&1 == 0))
    assert Invariants.split(rest, [0]) == nil
  end

  test "maps, views and outer products stay, and what changes" do
    for fun <- [
          fn q, a -> Nx.add(Nx.sum(q), Nx.exp(Nx.multiply(Nx.transpose(a), 2))) end,
          fn q, a -> Nx.dot(q, Nx.outer(a[0], a[1])) end,
          fn q, a -> Nx.LinAlg.cholesky(Nx.add(a, q)) end,
          fn q, a -> Nx.LinAlg.triangular_solve(Nx.add(a, q), a[0]) end
        ] do
      assert fun |> program([@vector, @matrix]) |> Invariants.split([0]) == nil
    end
  end

  test "systems whose matrix stays become products" do
    for {fun, op} <- [
          {fn q, a -> Nx.add(Nx.LinAlg.solve(a, q), Nx.LinAlg.solve(a, Nx.exp(q))) end, :solve},
          {fn q, a -> Nx.add(Nx.LinAlg.triangular_solve(a, q), Nx.LinAlg.triangular_solve(a, Nx.exp(q))) end,
           :triangular_solve}
        ] do
      assert {before, [1], rest} = fun |> program([@vector, @matrix]) |> Invariants.split([0])
      # One inverse for both.
      assert ops(before) == [:eye, op]
      assert Enum.count(ops(rest), &(&1 == :dot)) == 6
      refute op in ops(rest)
    end

    # Of other types than all the same.
    narrow = Nx.template({3}, :f32)

    refute match?(
             {_, _, _},
             fn q, a -> Nx.LinAlg.solve(a, q) end |> program([narrow, @matrix]) |> Invariants.split([0])
           )
  end

  defn in_loop(q, a) do
    {sum, _, _, _} =
      while {sum = q, a, b = a, i = 0}, i < 3 do
        {sum + Nx.sum(Nx.dot(a, a)) + Nx.sum(Nx.dot(b, b)), a, b + 1, i + 1}
      end

    sum
  end

  test "what stays in a loop comes before it" do
    [_, instructions, _] = program = program(&in_loop/2, [@vector, @matrix])
    assert Enum.count(ops(program), &(&1 == :dot)) == 1
    [:while, attrs, _, _] = Enum.find(instructions, &(hd(&1) == :while))
    [[:condition, condition], [:body, body]] = attrs
    # That of b, which changes.
    assert Enum.count(ops(body), &(&1 == :dot)) == 1
    assert hd(condition) == hd(body)
    # Then nothing of the loop's own stays but what goes before everything.
    assert {before, [1], rest} = Invariants.split(program, [0])
    assert ops(before) == [:dot, :sum]
    refute :dot in ops(rest)
  end
end
