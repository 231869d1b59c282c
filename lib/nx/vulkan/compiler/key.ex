defmodule Nx.Vulkan.Compiler.Key do
  @moduledoc false

  # What stands for a function in the cache. Hashing or copying a term takes every path to what its parts share, which are 2^n in n
  # sums of an expression with itself. So a function that captured expressions, as the stages of `Nx.Defn.Graph` do, is written
  # as a list in which every expression stands once, under its id.

  alias Nx.Defn.Expr
  alias Nx.Tensor, as: T

  @doc "The key of what `Nx.Defn` gives as one: a function, as it is unless it captured expressions, or any other term."
  @spec of(term) :: term
  def of(key) when is_function(key) do
    case Function.info(key, :env) do
      {:env, [_ | _] = env} -> if captures?(env), do: flat(key, env), else: key
      _ -> key
    end
  end

  def of(key), do: key

  defp captures?(%T{data: data}), do: is_struct(data, Expr)
  defp captures?([head | tail]), do: captures?(head) or captures?(tail)
  defp captures?(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> captures?()
  defp captures?(map) when is_map(map), do: map |> :maps.to_list() |> captures?()
  defp captures?(fun) when is_function(fun), do: fun |> Function.info(:env) |> elem(1) |> captures?()
  defp captures?(_other), do: false

  defp flat(fun, env) do
    {env, seen} = flatten(env, %{})
    {code(fun), env, seen}
  end

  defp code(fun), do: for(item <- [:module, :name, :arity, :new_uniq], do: Function.info(fun, item))

  # The term with ids in place of expressions, and the expressions by id.
  defp flatten(%T{data: %Expr{id: id, op: op, args: args, context: context}} = tensor, seen) do
    if is_map_key(seen, id) do
      {{Expr, id}, seen}
    else
      {args, seen} = flatten(args, Map.put(seen, id, nil))
      {{Expr, id}, Map.put(seen, id, {%{tensor | data: nil}, op, context, args})}
    end
  end

  defp flatten([head | tail], seen) do
    {head, seen} = flatten(head, seen)
    {tail, seen} = flatten(tail, seen)
    {[head | tail], seen}
  end

  defp flatten(tuple, seen) when is_tuple(tuple) do
    {list, seen} = tuple |> Tuple.to_list() |> flatten(seen)
    {List.to_tuple(list), seen}
  end

  defp flatten(map, seen) when is_map(map) do
    {list, seen} = map |> :maps.to_list() |> flatten(seen)
    {Map.new(list), seen}
  end

  defp flatten(fun, seen) when is_function(fun) do
    case Function.info(fun, :env) do
      {:env, [_ | _] = env} ->
        {env, seen} = flatten(env, seen)
        {{code(fun), env}, seen}

      _ ->
        {fun, seen}
    end
  end

  defp flatten(other, seen), do: {other, seen}
end
