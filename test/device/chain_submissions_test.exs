defmodule Nx.Vulkan.ChainSubmissionsTest do
  # Counts what all processes submit, so nothing else may run.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.{Chain, NativeV}

  @moduletag :device

  test "all steps of all chains are one submission, in both forms" do
    x = Nx.sin(Nx.iota({100, 5}, type: :f64, backend: Nx.BinaryBackend))
    y = Nx.as_type(Nx.greater(Nx.sum(x, axes: [1]), 0), :f64)

    logistic = fn beta ->
      eta = Nx.dot(x, beta)
      prior = Nx.multiply(Nx.tensor(-0.5, type: :f64), Nx.sum(Nx.multiply(beta, beta)))
      Nx.add(Nx.sum(Nx.subtract(Nx.multiply(y, eta), Nx.log1p(Nx.exp(eta)))), prior)
    end

    for form <- [:workgroup, :device] do
      chain = Chain.compile(logistic, Nx.template({5}, :f64), form: form)
      q = Nx.divide(Nx.iota({16, 5}, type: :f64, backend: Nx.BinaryBackend), Nx.tensor(100, type: :f64))
      # The first run compiles what copies.
      [_, {trace, submissions}] =
        for _ <- 1..2 do
          before = NativeV.device_stats().submissions
          trace = Chain.run(chain, q, q, steps: 100, step_size: 0.01)
          {Nx.to_binary(trace.energy), NativeV.device_stats().submissions - before}
        end

      assert byte_size(trace) == 16 * 100 * 8

      assert submissions in [1, 2],
             "the chains of the form #{form} are #{submissions}, with the reading of the energies"
    end
  end
end
