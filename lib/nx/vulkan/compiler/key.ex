defmodule Nx.Vulkan.Compiler.Key do
  @moduledoc false

  # What stands for a function in the cache. Hashing or copying a term takes every path to what its parts share, which
  # are 2^n in n sums of an expression with itself. So a function that captured expressions, as the stages of
  # `Nx.Defn.Graph` do, is written as a list in which every expression stands once, under its id. Hashing a binary takes
  # 0.6 ns a byte at every lookup, and comparing it a tenth of that. So large ones leave their size and a few of their
  # bytes in the key, and are compared by themselves.

  alias Nx.Defn.Expr
  alias Nx.Tensor, as: T

  # Hashing a binary of this size takes 0.5 us, as long as taking it out of the key.
  @large_bytes 1024

  @doc """
  The key of what `Nx.Defn` gives as one, a function or any other term, and the large binaries that it captured. Two
  functions are the same where both are equal.
  """
  @spec of(term) :: {term, [bitstring]}
  def of(key) when is_function(key) do
    case Function.info(key, :env) do
      {:env, [_ | _] = env} -> if written?(env), do: flat(key, env), else: {key, []}
      _ -> {key, []}
    end
  end

  def of(key), do: {key, []}

  @doc """
  The module, name and arity of a function that captures nothing but a named one, whether it is called within its module
  or from elsewhere; nil of others. `Nx.Defn` compiles a definition `step` as one that captures `__defn:step__`.
  """
  @spec definition(term) :: {module, String.t(), arity} | nil
  def definition(function) when is_function(function) do
    [module: module, name: name, arity: arity] = for item <- [:module, :name, :arity], do: Function.info(function, item)

    case Atom.to_string(name) do
      "-fun." <> captured -> {module, captured |> String.replace(~r"/\d+-$", "") |> defined(), arity}
      "-" <> _anonymous -> nil
      name -> {module, defined(name), arity}
    end
  end

  def definition(_other), do: nil

  defp defined(name), do: Regex.replace(~r/^__defn:(.+)__$/, name, "\\1")

  # Whether there are expressions or large binaries in a term.
  defp written?(%T{data: %Expr{}}), do: true
  defp written?(%T{data: %Nx.BinaryBackend{state: state}}), do: byte_size(state) >= @large_bytes
  defp written?(%T{data: data}), do: written?(data)
  defp written?([head | tail]), do: written?(head) or written?(tail)
  defp written?(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> written?()
  defp written?(map) when is_map(map), do: map |> :maps.to_list() |> written?()
  defp written?(fun) when is_function(fun), do: fun |> Function.info(:env) |> elem(1) |> written?()
  defp written?(bits) when is_bitstring(bits), do: byte_size(bits) >= @large_bytes
  defp written?(_other), do: false

  defp flat(fun, env) do
    {env, {expressions, large}} = flatten(env, {%{}, []})
    {{code(fun), env, expressions}, large}
  end

  defp code(fun), do: for(item <- [:module, :name, :arity, :new_uniq], do: Function.info(fun, item))

  # The term with ids in place of expressions and samples in place of large binaries, the expressions by id, and the
  # binaries.
  defp flatten(%T{data: %Expr{id: id, op: op, args: args, context: context}} = tensor, {expressions, large} = seen) do
    if is_map_key(expressions, id) do
      {{Expr, id}, seen}
    else
      {args, {expressions, large}} = flatten(args, {Map.put(expressions, id, nil), large})
      {{Expr, id}, {Map.put(expressions, id, {%{tensor | data: nil}, op, context, args}), large}}
    end
  end

  # Of other tensors only the data may be large.
  defp flatten(%T{data: %Nx.BinaryBackend{state: bits}} = tensor, seen) do
    {bits, seen} = flatten(bits, seen)
    {%{tensor | data: bits}, seen}
  end

  defp flatten(%T{data: data} = tensor, seen) do
    {data, seen} = flatten(data, seen)
    {%{tensor | data: data}, seen}
  end

  defp flatten(bits, {expressions, large}) when is_bitstring(bits) and byte_size(bits) >= @large_bytes do
    {{__MODULE__, bit_size(bits), samples(bits)}, {expressions, [bits | large]}}
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

  # Words of 7 bytes, the widest integers that are no bignums.
  defp samples(bits) do
    quarter = div(byte_size(bits), 4)

    <<_::binary-size(quarter), a::56, _::binary-size(quarter), b::56, _::binary-size(quarter), c::56, _::bitstring>> =
      bits

    {a, b, c}
  end
end
