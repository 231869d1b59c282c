defmodule Nx.Vulkan.Earlier do
  @moduledoc false

  # What `Nx.Vulkan` has for programs of earlier versions: elementwise ops by their names, and the chain of one family.

  alias Nx.Vulkan.{ChainShaderSpecs, NativeV}

  @unary ~w(exp log sqrt abs negate sigmoid tanh relu ceil floor sign reciprocal square erf expm1 log1p)a
  @binary ~w(add multiply subtract divide pow max min)a

  @doc "The ops that `fused_chain/3` takes."
  def fused_ops, do: @unary ++ @binary

  @doc "See `Nx.Vulkan.fused_chain/3`."
  def fused_chain(a, b, ops) do
    if not (is_list(ops) and ops != [] and not List.improper?(ops)),
      do: raise(ArgumentError, "expected a list of ops, got: #{inspect(ops)}")

    Enum.reduce(ops, a, &fused_op(short(&1), &2, b))
  end

  defp short(:mul), do: :multiply
  defp short(:sub), do: :subtract
  defp short(:div), do: :divide
  defp short(:neg), do: :negate
  defp short(op), do: op

  defp fused_op(:relu, x, _b), do: Nx.max(x, 0)
  defp fused_op(:reciprocal, x, _b), do: Nx.divide(1, x)
  defp fused_op(:square, x, _b), do: Nx.multiply(x, x)
  defp fused_op(op, x, _b) when op in @unary, do: apply(Nx, op, [x])
  defp fused_op(op, x, b) when op in @binary, do: apply(Nx, op, [x, b])
  defp fused_op(op, _x, _b), do: raise(ArgumentError, "no elementwise op of a chain: #{inspect(op)}")

  @doc "See `Nx.Vulkan.leapfrog_chain_normal/7`."
  def leapfrog_chain_normal(q, p, inv_mass, k, eps, mu, sigma) when is_integer(k) do
    for {name, tensor} <- [q: q, p: p, inv_mass: inv_mass], do: plain!(name, tensor)
    type = if Nx.type(q) == {:f, 64}, do: :f64, else: :f32
    spec = ChainShaderSpecs.family(:normal, type, [mu, sigma])
    spv = Application.app_dir(:nx_vulkan, "priv/shaders/leapfrog_chain_normal#{if type == :f64, do: "_f64"}.spv")
    push = ChainShaderSpecs.push(spec, Nx.size(q), k, eps)
    [q, p, inv_mass] = for tensor <- [q, p, inv_mass], do: tensor |> Nx.as_type(type) |> Nx.to_binary()

    with true <- byte_size(q) == byte_size(p) and byte_size(q) == byte_size(inv_mass),
         {:ok, {q, p, grad, logp}} <- run_chain(type, q, p, inv_mass, push, k, spv) do
      [q, p, grad] = for chain <- [q, p, grad], do: chain |> Nx.from_binary(type) |> Nx.reshape({k, :auto})
      {:ok, {q, p, grad, Nx.from_binary(logp, type)}}
    else
      false -> {:error, :size_mismatch}
      failure -> failure
    end
  end

  def leapfrog_chain_normal(_q, _p, _inv_mass, k, _eps, _mu, _sigma) do
    raise ArgumentError, "expected k to be an integer, got: #{inspect(k)}"
  end

  # A conversion to reals would drop imaginary parts, and sizes don't count vectorized axes.
  defp plain!(name, tensor) do
    if Nx.Type.complex?(Nx.type(tensor)) do
      raise ArgumentError,
            "expected #{name} to be real, got a tensor of type #{Nx.Type.to_string(Nx.type(tensor))}: " <>
              "give its parts apart, by Nx.real/1 and Nx.imag/1"
    end

    with %Nx.Tensor{vectorized_axes: [_ | _] = axes} <- tensor do
      raise ArgumentError,
            "expected #{name} to have no vectorized axes, got #{inspect(axes)}: " <>
              "Nx.devectorize/1 makes plain axes of them, whose elements are independent, too"
    end
  end

  defp run_chain(:f32, q, p, extras, push, k, spv), do: NativeV.leapfrog_chain_synth(q, p, extras, push, k, spv)
  defp run_chain(:f64, q, p, extras, push, k, spv), do: NativeV.leapfrog_chain_synth_f64(q, p, extras, push, k, spv)
end
