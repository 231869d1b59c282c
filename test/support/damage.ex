defmodule Nx.Vulkan.Damage do
  @moduledoc """
  Files that are damaged at random.
  """

  import ExUnit.Assertions

  @most_words div(64 * 1024 * 1024, 8)

  @doc """
  Runs `read?` so many times, which damages a file, reads it and says whether it could be read: some can, and some not.
  It runs in a process of its own, which ends where it takes more memory than a header can need, with numbers that are
  random, but the same in each run.
  """
  def some_are_read(count, read?) do
    parent = self()

    {_, monitor} =
      :erlang.spawn_opt(
        fn ->
          :rand.seed(:exsss, 5)
          send(parent, {:read, Enum.count(1..count, fn _ -> read?.() end)})
        end,
        [:monitor, max_heap_size: %{size: @most_words, kill: true, include_shared_binaries: true}]
      )

    assert_receive {:DOWN, ^monitor, :process, _, reason}, to_timeout(hour: 1)
    assert reason == :normal
    assert_received {:read, read}
    assert read in 1..(count - 1)
  end
end
