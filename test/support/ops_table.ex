defmodule Nx.Vulkan.OpsTable do
  @moduledoc """
  Which op runs natively on which type, and the device features that it depends on: what `mix nx_vulkan.ops` writes to
  `guides/ops.md`.

  A cell comes from running the op on the open device, which must have all the features: the engine says what the
  kernels that it launched need.
  """

  alias Nx.Vulkan.{NativeV, Ops, VulkanoBackend}
  alias Nx.Vulkan.Ops.Table

  @path "guides/ops.md"

  @marks [
    {"shaderFloat64", "d"},
    {"shaderInt64", "l"},
    {"shaderInt8", "b"},
    {"storageBuffer8BitAccess", "b"},
    {"shaderInt16", "h"},
    {"storageBuffer16BitAccess", "h"}
  ]

  # Nx compares integers as f64 there. Other ops take f64 for digits, if the device has it.
  @needs_f64 [:"Nx.all_close"]

  def path, do: @path
  defdelegate types, to: Table

  @doc "The ops in the order of the table, with a function of a type that runs each."
  def ops do
    # Those of three operands and `as_type` are among the others.
    elementwise =
      for {op, operands, kind} <- Table.elementwise(), kind != :cast, op in (Ops.unary() ++ Ops.binary()) do
        {op, &apply(Nx, op, List.duplicate(matrix(&1), operands))}
      end

    elementwise ++ creation() ++ movement() ++ reductions() ++ windows() ++ products() ++ blocks()
  end

  defp creation do
    [
      constant: &Nx.broadcast(Nx.tensor(1, type: &1), {2, 3}),
      from_binary: &Nx.from_binary(Nx.to_binary(matrix(&1)), &1),
      eye: &Nx.eye(3, type: &1),
      iota: &Nx.iota({2, 3}, axis: 1, type: &1),
      as_type: &Nx.as_type(matrix({:u, 8}), &1),
      bitcast: &Nx.bitcast(matrix(&1), &1),
      from_pointer: &Nx.from_pointer(VulkanoBackend, Nx.to_pointer(matrix(&1)), &1, {3, 3}),
      backend_copy: &Nx.backend_copy(matrix(&1), VulkanoBackend),
      to_batched: &(matrix(&1) |> Nx.to_batched(1) |> Enum.to_list() |> hd())
    ]
  end

  defp movement do
    indices = fn -> Nx.tensor([[1], [0], [1]]) end

    [
      reshape: &Nx.reshape(matrix(&1), {9}),
      squeeze: &Nx.squeeze(Nx.reshape(matrix(&1), {1, 9})),
      broadcast: &Nx.broadcast(matrix(&1), {2, 3, 3}),
      transpose: &Nx.add(Nx.transpose(matrix(&1)), matrix(&1)),
      reverse: &Nx.reverse(matrix(&1)),
      pad: &Nx.pad(matrix(&1), Nx.tensor(1, type: &1), [{1, 1, 1}, {0, 2, 0}]),
      slice: &Nx.slice(matrix(&1), [Nx.tensor(1), 0], [1, 3]),
      put_slice: &Nx.put_slice(matrix(&1), [1, 0], Nx.tensor([[1, 0, 1]], type: &1)),
      concatenate: &Nx.concatenate([matrix(&1), matrix(&1)], axis: 1),
      stack: &Nx.stack([matrix(&1), matrix(&1)], axis: 1),
      select: &Nx.select(matrix({:u, 8}), matrix(&1), Nx.transpose(matrix(&1))),
      clip: &Nx.clip(matrix(&1), Nx.tensor(0, type: &1), Nx.tensor(1, type: &1)),
      gather: &Nx.gather(matrix(&1), indices.(), axes: [0]),
      indexed_add: &Nx.indexed_add(matrix(&1), indices.(), matrix(&1), axes: [0]),
      indexed_put: &Nx.indexed_put(matrix(&1), indices.(), matrix(&1), axes: [0])
    ]
  end

  defp reductions do
    plain = for op <- [:all, :any, :sum, :product, :reduce_max, :reduce_min], do: {op, &apply(Nx, op, [matrix(&1)])}

    plain ++
      [
        argmax: &Nx.argmax(matrix(&1), axis: 1),
        argmin: &Nx.argmin(matrix(&1), axis: 1),
        reduce: &Nx.reduce(matrix(&1), Nx.tensor(0, type: &1), [axes: [1]], fn x, y -> Nx.add(x, y) end),
        sort: &Nx.sort(matrix(&1)),
        argsort: &Nx.argsort(matrix(&1))
      ]
  end

  defp windows do
    plain =
      for op <- [:window_sum, :window_product, :window_max, :window_min] do
        {op, &apply(Nx, op, [matrix(&1), {2, 1}])}
      end

    scatter = fn op ->
      &apply(Nx, op, [matrix(&1), Nx.tensor([[1, 0, 1]], type: &1), Nx.tensor(0, type: &1), {3, 1}])
    end

    plain ++
      [
        window_reduce: &Nx.window_reduce(matrix(&1), Nx.tensor(0, type: &1), {2, 1}, fn x, y -> Nx.add(x, y) end),
        window_scatter_max: scatter.(:window_scatter_max),
        window_scatter_min: scatter.(:window_scatter_min)
      ]
  end

  defp products do
    [
      dot: &Nx.dot(matrix(&1), matrix(&1)),
      conv: &Nx.conv(Nx.reshape(matrix(&1), {1, 1, 3, 3}), Nx.reshape(matrix(&1), {1, 1, 3, 3})),
      fft: &Nx.fft(matrix(&1)),
      ifft: &Nx.ifft(matrix(&1)),
      triangular_solve: &Nx.LinAlg.triangular_solve(identity(&1), matrix(&1))
    ]
  end

  # What makes a block of Nx or of Nx.Vulkan, of tensors alone if nothing else is said.
  defp blocks do
    called = Map.new(called())

    for {owner, block} <- block_names() do
      function = block |> Macro.underscore() |> String.to_atom()
      operands = if function_exported?(Code.ensure_loaded!(owner), function, 1), do: 1, else: 2
      name = :"#{inspect(owner)}.#{function}"
      {name, Map.get(called, name, &apply(owner, function, List.duplicate(matrix(&1), operands)))}
    end
  end

  @doc "The blocks of Nx and of Nx.Vulkan: the modules that have their functions, and their names."
  def block_names do
    for app <- [:nx, :nx_vulkan],
        {:ok, modules} = :application.get_key(app, :modules),
        module <- Enum.sort(modules),
        {before, ["Block" | path]} <- [module |> Module.split() |> Enum.split_while(&(&1 != "Block"))],
        Code.ensure_loaded?(module) and function_exported?(module, :__struct__, 0) do
      {parents, [block]} = Enum.split(path, -1)
      {Module.concat(before ++ parents), block}
    end
  end

  defp called do
    [
      "Nx.take": &Nx.take(matrix(&1), Nx.tensor([1, 0])),
      "Nx.take_along_axis": &Nx.take_along_axis(matrix(&1), Nx.tensor([[1, 0, 1]])),
      "Nx.top_k": &elem(Nx.top_k(matrix(&1), k: 1), 0),
      "Nx.LinAlg.cholesky": &Nx.LinAlg.cholesky(identity(&1)),
      "Nx.LinAlg.lu": &elem(Nx.LinAlg.lu(identity(&1)), 1),
      "Nx.LinAlg.qr": &elem(Nx.LinAlg.qr(identity(&1)), 0),
      "Nx.LinAlg.eigh": &elem(Nx.LinAlg.eigh(identity(&1)), 0),
      "Nx.LinAlg.svd": &elem(Nx.LinAlg.svd(identity(&1)), 1),
      "Nx.LinAlg.solve": &Nx.LinAlg.solve(identity(&1), matrix(&1)),
      "Nx.LinAlg.determinant": &Nx.LinAlg.determinant(identity(&1))
    ]
  end

  # Rows of an odd number of elements: kernels that move words take larger ones where they can.
  defp matrix(type), do: Nx.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0]], type: type)
  defp identity(type), do: Nx.eye(3, type: type)

  @doc """
  The mark of one cell: features by their letters, a dot where there are none, nothing where Nx does not have the op for
  the type.

  Nothing else may run on the device meanwhile.
  """
  def cell(op, call, type) do
    previous = Nx.default_backend(VulkanoBackend)
    # Divisors are checked by an op of their own.
    Application.put_env(:nx_vulkan, :check_divisors, false)
    NativeV.device_take_features_used()

    try do
      result = call.(type)
      %VulkanoBackend{} = result.data
      Nx.to_binary(result)
      features = NativeV.device_take_features_used()
      marks = for {name, mark} <- @marks, name in features, uniq: true, do: mark
      if marks == [], do: "·", else: marks |> Enum.join() |> optional(op, type)
    rescue
      _ in ArgumentError -> ""
    after
      Application.delete_env(:nx_vulkan, :check_divisors)
      Nx.default_backend(previous)
    end
  end

  defp optional(marks, op, type) when type in [{:f, 64}, {:c, 128}] or op in @needs_f64, do: marks
  defp optional(marks, _op, _type), do: String.replace(marks, "d", "D")

  @doc "The text of the guide."
  def render do
    rows = for {op, call} <- ops(), do: {op, Enum.map(types(), &cell(op, call, &1))}
    names = Enum.map(types(), &Nx.Type.to_string/1)

    """
    # Ops and types

    What `Nx.Vulkan.VulkanoBackend` runs on the device, for each op and type of its operand. `mix nx_vulkan.ops` makes
    this table from what the engine's kernels declare, and a test compares the two. All of Nx's callbacks are there, and
    all of its blocks and of `Nx.Vulkan`'s; nothing is computed on the host or by another backend.

    | mark | what it uses of the device |
    |---|---|
    | · | nothing beyond Vulkan 1.2 with buffer device addresses |
    | d | `shaderFloat64` |
    | D | nothing more, but `shaderFloat64` gives more digits |
    | l | `shaderInt64` |
    | b | `shaderInt8` and `storageBuffer8BitAccess` |
    | h | `shaderInt16` and `storageBuffer16BitAccess` |
    | none | Nx does not have the op for this type |

    Where the device lacks a feature, the op is [lowered](configuration.md#types-that-a-device-lacks): the same bits, and
    slower. Letters add up. A strided view may need a copy, and with it what `transpose` needs.

    Functions of `reduce` and `window_reduce` may be any:
    - Those of elementwise ops on the element, the accumulator, numbers and captured scalars run in one kernel, as the
      table says. They may branch on comparisons, logical ops, `is_nan` and `is_infinity` (`if` and `cond` of `defn`
      do); a function has up to 64 branches, 4096 steps and 62 captured scalars.
    - Others, such as those that `stack`, `sort`, take a `dot` or read a value, run step by step with a few launches
      each: for all results at once on vectorized tensors, or for each result where the function reads values, raises
      for vectorized tensors, or runs in `Nx.Defn.Evaluator`. Their ops need what the table says of them.
    - `Nx.Vulkan.Compiler` takes the first kind only, and raises `Nx.Vulkan.Error` with the kind `:unsupported` for
      others; with `compiler: Nx.Defn.Evaluator` they run.

    Functions may be called any number of times, also for branches that no element takes: they must be free of side
    effects.

    | op | #{Enum.join(names, " | ")} |
    |---|#{Enum.map_join(names, fn _ -> "---|" end)}
    #{Enum.map_join(rows, "\n", fn {op, cells} -> "| #{op} | #{Enum.join(cells, " | ")} |" end)}
    """
  end
end
