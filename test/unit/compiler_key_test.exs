defmodule Nx.Vulkan.CompilerKeyTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.Compiler.Key

  defp tensor(binary, type \\ :u8), do: Nx.from_binary(binary, type, backend: Nx.BinaryBackend)

  # Of a function of one place in the code.
  defp key(captured), do: Key.of(fn x -> {x, captured} end)

  test "large binaries stay out of what is hashed, wherever they are" do
    large = :binary.copy(<<1, 2, 3, 4>>, 1_000_000)
    inner = fn x -> {x, large} end

    for captured <- [large, tensor(large), %{a: [1, {tensor(large), 2}]}, inner, <<large::binary, 1::4>>] do
      {key, [taken_out]} = key(captured)
      assert byte_size(taken_out) >= 4_000_000
      assert :erlang.external_size(key) < 1000
    end

    {_, taken_out} = key([large, inner, tensor(large)])
    assert Enum.all?(taken_out, &:erts_debug.same(&1, large)) and length(taken_out) == 3
  end

  test "keys are equal where what was captured is" do
    large = :binary.copy(<<9>>, 5000)
    assert key(tensor(large)) == key(tensor(:binary.copy(large)))
    assert key(tensor(large)) != key(tensor(large, :s8))
    assert key(tensor(large)) != key(tensor(large <> <<9>>))
    assert key({large, 1}) != key({1, large})
    assert key(large) != key(:binary.copy(<<9>>, 4999) <> <<8>>)
    assert key([large]) != Key.of(fn x -> [x, large] end)
  end

  test "what captured no large binary is its own key" do
    for captured <- [1, :a, tensor(<<1, 2>>), %{a: "text"}, &Nx.add/2] do
      fun = fn x -> {x, captured} end
      assert Key.of(fun) == {fun, []}
    end

    assert Key.of(&Nx.add/2) == {&Nx.add/2, []}
  end

  test "expressions that captured large binaries" do
    large = tensor(:binary.copy(<<9>>, 5000))
    expression = Nx.Defn.debug_expr(fn x -> Nx.add(x, large) end).(1)
    {key, [_]} = key(expression)
    assert :erlang.external_size(key) < 3000
  end
end
