defmodule Nx.Vulkan.Block do
  @moduledoc false

  # Functions of Nx.Vulkan that the engine has. Each is a block as Nx's own are: a struct of the name and the attributes
  # of the engine's op, which `Nx.Vulkan.Ops` finds, and steps in Nx's ops, which other backends run and gradients
  # follow.

  alias Nx.Defn.{Expr, Kernel}
  alias Nx.Tensor, as: T

  defmodule Log2 do
    @moduledoc false
    defstruct []
  end

  @doc "The modules whose structs are blocks."
  @spec parents() :: [module]
  def parents, do: [Nx.Block, Nx.Block.LinAlg, __MODULE__]

  @doc "`Nx.Vulkan.log2/1`."
  @spec log2(Nx.Tensor.t() | number) :: T.t()
  def log2(tensor) do
    %T{vectorized_axes: axes} = tensor = Nx.to_tensor(tensor)
    tensor |> Nx.devectorize() |> log2_of() |> Nx.vectorize(axes)
  end

  defp log2_of(%T{type: {:c, _}} = tensor), do: tensor |> Nx.log() |> Nx.divide(ln2(Nx.Type.to_real(tensor.type)))

  defp log2_of(tensor) do
    out = Nx.template(tensor.shape, Nx.Type.to_floating(tensor.type), names: tensor.names)
    Nx.block(%Log2{}, [tensor], out, fn %Log2{}, x -> x |> log2_steps(out.type) |> Nx.as_type(out.type) end)
  end

  # The exponents of powers of two.
  defp log2_steps(x, {:f, 64}), do: log2_steps(Nx.as_type(x, :f64), -1074, 1023)
  defp log2_steps(x, _type), do: log2_steps(Nx.as_type(x, :f32), -149, 127)

  # Of a power of two the quotient may be a unit off. What puts that right has no gradient.
  defp log2_steps(x, least, most) do
    quotient = x |> Nx.log() |> Nx.divide(ln2(x.type))
    whole = quotient |> Nx.clip(least, most) |> Nx.round()
    power? = Nx.logical_and(Nx.greater(x, 0), Nx.equal(Nx.pow(2, whole), x))
    rest = Nx.select(power?, Nx.subtract(whole, quotient), 0)
    Nx.add(quotient, without_gradient(rest))
  end

  # Nx.BinaryBackend would take a number for an f32.
  defp ln2(type), do: Nx.tensor(:math.log(2), type: type, backend: Nx.BinaryBackend)

  defp without_gradient(%T{data: %Expr{}} = expr), do: Kernel.stop_grad(expr)
  defp without_gradient(tensor), do: tensor
end
