defmodule Nx.Vulkan.Device.StorageTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Conformance

  alias Nx.Vulkan.VulkanoBackend

  @moduletag :device

  defp place(value, opts \\ []), do: Nx.tensor(value, [backend: VulkanoBackend] ++ opts)
  defp from_pointer(pointer, type, shape), do: Nx.from_pointer(VulkanoBackend, pointer, type, shape)

  describe "pointers" do
    test "share the memory, whatever the type and layout" do
      for type <- types() ++ sub_byte() do
        t = {3, 4} |> random_bits(type) |> Nx.backend_copy(VulkanoBackend)
        pointer = Nx.to_pointer(t)
        assert %Nx.Pointer{kind: :local, handle: nil, data_size: size} = pointer
        assert size == 12 * max(div(elem(type, 1), 8), 1)
        assert pointer == Nx.to_pointer(t)
        assert Nx.to_binary(from_pointer(pointer, type, {3, 4})) == Nx.to_binary(t)
        assert Nx.to_binary(from_pointer(pointer, type, {2, 6})) == Nx.to_binary(t)

        for view <- [Nx.transpose(t), Nx.reverse(t), t[[.., 1..2]], t[1], Nx.broadcast(t[[0, 0]], {2, 2}), t[[1, 1]]] do
          bits = Nx.to_binary(view)
          shared = view |> Nx.to_pointer() |> from_pointer(type, Nx.shape(view))
          assert {Nx.to_binary(shared), Nx.to_binary(view)} == {bits, bits}
        end
      end
    end

    test "keep names and options" do
      t = place([[1, 2, 3]])

      assert Nx.from_pointer({VulkanoBackend, []}, Nx.to_pointer(t), {:s, 32}, {1, 3}, names: [nil, :col]).names == [
               nil,
               :col
             ]

      assert Nx.to_pointer(t, mode: :local) == Nx.to_pointer(t)
      assert_raise ArgumentError, fn -> Nx.to_pointer(t, mode: :global) end
      assert_raise ArgumentError, fn -> Nx.to_pointer(t, kind: :local) end

      assert_raise ArgumentError, fn ->
        Nx.from_pointer({VulkanoBackend, [client: 1]}, Nx.to_pointer(t), {:s, 32}, {3})
      end
    end

    test "see what a pending op writes" do
      t = Nx.iota({100_000}, type: :f32, backend: VulkanoBackend) |> Nx.multiply(2) |> Nx.add(1)
      assert Nx.to_number(from_pointer(Nx.to_pointer(t), {:f, 32}, {100_000})[99_999]) == 199_999.0
    end

    test "may point into a tensor" do
      pointer = Nx.to_pointer(place([1, 2, 3, 4]))
      t = place([1, 2, 3, 4])
      %{address: address} = Nx.to_pointer(t)
      assert Nx.to_flat_list(from_pointer(%{pointer | address: address + 8, data_size: 8}, :s32, {2})) == [3, 4]
      assert Nx.to_flat_list(from_pointer(%Nx.Pointer{kind: :local, address: address}, :s32, {2})) == [1, 2]

      for {address, shape} <- [
            {address + 8, {3}},
            {address + 2, {1}},
            {address - 4, {1}},
            {1234, {1}},
            {2 ** 64 - 4, {2}}
          ] do
        assert_raise ArgumentError, fn -> from_pointer(%Nx.Pointer{kind: :local, address: address}, :s32, shape) end
      end

      for address <- [nil, 0, -4, 2 ** 64, "1234"] do
        assert_raise ArgumentError, fn -> from_pointer(%Nx.Pointer{kind: :local, address: address}, :s32, {1}) end
      end

      assert_raise ArgumentError, ~r/invalid pointer data_size for shape, expected: 12, got: 16/, fn ->
        from_pointer(%{pointer | address: address}, :s32, {3})
      end
    end

    test "hold as long as a tensor holds the memory" do
      t = Nx.iota({1000}, type: :s64, backend: VulkanoBackend)
      pointer = Nx.to_pointer(t)
      shared = from_pointer(pointer, :s64, {1000})
      assert Nx.backend_deallocate(t) == :ok
      again = from_pointer(pointer, :s64, {1000})
      assert Nx.backend_deallocate(shared) == :ok
      assert Nx.to_number(Nx.sum(again)) == 499_500
      assert Nx.backend_deallocate(again) == :ok
      assert_raise ArgumentError, fn -> from_pointer(pointer, :s64, {1000}) end
      assert %Nx.Vulkan.Error{kind: :released} = catch_error(Nx.to_pointer(t))
    end

    test "in tensors that processes exchange" do
      t = place([1.5, 2.5])
      pointer = Nx.to_pointer(t)

      results =
        1..20
        |> Task.async_stream(fn i -> Nx.to_flat_list(Nx.multiply(from_pointer(pointer, :f32, {2}), i)) end)
        |> Enum.map(&elem(&1, 1))

      assert results == for(i <- 1..20, do: [1.5 * i, 2.5 * i])
      assert Nx.to_flat_list(t) == [1.5, 2.5]
    end
  end

  describe "handles for other processes" do
    # What another VM reads through a handle, or the message of what it raises.
    @other_vm """
    [handle, type, shape] = System.argv()
    {:ok, _} = Application.ensure_all_started(:nx_vulkan)
    [type, shape] = for text <- [type, shape], do: text |> Code.eval_string() |> elem(0)
    pointer = %Nx.Pointer{kind: :ipc, handle: Base.decode64!(handle)}
    answer =
      try do
        t = Nx.from_pointer(Nx.Vulkan.VulkanoBackend, pointer, type, shape)
        {:ok, Nx.to_binary(t), Nx.to_binary(Nx.add(t, t))}
      rescue
        error -> {:error, error.__struct__, Exception.message(error)}
      end
    IO.puts(["answer ", answer |> :erlang.term_to_binary() |> Base.encode64()])
    """

    defp in_another_vm(handle, type, shape) do
      paths = for path <- :code.get_path(), do: ["-pa", to_string(path)]
      args = ["-e", @other_vm, Base.encode64(handle), inspect(type), inspect(shape)]
      {output, 0} = System.cmd("elixir", List.flatten(paths) ++ args, stderr_to_stdout: true)
      [_, answer] = Regex.run(~r/answer (\S+)/, output)
      answer |> Base.decode64!() |> :erlang.binary_to_term()
    end

    test "share the memory" do
      t = Nx.iota({1000}, type: :s32, backend: VulkanoBackend) |> Nx.reverse()
      bits = Nx.to_binary(t)

      assert %Nx.Pointer{kind: :ipc, address: nil, handle: handle, data_size: 4000} =
               pointer = Nx.to_pointer(t, mode: :ipc)

      assert pointer == Nx.to_pointer(t, mode: :ipc)
      assert Nx.to_binary(t) == bits
      assert Nx.to_binary(from_pointer(pointer, :s32, {10, 100})) == bits
      assert in_another_vm(handle, {:s, 32}, {1000}) == {:ok, bits, Nx.to_binary(Nx.add(t, t))}
      part = Nx.to_pointer(t[[100..102]], mode: :ipc)
      assert {:ok, <<899::32-native, 898::32-native, 897::32-native>>, _} = in_another_vm(part.handle, {:s, 32}, {3})

      assert {:error, ArgumentError, message} = in_another_vm(handle, {:s, 32}, {1001})
      assert message =~ "expected 4004 bytes, got 4000 bytes"
      assert Nx.to_number(Nx.sum(t)) == 499_500
    end

    test "are refused when they are none" do
      t = place([1, 2])
      %{handle: handle} = pointer = Nx.to_pointer(t, mode: :ipc)

      for wrong <- [
            "",
            "some-ipc-handle",
            handle <> "x",
            binary_part(handle, 1, byte_size(handle) - 1),
            :binary.copy(<<0>>, byte_size(handle))
          ] do
        assert_raise ArgumentError, fn -> from_pointer(%{pointer | handle: wrong}, :s32, {2}) end
      end

      assert_raise ArgumentError, fn -> from_pointer(pointer, :s32, {3}) end
      assert_raise ArgumentError, fn -> from_pointer(%{pointer | handle: nil}, :s32, {2}) end
      # A process that is gone: the number stands behind the eight bytes of the handle's name.
      <<name::binary-8, _process::32, rest::binary>> = handle
      gone = %{pointer | handle: <<name::binary, 0x7FFFFFF::32-little, rest::binary>>}
      assert_raise ArgumentError, ~r/process/, fn -> from_pointer(gone, :s32, {2}) end

      # The number of a descriptor that waits for ever when it is read, behind that of the process.
      timer? = &(:file.read_link(~c"/proc/self/fd/#{&1}") == {:ok, ~c"anon_inode:[timerfd]"})
      <<head::binary-12, _descriptor::32, rest::binary>> = handle
      other = <<head::binary, Enum.find(0..50, timer?)::32-little, rest::binary>>
      assert {:error, ArgumentError, _message} = in_another_vm(other, {:s, 32}, {2})

      assert Nx.backend_deallocate(t) == :ok
      assert_raise ArgumentError, fn -> from_pointer(pointer, :s32, {2}) end
      assert {:error, ArgumentError, _message} = in_another_vm(handle, {:s, 32}, {2})

      # Memory that is shared later may get the number.
      later = place([3, 4])
      assert %Nx.Pointer{} = Nx.to_pointer(later, mode: :ipc)
      assert {:error, ArgumentError, _message} = in_another_vm(handle, {:s, 32}, {2})
      assert Nx.to_flat_list(later) == [3, 4]
    end
  end

  describe "copies" do
    test "to other backends and back keep every bit" do
      for type <- types() ++ sub_byte(), shape <- [{}, {1}, {3}, {2, 3, 5}] do
        t = random_bits(shape, type)
        there = Nx.backend_copy(t, VulkanoBackend)
        assert %VulkanoBackend{} = there.data
        assert %Nx.BinaryBackend{} = Nx.backend_copy(there, Nx.BinaryBackend).data
        assert Nx.to_binary(there) == Nx.to_binary(t)
        assert Nx.to_binary(Nx.backend_copy(there, VulkanoBackend)) == Nx.to_binary(t)
        assert Nx.to_binary(Nx.backend_transfer(there, Nx.BinaryBackend)) == Nx.to_binary(t)
        assert Nx.backend_deallocate(there) == :already_deallocated
      end
    end

    test "are independent of what they were made from" do
      t = place([1, 2, 3])
      copy = Nx.backend_copy(t, {VulkanoBackend, []})
      assert Nx.backend_deallocate(t) == :ok
      assert Nx.backend_deallocate(t) == :already_deallocated
      assert Nx.to_flat_list(copy) == [1, 2, 3]
      assert Nx.backend_deallocate({copy, %{a: place(1)}}) == :ok
    end

    test "transfers within the backend keep the tensor" do
      t = place([1, 2, 3])
      assert Nx.backend_transfer(t, VulkanoBackend) == t
      assert Nx.to_flat_list(t) == [1, 2, 3]
    end

    test "serialize" do
      for type <- types() ++ sub_byte() do
        t = {3, 8} |> random_bits(type) |> Nx.backend_copy(VulkanoBackend) |> Nx.rename([:x, nil])
        container = {t, %{key: Nx.transpose(t)}}
        {first, %{key: second}} = container |> Nx.serialize() |> IO.iodata_to_binary() |> Nx.deserialize()
        assert {first.type, first.names, Nx.to_binary(first)} == {type, [:x, nil], Nx.to_binary(t)}
        assert {second.names, Nx.to_binary(second)} == {[nil, :x], Nx.to_binary(Nx.transpose(t))}
      end
    end

    test "of a part of a tensor" do
      for type <- types(), limit <- [0, 1, 3, 11, 12, 100] do
        t = random_bits({3, 4}, type)

        for f <- [& &1, &Nx.transpose/1, &Nx.reverse/1, &Nx.broadcast(&1[[0, 1]], {12})] do
          expected = Nx.to_binary(f.(t), limit: limit)
          assert Nx.to_binary(f.(Nx.backend_copy(t, VulkanoBackend)), limit: limit) == expected, inspect({type, limit})
        end
      end

      for type <- sub_byte(), limit <- [0, 1, 3, 11, 12, 100] do
        t = random_bits({3, 4}, type)
        assert Nx.to_binary(Nx.backend_copy(t, VulkanoBackend), limit: limit) == Nx.to_binary(t, limit: limit)
      end
    end

    test "in batches" do
      for type <- [{:f, 32}, {:u, 4}, {:c, 64}],
          size <- [1, 5, 6, 7],
          batch <- [1, 2, 3, 6],
          leftover <- [:repeat, :discard] do
        t = random_bits({size, 2}, type)
        batches = fn t -> t |> Nx.to_batched(batch, leftover: leftover) |> Enum.map(&{&1.shape, Nx.to_binary(&1)}) end

        result = fn t ->
          try do
            batches.(t)
          rescue
            error in ArgumentError -> error.message
          end
        end

        assert result.(Nx.backend_copy(t, VulkanoBackend)) == result.(t)
      end
    end
  end
end
