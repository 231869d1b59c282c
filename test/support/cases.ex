defmodule Nx.Vulkan.Conformance.Cases do
  @moduledoc """
  Random calls of Nx, compared with `Nx.BinaryBackend`.

  A case comes from two seeds: that of a kind (the op, its types and options, ranks and layouts), and that of the sizes
  and values. Kinds are what costs time, since each needs kernels of its own. Some values are the edges of their type.
  Where `Nx.BinaryBackend` raises for one, the case runs without them.
  """

  import ExUnit.Assertions
  import Nx.Vulkan.Conformance

  alias Nx.Vulkan.Conformance.{OpTable, StructuredCases}
  alias Nx.Vulkan.VulkanoBackend

  @families [:unary, :binary, :bits, :select, :cast, :reduce, :arg, :cumulative, :movement, :slices] ++
              [:indexed, :dot, :sort, :conv, :window, :fft, :linalg]
  @layouts [:plain, :transposed, :reversed, :strided, :offset, :broadcast, :uniform]
  # One value in so many is an edge of its type.
  @edges_every 6
  # Which ops know what NaN, infinities and the largest numbers are in the way that Nx.BinaryBackend does.
  # Nx.BinaryBackend takes as long as the number is large; it knows no -0.0 in atan2.
  @no_edges [:pow, :left_shift, :right_shift, :atan2]
  # Integers stay integers of their type.
  @exact [:add, :subtract, :multiply, :min, :max, :quotient, :remainder, :bitwise_and, :bitwise_or, :bitwise_xor] ++
           [:equal, :not_equal, :greater, :less, :greater_equal, :less_equal, :logical_and, :logical_or, :logical_xor]
  @without_edges [:reduce, :cumulative, :dot, :cast, :conv, :window, :fft, :linalg]

  def families, do: @families

  @doc """
  Runs the case of a family and two seeds, and asserts that both backends agree. With a compiler, the compiled function
  has to give the bits of the eager one besides.
  """
  def check(family, kind, seed, compiler \\ nil) do
    :rand.seed(:exsss, kind)
    Process.put(:sizes, :rand.seed_s(:exsss, seed))
    {name, operands, fun, opts} = build(family)
    layouts = for {_, shape, _, _} <- operands, do: {layout(shape), shape}

    views = fn tensors -> Enum.zip_with(tensors, layouts, fn t, {layout, shape} -> view(layout, t, shape) end) end
    laid_out = fn tensors -> apply(fun, views.(tensors)) end

    narrow =
      opts[:wide] &&
        operands |> Enum.map(&plain(elem(&1, 0))) |> Enum.reduce(fn a, b -> Nx.Type.merge(a, b) end) |> narrow?()

    oracle =
      cond do
        opts[:exact] -> fn tensors -> exactly(opts[:exact], hd(views.(tensors)), hd(operands)) end
        narrow -> fn tensors -> apply(fun, Enum.map(views.(tensors), &Nx.as_type(&1, :f64))) end
        true -> laid_out
      end

    :rand.seed(:exsss, seed)
    {tensors, expected} = expected(family not in @without_edges, operands, layouts, oracle)

    try do
      fun = spread(laid_out, length(tensors))
      actual = on(VulkanoBackend, tensors, fun)
      if compiler, do: assert_compiled(compiler, tensors, fun, actual)
      assert length(actual) == length(expected)

      for {a, e} <- Enum.zip(actual, expected) do
        assert %VulkanoBackend{} = a.data
        a = Nx.backend_copy(a, Nx.BinaryBackend)
        if narrow, do: assert_rounded(a, e, opts[:wide], opts[:rounds] || a.type), else: assert_close(a, e, opts)
      end
    rescue
      error in ExUnit.AssertionError ->
        types = for {type, shape, _, _} <- operands, do: {Nx.Type.to_string(plain(type)), shape}
        inputs = Enum.map_join(tensors, "\n", &inspect(Nx.to_flat_list(&1), limit: 60))

        text =
          "#{inspect(name)} of #{inspect(types)}, laid out as #{inspect(layouts)}:\n#{error.message}\nof\n#{inputs}"

        reraise %{error | message: text}, __STACKTRACE__
    end
  end

  # What runs one by one is the same but where Nx.Defn.Expr makes other calls (slices of slices, broadcasts of
  # broadcasts: see guides/numerics.md): then the evaluator tells what the compiler has to give, or that it has to
  # raise.
  defp assert_compiled(compiler, tensors, fun, eager) do
    run = fn compiler -> on(VulkanoBackend, tensors, Nx.Defn.jit(fun, compiler: compiler)) end
    compiled = outcome(fn -> run.(compiler) end)

    if bytes(compiled) != bytes({:ok, eager}) do
      case {compiled, outcome(fn -> run.(Nx.Defn.Evaluator) end)} do
        {{:ok, compiled}, {:ok, evaluated}} ->
          assert Enum.map(compiled, &{&1.type, &1.shape}) == Enum.map(evaluated, &{&1.type, &1.shape})
          for {c, e} <- Enum.zip(compiled, evaluated), do: assert_close(at_home(c), at_home(e), ulp: 0)

        {compiled, evaluated} ->
          assert compiled == evaluated
      end
    end
  end

  defp outcome(run) do
    {:ok, run.()}
  rescue
    _ in Nx.Vulkan.Error -> :error
  end

  defp bytes({:ok, tensors}), do: Enum.map(tensors, &{&1.type, &1.shape, Nx.to_binary(&1)})
  defp bytes(:error), do: :error

  defp at_home(tensor), do: Nx.backend_copy(tensor, Nx.BinaryBackend)

  defp narrow?({class, size}), do: class not in [:s, :u, :c] and size <= 16

  # Elements are those of `expected`, in f64, rounded to `type`: `units` off at most, of the last place. What leaves the
  # range of the type counts as right.
  defp assert_rounded(actual, expected, units, type) do
    assert actual.shape == expected.shape

    for {a, e} <- Enum.zip(Nx.to_flat_list(Nx.as_type(actual, :f64)), Nx.to_flat_list(expected)) do
      fits = is_number(e) and abs(e) < 0.9 * Nx.to_number(Nx.as_type(Nx.Constants.max_finite(type), :f64))
      # Nx.BinaryBackend reads denormals of f8 as other numbers.
      slack = if elem(type, 1) == 8, do: 1.0e-4, else: 1.0e-7

      assert not fits or (is_number(a) and abs(a - e) <= units * unit(e, type) + slack + 1.0e-5 * abs(e)),
             "got #{inspect(a)}, expected #{inspect(e)}, rounded to #{Nx.Type.to_string(type)}"
    end
  end

  # The numbers that a function of one f64 gives, rounded to the type that Nx has them in.
  defp exactly(fun, tensor, {type, _, _, _}) do
    values = for x <- Nx.to_flat_list(tensor), do: fun.(x)
    Nx.tensor(values, type: Nx.Type.to_floating(plain(type))) |> Nx.reshape(tensor.shape)
  end

  # Functions for which Nx.BinaryBackend computes exp(x) - 1 and log(1 + x), or has no limits.
  @exact_functions %{expm1: &__MODULE__.expm1/1, log1p: &__MODULE__.log1p/1, tanh: &__MODULE__.tanh/1}

  @doc false
  def expm1(:infinity), do: :infinity
  def expm1(:neg_infinity), do: -1.0
  def expm1(:nan), do: :nan
  def expm1(x), do: if(abs(x) < 1, do: 2 * :math.sinh(x / 2) * :math.exp(x / 2), else: :math.exp(x) - 1)

  @doc false
  def log1p(x) when x in [:infinity, :nan], do: x
  def log1p(x) when x == :neg_infinity or x < -1, do: :nan
  def log1p(x) when x == -1, do: :neg_infinity
  def log1p(x), do: if(abs(x) < 0.5, do: 2 * :math.atanh(x / (2 + x)), else: :math.log(1 + x))

  @doc false
  def tanh(:infinity), do: 1.0
  def tanh(:neg_infinity), do: -1.0
  def tanh(:nan), do: :nan
  def tanh(x), do: :math.tanh(x)

  # Nx.BinaryBackend raises for infinite results and outside of domains.
  defp expected(edges?, operands, layouts, fun) do
    attempt = fn edges ->
      tensors =
        Enum.zip_with(operands, layouts, fn {type, _, low, high}, {layout, shape} ->
          values(base(layout, shape), type, low, high, edges)
        end)

      {tensors, on(Nx.BinaryBackend, tensors, spread(fun, length(tensors)))}
    end

    try do
      attempt.(edges?)
    rescue
      _ in [ArithmeticError, ArgumentError, CaseClauseError, FunctionClauseError, MatchError] -> attempt.(false)
    end
  end

  # `Conformance.on/3` calls a function of as many arguments as there are tensors.
  defp spread(fun, 1), do: fn a -> fun.([a]) end
  defp spread(fun, 2), do: fn a, b -> fun.([a, b]) end
  defp spread(fun, 3), do: fn a, b, c -> fun.([a, b, c]) end

  ## Families: {name, [{type, shape, low, high}], function, tolerance}

  defp build(:unary) do
    {op, low, high, complex?} = pick(OpTable.unary())
    types = if complex?, do: types(), else: reals()
    type = pick(Enum.filter(types, &values_between?(&1, low, high)))
    # Away from branch cuts and zeros.
    {low, high} = if complex?(type), do: {0.2, 1.5}, else: {low, high}
    exact = if complex?(type), do: nil, else: @exact_functions[op]
    # The steps that `exact` takes lose a few units of f64.
    ulp = if complex?(type), do: 16, else: if(exact && type == {:f, 64}, do: 6, else: 2)

    # The sign of NaN depends on the type in Nx.BinaryBackend.
    type = if op == :sign, do: no_edges(type), else: exact(type)
    {op, [{type, shape(), low, high}], &call(op, [&1]), ulp: ulp, exact: exact}
  end

  defp build(:binary) do
    {op, kinds, {l0, l1}, {r0, r1}} = pick(OpTable.binary())
    types = apply(Nx.Vulkan.Conformance, kinds, [])
    left = pick(Enum.filter(types, &values_between?(&1, l0, l1)))
    right = pick(Enum.filter([left | types], &values_between?(&1, r0, r1)))
    right = if :rand.uniform(3) == 1, do: right, else: left
    {left, right} = if left == right and op in @exact, do: {left, right}, else: {exact(left), exact(right)}
    {left, right} = if op in @no_edges, do: {no_edges(left), no_edges(right)}, else: {left, right}
    a = shape()
    b = if :rand.uniform(2) == 1, do: a, else: broadcastable(a)
    operands = [{left, a, l0, l1}, {right, b, r0, r1}]

    complex = complex?(plain(left)) or complex?(plain(right))
    {op, operands, &apply(Nx, op, [&1, &2]), ulp: if(complex, do: 16, else: 2)}
  end

  defp build(:bits) do
    op = pick([:bitwise_not, :count_leading_zeros, :population_count, :abs, :negate, :sign])
    {op, [{pick(integers()), shape(), -(2 ** 63), 2 ** 64}], &apply(Nx, op, [&1]), []}
  end

  defp build(:select) do
    shape = shape()
    type = pick(types())
    pred = {pick(integers()), shape, 0, 1}

    case :rand.uniform(2) do
      1 -> {:select, [pred, {type, shape, -9, 9}, {pick([type, {:f, 32}]), shape, -9, 9}], &Nx.select/3, []}
      2 -> {:logical_not, [{type, shape, -1, 1}], &Nx.logical_not/1, []}
    end
  end

  defp build(:cast) do
    from = pick(reals() ++ complexes())
    to = pick(types())
    {{:as_type, to}, [{from, shape(), 0, 100}], &Nx.as_type(&1, to), []}
  end

  defp build(:reduce) do
    op = pick([:sum, :product, :reduce_max, :reduce_min, :all, :any, :mean])
    type = pick(if op in [:reduce_max, :reduce_min], do: reals(), else: types())
    shape = shape()
    opts = [axes: axes(shape)] ++ if(:rand.uniform(2) == 1, do: [keep_axes: true], else: [])
    # Products of complex numbers stay away from overflow, where the parts depend on the order.
    {low, high} =
      case {op, plain(type)} do
        {:product, {:c, _}} -> {0.5, 0.8}
        {:product, _} -> {1, 2}
        _ -> {0, 4}
      end

    # A mean is a sum and a quotient: both are rounded, and half a unit of one may be one of the other. The sum has the
    # type of the operand, although the quotient of f8_e4m3fn is f32.
    rounds =
      cond do
        op in [:all, :any] -> []
        op == :mean -> [wide: 1.65, rounds: plain(type)]
        true -> [wide: 0.51]
      end

    {{op, opts}, [{type, shape, low, high}], &apply(Nx, op, [&1, opts]), [ulp: Nx.size(shape) + 2] ++ rounds}
  end

  defp build(:arg) do
    op = pick([:argmax, :argmin])
    shape = shape()
    axis = pick([nil | axes(shape)])
    opts = [axis: axis, tie_break: pick([:low, :high]), keep_axis: axis != nil and :rand.uniform(2) == 1]
    {{op, opts}, [{pick(reals()), shape, 0, 3}], &apply(Nx, op, [&1, opts]), []}
  end

  defp build(:cumulative) do
    op = pick([:cumulative_sum, :cumulative_product, :cumulative_max, :cumulative_min])
    type = pick(if op in [:cumulative_max, :cumulative_min], do: reals(), else: types())
    shape = ranked()
    opts = [axis: pick(every_axis(shape)), reverse: :rand.uniform(2) == 1]
    {low, high} = if op == :cumulative_product, do: {1, 1.2}, else: {0, 4}
    {low, high} = if values_between?(type, low, high), do: {low, high}, else: {0, 1}

    {{op, opts}, [{type, shape, low, high}], &apply(Nx, op, [&1, opts]), ulp: Nx.size(shape) + 8, wide: 0.51}
  end

  defp build(:movement) do
    shape = ranked()
    axis = pick(every_axis(shape))
    one = {pick(types()), shape, -100, 100}
    two = [one, {elem(one, 0), shape, -100, 100}]
    order = Enum.shuffle(every_axis(shape))
    config = for _ <- every_axis(shape), do: {roll(3) - 1, roll(4) - 1, pick([0, 0, 1])}
    value = pick([0, 1, 7])
    repeats = for _ <- every_axis(shape), do: roll(2)

    pick([
      {{:transpose, order}, [one], &Nx.transpose(&1, axes: order), []},
      {:flatten, [one], &Nx.flatten/1, []},
      {{:new_axis, axis}, [one], &Nx.new_axis(&1, axis), []},
      {{:reverse, axis}, [one], &Nx.reverse(&1, axes: [axis]), []},
      {{:pad, config}, [one], &Nx.pad(&1, Nx.tensor(value, type: &1.type), config), []},
      {{:concatenate, axis}, two, &Nx.concatenate([&1, &2, &1], axis: axis), []},
      {{:stack, axis}, two, &Nx.stack([&1, &2], axis: axis), []},
      {{:tile, repeats}, [one], &Nx.tile(&1, repeats), []},
      {{:broadcast, 3}, [one], &Nx.broadcast(&1, List.to_tuple([3 | Tuple.to_list(shape)])), []}
    ])
  end

  defp build(:slices) do
    shape = ranked()
    sizes = Tuple.to_list(shape)
    lengths = Enum.map(sizes, &roll/1)
    starts = Enum.map(sizes, &(roll(&1 + 4) - 3))
    strides = Enum.map(sizes, fn _ -> roll(3) end)
    type = pick(types())
    one = {type, shape, -100, 100}
    # A start may be a number or a tensor.
    tensors = fn -> Enum.map(starts, &Nx.tensor(&1, type: :s32)) end

    pick([
      {{:slice, starts, lengths, strides}, [one], &Nx.slice(&1, starts, lengths, strides: strides), []},
      {{:dynamic_slice, starts, lengths}, [one], &Nx.slice(&1, tensors.(), lengths, strides: strides), []},
      {{:put_slice, starts}, [one, {type, List.to_tuple(lengths), -9, 9}], &Nx.put_slice(&1, starts, &2), []},
      {{:dynamic_put_slice, starts}, [one, {type, List.to_tuple(lengths), -9, 9}], &Nx.put_slice(&1, tensors.(), &2),
       []}
    ])
  end

  defp build(:indexed) do
    shape = ranked()
    axis = pick(every_axis(shape))
    size = elem(shape, axis)
    type = pick(types())
    one = {type, shape, -3, 3}
    rows = roll(7)
    index_type = pick([:s32, :u8, :s64])

    indices = fn shape ->
      Nx.tensor(for(_ <- 1..Nx.size(shape), do: roll(size) - 1), type: index_type)
      |> Nx.reshape(shape)
    end

    {flat, column, along} = {indices.({rows}), indices.({rows, 1}), indices.(shape)}
    updates = {type, List.to_tuple([rows | List.delete_at(Tuple.to_list(shape), axis)]), -3, 3}
    # The indices are made on Nx.BinaryBackend, whatever the default.
    place = &Nx.backend_copy(&1, Nx.default_backend())

    pick([
      {{:take, axis}, [one], &Nx.take(&1, place.(flat), axis: axis), []},
      {{:take_along_axis, axis}, [one], &Nx.take_along_axis(&1, place.(along), axis: axis), []},
      {{:gather, axis}, [one], &Nx.gather(&1, place.(column), axes: [axis]), []},
      {{:indexed_put, axis}, [one, updates], &Nx.indexed_put(&1, place.(column), &2, axes: [axis]), []},
      {{:indexed_add, axis}, [one, updates], &Nx.indexed_add(&1, place.(column), &2, axes: [axis]),
       ulp: 8, absolute: max(narrow(type), 1.0e-5)}
    ])
  end

  defp build(:dot) do
    [b, m, k, n] = for _ <- 1..4, do: roll(17)
    type = pick(types())
    other = if :rand.uniform(3) == 1, do: pick(types()), else: type

    {name, a, c, fun} =
      pick([
        {:dot, {m, k}, {k, n}, &Nx.dot/2},
        {:vectors, {k}, {k}, &Nx.dot/2},
        {:columns, {k, m}, {k, n}, &Nx.dot(&1, [0], &2, [0])},
        {:batched, {b, m, k}, {b, k, n}, &Nx.dot(&1, [2], [0], &2, [1], [0])},
        {:outer, {m}, {n}, &Nx.outer/2},
        {:two_axes, {b, m, k}, {k, b}, &Nx.dot(&1, [0, 2], &2, [1, 0])}
      ])

    {name, [{type, a, 0, 3}, {other, c, 0, 3}], fun, ulp: 32, wide: 0.51}
  end

  defp build(:sort) do
    shape = ranked()
    opts = [axis: pick(every_axis(shape)), direction: pick([:asc, :desc])]
    operands = [{pick(reals()), shape, 0, 5}]

    pick([
      {{:sort, opts}, operands, &Nx.sort(&1, opts), []},
      {{:argsort, opts}, operands, &Nx.argsort(&1, [stable: true] ++ opts), []}
    ])
  end

  defp build(family) when family in [:conv, :window, :fft, :linalg], do: StructuredCases.build(family)

  ## Values

  # No edges of integers that become floats which can't hold them: Nx.BinaryBackend computes with the integers.
  defp exact({class, size} = type) when class in [:s, :u] and size >= 32, do: no_edges(type)
  defp exact(type), do: type

  defp no_edges(type), do: {:no_edges, type}

  defp plain({:no_edges, type}), do: type
  defp plain(type), do: type

  defp values(shape, {:no_edges, type}, low, high, _edges?), do: values(shape, type, low, high, false)

  defp values(shape, type, low, high, edges?) do
    plain = shape |> random(type, low, high) |> Nx.to_flat_list()
    edges = if edges?, do: edges(type), else: []
    values = for v <- plain, do: if(edges != [] and :rand.uniform(@edges_every) == 1, do: pick(edges), else: v)
    Nx.tensor(values, type: type, backend: Nx.BinaryBackend) |> Nx.reshape(shape)
  end

  defp edges({:u, size}), do: [0, 1, 2 ** size - 1, 2 ** (size - 1)]
  defp edges({:s, size}), do: [0, 1, -1, 2 ** (size - 1) - 1, -(2 ** (size - 1)), 1 - 2 ** (size - 1)]
  defp edges({:f8_e4m3fn, 8}), do: [0.0, -0.0, 1.0, -1.0, :nan, 448.0]
  defp edges({:c, _}), do: []
  defp edges(type), do: [0.0, -0.0, 1.0, -1.0, :nan, :infinity, :neg_infinity, 0.5 | extremes(type)]

  defp extremes({:f, 32}), do: [3.4028234663852886e38, 1.1754943508222875e-38, 1.0e30, 1.0e-30]
  defp extremes({:f, 64}), do: [1.0e300, 1.0e-300, 1.0e30]
  defp extremes({:f, 16}), do: [65504.0, 6.103515625e-5]
  defp extremes(_), do: []

  # What a float may be off where sums of narrow floats are rounded in another order.
  defp narrow({_, 8}), do: 4.0
  defp narrow({class, 16}) when class in [:f, :bf], do: 1.0
  defp narrow(_), do: 0.0

  defp complex?(type), do: match?({:c, _}, type)

  ## Shapes and layouts

  defp shape, do: if(:rand.uniform(12) == 1, do: {}, else: ranked())

  defp ranked do
    case :rand.uniform(20) do
      1 -> {roll(1100)}
      2 -> {roll(33), roll(65)}
      _ -> List.to_tuple(for _ <- 1..:rand.uniform(4), do: roll(5))
    end
  end

  defp broadcastable(shape) do
    sizes = for size <- Tuple.to_list(shape), do: if(:rand.uniform(3) == 1, do: 1, else: size)
    sizes |> Enum.drop(:rand.uniform(length(sizes) + 1) - 1) |> List.to_tuple()
  end

  defp every_axis(shape), do: Enum.to_list(0..(tuple_size(shape) - 1)//1)

  defp axes({}), do: []
  defp axes(shape), do: shape |> every_axis() |> Enum.take_random(:rand.uniform(tuple_size(shape)))

  defp layout({}), do: pick([:plain, :offset])
  defp layout(_shape), do: pick([:plain, :plain | @layouts])

  # The shape to make, so that `view/3` gives the shape that the case asks for.
  defp base(:transposed, shape), do: shape |> Tuple.to_list() |> Enum.reverse() |> List.to_tuple()
  defp base(:strided, shape), do: shape |> Tuple.to_list() |> Enum.map(&(2 * &1)) |> List.to_tuple()
  defp base(:offset, {}), do: {3}
  defp base(:offset, shape), do: put_elem(shape, 0, elem(shape, 0) + 2)
  defp base(:broadcast, shape), do: put_elem(shape, tuple_size(shape) - 1, 1)
  defp base(:uniform, _shape), do: {}
  defp base(_plain, shape), do: shape

  defp view(:plain, t, _shape), do: t
  defp view(:transposed, t, _shape), do: Nx.transpose(t)
  defp view(:reversed, t, _shape), do: Nx.reverse(t)
  defp view(:offset, t, {}), do: t[1]
  defp view(:offset, t, shape), do: Nx.slice_along_axis(t, 1, elem(shape, 0), axis: 0)
  defp view(:broadcast, t, shape), do: Nx.broadcast(t, shape)
  defp view(:uniform, t, shape), do: Nx.broadcast(t, shape)

  defp view(:strided, t, shape) do
    sizes = Tuple.to_list(shape)
    Nx.slice(t, Enum.map(sizes, fn _ -> 1 end), Enum.map(sizes, &(2 * &1 - 1)), strides: Enum.map(sizes, fn _ -> 2 end))
  end

  @doc "A choice that makes the kind of the case."
  def pick(list), do: Enum.random(list)

  @doc "A number from 1 to `most` that leaves the kind as it is."
  def roll(most) do
    {number, state} = :rand.uniform_s(most, Process.get(:sizes))
    Process.put(:sizes, state)
    number
  end
end
