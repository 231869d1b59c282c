defmodule Nx.Vulkan.Chain.Invariants do
  @moduledoc false

  # Programs in wire form that run again and again, of which some inputs change and others stay: what takes long and
  # depends on those alone is parted from the rest, to be computed once. What takes no time of its own, as views and
  # maps of elements, stays where it is used.
  #
  # A system whose matrix stays is solved by its inverse, which is computed once, and one step of refinement with the
  # matrix: products, which one workgroup can run. Refined, the errors are those of substitution; without, they are up
  # to 1e4 times as large for covariances of smooth functions (kernels of 40 to 60 points, conditions of the factors of
  # 5e3 to 7e6, beside 60 digits).
  #
  # Within, an item is `{op, attrs, operands, types, names}`, whose results other items know by their names.

  alias Nx.Vulkan.Compiler.Lowering.Plan
  alias Nx.Vulkan.Ops

  # These become part of the kernels that use them, and may make large values of small ones.
  @movements Ops.moves() ++ [:gather, :take, :take_along_axis]
  @cheap Ops.elementwise() ++ @movements

  @doc """
  Parts what stays from a program whose inputs with these numbers change: the program of it, the numbers of the inputs
  that it takes, and the rest, whose inputs are those of the program and then the results of the first one. Nil where
  nothing is worth it.
  """
  @spec split(Plan.program(), [non_neg_integer]) :: {Plan.program(), [non_neg_integer], Plan.program()} | nil
  def split([inputs, _, outputs] = program, changing) do
    changing = MapSet.new(changing, &[:input, &1])
    items = named(program)
    items = products(items, types(inputs, items), changed(items, changing))
    types = types(inputs, items)
    changed = changed(items, changing)
    stays? = fn {_, _, _, _, [name | _]} = item -> name not in changed and not cheap?(item) end
    {kept, read} = needed(items, outputs, stays?)

    case for(item <- items, stays?.(item), name <- elem(item, 4), name in read, do: name) do
      [] ->
        nil

      ahead ->
        {before, read} = needed(items, ahead, fn _ -> false end)
        all = for i <- 0..(length(inputs) - 1)//1, do: [:input, i]
        taken = for {name, i} <- Enum.with_index(all), name in read, do: i
        before = wire(before, for(i <- taken, do: [:input, i]), ahead, types)
        {before, taken, wire(kept, all ++ ahead, outputs, types)}
    end
  end

  @doc """
  The program without the inputs that nothing reads, but for those that `kept?` keeps, and the numbers of its inputs.
  """
  @spec narrow(Plan.program(), (non_neg_integer -> boolean)) :: {Plan.program(), [non_neg_integer]}
  def narrow(program, kept?) do
    read = reads(program)
    kept = for i <- 0..(length(hd(program)) - 1)//1, kept?.(i) or [:input, i] in read, do: i
    {select(program, kept), kept}
  end

  @doc """
  The program with what stays in its loops, in loops within those, too, computed before them.
  """
  @spec out_of_loops(Plan.program()) :: Plan.program()
  def out_of_loops([inputs, _, outputs] = program) do
    items = program |> named() |> Enum.flat_map(&out_of_loop/1)
    wire(items, for(i <- 0..(length(inputs) - 1)//1, do: [:input, i]), outputs, types(inputs, items))
  end

  defp out_of_loop({:while, [[:condition, condition], [:body, body]], operands, types, names}) do
    [condition, body] = Enum.map([condition, body], &out_of_loops/1)
    count = length(types)
    # Cells that the body passes on stay, as does what it captured.
    changing = for {output, i} <- body |> List.last() |> Enum.with_index(), output != [:input, i], do: i

    {items, operands, condition, body} =
      case split(body, changing) do
        nil ->
          {[], operands, condition, body}

        {[_, _, outputs] = before, taken, [wide | _] = body} ->
          {items, name} = renamed(before, for(i <- taken, do: Enum.at(operands, i)), hd(names))
          [_ | rest] = condition
          {items, operands ++ Enum.map(outputs, name), [wide | rest], body}
      end

    read = MapSet.union(reads(condition), reads(body))
    kept = for i <- 0..(length(operands) - 1)//1, i < count or [:input, i] in read, do: i
    attrs = [[:condition, select(condition, kept)], [:body, select(body, kept)]]
    items ++ [{:while, attrs, Enum.map(kept, &Enum.at(operands, &1)), types, names}]
  end

  defp out_of_loop({:cond, attrs, operands, types, names}) do
    attrs = for [name, program] <- attrs, do: [name, out_of_loops(program)]
    [{:cond, attrs, operands, types, names}]
  end

  defp out_of_loop(item), do: [item]

  # The items of a program that is put before the loop of that name, and what its operands are called there.
  defp renamed(program, inputs, loop) do
    inputs = List.to_tuple(inputs)

    name = fn
      [:input, i] -> elem(inputs, i)
      [:result, i] -> {loop, i}
    end

    items =
      for {op, attrs, operands, types, names} <- named(program) do
        {op, attrs, Enum.map(operands, name), types, Enum.map(names, name)}
      end

    {items, name}
  end

  defp reads([_, instructions, outputs]) do
    instructions |> Enum.flat_map(&Enum.at(&1, 2)) |> Enum.concat(outputs) |> MapSet.new()
  end

  # The program with those of its inputs.
  defp select([inputs, _, outputs] = program, kept) do
    wire(named(program), for(i <- kept, do: [:input, i]), outputs, types(inputs, []))
  end

  ## Items

  defp named([_, instructions, _]) do
    {items, _} =
      Enum.map_reduce(instructions, 0, fn [op, attrs, operands, types], count ->
        names = for {_, i} <- Enum.with_index(types, count), do: [:result, i]
        {{op, attrs, operands, types, names}, count + length(types)}
      end)

    items
  end

  # The program whose inputs and outputs have those names.
  defp wire(items, inputs, outputs, types) do
    results = for({_, _, _, _, names} <- items, name <- names, do: name)

    places =
      for {kind, names} <- [input: inputs, result: results], {name, i} <- Enum.with_index(names), do: {kind, name, i}

    places = Map.new(places, fn {kind, name, i} -> {name, [kind, i]} end)
    place = &Map.fetch!(places, &1)
    instructions = for {op, attrs, operands, outs, _} <- items, do: [op, attrs, Enum.map(operands, place), outs]
    [Enum.map(inputs, &Map.fetch!(types, &1)), instructions, Enum.map(outputs, place)]
  end

  defp types(inputs, items) do
    inputs = for {type, i} <- Enum.with_index(inputs), do: {[:input, i], type}
    Map.new(inputs ++ for({_, _, _, types, names} <- items, pair <- Enum.zip(names, types), do: pair))
  end

  # The values that depend on those.
  defp changed(items, changing) do
    Enum.reduce(items, changing, fn {_, _, operands, _, names}, changed ->
      if Enum.any?(operands, &(&1 in changed)), do: MapSet.union(changed, MapSet.new(names)), else: changed
    end)
  end

  # The items that values need, without those for which `stop?` and what these need, and all names that they read.
  defp needed(items, values, stop?) do
    List.foldr(items, {[], MapSet.new(values)}, fn {_, _, operands, _, names} = item, {kept, read} ->
      if Enum.any?(names, &(&1 in read)) and not stop?.(item),
        do: {[item | kept], MapSet.union(read, MapSet.new(operands))},
        else: {kept, read}
    end)
  end

  defp cheap?({op, _, _, _, _}) when op in @cheap, do: true
  defp cheap?({:dot, attrs, _, _, _}), do: attr(attrs, :contract_a) == []
  defp cheap?(_item), do: false

  defp attr(attrs, name), do: Enum.find_value(attrs, fn [key, value] -> if key == name, do: {value} end) |> elem(0)

  ## Systems

  defp products(items, types, changed) do
    items
    |> Enum.flat_map(fn {op, attrs, operands, [out | _], _} = item ->
      with true <- op in [:triangular_solve, :solve],
           [a, b] = operands,
           [[type, _] = matrix, [type, _] = right, [type, _]] when type in [:f32, :f64] <- [types[a], types[b], out],
           true <- a not in changed and b in changed,
           true <- op == :solve or attr(attrs, :transform_a) in [:none, :transpose] do
        product(item, matrix, right)
      else
        _ -> [item]
      end
    end)
    # The inverse of a matrix is named after what it is, and there once.
    |> Enum.uniq_by(&elem(&1, 4))
  end

  defp product({op, attrs, [a, b], [out | _], [x | rest]}, [type, shape] = matrix, [_, right] = b_type) do
    rank = length(shape)
    {row, column} = {rank - 2, rank - 1}
    batch = Enum.to_list(0..(row - 1)//1)
    left? = op == :solve or attr(attrs, :left_side)
    transposed? = op == :triangular_solve and attr(attrs, :transform_a) == :transpose
    of = fn name -> {name, op, List.delete(attrs, [:left_side, not left?]), a} end
    value = fn name -> {name, x} end

    # The product with a matrix from its side; `flipped?` with the transposed one.
    times = fn name, matrix, vector, flipped? ->
      contract_matrix = [if(left? == flipped?, do: row, else: column)]
      contract = [if(left?, do: row, else: length(right) - 1)]

      {attrs, operands} =
        if left?,
          do: {[contract_matrix, batch, contract, batch], [matrix, vector]},
          else: {[contract, batch, contract_matrix, batch], [vector, matrix]}

      keys = [:contract_a, :batch_a, :contract_b, :batch_b]
      {:dot, Enum.zip_with(keys, attrs, &[&1, &2]), operands, [out], [name]}
    end

    regular = if op == :solve, do: [{[:u8, []], of.(:regular)}], else: []
    {regular_types, regular_names} = Enum.unzip(regular)
    inverse_attrs = for [name, value] <- attrs, do: [name, if(name == :left_side, do: true, else: value)]

    inverse = [
      {:eye, [], [], [matrix], [of.(:eye)]},
      {op, inverse_attrs, [a, of.(:eye)], [matrix | regular_types], [of.(:inverse) | regular_names]}
    ]

    {mask, a} = if op == :solve, do: {[], a}, else: triangle(attrs, a, [type, shape], of)

    steps = [
      times.(value.(:first), of.(:inverse), b, false),
      times.(value.(:back), a, value.(:first), transposed?),
      {:subtract, [], [b, value.(:back)], [b_type], [value.(:residual)]},
      times.(value.(:correction), of.(:inverse), value.(:residual), false),
      {:add, [], [value.(:first), value.(:correction)], [out], [x]}
    ]

    inverse ++ mask ++ steps ++ for(name <- rest, do: {:reshape, [], [of.(:regular)], [[:u8, []]], [name]})
  end

  # The elements of a matrix that `triangular_solve` looks at.
  defp triangle(attrs, a, [type, shape], of) do
    rank = length(shape)
    compare = if attr(attrs, :lower), do: :greater_equal, else: :less_equal

    {[
       {:iota, [[:axis, rank - 2]], [], [[:s32, shape]], [of.(:rows)]},
       {:iota, [[:axis, rank - 1]], [], [[:s32, shape]], [of.(:columns)]},
       {compare, [], [of.(:rows), of.(:columns)], [[:u8, shape]], [of.(:mask)]},
       {:constant, [[:value, 0.0]], [], [[type, []]], [of.(:zero)]},
       {:select, [], [of.(:mask), a, of.(:zero)], [[type, shape]], [of.(:triangle)]}
     ], of.(:triangle)}
  end
end
