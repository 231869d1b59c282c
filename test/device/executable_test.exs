defmodule Nx.Vulkan.ExecutableTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.NativeV
  alias Nx.Vulkan.VulkanoBackend, as: B

  @moduletag :device

  @f32 [:f32, [3]]
  @s64 [:s64, []]

  defp tensor(value, type), do: Nx.tensor(value, type: type, backend: B)

  defp run(program, tensors) do
    {:ok, executable} = NativeV.program_compile(program)
    refs = Enum.map(tensors, & &1.data.ref)

    answer =
      case NativeV.executable_run(executable, refs) do
        again when again in [:needs_compile, :collect] -> NativeV.executable_run_dirty(executable, refs)
        answer -> answer
      end

    with {:ok, refs} <- answer, do: Enum.map(refs, &read/1)
  end

  defp read(ref) do
    {:ok, info} = NativeV.tensor_info(ref)
    {:ok, binary} = NativeV.tensor_to_binary(ref, nil)
    Nx.from_binary(binary, String.to_existing_atom(info.type), backend: Nx.BinaryBackend)
  end

  test "a program runs on its inputs" do
    add = [:add, [], [[:input, 0], [:input, 1]], [@f32]]
    sum = [:sum, [[:axes, [0]]], [[:result, 0]], [[:f32, []]]]
    program = [[@f32, @f32], [add, sum], [[:result, 1], [:result, 0], [:input, 1]]]
    [total, added, same] = run(program, [tensor([1, 2, 3], :f32), tensor([10, 20, 30], :f32)])
    assert Nx.to_flat_list(total) == [66.0]
    assert Nx.to_flat_list(added) == [11.0, 22.0, 33.0]
    assert Nx.to_flat_list(same) == [10.0, 20.0, 30.0]
  end

  test "programs nest" do
    condition = [[@s64, @s64], [[:less, [], [[:input, 0], [:input, 1]], [[:u8, []]]]], [[:result, 0]]]
    double = [:add, [], [[:input, 0], [:input, 0]], [@s64]]
    body = [[@s64, @s64], [double], [[:result, 0]]]
    loop = [:while, [[:condition, condition], [:body, body]], [[:input, 0], [:input, 1]], [@s64]]
    program = [[@s64, @s64], [loop], [[:result, 0]]]
    assert [%Nx.Tensor{} = last] = run(program, [tensor(3, :s64), tensor(1000, :s64)])
    assert Nx.to_flat_list(last) == [1536]
  end

  test "an executable says what it does" do
    steps = for i <- 0..3, do: [:add, [], [if(i == 0, do: [:input, 0], else: [:result, i - 1]), [:input, 0]], [@f32]]
    {:ok, executable} = NativeV.program_compile([[@f32], steps, [[:result, 3]]])
    assert {:ok, %{commands: commands, waits: 0, own_bytes: 12}} = NativeV.executable_info(executable)
    assert commands in 1..4
    assert {:error, :invalid_argument, _, _, _} = NativeV.executable_info(make_ref())
  end

  test "what is no program is an error" do
    for program <- [
          [],
          :program,
          [[@f32], [], [[:input, 1]]],
          [[[:f31, []]], [], []],
          [[@f32], [[:add, [], [[:input, 0], [:result, 0]], [@f32]]], [[:result, 0]]],
          [[@f32], [[:add, [], [[:input, 0], [:input, 0]], [[:f32, [4]]]]], [[:result, 0]]],
          [[@f32], [[:no_op, [], [[:input, 0]], [@f32]]], [[:result, 0]]],
          [[@f32], [[:while, [], [[:input, 0]], [@f32]]], [[:result, 0]]],
          Enum.reduce(1..5000, [], fn _, list -> [list] end)
        ] do
      assert {:error, kind, _op, message, _details} = NativeV.program_compile(program)
      assert kind in [:invalid_program, :invalid_argument, :unsupported]
      assert is_binary(message)
    end
  end

  test "inputs must be those of the program" do
    {:ok, executable} = NativeV.program_compile([[@f32], [], [[:input, 0]]])
    other = tensor([1, 2], :f32).data.ref

    for inputs <- [[], [other], [make_ref()], :inputs, [other, other]] do
      assert {:error, kind, _op, _message, _details} = NativeV.executable_run_dirty(executable, inputs)
      assert kind in [:invalid_program, :invalid_argument]
    end

    assert {:error, :invalid_argument, _, _, _} = NativeV.executable_run_dirty(make_ref(), [other])
  end
end
