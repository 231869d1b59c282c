defmodule Nx.Vulkan.Recorder do
  @moduledoc """
  Records the ops that a function runs on `Nx.Vulkan.VulkanoBackend`, or what `Nx.Vulkan.Compiler` makes of it, as a Program, with its
  inputs and with the results of `Nx.BinaryBackend`, and writes it to a file that the engine's tests replay without Elixir.

  ## File format

  One line of JSON, the header, then the bytes of the inputs and of the expected outputs, one tensor after the other in Nx's
  binary layout, each filled up to whole bytes. The header:

    * `format` - `"nx_vulkan program 1"`
    * `name` - what was recorded
    * `inputs` - the types: `{"type": "f32", "shape": [2, 3]}`
    * `instructions` - `{"op", "attrs", "operands", "outs"}`, the last with the types of the results; an operand is
      `["input", n]` or `["result", n]`, where results are counted over all instructions
    * `outputs` - operands
    * `tolerances` - per output `{"absolute", "relative"}`: a float result may differ from the expected one by
      `absolute + relative * |expected|`
  """

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.Compiler
  alias Nx.Vulkan.Compiler.Lowering.Plan
  alias Nx.Vulkan.VulkanoBackend, as: B

  @key __MODULE__
  @format "nx_vulkan program 1"

  @doc false
  def recording?, do: Process.get(@key) != nil

  @doc false
  def add(op, attrs, refs, outs) do
    Process.put(@key, [{op, attrs, refs, outs} | Process.get(@key)])
  end

  @doc """
  Runs `fun` with `inputs` (a list of tensors) on both backends, and returns the recorded Program as iodata for a file.

  `fun` gets the list of inputs and returns a tensor or a container of tensors. Its result on `Nx.BinaryBackend` is what the
  file expects.

  ## Options

    * `:units` - how many units in the last place of its type a float output may be off; 4 by default
    * `:absolute` - what it may be off besides; nothing by default
    * `:compiled` - whether the Program is that of the compiled function, which has its `while` and `cond`, instead of the ops that ran;
      `false` by default
  """
  @spec record(String.t(), [T.t()], ([T.t()] -> term), keyword) :: iodata
  def record(name, inputs, fun, opts \\ []) do
    opts = Keyword.validate!(opts, units: 4, absolute: 0.0, compiled: false)
    {captured, instructions, outputs} = if opts[:compiled], do: lower(inputs, fun), else: trace(inputs, fun)
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

  defp trace(inputs, fun) do
    placed = Enum.map(inputs, &Nx.backend_copy(&1, B))
    # Inputs are leaves even where two of them share storage.
    Process.put(@key, [])

    try do
      outputs = with_backend(B, fn -> flatten(fun.(placed)) end)
      {captured, instructions, numbers} = instructions(placed, outputs, Enum.reverse(Process.get(@key)))
      {captured, instructions, Enum.map(outputs, &Map.fetch!(numbers, &1.data.ref))}
    after
      Process.delete(@key)
    end
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

  # Keeps what the outputs need. A reference that no op made is an input: those of the caller first, then uploads.
  defp instructions(placed, outputs, ops) do
    needed =
      ops
      |> Enum.reverse()
      |> Enum.reduce(MapSet.new(outputs, & &1.data.ref), fn {_, _, refs, _} = op, needed ->
        if needed?(op, needed), do: MapSet.union(needed, MapSet.new(refs)), else: needed
      end)

    ops = Enum.filter(ops, &needed?(&1, needed))
    made = for {_, _, _, outs} <- ops, out <- outs, into: MapSet.new(), do: out.data.ref

    uploaded =
      ops
      |> Enum.flat_map(fn {_, _, refs, _} -> refs end)
      |> Enum.concat(Enum.map(outputs, & &1.data.ref))
      |> Enum.uniq()
      |> Enum.reject(&(&1 in made or Enum.any?(placed, fn t -> t.data.ref == &1 end)))
      |> Enum.map(&tensor_of/1)

    captured = placed ++ uploaded
    numbers = captured |> Enum.with_index() |> Map.new(fn {t, i} -> {t.data.ref, ["input", i]} end)

    {instructions, {numbers, _count}} =
      Enum.map_reduce(ops, {numbers, 0}, fn {op, attrs, refs, outs}, {numbers, count} ->
        instruction = instruction(op, attrs, Enum.map(refs, &Map.fetch!(numbers, &1)), Enum.map(outs, &type/1))
        numbered = for {out, i} <- Enum.with_index(outs, count), into: numbers, do: {out.data.ref, ["result", i]}
        {instruction, {numbered, count + length(outs)}}
      end)

    {captured, instructions, numbers}
  end

  defp needed?({_op, _attrs, _refs, outs}, needed), do: Enum.any?(outs, &(&1.data.ref in needed))

  defp tensor_of(ref) do
    {:ok, info} = Nx.Vulkan.NativeV.tensor_info(ref)
    %{Nx.template(List.to_tuple(info.shape), String.to_existing_atom(info.type)) | data: %B{ref: ref}}
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
