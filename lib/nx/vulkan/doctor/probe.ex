defmodule Nx.Vulkan.Doctor.Probe do
  @moduledoc false
  # All that calls Vulkan, in a VM of its own: a driver that crashes ends that one, and one that hangs is left behind.
  # What that VM finds it writes to a file after every stage, so that the last one is known whatever happens.

  alias Nx.Vulkan.{Library, NativeV, VulkanoBackend}

  @stages ["library", "loader", "devices", "application", "open", "elementwise", "product", "sort", "memory"]

  # Flags that everybody's VM takes, such as a node's name, which is taken already.
  @no_flags for name <- [~c"ERL_FLAGS", ~c"ERL_AFLAGS", ~c"ERL_ZFLAGS"], do: {name, false}

  @doc """
  Runs the stages in another VM, with the drivers of these manifests alone if there are any, and gives what it found:
  `:ended` is `"well"`, `"crashed"` or `"hung"`, at the `:stage`, and `:said` has the last lines that it printed.

  ## Options

    * `:timeout_ms` - how long it may take
    * `:manifests` - nil for all that the loader finds
    * `:stages` - those that run; all unless set
  """
  def run(opts) do
    # What the child runs is read from there, so nobody else may have made it.
    folder = Path.join(System.tmp_dir!(), "nx_vulkan_doctor_#{Base.encode16(:crypto.strong_rand_bytes(16))}")
    File.mkdir!(folder)
    File.chmod!(folder, 0o700)
    task = Path.join(folder, "task")
    found = Path.join(folder, "found")

    content = %{
      paths: :code.get_path(),
      config: Application.get_all_env(:nx_vulkan),
      found: found,
      stages: opts[:stages] || @stages,
      timeout_ms: opts[:timeout_ms]
    }

    File.write!(task, :erlang.term_to_binary(content))

    try do
      {ended, status, said} = vm(task, opts)
      facts = read(found)
      # What ended well may still crash while it unloads its driver.
      ended = if facts.stage == "done", do: "well", else: ended
      Map.merge(facts, %{ended: ended, exit_status: status, said: last_lines(said)})
    after
      File.rm_rf(folder)
    end
  end

  defp read(found) do
    case File.read(found) do
      {:ok, binary} -> :erlang.binary_to_term(binary)
      {:error, _reason} -> %{stage: "start"}
    end
  end

  @eval """
  [F] = init:get_plain_arguments(), {ok, B} = file:read_file(F), T = binary_to_term(B),
  code:add_pathsa(maps:get(paths, T)), {ok, _} = application:ensure_all_started(elixir),
  'Elixir.Nx.Vulkan.Doctor.Probe':stages(T).
  """

  defp vm(task, opts) do
    arguments = boot() ++ ["-noinput", "-eval", String.replace(@eval, "\n", " "), "-extra", task]

    drivers =
      case opts[:manifests] do
        nil -> []
        manifests -> for name <- [~c"VK_DRIVER_FILES", ~c"VK_ICD_FILENAMES"], do: {name, joined(manifests)}
      end

    port =
      Port.open({:spawn_executable, erl()}, [
        :binary,
        :exit_status,
        :stderr_to_stdout,
        :hide,
        args: arguments,
        env: [{~c"ERL_CRASH_DUMP_BYTES", ~c"0"} | @no_flags] ++ drivers
      ])

    # It ends itself first, where it still can.
    gather(port, "", System.monotonic_time(:millisecond) + opts[:timeout_ms] + 2000)
  end

  defp joined(manifests), do: manifests |> Enum.join(Nx.Vulkan.Doctor.Host.separator()) |> to_charlist()

  defp gather(port, said, deadline) do
    receive do
      {^port, {:data, data}} -> gather(port, said <> data, deadline)
      {^port, {:exit_status, status}} -> {if(status == 124, do: "hung", else: "crashed"), status, said}
    after
      max(deadline - System.monotonic_time(:millisecond), 0) ->
        stop(port)
        {"hung", nil, said}
    end
  end

  defp stop(port) do
    with {:os_pid, pid} <- Port.info(port, :os_pid) do
      case :os.type() do
        {:win32, _} -> System.cmd("taskkill", ["/F", "/PID", "#{pid}"], stderr_to_stdout: true)
        _unix -> System.cmd("kill", ["-KILL", "#{pid}"], stderr_to_stdout: true)
      end
    end

    Port.close(port)
  rescue
    # It has ended meanwhile.
    ArgumentError -> true
  end

  # Of the Erlang that runs, which in a release is the release's own.
  defp erl do
    name = if match?({:win32, _}, :os.type()), do: "erl.exe", else: "erl"
    root = to_string(:code.root_dir())
    places = [Path.join([root, "erts-#{:erlang.system_info(:version)}", "bin", name]), Path.join([root, "bin", name])]

    Enum.find(places, &File.exists?/1) || System.find_executable("erl") ||
      raise "erl is missing in #{root}, which runs this VM"
  end

  # A release has a boot file that starts nothing, beside its own, and says where its applications are.
  defp boot do
    with {:ok, [[boot | _] | _]} <- :init.get_argument(:boot),
         clean = Path.join(Path.dirname(to_string(boot)), "start_clean"),
         true <- File.exists?(clean <> ".boot") do
      variables = with {:ok, all} <- :init.get_argument(:boot_var), do: all, else: (_none -> [])

      ["-boot", clean] ++
        for [name, value] <- variables, part <- ["-boot_var", to_string(name), to_string(value)], do: part
    else
      _default -> []
    end
  end

  defp last_lines(said) do
    said
    |> String.replace_invalid()
    |> String.split("\n", trim: true)
    |> Enum.take(-8)
    |> Enum.map(&String.slice(&1, 0, 300))
  end

  @doc "Runs the stages, in the VM for them."
  def stages(%{found: found, stages: stages, timeout_ms: timeout_ms, config: config}) do
    spawn(fn ->
      Process.sleep(timeout_ms)
      :erlang.halt(124, flush: false)
    end)

    _ = Application.load(:nx_vulkan)
    for {key, value} <- config, do: Application.put_env(:nx_vulkan, key, value)
    facts = Enum.reduce_while(stages, %{stage: "start"}, &next(&1, &2, found))
    write(found, %{facts | stage: "done"})
    :erlang.halt(0, flush: false)
  end

  defp next(stage, facts, found) do
    facts = %{facts | stage: stage}
    write(found, facts)

    case stage(stage, facts) do
      {:stop, more} -> {:halt, Map.merge(facts, more)}
      more -> {:cont, Map.merge(facts, more)}
    end
  end

  defp write(found, facts) do
    File.write!(found <> ".part", :erlang.term_to_binary(facts))
    File.rename!(found <> ".part", found)
  end

  defp stage("library", _facts) do
    case Library.error() do
      nil -> %{loads: true, library_error: nil}
      error -> {:stop, %{loads: false, library_error: error}}
    end
  end

  defp stage("loader", _facts), do: %{loader: Map.put(NativeV.device_loader(), :path, nil)}

  # From here on the loader stays in the process.
  defp stage("devices", %{loader: loader}) do
    found =
      case NativeV.device_list() do
        {:ok, devices} -> %{devices: devices, devices_error: nil}
        {:error, kind, message} -> %{devices: [], devices_error: %{kind: kind, message: message}}
      end

    Map.put(found, :loader, %{loader | path: loader_path()})
  end

  # With a configured device this opens it.
  defp stage("application", _facts) do
    case Application.ensure_all_started(:nx_vulkan) do
      {:ok, _apps} -> %{application_error: nil}
      {:error, reason} -> {:stop, %{application_error: reason |> inspect(limit: 20) |> String.slice(0, 500)}}
    end
  end

  defp stage("open", _facts) do
    case Nx.Vulkan.device_info() do
      {:ok, device} -> %{device: device, device_error: nil}
      {:error, error} -> {:stop, %{device: nil, device_error: %{kind: error.kind, message: error.message}}}
    end
  end

  defp stage("memory", _facts) do
    stats = Map.take(NativeV.device_stats(), [:in_use_bytes, :peak_bytes, :reserved_bytes, :budget_bytes])
    messages = NativeV.device_validation_messages()
    %{memory: stats, validation_messages: messages && messages |> Enum.uniq() |> Enum.map(&String.slice(&1, 0, 500))}
  end

  defp stage(check, facts), do: %{checks: Map.get(facts, :checks, []) ++ [check(check)]}

  # What the loader that this process has loaded is, where the system tells.
  defp loader_path do
    with {:ok, maps} <- File.read("/proc/self/maps"),
         [path] <- Regex.run(~r{/\S*/libvulkan\.so\S*}, maps) do
      path
    else
      _unknown -> nil
    end
  end

  defp check(name) do
    {compute, expected} = computation(name)
    {first_us, result} = :timer.tc(fn -> attempt(compute) end)
    {again_us, again} = :timer.tc(fn -> attempt(compute) end)
    error = Enum.find_value([result, again], &wrong(&1, expected))
    %{name: name, ok: error == nil, error: error, first_ms: ms(first_us), again_ms: ms(again_us)}
  end

  defp ms(us), do: Float.round(us / 1000, 2)

  defp attempt(compute) do
    {:ok, compute.()}
  rescue
    error -> {:error, error |> Exception.message() |> String.slice(0, 500)}
  end

  defp wrong({:error, message}, _expected), do: message
  defp wrong({:ok, expected}, expected), do: nil

  defp wrong({:ok, result}, expected) do
    wrong = result |> Enum.zip(expected) |> Enum.with_index() |> Enum.filter(fn {{a, b}, _i} -> a != b end)
    {{got, wanted}, place} = hd(wrong)
    "#{length(wrong)} of #{length(expected)} results are wrong, the first at #{place}: #{got} in place of #{wanted}"
  end

  # Of numbers that every type of the result holds exactly, so that any order of additions gives the same.
  defp computation("elementwise") do
    compute = fn -> iota({4096}, :f32) |> Nx.multiply(2) |> Nx.add(1) |> Nx.to_flat_list() end
    {compute, Enum.map(0..4095, &(2.0 * &1 + 1))}
  end

  defp computation("product") do
    compute = fn ->
      a = iota({64, 64}, :f32) |> Nx.remainder(11)
      a |> Nx.dot(Nx.transpose(a)) |> Nx.to_flat_list()
    end

    rows = Enum.chunk_every(Enum.map(0..4095, &rem(&1, 11)), 64)
    {compute, for(a <- rows, b <- rows, do: Enum.zip_with(a, b, &(&1 * &2)) |> Enum.sum() |> Kernel.*(1.0))}
  end

  defp computation("sort") do
    numbers = Enum.map(0..999, &rem(&1 * 7919, 1009))
    compute = fn -> numbers |> Nx.tensor(type: :s32, backend: VulkanoBackend) |> Nx.sort() |> Nx.to_flat_list() end
    {compute, Enum.sort(numbers)}
  end

  defp iota(shape, type), do: Nx.iota(shape, type: type, backend: VulkanoBackend)
end
