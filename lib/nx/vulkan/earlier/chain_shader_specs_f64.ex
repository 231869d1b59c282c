defmodule Nx.Vulkan.ChainShaderSpecsF64 do
  @moduledoc """
  The families of `Nx.Vulkan.ChainShaderSpecs` in f64, with the values of their parameters, one by one or in batches.

  `Nx.Vulkan.Synthesis.compile/1` makes the shader, `Nx.Vulkan.ChainShaderSpecs.push/4` or `batch_push/5` its push data,
  and `Nx.Vulkan.NativeV.leapfrog_chain_synth_f64/6` or `Nx.Vulkan.NativeV.leapfrog_chain_synth_batch_f64/6` runs it.
  """

  alias Nx.Vulkan.ChainShaderSpecs
  alias Nx.Vulkan.ShaderTemplate.FamilySpec

  @doc "Normal(mu, sigma)."
  @spec normal(number, number) :: FamilySpec.t()
  def normal(mu, sigma), do: spec(:normal, [mu, sigma])

  @doc "Cauchy(location, scale)."
  @spec cauchy(number, number, number) :: FamilySpec.t()
  def cauchy(location, scale, logp_const), do: spec(:cauchy, [location, scale, logp_const])

  @doc "Exponential(rate) on the log scale."
  @spec exponential(number) :: FamilySpec.t()
  def exponential(rate), do: spec(:exponential, [rate])

  @doc "HalfNormal(sigma) on the log scale."
  @spec halfnormal(number, number) :: FamilySpec.t()
  def halfnormal(sigma, logp_const), do: spec(:halfnormal, [sigma, logp_const])

  @doc "HalfCauchy(scale) on the log scale."
  @spec halfcauchy(number, number) :: FamilySpec.t()
  def halfcauchy(scale, logp_const), do: spec(:halfcauchy, [scale, logp_const])

  @doc "StudentT(nu, location, scale)."
  @spec studentt(number, number, number, number) :: FamilySpec.t()
  def studentt(nu, location, scale, logp_const), do: spec(:studentt, [nu, location, scale, logp_const])

  @doc "Weibull(shape, scale) on the log scale."
  @spec weibull(number, number, number) :: FamilySpec.t()
  def weibull(shape, scale, logp_const), do: spec(:weibull, [shape, scale, logp_const])

  @doc "Beta(alpha, beta) on the logit scale."
  @spec beta(number, number, number) :: FamilySpec.t()
  def beta(alpha, beta, logp_const), do: spec(:beta, [alpha, beta, logp_const])

  @doc "Gamma(alpha, rate) on the log scale."
  @spec gamma(number, number, number) :: FamilySpec.t()
  def gamma(alpha, rate, logp_const), do: spec(:gamma, [alpha, rate, logp_const])

  @doc "LogNormal(mu, sigma) on the log scale."
  @spec lognormal(number, number) :: FamilySpec.t()
  def lognormal(mu, sigma), do: spec(:lognormal, [mu, sigma])

  @doc """
  All families, without parameters.
  """
  @spec all() :: [FamilySpec.t()]
  def all, do: Enum.map(ChainShaderSpecs.families(), &spec(&1, []))

  @doc """
  The same family for many instances in one dispatch, of up to 256 elements each. `extras` is the inverse mass of each
  instance.
  """
  @spec batched(FamilySpec.t()) :: FamilySpec.t()
  def batched(%FamilySpec{} = spec), do: %{spec | batched: true}

  @doc """
  The push data of a batched chain: `n_instances` of `d` elements, for `k` steps of `eps`.

  ## Errors

  As `Nx.Vulkan.ChainShaderSpecs.push/4`, and `ArgumentError` for a spec that is not batched.
  """
  @spec batch_push(FamilySpec.t(), pos_integer, pos_integer, number, pos_integer) :: binary
  def batch_push(%FamilySpec{batched: false, name: name}, _d, _k, _eps, _n_instances) do
    raise ArgumentError,
          "#{name} is not batched: batched/1 makes it so, and Nx.Vulkan.ChainShaderSpecs.push/4 its push data as it is"
  end

  def batch_push(%FamilySpec{} = spec, d, k, eps, n_instances) do
    floats = ChainShaderSpecs.floats(spec, eps)
    ChainShaderSpecs.words(k: k, n_obs: 0, d: d, n_instances: n_instances) <> floats
  end

  defp spec(family, params), do: ChainShaderSpecs.family(family, :f64, params)
end
