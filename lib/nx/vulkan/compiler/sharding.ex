defmodule Nx.Vulkan.Compiler.Sharding do
  @moduledoc false

  # Functions on meshes of devices (`Nx.Defn.shard_jit/3`): what is compiled for one, and how it runs.

  alias Nx.Defn.Composite
  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Compiler.{Cache, Lowering, Results}
  alias Nx.Vulkan.Compiler.Lowering.{Plan, Widening}
  alias Nx.Vulkan.Compiler.Sharding.{Exchange, Layout, Partition}
  alias Nx.Vulkan.{Devices, NativeV, Telemetry}
  alias Nx.Vulkan.VulkanoBackend, as: B

  # What a call needs: the partition with an executable for each device in place of its Programs, constants, and the
  # containers of its results.
  @enforce_keys [:name, :mesh, :devices, :partition, :arguments, :constants, :results]
  defstruct @enforce_keys

  @doc """
  What runs a function on a mesh, for arguments like `vars`, of which each device has a piece.
  """
  @spec compile({term, [bitstring]}, String.t(), Nx.Mesh.t(), [Nx.Container.t()], fun, keyword) :: struct
  def compile({function, large}, name, %{shape: shape}, vars, fun, opts) do
    mesh = Tuple.to_list(shape)
    for option <- [:device, :memory, :raise_on], opts[option] not in [nil, []], do: without!(name, option)
    given = for option <- [:input_shardings, :output_shardings, :devices], do: opts[option]
    cache_key = {:shard_jit, function, mesh, given, Enum.map(vars, &Nx.to_template/1)}

    with nil <- Cache.get(cache_key, large) do
      Cache.get_or_make(cache_key, large, fn ->
        Telemetry.compile(name, fn -> made(name, mesh, vars, given, fun) end)
      end)
    end
  end

  @spec without!(String.t(), atom) :: no_return
  defp without!(name, option),
    do:
      raise(ArgumentError, "#{name}: a function on a mesh has no option #{inspect(option)}; :devices names its devices")

  # One for each place of the mesh. A device may stand in several.
  defp devices!(nil, mesh, name), do: counted!(Devices.partitions(), mesh, name)
  defp devices!(selectors, mesh, name), do: counted!(Devices.partitions!(selectors), mesh, name)

  defp counted!(selectors, mesh, name) do
    wanted = Layout.devices(mesh)

    if length(selectors) < wanted do
      raise ArgumentError,
            "#{name}: a mesh of #{inspect(List.to_tuple(mesh))} takes #{wanted} devices, got #{length(selectors)}: name them " <>
              "by devices: [0, 1, ...], where one may stand several times"
    end

    selectors |> Enum.take(wanted) |> Enum.map(&Devices.index!/1)
  end

  ## Compiling

  defp made(name, mesh, vars, [input_shardings, output_shardings, selectors], fun) do
    devices = devices!(selectors, mesh, name)
    layouts = Layout.arguments!(:input_shardings, input_shardings, vars, mesh)

    {vars, []} =
      Composite.traverse(List.to_tuple(vars), layouts, fn %T{shape: shape} = leaf, [layout | layouts] ->
        {%{leaf | shape: shape |> Tuple.to_list() |> Layout.global(layout, mesh) |> List.to_tuple()}, layouts}
      end)

    expr = vars |> Tuple.to_list() |> fun.()
    template = Nx.to_template(expr)
    leaves = Composite.flatten_list([vars])
    {scope, constants} = Lowering.lower(expr, leaves, [])
    {program, used} = program!(Plan.new(scope), scope, name)
    all = layouts ++ Enum.map(constants, fn constant -> constant.shape |> Tuple.to_list() |> Layout.whole() end)
    wanted = if output_shardings, do: wanted!(output_shardings, template, mesh)
    partition = Partition.new(program, Enum.map(used, &Enum.at(all, &1)), mesh, wanted)
    {arguments, captured} = Enum.split_with(used, &(&1 < length(leaves)))

    %__MODULE__{
      name: name,
      mesh: mesh,
      devices: devices,
      partition: compiled(partition, devices),
      arguments: Enum.zip(arguments, Enum.map(partition.inputs, &partition.types[&1])),
      constants: for(i <- captured, do: on_all(Enum.at(constants, i - length(leaves)), devices)),
      results: Results.new(pieces(template, partition.outputs, mesh))
    }
  end

  # All pieces of a result have one size.
  defp wanted!(shardings, template, mesh) do
    layouts = Layout.arguments!(:output_shardings, shardings, parts(template), mesh)

    for {leaf, layout} <- Enum.zip(Composite.flatten_list([template]), layouts),
        do: Layout.divisible!(leaf, layout, mesh)

    layouts
  end

  # What a function gives, as shardings are given for it.
  defp parts(tuple) when is_tuple(tuple), do: Tuple.to_list(tuple)
  defp parts(container), do: [container]

  defp program!(%Plan{steps: [{:run, program, inputs, outputs}], outputs: outputs}, _scope, _name),
    do: {program, for([:input, i] <- inputs, do: i)}

  # What computes nothing may still be cut or put together.
  defp program!(%Plan{steps: [], outputs: outputs}, scope, _name) do
    used = for([:input, i] <- outputs, do: i) |> Enum.uniq()
    places = used |> Enum.with_index() |> Map.new(fn {i, place} -> {[:input, i], [:input, place]} end)
    {[Enum.map(used, &Enum.at(scope.inputs, &1)), [], Enum.map(outputs, &Map.fetch!(places, &1))], used}
  end

  defp program!(_plan, _scope, name), do: host!(name)

  defp host!(name) do
    raise Nx.Vulkan.Error,
      kind: :unsupported,
      op: :shard_jit,
      message: "#{name} calls the host (hooks, runtime_call), which a function on a mesh can't",
      details: %{}
  end

  # An executable of each Program for every device that there is.
  defp compiled(partition, devices) do
    steps =
      Enum.map(partition.steps, fn
        {:run, program, inputs, outputs} ->
          {:run, Map.new(Enum.uniq(devices), &{&1, executable(program, &1)}), inputs, outputs}

        {{op, first, second, ids}, results} when op in [:while, :cond] ->
          {{op, compiled(first, devices), compiled(second, devices), ids}, results}

        exchange ->
          exchange
      end)

    %{partition | steps: steps}
  end

  defp executable(program, device) do
    compile = fn -> NativeV.program_compile(program, [], nil, device) end
    B.settle(compile.(), compile)
  end

  defp pieces(template, outputs, mesh) do
    {template, []} =
      Composite.traverse(template, outputs, fn
        %T{vectorized_axes: [_ | _] = axes}, _outputs ->
          raise ArgumentError, "expected results without vectorized axes on a mesh, got: #{inspect(axes)}"

        %T{type: type} = leaf, [{_id, [_, sizes] = given, layout} | outputs] ->
          shape = sizes |> Layout.local(layout, mesh) |> List.to_tuple()
          # Gradients of loops may be wider than Nx says.
          {%{leaf | type: Widening.type(type, given), shape: shape}, outputs}
      end)

    template
  end

  ## Running

  @doc "The results of each device, of arguments of which each has its pieces."
  @spec run(struct, [[(-> T.t())]]) :: [Nx.Container.t()]
  def run(%__MODULE__{name: name, mesh: mesh, devices: devices, partition: partition} = sharded, args_list) do
    if length(args_list) != length(devices) do
      raise ArgumentError,
            "#{name}: expected the arguments of #{length(devices)} devices, got those of #{length(args_list)}"
    end

    outputs =
      Telemetry.run(name, fn ->
        arguments =
          for {{args, device}, place} <- Enum.with_index(Enum.zip(args_list, devices)) do
            args = List.to_tuple(args)
            Devices.within(device, fn -> for argument <- sharded.arguments, do: piece!(argument, args, place, name) end)
          end

        outputs(partition, Enum.zip_with(arguments, & &1) ++ sharded.constants, mesh, devices)
      end)

    for references <- Enum.zip_with(outputs, & &1), do: Results.fill(sharded.results, references)
  end

  # The piece of an argument that a device has, which is as those of all others.
  defp piece!({i, [_, sizes] = type}, args, place, name) do
    tensor = if i < tuple_size(args), do: Nx.to_tensor(elem(args, i).())

    if tensor == nil or Lowering.type(tensor) != type do
      got = if tensor, do: inspect(Nx.to_template(tensor)), else: "none"

      raise ArgumentError,
            "#{name}: expected tensor #{i + 1} of the arguments of device #{place} to be #{hd(type)}#{inspect(sizes)} as " <>
              "that of the others, got: #{got}"
    end

    B.reference_here(tensor)
  end

  # The references of a partition's results, for each a list of those of all devices.
  defp outputs(partition, inputs, mesh, devices) do
    values = partition.inputs |> Enum.zip(inputs) |> Map.new()

    offsets =
      for {id, mesh_axes, size} <- partition.offsets, into: values, do: {id, offset(mesh_axes, size, mesh, devices)}

    values = Enum.reduce(partition.steps, offsets, &step(&1, &2, partition.types, mesh, devices))
    for {id, _, _} <- partition.outputs, do: Map.fetch!(values, id)
  end

  defp step({:run, executables, inputs, outputs}, values, _types, _mesh, devices) do
    references = inputs |> Enum.map(&Map.fetch!(values, &1)) |> transposed(length(devices))

    results =
      devices
      |> Enum.zip(references)
      |> Enum.map(fn {device, references} -> {executables[device], references} end)
      |> Enum.map(fn {executable, references} = call -> {NativeV.executable_run(executable, references), call} end)
      |> Exchange.parallel(&match?({{:ok, _}, _}, &1), fn {answer, {executable, references}} ->
        B.settle(answer, fn -> NativeV.executable_run_dirty(executable, references) end)
      end)

    outputs |> Enum.zip(transposed(results, length(outputs))) |> Enum.into(values)
  end

  defp step({{:gather, id, axis, mesh_axes}, [result]}, values, types, mesh, devices) do
    Map.put(values, result, Exchange.gather(Map.fetch!(values, id), types[id], axis, mesh_axes, mesh, devices))
  end

  defp step({{:combine, id, op, mesh_axes}, [result]}, values, types, mesh, devices) do
    Map.put(values, result, Exchange.combine(Map.fetch!(values, id), types[id], op, mesh_axes, mesh, devices))
  end

  defp step({{:while, condition, body, ids}, results}, values, _types, mesh, devices) do
    {state, captured} = ids |> Enum.map(&Map.fetch!(values, &1)) |> Enum.split(length(results))
    results |> Enum.zip(loop(state, captured, condition, body, mesh, devices)) |> Enum.into(values)
  end

  defp step({{:cond, on_true, on_false, [predicate | ids]}, results}, values, _types, mesh, devices) do
    branch = if true?(Map.fetch!(values, predicate)), do: on_true, else: on_false
    given = outputs(branch, Enum.map(ids, &Map.fetch!(values, &1)), mesh, devices)
    results |> Enum.zip(given) |> Enum.into(values)
  end

  defp loop(state, captured, condition, body, mesh, devices) do
    [predicate] = outputs(condition, state ++ captured, mesh, devices)

    if true?(predicate),
      do: body |> outputs(state ++ captured, mesh, devices) |> loop(captured, condition, body, mesh, devices),
      else: state
  end

  # Lists of what each one has of many, from lists of what many have of each one.
  defp transposed([], count), do: List.duplicate([], count)
  defp transposed(lists, _count), do: Enum.zip_with(lists, & &1)

  # All devices have the same.
  defp true?([reference | _]), do: Nx.to_number(B.holding(Nx.template({}, :u8), reference)) != 0

  defp offset(mesh_axes, size, mesh, devices) do
    for {device, place} <- Enum.with_index(devices) do
      Nx.template({}, :s64) |> B.constant(Layout.piece(mesh, place, mesh_axes) * size, device: device) |> B.reference()
    end
  end

  defp on_all(constant, devices),
    do: for(device <- devices, do: Devices.within(device, fn -> B.reference_here(constant) end))
end
