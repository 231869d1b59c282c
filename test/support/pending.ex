defmodule Nx.Vulkan.Pending do
  @moduledoc """
  The examples in Nx's documentation that do not pass yet, by the op that is missing, or `:digits` where the last printed
  digits differ.

  An example that is listed and passes fails the suite.
  """

  @doctests %{
    Nx => [
      fft: [
        "Nx.fft/2 (899)",
        "Nx.fft/2 (900)",
        "Nx.fft/2 (901)",
        "Nx.fft/2 (902)",
        "Nx.fft/2 (903)",
        "Nx.fft/2 (904)",
        "Nx.fft/2 (905)",
        "Nx.fft/2 (906)",
        "Nx.fft2/2 (917)",
        "Nx.fft2/2 (918)",
        "Nx.fft2/2 (919)",
        "Nx.fft2/2 (920)",
        "Nx.fft2/2 (921)",
        "Nx.fft2/2 (922)",
        "Nx.fft2/2 (923)",
        "Nx.rfft/2 (935)",
        "Nx.rfft/2 (936)",
        "Nx.rfft/2 (937)",
        "Nx.rfft/2 (938)",
        "Nx.rfft/2 (939)",
        "Nx.rfft/2 (940)"
      ],
      ifft: [
        "Nx.ifft/2 (908)",
        "Nx.ifft/2 (909)",
        "Nx.ifft/2 (910)",
        "Nx.ifft/2 (911)",
        "Nx.ifft/2 (912)",
        "Nx.ifft/2 (913)",
        "Nx.ifft/2 (914)",
        "Nx.ifft/2 (915)",
        "Nx.ifft2/2 (926)",
        "Nx.ifft2/2 (927)",
        "Nx.ifft2/2 (928)",
        "Nx.ifft2/2 (929)",
        "Nx.ifft2/2 (930)",
        "Nx.ifft2/2 (931)",
        "Nx.ifft2/2 (932)",
        "Nx.irfft/2 (943)",
        "Nx.irfft/2 (944)",
        "Nx.irfft/2 (945)",
        "Nx.irfft/2 (946)",
        "Nx.irfft/2 (947)"
      ]
    ]
  }

  @doc "The names of all pending examples."
  def doctests, do: Enum.flat_map(Map.keys(@doctests), &doctests/1)

  @doc "The names of the pending examples of a module."
  def doctests(module), do: @doctests |> Map.get(module, []) |> Enum.flat_map(&elem(&1, 1))

  @doc "Filters for ExUnit's `:exclude`."
  def exclude, do: for(name <- doctests(), do: {:test, :"doctest #{name}"})
end
