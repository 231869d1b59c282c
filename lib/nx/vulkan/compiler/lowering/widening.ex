defmodule Nx.Vulkan.Compiler.Lowering.Widening do
  @moduledoc false

  # What ops give whose operands are wider than their expression says. Nx's gradient of a `while` begins with f32 zeros
  # whatever the body gives, and traces the body with parameters of that type. Lowering gives such a state the type that
  # holds both, and ops on it are as wide, so that nothing is rounded on the way.

  alias Nx.Defn.Expr
  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Ops

  # Of these the result's type does not follow from the operands'.
  @same Ops.elementwise(:predicate) ++ Ops.elementwise(:cast) ++ [:all, :any, :argmax, :argmin, :argsort]

  # These take operands of the types that they were traced with.
  @narrow Ops.elementwise(:integer) ++ Ops.elementwise(:complex) ++ [:bitcast, :fft, :ifft]

  # Results of these are as wide as their operands; a block is told by its results.
  @wide Ops.elementwise(:number) ++
          (Ops.moves() -- [:bitcast, :constant]) ++
          [:block, :gather, :indexed_add, :indexed_put, :dot, :conv] ++
          [:sum, :product, :reduce_max, :reduce_min, :window_sum, :window_product, :window_max, :window_min] ++
          [:window_scatter_max, :window_scatter_min, :sort, :triangular_solve]

  @unknown for({op, _arguments} <- Ops.callbacks(), do: op) -- (@same ++ @narrow ++ @wide)
  if @unknown != [], do: raise("which types have results of #{inspect(@unknown)} whose operands are wider?")

  @doc "The types of operands that are not what the expression says."
  @spec wide([T.t()], [{term, list}]) :: [Nx.Type.t()]
  def wide(traced, values) do
    for {%T{type: type}, {_, given}} <- Enum.zip(traced, values), type(type, given) != type, do: type(type, given)
  end

  @doc "The type of a value in wire form, where the expression says the first one."
  @spec type(Nx.Type.t(), list) :: Nx.Type.t()
  def type(traced, [name, _]), do: if(Ops.type_name(traced) == name, do: traced, else: Nx.Type.normalize!(name))

  @doc "What becomes of an op with such operands: its result as traced or of another type, or `:narrow` operands."
  @spec result(atom, T.t(), [Nx.Type.t()]) :: T.t() | :narrow
  def result(op, out, _wide) when op in @same, do: out
  def result(op, _out, _wide) when op in @narrow, do: :narrow

  def result(op, out, wide) when op in @wide do
    if Enum.any?([out.type | wide], &match?({:c, _}, &1)),
      do: :narrow,
      else: %{out | type: Enum.reduce(wide, out.type, &Nx.Type.merge/2)}
  end

  @doc "The results of a block: floats are as wide as its operands, numbers of elements stay what they are."
  @spec results([T.t()], [Nx.Type.t()]) :: [T.t()]
  def results(outs, wide) do
    for out <- outs, do: if(match?({:f, _}, out.type), do: result(:block, out, wide) |> kept(out), else: out)
  end

  defp kept(:narrow, out), do: out
  defp kept(result, _out), do: result

  @doc "Numbers beside wider operands, which are rounded no earlier."
  @spec operand(T.t(), Nx.Type.t()) :: T.t()
  def operand(%T{type: {:f, from}, data: %Expr{op: :constant}} = tensor, {:f, to} = type) when to > from do
    %{tensor | type: type, data: %{tensor.data | id: {tensor.data.id, type}}}
  end

  def operand(tensor, _type), do: tensor

  @doc "The type that holds both, in wire form."
  @spec merge(list, list) :: list
  def merge(type, type), do: type

  def merge([a, shape], [b, _]) do
    [Ops.type_name(Nx.Type.merge(Nx.Type.normalize!(a), Nx.Type.normalize!(b))), shape]
  end
end
