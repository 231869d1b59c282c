defmodule Nx.Vulkan.Chain.Closure do
  @moduledoc false

  # Functions with the tensors that they captured on another backend. Nx takes tensors of Nx.BinaryBackend alone into expressions,
  # and a function can't be traced with those of a device.

  alias Nx.Defn.{Expr, Tree}
  alias Nx.Tensor, as: T

  # The tag of a function, and what precedes a term (External Term Format of Erlang/OTP).
  @function 112
  @version 131

  @doc """
  `fun` with copies on `Nx.BinaryBackend` of what it captured on devices, in containers, in functions and in terms of any kind, too. It is
  the same function where there is none.
  """
  @spec on_binary_backend(fun) :: fun
  def on_binary_backend(fun) when is_function(fun), do: term(fun)

  @doc """
  `expr` with gradients that Nx can take where functions of captured tensors alone have gradients of their own, as `Nx.LinAlg.cholesky/1` has: Nx leaves the
  tensors there as they are, and looks for expressions.
  """
  @spec with_constant_inputs(T.t()) :: T.t()
  def with_constant_inputs(%T{} = expr) do
    {rewritten, seen} = constant_inputs(expr, %{})
    if Map.has_key?(seen, :found), do: rewritten, else: expr
  end

  defp constant_inputs(%T{data: %Expr{id: id}} = tensor, seen) do
    case seen do
      %{^id => rewritten} ->
        {rewritten, seen}

      _ ->
        {args, seen} = Tree.apply_args(tensor, :scope, seen, &constant_inputs/2)
        {args, seen} = own_gradient(args, seen)
        rewritten = put_in(tensor.data.args, args)
        {rewritten, Map.put(seen, id, rewritten)}
    end
  end

  defp constant_inputs(other, seen), do: {other, seen}

  defp own_gradient([inner, %{custom_grad: {inputs, fun}} = metadata], seen) do
    {inputs, seen} = Enum.map_reduce(inputs, seen, &expression/2)
    {[inner, %{metadata | custom_grad: {inputs, fun}}], seen}
  end

  defp own_gradient(args, seen), do: {args, seen}

  defp expression(%T{data: %Expr{}} = input, seen), do: constant_inputs(input, seen)
  defp expression(input, seen), do: {Expr.tensor(input), Map.put(seen, :found, true)}

  defp term(%T{data: %backend{}} = tensor) do
    if backend in [Nx.BinaryBackend, Nx.TemplateBackend, Nx.Defn.Expr],
      do: tensor,
      else: Nx.backend_copy(tensor, Nx.BinaryBackend)
  end

  defp term(map) when is_map(map), do: :maps.map(fn _key, value -> term(value) end, map)
  defp term(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> term() |> List.to_tuple()
  defp term([head | tail]), do: [term(head) | term(tail)]
  defp term(fun) when is_function(fun), do: function(fun)
  defp term(other), do: other

  defp function(fun) do
    with {:type, :local} <- Function.info(fun, :type),
         {:env, [_ | _] = env} <- Function.info(fun, :env),
         copied when copied != env <- term(env) do
      with_env(fun, copied)
    else
      _ -> fun
    end
  end

  # The VM makes functions of the same code with other values only when it reads them.
  defp with_env(fun, env) do
    info = Map.new(Function.info(fun))

    rest =
      IO.iodata_to_binary([
        [info.arity, info.new_uniq, <<info.new_index::32, length(env)::32>>],
        Enum.map([info.module, info.index, info.uniq, info.pid | env], &external/1)
      ])

    :erlang.binary_to_term(<<@version, @function, byte_size(rest) + 4::32, rest::binary>>)
  end

  defp external(term) do
    <<@version, external::binary>> = :erlang.term_to_binary(term)
    external
  end
end
