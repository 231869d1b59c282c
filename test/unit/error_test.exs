defmodule Nx.Vulkan.ErrorTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.Error

  doctest Error

  test "has the fields that were given and an empty map of details" do
    error = Error.exception(kind: :out_of_memory, message: "asked for 8 bytes")
    assert %Error{kind: :out_of_memory, op: nil, message: "asked for 8 bytes", details: %{}} = error
  end

  test "is raised by its fields and matched on its kind" do
    error =
      assert_raise Error, "dot: needs shaderFloat64 (unsupported)", fn ->
        raise Error, kind: :unsupported, op: :dot, message: "needs shaderFloat64", details: %{type: {:f, 64}}
      end

    assert error.kind == :unsupported
    assert error.details == %{type: {:f, 64}}
  end

  test "needs a kind and a message" do
    assert_raise ArgumentError, fn -> Error.exception(kind: :io) end
    assert_raise ArgumentError, fn -> Error.exception(message: "no such file") end
    assert_raise KeyError, fn -> Error.exception(kind: :io, message: "no such file", reason: :enoent) end
  end
end
