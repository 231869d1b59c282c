defmodule Nx.Vulkan.Recorder do
  @moduledoc false

  # Records the ops that a function runs on `Nx.Vulkan.VulkanoBackend`, or what `Nx.Vulkan.Compiler` makes of it, as a
  # Program, with its inputs and with the results of `Nx.BinaryBackend`, and writes it to a file that the engine's tests
  # replay without Elixir.
  #
  # ## File format
  #
  # One line of JSON, the header, then the bytes of the inputs and of the expected outputs, one tensor after the other
  # in Nx's binary layout, each filled up to whole bytes. The header:
  #
  #   * `format` - `"nx_vulkan program 1"`
  #   * `name` - what was recorded
  #   * `inputs` - the types: `{"type": "f32", "shape": [2, 3]}`
  #   * `instructions` - `{"op", "attrs", "operands", "outs"}`, the last with the types of the results; an operand is
  #     `["input", n]` or `["result", n]`, where results are counted over all instructions
  #   * `outputs` - operands
  #   * `tolerances` - per output `{"absolute", "relative"}`: a float result may differ from the expected one by
  #     `absolute + relative * |expected|`

  @behaviour Nx.Vulkan.Tracer

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.{Compiler, NativeV, Ops, Tracer}
  alias Nx.Vulkan.Compiler.Lowering.Plan
  alias Nx.Vulkan.VulkanoBackend, as: B

  @format "nx_vulkan program 1"

  # The value of a traced tensor is its data on the device and its source: `{:leaf, ref}` of what no op made, or
  # `{:result, instruction, n}`, where an instruction is
  # `{serial, op, attrs, sources of the operands, types of the results}`.

  @doc """
  Runs `fun` with `inputs` (a list of tensors) on both backends, and returns the recorded Program as iodata for a file.

  `fun` gets the list of inputs and returns a tensor or a container of tensors. Its result on `Nx.BinaryBackend` is what
  the file expects.

  ## Options

    * `:units` - how many units in the last place of its type a float output may be off; 4 by default
    * `:absolute` - what it may be off besides; nothing by default
    * `:compiled` - whether the Program is that of the compiled function, which has its `while` and `cond`, instead of
      the ops that ran; `false` by default
  """
  @spec record(String.t(), [T.t()], ([T.t()] -> term), keyword) :: iodata
  def record(name, inputs, fun, opts \\ []) do
    opts = Keyword.validate!(opts, units: 4, absolute: 0.0, compiled: false)
    {captured, instructions, outputs} = if opts[:compiled], do: lower(inputs, fun), else: recorded(inputs, fun)
    expected = on_binary_backend(inputs, fun)

    header = %{
      format: @format,
      name: name,
      inputs: Enum.map(captured, &type/1),
      instructions: instructions,
      outputs: outputs,
      tolerances: Enum.map(expected, &tolerance(&1.type, opts[:units], opts[:absolute]))
    }

    payload = Enum.map(captured ++ expected, &filled(Nx.to_binary(&1)))
    [JSON.encode_to_iodata!(header), ?\n | payload]
  end

  # The Program of the compiled function. It must be one: hooks and `Nx.runtime_call` can't be recorded.
  defp lower(inputs, fun) do
    {plan, constants, _, _} = Compiler.lower_for(&fun.(Tuple.to_list(&1)), [List.to_tuple(inputs)], %{})
    %Plan{steps: [{:run, [_types, instructions, outputs], slots, _}]} = plan
    tensors = inputs ++ constants

    instructions =
      for [op, attrs, operands, outs] <- instructions do
        outs = for [type, shape] <- outs, do: %{type: type, shape: shape}
        instruction(op, Enum.map(attrs, &List.to_tuple/1), operands, outs)
      end

    {for([:input, i] <- slots, do: Enum.at(tensors, i)), instructions, outputs}
  end

  # Names as strings: a map of atoms has an order of the VM's own.
  defp instruction(op, attrs, operands, outs) do
    attrs = Map.new(attrs, fn {name, value} -> {Atom.to_string(name), value} end)
    %{op: op, attrs: attrs, operands: operands, outs: outs}
  end

  defp recorded(inputs, fun) do
    # Inputs are leaves even where two of them share storage.
    placed = Enum.map(inputs, &Nx.backend_copy(&1, B))
    traced = Tracer.capture(fun, __MODULE__)
    arguments = Enum.map(placed, &Tracer.tensor(&1, __MODULE__, leaf(&1)))
    outputs = Tracer.trace(__MODULE__, fn -> arguments |> traced.() |> flatten() |> Enum.map(&source/1) end)
    instructions(placed, outputs)
  end

  @impl true
  def constant(out, number) do
    {B.constant(out, number, []).data, source(:constant, [value: Ops.number(number, out.type)], out)}
  end

  @impl true
  def leaf(%T{data: %B{} = data} = tensor), do: {data, {:leaf, B.reference(tensor)}}

  @impl true
  def run(steps, operands, device) do
    sources =
      Enum.reduce(steps, Enum.map(operands, &source/1), fn {op, attrs, outs}, sources ->
        results(op, attrs, sources, outs)
      end)

    Enum.zip_with(device.(), sources, &{&1.data, &2})
  end

  @impl true
  def on_device(%T{data: %Tracer{value: {data, _source}}} = tensor), do: %{tensor | data: data}

  @impl true
  def read(_tensor), do: refuse("is read before it is computed")

  @impl true
  def refuse(what), do: raise(ArgumentError, "a recorded tensor #{what}")

  defp source(%T{data: %Tracer{by: __MODULE__, value: {_data, source}}}), do: source
  defp source(%T{data: %Tracer{}} = other), do: other |> Tracer.on_device!("can't be recorded") |> source()
  defp source(%T{data: %B{}} = tensor), do: {:leaf, B.reference(tensor)}
  defp source(%T{shape: {}} = scalar), do: scalar |> constant(Nx.to_number(scalar)) |> elem(1)
  defp source(other), do: other |> Nx.to_tensor() |> Nx.backend_copy(B) |> source()

  defp source(op, attrs, out), do: results(op, attrs, [], [out]) |> hd()

  defp results(op, attrs, sources, outs) do
    instruction = {System.unique_integer([:monotonic]), op, attrs, sources, Enum.map(outs, &type/1)}
    for i <- 0..(length(outs) - 1), do: {:result, instruction, i}
  end

  defp on_binary_backend(inputs, fun) do
    copies = Enum.map(inputs, &Nx.backend_copy(&1, Nx.BinaryBackend))
    with_backend(Nx.BinaryBackend, fn -> flatten(fun.(copies)) end)
  end

  defp with_backend(backend, fun) do
    previous = Nx.default_backend(backend)

    try do
      fun.()
    after
      Nx.default_backend(previous)
    end
  end

  defp flatten(result), do: Nx.Defn.Composite.flatten_list([result])

  # The instructions that the outputs need, in the order in which they ran. Inputs are those of the caller, then what
  # else no op made.
  defp instructions(placed, outputs) do
    needed = outputs |> Enum.reduce(%{}, &needed/2) |> Map.values() |> Enum.sort()
    given = Enum.map(placed, & &1.data.ref)
    read = Enum.flat_map(needed, fn {_serial, _op, _attrs, sources, _outs} -> sources end) ++ outputs
    uploaded = Enum.uniq(for {:leaf, ref} <- read, ref not in given, do: ref)
    leaves = (given ++ uploaded) |> Enum.with_index() |> Map.new()

    {starts, _count} =
      Enum.map_reduce(needed, 0, fn {serial, _, _, _, outs}, count -> {{serial, count}, count + length(outs)} end)

    starts = Map.new(starts)

    operand = fn
      {:leaf, ref} -> ["input", Map.fetch!(leaves, ref)]
      {:result, {serial, _, _, _, _}, i} -> ["result", Map.fetch!(starts, serial) + i]
    end

    instructions =
      for {_serial, op, attrs, sources, outs} <- needed, do: instruction(op, attrs, Enum.map(sources, operand), outs)

    {placed ++ Enum.map(uploaded, &tensor_of/1), instructions, Enum.map(outputs, operand)}
  end

  # Adds an instruction and what it needs, by its number.
  defp needed({:leaf, _ref}, found), do: found

  defp needed({:result, {serial, _op, _attrs, sources, _outs} = instruction, _i}, found) do
    if is_map_key(found, serial),
      do: found,
      else: Enum.reduce(sources, Map.put(found, serial, instruction), &needed/2)
  end

  defp tensor_of(ref) do
    {:ok, info} = NativeV.tensor_info(ref)
    info.shape |> List.to_tuple() |> Nx.template(String.to_existing_atom(info.type)) |> B.holding(ref)
  end

  defp type(%{type: type, shape: shape}), do: %{type: Nx.Type.to_string(type), shape: Tuple.to_list(shape)}

  # Below the smallest normal number units stop shrinking.
  defp tolerance({:c, size}, units, absolute), do: tolerance({:f, div(size, 2)}, units, absolute)
  defp tolerance({class, _}, _units, _absolute) when class in [:s, :u], do: %{absolute: 0.0, relative: 0.0}

  defp tolerance(type, units, absolute) do
    epsilon = type |> Nx.Constants.epsilon(backend: Nx.BinaryBackend) |> Nx.to_number()
    smallest = type |> Nx.Constants.smallest_positive_normal(backend: Nx.BinaryBackend) |> Nx.to_number()
    %{absolute: absolute + units * epsilon * smallest, relative: units * epsilon}
  end

  defp filled(bits) when is_binary(bits), do: bits
  defp filled(bits), do: <<bits::bitstring, 0::size(8 - rem(bit_size(bits), 8))>>
end
