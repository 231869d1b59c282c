defmodule Nx.Vulkan.ApplicationsTest do
  use ExUnit.Case, async: true

  # In a VM of its own a module is found only where its application is among those that mix.exs starts.
  test "every module that the library calls is of an application that it depends on" do
    declared = applications([:nx_vulkan, :erts], MapSet.new())

    foreign =
      for module <- Application.spec(:nx_vulkan, :modules),
          module.module_info(:compile)[:source] |> List.to_string() |> String.contains?("/lib/nx/"),
          called <- called(module),
          application = application(called),
          application not in declared,
          do: {module, called, application}

    assert Enum.uniq(foreign) == []
  end

  defp applications([], found), do: found

  defp applications([application | rest], found) do
    if application in found do
      applications(rest, found)
    else
      _ = Application.load(application)
      applications((Application.spec(application, :applications) || []) ++ rest, MapSet.put(found, application))
    end
  end

  defp called(module) do
    {:ok, {_, [imports: imports]}} = module |> :code.which() |> :beam_lib.chunks([:imports])
    imports |> Enum.map(&elem(&1, 0)) |> Enum.uniq()
  end

  # By the folder of its file: ".../<application>-<version>/ebin".
  defp application(module) do
    case :code.which(module) do
      :preloaded ->
        :erts

      path when is_list(path) and path != [] ->
        path |> Path.split() |> Enum.at(-3) |> String.split("-") |> hd() |> String.to_atom()

      _ ->
        nil
    end
  end
end
