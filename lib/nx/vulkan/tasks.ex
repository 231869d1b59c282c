defmodule Nx.Vulkan.Tasks do
  @moduledoc false

  # Tasks within a call. They end with its process, which is not to hear of them: one that traps exits would gather
  # messages of processes that it knows nothing of.

  @doc "Takes the link of tasks that have answered or were ended away, and the messages of their ends."
  @spec forget([Task.t()]) :: :ok
  def forget(tasks), do: Enum.each(tasks, &unlink(&1.pid))

  defp unlink(pid) do
    Process.unlink(pid)

    receive do
      {:EXIT, ^pid, _reason} -> :ok
    after
      0 -> :ok
    end
  end
end
