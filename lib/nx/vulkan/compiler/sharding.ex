defmodule Nx.Vulkan.Compiler.Sharding do
  @moduledoc false

  # Functions on meshes of devices (`Nx.Defn.shard_jit/3`): what is compiled for one, and how it runs.

  alias Nx.Defn.Composite
  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Compiler.{Cache, Lowering, Results}
  alias Nx.Vulkan.Compiler.Lowering.Plan
  alias Nx.Vulkan.Compiler.Sharding.{Exchange, Layout, Partition}
  alias Nx.Vulkan.{Devices, NativeV}
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
    devices = devices!(opts[:devices], mesh, name)
    layouts = Layout.arguments!(:input_shardings, opts[:input_shardings], vars, mesh)
    wanted = opts[:output_shardings]
    templates = vars |> Composite.flatten_list() |> Enum.map(&{&1.type, &1.shape, &1.names})

    cache_key = {:shard_jit, function, mesh, devices, layouts, wanted, templates}

    with nil <- Cache.get(cache_key, large) do
      Cache.get_or_make(cache_key, large, fn -> made(name, mesh, devices, vars, {layouts, wanted}, fun) end)
    end
  end

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

  defp made(name, mesh, devices, vars, {layouts, wanted}, fun) do
    {vars, []} =
      Composite.traverse(List.to_tuple(vars), layouts, fn %T{shape: shape} = leaf, [layout | layouts] ->
        {%{leaf | shape: shape |> Tuple.to_list() |> Layout.global(layout, mesh) |> List.to_tuple()}, layouts}
      end)

    expr = vars |> Tuple.to_list() |> fun.()
    template = Nx.to_template(expr)
    leaves = Composite.flatten_list([vars])
    {scope, constants} = Lowering.lower(expr, leaves, [])
    {program, used} = program!(Plan.new(scope), name)
    all = layouts ++ Enum.map(constants, fn constant -> constant.shape |> Tuple.to_list() |> Layout.whole() end)
    wanted = if wanted, do: Layout.arguments!(:output_shardings, wanted, parts(template), mesh)
    partition = Partition.new(program, Enum.map(used, &Enum.at(all, &1)), mesh, wanted)
    {arguments, captured} = Enum.split_with(used, &(&1 < length(leaves)))

    %__MODULE__{
      name: name,
      mesh: mesh,
      devices: devices,
      partition: compiled(partition, devices),
      arguments: arguments,
      constants: for(i <- captured, do: on_all(Enum.at(constants, i - length(leaves)), devices)),
      results: Results.new(pieces(template, partition.outputs, mesh))
    }
  end

  # What a function gives, as shardings are given for it.
  defp parts(tuple) when is_tuple(tuple), do: Tuple.to_list(tuple)
  defp parts(container), do: [container]

  defp program!(%Plan{steps: [{:run, program, inputs, outputs}], outputs: outputs}, _name),
    do: {program, for([:input, i] <- inputs, do: i)}

  # A function of its arguments alone.
  defp program!(%Plan{steps: [], outputs: outputs}, name) do
    if Enum.all?(outputs, &match?([:input, _], &1)),
      do: raise(ArgumentError, "#{name} computes nothing"),
      else: host!(name)
  end

  defp program!(_plan, name), do: host!(name)

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

        %T{} = leaf, [{_id, [_, sizes], layout} | outputs] ->
          {%{leaf | shape: sizes |> Layout.local(layout, mesh) |> List.to_tuple()}, outputs}
      end)

    template
  end

  ## Running

  @doc "The results of each device, of arguments of which each has its pieces."
  @spec run(struct, [[(-> T.t())]]) :: [Nx.Container.t()]
  def run(%__MODULE__{mesh: mesh, devices: devices, partition: partition} = sharded, args_list) do
    if length(args_list) != length(devices) do
      raise ArgumentError,
            "#{sharded.name}: expected the arguments of #{length(devices)} devices, got those of #{length(args_list)}"
    end

    arguments =
      for {args, device} <- Enum.zip(args_list, devices) do
        Devices.within(device, fn ->
          for i <- sharded.arguments, do: args |> Enum.at(i) |> then(& &1.()) |> B.reference_here()
        end)
      end

    inputs = Enum.zip_with(arguments, & &1) ++ sharded.constants
    outputs = outputs(partition, inputs, mesh, devices)
    for references <- Enum.zip_with(outputs, & &1), do: Results.fill(sharded.results, references)
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
    results =
      devices
      |> Enum.with_index()
      |> Enum.map(fn {device, place} ->
        references = for id <- inputs, do: values |> Map.fetch!(id) |> Enum.at(place)
        executable = executables[device]

        B.settle(NativeV.executable_run(executable, references), fn ->
          NativeV.executable_run_dirty(executable, references)
        end)
      end)
      |> Enum.zip_with(& &1)

    outputs |> Enum.zip(results) |> Enum.into(values)
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
