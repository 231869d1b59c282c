defmodule Nx.Vulkan.NUTS do
  @moduledoc """
  Draws from any log-density by the No-U-Turn sampler, on the device.

      result =
        Nx.Vulkan.NUTS.sample(
          fn %{x: x} -> Nx.multiply(-0.5, Nx.sum(Nx.multiply(x, x))) end,
          %{x: Nx.template({3}, :f64)},
          num_chains: 4,
          key: 42
        )

      result.draws.x
      #=> a tensor {4, 1000, 3}

  The sampler is multinomial NUTS with the generalized U-turn criterion (Betancourt 2017) in NumPyro's form, and with
  the warm-up of Stan and NumPyro: dual averaging of the step size and a diagonal or dense mass matrix learned in
  growing windows, for each chain on its own.

  Whole transitions run on the device: trees, U-turn checks, choices, random numbers, step sizes. A chain is a
  workgroup, a dispatch takes every chain as many draws further as fit into some 50 ms, and the host waits once for each
  dispatch. Where one draw of all chains takes longer, it is several dispatches of some 50 ms: each takes the chains, or
  some of them where a step of all takes longer, a number of leapfrog steps further, and leaves trees in memory from
  which the next goes on. So no dispatch takes long, however deep trees are: other processes have their turn between
  them, and a process that is killed ends its draws with the dispatch that it waits for. Chains whose trees differ in
  depth don't wait for each other.

  Log-densities that are too large for one workgroup (the forms of `Nx.Vulkan.Chain`) take the form `:device`: every op
  has the whole device, and takes all chains at once. So a leapfrog step of 32 chains is as many kernels as one of a
  single chain, and data that all share are read once for all. A dispatch takes every chain up to 64 leapfrog steps
  further, some 50 ms; chains whose trees have ended begin their next draws, and wait for the others at the end of a
  call alone (`:progress` makes a call of 20 draws). Some log-densities are drawn from chain by chain, each tree a loop
  that the host looks at: those with convolutions of parameters, with folds or windows whose initial or captured values
  depend on them, and those whose values are larger than a tensor for all chains.

  Factorizations and other long work on data alone are computed once, before the first draw, in both forms.

  ## The log-density

  A numerical function of Nx of the parameters, with or without normalisation; it is differentiated by
  `Nx.Defn.value_and_grad/2`. Parameters are unconstrained: for one that is positive, draw its logarithm and add that to
  the log-density, as `log_density(exp(x)) + x`. Observed data are tensors that the function captures (see
  `Nx.Vulkan.Chain.compile/3`), or the option `:data`, on any backend.

  ## Reproducibility

  The same key, device and options give the same bits. In the form `:workgroup`, with a diagonal mass matrix, a chain
  has them whatever the number of chains, up to 3,000. In the form `:device` sums of more or fewer chains may be rounded
  in another order.

  ## Errors

  `Nx.Vulkan.Error` of the kind `:unsupported` where the form `:workgroup` is asked for and one workgroup can't run the
  log-density, and where that does not depend on the parameters or calls the host. `ArgumentError` for wrong arguments,
  and where no finite start is found.
  """

  alias Nx.Defn.Composite
  alias Nx.Vulkan.{Chain, Devices}
  alias Nx.Vulkan.NUTS.{Run, Transition}
  alias Nx.Vulkan.VulkanoBackend, as: B

  # A third of the workgroups that every device takes: a search for a step tries at least three for each chain.
  @max_chains 21_845

  # Time that a dispatch should take: drivers end what runs for seconds, and each costs a wait of some 50 us. The option
  # is for tests alone.
  @dispatch_us 50_000

  @defaults [
    num_samples: 1000,
    num_warmup: 1000,
    num_chains: 4,
    key: 0,
    data: nil,
    init: nil,
    type: nil,
    step_size: 1.0,
    target_accept: 0.8,
    max_tree_depth: 10,
    mass_matrix: :diagonal,
    form: :auto,
    device: nil,
    progress: nil
  ]

  @typedoc """
  What `sample/3` returns.

    * `:draws` - the parameters, as the template has them, each with the axes `{chains, samples}` in front
    * `:stats` - of every draw, `{chains, samples}`: `:log_density`, `:energy` (of the draw with its momentum),
      `:accept_prob` (mean over the tree), `:step_size`, `:tree_depth`, `:leapfrog_steps`, `:divergent` (0 or 1: a step
      met an energy that is not finite, or 1000 above the draw's)
    * `:warmup` - `:stats` of the warm-up's draws, and what it ended with: `:step_size` `{chains}`, `:inverse_mass`
      `{chains, d}` or `{chains, d, d}`
    * `:dispatches` - how often the host asked for draws and waited: for one dispatch, or for several where they took
      longer than some 50 ms, as in the form `:device`
    * `:form` - `:workgroup` or `:device`
  """
  @type result :: %{
          draws: Nx.Container.t(),
          stats: %{atom => Nx.Tensor.t()},
          warmup: %{stats: %{atom => Nx.Tensor.t()} | nil, step_size: Nx.Tensor.t(), inverse_mass: Nx.Tensor.t()},
          dispatches: pos_integer,
          form: :workgroup | :device
        }

  @doc """
  Draws from `log_density`.

  `template` is a container of templates or tensors: the parameters, floats of one type, `:f32` or `:f64`.

  ## Options

    * `:num_samples` - draws of each chain that are kept, `1000` by default
    * `:num_warmup` - draws before those, `1000` by default. With 0, `:step_size` stays and the mass is the identity
    * `:num_chains` - how many chains at once, `4` by default, up to 21,845
    * `:key` - an integer of 64 bits with a sign, or a key of `Nx.Random`; `0` by default
    * `:data` - a container of tensors, which `log_density` then gets as its second argument
    * `:init` - where all chains start, a container as the template says; by default each starts somewhere between -2
      and 2
    * `:type` - `:f32` or `:f64`, instead of the template's
    * `:step_size` - the first step size, `1.0` by default; the warm-up begins by halving or doubling it, and logs a
      warning where that does not end: the log-density may be improper
    * `:target_accept` - the mean acceptance that steps adapt to, `0.8` by default
    * `:max_tree_depth` - a draw takes at most 2 to the power of this less 1 steps; `10` by default, up to 20
    * `:mass_matrix` - `:diagonal` (the default) or `:dense`
    * `:form` - `:workgroup` or `:device` instead of `:auto`, which chooses by the work of a leapfrog step
    * `:device` - the device that draws, by a selector (`Nx.Vulkan`), instead of the default one
    * `:progress` - `true` for a bar on terminals and in notebooks (`IO.ANSI.enabled?/0`), or a function that gets
      `%{phase: :warmup | :sampling, done: n, total: n, step_size: mean, divergent: count}` after each dispatch

  ## Examples

      iex> normal = fn x -> Nx.multiply(-0.5, Nx.pow(Nx.subtract(x, 3), 2)) end
      iex> result = Nx.Vulkan.NUTS.sample(normal, Nx.template({}, :f32), num_samples: 50, num_warmup: 100, num_chains: 2)
      iex> Nx.shape(result.draws)
      {2, 50}
  """
  @spec sample(
          (Nx.Container.t() -> Nx.Tensor.t()) | (Nx.Container.t(), Nx.Container.t() -> Nx.Tensor.t()),
          Nx.Container.t(),
          keyword
        ) :: result
  def sample(log_density, template, opts \\ []) do
    Devices.within(Devices.index!(opts[:device]), fn ->
      {template, run} = prepare(log_density, template, opts)
      Nx.with_default_backend(B, fn -> run |> Run.start() |> Run.warm_up() |> Run.draw() |> result(template) end)
    end)
  end

  @doc false
  # The template in the run's type, and the run before its start.
  def prepare(log_density, template, opts) do
    opts = opts |> known!() |> Map.new() |> validate!()
    {template, type, d} = Chain.parameters!(template, opts.type)
    step_size!(opts.step_size, type)
    log_density = Chain.log_density!(log_density, opts.data)
    data = if opts.data != nil, do: opts.data |> Chain.data!("tensors") |> Composite.traverse(&constant/1)
    fun = if data == nil, do: log_density, else: &log_density.(&1, data)
    value_and_grad = &Chain.value_and_grad(&1, type, fn q -> fun.(Chain.unflatten_vector(q, template)) end)
    value_and_grad = Chain.traced(value_and_grad, Nx.template({d}, type))

    transition =
      Transition.compile(value_and_grad, d, type, opts.mass_matrix, opts.max_tree_depth, opts.form, opts.num_chains)

    Nx.with_default_backend(B, fn ->
      {template, Run.new(transition, %{opts | init: init(opts.init, template, type)})}
    end)
  end

  defp result(%Run{} = run, template) do
    %{
      draws: run.draws |> Nx.concatenate(axis: 1) |> Chain.unflatten_vector(template),
      stats: statistics(run.statistics),
      warmup: %{
        stats: if(run.warmup != [], do: statistics(run.warmup)),
        step_size: Nx.exp(run.state.log_step),
        inverse_mass: run.own.inverse_mass
      },
      dispatches: run.dispatches,
      form: run.transition.form
    }
  end

  # Columns of the statistics of all dispatches.
  defp statistics(parts) do
    all = Nx.concatenate(parts, axis: 1)

    for {name, i} <- Enum.with_index(Transition.statistics()), into: %{} do
      column = all[[.., .., i]]
      {name, if(name in [:tree_depth, :leapfrog_steps, :divergent], do: Nx.as_type(column, :s32), else: column)}
    end
  end

  ## Arguments

  # Above it an integer is no float.
  @most 1.0e308
  # Of larger ones only 64 bits would count.
  @most_key 0x7FFFFFFFFFFFFFFF

  defp known!(opts) do
    {dispatch_us, opts} = Keyword.pop(opts, :dispatch_us, @dispatch_us)
    opts |> Keyword.validate!(@defaults) |> Keyword.put(:dispatch_us, dispatch_us)
  end

  defp validate!(opts) do
    at_least = fn least -> &(is_integer(&1) and &1 >= least) end
    check!(opts, :num_samples, at_least.(1), "a positive integer")
    check!(opts, :num_warmup, at_least.(0), "a non-negative integer")
    check!(opts, :num_chains, &(&1 in 1..@max_chains), "an integer from 1 to #{@max_chains}")
    check!(opts, :max_tree_depth, &(&1 in 1..20), "an integer from 1 to 20")
    check!(opts, :mass_matrix, &(&1 in [:diagonal, :dense]), ":diagonal or :dense")
    check!(opts, :form, &(&1 in [:auto, :workgroup, :device]), ":auto, :workgroup or :device")
    check!(opts, :step_size, &(is_number(&1) and &1 > 0 and &1 < @most), "a positive number that a float holds")
    check!(opts, :target_accept, &(is_number(&1) and &1 > 0 and &1 < 1), "a number between 0 and 1")
    check!(opts, :type, &(&1 in [nil, :f32, :f64, {:f, 32}, {:f, 64}]), ":f32 or :f64")
    check!(opts, :progress, &(&1 in [nil, true, false] or is_function(&1, 1)), "true or a function of one argument")
    %{opts | key: seed(opts.key)}
  end

  defp check!(opts, name, valid?, expected) do
    if not valid?.(opts[name]) do
      raise ArgumentError, "expected #{inspect(name)} to be #{expected}, got: #{inspect(opts[name])}"
    end
  end

  # A number of the run's type that is not 0, and whose double is finite.
  defp step_size!(step_size, type) do
    {least, most} = if type == {:f, 32}, do: {1.0e-37, 1.0e38}, else: {1.0e-307, @most}

    if step_size < least or step_size > most do
      raise ArgumentError,
            "expected :step_size from #{least} to #{most} for parameters of #{Nx.Type.to_string(type)}, " <>
              "got: #{step_size}"
    end
  end

  defp seed(key) when is_integer(key) and key >= -@most_key - 1 and key <= @most_key, do: [key, 0]

  defp seed(%Nx.Tensor{shape: {2}, type: {:u, 32}, data: %backend{}} = key) when backend != Nx.TemplateBackend,
    do: Nx.to_flat_list(key)

  defp seed(other) do
    raise ArgumentError, "expected :key to be an integer of 64 bits or a key of Nx.Random, got: #{inspect(other)}"
  end

  # A node of an expression.
  defp constant(leaf) do
    tensor = tensor!(:data, leaf)
    %{tensor | data: %Nx.Defn.Expr{id: make_ref(), op: :tensor, args: [tensor], context: nil}}
  end

  defp tensor!(name, leaf) do
    tensor = Nx.to_tensor(leaf)

    if match?(%{data: %Nx.TemplateBackend{}}, tensor) do
      raise ArgumentError,
            "expected #{inspect(name)} to be a container of tensors, got the template: #{inspect(tensor)}"
    end

    tensor
  end

  defp init(nil, _template, _type), do: nil

  defp init(start, template, type) do
    if not Chain.container?(start) do
      raise ArgumentError, "expected :init as a container of tensors like #{inspect(template)}, got: #{inspect(start)}"
    end

    start = Composite.traverse(start, &Nx.as_type(tensor!(:init, &1), type))

    if not Nx.compatible?(template, start) do
      raise ArgumentError, "expected :init as #{inspect(template)}, got: #{inspect(start)}"
    end

    [start] |> Composite.flatten_list() |> Enum.map(&(&1 |> Nx.backend_copy(B) |> Nx.flatten())) |> Nx.concatenate()
  end
end
