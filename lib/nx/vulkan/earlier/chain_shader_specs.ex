defmodule Nx.Vulkan.ChainShaderSpecs do
  @moduledoc """
  The families of `priv/shaders/leapfrog_chain_*.spv` as specs, in f32, and the push data of their chains.

  The shaders are compiled already and `Nx.Vulkan.NativeV.leapfrog_chain_synth/6` takes their paths. A spec is what to
  start from for a family of one's own, see `Nx.Vulkan.ShaderTemplate.FamilySpec`.

  Densities are those of the unconstrained variable: q = log(x) for positive x, q = log(x / (1 - x)) for x between 0 and
  1, with the Jacobian. `logp_const` is added for each element, and makes the density a normalised one; the sources in
  `priv/shaders/src/nativev` say how.
  """

  alias Nx.Vulkan.ShaderTemplate.FamilySpec

  @most_f32 3.4028234663852886e38
  @most_f64 1.7976931348623157e308
  @families ~w(normal cauchy exponential halfnormal halfcauchy studentt weibull beta gamma lognormal)a
  @sources Path.expand("../../../../priv/shaders/src/nativev", __DIR__)

  # The blocks are the functions in the family's source: there is no second copy of a formula.
  body = fn source, function ->
    [_, parameters, body] = Regex.run(~r/^REAL family_#{function}\(([^)]*)\) \{\n(.*?)^\}/ms, source)

    case Regex.run(~r/const in REAL (\w+)\z/, parameters) do
      [_, "derived"] -> body
      [_, name] -> "    REAL #{name} = derived;\n" <> body
      nil -> body
    end
  end

  @specs Map.new(@families, fn family ->
           path = Path.join(@sources, "leapfrog_chain_#{family}.comp")
           @external_resource path
           source = File.read!(path)
           [_, push] = Regex.run(~r/uniform Push \{(.*?)\}/s, source)

           {family,
            %{
              name: Atom.to_string(family),
              push_fields: for([_, field] <- Regex.scan(~r/REAL (\w+);/, push), field != "eps", do: field),
              derived_block: body.(source, "derived"),
              grad_block: body.(source, "grad"),
              logp_block: body.(source, "logp")
            }}
         end)

  @doc """
  The names of all families.
  """
  @spec families() :: [atom]
  def families, do: @families

  @doc """
  The spec of a family by its name, of type `dtype`, with the values of its parameters in the order of `:push_fields`.

  ## Errors

  `ArgumentError` for a name that is none of `families/0`, and another type.
  """
  @spec family(atom, :f32 | :f64, [number]) :: FamilySpec.t()
  def family(name, dtype \\ :f32, params \\ [])

  def family(name, dtype, params) when name in @families do
    FamilySpec |> struct!(Map.merge(@specs[name], %{dtype: dtype, params: params})) |> FamilySpec.check!()
  end

  def family(name, _dtype, _params) do
    raise ArgumentError,
          "expected a family, one of #{Enum.map_join(@families, ", ", &inspect/1)}, got: #{inspect(name)}"
  end

  @doc "Beta(alpha, beta) on the logit scale; parameters alpha, beta, logp_const."
  @spec beta() :: FamilySpec.t()
  def beta, do: family(:beta)

  @doc "Gamma(alpha, rate) on the log scale; parameters alpha, rate, logp_const."
  @spec gamma() :: FamilySpec.t()
  def gamma, do: family(:gamma)

  @doc "LogNormal(mu, sigma) on the log scale; parameters mu, sigma."
  @spec lognormal() :: FamilySpec.t()
  def lognormal, do: family(:lognormal)

  @doc "The push data of `beta/0`: 24 bytes."
  @spec beta_push(non_neg_integer, pos_integer, number, number, number, number) :: binary
  def beta_push(n, k, eps, alpha, beta, logp_const), do: push(%{beta() | params: [alpha, beta, logp_const]}, n, k, eps)

  @doc "The push data of `gamma/0`: 24 bytes."
  @spec gamma_push(non_neg_integer, pos_integer, number, number, number, number) :: binary
  def gamma_push(n, k, eps, alpha, rate, logp_const),
    do: push(%{gamma() | params: [alpha, rate, logp_const]}, n, k, eps)

  @doc "The push data of `lognormal/0`: 20 bytes."
  @spec lognormal_push(non_neg_integer, pos_integer, number, number, number) :: binary
  def lognormal_push(n, k, eps, mu, sigma), do: push(%{lognormal() | params: [mu, sigma]}, n, k, eps)

  @doc """
  The push data of a chain of `k` steps of `eps` on `n` elements, with the parameters that the spec has.

  ## Errors

  `ArgumentError` unless the spec has a value for each of its parameters, for numbers that the push data can't hold, and
  for a batched spec.
  """
  @spec push(FamilySpec.t(), non_neg_integer, pos_integer, number) :: binary
  def push(%FamilySpec{batched: true, name: name}, _n, _k, _eps) do
    raise ArgumentError, "#{name} is batched: its push data comes from Nx.Vulkan.ChainShaderSpecsF64.batch_push/5"
  end

  def push(%FamilySpec{} = spec, n, k, eps) do
    floats = floats(spec, eps)
    words(n: n, k: k) <> floats
  end

  @doc false
  def floats(%FamilySpec{} = spec, eps) do
    %{dtype: dtype, params: params} = FamilySpec.check!(spec)

    if length(params) != length(spec.push_fields) do
      raise ArgumentError,
            "#{spec.name} has the parameters #{Enum.join(spec.push_fields, ", ")}, got #{inspect(params)}"
    end

    for x <- [eps | params], into: <<>>, do: float(dtype, x)
  end

  defp float(:f64, x) when is_number(x) and abs(x) <= @most_f64, do: <<x::float-64-little>>
  defp float(:f32, x) when is_number(x) and abs(x) <= @most_f32, do: <<x::float-32-little>>

  defp float(dtype, x) do
    got = if is_integer(x) and abs(x) > @most_f64, do: "an integer of more than 308 digits", else: inspect(x)
    raise ArgumentError, "expected eps and parameters to be numbers that #{dtype} holds, got: #{got}"
  end

  @doc false
  # Unsigned numbers of 32 bits.
  def words(numbers) do
    for {name, number} <- numbers, into: <<>> do
      if not (is_integer(number) and number in 0..0xFFFFFFFF) do
        raise ArgumentError, "expected #{name} to be an integer from 0 to 2^32 - 1, got: #{inspect(number)}"
      end

      <<number::32-little>>
    end
  end
end
