defmodule Nx.Vulkan.Conformance.OpsTableTest do
  # Alone: the features that kernels need are counted for the whole device.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.OpsTable

  @moduletag :device
  @moduletag timeout: 1_200_000

  @sample 60

  # Callbacks that no tensor's type makes different.
  @storage [:init, :inspect, :to_binary, :to_pointer, :backend_deallocate, :backend_transfer, :block]

  defp rows do
    for "| " <> _ = line <- String.split(File.read!(OpsTable.path()), "\n"),
        [op | cells] = line |> String.split("|") |> Enum.slice(1..-2//1) |> Enum.map(&String.trim/1),
        length(cells) == length(OpsTable.types()),
        op != "op",
        into: %{},
        do: {op, Map.new(Enum.zip(OpsTable.types(), cells))}
  end

  test "every callback and every block of Nx has a row" do
    rows = rows()
    assert Enum.sort(Map.keys(rows)) == Enum.sort(for {op, _} <- OpsTable.ops(), do: "#{op}")

    callbacks = for {name, _arity} <- Nx.Backend.behaviour_info(:callbacks), name not in @storage, do: "#{name}"
    assert callbacks -- Map.keys(rows) == []

    blocks = for {_owner, name} <- OpsTable.block_names(), do: String.downcase(name)
    in_table = for "Nx." <> name <- Map.keys(rows), do: name |> String.split(".") |> List.last()
    assert blocks != [] and blocks -- Enum.map(in_table, &String.replace(&1, "_", "")) == []
  end

  test "cells say what the device runs and needs" do
    rows = rows()
    ops = for {op, call} <- OpsTable.ops(), type <- OpsTable.types(), do: {op, call, type}

    for {op, call, type} <- Enum.take_random(ops, @sample) do
      assert {op, type, OpsTable.cell(op, call, type)} == {op, type, rows["#{op}"][type]}
    end
  end

  @tag :ops_table
  test "the whole table is what mix nx_vulkan.ops writes" do
    assert OpsTable.render() == File.read!(OpsTable.path())
  end
end
