defmodule Nx.Vulkan.Conformance.Graphs do
  @moduledoc """
  Random expression graphs: compiled, they have to give the bits that their ops give one by one.

  A graph is a list of steps, each of an op and the places of its operands among the inputs and earlier results. It
  comes from a seed; another gives the values.
  """

  import Nx.Vulkan.Conformance

  alias Nx.Vulkan.VulkanoBackend

  @sizes [1, 2, 3, 5, 8, 16, 17, 33]
  @unary [:negate, :abs, :exp, :tanh, :sin, :sigmoid, :floor, :sign, :cos, :square]
  @binary [:add, :subtract, :multiply, :max, :min, :atan2]
  @reductions [:sum, :reduce_max, :reduce_min, :mean, :product]

  @doc """
  Runs the graph of `kind` (with as many steps) on values of `seed`, op by op and compiled by `compiler`, and compares.
  """
  def check(kind, seed, steps, compiler) do
    :rand.seed(:exsss, kind)
    shapes = for _ <- 1..(1 + :rand.uniform(3)), do: shape()
    graph = build(shapes, steps)
    :rand.seed(:exsss, seed)
    tensors = for shape <- shapes, do: random(shape, {:f, 32}, -2, 2)
    fun = &evaluate(graph, [&1 | &2])
    args = Enum.map(tensors, &Nx.backend_copy(&1, VulkanoBackend))
    [first | rest] = args
    rest = List.to_tuple(rest)
    fun = fn first, rest -> fun.(first, Tuple.to_list(rest)) end

    # Through the evaluator, for Nx moves numbers in the expression that it makes of a function: x + (y - 1) is (x + y)
    # - 1 there.
    eager = Nx.Defn.jit_apply(fun, [first, rest], compiler: Nx.Defn.Evaluator)
    compiled = Nx.Defn.jit_apply(fun, [first, rest], compiler: compiler)

    try do
      for {c, e} <- Enum.zip(Tuple.to_list(compiled), Tuple.to_list(eager)) do
        assert_close(Nx.backend_copy(c, Nx.BinaryBackend), Nx.backend_copy(e, Nx.BinaryBackend), ulp: 0)
      end
    rescue
      error in ExUnit.AssertionError ->
        text = "#{error.message}\nin the graph of #{inspect(shapes)}:\n#{Enum.map_join(graph, "\n", &inspect/1)}"
        reraise %{error | message: text}, __STACKTRACE__
    end
  end

  defp shape, do: 1..:rand.uniform(3) |> Enum.map(fn _ -> pick(@sizes) end) |> List.to_tuple()
  defp pick(list), do: Enum.random(list)

  # Steps with the shapes that they give, tracked on the way.
  defp build(shapes, count) do
    {graph, _shapes} = Enum.map_reduce(1..count, shapes, fn _, shapes -> step(shapes, 8) end)
    graph
  end

  defp step(shapes, 0), do: {{:unary, :negate, [length(shapes) - 1]}, shapes ++ [List.last(shapes)]}

  defp step(shapes, tries) do
    # Later results are likelier: chains grow long.
    at = length(shapes) - 1 - min(:rand.uniform(length(shapes)), :rand.uniform(length(shapes))) + 1
    shape = Enum.at(shapes, at)
    rank = tuple_size(shape)

    made =
      case pick([
             :unary,
             :unary,
             :binary,
             :binary,
             :binary,
             :number,
             :reduce,
             :move,
             :slice,
             :select,
             :dot,
             :cond,
             :cast
           ]) do
        :unary -> {{:unary, pick(@unary), [at]}, shape}
        :number -> {{:number, pick(@binary -- [:atan2]), [at], pick([-1, 0, 0.5, 2])}, shape}
        :cast -> {{:cast, [at], pick([:s32, :f16, :u8, :bf16])}, shape}
        :binary -> binary(shapes, at, shape)
        :select -> with {{:binary, _, places}, shape} <- binary(shapes, at, shape), do: {{:select, places}, shape}
        :reduce when rank > 0 -> reduce(at, shape, rank)
        :move when rank > 0 -> move(at, shape, rank)
        :slice when rank > 0 -> slice(at, shape, rank)
        :dot when rank == 2 -> {{:dot, [at]}, {elem(shape, 1), elem(shape, 1)}}
        :cond -> {{:cond, [at]}, shape}
        _ -> nil
      end

    case made do
      {step, shape} -> {step, shapes ++ [shape]}
      nil -> step(shapes, tries - 1)
    end
  end

  defp binary(shapes, at, shape) do
    candidates =
      for {other, i} <- Enum.with_index(shapes),
          joint = joint(shape, other),
          do: {{:binary, pick(@binary), [at, i]}, joint}

    if candidates == [], do: nil, else: pick(candidates)
  end

  # The shape that two broadcast to, or nil.
  defp joint(a, b) do
    rank = max(tuple_size(a), tuple_size(b))
    [a, b] = for shape <- [a, b], do: List.duplicate(1, rank - tuple_size(shape)) ++ Tuple.to_list(shape)
    pairs = Enum.zip(a, b)
    fits = Enum.all?(pairs, fn {n, m} -> n == m or n == 1 or m == 1 end)
    sizes = Enum.map(pairs, fn {n, m} -> max(n, m) end)
    if fits and Enum.product(sizes) <= 4096, do: List.to_tuple(sizes)
  end

  defp reduce(at, shape, rank) do
    axis = :rand.uniform(rank) - 1
    keep = pick([true, false])
    shape = if keep, do: put_elem(shape, axis, 1), else: Tuple.delete_at(shape, axis)
    {{:reduce, pick(@reductions), [at], [axes: [axis], keep_axes: keep]}, shape}
  end

  defp move(at, shape, rank) do
    case pick([:transpose, :reverse, :flatten, :pad, :concatenate]) do
      :transpose -> {{:transpose, [at]}, shape |> Tuple.to_list() |> Enum.reverse() |> List.to_tuple()}
      :reverse -> {{:reverse, [at], :rand.uniform(rank) - 1}, shape}
      :flatten -> {{:flatten, [at]}, {Tuple.product(shape)}}
      :pad -> {{:pad, [at], 1}, put_elem(shape, rank - 1, elem(shape, rank - 1) + 1)}
      :concatenate -> {{:concatenate, [at]}, put_elem(shape, 0, 2 * elem(shape, 0))}
    end
  end

  defp slice(at, shape, rank) do
    axis = :rand.uniform(rank) - 1
    size = elem(shape, axis)
    start = :rand.uniform(size) - 1
    {{:slice, [at], axis, start, size - start}, put_elem(shape, axis, size - start)}
  end

  defp evaluate(graph, inputs) do
    values = Enum.reduce(graph, inputs, fn step, values -> values ++ [apply_step(step, values)] end)
    # The last results, and one from the middle that others use.
    values |> Enum.take(-3) |> Kernel.++([Enum.at(values, div(length(values), 2))]) |> List.to_tuple()
  end

  defp apply_step(step, values) do
    at = &Enum.at(values, &1)

    case step do
      {:unary, :square, [i]} -> Nx.multiply(at.(i), at.(i))
      {:unary, op, [i]} -> apply(Nx, op, [at.(i)])
      {:number, op, [i], number} -> apply(Nx, op, [at.(i), number])
      # Within what every one of these types holds.
      {:cast, [i], type} -> at.(i) |> Nx.clip(0, 100) |> Nx.as_type(type) |> Nx.as_type(:f32)
      {:binary, op, [i, j]} -> apply(Nx, op, [at.(i), at.(j)])
      {:select, [i, j]} -> Nx.select(Nx.greater(at.(i), at.(j)), at.(i), at.(j))
      {:reduce, op, [i], opts} when op in [:sum, :mean, :product] -> apply(Nx, op, [Nx.sigmoid(at.(i)), opts])
      {:reduce, op, [i], opts} -> apply(Nx, op, [at.(i), opts])
      {:transpose, [i]} -> Nx.transpose(at.(i))
      {:reverse, [i], axis} -> Nx.reverse(at.(i), axes: [axis])
      {:flatten, [i]} -> Nx.flatten(at.(i))
      {:pad, [i], value} -> pad(at.(i), value)
      {:concatenate, [i]} -> Nx.concatenate([at.(i), Nx.negate(at.(i))], axis: 0)
      {:slice, [i], axis, start, length} -> Nx.slice_along_axis(at.(i), start, length, axis: axis)
      {:dot, [i]} -> Nx.dot(at.(i), [0], Nx.tanh(at.(i)), [0])
      {:cond, [i]} -> branch(at.(i))
    end
  end

  defp pad(tensor, value) do
    config = List.duplicate({0, 0, 0}, Nx.rank(tensor) - 1) ++ [{0, 1, 0}]
    Nx.pad(tensor, value, config)
  end

  # Eagerly as well: through a numerical definition.
  defp branch(tensor), do: __MODULE__.Branch.branch(tensor)

  defmodule Branch do
    @moduledoc false
    import Nx.Defn

    defn branch(x) do
      if Nx.sum(x) > 0 do
        y = Nx.exp(Nx.min(x, 2))
        y + x
      else
        {_, x} =
          while {i = 0, x}, i < 3 do
            {i + 1, x * 0.5 + i}
          end

        x
      end
    end
  end
end
