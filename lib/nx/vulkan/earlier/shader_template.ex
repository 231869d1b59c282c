defmodule Nx.Vulkan.ShaderTemplate do
  @moduledoc """
  Writes the GLSL of a leapfrog chain from a `Nx.Vulkan.ShaderTemplate.FamilySpec`.

  It is the skeleton of the families in `priv/shaders`: K steps in one dispatch, for elements that are independent of
  each other, a workgroup of 256 adding up the log density by a fixed tree. `Nx.Vulkan.NativeV.leapfrog_chain_synth/6`
  or its f64 twin runs it.

  ## Push data

  `n` and `k` as 32-bit numbers, `eps` and the parameters as floats of the spec's type, all little-endian; in f64 `eps`
  stands at byte 8. A batched shader has the header of `Nx.Vulkan.NativeV.leapfrog_chain_synth_batch/6` before its
  parameters.

  ## Bindings

  0 q, 1 p, 2 the inverse mass, 3 q of every step, 4 p, 5 the gradient, 6 the log density.
  """

  alias Nx.Vulkan.ShaderTemplate.{FamilySpec, Library}

  # What every Vulkan device grants.
  @max_push_bytes 128

  # The names that blocks find in scope, and GLSL's own that a parameter is most likely to be called.
  @reserved ~w(n K eps n_obs n_instances q grad logp derived main double float uint int bool in out)

  @doc """
  The source of the chain.

  ## Errors

  `ArgumentError` where a block is missing, a field of the spec is not of its type, a parameter has no name for GLSL, or
  they take more than 128 bytes of push data.
  """
  @spec render(FamilySpec.t()) :: String.t()
  def render(%FamilySpec{} = spec) do
    fields = fields!(spec)
    family = family(spec)

    """
    #version 460
    // A leapfrog chain on n independent elements: #{spec.name}
    #{if spec.dtype == :f64, do: "#define F64"}
    #{if spec.batched, do: "#define BATCHED"}
    #{Library.inline("real.glsl", spec.dtype, family)}
    layout(push_constant, std430) uniform Push {
    #{header(spec)}
        REAL eps;
    #{for field <- fields, do: "    REAL #{field};\n"}};

    #{family}
    #{Library.inline("chain.glsl", spec.dtype, "")}
    """
  end

  @doc """
  The bytes of push data that the shader declares.
  """
  @spec push_bytes(FamilySpec.t()) :: pos_integer
  def push_bytes(%FamilySpec{} = spec) do
    %{push_fields: fields, dtype: dtype, batched: batched} = FamilySpec.check!(spec)
    header = if batched, do: 16, else: 8
    header + width(dtype) * (1 + length(fields))
  end

  defp header(%{batched: false}), do: "    uint n;\n    uint K;"
  defp header(%{batched: true}), do: "    uint K;\n    uint n_obs;\n    uint n;\n    uint n_instances;"

  defp family(spec) do
    """
    #{spec.helpers}
    REAL family_derived() {
        REAL derived = REAL(0);
        #{spec.derived_block}
        return derived;
    }

    REAL family_grad(const in REAL q, const in REAL derived) {
        REAL grad = REAL(0);
        #{spec.grad_block}
        return grad;
    }

    REAL family_logp(const in REAL q, const in REAL derived) {
        REAL logp = REAL(0);
        #{spec.logp_block}
        return logp;
    }
    #{next(spec.grad_block_n)}#{final(spec.logp_final)}
    """
  end

  defp next(nil), do: ""

  defp next(block) do
    """

    REAL family_grad_next(const in REAL q, const in REAL derived) {
        REAL grad = REAL(0);
        #{block}
        return grad;
    }
    #define FAMILY_GRAD_NEXT family_grad_next
    """
  end

  defp final(nil), do: ""

  defp final(block) do
    """

    REAL family_logp_final(const in REAL sum) {
        REAL logp = sum;
        #{block}
        return logp;
    }
    #define FAMILY_LOGP_FINAL(logp) family_logp_final(logp)
    """
  end

  defp fields!(%FamilySpec{} = spec) do
    if not (is_binary(spec.name) and spec.name =~ ~r/\A[\w .,()-]+\z/),
      do: refuse("the name #{inspect(spec.name)} of a family")

    FamilySpec.check!(spec)

    for key <- [:grad_block, :logp_block],
        not is_binary(Map.fetch!(spec, key)),
        do: refuse("#{spec.name}: #{key} is no text")

    for key <- [:grad_block_n, :logp_final, :derived_block, :helpers],
        block = Map.fetch!(spec, key),
        not is_binary(block),
        do: refuse("#{spec.name}: #{key} is no text")

    # Specs of earlier programs have the type before the name.
    fields = Enum.map(spec.push_fields, &(&1 |> to_string() |> String.replace(~r/\A(float|double|REAL)\s+/, "")))

    for field <- fields,
        not (field =~ ~r/\A[a-zA-Z]\w*\z/) or field in @reserved,
        do: refuse("#{spec.name}: parameter #{inspect(field)}")

    if Enum.uniq(fields) != fields, do: refuse("#{spec.name}: parameters #{inspect(fields)}")

    if push_bytes(spec) > @max_push_bytes do
      refuse(
        "#{spec.name}: #{length(fields)} parameters take #{push_bytes(spec)} bytes of push data, " <>
          "more than #{@max_push_bytes}"
      )
    end

    fields
  end

  @spec refuse(String.t()) :: no_return
  defp refuse(what), do: raise(ArgumentError, "no shader can be made of #{what}")

  defp width(:f64), do: 8
  defp width(:f32), do: 4
end
