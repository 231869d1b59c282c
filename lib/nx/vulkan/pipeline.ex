defmodule Nx.Vulkan.Pipeline do
  @moduledoc """
  A model that is cut into stages, each on a device of its own: what is too large for one device runs on several.

      pipeline =
        Nx.Vulkan.Pipeline.new(
          [{&MyModel.encode/2, encoder, 0}, {&MyModel.decode/2, decoder, 1}],
          micro_batches: 4
        )

      Nx.Vulkan.Pipeline.run(pipeline, batch)

  A stage is `{fun, parameters, device}`: a function of the parameters and of what the stage before gives (the batch,
  for the first one), which is written as any numerical definition; a container of tensors; and a selector
  (`Nx.Vulkan`). A device may have several stages. `from_model/3` makes the stages of a model of Axon or Bumblebee.

  The parameters of a stage lie on its device alone. A batch is cut into micro-batches, which follow one another
  through the stages, so that all devices have something to do: each stage is a process while a batch runs. Values go
  to the next device through memory of the host. With `s` stages that take equally long and `n` micro-batches, a batch
  takes as long as `n + s - 1` micro-batches on one device; with one micro-batch the devices work one after the other.

  ## Shapes

  The batch is a tensor or a container. The first axis of each tensor in it is that of the batch, and has to be a
  multiple of the micro-batches; scalars go to each of them as they are. Where there are several micro-batches, each
  tensor that the last stage gives has as many rows as the micro-batch, and those of all are put together in their
  order, on the device of the last stage. What passes between stages may have any shapes.

  ## Bits

  A micro-batch has the bits that the stages have one after the other on one device of the kind. They are those of the
  whole batch and of the uncut function wherever the same kernels run: products may choose others for other sizes
  ([numerics](numerics.md)).

  ## Training

  `value_and_grad/5` gives the gradients of all stages. `map/3` runs a function for each stage on its device, such as
  an optimizer, and `put_parameters/2` sets what it gives.

  ## Errors

  An error of a stage names it, counted from 0, and its device; one of the kind `Nx.Vulkan.Error` has both in its
  details as well (`:stage`, `:device`). Exceptions without a message, such as `MatchError`, are a `RuntimeError` with
  their name. The other stages are stopped, what they hold of the batch is given back, and
  their devices go on working: a device that is lost takes its own stages along. A stage that does not fit what the one
  before gives raises what Nx raises, with the types and shapes that it got.
  """

  alias Nx.Defn.Composite
  alias Nx.Vulkan.Devices
  alias Nx.Vulkan.Pipeline.{Flow, Gradient, Layers, MicroBatches}

  # `shared` has the names of layers whose parameters several stages have, with the numbers of these.
  @derive {Inspect, only: [:micro_batches]}
  @enforce_keys [:stages, :micro_batches]
  defstruct @enforce_keys ++ [shared: []]

  @type t :: %__MODULE__{}
  @typedoc "A function of parameters and input, its parameters, and its device: a selector as in `Nx.Vulkan`."
  @type stage ::
          {(Nx.Container.t(), Nx.Container.t() -> Nx.Container.t()), Nx.Container.t(), non_neg_integer | String.t()}

  @doc """
  A pipeline of stages. Copies the parameters of each to its device, stage by stage.

  ## Options

    * `:micro_batches` - into how many parts `run/3` cuts a batch, `1` by default

  ## Errors

  `ArgumentError` for what is no stage or option; `Nx.Vulkan.Error` for a device that is not there (`:no_device`) and
  for parameters that do not fit in its memory (`:out_of_memory`).

  ## Examples

      iex> double = fn factor, x -> Nx.multiply(x, factor) end
      iex> pipeline = Nx.Vulkan.Pipeline.new([{double, 2, 0}, {double, 3, 0}], micro_batches: 2)
      iex> Nx.Vulkan.Pipeline.run(pipeline, Nx.tensor([1, 2, 3, 4])) |> Nx.to_list()
      [6, 12, 18, 24]
  """
  @spec new([stage], keyword) :: t
  def new(stages, opts \\ [])

  def new([_ | _] = stages, opts) do
    opts = Keyword.validate!(opts, micro_batches: 1)
    stages = stages |> Enum.with_index() |> Enum.map(&stage!/1)
    %__MODULE__{stages: stages, micro_batches: MicroBatches.count!(opts[:micro_batches])}
  end

  def new(other, _opts), do: raise(ArgumentError, "expected a list of one stage or more, got: #{inspect(other)}")

  defp stage!({{fun, parameters, selector}, number}) when is_function(fun, 2) and selector != nil do
    device = Flow.named(number, selector, fn -> Devices.index!(selector) end)
    parameters = Flow.named(number, device, fn -> Flow.place(parameters, device) end)
    %{fun: fun, device: device, parameters: parameters, train: nil}
  end

  defp stage!({other, number}) do
    raise ArgumentError,
          "expected stage #{number} to be {fun, parameters, device} with a function of parameters and input, got: " <>
            inspect(other)
  end

  @doc """
  A pipeline of a model of Axon with its parameters, such as `Axon.ModelState`, cut between its layers.

  What a later stage needs of earlier ones goes along, such as the other branch of a residual connection, masks and
  further inputs of the model. `run/3` takes what the model takes, and gives what it gives in inference. Layers keep
  the names that they have in the model, which parameters are found by, counted ones (`"dense_0"`) as well.

  ## Options

    * `:devices` - a list of selectors, one for each stage; by default the devices of the kind of the default one.
      Without `:first` there are fewer stages where so many would not have fewer bytes, and the last devices have none
    * `:first` - the names of the layers that begin the second stage and all further ones, in the order of the model.
      Without it the parameters are divided, so that the stage that has most of them has as few bytes as can be
    * `:micro_batches` - as `new/2` has it
    * `:mode` - `:train` for a model that `value_and_grad/5` is to compute as Axon trains it, with dropout and the
      statistics of batches. Its parameters are those of `Axon.build(model, mode: :train)`, which have the keys of
      dropout. By default it computes what `run/3` does
    * `:global_layer_options`, `:debug`, `:print_values`, `:raise_on_none` and `:seed` - as `Axon.build/2` has them

  ## Errors

  `ArgumentError` for what is no option or no parameters, for a name that no layer has (with those that there are), for
  names that are not in the order of the model, where there are not as many devices as stages, and under `mode: :train`
  for a layer with state that several stages would have.

  ## Examples

      pipeline = Nx.Vulkan.Pipeline.from_model(model, parameters, devices: [0, 1], first: ["dense_1"])
      Nx.Vulkan.Pipeline.run(pipeline, %{"input" => batch})

  Of Bumblebee, where the parameters are read to the host and go to each device from there:

      {:ok, model_info} = Bumblebee.load_model({:hf, "openai-community/gpt2"}, backend: Nx.BinaryBackend)
      pipeline = Nx.Vulkan.Pipeline.from_model(model_info, devices: [0, 1], micro_batches: 4)
  """
  @spec from_model(struct, Nx.Container.t(), keyword) :: t
  def from_model(model, parameters, opts) do
    {opts, build} = Keyword.split(opts, [:devices, :first, :micro_batches])
    {first, opts} = Keyword.pop(opts, :first)
    {selectors, opts} = Keyword.pop_lazy(opts, :devices, &Devices.partitions/0)
    {stages, trains, shared} = Layers.stages(model, parameters, Devices.partitions!(selectors), first, build)
    pipeline = new(stages, opts)
    stages = Enum.zip_with(pipeline.stages, trains, &%{&1 | train: &2})
    %{pipeline | stages: stages, shared: shared}
  end

  @doc """
  The same of what `Bumblebee.load_model/2` gives, a map of `:model` and `:params`, or of a model and its parameters
  with no options.
  """
  @spec from_model(%{model: struct, params: Nx.Container.t()}, keyword) :: t
  @spec from_model(struct, Nx.Container.t()) :: t
  def from_model(model, opts_or_parameters \\ [])
  def from_model(%{model: model, params: parameters}, opts) when is_list(opts), do: from_model(model, parameters, opts)
  def from_model(model, parameters), do: from_model(model, parameters, [])

  @doc """
  What the stages give of a batch, on the device of the last one. It is there when this returns. What `Nx.Serving`
  gathers is a batch as well.

  ## Options

    * `:micro_batches` - into how many parts the batch is cut, where it is not to be as `new/2` says

  ## Errors

  `ArgumentError` for a batch that can't be cut into the micro-batches, and for a result whose first axis is not theirs.
  """
  @spec run(t, Nx.Container.t() | Nx.Batch.t(), keyword) :: Nx.Container.t()
  def run(%__MODULE__{stages: stages} = pipeline, batch, opts \\ []) do
    count = count(pipeline, opts)
    batch = MicroBatches.whole!(batch, count, hd(stages).device)
    Flow.forward(stages, batch, count)
  end

  defp count(pipeline, opts) do
    opts = Keyword.validate!(opts, micro_batches: pipeline.micro_batches)
    MicroBatches.count!(opts[:micro_batches])
  end

  @doc """
  Compiles all stages for batches like `batch`, a template or tensors, and gives the template of what `run/3` gives.

  `run/3` compiles by itself; this says before whether the stages fit each other. Options and errors are those of
  `run/3`.

  ## Examples

      iex> pipeline = Nx.Vulkan.Pipeline.new([{&Nx.dot(&2, &1), Nx.iota({3, 2}), 0}], micro_batches: 2)
      iex> Nx.Vulkan.Pipeline.compile(pipeline, Nx.template({4, 3}, :s32)) |> Nx.shape()
      {4, 2}
  """
  @spec compile(t, Nx.Container.t(), keyword) :: Nx.Container.t()
  def compile(%__MODULE__{stages: stages} = pipeline, batch, opts \\ []) do
    count = count(pipeline, opts)
    template = batch |> Composite.traverse(&Nx.to_template/1) |> MicroBatches.template(count)
    stages |> Flow.compile(template) |> MicroBatches.whole_template(template, count)
  end

  @doc """
  The loss of a batch; the gradients of the parameters, a list with a container like those of each stage, on its device;
  and the pipeline with the state that layers have then.

  `loss` takes `targets`, as losses of Axon do (those with `reduction: :mean`), and what the last stage gives, and gives
  a scalar, which is a mean over the rows. Targets are cut into micro-batches as the batch is, and have its rows, but
  for scalars. The loss and the gradients are the sums over the micro-batches in
  their order, divided by how many there are: those of the whole batch but for the order in which rows are summed up,
  the same bits each time for the same number of micro-batches. They are summed up in the types of the parameters.

  Of what a stage computes nothing is kept but its input: the backward pass computes it again. A stage goes as far ahead
  of its backward passes as there are stages from it to the end, so that memory does not grow with the micro-batches.
  There is no gradient with respect to the batch, and none goes through integers between stages.

  State of layers, which models of Axon have under `mode: :train`, goes from one micro-batch to the next: keys of
  dropout, and averages of batch normalization, whose statistics are those of a micro-batch. Other pipelines stay as
  they are.

  State and frozen parameters have gradients of 0. Layers that are in several stages have the sum of their gradients in
  each of them, so that their parameters stay the same.

  ## Options

    * `:micro_batches` - as `run/3` has it

  ## Examples

      iex> multiply = fn factor, x -> Nx.multiply(x, factor) end
      iex> pipeline = Nx.Vulkan.Pipeline.new([{multiply, 2.0, 0}, {multiply, 3.0, 0}], micro_batches: 2)
      iex> loss = fn y, x -> Nx.mean(Nx.subtract(x, y)) end
      iex> {value, [first, second], _pipeline} =
      ...>   Nx.Vulkan.Pipeline.value_and_grad(pipeline, Nx.tensor([1.0, 3.0]), Nx.tensor([0.0, 0.0]), loss)
      iex> Enum.map([value, first, second], &Nx.to_number/1)
      [12.0, 6.0, 4.0]
  """
  @spec value_and_grad(t, Nx.Container.t(), Nx.Container.t(), fun, keyword) ::
          {Nx.Tensor.t(), [Nx.Container.t()], t}
  def value_and_grad(%__MODULE__{stages: stages} = pipeline, batch, targets, loss, opts \\ []) do
    if not is_function(loss, 2),
      do: raise(ArgumentError, "expected the loss to be a function of targets and results, got: #{inspect(loss)}")

    count = count(pipeline, opts)
    batch = MicroBatches.whole!(batch, count, hd(stages).device)
    targets = MicroBatches.targets!(targets, batch, count, List.last(stages).device)
    {value, gradients, parameters} = Gradient.run(stages, batch, targets, loss, count)
    stages = Enum.zip_with(stages, parameters, &%{&1 | parameters: &2})
    {value, Gradient.shared(gradients, stages, pipeline.shared), %{pipeline | stages: stages}}
  end

  @doc """
  What `fun` gives for the parameters of each stage and the elements of `lists` that are its own, computed on its
  device.

  Such as the step of an optimizer, whose states `map(pipeline, init)` has made:

      {parameters, states} =
        pipeline |> Nx.Vulkan.Pipeline.map([gradients, states], &step/3) |> Enum.unzip()

      pipeline = Nx.Vulkan.Pipeline.put_parameters(pipeline, parameters)

  ## Examples

      iex> pipeline = Nx.Vulkan.Pipeline.new([{&Nx.add/2, 2.0, 0}, {&Nx.add/2, 3.0, 0}])
      iex> Nx.Vulkan.Pipeline.map(pipeline, [[0.5, 1.0]], &Nx.subtract/2) |> Enum.map(&Nx.to_number/1)
      [1.5, 2.0]
  """
  @spec map(t, [[Nx.Container.t()]], fun) :: [Nx.Container.t()]
  def map(%__MODULE__{stages: stages}, lists \\ [], fun) do
    if not is_function(fun, length(lists) + 1) do
      raise ArgumentError, "expected a function of parameters and #{length(lists)} more, got: #{inspect(fun)}"
    end

    for list <- lists, do: counted!(list, stages)
    Flow.each([stages | lists], fn [stage | others] -> Flow.call(stage, fun, [stage.parameters | others]) end)
  end

  @doc "The parameters of each stage, on its device."
  @spec parameters(t) :: [Nx.Container.t()]
  def parameters(%__MODULE__{stages: stages}), do: Enum.map(stages, & &1.parameters)

  @doc "The pipeline with other parameters: a list with those of each stage, which go to its device if need be."
  @spec put_parameters(t, [Nx.Container.t()]) :: t
  def put_parameters(%__MODULE__{stages: stages} = pipeline, parameters) do
    counted!(parameters, stages)

    stages =
      for {{stage, parameters}, number} <- stages |> Enum.zip(parameters) |> Enum.with_index() do
        %{stage | parameters: Flow.named(number, stage.device, fn -> Flow.place(parameters, stage.device) end)}
      end

    %{pipeline | stages: stages}
  end

  defp counted!(list, stages) do
    if not (is_list(list) and length(list) == length(stages)) do
      got = if is_list(list), do: "one of #{length(list)}", else: inspect(list)
      raise ArgumentError, "expected a list with an element for each of the #{length(stages)} stages, got: #{got}"
    end
  end
end
