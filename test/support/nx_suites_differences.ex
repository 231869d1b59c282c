defmodule Nx.Vulkan.NxSuites.Differences do
  @moduledoc """
  The tests of Nx that do not pass on `Nx.Vulkan.VulkanoBackend`, by file and reason.
  """

  @reasons %{
    constants: "Nx takes the constants of an expression from Nx.BinaryBackend alone; the test closes over tensors",
    references: "compares tensors by ===, by a pin or by a repeated variable, which references to equal values fail",
    backend: "asserts what Nx does between Nx.BinaryBackend and a third backend",
    no_raise: "asserts that Nx.BinaryBackend raises for a value, where we have a result: see guides/numerics.md",
    narrow: "Nx.BinaryBackend cuts bits off when it writes bf16, we round to nearest",
    lavapipe: "lavapipe takes 0 - x for -x, which shows where x is 0",
    digits: "compares floats by their bits, and one differs in the last place"
  }

  @differences %{
    "test/nx/complex_test.exs" => [
      no_raise: ["binary operations atan2"]
    ],
    "test/nx/defn/composite_test.exs" => [
      lavapipe: ["traverse/3 works with mix of complex and tensor and number"]
    ],
    "test/nx/defn/donation_test.exs" => [
      constants: ["donatable propagation expression parameters keep the mark, expressions built from them do not"]
    ],
    "test/nx/defn/evaluator_test.exs" => [
      backend: ["slice"]
    ],
    "test/nx/defn/expr_test.exs" => [
      constants: [
        "inspect with metadata",
        "inspect with fun",
        "inspect with tensors",
        "inspect with parameters",
        "inspect with scalar",
        "constant optimizations upcast float constants when operating against higher precision types",
        "constant optimizations logsumexp",
        "constant optimizations preserves names"
      ]
    ],
    "test/nx/defn/grad_test.exs" => [
      constants: [
        "multi-tensor ops with captured closure tensors reduce and window_reduce raise their documented no-grad error, " <>
          "not a dispatch crash",
        "multi-tensor ops with captured closure tensors clip grad wrt min and max with a captured target",
        "multi-tensor ops with captured closure tensors put_slice grad wrt the update with a captured target",
        "vectorization composed: sigmoid(x @ w + b) (exercises composed chain with captures)",
        "vectorization mixed: vectorized x * non-vectorized y (exercises broadcast_vectors)",
        "vectorization conv with vectorized (exercises conv grad)",
        "vectorization dot with captured matrix (exercises concrete tensor handling)",
        "vectorization vectorized grad through Nx.LinAlg.triangular_solve with captured a",
        "vectorization grad of non-vectorized target with vectorized capture",
        "vectorization window_scatter_max/min with vectorized inputs",
        "vectorization non-vectorized input, vectorized output",
        "vectorization supports combination of vectorized and non-vectorized tensors over composed function",
        "vectorization supports combination of vectorized and non-vectorized tensors",
        "solve computes the grad when the right-hand side is a constant",
        "conv rule computes gradient of kernel when image is a constant closure variable"
      ],
      references: ["metadata computes custom grad"],
      digits: ["take computes gradient"]
    ],
    "test/nx/defn_test.exs" => [
      constants: [
        "multi-tensor ops with captured closure tensors gather in a jit closure over a concrete source",
        "multi-tensor ops with captured closure tensors clip in a jit closure over a concrete target",
        "multi-tensor ops with captured closure tensors put_slice in a jit closure over a concrete target",
        "block accepts a constant tensor argument"
      ]
    ],
    "test/nx/defn/tree_test.exs" => [
      constants: ["apply_args handles concatenate", "apply_args handles regular operations"]
    ],
    "test/nx/non_finite_test.exs" => [
      no_raise: ["binary operations remainder", "binary operations atan2"]
    ],
    "test/nx/optional_test.exs" => [
      backend: ["optional callbacks (defn) calls the default impl if custom does not exist"]
    ],
    "test/nx/random_test.exs" => [
      narrow: ["types uniform"],
      digits: ["types multivariate_normal"]
    ],
    "test/nx/serving_test.exs" => [
      references: ["run/2 with client pre/post"]
    ],
    "test/nx/vectorize_test.exs" => [
      references: ["cond only executes selected branches"]
    ],
    "test/nx_test.exs" => [
      digits: [
        "covariance/1 uses optional ddof",
        "covariance/1 with tensor batch",
        "covariance/1 calculates the covariance of a tensor"
      ],
      no_raise: [
        "bitshift raises for negative numbers on the left",
        "bitshift raises for negative numbers on the right"
      ]
    ]
  }

  # The same values, compared as terms.
  @doctests [references: ["Nx.Defn.Composite.flatten_list/2 (3)"]]

  @doc "What the keys of the lists stand for."
  def reasons, do: @reasons

  @doc """
  The results of a file, in numbers, and against the list: what fails, what passes although it is listed, what is listed and no test.
  """
  def sort(file, results) do
    listed = listed(file)
    failures = for {name, {:failed, message}} <- results, do: {name, message}
    {different, failed} = Enum.split_with(failures, fn {name, _} -> name in listed end)
    names = MapSet.new(results, &elem(&1, 0))

    %{
      passed: Enum.count(results, &(elem(&1, 1) == :passed)),
      excluded: Enum.count(results, &(elem(&1, 1) in [:skipped, :excluded])),
      failed: failed,
      different: length(different),
      passing: for({name, :passed} <- results, name in listed, do: name),
      unknown: for(name <- listed, String.starts_with?(name, "test "), name not in names, do: name)
    }
  end

  defp listed(file) do
    tests =
      for {reason, names} <- Map.get(@differences, file, []), Map.fetch!(@reasons, reason), name <- names, do: name

    Enum.map(tests, &("test " <> &1)) ++ Enum.map(doctests(), &("doctest " <> &1))
  end

  defp doctests, do: Enum.flat_map(@doctests, &elem(&1, 1))
end
