defmodule Nx.Vulkan.Cache do
  @moduledoc """
  The cache on disk: compiled pipelines, optimized programs, code of kernels, measured numbers and compiled shaders, see
  [configuration](configuration.md#the-cache-on-disk).

      Nx.Vulkan.Cache.run(["--clear"])

  from a release does what `mix nx_vulkan.cache --clear` does. Any of the files may be deleted at any time: what is
  missing is made again. Only files that this library wrote are counted and deleted, whatever else lies in the folder.

  The files together are bounded by

      config :nx_vulkan, cache_limit: 512 * 1024 * 1024

  bytes, which is what it is unless set: when the VM stops, those that were written longest ago go first.
  """

  @limit_bytes 512 * 1024 * 1024

  # What is written under another name for longer was left there by a process that was killed.
  @abandoned_s 3600

  @typedoc "What a file holds: the name of its folder."
  @type kind :: :pipelines | :programs | :shaders | :tuning | :spv

  @typedoc "A file: what it holds, its path, its size and when it was written, in seconds of POSIX."
  @type entry :: %{
          kind: kind,
          path: Path.t(),
          size_bytes: non_neg_integer,
          written: integer
        }

  @usage """
  usage: [--clear | --trim BYTES | --help]

    --clear        deletes every file of the cache
    --trim BYTES   deletes what was written longest ago until no more than so many bytes are left
    --help         prints this

  Without any, where the cache is, how many files it has, and their size.
  """

  @doc false
  def usage, do: @usage

  @doc """
  Does what the arguments of `mix nx_vulkan.cache` say, and returns the exit status: 0, 1 where files could not be
  deleted, 2 for other arguments.

  ## Options

    * `:print` - a function of a line, `IO.puts/1` unless set
  """
  @spec run([String.t()], keyword) :: 0..2
  def run(args, opts \\ []) do
    print = Keyword.validate!(opts, print: &IO.puts/1)[:print]

    case OptionParser.parse(args, strict: [clear: :boolean, trim: :integer, help: :boolean], aliases: [h: :help]) do
      {[help: true], [], []} -> done(print.(@usage), 0)
      {[], [], []} -> done(Enum.each(lines(), print), 0)
      {[clear: true], [], []} -> clear() |> deleted(print)
      {[trim: bytes], [], []} when bytes >= 0 -> bytes |> trim() |> deleted(print)
      _other -> done(print.(@usage), 2)
    end
  end

  defp done(_printed, status), do: status

  defp deleted({gone, []}, print), do: done(print.("deleted #{count(gone)}"), 0)

  defp deleted({gone, kept}, print) do
    print.("deleted #{count(gone)}; these could not be:")
    Enum.each(kept, &print.("  #{&1.path}"))
    1
  end

  defp lines do
    all = entries()

    rows =
      for {kind, _name} <- kinds(), folder = folder(kind) do
        files = Enum.filter(all, &(&1.kind == kind))
        "#{String.pad_trailing("#{kind}", 10)} #{String.pad_trailing(count(files), 24)} #{folder}"
      end

    rows ++ ["in all     #{count(all)}; at most #{size(limit_bytes())} are kept"]
  end

  defp count([file]), do: "1 file, #{size(file.size_bytes)}"
  defp count(files), do: "#{length(files)} files, #{files |> size_bytes() |> size()}"

  @doc """
  The folder of files of a kind; nil where no home folder is known.
  """
  @spec folder(kind) :: Path.t() | nil
  def folder(:spv) do
    if variable("NX_VULKAN_CACHE_DIR") || variable("XDG_CACHE_HOME") || System.user_home(),
      do: Nx.Vulkan.Codegen.folder()
  end

  def folder(kind) when kind in [:pipelines, :programs, :shaders, :tuning],
    do: (root = root()) && Path.join(root, "#{kind}")

  @doc """
  The folder of the cache, by the rule that the engine has; nil where neither `NX_VULKAN_CACHE_DIR` nor a home folder is
  known.
  """
  @spec root() :: Path.t() | nil
  def root do
    cond do
      folder = variable("NX_VULKAN_CACHE_DIR") -> folder
      cache = variable("XDG_CACHE_HOME") -> Path.join(cache, "nx_vulkan")
      home = variable("HOME") -> Path.join([home, ".cache", "nx_vulkan"])
      true -> nil
    end
  end

  defp variable(name) do
    value = System.get_env(name, "")
    if value != "", do: value
  end

  @doc false
  # Why nothing can be kept in a folder of the cache, or nil: it is found out by writing there.
  def unwritable(kind) do
    with folder when folder != nil <- folder(kind),
         :ok <- File.mkdir_p(folder),
         probe = Path.join(folder, "#{System.pid()}-#{System.unique_integer([:positive])}.tmp"),
         :ok <- File.write(probe, "probe") do
      File.rm(probe)
      nil
    else
      nil -> "no folder is known for it: set NX_VULKAN_CACHE_DIR, or HOME"
      {:error, reason} -> "can't write to #{folder(kind)}: #{:file.format_error(reason)}"
    end
  end

  @doc """
  Every file of the cache, what was written longest ago first.
  """
  @spec entries() :: [entry]
  def entries do
    abandoned = System.os_time(:second) - @abandoned_s

    for {kind, name} <- kinds(), folder = folder(kind), file <- files(folder), state = state(file, name) do
      path = Path.join(folder, file)

      with {:ok, %{type: :regular, size: size, mtime: written}} <- File.lstat(path, time: :posix),
           true <- state == :whole or written < abandoned,
           do: %{kind: kind, path: path, size_bytes: size, written: written}
    end
    |> Enum.filter(&is_map/1)
    |> Enum.sort_by(&{&1.written, &1.path})
  end

  # What a file is for, by its folder and name.
  defp kinds do
    [
      pipelines: ~r/\A[0-9a-f]{4,}-[0-9a-f]{32}-[0-9a-f]{8}\.bin\z/,
      programs: ~r/\A[0-9a-f]{64}\.bin\z/,
      shaders: ~r/\A[0-9a-f]{64}\.bin\z/,
      tuning: ~r/\A[0-9a-f]{4,}-[0-9a-f]{32}-[0-9a-f]{8}\.json\z/,
      spv: ~r/\A(.+-)?[0-9a-f]{64}\.(spv|comp)\z/
    ]
  end

  # Whether a file is of that name, or is such a one while it is written, under another name; nil for others.
  defp state(file, name) do
    temporary = ~r/\A(.+?)(\.(bin|json|spv|comp))?\.\d+(-\d+)+\.tmp\z/

    cond do
      file =~ name -> :whole
      found = Regex.run(temporary, file) -> if named?(Enum.at(found, 1), name), do: :unfinished
      true -> nil
    end
  end

  defp named?(stem, name), do: Enum.any?(~w(.bin .json .spv .comp), &(stem <> &1 =~ name))

  defp files(folder) do
    case File.ls(folder) do
      {:ok, files} -> files
      {:error, _reason} -> []
    end
  end

  @doc """
  The bytes of files together.
  """
  @spec size_bytes([entry]) :: non_neg_integer
  def size_bytes(entries \\ entries()), do: entries |> Enum.map(& &1.size_bytes) |> Enum.sum()

  @doc """
  The most bytes that are kept when the VM stops, as the configuration says.
  """
  @spec limit_bytes() :: non_neg_integer
  def limit_bytes do
    case Application.get_env(:nx_vulkan, :cache_limit, @limit_bytes) do
      bytes when is_integer(bytes) and bytes >= 0 ->
        bytes

      other ->
        raise ArgumentError, "expected config :nx_vulkan, :cache_limit to be a number of bytes, got: #{inspect(other)}"
    end
  end

  @doc """
  Deletes every file of the cache. Returns those that are gone and those that could not be deleted.
  """
  @spec clear() :: {[entry], [entry]}
  def clear, do: delete(entries())

  @doc """
  Deletes what was written longest ago, until all files have `bytes` at most; measured numbers are small, and stay.
  Returns those that are gone and those that could not be deleted.
  """
  @spec trim(non_neg_integer) :: {[entry], [entry]}
  def trim(bytes \\ limit_bytes()) do
    entries = entries()

    entries
    |> Enum.reject(&(&1.kind == :tuning))
    |> Enum.map_reduce(size_bytes(entries), &{if(&2 > bytes, do: &1), if(&2 > bytes, do: &2 - &1.size_bytes, else: &2)})
    |> elem(0)
    |> Enum.reject(&is_nil/1)
    |> delete()
  end

  # What another process deleted meanwhile is gone, too.
  defp delete(entries), do: Enum.split_with(entries, &(File.rm(&1.path) in [:ok, {:error, :enoent}]))

  # Nodes send one message after the other, and others want to pass in between.
  @part_bytes 16 * 1024 * 1024

  @doc """
  Copies compiled pipelines, optimized programs and code of kernels that another node has and this one lacks, what was
  written last first, up to the bound of the cache. Returns the files that are new here.

  So a node that starts beside others, as one of FLAME does, compiles nothing that they have compiled, if it has their
  version of this library, device and driver; files of others are ignored when they are read. Pipelines are read when the
  device is opened, so it is called before that.

      [other | _] = Node.list()
      Nx.Vulkan.Cache.copy_from(other)

  All pipelines of a device are one file, which takes the place of this node's where it is the larger one: what only the
  smaller one had is compiled again. A copy is as old as what it is a copy of.

  ## Errors

  Raises `ErlangError` where the node can't be reached. A folder that can't be written is ignored.
  """
  @spec copy_from(node) :: [entry]
  def copy_from(node) do
    entries = entries()
    own = Map.new(entries, &{name(&1), &1.size_bytes})
    theirs = :erpc.call(node, __MODULE__, :entries, [])

    for(entry <- theirs, wanted?(name(entry)), richer?(entry, own), do: entry)
    |> Enum.reverse()
    |> Enum.map_reduce(size_bytes(entries), fn entry, sum ->
      more = entry.size_bytes - Map.get(own, name(entry), 0)
      if sum + more <= limit_bytes(), do: {copy(node, entry), sum + more}, else: {nil, sum}
    end)
    |> elem(0)
    |> Enum.reject(&is_nil/1)
  end

  # The name of other files says what is in them.
  defp richer?(%{kind: :pipelines, size_bytes: bytes} = entry, own), do: bytes > Map.get(own, name(entry), 0)
  defp richer?(entry, own), do: not is_map_key(own, name(entry))

  defp name(%{kind: kind, path: path}), do: {kind, path |> String.split(["/", "\\"]) |> List.last()}

  # Names are those of this node's kinds, whatever the other one says.
  defp wanted?({kind, file}) do
    kind in [:pipelines, :programs, :shaders] and folder(kind) != nil and file =~ kinds()[kind]
  end

  defp copy(node, %{kind: kind, size_bytes: bytes} = entry) do
    {_, file} = name = name(entry)
    part = &:erpc.call(node, __MODULE__, :part, [name, &1, @part_bytes])
    path = Path.join(folder(kind), file)
    temporary = "#{path}.#{System.pid()}-#{System.unique_integer([:positive])}.tmp"

    # It may have gone, or grown, meanwhile.
    with parts when is_list(parts) <- parts(part, bytes),
         :ok <- File.mkdir_p(folder(kind)),
         :ok <- File.write(temporary, parts),
         :ok <- File.touch(temporary, entry.written),
         :ok <- File.rename(temporary, path) do
      %{entry | path: path}
    else
      _failed ->
        File.rm(temporary)
        nil
    end
  end

  defp parts(part, bytes) do
    parts = for first <- 0..(bytes - 1)//@part_bytes, do: part.(first)
    if Enum.all?(parts, &is_binary/1) and IO.iodata_length(parts) == bytes, do: parts
  end

  @doc false
  # Runs on the node of the file: a part of it, or nil.
  def part({kind, file} = name, first, bytes) do
    with true <- wanted?(name),
         path = Path.join(folder(kind), file),
         {:ok, %{type: :regular}} <- File.lstat(path),
         {:ok, device} <- :file.open(path, [:read, :raw, :binary]) do
      read = :file.pread(device, first, bytes)
      :file.close(device)
      with {:ok, part} <- read, do: part
    else
      _missing -> nil
    end
  end

  @doc false
  def size(bytes) when bytes < 1024, do: "#{bytes} bytes"

  def size(bytes) do
    {unit, name} = Enum.find([{2 ** 30, "GiB"}, {2 ** 20, "MiB"}, {2 ** 10, "KiB"}], &(bytes >= elem(&1, 0)))
    "#{:erlang.float_to_binary(bytes / unit, decimals: 1)} #{name}"
  end
end
