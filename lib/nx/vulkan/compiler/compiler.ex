defmodule Nx.Vulkan.Compiler do
  @moduledoc """
  The `Nx.Defn.Compiler` that makes one Program of a whole numerical definition.

      Nx.Defn.default_options(compiler: Nx.Vulkan.Compiler)

  `compiler: Nx.Vulkan` is the same. The expression is lowered once per function and templates of the arguments (types,
  shapes, names, vectorized axes); after that a call hands references to the device and returns at once, with tensors of
  `Nx.Vulkan.VulkanoBackend` that the device fills later. Arguments of other backends are copied to the device. Any
  number of processes may call one function at the same time.

  ## Options

    * `:hooks` - a map of callbacks for named hooks, `nil` for none, see `Nx.Defn.Kernel.io_call/3`. Another callback
      for the same name does not compile again
    * `:cache` - `false` compiles at every call and keeps nothing; `true` by default
    * `:device` - the device that runs the function, by a selector (`Nx.Vulkan`). Without it that is the device of the
      tensors that are its arguments, or else of the default backend. Captured tensors are copied there when the function
      is compiled
    * `:automatic_transfers` - whether arguments on other devices are copied to that device at every call, as scalars
      are; otherwise they raise. `config :nx_vulkan, :automatic_transfers` by default, which is `false`. With a `:device`
      as well, as partitions of `Nx.Serving` have it, `Nx.concatenate/2` takes results of several devices and slices of
      them, so that a request may be computed in parts
    * `:devices` - a list of selectors: with `partitions: true`, `Nx.Serving` starts a partition on each of them, to
      which batches move. Without it and `:device`, these are all devices of the kind of the default one
    * `:max_concurrency` - how many partitions `Nx.Serving` starts on each device, `1` by default
    * `:precision` - how exact products of f32 have to be: `:default` and `:highest` mean f32, `:high` two f16 numbers
      for each element. It is one for the VM, by `config :nx_vulkan, precision: :high` or `NX_VULKAN_PRECISION=high`
      before it starts; an `ArgumentError` says that this VM computes with another

    * `:raise_on` - `:nan` raises `Nx.Vulkan.Error` where a result has NaN, and names the op with which it begins;
      `:infinity` likewise, a list of both either of them. See below

    * `:memory` - the bytes that a run may take besides its arguments: its results, those in the memory of donated
      arguments left out, and what it holds on the way. There are a few ways to run a function, from one that computes
      nothing again to one that keeps least, and the first that takes no more is taken. So a large number gives the
      fastest run, and a small one may take less than it allows, by much. `nil`, the default, spends up to a sixteenth
      of the time on it. `Nx.Vulkan.Error` of the kind `:out_of_memory` says how much this function needs at least, in
      `details.needed_bytes`. A library may call several functions with the option, as Axon does (one that makes the
      parameters, then the step), and each has an error of its own. Where a function becomes several Programs, each may
      take as much

  Other options are left alone, as EXLA and the evaluator do: libraries pass theirs through, as Axon does with `:mode`.

  ## What differs from eager ops

    * Indices out of bounds don't raise: `gather`, `take` and `take_along_axis` read the nearest position, `indexed_add`
      and `indexed_put` drop such updates
    * Singular systems don't raise: `Nx.LinAlg.solve/2` and `Nx.LinAlg.triangular_solve/3` give infinities and NaN
    * An error of the device shows when a result is read

  ## Hooks and `Nx.runtime_call`

  Callbacks run in the process of the caller, in the order of the definition. Hooks of what the device computes anyway
  get its results after the run. Where a callback's result feeds the definition, or one stands inside `while` or `cond`,
  the definition becomes several Programs with the host between them: every iteration waits for the device then.

  ## Donation

  A tensor that was marked by `Nx.donatable/1` is released by a call that succeeds, unless the definition has hooks or
  `Nx.runtime_call`, which may have handed it on. Where a result of as many bytes is written when nothing reads the
  tensor any more, or by an elementwise kernel that reads the same element, it has the tensor's memory, so that a
  training step with donated parameters takes no second copy of them. That memory goes back to the pool where another
  tensor shares it, such as a reshape of the tensor, or no result fits.

  ## NaN and infinities

  Under `raise_on: :nan` each call looks whether its results have NaN. Where they have, it runs the function once more,
  op by op, and raises `Nx.Vulkan.Error` of the kind `:nan`. The error says with which op the NaN begins (its operands
  have none), with types and shapes, in which branch or iteration that is, and which argument was used last before it,
  such as the parameters of a layer. NaN that is masked on its way to the results is none. NaN of an argument is told as
  such.

      Nx.Defn.jit(&Nx.sum(Nx.log(&1)), compiler: Nx.Vulkan, raise_on: :nan).(Nx.tensor([1.0, -1.0]))
      ** (Nx.Vulkan.Error) log: the NaN in the results begins here, in the result f32[2] of the operand f32[2], which
      has none; the argument used last before is argument 1 (f32[2]), in ..., at call 1 since it was compiled

  The call's number, `details.call`, is the number of the step where a training was compiled for itself. A layer of Axon
  without parameters has no name here: what is told is the argument before it.

  Results are those of a call without the option, to the bit. A call reads all of them once more and waits for the
  device; the search, once, compiles and runs each op alone. Donated tensors are kept until the results were looked at,
  so results don't get their memory. `Nx.runtime_call` calls its function again in a search; hooks are not called again.

  ## Configuration

    * `config :nx_vulkan, compiler_cache_entries: 4096` - how many compiled functions are kept
    * `config :nx_vulkan, recompile_warning: 10` - warns when a function was compiled as often for arguments of the same
      types and shapes, because it captures values that change; `:infinity` never does

  ## Errors

  `Nx.Vulkan.Error`, which names the function, the op (a kernel of several ops with those ops) and the types of its
  operands and results, in `:details` too; `:released` names the arguments that were deallocated; `:unsupported` for
  what the device or this version can't do. What memory a run lacks is said of the whole program. Nothing falls back to
  another backend or compiler.

  The guide to [the compiler](compiler.md) tells what happens at a call, and how to look inside.
  """

  @behaviour Nx.Defn.Compiler

  alias Nx.Defn.Composite
  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Compiler.{Arguments, Cache, Key, Live, Lowering, Origin, Recompilation, Results, Sharding, Steps}
  alias Nx.Vulkan.Compiler.Lowering.{Plan, Widening}
  alias Nx.Vulkan.{Devices, NativeV, Telemetry}
  alias Nx.Vulkan.VulkanoBackend, as: B

  require Logger
  require Record

  # What a call needs: the executable on a device, or a plan of several steps with the `slots` of its inputs. `kept` says of
  # every argument whether it is used, or is nil where all are. `constants` are references that follow the arguments.
  # The templates of those, which only errors need, are `arguments`, as a binary, which is not copied out of the cache at
  # every call. So is the scope in `check`, which is there where a call is to raise on NaN or infinities, with the
  # kinds and the executable that looks for them, the results that this reads, the numbers of the scope's inputs that
  # a call has, and which of these the caller has donated. A struct would be copied with its keys.
  Record.defrecordp(
    :entry,
    [:name, :device, :executable, :plan, :slots, :kept, :constants, :arguments, :results, :check]
    |> Enum.map(&{&1, nil})
  )

  # What the library answers where a tensor is on another device than the executable.
  defmacrop elsewhere, do: quote(do: {:error, :invalid_argument, _, _, %{what: "devices"}})

  @impl true
  def __jit__(key, vars, fun, args_list, opts) do
    {near, args_list} = near_arguments(opts, args_list)
    {entry, hooks} = entry(key, vars, fun, near)
    again = fn device -> entry(key, vars, fun, [device: device] ++ opts) end
    Enum.map(args_list, &call(entry, &1, hooks, {opts, again}))
  end

  # What was compiled belongs to its node. On others the function is compiled again, once.
  @impl true
  def __compile__(key, vars, fun, opts) do
    {entry, hooks} = entry(key, vars, fun, opts)
    again = fn device -> entry(key, vars, fun, [device: device] ++ opts) end
    made_on = node()

    fn args_list ->
      {entry, hooks} = if node() == made_on, do: {entry, hooks}, else: entry(key, vars, fun, opts)
      Enum.map(args_list, &call(entry, &1, hooks, {opts, again}))
    end
  end

  @impl true
  def __partitions_options__(opts) do
    {selectors, opts} = Keyword.pop(opts, :devices)

    cond do
      selectors != nil -> partitions(Devices.partitions!(selectors), opts)
      opts[:device] != nil -> List.duplicate(opts, max_concurrency(opts))
      true -> on_all(Devices.partitions(), opts)
    end
  end

  # The only device needs no name.
  defp on_all([_only], opts), do: List.duplicate(opts, max_concurrency(opts))
  defp on_all(devices, opts), do: partitions(devices, opts)

  # Batches come from processes that know nothing of devices.
  defp partitions(selectors, opts) do
    for selector <- selectors, _ <- 1..max_concurrency(opts) do
      Keyword.merge([automatic_transfers: true], opts) |> Keyword.put(:device, selector)
    end
  end

  @impl true
  def __to_backend__(opts) do
    case opts[:device] do
      nil -> {B, []}
      selector -> {B, device: selector}
    end
  end

  # Without a device of its own, a function runs where the first argument is that is no scalar. Nobody has to look where
  # there is one device, and each argument is asked for once.
  defp near_arguments(opts, args_list) do
    if Devices.several?() and not Keyword.has_key?(opts, :device) do
      args_list = for args <- args_list, do: Enum.map(args, fn arg -> arg |> then(& &1.()) |> then(&fn -> &1 end) end)
      tensors = for args <- args_list, arg <- args, do: arg.()
      device = Devices.of_operands(tensors) || backend_device()
      {if(device, do: [device: device] ++ opts, else: opts), args_list}
    else
      {opts, args_list}
    end
  end

  # The device of a function that names none, and has no arguments that do.
  defp backend_device do
    case Nx.default_backend() do
      {backend, [device: selector]} when backend in [B, Nx.Vulkan.Backend] -> Devices.index!(selector)
      _other -> nil
    end
  end

  @impl true
  def __shard_jit__(key, mesh, vars, fun, args_list, opts) do
    name = name(key)
    named(name, fn -> key |> Key.of() |> Sharding.compile(name, mesh, vars, fun, opts) |> Sharding.run(args_list) end)
  end

  @doc """
  Compiles `fun` for arguments like `args` and tells what was made of it, as a map:

    * `:function` - its name
    * `:steps` - what a call does, in order. Most functions are one `{:run, program}`; hooks, `Nx.runtime_call` and what
      holds them are `{:hook, name}`, `{:call, function}`, `{:while, condition, body}` and `{:cond, on_true, on_false}`,
      the parts being lists of steps
    * `:kept`, `:arguments` - how many of the arguments' tensors are used, and how many there are
    * `:constants` - the types and shapes of captured tensors

  A program is a map of `:inputs` and `:outputs` (types and shapes), `:ops` (how many instructions of each op there are
  before the engine optimizes), `:device` (what one run does then, and the memory that it takes: see
  `Nx.Vulkan.NativeV.executable_info/1`), `:held` (the intermediate results that lie in memory where they take most, the
  largest first: `:size_bytes`, and `:made_by` and `:read_by`, the kernels that make it and read it last with their
  places among the launches), `:live_bytes` (how much memory intermediate results take while each launch runs, as a
  list), `:live` (the same as a drawing, which `IO.puts/1` prints) and `:launches`, what each launch of a run does:

    * `:kernel` - its name, `family.ops.type`, and the beginning of its hash, or `"fill"` or `"copy"`
    * `:groups` - workgroups in three dimensions
    * `:barrier` - whether it waits for the launches before it
    * `:read_bytes`, `:written_bytes` - each operand counts once, by the elements that its view has
    * `:flops` - one for each element of an elementwise op (none for a change of type) and for each element that is
      reduced, two for each product that is added up, 5 n log2 n for a transform, none for what moves data; `nil` where
      the number depends on values, and for factorizations and solvers
    * `:live_bytes` - what intermediate results take then, in the arena or in memory of results that are not written
      yet. The results are not among them

  Arguments that `Nx.donatable/1` has marked, and the option `:memory`, do what they do in a call. Where the host waits
  for a value, or repeats launches as often as is known before, the list has `%{wait: op}` with the lists of the op's
  parts, such as `:condition` and `:body`, which `:live_bytes` leaves out.

  ## Examples

      iex> %{steps: [run: program]} = Nx.Vulkan.Compiler.explain(&Nx.sum(Nx.exp(&1)), [Nx.iota({8})])
      iex> program.ops
      %{exp: 1, sum: 1}
      iex> [%{read_bytes: 32, written_bytes: 4}] = program.launches
      iex> program.outputs
      [[:f32, []]]
  """
  @spec explain(fun, list, keyword) :: map
  def explain(fun, args, opts \\ []) do
    check_call(fun, args)
    check_precision(opts)
    hooks = hooks(opts)
    name = name(fun)
    {plan, constants, leaves, _template} = lower_for(fun, args, hooks)
    used = Plan.inputs(plan)
    steps = fn -> steps(plan, name, {donated(plan, leaves), memory(opts)}) end

    %{
      function: name,
      arguments: length(leaves),
      kept: Enum.count(used, &(&1 < length(leaves))),
      constants: Enum.map(constants, &{&1.type, &1.shape}),
      steps: Devices.within(Devices.index!(opts[:device]), steps)
    }
  end

  @doc """
  What becomes of `fun` for arguments like `args`, as a graph in the DOT language of Graphviz.

  Boxes are kernels with the ops in them, dashed boxes are views, which take no time, edges are buffers with their types
  and shapes. The programs of `while` and `cond` are clusters, and so are the Programs of a function with hooks or
  `Nx.runtime_call` in it. Options are those of `explain/3`.

  ## Examples

      iex> graph = Nx.Vulkan.Compiler.graph(&Nx.sum(Nx.exp(&1)), [Nx.iota({8})])
      iex> graph =~ "digraph" and graph =~ "exp"
      true

  In a file `sum.gv` it is drawn by `dot -Tsvg sum.gv -o sum.svg`.
  """
  @spec graph(fun, list, keyword) :: String.t()
  def graph(fun, args, opts \\ []) do
    check_call(fun, args)
    check_precision(opts)
    name = name(fun)
    {plan, _, _, _} = lower_for(fun, args, hooks(opts))

    programs =
      case titled(plan, "") do
        [{_, program}] -> [{"", program}]
        programs -> programs
      end

    device = Devices.index!(opts[:device])

    named(name, fn ->
      graph = fn -> NativeV.programs_graph(name, programs, device) end
      B.settle(graph.(), graph)
    end)
  end

  @doc """
  Forgets all compiled functions and returns how many there were. Their captured tensors go with them, and what is
  called next is compiled again.

  For functions that call helpers which were redefined, as in a notebook: a compiled function has the code that its
  helpers had then. The device's pipelines stay, so that the same kernels don't take as long again.

  ## Examples

      Nx.Vulkan.Compiler.clear_cache()
  """
  @spec clear_cache() :: non_neg_integer
  defdelegate clear_cache, to: Cache, as: :drop_all

  @doc false
  # What libraries pass through beside these is left alone.
  def options,
    do: [:hooks, :cache, :device, :automatic_transfers, :devices, :max_concurrency, :precision, :raise_on, :memory]

  @doc false
  def check_call(fun, args) do
    if not is_function(fun), do: raise(ArgumentError, "expected a function, got: #{inspect(fun)}")
    if not is_list(args), do: raise(ArgumentError, "expected a list of the function's arguments, got: #{inspect(args)}")

    if not is_function(fun, length(args)) do
      {:arity, arity} = Function.info(fun, :arity)
      raise ArgumentError, "expected the #{arity} arguments of #{inspect(fun)}, got #{length(args)} of them"
    end
  end

  # The programs of a plan with the numbers of their steps.
  defp titled(%Plan{steps: steps}, before) do
    steps
    |> Enum.with_index(1)
    |> Enum.flat_map(fn {step, i} ->
      case step do
        {:run, program, _, _} ->
          [{"step #{before}#{i}", program}]

        {:while, _, condition, body, _, _} ->
          titled(condition, "#{before}#{i}, condition, ") ++ titled(body, "#{before}#{i}, body, ")

        {:cond, on_true, on_false, _, _} ->
          titled(on_true, "#{before}#{i}, on_true, ") ++ titled(on_false, "#{before}#{i}, on_false, ")

        _hook_or_call ->
          []
      end
    end)
  end

  @doc false
  # As `lower/4`, for arguments.
  def lower_for(fun, args, hooks) do
    {_fun, vars, _templates, _args} = Nx.Defn.Compiler.to_lazy_params(fun, args)
    trace = fn _vars -> trace(fun, args, hooks) end
    lower(name(fun), vars, trace, Map.keys(hooks))
  end

  defp trace(fun, args, hooks) do
    Nx.Defn.debug_expr_apply(fun, args, hooks: hooks)
  rescue
    error in RuntimeError ->
      # What Nx says where a function of Nx.Defn.jit/2 or Nx.Defn.compile/3 is called while another is traced.
      if error.message =~ ~r/^cannot invoke (JITed|compiled) function/ do
        message =
          "expected a function that is not compiled yet, got #{inspect(fun)}, which is or calls one of Nx.Defn.jit/2 or Nx.Defn.compile/3"

        reraise ArgumentError, [message: message], __STACKTRACE__
      else
        reraise error, __STACKTRACE__
      end
  end

  defp steps(%Plan{steps: steps}, name, how) do
    Enum.map(steps, fn
      {:run, program, _, _} -> {:run, program(program, name, how)}
      {:hook, {:named, hook, _}, _, _} -> {:hook, hook}
      {:hook, {:fn, callback}, _, _} -> {:hook, name(callback)}
      {:call, callback, _, _, _, _, _} -> {:call, name(callback)}
      {:while, _, condition, body, _, _} -> {:while, steps(condition, name, how), steps(body, name, how)}
      {:cond, on_true, on_false, _, _} -> {:cond, steps(on_true, name, how), steps(on_false, name, how)}
    end)
  end

  defp program([inputs, instructions, outputs] = program, name, {donated, memory}) do
    executable = executable(program, name, donated, memory)
    device = B.settle(NativeV.executable_info(executable), fn -> NativeV.executable_info(executable) end)
    launches = B.settle(NativeV.executable_launches(executable), fn -> NativeV.executable_launches(executable) end)
    held = B.settle(NativeV.executable_held(executable), fn -> NativeV.executable_held(executable) end)
    results = Enum.flat_map(instructions, &List.last/1)
    places = %{input: List.to_tuple(inputs), result: List.to_tuple(results)}
    live = Live.new(launches)

    %{
      inputs: inputs,
      outputs: for([place, i] <- outputs, do: elem(places[place], i)),
      ops: Enum.frequencies_by(instructions, &hd/1),
      device: device,
      held: held,
      live_bytes: live.bytes,
      live: live,
      launches: launches
    }
  end

  ## Finding what was compiled

  # `Nx.Defn` gives the hooks where nobody gave an option.
  defp entry(key, vars, fun, opts) when opts == [] or opts == [hooks: %{}],
    do: {cached(key, vars, fun, [], {[], nil, device([])}), %{}}

  defp entry(key, vars, fun, opts) do
    hooks = hooks(opts)
    max_concurrency(opts)
    check_precision(opts)
    names = Map.keys(hooks)
    automatic(opts)
    asked = {raise_on(opts), memory(opts), device(opts)}
    cache? = option(opts, :cache, true, &is_boolean/1, "a boolean")
    {if(cache?, do: cached(key, vars, fun, names, asked), else: make(key, vars, fun, names, asked)), hooks}
  end

  # The index of the device of a function, nil for the default one.
  defp device(opts) do
    case List.keyfind(opts, :device, 0) do
      {_, selector} when selector != nil -> Devices.index!(selector)
      _none -> if Devices.several?(), do: Devices.current() || backend_device()
    end
  end

  # Nil where the configuration says it.
  defp automatic(opts),
    do: option(opts, :automatic_transfers, nil, &(is_nil(&1) or is_boolean(&1)), "a boolean")

  defp memory(opts) do
    option(opts, :memory, nil, &(is_nil(&1) or (is_integer(&1) and &1 > 0)), "a positive number of bytes, or nil")
  end

  # The kinds of numbers on which a call raises, in one order.
  defp raise_on(opts) do
    kinds = [:nan, :infinity]
    valid? = &(is_list(&1) and &1 -- kinds == [])
    wanted = option(opts, :raise_on, [], &(&1 in kinds or valid?.(&1)), ":nan, :infinity or a list of them")
    Enum.filter(kinds, &(&1 in List.wrap(wanted)))
  end

  defp max_concurrency(opts), do: option(opts, :max_concurrency, 1, &(is_integer(&1) and &1 > 0), "a positive integer")

  # All products of the VM have one precision, so another can't be had for one function.
  defp check_precision(opts) do
    with {_, wanted} <- List.keyfind(opts, :precision, 0) do
      option(opts, :precision, nil, &(&1 in [:default, :high, :highest]), ":default, :high or :highest")
      given = Nx.Vulkan.Application.precision()

      if (wanted == :high and given != :high) or (wanted != :high and given == :high) do
        raise ArgumentError,
              "precision: #{inspect(wanted)} can't be had for one function, since this VM computes products of f32 with " <>
                "precision: #{inspect(given)}. It is set for the whole VM before it starts, by config :nx_vulkan, precision: " <>
                "#{inspect(wanted)}, or by the environment variable NX_VULKAN_PRECISION, which is \"high\" or unset"
      end
    end
  end

  # The callbacks of named hooks that are to be called.
  defp hooks(opts) do
    callbacks? = &(is_map(&1) and Enum.all?(&1, fn {_, f} -> is_nil(f) or is_function(f, 1) end))

    opts
    |> option(:hooks, %{}, callbacks?, "a map of functions of one argument by the names of hooks")
    |> Map.reject(fn {_, callback} -> is_nil(callback) end)
  end

  defp option(opts, name, default, valid?, expected) do
    value = Keyword.get(opts, name, default)
    if not valid?.(value), do: raise(ArgumentError, "#{inspect(name)} must be #{expected}, got: #{inspect(value)}")
    value
  end

  defp cached(key, vars, fun, hooks, asked) do
    templates = templates(vars)
    {function, large} = Key.of(key)
    cache_key = {function, templates, hooks, asked}

    with nil <- Cache.get(cache_key, large) do
      Cache.get_or_make(cache_key, large, fn ->
        Recompilation.check(key, templates)
        make(key, vars, fun, hooks, asked)
      end)
    end
  end

  # Tuples, which most functions take, need no protocol.
  defp templates([var | vars]), do: [template(var) | templates(vars)]
  defp templates([]), do: []

  # Every call takes the hash of all of them: most tensors are known by a type and a shape.
  defp template(%T{type: type, shape: shape, names: names, vectorized_axes: axes} = tensor) do
    donatable? = donatable?(tensor)

    if axes == [] and not donatable? and unnamed?(names),
      do: {type, shape},
      else: {type, shape, names, axes, donatable?}
  end

  defp template(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> templates()
  defp template(container), do: Composite.traverse(container, &template/1)

  defp unnamed?([nil | names]), do: unnamed?(names)
  defp unnamed?(names), do: names == []

  # Tensors of Nx 0.13 have no such key.
  defp donatable?(tensor), do: Map.get(tensor, :donatable?, false)

  ## Compiling

  defp make(key, vars, fun, hooks, {_kinds, _memory, device} = asked) do
    name = name(key)
    Telemetry.compile(name, fn -> Devices.within(device, fn -> made(name, vars, fun, hooks, asked) end) end)
  end

  defp made(name, vars, fun, hooks, {kinds, memory, device}) do
    {scope, constants, leaves, template} = scope(name, vars, fun, hooks)
    plan = Plan.new(scope)
    used = Plan.inputs(plan)
    {arguments, constant_places} = Enum.split_with(used, &(&1 < length(leaves)))
    donated = donated(plan, leaves)
    check = check(scope, kinds, used, donated, name)
    # A search begins with the arguments.
    plan = Plan.map_programs(plan, &executable(&1, name, if(check, do: [], else: donated), memory))

    entry =
      entry(
        name: name,
        device: device,
        arguments: vars |> Enum.map(&Nx.to_template/1) |> :erlang.term_to_binary(),
        results: Results.new(template),
        check: check,
        kept: if(length(arguments) < length(leaves), do: for(i <- 0..(length(leaves) - 1)//1, do: i in arguments)),
        constants:
          named(name, fn -> for(i <- constant_places, do: B.reference_here(Enum.at(constants, i - length(leaves)))) end)
      )

    case plan do
      %Plan{steps: [{:run, executable, _, outputs}], outputs: outputs} -> entry(entry, executable: executable)
      _ -> entry(entry, plan: plan, slots: Enum.map(used, &[:input, &1]))
    end
  end

  # Of the arguments that a plan uses, those that its one Program may have; none where callbacks may hand them on.
  defp donated(plan, leaves) do
    donated = for i <- Plan.inputs(plan), i < length(leaves), do: leaves |> Enum.at(i) |> donatable?()
    if true in donated and match?(%Plan{steps: [{:run, _, _, outputs}], outputs: outputs}, plan), do: donated, else: []
  end

  defp check(_scope, [], _used, _donated, _name), do: nil

  defp check(scope, kinds, used, donated, name) do
    with {program, read} <- Origin.test(scope.types, kinds) do
      scope = :erlang.term_to_binary(scope)

      %{
        executable: executable(program, name, [], nil),
        read: read,
        kinds: kinds,
        scope: scope,
        used: used,
        donated: donated,
        calls: :counters.new(1, [])
      }
    end
  end

  @doc false
  # The plan of a function, the tensors that it captured, its flat arguments and the template of its result.
  def lower(name, vars, fun, hooks) do
    {scope, constants, leaves, template} = scope(name, vars, fun, hooks)
    {named(name, fn -> Plan.new(scope) end), constants, leaves, template}
  end

  defp scope(name, vars, fun, hooks) do
    # It may raise whatever the user's code does.
    expr = fun.(vars)
    template = expr |> Nx.to_template() |> Composite.traverse(&Map.replace(&1, :donatable?, false))
    leaves = Composite.flatten_list(vars)
    devectorized = Composite.traverse(expr, &Nx.devectorize/1)

    named(name, fn ->
      {scope, constants} = Lowering.lower(devectorized, Enum.map(leaves, &Nx.devectorize/1), hooks)
      {scope, constants, leaves, typed(template, scope.types)}
    end)
  end

  # Gradients of loops may be wider than Nx says (`Nx.Vulkan.Compiler.Lowering.Widening`).
  defp typed(template, types) do
    {template, []} =
      Composite.traverse(template, types, fn %T{type: type} = leaf, [given | types] ->
        {%{leaf | type: Widening.type(type, given)}, types}
      end)

    template
  end

  defp executable(program, name, donated, memory) do
    named(name, fn ->
      compile = fn -> NativeV.program_compile(program, donated, memory, Devices.current()) end
      B.settle(compile.(), compile)
    end)
  end

  defp named(name, fun) do
    fun.()
  rescue
    error in Nx.Vulkan.Error ->
      reraise %{error | message: "#{error.message}, in #{name}#{beside(error)}"}, __STACKTRACE__
  end

  # Libraries hand on the option, and name no function that a user has called.
  defp beside(%{details: %{needed_bytes: _}}) do
    "; other functions that get the option need what they need, such as the step of a training beside what makes its " <>
      "parameters"
  end

  defp beside(_error), do: ""

  # The function that is meant by one that Nx or Axon make around it, as `Nx.Defn.jit/2` and `Nx.Defn.grad/1` do: the
  # first that it captured.
  defp meant(fun) do
    [module: module, env: env] = for item <- [:module, :env], do: Function.info(fun, item)

    case module in [Nx.Defn, Nx.Defn.Compiler] and Enum.find(env, &is_function/1) do
      inner when is_function(inner) -> meant(inner)
      _none -> fun
    end
  end

  # `Module.function/arity` also of definitions and of captures of local functions,
  # `anonymous fn/arity in Module.function/arity` of others.
  defp name(key) when is_function(key) do
    key = meant(key)
    [module: module, name: name, arity: arity] = for item <- [:module, :name, :arity], do: Function.info(key, item)

    case Regex.run(~r/^-fun\.(.+)\/\d+-$/, Atom.to_string(name)) do
      [_, captured] -> "#{inspect(module)}.#{captured}/#{arity}"
      # A definition `step` is compiled as the function `__defn:step__`.
      nil -> Regex.replace(~r/"__defn:(.+?)__"/, Exception.format_mfa(module, name, arity), "\\1")
    end
  end

  defp name(key), do: inspect(key)

  ## Calling

  defp call(entry(name: name) = entry, args, hooks, how) do
    outputs =
      Telemetry.run(name, fn ->
        references = arguments(entry, args, how)

        with :elsewhere <- outputs(entry, references, hooks) do
          {entry, references} = together(entry, references, how)

          with :elsewhere <- outputs(entry, references, hooks),
               do: raise(ArgumentError, "#{name}: its arguments are on several devices")
        end
      end)

    results = Results.fill(entry(entry, :results), outputs)
    if moves?(how), do: Composite.traverse(results, &B.moving/1), else: results
  end

  # Whether results are those of a partition, or of what moves its arguments as one.
  defp moves?({[], _again}), do: false
  defp moves?({opts, _again}), do: automatic(opts) == true and opts[:device] != nil

  # Arguments may be computed when they are asked for, as batches of a serving are.
  defp arguments(entry(kept: kept) = entry, args, {opts, _again}) do
    if opts != [] and Devices.several?(),
      do: Devices.moving(automatic(opts), fn -> references(args, kept, entry) end),
      else: references(args, kept, entry)
  end

  defp outputs(entry(constants: constants, check: check) = entry, references, hooks) do
    inputs = if constants == [], do: references, else: references ++ constants
    outputs = run(entry, inputs, hooks)
    if check && outputs != :elsewhere, do: check!(entry, inputs, outputs)
    outputs
  end

  # The function and its arguments on one device: on that which the caller has named, or where the arguments are.
  defp together(entry(name: name, device: device) = entry, references, {opts, again}) do
    tensors = Enum.map(references, &{&1, tensor(&1)})
    automatic? = with nil <- automatic(opts), do: Devices.automatic?()

    if opts[:device] do
      {entry, Enum.map(tensors, &on_device(&1, device, automatic?, name))}
    else
      device = Devices.common!(name, tensors, automatic?)
      {entry, _hooks} = again.(device)
      {entry, Enum.map(tensors, &on_device(&1, device, true, name))}
    end
  end

  defp tensor(reference) do
    info = fn -> NativeV.tensor_info(reference) end
    %{type: type, shape: shape} = B.settle(info.(), info)
    shape |> List.to_tuple() |> Nx.template(String.to_existing_atom(type)) |> B.holding(reference)
  end

  defp on_device({reference, tensor}, device, moves?, name) do
    cond do
      Devices.on?(reference, device) -> reference
      moves? or Nx.size(tensor) == 1 -> B.on_device(tensor, device).data.ref
      true -> Devices.raise_other!(name, device, reference)
    end
  end

  defp check!(entry(name: name, device: device, check: check, arguments: arguments), inputs, outputs) do
    :counters.add(check.calls, 1, 1)
    call = :counters.get(check.calls, 1)

    search = fn ->
      case Origin.found(check.executable, Enum.map(check.read, &Enum.at(outputs, &1)), check.kinds) do
        [] ->
          for {reference, true} <- Enum.zip(inputs, check.donated), do: NativeV.tensor_release(reference)
          nil

        [kind | _] ->
          scope = :erlang.binary_to_term(check.scope)
          Origin.error(kind, scope, Enum.zip(check.used, inputs), :erlang.binary_to_term(arguments))
      end
    end

    error = named(name, fn -> Devices.within(device, search) end)

    if error do
      message = "#{error.message}, in #{name}, at call #{call} since it was compiled"
      raise %{error | message: message, details: Map.put(error.details, :call, call)}
    end
  end

  defp references([arg | args], nil, entry), do: [reference(arg.(), entry) | references(args, nil, entry)]
  defp references([arg | args], [true | kept], entry), do: [reference(arg.(), entry) | references(args, kept, entry)]
  defp references([_ | args], [false | kept], entry), do: references(args, kept, entry)
  defp references([], _kept, _entry), do: []

  defp reference(%T{type: type, data: %B{ref: ref, type: type}}, _entry) when node(ref) == node(), do: ref

  defp reference(tensor, entry(name: name, device: device)),
    do: named(name, fn -> Devices.within(device, fn -> B.reference(tensor) end) end)

  defp run(entry(plan: nil, executable: executable) = entry, inputs, _hooks) do
    case NativeV.executable_run(executable, inputs) do
      {:ok, outputs} ->
        outputs

      elsewhere() ->
        :elsewhere

      other ->
        again = fn -> B.settle(other, fn -> NativeV.executable_run_dirty(executable, inputs) end) end
        if elsewhere?(entry, inputs), do: :elsewhere, else: within(entry, inputs, again)
    end
  end

  defp run(entry(plan: plan, slots: slots, device: device) = entry, inputs, hooks) do
    steps = fn -> Steps.run(plan, Map.new(Enum.zip(slots, inputs)), hooks) end

    if elsewhere?(entry, inputs),
      do: :elsewhere,
      else: within(entry, inputs, fn -> Devices.within(device, steps) end)
  end

  defp elsewhere?(entry(device: device), inputs),
    do: Devices.several?() and not Enum.all?(inputs, &Devices.on?(&1, device))

  # Errors of a run name the function, and arguments that were deallocated.
  defp within(entry(name: name, arguments: arguments, kept: kept), inputs, fun) do
    named(name, fn ->
      try do
        fun.()
      rescue
        error in Nx.Vulkan.Error ->
          reraise Arguments.explain(error, :erlang.binary_to_term(arguments), kept, inputs), __STACKTRACE__
      end
    end)
  end
end
