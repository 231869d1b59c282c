defmodule Nx.Vulkan.WholeFile do
  @moduledoc false

  # Files that take their place when they are complete and on the disk.

  @doc """
  Writes a file beside its place with `fun`, which is given the open file and returns `:ok` or `{:error, reason}`, and
  moves it there, so that there is never half of one. What was written is removed where that fails or raises.
  """
  @spec write(Path.t(), (:file.fd() -> :ok | {:error, term})) :: :ok | {:error, term}
  def write(path, fun) do
    part = "#{path}.#{unique()}.part"

    with {:ok, file} <- :file.open(part, [:write, :raw, :binary, :exclusive]) do
      try do
        with :ok <- fun.(file),
             :ok <- :file.sync(file),
             :ok <- :file.close(file),
             do: :file.rename(part, path)
      after
        # Both find nothing where all went well.
        _ = :file.close(file)
        _ = :file.delete(part)
      end
    end
  end

  @doc """
  Letters of a name, others for each call, whatever the seed of the caller's random numbers.
  """
  @spec unique() :: String.t()
  def unique do
    {number, _} = :rand.uniform_s(2 ** 48, :rand.seed_s(:exsss))
    Integer.to_string(number, 36)
  end
end
