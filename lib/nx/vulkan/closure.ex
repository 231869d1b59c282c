defmodule Nx.Vulkan.Closure do
  @moduledoc false

  # Functions with other tensors in the place of those that they captured, for tracing: Nx takes neither tensors of a
  # device into expressions, nor those of two backends into one op.

  alias Nx.Tensor, as: T

  # The tag of a function, and what precedes a term (External Term Format of Erlang/OTP).
  @function 112
  @version 131

  # Before the first term of a list: the version, the tag of lists and the length.
  @list_head_bytes 6

  @doc """
  `fun` with copies on `Nx.BinaryBackend` of what it captured on devices, in containers, in functions and in terms of
  any kind, too. It is the same function where there is none.
  """
  @spec on_binary_backend(fun) :: fun
  def on_binary_backend(fun) do
    map(fun, fn %T{data: %backend{}} = tensor ->
      if backend in [Nx.BinaryBackend, Nx.TemplateBackend, Nx.Defn.Expr],
        do: tensor,
        else: Nx.backend_copy(tensor, Nx.BinaryBackend)
    end)
  end

  @doc """
  `fun` with `change` applied to each tensor that it captured, wherever it is. It is the same function where nothing
  changes.
  """
  @spec map(fun, (T.t() -> T.t())) :: fun
  def map(fun, change) when is_function(fun), do: term(fun, change)

  @doc """
  The tensors in a term of any kind, those that functions captured among them.
  """
  @spec tensors(term) :: [T.t()]
  def tensors(term), do: collected(term, [])

  defp collected(%T{} = tensor, found), do: [tensor | found]
  defp collected(map, found) when is_map(map), do: map |> Map.values() |> collected(found)
  defp collected(tuple, found) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> collected(found)
  defp collected([head | tail], found), do: collected(tail, collected(head, found))
  defp collected(fun, found) when is_function(fun), do: fun |> Function.info(:env) |> elem(1) |> collected(found)
  defp collected(_other, found), do: found

  defp term(%T{} = tensor, change), do: change.(tensor)
  defp term(map, change) when is_map(map), do: :maps.map(fn _key, value -> term(value, change) end, map)
  defp term(tuple, change) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> term(change) |> List.to_tuple()
  defp term([head | tail], change), do: [term(head, change) | term(tail, change)]
  defp term(fun, change) when is_function(fun), do: function(fun, change)
  defp term(other, _change), do: other

  defp function(fun, change) do
    with {:type, :local} <- Function.info(fun, :type),
         {:env, [_ | _] = env} <- Function.info(fun, :env),
         changed when changed != env <- term(env, change) do
      with_env(fun, changed)
    else
      _ -> fun
    end
  end

  # The VM makes functions of the same code with other values only when it reads them.
  defp with_env(fun, env) do
    info = Map.new(Function.info(fun))
    head = <<info.arity, info.new_uniq::binary, info.new_index::32, length(env)::32>>
    # The terms one after the other are what a list has between its length and its end.
    list = :erlang.term_to_binary([info.module, info.index, info.uniq, info.pid | env])
    terms = binary_part(list, @list_head_bytes, byte_size(list) - @list_head_bytes - 1)
    size = byte_size(head) + byte_size(terms) + 4
    :erlang.binary_to_term(<<@version, @function, size::32, head::binary, terms::binary>>)
  end
end
