defmodule Nx.Vulkan.ShaderTemplate.FamilySpec do
  @moduledoc """
  A family of distributions, of which `Nx.Vulkan.ShaderTemplate` makes the shader of a leapfrog chain on `n` independent
  elements.

    * `:name` - for messages and for whoever reads the source
    * `:push_fields` - the names of the family's parameters, in the order in which the push data has them
    * `:grad_block` - GLSL that sets `grad`, the derivative of the log density at `q`, or returns it
    * `:grad_block_n` - the same for every position but the first; `:grad_block` unless set
    * `:logp_block` - GLSL that sets `logp`, the log density of one element at `q`, or returns it
    * `:logp_final` - GLSL that changes `logp`, which is the sum over all elements of a step; `n` is their number
    * `:derived_block` - GLSL that sets `derived`, what depends on the parameters alone; the other blocks read it
    * `:helpers` - GLSL functions for the blocks
    * `:dtype` - `:f32` or `:f64`
    * `:params` - values of the parameters, for `Nx.Vulkan.ChainShaderSpecs.push/4`
    * `:batched` - whether the shader runs many instances; see `Nx.Vulkan.ChainShaderSpecsF64.batched/1`

  In blocks `REAL` is the float type and `FN(exp)` the library's function of that type, for every op of Nx with a scalar
  function of that name: `FN(log1p)`, `FN(erf)`, `FN(tanh)`. GLSL's own `exp` has no f64 form. A number such as `0.1` is
  an f32 number in GLSL, in f64 `0.1LF`.
  """

  @enforce_keys [:name, :grad_block, :logp_block]
  defstruct name: nil,
            push_fields: [],
            grad_block: nil,
            grad_block_n: nil,
            logp_block: nil,
            logp_final: nil,
            derived_block: nil,
            helpers: nil,
            dtype: :f32,
            params: [],
            batched: false

  @type t :: %__MODULE__{
          name: String.t(),
          push_fields: [String.t() | atom],
          grad_block: String.t(),
          grad_block_n: String.t() | nil,
          logp_block: String.t(),
          logp_final: String.t() | nil,
          derived_block: String.t() | nil,
          helpers: String.t() | nil,
          dtype: :f32 | :f64,
          params: [number],
          batched: boolean
        }

  @doc false
  # What every reader of a spec takes for granted.
  @spec check!(t) :: t
  def check!(%__MODULE__{} = spec) do
    if spec.dtype not in [:f32, :f64], do: refuse(spec, "dtype is :f32 or :f64, not #{inspect(spec.dtype)}")
    if not is_boolean(spec.batched), do: refuse(spec, "batched is true or false, not #{inspect(spec.batched)}")

    if not list_of?(spec.push_fields, &(is_binary(&1) or (is_atom(&1) and &1 != nil))),
      do: refuse(spec, "push_fields is a list of names, strings or atoms, not #{inspect(spec.push_fields)}")

    if not list_of?(spec.params, fn _ -> true end),
      do: refuse(spec, "params is a list of numbers, not #{inspect(spec.params)}")

    spec
  end

  defp list_of?(list, is?), do: is_list(list) and not List.improper?(list) and Enum.all?(list, is?)

  @spec refuse(t, String.t()) :: no_return
  defp refuse(%{name: name}, what),
    do: raise(ArgumentError, "#{if is_binary(name), do: name, else: inspect(name)}: #{what}")
end
