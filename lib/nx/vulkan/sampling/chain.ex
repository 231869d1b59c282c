defmodule Nx.Vulkan.Chain do
  @moduledoc """
  Leapfrog steps of Hamiltonian Monte Carlo with any log-density, without a wait between them.

      log_density = fn q -> Nx.multiply(-0.5, Nx.sum(Nx.multiply(q, q))) end
      chain = Nx.Vulkan.Chain.compile(log_density, Nx.template({3}, :f64))
      trace = Nx.Vulkan.Chain.run(chain, q, p, steps: 32, step_size: 0.1)

  The log-density is any numerical function of Nx. It is differentiated by `Nx.Defn.value_and_grad/2` and compiled: no
  GLSL, no external compiler.

  ## Forms

  A chain's field `:form` says how its steps run.

    * `:workgroup` - the steps of all chains are one kernel and one dispatch; each chain is one workgroup, which holds
      its whole state. So run log-densities that one workgroup can compute in some 100 us: tens of parameters with
      thousands of observations, for instance
    * `:device` - a step is a compiled program (`Nx.Vulkan.Compiler`), which has the whole device for each of its
      kernels. So run larger ones: many parameters, matrix products with many observations, and ops that a workgroup
      lacks. Chains lie side by side, each with memory of its own, so that they overlap: as many at once as a sixteenth
      of the device's memory holds, up to 1024

  One workgroup runs cumulative sums, products, minima and maxima of up to 4,096 elements along their axis, `sort` and
  `argsort` of up to 512 (fewer where there are several rows: all rows' comparisons are 262,144 at most), and
  `cholesky`, `triangular_solve`, `solve`, `determinant` and `invert` of matrices of f32 and f64 up to 64 x 64. It lacks
  larger ones, and `top_k`, `conv`, ops of windows, Fourier transforms, `reduce` with a function, `lu`, `qr`, `eigh` and
  `svd`, where they depend on the parameters.

  Gradients of these, but for cumulative products, minima and maxima, are such ops again, outside of loops and of
  gradients within the log-density. In those, and for `lu`, they are Nx's own, which (up to Nx 0.13) are wrong where
  rows are exchanged; so `Nx.Defn.grad` of `solve` and `determinant` elsewhere may differ from a chain's. That of a
  singular matrix of four rows and more is NaN.

  In the form `:device`, too, nothing waits for the host between steps, and an ordinary run is one submission to a CPU
  device: up to 32,768 kernels (each chain's step is a few) that take a quarter of a second by an estimate. On GPUs it
  is one up to 2,048 kernels, and then one for every 8,192 more, so that the device works while the rest is recorded.
  Where a log-density has loops that the host drives, as gradients of `lu` have, chains run one after the other.

  Runs that take longer, in both forms, are recorded in parts of about 50 ms, of which the device has two ahead: so
  `run/4` returns when it has begun with the last two. What other processes ask of the device has its turn between parts
  (their ops may part a submission, too), and a process that is killed ends its run with the part that it has begun. In
  the form `:workgroup` each part is a dispatch, of some of the chains where a step of all takes longer than that. 1024
  steps of a log-density of some thousand operations are one part; of those that one workgroup computes in 100 us they
  are a few on slow devices.

  What takes long and does not depend on the parameters (factorizations, products, sums, sorts) is no part of the steps
  in either form: of captured tensors it is computed by `compile/3`, of `:data` once in each `run/4`, before the steps.
  Where a system's matrix is such, `solve` and `triangular_solve` multiply by its inverse and refine the solution once.
  So Gaussian processes with a fixed kernel run in the form `:workgroup`, too.

  Gradients of `cumulative_sum`, `cholesky`, `triangular_solve`, `solve` and `determinant` are such ops again, in both
  forms: not those of the steps that Nx has for them.

  In both, the same chain gives the same bits, alone or among others, and its first steps do not depend on how many
  follow. Both agree to the rounding.

  ## Errors

  `Nx.Vulkan.Error` of the kind `:unsupported` where the form `:workgroup` is asked for and one workgroup can't run the
  log-density: values of more than 262,144 elements, or an op that it lacks. `ArgumentError` for wrong arguments.
  """

  alias Nx.Defn.{Composite, Expr}
  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Chain.{Gradient, Invariants}
  alias Nx.Vulkan.{Closure, Devices, NativeV}
  alias Nx.Vulkan.Compiler.Lowering
  alias Nx.Vulkan.Compiler.Lowering.Plan
  alias Nx.Vulkan.VulkanoBackend, as: B

  defmodule Traced do
    @moduledoc false
    # The block of a log-density.
    defstruct []
  end

  # Chains of one dispatch: workgroups that every device takes. More follow in further ones.
  @most_chains 65_535

  # `captured` are the inputs of a step after q: the number of a leaf of the data, a reference to a constant, or
  # `{:ahead, k}`, a result of `ahead`, an executable that runs once in each run, with its inputs; or nil.
  @enforce_keys [:ref, :device, :form, :template, :parameters, :type, :mass, :data, :captured, :ahead]
  defstruct @enforce_keys

  @typedoc "A compiled chain. Any number of processes may run it."
  @type t :: %__MODULE__{
          form: :workgroup | :device,
          parameters: pos_integer,
          type: Nx.Type.t(),
          mass: :diagonal | :dense
        }

  @doc """
  Compiles the chain of a log-density.

  `template` is a container of templates or tensors: the parameters. All are floats of one type, `:f32` or `:f64`.

  ## Options

    * `:mass` - `:diagonal` (the default) or `:dense`: how the inverse mass matrix is given
    * `:form` - `:workgroup` or `:device` instead of `:auto`, which chooses by the work of a step
    * `:data` - a container of templates or tensors, which `log_density` then gets as its second argument and `run/4`
      needs
    * `:device` - the device that runs the chain, by a selector (`Nx.Vulkan`), instead of the default one. What `run/4`
      is given goes there

  Tensors that the function captures may lie on any backend. They are copied to the host for tracing and from there to
  the device once, and ops on them alone run on the host: give large ones as `:data`, which stays where it is.
  """
  @spec compile(
          (Nx.Container.t() -> Nx.Tensor.t()) | (Nx.Container.t(), Nx.Container.t() -> Nx.Tensor.t()),
          Nx.Container.t(),
          keyword
        ) ::
          t
  def compile(log_density, template, opts \\ []) do
    opts = Keyword.validate!(opts, mass: :diagonal, data: nil, form: :auto, device: nil)
    Devices.within(Devices.index!(opts[:device]), fn -> compiled(log_density, template, opts) end)
  end

  defp compiled(log_density, template, opts) do
    one_of!(:mass, opts[:mass], [:diagonal, :dense])
    one_of!(:form, opts[:form], [:auto, :workgroup, :device])
    {template, type, parameters} = parameters!(template)
    log_density = log_density!(log_density, opts[:data])
    data = if opts[:data] != nil, do: opts[:data] |> data!("templates or tensors") |> Nx.to_template()
    q = Nx.template({parameters}, type)

    {arguments, traced} =
      if data == nil do
        {[q], fn q -> value_and_grad(q, type, &log_density.(unflatten_vector(&1, template))) end}
      else
        {[q, data], fn q, data -> value_and_grad(q, type, &log_density.(unflatten_vector(&1, template), data)) end}
      end

    {program, inputs} = program(traced, arguments)
    if not match?([0 | _], inputs), do: independent()
    {program, inputs} = constants(program, inputs)
    {program, [0 | captured], ahead} = ahead(program, inputs, &(&1 == 0))
    again = fn -> NativeV.chain_compile(program, opts[:mass], opts[:form], Devices.current()) end
    {ref, form} = B.settle(again.(), again)

    %__MODULE__{
      ref: ref,
      device: Devices.current(),
      form: form,
      template: template,
      parameters: parameters,
      type: type,
      mass: opts[:mass],
      data: data,
      captured: captured,
      ahead: ahead
    }
  end

  defp one_of!(name, value, allowed) do
    if value not in allowed do
      raise ArgumentError, "expected #{inspect(name)} to be one of #{inspect(allowed)}, got: #{inspect(value)}"
    end
  end

  @doc false
  # The template of parameters, in `type` where that is given, their common type, and how many numbers they are.
  def parameters!(container, type \\ nil) do
    if not container?(container) do
      raise ArgumentError, "expected the parameters as a container of templates or tensors, got: #{inspect(container)}"
    end

    template = typed(Nx.to_template(container), type)
    leaves = Composite.flatten_list([template])
    {template, type!(leaves), leaves |> Enum.map(&Nx.size/1) |> Enum.sum()}
  end

  @doc false
  def container?(term) do
    Nx.Container.impl_for(term) != nil or
      Nx.LazyContainer.impl_for(term) not in [Nx.LazyContainer.Any, Nx.LazyContainer.Atom, Nx.LazyContainer.List]
  end

  @doc false
  # The option :data, a container of what `leaves` says.
  def data!(data, leaves) do
    if not container?(data) do
      raise ArgumentError,
            "expected :data as a container of #{leaves} (a tensor, a tuple, a map), got: #{inspect(data)}"
    end

    data
  end

  defp typed(template, nil), do: template
  defp typed(template, type), do: Composite.traverse(template, &Nx.template(&1.shape, type, names: &1.names))

  @doc false
  # The common type of parameters.
  def type!([_ | _] = leaves) do
    Enum.each(leaves, &not_vectorized!("parameters", &1))

    case leaves |> Enum.map(& &1.type) |> Enum.uniq() do
      [type] when type in [{:f, 32}, {:f, 64}] -> type
      types -> raise ArgumentError, "expected parameters of one type, f32 or f64, got: #{inspect(types)}"
    end
  end

  def type!([]), do: raise(ArgumentError, "expected at least one parameter")

  @doc false
  # The function to trace, with the tensors that it captured where Nx takes them.
  def log_density!(fun, nil) when is_function(fun, 1), do: Closure.on_binary_backend(fun)
  def log_density!(fun, data) when data != nil and is_function(fun, 2), do: Closure.on_binary_backend(fun)

  def log_density!(other, data) do
    expected =
      if data == nil,
        do: "one argument, the parameters (and of the data where the option :data is given)",
        else: "two arguments, the parameters and what the option :data holds"

    raise ArgumentError, "expected the log-density to be a function of #{expected}, got: #{inspect(other)}"
  end

  @doc false
  # The log-density of a vector and its gradient, in the vector's type.
  def value_and_grad(q, type, fun) do
    {value, gradient} = Nx.Defn.value_and_grad(q, &differentiable(Nx.as_type(scalar!(fun.(&1)), type)))
    {value, Nx.as_type(gradient, type)}
  end

  defp differentiable(%T{data: %Expr{}} = expr), do: expr |> Gradient.with_constant_inputs() |> Gradient.of_ops()
  defp differentiable(constant), do: constant

  defp scalar!(value) do
    if not (is_struct(value, T) or is_number(value) or is_struct(value, Complex)) do
      raise ArgumentError, "expected the log-density to return a scalar tensor or a number, got: #{inspect(value)}"
    end

    value = Nx.to_tensor(value)

    if value.shape != {} do
      raise ArgumentError, "expected the log-density to be a scalar, got the shape: #{inspect(value.shape)}"
    end

    not_vectorized!("the log-density", value)

    if match?({:c, _}, value.type) do
      raise ArgumentError, "expected the log-density to be real, got: #{Nx.Type.to_string(value.type)}"
    end

    value
  end

  @doc false
  # `value_and_grad` of a vector like `template`, traced once: a function that puts the expression into any other, as a
  # block's default. So in a loop, too, it may have what Nx takes at the root of an expression alone, as factorizations
  # of constants.
  def traced(value_and_grad, template) do
    {value, gradient} = expr = Nx.Defn.debug_expr(value_and_grad).(template)
    # The parameters must matter; in a transition they do even where the log-density is a constant.
    if not match?({_, [0 | _]}, program(fn _ -> expr end, [template])), do: independent()

    fn %T{data: %Expr{context: context}} = q ->
      block = %Expr{id: make_ref(), op: :block, args: [%Traced{}, [q], expr, nil], context: context}
      Expr.tuple(%{value | type: {:tuple, 2}, data: block}, [value, gradient])
    end
  end

  defp independent, do: unsupported("a log-density must depend on its parameters")

  @doc false
  # The one program of a function, with what stays in its loops before them, and what its inputs are: the number of a
  # leaf of the arguments, or a reference to a constant.
  def program(traced, arguments) do
    expr = apply(Nx.Defn.debug_expr(traced), arguments)
    leaves = arguments |> Composite.flatten_list() |> Enum.map(&Nx.devectorize/1)
    {scope, constants} = Lowering.lower(Composite.traverse(expr, &Nx.devectorize/1), leaves, [])
    count = length(leaves)

    case Plan.new(scope) do
      %Plan{steps: [{:run, program, inputs, outputs}], outputs: outputs} ->
        reference = &(constants |> Enum.at(&1 - count) |> B.reference_here())
        {Invariants.out_of_loops(program), for([:input, i] <- inputs, do: if(i < count, do: i, else: reference.(i)))}

      _ ->
        unsupported("a log-density can't call the host (hooks, runtime_call)")
    end
  end

  @doc false
  # The program with what depends on constants alone computed here, and its inputs.
  def constants(program, inputs) do
    case ahead(program, inputs, &is_integer/1) do
      {program, inputs, nil} ->
        {program, inputs}

      {program, inputs, ahead} ->
        results = run_ahead(ahead, [])
        {program, Enum.map(inputs, &if(is_integer(&1), do: &1, else: at(&1, [], results)))}
    end
  end

  # The rest of a program whose inputs change where `changes?` says so, its inputs, and what has to run once.
  defp ahead(program, inputs, changes?) do
    changing = for {input, i} <- Enum.with_index(inputs), changes?.(input), do: i

    case Invariants.split(program, changing) do
      nil ->
        {program, inputs, nil}

      {before, taken, rest} ->
        results = for i <- 0..(length(List.last(before)) - 1), do: {:ahead, i}
        {rest, kept} = Invariants.narrow(rest, &(&1 in changing))
        all = inputs ++ results
        compile = fn -> NativeV.program_compile(before, [], nil, Devices.current()) end
        executable = B.settle(compile.(), compile)
        {rest, Enum.map(kept, &Enum.at(all, &1)), {executable, Enum.map(taken, &Enum.at(inputs, &1))}}
    end
  end

  defp run_ahead(nil, _leaves), do: []

  defp run_ahead({executable, inputs}, leaves) do
    inputs = Enum.map(inputs, &at(&1, leaves, []))
    B.settle(NativeV.executable_run(executable, inputs), fn -> NativeV.executable_run_dirty(executable, inputs) end)
  end

  # The reference that an input is.
  defp at(i, leaves, _results) when is_integer(i), do: leaves |> Enum.at(i - 1) |> Nx.to_tensor() |> B.reference_here()
  defp at({:ahead, i}, _leaves, results), do: Enum.at(results, i)
  defp at(reference, _leaves, _results), do: reference

  defp unsupported(message) do
    raise Nx.Vulkan.Error, kind: :unsupported, op: :chain, message: message, details: %{}
  end

  @doc """
  Runs chains: from positions `q` and momenta `p`, `{d}` for one chain or `{b, d}` for b of them. More than 65,535
  chains take more than one dispatch.

  Returns a map of tensors that the device fills later: `:q`, `:p`, `:gradient` (`{steps, d}` or `{b, steps, d}`),
  `:log_density` and `:energy` (`{steps}` or `{b, steps}`). Long runs return late, see "Forms" above. The energy is half
  of p M⁻¹ p less the log-density; where it is not finite, the chain diverged.

  ## Options

    * `:steps` - how many steps each chain takes, 1 to 65,536; required
    * `:step_size` - a number or a scalar tensor, or a tensor `{b}`; a negative one goes back in time; required
    * `:inverse_mass` - `{d}`, or `{d, d}` for a dense one; all ones (or the identity) by default
    * `:data` - a container of tensors as the template given to `compile/3`
  """
  @spec run(t, Nx.Tensor.t(), Nx.Tensor.t(), keyword) :: %{
          q: Nx.Tensor.t(),
          p: Nx.Tensor.t(),
          gradient: Nx.Tensor.t(),
          log_density: Nx.Tensor.t(),
          energy: Nx.Tensor.t()
        }
  def run(%__MODULE__{device: device} = chain, q, p, opts), do: Devices.within(device, fn -> ran(chain, q, p, opts) end)

  defp ran(chain, q, p, opts) do
    opts = Keyword.validate!(opts, [:steps, :step_size, inverse_mass: nil, data: nil])
    steps = opts[:steps]

    if not (is_integer(steps) and steps in 1..65_536) do
      raise ArgumentError, "expected :steps to be an integer from 1 to 65536, got: #{inspect(steps)}"
    end

    d = chain.parameters
    {batch, axes} = chains(tensor!(:q, q), d)

    own = [
      chain |> tensor(:q, q, axes ++ [d]) |> Nx.reshape({batch, d}),
      chain |> tensor(:p, p, axes ++ [d]) |> Nx.reshape({batch, d}),
      step_size(chain, opts[:step_size], batch)
    ]

    mass = inverse_mass(chain, opts[:inverse_mass])
    captured = captured(chain, opts[:data])

    parts =
      for first <- 0..(batch - 1)//@most_chains do
        size = min(@most_chains, batch - first)
        [q, p, step_size] = Enum.map(own, &Nx.slice_along_axis(&1, first, size, axis: 0))
        dispatch(chain, [q, p, mass, step_size], captured, size, steps)
      end

    for {name, i} <- Enum.with_index([:q, :p, :gradient, :log_density, :energy]), into: %{} do
      rest = if name in [:q, :p, :gradient], do: [d], else: []
      whole = parts |> Enum.map(&Enum.at(&1, i)) |> Nx.concatenate()
      {name, Nx.reshape(whole, List.to_tuple(axes ++ [steps | rest]))}
    end
  end

  defp dispatch(%{parameters: d} = chain, start, captured, batch, steps) do
    start = Enum.map(start, &B.reference_here/1)

    refs =
      B.settle(NativeV.chain_run(chain.ref, start, captured, steps), fn ->
        whole(NativeV.chain_run_dirty(chain.ref, start, captured, steps))
      end)

    {vectors, numbers} = Enum.split(refs, 3)
    vectors = Enum.map(vectors, &result(chain.type, {batch, steps, d}, &1))
    vectors ++ Enum.map(numbers, &result(chain.type, {batch, steps}, &1))
  end

  @doc false
  # The answer of a run all of whose parts are recorded. Between them the process can be killed, which ends the run.
  def whole({:more, run}), do: whole(NativeV.chain_continue(run))
  def whole(answer), do: answer

  defp result(type, shape, ref), do: shape |> Nx.template(type) |> B.holding(ref)

  # How many chains start at `q`, and the axes for them: none for one chain.
  defp chains(q, d) do
    case q.shape do
      {^d} -> {1, []}
      {batch, ^d} -> {batch, [batch]}
      shape -> raise ArgumentError, "expected :q of shape {#{d}} or {chains, #{d}}, got: #{inspect(shape)}"
    end
  end

  # In the type of the chain, which may not be a narrower one.
  defp tensor(chain, name, tensor, axes) do
    tensor = tensor!(name, tensor)
    shape = List.to_tuple(axes)

    if tensor.shape != shape do
      raise ArgumentError, "expected #{inspect(name)} of shape #{inspect(shape)}, got: #{inspect(tensor.shape)}"
    end

    if tensor.type == {:f, 64} and chain.type == {:f, 32} do
      raise ArgumentError, "expected #{inspect(name)} of type f32 for a chain of f32, got: f64 (see Nx.as_type/2)"
    end

    Nx.as_type(tensor, chain.type)
  end

  defp tensor!(name, %T{data: %Nx.TemplateBackend{}} = template) do
    raise ArgumentError, "expected #{inspect(name)} to be a tensor with values, got the template: #{inspect(template)}"
  end

  defp tensor!(name, %T{} = tensor) do
    not_vectorized!(inspect(name), tensor)

    if match?({:c, _}, tensor.type) do
      raise ArgumentError, "expected #{inspect(name)} to be real, got: #{Nx.Type.to_string(tensor.type)}"
    end

    tensor
  end

  defp tensor!(name, other) do
    raise ArgumentError, "expected #{inspect(name)} to be a tensor, got: #{inspect(other)}"
  end

  defp not_vectorized!(what, tensor) do
    if tensor.vectorized_axes != [] do
      raise ArgumentError,
            "expected #{what} without vectorized axes, got: #{inspect(tensor.vectorized_axes)} (see Nx.devectorize/2)"
    end
  end

  defp step_size(chain, number, batch) when is_number(number) do
    most = if chain.type == {:f, 32}, do: 3.4e38, else: 1.7e308

    if abs(number) > most do
      got = if is_integer(number), do: "an integer of #{length(Integer.digits(number))} digits", else: number

      raise ArgumentError,
            "expected :step_size to be a number that #{Nx.Type.to_string(chain.type)}, the type of the chain, " <>
              "holds, got: #{got}"
    end

    step_size(chain, Nx.tensor(number, type: chain.type, backend: B), batch)
  end

  defp step_size(_chain, other, batch) when not is_struct(other, T) do
    raise ArgumentError,
          "expected :step_size to be a number, a scalar tensor or a tensor {#{batch}}, got: #{inspect(other)}"
  end

  defp step_size(chain, %T{shape: {}} = tensor, batch) do
    chain |> tensor(:step_size, tensor, []) |> Nx.broadcast({batch})
  end

  defp step_size(chain, tensor, batch), do: tensor(chain, :step_size, tensor, [batch])

  defp inverse_mass(%{mass: :diagonal, parameters: d} = chain, nil) do
    Nx.broadcast(Nx.tensor(1.0, type: chain.type, backend: B), {d})
  end

  defp inverse_mass(%{mass: :dense, parameters: d} = chain, nil), do: Nx.eye(d, type: chain.type, backend: B)
  defp inverse_mass(%{mass: :diagonal, parameters: d} = chain, mass), do: tensor(chain, :inverse_mass, mass, [d])
  defp inverse_mass(%{mass: :dense, parameters: d} = chain, mass), do: tensor(chain, :inverse_mass, mass, [d, d])

  defp captured(%{data: nil} = chain, nil), do: chain.captured

  defp captured(%{data: template} = chain, data) when template != nil and data != nil do
    if not Nx.compatible?(template, data!(data, "tensors")) do
      raise ArgumentError, "expected data as #{inspect(template)}, got: #{inspect(data)}"
    end

    leaves = Composite.flatten_list([data])
    results = run_ahead(chain.ahead, leaves)
    Enum.map(chain.captured, &at(&1, leaves, results))
  end

  defp captured(%{data: nil}, _data), do: raise(ArgumentError, "the log-density was compiled without data")

  defp captured(%{data: _}, nil),
    do: raise(ArgumentError, "expected the option :data, which the log-density was compiled with")

  @doc """
  The parameters in a container as one vector, in the order of the chain's positions. Integers and floats that are not
  wider become the chain's floats.
  """
  @spec flatten(t, Nx.Container.t()) :: Nx.Tensor.t()
  def flatten(%__MODULE__{type: type, template: template}, container) do
    if not container?(container), do: not_parameters(template, container)
    typed = Composite.traverse(container, &cast(&1, type))
    if not Nx.compatible?(template, typed), do: not_parameters(template, container)
    [typed] |> Composite.flatten_list() |> Enum.map(&Nx.flatten/1) |> Nx.concatenate()
  end

  # Narrower floats and integers as the chain's floats. Other types stay, which the template refuses.
  defp cast(leaf, type) do
    tensor = Nx.to_tensor(leaf)

    if match?({:c, _}, tensor.type) or {tensor.type, type} == {{:f, 64}, {:f, 32}},
      do: tensor,
      else: Nx.as_type(tensor, type)
  end

  defp not_parameters(template, container) do
    raise ArgumentError, "expected parameters as #{inspect(template)}, got: #{inspect(container)}"
  end

  @doc """
  Positions as the container of the parameters; axes before the last one stay in front.
  """
  @spec unflatten(t, Nx.Tensor.t()) :: Nx.Container.t()
  def unflatten(%__MODULE__{template: template, parameters: d}, q) do
    q = Nx.to_tensor(q)

    if Nx.rank(q) == 0 or Nx.axis_size(q, -1) != d do
      raise ArgumentError, "expected :q with a last axis of size #{d}, got the shape: #{inspect(q.shape)}"
    end

    unflatten_vector(q, template)
  end

  @doc false
  # The last axis of `q` as the container of `template`.
  def unflatten_vector(q, template) do
    lead = q |> Nx.shape() |> Tuple.to_list() |> Enum.drop(-1)

    {container, _} =
      Composite.traverse(template, 0, fn leaf, start ->
        size = Nx.size(leaf)
        part = Nx.slice_along_axis(q, start, size, axis: -1)
        names = Enum.map(lead, fn _ -> nil end) ++ leaf.names
        {Nx.reshape(part, List.to_tuple(lead ++ Tuple.to_list(leaf.shape)), names: names), start + size}
      end)

    container
  end
end
