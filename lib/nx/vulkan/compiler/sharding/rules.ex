defmodule Nx.Vulkan.Compiler.Sharding.Rules do
  @moduledoc false

  # What each op asks of the layouts of its operands, and what layouts its results have. An axis stays cut where the
  # pieces of a result depend on the same pieces of the operands alone. Contracted and reduced axes that are cut leave
  # parts of results, which are added up, or whatever the op does. What no rule knows has whole operands.

  alias Nx.Vulkan.Compiler.Sharding.Layout
  alias Nx.Vulkan.Ops

  @typedoc "A type in wire form, and its layout."
  @type value :: {type :: list, Layout.t()}

  @typedoc """
  The layouts that the operands get, those of the results, the attributes that differ from those of the whole, and what
  devices have to do with their results along axes of the mesh.
  """
  @type rule :: %{
          operands: [Layout.t()],
          results: [Layout.t()],
          attrs: keyword,
          combine: nil | {:add | :multiply | :max | :min | :logical_and | :logical_or, [non_neg_integer]}
        }

  @reductions %{
    sum: :add,
    product: :multiply,
    reduce_max: :max,
    reduce_min: :min,
    all: :logical_and,
    any: :logical_or
  }

  @along_axis [:cumulative_sum, :cumulative_product, :cumulative_max, :cumulative_min] ++
                [:sort, :argsort, :fft, :ifft, :rfft, :irfft]

  @matrices [:cholesky, :lu, :qr, :eigh, :svd, :determinant, :solve, :triangular_solve]
  @windows [:window_sum, :window_product, :window_max, :window_min]

  @spec of(atom, list, [value], [list], Layout.mesh()) :: rule
  def of(op, attrs, operands, types, mesh) do
    attrs = for [name, value] <- attrs, do: {name, value}

    if Ops.elementwise?(op),
      do: elementwise(operands, types),
      else: rule(op, attrs, operands, types, mesh)
  end

  defp made(operands, results, more \\ []),
    do: Map.merge(%{operands: operands, results: results, attrs: [], combine: nil}, Map.new(more))

  # The layout of axes for which several operands have one: the first that cuts an axis says how, unless the mesh's axes
  # cut another one already.
  defp agree(candidates) do
    {layout, _used} =
      Enum.map_reduce(candidates, [], fn layouts, used ->
        case Enum.find(layouts, &(&1 != [] and &1 -- used == &1)) do
          nil -> {[], used}
          axes -> {axes, used ++ axes}
        end
      end)

    layout
  end

  # Operands are aligned by their last axes, and repeated along axes of size 1.
  defp elementwise(operands, [[_, sizes]]) do
    rank = length(sizes)

    candidates =
      for {size, axis} <- Enum.with_index(sizes) do
        for {[_, own], layout} <- operands,
            place = axis - rank + length(own),
            place >= 0 and Enum.at(own, place) == size,
            do: Enum.at(layout, place)
      end

    result = agree(candidates)

    wanted =
      for {[_, own], _} <- operands do
        aligned = Enum.drop(result, rank - length(own))

        Enum.zip_with([own, Enum.drop(sizes, rank - length(own)), aligned], fn [own, size, axes] ->
          if own == size, do: axes, else: []
        end)
      end

    made(wanted, [result])
  end

  ## Reductions

  defp rule(op, [axes: axes], [{[_, sizes], layout}], [[_, result]], _mesh) when is_map_key(@reductions, op) do
    cut = Enum.flat_map(axes, &Enum.at(layout, &1))
    combine = if cut != [], do: {@reductions[op], cut}
    made([layout], [reduced(layout, axes, length(sizes) == length(result))], combine: combine)
  end

  defp rule(op, attrs, [{[_, sizes], layout}], [[_, result]], _mesh) when op in [:argmax, :argmin] do
    layout = without(layout, attrs[:axes])
    made([layout], [reduced(layout, attrs[:axes], length(sizes) == length(result))])
  end

  defp rule(:reduce, attrs, [{[_, sizes], layout} | others], [[_, result]], _mesh) do
    layout = without(layout, attrs[:axes])
    made([layout | wholes(others)], [reduced(layout, attrs[:axes], length(sizes) == length(result))])
  end

  ## Products

  defp rule(:dot, attrs, [{[_, a], la}, {[_, b], lb}], _types, _mesh) do
    [contract_a, batch_a, contract_b, batch_b] =
      for name <- [:contract_a, :batch_a, :contract_b, :batch_b], do: attrs[name]

    free_a = axes(a) -- (contract_a ++ batch_a)
    free_b = axes(b) -- (contract_b ++ batch_b)
    batch = Enum.zip_with(batch_a, batch_b, &[Enum.at(la, &1), Enum.at(lb, &2)])
    contract = Enum.zip_with(contract_a, contract_b, &[Enum.at(la, &1), Enum.at(lb, &2)])
    both = for [x, y] <- contract, do: if(x == y, do: [x], else: [])
    one = for layouts <- contract, do: layouts
    free = for(axis <- free_a, do: [Enum.at(la, axis)]) ++ for(axis <- free_b, do: [Enum.at(lb, axis)])

    # Where both operands are cut alike along a contracted axis, nothing has to move before. One that is cut along it
    # alone comes last: the other could be cut as well, but for what its free axes need.
    chosen = agree(batch ++ both ++ free ++ one)
    {batch, rest} = Enum.split(chosen, length(batch))
    {both, rest} = Enum.split(rest, length(both))
    {free, one} = Enum.split(rest, length(free))
    contract = Enum.zip_with(both, one, fn x, y -> if x == [], do: y, else: x end)
    {own_a, own_b} = Enum.split(free, length(free_a))
    wanted_a = placed(a, Enum.zip(batch_a, batch) ++ Enum.zip(contract_a, contract) ++ Enum.zip(free_a, own_a))
    wanted_b = placed(b, Enum.zip(batch_b, batch) ++ Enum.zip(contract_b, contract) ++ Enum.zip(free_b, own_b))
    cut = Enum.concat(contract)
    made([wanted_a, wanted_b], [batch ++ free], combine: if(cut != [], do: {:add, cut}))
  end

  defp rule(:conv, attrs, [{[_, a], la}, {[_, k], lk}], [[_, result]], _mesh) do
    plain? = attrs[:feature_groups] == 1 and attrs[:batch_groups] == 1
    [batch, channels | _] = attrs[:input_axes]
    [outs, ins | _] = attrs[:kernel_axes]
    [result_batch, result_outs | _] = attrs[:output_axes]
    [cut_a, cut_k] = [Enum.at(la, channels), Enum.at(lk, ins)]
    both = if plain? and cut_a == cut_k, do: [cut_a], else: []
    rows = if attrs[:batch_groups] == 1, do: [Enum.at(la, batch)], else: []
    [batches, contracted, channels_out] = agree([rows, both, if(plain?, do: [Enum.at(lk, outs)], else: [])])
    wanted_a = placed(a, [{batch, batches}, {channels, contracted}])
    wanted_k = placed(k, [{outs, channels_out}, {ins, contracted}])
    combine = if contracted != [], do: {:add, contracted}

    made([wanted_a, wanted_k], [placed(result, [{result_batch, batches}, {result_outs, channels_out}])],
      combine: combine
    )
  end

  ## Views and placements

  defp rule(:transpose, [axes: axes], [{_, layout}], _types, _mesh),
    do: made([layout], [Enum.map(axes, &Enum.at(layout, &1))])

  defp rule(:broadcast, [axes: axes], [{[_, own], layout}], [[_, sizes]], _mesh) do
    wanted =
      Enum.zip_with([own, axes, layout], fn [size, axis, cut] -> if Enum.at(sizes, axis) == size, do: cut, else: [] end)

    made([wanted], [placed(sizes, Enum.zip(axes, wanted))])
  end

  defp rule(op, _attrs, [{[_, sizes], layout}], [[_, result]], mesh) when op in [:reshape, :squeeze] do
    {wanted, given} = reshaped(sizes, layout, result, mesh)
    made([wanted], [given])
  end

  defp rule(:bitcast, _attrs, [{[_, sizes], layout}], [[_, sizes]], _mesh), do: made([layout], [layout])

  # What is as long as its axis begins at 0, whatever the start says, since that is moved until all of it fits.
  defp rule(:slice, attrs, [{[_, sizes], layout} | starts], _types, mesh) do
    layout =
      Enum.zip_with([sizes, attrs[:lengths], attrs[:strides], layout], fn [size, length, stride, cut] ->
        if {length, stride} == {size, 1}, do: cut, else: []
      end)

    lengths = Enum.zip_with(attrs[:lengths], layout, &div(&1, Layout.pieces(mesh, &2)))
    made([layout | wholes(starts)], [layout], attrs: [lengths: lengths])
  end

  defp rule(:put_slice, _attrs, [{[_, sizes], la}, {[_, part], lb} | starts], _types, _mesh) do
    candidates =
      Enum.zip_with([sizes, part, la, lb], fn [size, length, x, y] -> if size == length, do: [x, y], else: [] end)

    layout = agree(candidates)
    made([layout, layout | wholes(starts)], [layout])
  end

  defp rule(:concatenate, [axis: axis], operands, _types, _mesh) do
    layout = operands |> Enum.map(&elem(&1, 1)) |> Enum.zip_with(& &1) |> agree() |> without([axis])
    made(Enum.map(operands, fn _ -> layout end), [layout])
  end

  defp rule(:stack, [axis: axis], operands, _types, _mesh) do
    layout = operands |> Enum.map(&elem(&1, 1)) |> Enum.zip_with(& &1) |> agree()
    made(Enum.map(operands, fn _ -> layout end), [List.insert_at(layout, axis, [])])
  end

  defp rule(:reverse, [axes: axes], [{_, layout}], _types, _mesh), do: same(without(layout, axes))

  defp rule(:pad, attrs, [{_, layout}, _value], _types, _mesh) do
    kept =
      Enum.zip_with([layout, attrs[:low], attrs[:high], attrs[:interior]], fn [cut, low, high, inner] ->
        if {low, high, inner} == {0, 0, 0}, do: cut, else: []
      end)

    made([kept, []], [kept])
  end

  # What is waited for is of any layout.
  defp rule(:after, _attrs, [{_, layout} | others], _types, _mesh),
    do: made([layout | Enum.map(others, &elem(&1, 1))], [layout])

  ## Indices

  defp rule(:take, [axis: axis], [{[_, sizes], la}, {_, li}], _types, _mesh) do
    candidates = for {cut, i} <- Enum.with_index(la), do: if(i == axis, do: Enum.map(li, &[&1]), else: [[cut]])
    chosen = agree(Enum.concat(candidates))
    {before, rest} = Enum.split(chosen, axis)
    {indices, behind} = Enum.split(rest, length(li))
    true = length(sizes) == length(before) + 1 + length(behind)
    made([before ++ [[]] ++ behind, indices], [chosen])
  end

  defp rule(:take_along_axis, [axis: axis], [{_, la}, {_, li}], _types, _mesh) do
    layout = [la, li] |> Enum.zip_with(& &1) |> agree() |> without([axis])
    made([layout, layout], [layout])
  end

  defp rule(:gather, [axes: axes], [{[_, sizes], la}, {_, li}], _types, _mesh) do
    rest = axes(sizes) -- axes
    {leading, _last} = Enum.split(li, -1)
    chosen = agree(Enum.map(leading, &[&1]) ++ Enum.map(rest, &[Enum.at(la, &1)]))
    {leading, behind} = Enum.split(chosen, length(leading))
    made([placed(sizes, Enum.zip(rest, behind)), leading ++ [[]]], [chosen])
  end

  ## Along axes

  defp rule(op, attrs, [{_, layout}], types, _mesh) when op in @along_axis do
    layout = without(layout, [attrs[:axis]])
    made([layout], Enum.map(types, fn _ -> layout end))
  end

  defp rule(:top_k, _attrs, [{_, layout}], types, _mesh) do
    layout = without(layout, [length(layout) - 1])
    made([layout], Enum.map(types, fn _ -> layout end))
  end

  defp rule(op, attrs, [{_, layout}], _types, _mesh) when op in @windows do
    one? = Enum.zip_with([attrs[:window], attrs[:strides], attrs[:low], attrs[:high]], &(&1 == [1, 1, 0, 0]))
    same(Enum.zip_with(layout, one?, &if(&2, do: &1, else: [])))
  end

  # Batches of matrices, which the results have before whatever else.
  defp rule(op, _attrs, operands, types, _mesh) when op in @matrices do
    [{[_, sizes], _} | _] = operands
    batch = length(sizes) - 2
    candidates = for axis <- 0..(batch - 1)//1, do: for({_, layout} <- operands, do: Enum.at(layout, axis))
    layout = agree(candidates)

    # Whether all matrices of `solve` are regular, which has no axes, is nobody's question in a compiled function.
    of = fn [_, sizes] ->
      if length(sizes) >= batch,
        do: layout ++ List.duplicate([], length(sizes) - batch),
        else: Layout.whole(sizes)
    end

    made(Enum.map(operands, fn {type, _} -> of.(type) end), Enum.map(types, of))
  end

  defp rule(_op, _attrs, operands, types, _mesh),
    do: made(wholes(operands), for([_, sizes] <- types, do: Layout.whole(sizes)))

  defp same(layout), do: made([layout], [layout])
  defp wholes(operands), do: for({[_, sizes], _} <- operands, do: Layout.whole(sizes))
  defp axes(sizes), do: Enum.to_list(0..(length(sizes) - 1)//1)
  defp without(layout, axes), do: for({cut, axis} <- Enum.with_index(layout), do: if(axis in axes, do: [], else: cut))

  # The layout of a tensor of these sizes with cuts at axes.
  defp placed(sizes, cuts) do
    cuts = Map.new(cuts)
    for axis <- axes(sizes), do: Map.get(cuts, axis, [])
  end

  defp reduced(layout, axes, true), do: without(layout, axes)
  defp reduced(layout, axes, false), do: for({cut, axis} <- Enum.with_index(layout), axis not in axes, do: cut)

  # Axes of both shapes in groups that hold the same elements. The pieces of a group lie one after the other where its
  # first axis longer than 1 is cut, in both shapes.
  defp reshaped(sizes, layout, result, mesh) do
    {wanted, given} =
      groups(Enum.zip(sizes, layout), result, [])
      |> Enum.map(fn {from, to} ->
        {ones, rest} = Enum.split_while(from, &match?({1, _}, &1))
        {to_ones, to_rest} = Enum.split_while(to, &(&1 == 1))
        cut = with [{_, cut} | _] <- rest, do: cut
        first = List.first(to_rest, 1)
        cut = if cut != [] and rem(first, Layout.pieces(mesh, cut)) == 0, do: cut, else: []
        {cuts(length(ones), length(rest), cut), cuts(length(to_ones), length(to_rest), cut)}
      end)
      |> Enum.unzip()

    {Enum.concat(wanted), Enum.concat(given)}
  end

  defp cuts(ones, 0, _cut), do: List.duplicate([], ones)
  defp cuts(ones, rest, cut), do: List.duplicate([], ones) ++ [cut] ++ List.duplicate([], rest - 1)

  defp groups([], [], groups), do: Enum.reverse(groups)

  defp groups(from, to, groups) do
    {own, from} = Enum.split(from, 1)
    {others, to} = Enum.split(to, 1)
    {own, from, others, to} = grown(own, from, others, to)
    groups(from, to, [{own, others} | groups])
  end

  # Takes axes until both sides hold as many elements. Axes of size 1 at the end belong to the last group.
  defp grown(own, from, others, to) do
    a = own |> Enum.map(&elem(&1, 0)) |> Enum.product()
    b = Enum.product(others)

    cond do
      a < b -> grown(own ++ [hd(from)], tl(from), others, to)
      a > b -> grown(own, from, others ++ [hd(to)], tl(to))
      Enum.all?(from, &match?({1, _}, &1)) and Enum.all?(to, &(&1 == 1)) -> {own ++ from, [], others ++ to, []}
      true -> {own, from, others, to}
    end
  end
end
