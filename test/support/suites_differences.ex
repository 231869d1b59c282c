defmodule Nx.Vulkan.Suites.Differences do
  @moduledoc """
  The tests of Nx, Axon and Scholar that do not pass on `Nx.Vulkan.VulkanoBackend` or `Nx.Vulkan.Compiler`, by file and
  reason.
  """

  @reasons %{
    constants: "Nx takes the constants of an expression from Nx.BinaryBackend alone; the test closes over tensors",
    references: "compares tensors by ===, by a pin or by a repeated variable, which references to equal values fail",
    backend: "asserts what Nx does between Nx.BinaryBackend and a third backend",
    foreign:
      "passes a tensor of a backend that has no to_binary/2 to the compiler, which copies arguments to the device",
    no_raise: "asserts that Nx.BinaryBackend raises for a value, where we have a result: see guides/numerics.md",
    narrow: "Nx.BinaryBackend cuts bits off when it writes bf16, we round to nearest",
    lavapipe: "lavapipe takes 0 - x for -x, which shows where x is 0; passes on GPUs",
    chaotic:
      "hundreds of steps from a random start multiply the last digit, so that Nx.BinaryBackend and the evaluator " <>
        "end elsewhere, too",
    digits: "compares floats by their bits, and one differs in the last place",
    options: "asserts that Nx.Serving passes no options on, and the default compiler is one",
    examples: "the example has the digits and signs that the SVD and the loops of an earlier Nx.BinaryBackend end at",
    upstream: "fails on Nx.BinaryBackend and the evaluator, too, with this version of Nx",
    vectorized_hooks: "hooks get vectorized tensors, as EXLA gives them; the evaluator's are devectorized"
  }

  @differences %{
    "test/nx/complex_test.exs" => [
      no_raise: ["test binary operations atan2"]
    ],
    "test/nx/defn/composite_test.exs" => [
      lavapipe: ["test traverse/3 works with mix of complex and tensor and number"]
    ],
    "test/nx/defn/donation_test.exs" => [
      constants: ["test donatable propagation expression parameters keep the mark, expressions built from them do not"]
    ],
    "test/nx/defn/evaluator_test.exs" => [
      backend: ["test slice"]
    ],
    "test/nx/defn/expr_test.exs" => [
      constants: [
        "test inspect with metadata",
        "test inspect with fun",
        "test inspect with tensors",
        "test inspect with parameters",
        "test inspect with scalar",
        "test constant optimizations upcast float constants when operating against higher precision types",
        "test constant optimizations logsumexp",
        "test constant optimizations preserves names"
      ]
    ],
    "test/nx/defn/grad_test.exs" => [
      constants: [
        "test multi-tensor ops with captured closure tensors reduce and window_reduce raise their documented " <>
          "no-grad error, not a dispatch crash",
        "test multi-tensor ops with captured closure tensors clip grad wrt min and max with a captured target",
        "test multi-tensor ops with captured closure tensors put_slice grad wrt the update with a captured target",
        "test vectorization composed: sigmoid(x @ w + b) (exercises composed chain with captures)",
        "test vectorization mixed: vectorized x * non-vectorized y (exercises broadcast_vectors)",
        "test vectorization conv with vectorized (exercises conv grad)",
        "test vectorization dot with captured matrix (exercises concrete tensor handling)",
        "test vectorization vectorized grad through Nx.LinAlg.triangular_solve with captured a",
        "test vectorization grad of non-vectorized target with vectorized capture",
        "test vectorization window_scatter_max/min with vectorized inputs",
        "test vectorization non-vectorized input, vectorized output",
        "test vectorization supports combination of vectorized and non-vectorized tensors over composed function",
        "test vectorization supports combination of vectorized and non-vectorized tensors",
        "test solve computes the grad when the right-hand side is a constant",
        "test conv rule computes gradient of kernel when image is a constant closure variable"
      ],
      references: ["test metadata computes custom grad"],
      digits: ["test take computes gradient"]
    ],
    "test/nx/defn_test.exs" => [
      constants: [
        "test multi-tensor ops with captured closure tensors gather in a jit closure over a concrete source",
        "test multi-tensor ops with captured closure tensors clip in a jit closure over a concrete target",
        "test multi-tensor ops with captured closure tensors put_slice in a jit closure over a concrete target",
        "test block accepts a constant tensor argument"
      ]
    ],
    "test/nx/defn/tree_test.exs" => [
      constants: ["test apply_args handles concatenate", "test apply_args handles regular operations"]
    ],
    "test/nx/non_finite_test.exs" => [
      no_raise: ["test binary operations remainder", "test binary operations atan2"]
    ],
    "test/nx/optional_test.exs" => [
      backend: ["test optional callbacks (defn) calls the default impl if custom does not exist"]
    ],
    "test/nx/random_test.exs" => [
      narrow: ["test types uniform", "test types multivariate_normal"]
    ],
    "test/nx/serving_test.exs" => [
      references: ["test run/2 with client pre/post"]
    ],
    "test/nx/vectorize_test.exs" => [
      references: ["test cond only executes selected branches"]
    ],
    "test/nx_test.exs" => [
      digits: ["test fft/ifft Bluestein clause"],
      no_raise: [
        "test bitshift raises for negative numbers on the left",
        "test bitshift raises for negative numbers on the right"
      ]
    ]
  }

  # With the compiler these differ besides, and these do not.
  @compiled %{
    "test/nx/serving_test.exs" => [
      options: [
        "test batched_run + streaming 2+2=4 with pre and post",
        "test batched_run + streaming 3+3=4+2(+pad) with pre and post",
        "test batched_run + streaming 5=3+2(+pad) (oversized)",
        "test batched_run + streaming 5=3+3 (oversized)",
        "test batched_run + streaming with output streaming",
        "test batched_run 1=1",
        "test batched_run 2+2=4",
        "test batched_run 2+2=4 with pre and post",
        "test batched_run 5=3+2(+pad) (oversized)",
        "test batched_run 5=3+3 (oversized)",
        "test batched_run with input streaming",
        "test run + streaming with client pre/post",
        "test run + streaming with module callbacks",
        "test run/2 with module callbacks"
      ]
    ],
    "test/nx/optional_test.exs" => [
      foreign: [
        "test inspect works with defn call for backend Elixir.Nx.OptionalTest.CustomImplTestBackend",
        "test inspect works with defn call for backend Elixir.Nx.OptionalTest.NonCustomImplTestBackend"
      ]
    ],
    "test/nx/vectorize_test.exs" => [
      vectorized_hooks: ["test cond if with container result"]
    ]
  }
  @not_compiled ["test slice"]

  # The tests stop a server as soon as one caller's batch runs, and count on the other caller's batch having come by
  # then. With a pause before that one they fail on Nx.BinaryBackend, too.
  @races %{
    "test/nx/serving_test.exs" => [
      "test batched_run 2=>shutdown=>1 (stacked)",
      "test batched_run 2=>shutdown=>2 (queued)"
    ]
  }

  @axon %{}
  @scholar %{
    "test/scholar/cluster/spectral_clustering_test.exs" => [
      constants: ["test properties works inside jit"]
    ],
    "test/scholar/cross_decomposition/pls_svd_test.exs" => [
      upstream: [
        "test fit_transform test - :num_components set to 1",
        "test fit_transform test - all options are default",
        "test transform test"
      ]
    ],
    "test/scholar/decomposition/kernel_pca_test.exs" => [
      examples: [
        "doctest Scholar.Decomposition.KernelPCA.fit_transform/2 (3)",
        "doctest Scholar.Decomposition.KernelPCA.transform/2 (2)"
      ]
    ],
    "test/scholar/decomposition/pca_test.exs" => [
      examples: [
        "doctest Scholar.Decomposition.PCA.fit/2 (1)",
        "doctest Scholar.Decomposition.PCA.fit_transform/2 (5)",
        "doctest Scholar.Decomposition.PCA.incremental_fit/2 (2)",
        "doctest Scholar.Decomposition.PCA.partial_fit/2 (3)",
        "doctest Scholar.Decomposition.PCA.transform/2 (4)"
      ],
      # Nx.BinaryBackend raises. The sign hangs on which of two elements of one size is the larger one by a rounding.
      upstream: ["test fit test - :num_components is integer and wide matrix"]
    ],
    "test/scholar/decomposition/truncated_svd_test.exs" => [
      examples: [
        "doctest Scholar.Decomposition.TruncatedSVD.fit/2 (1)",
        "doctest Scholar.Decomposition.TruncatedSVD.fit_transform/2 (2)"
      ],
      upstream: [
        "test fit test - all default options",
        "test fit_transform test - :num_components",
        "test fit_transform test - :num_iters",
        "test fit_transform test - :num_oversamples",
        "test fit_transform test - all default options"
      ]
    ],
    "test/scholar/interpolation/bezier_spline_test.exs" => [
      upstream: ["test bezier spline predict/2"]
    ],
    "test/scholar/linear/linear_regression_test.exs" => [
      examples: [
        "doctest Scholar.Linear.LinearRegression.fit/3 (1)",
        "doctest Scholar.Linear.LinearRegression.predict/2 (2)"
      ],
      upstream: ["test fit test for shapes {1, 1}, {1, 1} and type {:f, 32} and sample_weights"]
    ],
    "test/scholar/linear/polynomial_regression_test.exs" => [
      examples: ["doctest Scholar.Linear.PolynomialRegression.fit/3 (1)"]
    ],
    "test/scholar/linear/ridge_regression_test.exs" => [
      examples: ["doctest Scholar.Linear.RidgeRegression.fit/3 (1)"]
    ],
    "test/scholar/manifold/tsne_test.exs" => [
      chaotic: [
        "test all default params",
        "test non-default exaggeration",
        "test non-default learning_rate",
        "test non-default max_iter",
        "test non-default metric",
        "test non-default num_components",
        "test non-default perplexity"
      ]
    ],
    "test/scholar/metrics/classification_test.exs" => [
      constants: ["doctest Scholar.Metrics.Classification.log_loss/3 (29)"]
    ],
    "test/scholar/metrics/regression_test.exs" => [
      constants: ["test mean_pinball_loss/3 mean_pinball_loss with axes"]
    ]
  }

  @doc "The tests of a file of a suite that are listed, each with its reason."
  def listed(:nx, file), do: reasons(@differences, file)
  def listed(:axon, file), do: reasons(@axon, file)
  def listed(:scholar, file), do: reasons(@scholar, file)

  def listed(:nx_compiled, file) do
    reasons(@compiled, file) ++ Enum.reject(reasons(@differences, file), fn {name, _} -> name in @not_compiled end)
  end

  @doc """
  The tests of a file of a suite that depend on which of two processes comes first: one such run that passes is enough.
  """
  def races(suite, file) when suite in [:nx, :nx_compiled], do: Map.get(@races, file, [])
  def races(_suite, _file), do: []

  defp reasons(differences, file) do
    for {reason, names} <- Map.get(differences, file, []), reason != :lavapipe or lavapipe?(), name <- names do
      {name, Map.fetch!(@reasons, reason)}
    end
  end

  defp lavapipe? do
    name = Nx.Vulkan.device_name()
    match?(%{kind: :cpu}, Enum.find(Nx.Vulkan.devices(), &(&1.name == name)))
  end

  @doc """
  The results of a file, in numbers, and against the list: what fails, what passes although it is listed, what is listed
  and no test.
  """
  def sort(suite, file, results) do
    listed = for {name, _reason} <- listed(suite, file), do: name
    failures = for {name, {:failed, message}} <- results, do: {name, message}
    {different, failed} = Enum.split_with(failures, fn {name, _} -> name in listed end)
    names = MapSet.new(results, &elem(&1, 0))

    %{
      passed: Enum.count(results, &(elem(&1, 1) == :passed)),
      excluded: Enum.count(results, &(elem(&1, 1) in [:skipped, :excluded])),
      failed: failed,
      different: length(different),
      passing: for({name, :passed} <- results, name in listed, do: name),
      unknown: for(name <- listed ++ races(suite, file), name not in names, do: name)
    }
  end
end
