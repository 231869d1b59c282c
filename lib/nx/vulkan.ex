defmodule Nx.Vulkan do
  @moduledoc """
  Nx tensors on any Vulkan device: NVIDIA, AMD, Intel, Apple through MoltenVK, and the CPU through lavapipe.

      Nx.default_backend(Nx.Vulkan.VulkanoBackend)

      Nx.iota({3, 3}, type: :f32) |> Nx.dot(Nx.eye(3)) |> Nx.sum()

  From then on tensors live in the memory of the device and every op runs there. Nothing needs to be called first: the
  first op opens the device. `init/0` opens it earlier, for a program that wants to know at once whether there is one.

  ## Choosing a device

  Without a choice it is the best one there is: discrete before integrated before virtual before the CPU. A choice is an
  index of `devices/0`, the first digits of a UUID (8 or more, or any number after `uuid:`) or a part of the name (after
  `name:` if that looks like one of the others), in the environment variable `NX_VULKAN_DEVICE`, which earlier programs
  call `NXV_DEVICE`, or else in

      config :nx_vulkan, device: "h200"

  A configured device is opened when the application starts. It is the default device: what names no other runs there.
  `{Nx.Vulkan.VulkanoBackend, device: 1}` as a backend, and the option `device: 1` of `Nx.Vulkan.Compiler`, name one, which
  is opened as well. [Several devices](devices.md) says the rest.

  ## Errors

  Wrong input is an `ArgumentError`, as everywhere in Nx. What the device or this library can't do is a
  `Nx.Vulkan.Error`: match on its `:kind`. On a machine with no device the application starts all the same, and the
  first op raises `:no_device`. [Errors](errors.md) has all kinds, and what to do about each.

  ## Where to begin

  [Getting started](getting_started.md), or [coming from EXLA, EMLX or Torchx](coming_from_exla.md). What is slow, takes
  much memory or differs in the last digit: [performance](performance.md), [memory](memory.md),
  [numerics](numerics.md).
  """

  @behaviour Nx.Defn.Compiler

  import Nx.Defn, only: [deftransform: 2]

  alias Nx.Vulkan.{
    Block,
    Cache,
    Checkpoint,
    Compiler,
    Devices,
    Earlier,
    Error,
    Library,
    Memory,
    NativeV,
    Telemetry,
    TensorFile,
    VulkanoBackend
  }

  require Logger

  @device_variables ["NX_VULKAN_DEVICE", "NXV_DEVICE"]

  @typedoc """
  A Vulkan device.

    * `:index` - its place in `devices/0`
    * `:name`, `:driver`, `:api_version` - as the driver has them
    * `:kind` - what sort of device it is; lavapipe is a `:cpu`
    * `:uuid` - 32 hexadecimal digits
    * `:pci` - where it is on the PCI bus, as `"0000:41:00.0"`; nil where its driver does not tell
    * `:vendor_id`, `:device_id`, `:driver_name`, `:driver_info` - as the driver has them
    * `:memory_bytes` - its own memory, or the host's where it has none
    * `:subgroup_sizes` - invocations of a subgroup: the fewest, as many as there are unless kernels ask otherwise, the
      most
    * `:matrices` - the products of its matrix units: `:sizes` m, n and k, and `:types` of both factors, of what is
      added and of the result
    * `:has_f64` - whether it computes in double precision; where it does not, `f64` is lowered
    * `:lowered` - types that it lacks: kernels compute with them in words of 32 bits, with the same bits, and slower
    * `:usable`, `:reason` - whether the engine can use it, and if not, why
  """
  @type device :: %{
          index: non_neg_integer,
          name: String.t(),
          kind: :discrete | :integrated | :virtual | :cpu | :other,
          uuid: String.t(),
          pci: String.t() | nil,
          vendor_id: non_neg_integer,
          device_id: non_neg_integer,
          driver: String.t(),
          driver_name: String.t(),
          driver_info: String.t(),
          api_version: String.t(),
          memory_bytes: non_neg_integer,
          subgroup_sizes: [pos_integer],
          matrices: [%{sizes: [pos_integer], types: [String.t()]}],
          has_f64: boolean,
          lowered: [atom],
          usable: boolean,
          reason: String.t() | nil
        }

  @doc """
  Opens the default device. Calling it again is harmless.

  The first failure is logged as well, whoever the caller is.

  ## Errors

    * `:no_device` - no Vulkan loader, no driver, no device that fits the choice, or no native library that can be loaded
    * `:invalid_argument` - another device than the chosen one is the default one already
  """
  @spec init() :: :ok | {:error, Error.t()}
  def init do
    selector = selector()

    Telemetry.device_open(selector, fn ->
      with {:error, kind, message} <- open(selector) do
        log_once(message)
        {:error, Error.exception(kind: kind, op: :init, message: message)}
      end
    end)
  end

  defp open(selector) do
    case Library.unloadable() do
      nil -> NativeV.device_open(selector)
      why -> {:error, :no_device, why}
    end
  end

  @doc """
  Compiles a function ahead of time for arguments like `templates`, and returns a function that runs it.

  It is `Nx.Defn.compile/3` with this compiler, whose options it takes (`Nx.Vulkan.Compiler`), and then what the driver
  made is on disk. So the first call in a later VM finds the optimized program and the kernels in the
  [cache on disk](configuration.md#the-cache-on-disk), if it has the same version of this library, device and driver and
  calls the same function with arguments of these types and shapes. [Releases](releases_and_docker.md#warm-starts) has a
  step that does it before an application serves.

  Nothing runs: arguments may be templates, and no memory is taken for them. lavapipe makes machine code of a kernel when
  it is launched first, so there a call has to follow, after which Mesa's own cache has that.

  ## Errors

  `ArgumentError` for options that the compiler does not have, and for another `:compiler`. Where the cache can't be
  written, a warning in the log says why: the function is compiled all the same, and other VMs find nothing of it.

  ## Examples

      iex> double = Nx.Vulkan.compile(&Nx.multiply(&1, 2), [Nx.template({2}, :s32)])
      iex> double.(Nx.tensor([1, 2], type: :s32)) |> Nx.to_list()
      [2, 4]
  """
  @spec compile(fun, [Nx.Container.t()], keyword) :: fun
  def compile(fun, templates, opts \\ []) do
    Compiler.check_call(fun, templates)
    compiled = Nx.Defn.compile(fun, templates, Keyword.put(ahead_options!(opts), :compiler, __MODULE__))
    NativeV.device_save_pipelines()
    with why when why != nil <- Cache.unwritable(:pipelines), do: Logger.warning(unkept(why))
    compiled
  end

  defp ahead_options!(opts) do
    {compiler, opts} = opts |> Keyword.validate!([:compiler | Compiler.options()]) |> Keyword.pop(:compiler, __MODULE__)

    if compiler not in [__MODULE__, Compiler] do
      raise ArgumentError,
            "expected :compiler to be Nx.Vulkan, got: #{inspect(compiler)}. Nx.Defn.compile/3 compiles with others"
    end

    opts
  end

  defp unkept(why), do: "Nx.Vulkan.compile/3 keeps nothing for other VMs: #{why}"

  @doc """
  Every Vulkan device of this machine, in the order of the driver; the ones that the engine can't use say why.

  Empty where there is no Vulkan loader or driver, or no native library. Beside what `t:device/0` has, each tells whether
  it is `:open` and the `:default` one, and its `:heaps` of memory: `:size_bytes`, whether it is `:device_local`, and the
  `:used_bytes` and `:budget_bytes` of this process, nil where the driver does not tell them. `mix nx_vulkan.doctor`
  prints it all, and says what to do where a
  device is missing.
  """
  @spec devices() :: [map]
  def devices do
    case Library.error() || NativeV.device_list() do
      {:ok, devices} -> devices
      why when is_binary(why) -> []
      {:error, :no_device, _message} -> []
      {:error, kind, message} -> raise Error, kind: kind, op: :devices, message: message
    end
  end

  @doc """
  The device that a selector names, or the default one. Opens it if it is not open.

  Beside what `t:device/0` has:

    * `:default` - whether it is the default device
    * `:selected_by` - what chose it: a variable or key of the configuration with its value, `"first discrete"` and so on
      for the first device of the best kind, or the selector
    * `:versions` - of this library (`:nx_vulkan`), of `:nx`, `:elixir` and `:otp`
    * `:calibration` - what kernels are chosen by: whether it was `:measured` on the device, or else is a guess by its
      `:class`; its `:processors`, and the `:path` where measured numbers are kept
    * `:pipeline_cache` - the `:path` of its file and how many bytes of it were taken, `:loaded_bytes`; nil without one
    * `:f16_matrices`, `:bf16_matrices` - whether kernels for its matrix units are used: of f16, and of f32 in parts of
      bf16
    * `:denormals` - the types of floats whose numbers below the smallest normal one it says to keep
    * `:validation` - whether the validation layer watches

  ## Errors

  As `init/0`.
  """
  @spec device_info(non_neg_integer | String.t() | nil) :: {:ok, map} | {:error, Error.t()}
  def device_info(selector \\ nil)

  def device_info(nil) do
    with :ok <- init(),
         {:ok, device} <- NativeV.device_describe(),
         do: described(device, nil),
         else: (why -> failed(why))
  end

  def device_info(selector) do
    with {:ok, device} <- NativeV.device_describe(Devices.index!(selector)),
         do: described(device, to_string(selector)),
         else: (why -> failed(why))
  rescue
    error in Error -> {:error, error}
  end

  defp described(device, named) do
    {selector, device} = Map.pop!(device, :selector)
    selected_by = if device.default, do: selected_by(selector, device.kind), else: named
    {:ok, Map.merge(device, %{selected_by: selected_by, versions: versions()})}
  end

  defp failed({:error, %Error{} = error}), do: {:error, error}

  defp failed({:error, kind, message}),
    do: {:error, Error.exception(kind: kind, op: :device_info, message: message)}

  @doc """
  The name of the default device, or nil where there is none. Opens the device if it is not open.
  """
  @spec device_name() :: String.t() | nil
  def device_name, do: device(:name)

  @doc """
  Whether the default device computes in double precision; false where there is none. Opens the device if it is not open.

  Without it, `f64` and `c128` are computed in integers, with the same bits, and slower: see
  [types that a device lacks](configuration.md#types-that-a-device-lacks).
  """
  @spec has_f64?() :: boolean
  def has_f64?, do: device(:has_f64) || false

  @doc """
  Runs `fun` with ops outside of compiled functions run `:immediate`ly or `:deferred`, in this process, and returns what
  it returns.

  Deferred ops are computed when somebody reads a result: then all that waits and hangs together runs at once, and what
  was met often enough is compiled, with its ops fused. Results are the same to the bit.
  `config :nx_vulkan, eager: :deferred` says so for all processes; [deferred ops](deferred.md) says when it helps.

  ## Errors

  What the device can't do is raised where a result is read rather than where the op is called, with the name of the op.
  Another mode is an `ArgumentError`.

      iex> Nx.Vulkan.eager(:deferred, fn ->
      ...>   x = Nx.iota({4}, type: :f32)
      ...>   x |> Nx.add(1) |> Nx.log() |> Nx.sum() |> Nx.exp() |> Nx.round() |> Nx.to_number()
      ...> end)
      24.0
  """
  @spec eager(:immediate | :deferred, (-> result)) :: result when result: var
  def eager(mode, fun) when mode in [:immediate, :deferred] do
    previous = VulkanoBackend.put_eager(mode)

    try do
      fun.()
    after
      VulkanoBackend.put_eager(previous)
    end
  end

  def eager(mode, _fun) do
    raise ArgumentError, "expected ops to run :immediate or :deferred, got: #{inspect(mode)}"
  end

  @doc """
  Trades time for memory in the gradient of what it is given: intermediate results are computed again instead of kept.

  Of a function of any number of arguments it makes one with the same values, for numerical definitions. What the
  function computes on its way is not kept for the gradient: the backward pass computes it again, from the arguments and
  from what the function captured, once the gradient of its results is there. Gradients are the same, but for the last
  digit where Nx would have moved a constant factor through the function, or where a value has three uses or more, whose
  gradients may add up in another order. Random numbers are the same, too, since keys are arguments like others. Hooks
  are called again.

      defn loss(parameters, x, y) do
        block = Nx.Vulkan.checkpoint(&block/2)
        x = block.(x, parameters.first)
        x = block.(x, parameters.second)
        Nx.mean((x - y) ** 2)
      end

  Of values, in any container, it gives these values. What they were computed of is not kept for the gradient, from the
  values on that were given to it before or, where there are none, from the parameters on:

      x = x |> block(parameters.first) |> Nx.Vulkan.checkpoint()
      x = x |> block(parameters.second) |> Nx.Vulkan.checkpoint()

  With n such blocks, a step keeps n results and what is within one block: some sqrt(n) blocks of sqrt(n) layers each
  take least. It costs the time of a second forward pass, a third of a step's. `checkpoint/2` does it for models of
  Axon. Outside of numerical definitions functions do what they do, and values are what they are. Other compilers and
  backends compute the same.
  """
  @spec checkpoint(fun) :: fun
  @spec checkpoint(Nx.Container.t()) :: Nx.Container.t()
  deftransform(checkpoint(function_or_values), do: Checkpoint.of(function_or_values))

  @doc """
  A model of Axon in which what goes into some layers is kept for the gradient, and all that leads from one of these to
  the next is computed again.

  `first?` gets the name of each layer and says whether it is the first of a block: all paths from block to block have
  to lead into it. Models of Bumblebee have one in each of their blocks:

      Nx.Vulkan.checkpoint(model, &String.ends_with?(&1, "self_attention_norm"))

  Names of layers that the model does not give are those that Axon counts, such as `"dense_0"`. The parameters are those
  of the model, the numbers with which they begin too, and so are results and gradients: see `checkpoint/1`. It comes
  last, after policies of mixed precision and further layers, since an op that keeps its result has another op for Axon.
  Where `first?` holds for no layer an `ArgumentError` tells all names.
  """
  @spec checkpoint(struct, (String.t() -> as_boolean(term))) :: struct
  defdelegate checkpoint(model, first?), to: Checkpoint, as: :rewrite

  @doc """
  What the memory of a device is taken for, and by whom. Opens the device if it is not open.

  Bytes, of a moment in which others may take and give some:

    * `:device` - its name
    * `:total_bytes` - the device's memory, and `:budget_bytes` what tensors may take of it
    * `:in_use_bytes` - what tensors, copies and runs hold, and `:peak_bytes` the most that they held at once
    * `:spilled_bytes` - of these, what lies in the host's memory because the device's was full
    * `:reserved_bytes` - what the pool has of the driver: the sum of all `:kinds`
    * `:kinds` - `:tensors` and what runs hold on their way, `:captured` tensors that compiled functions hold, `:copies`
      of weights in kernels' layouts, which go where memory is short, tables and what chains hold (`:other`), `:staging`
      through which the host writes and reads, and what is `:free`
    * `:processes` - those that have taken most, as maps of their `:pid`, `:name` (the registered one, the label, or
      nil), `:bytes` and `:limit_bytes` (`memory_limit/2`, or nil), in descending order

  A tensor is of the process that computed it, also where that has sent it to others, or has ended. One that a process
  got from a compiled function is of that process, one that was deferred of the process that read it.

  ## Options

    * `:device` - a selector, see the module's documentation; the default device without it
    * `:top` - how many processes are listed, `:infinity` by default

        %{kinds: %{tensors: bytes}, processes: [%{pid: pid} | _]} = Nx.Vulkan.memory(top: 5)
  """
  @doc type: :memory
  @spec memory(keyword) :: map
  defdelegate memory(opts \\ []), to: Memory, as: :usage

  @doc """
  Gives all memory that nothing holds back to the driver, for other programs, and returns how many bytes that were.

  It waits for what the device runs. The pool does it by itself after a while: [memory](memory.md#when-it-comes-back).
  What garbage of processes holds is not free; `:erlang.garbage_collect/0` makes it so.

  ## Options

    * `:device` - as in `memory/1`
  """
  @doc type: :memory
  @spec trim(keyword) :: non_neg_integer
  defdelegate trim(opts \\ []), to: Memory

  @doc """
  Bounds what the calling process may have of a device's memory: so many bytes, or `:infinity`. Returns what bounded it
  before: what `config :nx_vulkan, process_memory_limit:` says for all processes, or `:infinity`, where it had set none.

  What counts is what `memory/1` has of the process: tensors that it computed and that anybody still holds, and what its
  runs hold on their way. Where a call would take more, the garbage of the process is collected, and if that is not enough
  the call raises `Nx.Vulkan.Error` of the kind `:out_of_memory`, whose `:details` have `:size_bytes`, what was asked
  for, `:held_bytes`, `:limit_bytes` and the index of the `:device`. Other processes go on. What is there already stays,
  and goes on being read.

  ## Options

    * `:device` - as in `memory/1`

        Nx.Vulkan.memory_limit(4 * 1024 ** 3)
        #=> :infinity
  """
  @doc type: :memory
  @spec memory_limit(non_neg_integer | :infinity, keyword) :: non_neg_integer | :infinity
  defdelegate memory_limit(bytes, opts \\ []), to: Memory, as: :limit

  @doc """
  Gives back what a model or a function holds of a device's memory, at once.

  Of any term, such as the parameters of a model, a map with parameters and functions, or a function that
  `Nx.Defn.jit/2` has made, it

    * deallocates all tensors in it, with the copies that are kept of them; who still holds one gets `:released`
    * drops what was compiled of the functions in it, with the tensors that it captured. It is compiled again where it
      is called

  What a function was given by `Nx.Defn.compile/3` goes with that function, once nobody holds it. The memory stays with
  the pool for a while: `trim/1` gives it to other programs.

      {_init, predict} = Axon.build(model)
      predict = Nx.Defn.jit(predict, compiler: Nx.Vulkan)
      predict.(params, input)
      Nx.Vulkan.unload({predict, params})
  """
  @doc type: :memory
  @spec unload(term) :: :ok
  defdelegate unload(term), to: Memory

  @doc """
  A tensor of part of a file, whose bytes are as `Nx.from_binary/3` takes them.

      Nx.Vulkan.from_file("images.u8", :u8, {60_000, 784}, offset: 16)

  The bytes go to the device in portions of a few MiB that are read as they go, several at once. So the BEAM has no
  binary of them, and the host needs no memory for them all. A file that changes meanwhile gives some bytes of before
  and some of after.

  ## Options

    * `:offset` - the byte with which the tensor begins, 0 by default
    * `:backend` - where it goes, as in `Nx.from_binary/3`, `Nx.Vulkan.VulkanoBackend` by default. To others it goes by
      way of a binary
    * `:names` - those of the axes

  ## Errors

  `Nx.Vulkan.Error` of the kind `:io` where the file can't be read, and `:bad_file` where it ends before the tensor
  does. `ArgumentError` where the path, the type, the shape, a name, the offset or the backend is none, and for a shape
  without elements.
  """
  @spec from_file(Path.t(), Nx.Type.t() | Nx.Type.short_t(), tuple, keyword) :: Nx.Tensor.t()
  def from_file(path, type, shape, opts \\ []) do
    opts = Keyword.validate!(opts, [:names, offset: 0, backend: VulkanoBackend])
    path = TensorFile.path!(path)
    template = TensorFile.template!(type, shape, opts[:names])
    backend = TensorFile.backend!(opts[:backend])
    offset = opts[:offset]

    if not is_integer(offset) or offset < 0 do
      raise ArgumentError, "expected :offset to be a number of bytes, got: #{inspect(offset)}"
    end

    part = %{name: "the tensor", offset: offset, bytes: TensorFile.byte_count(template)}

    case TensorFile.tensor(path, :from_file, part, template.type, shape, backend: backend) do
      {:ok, tensor} -> Nx.rename(tensor, template.names)
      {:error, error} -> raise error
    end
  end

  @doc """
  The batches of an enumerable, of which some are loaded to the device before they are asked for.

      data |> Nx.Vulkan.prefetch() |> Enum.reduce(state, &step/2)
      Axon.Loop.run(loop, Nx.Vulkan.prefetch(data), Axon.ModelState.empty(), epochs: 3)

  A batch is a tensor, an `Nx.Batch`, or a container of these. A process of its own walks the enumerable and uploads,
  while the one that takes the batches computes with those before. It ends with the stream, also where that is halted or
  its taker is killed; what the enumerable raises comes up where its batch would. So functions in the enumerable run in
  another process, which has this one's default backend and options of Nx, and not the rest of its dictionary.

  The entries of an `Nx.Batch` are put together before they are loaded; its size, key and padding stay, and are not
  loaded. Memory that the process takes is the taker's, by its name in `memory/1` and under its limit
  (`memory_limit/2`).

  ## Options

    * `:ahead` - how many batches are loaded ahead of the one that was taken last, 2 by default. Each takes its memory
    * `:backend` - where they go, `Nx.Vulkan.VulkanoBackend` by default
  """
  @spec prefetch(Enumerable.t(), keyword) :: Enumerable.t()
  defdelegate prefetch(batches, opts \\ []), to: Nx.Vulkan.Prefetch, as: :stream

  @doc """
  The logarithm to base 2 of each element.

  Of a power of two it is the whole number, to the bit, and f64 keeps its digits: `Nx.log2/1` divides by an f32. It is a
  function for numerical definitions as well, on any backend and with any compiler: those that do not know it run its
  steps in ops of Nx. The gradient is that of the natural logarithm, divided by `ln(2)`.

  ## Types

  That of `Nx.log/1`: floats keep theirs, integers become f32. Of complex numbers it is `Nx.log(z)`, divided by `ln(2)`.

  ## Values

  Minus infinity for 0, NaN for negative numbers. [Numerics](numerics.md) has the bounds of f32 and f64; narrower floats
  are rounded once.

      iex> Nx.Vulkan.log2(Nx.tensor([0.125, 1, 8, 10, 0]))
      #Nx.Tensor<
        f32[5]
        [-3.0, 0.0, 3.0, 3.321928, -Inf]
      >
  """
  @doc type: :element
  @spec log2(Nx.Tensor.t() | number) :: Nx.Tensor.t()
  deftransform(log2(tensor), do: Block.log2(tensor))

  @doc """
  Where each value would stand in a sorted row: how many of its elements come before the value.

  The elements of a row are in ascending order, as `Nx.sort/2` gives them: NaN is the largest, equal to itself. Of rows
  in another order places have no meaning. It is a function for numerical definitions as well, on any backend and with
  any compiler: those that do not know it run its steps in ops of Nx.

  ## Options

    * `:side` - `:left` of the elements that equal the value, which are not counted then, or `:right` of them. Defaults
      to `:left`

  ## Shapes

  `sorted` is one row, of shape `{n}`, for values of any shape; or it has a row for each row of values, along the last
  axis, and all axes before are the same. Vectorized axes of both are such axes, too. The result has the shape and the
  names of the values.

  ## Types

  Real numbers; of different types those of both become the one that holds both, as `Nx.add/2` has it. The result is s32,
  as that of `Nx.argsort/2`, whose places it continues: a row has up to 2^31 - 1 elements.

  ## Errors

  `ArgumentError` for other shapes, complex numbers and other options.

      iex> Nx.Vulkan.searchsorted(Nx.tensor([1, 3, 3, 7]), Nx.tensor([0, 3, 5, 9]))
      #Nx.Tensor<
        s32[4]
        [0, 1, 3, 4]
      >

      iex> Nx.Vulkan.searchsorted(Nx.tensor([1, 3, 3, 7]), 3, side: :right)
      #Nx.Tensor<
        s32
        3
      >

      iex> Nx.Vulkan.searchsorted(Nx.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]), Nx.tensor([[2.5], [2.5]]))
      #Nx.Tensor<
        s32[2][1]
        [
          [2],
          [0]
        ]
      >
  """
  @doc type: :aggregation
  @spec searchsorted(Nx.Tensor.t(), Nx.Tensor.t() | number, side: :left | :right) :: Nx.Tensor.t()
  deftransform(searchsorted(sorted, values, opts \\ []), do: Block.searchsorted(sorted, values, opts))

  @doc false
  @impl true
  defdelegate __jit__(key, vars, fun, args_list, opts), to: Compiler
  @doc false
  @impl true
  defdelegate __compile__(key, vars, fun, opts), to: Compiler
  @doc false
  @impl true
  defdelegate __partitions_options__(opts), to: Compiler
  @doc false
  @impl true
  defdelegate __to_backend__(opts), to: Compiler
  @doc false
  @impl true
  defdelegate __shard_jit__(key, mesh, vars, fun, args_list, opts), to: Compiler

  defp device(key) do
    with :ok <- init(), {:ok, device} <- NativeV.device_describe() do
      Map.fetch!(device, key)
    else
      _ -> nil
    end
  end

  @doc false
  def versions do
    # In a release whose applications are not started it may not be known yet.
    _ = Application.load(:nx_vulkan)
    %{nx_vulkan: version(:nx_vulkan), nx: version(:nx), elixir: System.version(), otp: System.otp_release()}
  end

  defp version(app), do: to_string(Application.spec(app, :vsn) || "unknown")

  # The selector that the device was opened with, which variables may have lost by now.
  defp selected_by(nil, kind), do: "first #{kind}"

  defp selected_by(selector, _kind) do
    cond do
      name = Enum.find(@device_variables, &(System.get_env(&1) == selector)) -> "#{name}=#{selector}"
      Application.get_env(:nx_vulkan, :device) == selector -> "config :nx_vulkan, device: #{inspect(selector)}"
      true -> selector
    end
  end

  @doc """
  Applies elementwise ops one after the other: to `a`, then to what came out; an op of two operands gets `b` as the
  second one.

  Kept for programs that name the chains themselves. A `defn` says the same, of any ops.

  ## Ops

  `#{Enum.map_join(Earlier.fused_ops(), "`, `", &inspect/1)}`; `:mul`, `:sub`, `:div` and `:neg` are other names of four
  of them.

  ## Errors

  `ArgumentError` for an empty list and any other op.

      iex> Nx.Vulkan.fused_chain(Nx.tensor([1.0, 4.0]), Nx.tensor([3.0, 5.0]), [:add, :sqrt, :negate])
      #Nx.Tensor<
        f32[2]
        [-2.0, -3.0]
      >
  """
  @spec fused_chain(Nx.Tensor.t(), Nx.Tensor.t(), [atom, ...]) :: Nx.Tensor.t()
  defdelegate fused_chain(a, b, ops), to: Earlier

  @doc """
  A leapfrog chain on independent elements of Normal(mu, sigma): `k` steps of `eps` in one dispatch.

  ## Shapes

  `q`, `p` and `inv_mass`, the diagonal of the inverse mass matrix, have one shape, of `n` elements in all. The answer
  has the state after each step: positions, momenta and gradients of shape `{k, n}`, log densities of shape `{k}`.

  ## Types

  f64 where `q` is f64 and f32 otherwise.

  ## Errors

  `{:error, :size_mismatch}` where `q`, `p` and `inv_mass` differ in size; others as
  `Nx.Vulkan.NativeV.leapfrog_chain_synth/6`. `ArgumentError` where `k` is no integer, and for tensors that are complex
  or vectorized.
  """
  @spec leapfrog_chain_normal(Nx.Tensor.t(), Nx.Tensor.t(), Nx.Tensor.t(), pos_integer, number, number, number) ::
          {:ok, {Nx.Tensor.t(), Nx.Tensor.t(), Nx.Tensor.t(), Nx.Tensor.t()}} | NativeV.failure()
  defdelegate leapfrog_chain_normal(q, p, inv_mass, k, eps, mu, sigma), to: Earlier

  @doc false
  def selector do
    @device_variables
    |> Enum.map(&System.get_env(&1, ""))
    |> Enum.find(Application.get_env(:nx_vulkan, :device), &(&1 != ""))
  end

  defp log_once(message) do
    if not :persistent_term.get({__MODULE__, :failure_logged}, false) do
      :persistent_term.put({__MODULE__, :failure_logged}, true)
      Logger.warning("no Vulkan device is open: #{message}")
    end
  end
end
