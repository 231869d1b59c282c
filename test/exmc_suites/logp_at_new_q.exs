# With EXMC_SUITE_LOGP=new, exmc's chains run one step longer and report the log density of each new position. The
# shaders that exmc 0.3.0 generates put logp_chain[k] at the position before step k + 1, so that its sampler accepts by
# the wrong energies on any device; this tells what else there is.
defmodule Exmc.NUTS.Vulkan.Dispatch do
  @moduledoc false

  @count :exmc_chain_dispatches

  def dispatch_count, do: Process.get(@count, 0)

  def reset_dispatch_count do
    Process.put(@count, 0)
    :ok
  end

  def chain({:synthesised, _, _, push_spec, spv, observed}, d, eps, inv_mass, q, p, k, sign) when d <= 256 do
    Process.put(@count, dispatch_count() + 1)
    {:ok, push, _} = Exmc.NUTS.CustomSynth.Push.pack(%{push_spec | eps: sign * eps, K: k + 1})
    [q, p, inv_mass] = for tensor <- [q, p, inv_mass], do: tensor |> Nx.as_type(:f64) |> Nx.to_binary()

    {:ok, {q, p, grad, logp}} =
      Nx.Vulkan.NativeV.leapfrog_chain_synth_f64(q, p, observed <> inv_mass, push, k + 1, spv)

    [q, p, grad] = for chain <- [q, p, grad], do: tensor(chain, 0, {k, d})
    {q, p, tensor(logp, 8, {k}), grad}
  end

  defp tensor(chain, from, shape) do
    chain
    |> binary_part(from, 8 * Tuple.product(shape))
    |> Nx.from_binary(:f64, backend: Nx.BinaryBackend)
    |> Nx.reshape(shape)
  end
end
