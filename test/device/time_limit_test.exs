defmodule Nx.Vulkan.TimeLimitTest do
  # VMs of their own, which take their time limit from the start.
  use ExUnit.Case, async: true

  @moduletag :device

  defp elixir(code, env) do
    paths = Path.wildcard("#{Mix.Project.build_path()}/lib/*/ebin")
    arguments = Enum.flat_map(paths, &["-pa", &1]) ++ ["-e", code]
    {output, status} = System.cmd("elixir", arguments, env: env, stderr_to_stdout: true)
    assert status == 0, output
    output
  end

  # A product that takes at least half a second.
  @code """
  {:ok, _} = Application.ensure_all_started(:nx_vulkan)
  Nx.default_backend(Nx.Vulkan.VulkanoBackend)

  defmodule Busy do
    def start(n), do: Nx.dot(Nx.broadcast(Nx.tensor(2.0, type: :f64), {n, n}), Nx.iota({n, n}, axis: 1, type: :f64))

    def read(result) do
      Nx.to_flat_list(result[0])
    rescue
      error in Nx.Vulkan.Error ->
        :timed_out = error.kind
        read(result)
    end

    def size(n \\\\ 256) do
      # The first one compiles.
      read(start(n))
      {took, _} = :timer.tc(fn -> read(start(n)) end)
      if took > 500_000, do: n, else: size(2 * n)
    end
  end

  n = Busy.size()
  result = Busy.start(n)
  parent = self()

  spawn_link(fn ->
    try do
      Nx.to_binary(result)
    rescue
      error in Nx.Vulkan.Error -> send(parent, error)
    end

    send(parent, {:read, Busy.read(result)})
  end)

  # Others run while the first one waits.
  ticks = fn ticks, count ->
    receive do
      {:read, read} -> {read, count}
    after
      1 -> ticks.(ticks, count + 1)
    end
  end

  {read, count} = ticks.(ticks, 0)
  error = receive do: (%Nx.Vulkan.Error{} = error -> error)
  IO.inspect({error.kind, error.details, count > 0})
  IO.puts(Exception.message(error))
  IO.inspect(read == for(i <- 0..(n - 1), do: 2.0 * n * i))
  IO.inspect(Busy.read(Nx.iota({1, 3})))
  """

  test "a device that takes too long is an error with a kind, and the VM answers meanwhile" do
    for {put, env} <- [
          {"Application.put_env(:nx_vulkan, :time_limit, 100)\n", []},
          {"Application.put_env(:nx_vulkan, :time_limit, 100_000)\n", [{"NX_VULKAN_TIME_LIMIT", "100"}]}
        ] do
      output = elixir(put <> @code, env)
      assert output =~ "{:timed_out, %{limit_ms: 100}, true}", output
      assert output =~ "within the time limit of 100 ms", output
      assert output =~ ~r/true\n\[0, 1, 2\]\n$/, output
    end
  end

  test "what is no number of milliseconds is refused" do
    code = "{:error, error} = Nx.Vulkan.init(); IO.puts(Exception.message(error))"
    assert elixir(code, [{"NX_VULKAN_TIME_LIMIT", "2s"}]) =~ "expected a number of milliseconds, got 2s"

    code = """
    Application.put_env(:nx_vulkan, :time_limit, :never)
    IO.inspect(Application.ensure_all_started(:nx_vulkan))
    """

    assert elixir(code, []) =~ "config :nx_vulkan, :time_limit to be a number of milliseconds or nil, got: :never"
  end
end
