defmodule Nx.Vulkan.NativeV do
  @moduledoc """
  The functions of the native library.

  `Nx.Vulkan` and `Nx.Vulkan.VulkanoBackend` are what programs use. This module is the layer below: references to device
  memory in, references out. A reference owns its memory: when the BEAM collects it, the memory goes back to the pool.

  An `error` is `{:error, kind, op, message, details}` with the fields of `Nx.Vulkan.Error`, or
  `{:error, kind, message}` where there is no op. `:needs_compile` asks for the same call through the twin that runs on
  a dirty scheduler: the device is not open yet or is far behind, or the kernel is not compiled.

  ## Raw buffers and supplied shaders

  `buf_*` functions move bytes. `apply_*`, `reduce_axis/7`, `transpose_2d/5`, `matmul/7` and `leapfrog_chain_*` run a
  SPIR-V file that the caller names, from `priv/shaders` or from anywhere else. They answer with a `t:failure/0`:

    * `{:error, :size_mismatch}` - a buffer's size does not fit the other sizes of the call
    * `{:error, :bad_input}` - an op code, number, header or aliasing that the function does not take, or less push data
      than the shader declares
    * `{:error, :spv_read_failed, message}` - the file can't be read, or is no well-formed compute module. Chains have
      another answer to that: `{:error, :dispatch_failed, "read spv: ..."}`, by which exmc 0.4.0 makes the file anew
    * `{:error, :dispatch_failed, message}` - the shader does not fit the call (its bindings, the size of its elements),
      the device lacks a feature that it needs, binds no buffers as large or takes fewer workgroups, or running it
      failed. A fault on the device shows at the next call that waits, and from then on at every call
    * `{:error, :vulkan_init_failed, message}` - there is no device
    * `{:error, :upload_failed, message}`, `{:error, :download_failed, message}` - memory is short

  A term of the wrong sort, such as a reference that is none of this library's, raises `ArgumentError`.

  A shader file is read and checked at its first use and again after it has changed: magic, version, every instruction,
  id and type, the types of operands and results, decorations, control flow, one compute entry point `main`, storage
  buffers at set 0 and bindings 0, 1, ... in the call's order, the size of the push constants, workgroup size and
  features. What passes is code and runs with the caller's trust: buffers are bounds-checked where the driver offers it,
  but a shader may still write anything to them, and one that never ends occupies the device until its driver gives up,
  which some never do; nothing on this side can stop it. With

      config :nx_vulkan, validate_spirv: true

  `spirv-val` of SPIRV-Tools sees every file before its first use, where it is installed.

  All calls of a VM run one after the other on a device, in the order in which they were made, from any number of
  processes. These functions use the default device.

  ## Devices

  A `t:device/0` is the index of an open device (`device_select/1`), or nil for the default one. What takes references
  runs on the device of their memory, which has to be one for all of them: otherwise the kind is `:invalid_argument`, and
  `:what` of the details `"devices"`.
  """

  use Nx.Vulkan.Library

  @type ref :: reference
  @typedoc "The index of an open device, or nil for the default one."
  @type device :: non_neg_integer | nil
  @typedoc "References; for an op without operands the device that it runs on, or none for the default one."
  @type operands :: [ref] | device
  @typedoc "How chains run: each in a workgroup, or with the whole device."
  @type form :: :workgroup | :device
  @type error :: {:error, Nx.Vulkan.Error.kind(), atom, String.t(), map}
  @type short_error :: {:error, Nx.Vulkan.Error.kind(), String.t()}
  @type tensor_result :: {:ok, ref} | {:ok, ref, :pressure} | error
  @type tensors_result :: {:ok, [ref]} | {:ok, [ref], :pressure} | error

  @typedoc "How a call on raw buffers fails; see the module's documentation."
  @type failure ::
          {:error, :size_mismatch | :bad_input}
          | {:error, :vulkan_init_failed | :spv_read_failed | :dispatch_failed | :upload_failed | :download_failed,
             String.t()}

  @typedoc "q, p, gradient and log density of every step, as bytes."
  @type chain :: {q :: binary, p :: binary, grad :: binary, logp :: binary}

  ## The device

  @doc """
  The Vulkan loader and what is there without a device: its `:version`, or the `:error` of loading it, the version of the
  `:validation_layer` if it is installed, and the folder of the cache, `:cache_dir`, if there is one. Dirty IO scheduler.
  """
  @spec device_loader() :: %{
          version: String.t() | nil,
          error: String.t() | nil,
          validation_layer: String.t() | nil,
          cache_dir: String.t() | nil
        }
  def device_loader, do: nif_error()

  @doc """
  Every Vulkan device of this machine, usable or not. Dirty IO scheduler.
  """
  @spec device_list() :: {:ok, [map]} | short_error
  def device_list, do: nif_error()

  @doc """
  A device, which this opens if need be, as `Nx.Vulkan.device_info/1` tells it but for `:selected_by`, which the
  `:selector` decides: what named the default device, or nil. Dirty IO scheduler.
  """
  @spec device_describe(device) :: {:ok, map} | short_error
  def device_describe(device \\ nil)
  def device_describe(_device), do: nif_error()

  @doc """
  The device in use, and what chose it, as exmc asks for them. Opens the device if it is not open. New programs call
  `Nx.Vulkan.device_info/0`, which tells the same; here `:kind` is the word that `device_name/0` has, and
  `:supports_f64` is `:has_f64`.
  """
  @spec device_info() :: {:ok, map, selected_by :: String.t()} | failure
  def device_info do
    case Nx.Vulkan.device_info() do
      {:ok, device} ->
        {:ok, Map.merge(device, %{kind: kind_name(device.kind), supports_f64: device.has_f64}), device.selected_by}

      {:error, error} ->
        {:error, :vulkan_init_failed, Exception.message(error)}
    end
  end

  defp kind_name(:cpu), do: "Cpu"
  defp kind_name(:other), do: "Other"
  defp kind_name(kind), do: String.capitalize("#{kind}") <> "Gpu"

  @doc """
  Opens the default device, the one that `selector` names: an index, the digits of its UUID or a part of its name; with
  nil the one of `NX_VULKAN_DEVICE`, or the best there is. Once it is open, naming another is an error. Dirty IO
  scheduler.
  """
  @spec device_open(String.t() | nil) :: :ok | short_error
  def device_open(_selector), do: nif_error()

  @doc """
  Opens the device that `selector` names, as well as others: the answer is its index, and whether it is the default one.
  Dirty IO scheduler.
  """
  @spec device_select(String.t()) :: {:ok, non_neg_integer, boolean} | short_error
  def device_select(_selector), do: nif_error()

  @doc """
  Takes what the configuration says, before a device is opened: whether to take a profile, a folder for the SPIR-V of
  generated kernels or nil, whether large products of f32 may run on matrix units (`precision: :high`), whether attention
  has the bits of its ops one by one (`attention: :exact`), types to lower or nil, the time limit in milliseconds or
  nil, and how many bytes of a device's memory each process may have, or nil.
  """
  @spec device_configure(
          boolean,
          String.t() | nil,
          boolean,
          boolean,
          String.t() | nil,
          pos_integer | nil,
          non_neg_integer | nil
        ) :: :ok
  def device_configure(_profile, _dump_spirv, _high, _exact_attention, _lower, _time_limit, _process_limit),
    do: nif_error()

  @doc """
  Takes times of all launches on a device from now on, see `Nx.Vulkan.Profile`. Opens the device if it is not open. Dirty
  IO scheduler.
  """
  @spec profile_start(device) :: {:ok, nil} | error
  def profile_start(_device), do: nif_error()

  @doc "Takes no more times. Dirty IO scheduler."
  @spec profile_stop(device) :: {:ok, nil} | error
  def profile_stop(_device), do: nif_error()

  @doc "Forgets the times that were taken. Dirty IO scheduler."
  @spec profile_reset(device) :: {:ok, nil} | error
  def profile_reset(_device), do: nif_error()

  @doc """
  The times taken so far: `:device`, `:rows`, `:limits`, `:unmeasured` and a `:table` of them; nil while the device is
  not open. The limits are `{bytes_per_second, flops_per_second}`, or with nil what was measured, now if `measure` is true.
  Dirty IO scheduler.
  """
  @spec profile_get({float, float} | nil, boolean, device) :: {:ok, map | nil} | error
  def profile_get(_limits, _measure, _device), do: nif_error()

  @doc """
  The launches whose times were taken, of the last 65,536: the kernel, when it began by the device's clock, which has an
  origin of its own, and how long it took. None while the device is not open. Dirty IO scheduler.
  """
  @spec profile_launches(device) :: {:ok, [{String.t(), non_neg_integer, non_neg_integer}]} | error
  def profile_launches(_device), do: nif_error()

  @doc """
  Measures a device for a second or two and keeps what was found in the folder of the cache, from where the next start
  of the VM reads it, see `Nx.Vulkan.Calibration`. Answers the numbers by name, the device's `:class`, its `:processors`
  and the `:path` of the file, nil where there is none. The process `told` gets `{:nx_vulkan_calibration, what, at, of}`
  before each of the `of` measurements, the first of which has `at` 0. Dirty IO scheduler.
  """
  @spec device_calibrate(pid, device) :: {:ok, map} | short_error
  def device_calibrate(_told, _device), do: nif_error()

  @doc """
  Counters of the engine: memory in bytes (`:peak_bytes` is the most that was in use at once), allocations (how often
  memory was taken from the driver), submissions, dispatches, copies, barriers, pipelines; of deferred ops those that
  are pending, and the programs that were compiled, replayed, and run op by op. All zero while the device is not open.
  """
  @spec device_stats(device) :: map
  def device_stats(device \\ nil)
  def device_stats(_device), do: nif_error()

  @doc """
  What the memory of a device is taken for, in bytes, as a map, and what each process has taken of it that its limit
  or at least a byte is known of: `{pid, bytes, limit_bytes | nil}`. Dirty CPU scheduler.
  """
  @spec memory_usage(device) :: {:ok, map, [{pid, non_neg_integer, non_neg_integer | nil}]}
  def memory_usage(_device), do: nif_error()

  @doc """
  Sets how many bytes of a device's memory the calling process may have, nil for as many as there are. Answers what
  bounded it before. Dirty IO scheduler.
  """
  @spec memory_limit(non_neg_integer | nil, device) :: {:ok, non_neg_integer | nil} | short_error
  def memory_limit(_limit_bytes, _device), do: nif_error()

  @doc """
  Counts what the calling process takes of the memory of devices to another one from now on, whose limit it has. It has
  taken none before.
  """
  @spec memory_owner(pid) :: :ok
  def memory_owner(_pid), do: nif_error()

  @doc """
  Lets the calling process take the host's memory where a device's is full, as much as a 64th of its budget, after
  garbage was collected. Answers whether any device can have some.
  """
  @spec memory_allow_spill() :: boolean
  def memory_allow_spill, do: nif_error()

  @doc """
  Waits for a device and gives all memory back to its driver that nothing holds. Answers how many bytes. Dirty IO
  scheduler.
  """
  @spec memory_trim(device) :: {:ok, non_neg_integer} | short_error
  def memory_trim(_device), do: nif_error()

  @doc """
  The device features, by Vulkan's names, that the kernels of ops depend on which any process ran on the default device
  since the last call.
  """
  @spec device_take_features_used() :: [String.t()]
  def device_take_features_used, do: nif_error()

  @doc """
  What the Vulkan validation layer has said so far of all devices; nil where it is not watching, see `NX_VULKAN_VALIDATION`. Dirty IO
  scheduler.
  """
  @spec device_validation_messages() :: [String.t()] | nil
  def device_validation_messages, do: nif_error()

  @doc """
  Writes the compiled pipelines of all devices to the cache on disk, which otherwise happens after every 16 of them. Done
  when the application stops. Dirty IO scheduler.
  """
  @spec device_save_pipelines() :: :ok
  def device_save_pipelines, do: nif_error()

  ## Tensors

  @doc """
  Uploads a tensor in Nx's binary layout, a bitstring of a sub-byte type filled up to whole bytes.

  `type` is Nx's short name, such as `:f32`. Normal scheduler, so only for small binaries; see
  `tensor_from_binary_dirty/4`.
  """
  @spec tensor_from_binary(atom, tuple, binary, device) :: tensor_result | :needs_compile
  def tensor_from_binary(type, shape, binary, device \\ nil)
  def tensor_from_binary(_type, _shape, _binary, _device), do: nif_error()

  @doc """
  As `tensor_from_binary/4`, for binaries of any size. Dirty IO scheduler.
  """
  @spec tensor_from_binary_dirty(atom, tuple, binary, device) :: tensor_result
  def tensor_from_binary_dirty(type, shape, binary, device \\ nil)
  def tensor_from_binary_dirty(_type, _shape, _binary, _device), do: nif_error()

  @doc """
  Uploads part of a file, from the byte `offset` on, without a binary of it. `:io` is also the kind of the error where
  the file ends too early. Dirty IO scheduler.
  """
  @spec tensor_from_file(atom, tuple, binary, non_neg_integer, device) :: tensor_result
  def tensor_from_file(type, shape, path, offset, device \\ nil)
  def tensor_from_file(_type, _shape, _path, _offset, _device), do: nif_error()

  @doc """
  The tensor on a device, which this opens if need be: one with the same memory where it is there already. Waits for
  what writes it. Dirty IO scheduler.
  """
  @spec tensor_transfer(ref, device) :: tensor_result
  def tensor_transfer(_ref, _device), do: nif_error()

  @doc "The index of the device that a tensor is on, and whether that is the default one. Normal scheduler."
  @spec tensor_device(ref) :: {:ok, non_neg_integer, boolean} | error
  def tensor_device(_ref), do: nif_error()

  @doc """
  Waits for a tensor and reads it in Nx's binary layout, filled up to whole bytes: all of it, or the first `limit`
  elements. Dirty IO scheduler.
  """
  @spec tensor_to_binary(ref, non_neg_integer | nil) :: {:ok, binary} | error
  def tensor_to_binary(_ref, _limit), do: nif_error()

  @doc "The same on the scheduler of the caller, for small tensors that are there or will be in about 100 us."
  @spec tensor_to_binary_soon(ref, non_neg_integer | nil) :: {:ok, binary} | :needs_compile | error
  def tensor_to_binary_soon(_ref, _limit), do: nif_error()

  @doc """
  Gives up the reference's hold on its memory without waiting for the garbage collector. Later uses are `:released`
  errors.
  """
  @spec tensor_release(ref) :: :ok | :already_deallocated
  def tensor_release(_ref), do: nif_error()

  @doc """
  The device address of a tensor, whose elements lie there in row-major order, and its size in bytes. The memory is
  kept until the tensor is released, collected or not. Waits for the device. Dirty IO scheduler.

  Elements of a sub-byte type take a byte each.
  """
  @spec tensor_share(ref) :: {:ok, pos_integer, pos_integer} | error
  def tensor_share(_ref), do: nif_error()

  @doc """
  A tensor that shares the memory at an address which `tensor_share/1` gave, or which lies within such a tensor. Dirty
  IO scheduler.

  ## Errors

  `:invalid_argument` where no such tensor exists any more, where it ends too early, and for an address between
  elements.
  """
  @spec tensor_from_address(non_neg_integer, atom, tuple, device) :: tensor_result
  def tensor_from_address(_address, _type, _shape, _device), do: nif_error()

  @doc """
  A handle by which other processes of the system find the tensor's memory, and its size in bytes; otherwise as
  `tensor_share/1`.

  The tensor moves into memory that can be shared. Others must run as the same user, with leave to trace this process.

  ## Errors

  `:unsupported` where the device has no `VK_KHR_external_memory_fd`, and on systems other than Linux.
  """
  @spec tensor_share_ipc(ref) :: {:ok, binary, pos_integer} | error
  def tensor_share_ipc(_ref), do: nif_error()

  @doc """
  A tensor in the memory behind a handle that `tensor_share_ipc/1` gave, in this or another process. Dirty IO scheduler.

  ## Errors

  `:invalid_argument` for another binary, a process that is gone or keeps its memory to itself, another device, and
  memory that is too small; `:unsupported` as in `tensor_share_ipc/1`.
  """
  @spec tensor_from_ipc(binary, atom, tuple, device) :: tensor_result
  def tensor_from_ipc(_handle, _type, _shape, _device), do: nif_error()

  @doc """
  How a tensor lies in memory: type, shape, strides and offset in elements, bytes of the storage. One that is pending
  has no storage yet.
  """
  @spec tensor_info(ref) :: {:ok, map} | error
  def tensor_info(_ref), do: nif_error()

  @doc """
  Runs one op of Nx by its name: records it and returns a reference to memory that the device fills later.

  `type` and `shape` are those of the result. `:pressure` beside the reference asks the caller to collect garbage,
  because device memory is short, or because a large result (above 64 MiB) found no unused memory. Normal scheduler,
  below 1 ms.
  """
  @spec program_run(atom, keyword, operands, atom, tuple) :: tensor_result | :needs_compile
  def program_run(_op, _attrs, _operands, _type, _shape), do: nif_error()

  @doc """
  As `program_run/5`, and it compiles the kernel if need be. Dirty CPU scheduler.
  """
  @spec program_run_compile(atom, keyword, operands, atom, tuple) :: tensor_result
  def program_run_compile(_op, _attrs, _operands, _type, _shape), do: nif_error()

  @doc """
  As `program_run/5` for ops of several results: `types` has `{type, shape}` of each, and the answer a list of
  references. Normal scheduler, below 1 ms.
  """
  @spec program_run_all(atom, keyword, operands, [{atom, tuple}]) :: tensors_result | :needs_compile
  def program_run_all(_op, _attrs, _operands, _types), do: nif_error()

  @doc """
  As `program_run_all/4`, and it compiles the kernels if need be. Dirty CPU scheduler.
  """
  @spec program_run_all_compile(atom, keyword, operands, [{atom, tuple}]) :: tensors_result
  def program_run_all_compile(_op, _attrs, _operands, _types), do: nif_error()

  @doc """
  Leaves one op of Nx for when its result, or what depends on it, is read; otherwise as `program_run/5`. Errors of the
  op come then.

  `:full` beside the reference says that much is pending, and asks for `tensor_compute/1`. `:needs_compile` while no
  device is open. Normal scheduler, some microseconds.
  """
  @spec program_defer(atom, keyword, operands, atom, tuple) :: tensor_result | {:ok, ref, :full} | :needs_compile
  def program_defer(_op, _attrs, _operands, _type, _shape), do: nif_error()

  @doc """
  As `program_defer/5` for ops of several results.
  """
  @spec program_defer_all(atom, keyword, operands, [{atom, tuple}]) ::
          tensors_result | {:ok, [ref], :full} | :needs_compile
  def program_defer_all(_op, _attrs, _operands, _types), do: nif_error()

  @doc """
  Records what a pending tensor needs, with all pending ops that hang together with it. Does not wait for the device.
  Dirty CPU scheduler.
  """
  @spec tensor_compute(ref) :: {:ok, ref} | error
  def tensor_compute(_ref), do: nif_error()

  @doc """
  Compiles a program: an executable that any number of processes may run. Dirty CPU scheduler.

  A program is `[inputs, instructions, outputs]`: the types of the inputs,
  `[op, attributes, operands, types of the results]` for each op, and operands again. A type is `[:f32, [2, 3]]`, an
  operand `[:input, 0]` or `[:result, 3]`, where results are counted over all ops, attributes are `[[:axis, 0], ...]`.
  `:while` has the attributes `:condition` and `:body`, `:cond` has `:on_true` and `:on_false`, which are programs.
  """
  @spec program_compile(list) :: {:ok, ref} | error
  def program_compile(program), do: program_compile(program, [])

  @doc """
  As `program_compile/1`, where the inputs for which `donated` has `true` are released by a run that succeeds. Results
  have their memory where they fit and nothing else holds it. Dirty CPU scheduler.
  """
  @spec program_compile(list, [boolean]) :: {:ok, ref} | error
  def program_compile(program, donated), do: program_compile(program, donated, nil)

  @doc """
  As `program_compile/2`, for a device, where a run may take `memory` bytes besides its inputs, or as many as it likes for
  `nil`. The kind `:out_of_memory`, with `:needed_bytes`, where that can't be had. Dirty CPU scheduler.
  """
  @spec program_compile(list, [boolean], pos_integer | nil, device) :: {:ok, ref} | error
  def program_compile(program, donated, memory, device \\ nil)
  def program_compile(_program, _donated, _memory, _device), do: nif_error()

  @doc """
  As `program_compile/4`, with nothing donated, for `count` at once: each has the inputs for which `own` has `true`, with
  an axis of `count` in front, and all results have that axis. The kind `:unsupported` for ops that can't run for several
  at once. Dirty CPU scheduler.
  """
  @spec program_compile_batched(list, [boolean], pos_integer, device) :: {:ok, ref} | error
  def program_compile_batched(program, own, count, device \\ nil)
  def program_compile_batched(_program, _own, _count, _device), do: nif_error()

  @doc """
  Runs an executable on as many tensors as it has inputs: records it and returns references to memory that the device
  fills later.

  `:needs_compile` where the run must wait for the device; `executable_run_dirty/2` does. `:collect` where nothing ran
  because the caller should collect garbage first: the VM does not see how much memory the results of calls before take.
  Normal scheduler.
  """
  @spec executable_run(ref, [ref]) :: tensors_result | :needs_compile | :collect
  def executable_run(_executable, _inputs), do: nif_error()

  @doc """
  What one run of an executable does: `:commands` and `:barriers` recorded, `:waits` for the device, bytes of
  intermediate results (`:arena_bytes`) and of what each run allocates besides (`:own_bytes`), those of loops and
  branches that the host drives left out, and the most bytes that a run takes at once besides its inputs, with all of
  them (`:peak_bytes`; an estimate for factorizations that read values). What of `:own_bytes` has the memory of donated
  inputs, where nothing else holds that, is `:donated_bytes`; `:peak_bytes` does not count it. Copies of weights in other
  layouts that are kept besides, where they come again from run to run while memory is not short, take `:kept_bytes` at
  most. Normal scheduler.
  """
  @spec executable_info(ref) :: {:ok, map} | error
  def executable_info(_executable), do: nif_error()

  @doc """
  What one run of an executable does, launch by launch: maps with `:kernel` (its name and the beginning of its hash, or
  `"fill"` or `"copy"`), `:groups`, `:barrier`, `:read_bytes`, `:written_bytes`, `:flops` and `:live_bytes` (intermediate
  results that are in memory then), and maps with `:wait` for what waits for the device, with the lists of its parts.
  Dirty CPU scheduler.
  """
  @spec executable_launches(ref) :: {:ok, [map]} | error
  def executable_launches(_executable), do: nif_error()

  @doc """
  The intermediate results that one run holds where it holds most of them between two steps of the host, the largest
  first: maps with `:size_bytes`, `:made_by` and `:read_by`, the kernels that make it and that read it last, each with
  its place among the launches. Dirty CPU scheduler.
  """
  @spec executable_held(ref) :: {:ok, [map]} | error
  def executable_held(_executable), do: nif_error()

  @doc """
  Programs, as in `program_compile/1`, each with a title, as one graph in the DOT language, as the engine optimizes them
  for a device. Dirty CPU scheduler.
  """
  @spec programs_graph(String.t(), [{String.t(), list}], device) :: {:ok, String.t()} | error
  def programs_graph(_title, _programs, _device), do: nif_error()

  @doc """
  As `executable_run/2`, and it waits for the device where need be. Dirty CPU scheduler.
  """
  @spec executable_run_dirty(ref, [ref]) :: tensors_result
  def executable_run_dirty(_executable, _inputs), do: nif_error()

  @doc """
  Compiles the chain of leapfrog steps of a log-density, see `Nx.Vulkan.Chain`. Dirty CPU scheduler.

  The program, as in `program_compile/1`, takes the parameters `{d}` (f32 or f64) and what is captured, and gives the
  log-density and its gradient. `mass` is `:diagonal` or `:dense`. With the form `:workgroup` steps are one dispatch, in
  which each chain is a workgroup; with `:device` each step of each chain is a run of a compiled program; `:auto`
  chooses. Returns the chain and its form.
  """
  @spec chain_compile(list, :diagonal | :dense, :auto | form, device) :: {:ok, {ref, form}} | error
  def chain_compile(program, mass, form, device \\ nil)
  def chain_compile(_program, _mass, _form, _device), do: nif_error()

  @doc """
  Starts a chain of `steps` steps: `start` is positions and momenta `{b, d}`, the inverse mass, step sizes `{b}`.
  Returns references to positions, momenta, gradients `{b, steps, d}`, log-densities and energies `{b, steps}`, which
  the device fills later.

  `:needs_compile` where a tensor must be copied first, where the steps may take long, and always in the form `:device`;
  `chain_run_dirty/4` does it. Normal scheduler.
  """
  @spec chain_run(ref, [ref], [ref], pos_integer) :: tensors_result | :needs_compile
  def chain_run(_chain, _start, _captured, _steps), do: nif_error()

  @doc """
  As `chain_run/4`, and it compiles where need be. Dirty CPU scheduler.

  Returns `{:more, run}` where it recorded a part of the steps only, about what takes the device 50 ms:
  `chain_continue/1` goes on. A run that nobody holds any more ends with its last part.
  """
  @spec chain_run_dirty(ref, [ref], [ref], pos_integer) :: tensors_result | {:more, ref}
  def chain_run_dirty(_chain, _start, _captured, _steps), do: nif_error()

  @doc """
  Records the next part of a run of `chain_run_dirty/4` or `transition_run_dirty/5`, and waits before that where two
  parts are still to be done by the device, or where only the end of the last one tells what is left. Returns what they
  return; of a run that has ended, the same again. Dirty IO scheduler.
  """
  @spec chain_continue(ref) :: tensors_result | {:more, ref}
  def chain_continue(_run), do: nif_error()

  @doc """
  Compiles a program that takes a Markov chain from one draw to the next, see `Nx.Vulkan.NUTS`. Dirty CPU scheduler.

  The program, as in `program_compile/1`, takes the number of the draw within a call (a u32 scalar), `states` values and
  what stays the same; its first results are the next values. `own` says of every input after the first whether each
  chain has one of its own, as it has of the states. Forms are those of `chain_compile/3`.
  """
  @spec transition_compile(list, pos_integer, [boolean], :auto | form, device) :: {:ok, {ref, form}} | error
  def transition_compile(program, states, own, form, device \\ nil)
  def transition_compile(_program, _states, _own, _form, _device), do: nif_error()

  @doc """
  The form that chains of such a program take if none is asked for. Dirty CPU scheduler.
  """
  @spec transition_form(list, device) :: {:ok, form} | error
  def transition_form(program, device \\ nil)
  def transition_form(_program, _device), do: nif_error()

  @doc """
  Starts `chains` chains of `draws` draws. What each chain has of its own has the number of chains as its first axis.
  Returns references to the results of every draw, `{chains, draws, ..}`, which the device fills later. Parts of a run
  that takes longer take about `part_us` microseconds each.

  `:needs_compile` where a tensor must be copied first, where the draws may take long or have a loop of which nobody
  knows how often it runs, and always in the form `:device`; `transition_run_dirty/5` does it. Normal scheduler.
  """
  @spec transition_run(ref, [ref], pos_integer, pos_integer, pos_integer) :: tensors_result | :needs_compile
  def transition_run(_transition, _inputs, _chains, _draws, _part_us), do: nif_error()

  @doc """
  As `transition_run/5`, and it compiles where need be. Returns `{:more, run}` as `chain_run_dirty/4`. Dirty CPU
  scheduler.
  """
  @spec transition_run_dirty(ref, [ref], pos_integer, pos_integer, pos_integer) :: tensors_result | {:more, ref}
  def transition_run_dirty(_transition, _inputs, _chains, _draws, _part_us), do: nif_error()

  ## Raw buffers

  @doc """
  A buffer of `n_bytes` zeros. 0 bytes work. Dirty IO scheduler.
  """
  @spec buf_alloc(non_neg_integer) :: {:ok, ref} | failure
  def buf_alloc(n_bytes), do: n_bytes |> raw_alloc() |> collect()

  @doc """
  A buffer that holds the bytes of `binary`. Dirty IO scheduler.
  """
  @spec buf_upload(binary) :: {:ok, ref} | failure
  def buf_upload(binary), do: binary |> raw_upload() |> collect()

  @doc """
  Overwrites a buffer with as many bytes, after all calls made before. Dirty IO scheduler.

  ## Errors

  `:size_mismatch` unless `binary` is as long as the buffer.
  """
  @spec buf_upload_into(ref, binary) :: :ok | failure
  def buf_upload_into(_ref, _binary), do: nif_error()

  @doc """
  Waits for what writes the buffer and reads all of it. Dirty IO scheduler.

  ## Errors

  `:dispatch_failed` for a fault of any call made before.
  """
  @spec buf_download(ref) :: {:ok, binary} | failure
  def buf_download(_ref), do: nif_error()

  @doc """
  The size of a buffer in bytes. Normal scheduler.
  """
  @spec buf_byte_size(ref) :: non_neg_integer
  def buf_byte_size(_ref), do: nif_error()

  ## Supplied shaders

  @doc """
  The name of the device in use and its kind by Vulkan's name: `"DiscreteGpu"`, `"IntegratedGpu"`, `"VirtualGpu"`,
  `"Cpu"` or `"Other"`. Opens the device if it is not open. New programs call `Nx.Vulkan.devices/0`.
  """
  @spec device_name() :: {:ok, String.t(), String.t()} | failure
  def device_name do
    with {:ok, %{name: name, kind: kind}, _selected_by} <- device_info(), do: {:ok, name, kind}
  end

  @doc """
  Reads and checks a shader file as its first use does. Needs no device. Dirty IO scheduler.
  """
  @spec shader_check(Path.t()) :: :ok | failure
  def shader_check(spv), do: raw_check(spv, validate_spirv?())

  @doc """
  The SPIR-V module with no float operations contracted, and signed zeros, infinities and NaN kept. GLSL can't ask for
  either, and the functions of `priv/shaders/include` need both. Needs no device. Dirty CPU scheduler.
  """
  @spec shader_exact_floats(binary) :: {:ok, binary} | failure
  def shader_exact_floats(spirv), do: raw_exact_floats(spirv)

  @doc """
  `out[i] = a[i] op b[i]` for `i < n`, by a shader such as `elementwise_binary.spv` or `elementwise_binary_f64.spv`.

  Returns before the result is there. Normal scheduler; the first use of a shader and op on dirty CPU.

  ## Shapes

  All three buffers have one size, of `n` elements or more. Elements have 4 bytes, or 8 where the shader computes in f64
  on such elements. `out` may be `a` or `b`. With `n = 0` nothing happens. More elements than one dispatch takes are
  several.

  ## Op codes

  0 add, 1 multiply, 2 subtract, 3 divide, 4 pow, 5 max, 6 min, 7 equal, 8 less, 9 greater; comparisons give 1 or 0. The
  shader gets the code as specialization constant 0.

  ## Errors

  `:size_mismatch`; `:bad_input` for another op code; `:spv_read_failed`, `:dispatch_failed` as in the module's
  documentation.
  """
  @spec apply_binary(ref, ref, ref, non_neg_integer, 0..9, Path.t()) :: :ok | failure
  def apply_binary(out, a, b, n, op, spv), do: run(:binary, [out, a, b], [n], op, spv)

  @doc """
  `out[i] = op(a[i])` for `i < n`, by a shader such as `elementwise_unary.spv` or `elementwise_unary_f64.spv`.

  Shapes, errors and scheduler as `apply_binary/6`.

  ## Op codes

  0 exp, 1 log, 2 sqrt, 3 abs, 4 negate, 5 sigmoid, 6 tanh, 7 relu, 8 ceil, 9 floor, 10 sign, 11 reciprocal, 12 square,
  13 erf, 14 expm1.
  """
  @spec apply_unary(ref, ref, non_neg_integer, 0..14, Path.t()) :: :ok | failure
  def apply_unary(out, a, n, op, spv), do: run(:unary, [out, a], [n], op, spv)

  @doc """
  Reduces the middle axis of `a`, by `reduce_axis.spv`, `reduce_axis_f64.spv`, `logsumexp.spv` or `logsumexp_f64.spv`.

  Returns before the result is there. Normal scheduler; the first use of a shader on dirty CPU.

  ## Shapes

  `a` is `[outer, reduce_size, inner]`, `out` is `[outer, inner]`, both row-major; buffers may be larger. Elements as in
  `apply_binary/6`, fewer than 2^32 in `a`. Nothing reduced gives 0, -inf, +inf and 1.

  ## Op codes

  0 sum, 1 max, 2 min, 3 product; `logsumexp` takes and ignores them.

  ## Errors

  `:size_mismatch`; `:bad_input` for another op code and when `out` is `a`; `:dispatch_failed` for more than 65,535 *
  256 results on a device with the smallest limits; the others as `apply_binary/6`.
  """
  @spec reduce_axis(ref, ref, non_neg_integer, non_neg_integer, non_neg_integer, 0..3, Path.t()) :: :ok | failure
  def reduce_axis(out, a, outer, reduce_size, inner, op, spv) do
    run(:reduce_axis, [out, a], [outer, reduce_size, inner], op, spv)
  end

  @doc """
  `out[j, i] = a[i, j]`, by `transpose.spv` for elements of 4 bytes or `transpose_f64.spv` for 8.

  Returns before the result is there. Normal scheduler; the first use of a shader on dirty CPU.

  ## Shapes

  `a` is `[m, n]`, `out` is `[n, m]`, both row-major; buffers may be larger. Fewer than 2^32 elements.

  ## Errors

  As `reduce_axis/7`.
  """
  @spec transpose_2d(ref, ref, non_neg_integer, non_neg_integer, Path.t()) :: :ok | failure
  def transpose_2d(out, a, m, n, spv), do: run(:transpose, [out, a], [m, n], 0, spv)

  @doc """
  The matrix product, by `matmul.spv`, `matmul_tiled.spv`, `matmul_tiled32.spv`, `matmul_tiled16x2.spv` or
  `matmul_f64.spv`.

  A file of the name `matmul_tiled16x2.spv` computes two rows per invocation and gets half as many workgroups. Returns
  before the result is there. Normal scheduler; the first use of a shader on dirty CPU.

  ## Shapes

  `a` is `[m, k]`, `b` is `[k, n]`, `out` is `[m, n]`, all row-major; buffers may be larger. Fewer than 2^32 elements
  each. With `k = 0` the product is 0.

  ## Errors

  As `reduce_axis/7`; `:bad_input` too when `out` is `a` or `b`.
  """
  @spec matmul(ref, ref, ref, non_neg_integer, non_neg_integer, non_neg_integer, Path.t()) :: :ok | failure
  def matmul(out, a, b, m, n, k, spv), do: run(:matmul, [out, a, b], [m, n, k], 0, spv)

  ## Chains

  @doc """
  Integrates Hamilton's equations for `k` leapfrog steps in one dispatch of the shader `spv`, in f32, and waits for the
  result. Dirty IO scheduler.

  Same inputs give the same bits; the first n steps of a longer chain are the chain of n steps.

  ## Shapes

  All binaries are arrays of little-endian f32. `push` begins with `<<k::32, n_obs::32, d::32, 0::32, eps::float-32>>`
  (all little), what the shader declares behind it follows, and what is longer than the shader declares is cut off.

  | binary | elements |
  | --- | --- |
  | `q`, `p` | `d` |
  | `extras` | `n_obs + d`: observations, then the diagonal of the inverse mass matrix |
  | results q, p, gradient | `[k, d]`, row-major, the state after each step |
  | result log density | `k` |

  The shader binds q, p, extras and the four results at 0 to 6 and runs as one workgroup.

  For the families `leapfrog_chain_*.spv` in `priv/shaders`, `push` begins with `<<n::32, k::32, eps::float-32>>`, and
  `q`, `p` and `extras` (the inverse mass alone) have `n` elements, of any number. The sizes tell which of the two a
  call is.

  ## Limits

  `k` 1 to 4096, `d` 1 to 256, `n_obs` 0 or more, `push` up to 128 bytes. `eps` may be negative.

  ## Errors

  `:size_mismatch`: `q` and `p` differ in size, `d` is 0, or a binary is not as long as the header says. `:bad_input`: a
  limit is broken, `k` is not the header's, `push` is shorter than the header or than the shader declares. A family's
  call whose sizes differ is taken for one with the longer header, and so mostly is `:bad_input`. The others as in the
  module's documentation.
  """
  @spec leapfrog_chain_synth(binary, binary, binary, binary, pos_integer, Path.t()) :: {:ok, chain} | failure
  def leapfrog_chain_synth(q, p, extras, push, k, spv), do: run_chain(:f32, q, p, extras, push, k, spv)

  @doc """
  As `leapfrog_chain_synth/6` in f64: all binaries are arrays of f64, and so are `eps`, at byte 16 of `push` (at byte 8
  for a family), and what follows it.

  The device must have `shaderFloat64`.
  """
  @spec leapfrog_chain_synth_f64(binary, binary, binary, binary, pos_integer, Path.t()) :: {:ok, chain} | failure
  def leapfrog_chain_synth_f64(q, p, extras, push, k, spv), do: run_chain(:f64, q, p, extras, push, k, spv)

  @doc """
  As `leapfrog_chain_synth/6` for many instances at once, with the same bits as one after the other.

  The fourth word of `push` is their number, at least 1 and at most the number of workgroups that the device takes.
  Instances lie one after the other in every binary: `q[i * d + j]`, `extras[i * (n_obs + d) + j]`, results
  `[i * k * d + step * d + j]`, log density `[i * k + step]`. Each runs as one workgroup. Families have no batches.
  """
  @spec leapfrog_chain_synth_batch(binary, binary, binary, binary, pos_integer, Path.t()) :: {:ok, chain} | failure
  def leapfrog_chain_synth_batch(q, p, extras, push, k, spv), do: run_chain(:batch_f32, q, p, extras, push, k, spv)

  @doc """
  As `leapfrog_chain_synth_batch/6` in f64.
  """
  @spec leapfrog_chain_synth_batch_f64(binary, binary, binary, binary, pos_integer, Path.t()) :: {:ok, chain} | failure
  def leapfrog_chain_synth_batch_f64(q, p, extras, push, k, spv), do: run_chain(:batch_f64, q, p, extras, push, k, spv)

  defp run_chain(kind, q, p, extras, push, k, spv) do
    with {:error, :spv_read_failed, message} <-
           raw_chain(kind, q, p, extras, push, k, spv, validate_spirv?(), Nx.Vulkan.Devices.current()),
         do: {:error, :dispatch_failed, "read spv: " <> message}
  end

  defp run(function, buffers, counts, op, spv) do
    validate = validate_spirv?()

    with :needs_compile <- raw_apply(function, buffers, counts, op, spv, validate) do
      raw_apply_compile(function, buffers, counts, op, spv, validate)
    end
  end

  defp validate_spirv?, do: Application.get_env(:nx_vulkan, :validate_spirv, false) == true

  # The device is short of memory that references of this process may still hold.
  defp collect({:ok, ref, :pressure}) do
    :erlang.garbage_collect()
    {:ok, ref}
  end

  defp collect(result), do: result

  @doc false
  # See native/nx_vulkan_native/src/tensor.rs.
  @spec marker() :: {non_neg_integer, ref}
  def marker, do: nif_error()

  @doc false
  @spec marker_alive?(non_neg_integer) :: boolean
  def marker_alive?(_number), do: nif_error()

  @doc false
  def raw_alloc(_n_bytes), do: nif_error()
  @doc false
  def raw_upload(_binary), do: nif_error()
  @doc false
  def raw_apply(_function, _buffers, _counts, _op, _spv, _validate), do: nif_error()
  @doc false
  def raw_apply_compile(_function, _buffers, _counts, _op, _spv, _validate), do: nif_error()
  @doc false
  def raw_check(_spv, _validate), do: nif_error()
  @doc false
  def raw_exact_floats(_spirv), do: nif_error()
  @doc false
  def raw_chain(_kind, _q, _p, _extras, _push, _k, _spv, _validate, _device), do: nif_error()

  defp nif_error, do: :erlang.nif_error(:nif_not_loaded)
end
