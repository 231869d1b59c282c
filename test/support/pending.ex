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
      ],
      window_scatter_max: [
        "Nx.window_scatter_max/5 (419)",
        "Nx.window_scatter_max/5 (420)",
        "Nx.window_scatter_max/5 (421)"
      ],
      window_scatter_min: [
        "Nx.window_scatter_min/5 (422)",
        "Nx.window_scatter_min/5 (423)",
        "Nx.window_scatter_min/5 (424)"
      ]
    ],
    Nx.LinAlg => [
      argsort: [
        "Nx.LinAlg.pinv/2 (67)",
        "Nx.LinAlg.least_squares/3 (106)",
        "Nx.LinAlg.least_squares/3 (107)",
        "Nx.LinAlg.least_squares/3 (108)"
      ],
      digits: [
        "Nx.LinAlg.cholesky/1 (5)",
        "Nx.LinAlg.lu/1 (79)",
        "Nx.LinAlg.determinant/1 (93)",
        "Nx.LinAlg.determinant/1 (94)"
      ],
      triangular_solve: [
        "Nx.LinAlg.triangular_solve/3 (26)",
        "Nx.LinAlg.triangular_solve/3 (27)",
        "Nx.LinAlg.triangular_solve/3 (28)",
        "Nx.LinAlg.triangular_solve/3 (29)",
        "Nx.LinAlg.triangular_solve/3 (30)",
        "Nx.LinAlg.triangular_solve/3 (31)",
        "Nx.LinAlg.triangular_solve/3 (32)",
        "Nx.LinAlg.triangular_solve/3 (33)",
        "Nx.LinAlg.triangular_solve/3 (34)",
        "Nx.LinAlg.triangular_solve/3 (35)",
        "Nx.LinAlg.triangular_solve/3 (36)",
        "Nx.LinAlg.triangular_solve/3 (37)",
        "Nx.LinAlg.triangular_solve/3 (40)",
        "Nx.LinAlg.triangular_solve/3 (41)",
        "Nx.LinAlg.solve/2 (43)",
        "Nx.LinAlg.solve/2 (44)",
        "Nx.LinAlg.solve/2 (45)",
        "Nx.LinAlg.solve/2 (46)",
        "Nx.LinAlg.solve/2 (47)",
        "Nx.LinAlg.solve/2 (48)",
        "Nx.LinAlg.invert/1 (51)",
        "Nx.LinAlg.invert/1 (52)",
        "Nx.LinAlg.svd/2 (74)",
        "Nx.LinAlg.svd/2 (75)",
        "Nx.LinAlg.matrix_power/2 (85)",
        "Nx.LinAlg.matrix_power/2 (87)"
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
