defmodule Nx.Vulkan.ConfigTest do
  # Changes the environment of the VM.
  use ExUnit.Case, async: false

  @variables ["NX_VULKAN_DEVICE", "NXV_DEVICE"]

  setup do
    variables = Map.new(@variables, &{&1, System.get_env(&1)})
    device = Application.get_env(:nx_vulkan, :device)

    on_exit(fn ->
      System.put_env(variables)
      if device, do: Application.put_env(:nx_vulkan, :device, device), else: Application.delete_env(:nx_vulkan, :device)
    end)

    Enum.each(@variables, &System.delete_env/1)
    Application.delete_env(:nx_vulkan, :device)
  end

  test "no device is chosen by default" do
    assert Nx.Vulkan.selector() == nil
  end

  test "the configuration chooses a device" do
    Application.put_env(:nx_vulkan, :device, "h200")
    assert Nx.Vulkan.selector() == "h200"
  end

  test "the environment goes before the configuration, unless it is empty" do
    Application.put_env(:nx_vulkan, :device, "h200")
    System.put_env("NX_VULKAN_DEVICE", "llvmpipe")
    assert Nx.Vulkan.selector() == "llvmpipe"

    System.put_env("NX_VULKAN_DEVICE", "")
    assert Nx.Vulkan.selector() == "h200"
  end

  test "the name that earlier programs give the variable" do
    Application.put_env(:nx_vulkan, :device, "h200")
    System.put_env("NXV_DEVICE", "uuid:1f2e")
    assert Nx.Vulkan.selector() == "uuid:1f2e"

    System.put_env("NX_VULKAN_DEVICE", "llvmpipe")
    assert Nx.Vulkan.selector() == "llvmpipe"
  end

  test "ops run :immediate or :deferred, and nothing else" do
    assert Nx.Vulkan.eager(:deferred, fn -> Nx.Vulkan.VulkanoBackend.eager() end) == :deferred

    assert_raise ArgumentError, "expected ops to run :immediate or :deferred, got: :lazy", fn ->
      Nx.Vulkan.eager(:lazy, fn -> flunk("was called") end)
    end
  end

  test "the precision of the VM is what the configuration or the environment said when it started" do
    for {flags, variable, precision} <- [
          {[], "", "highest"},
          {["--erl", "-nx_vulkan precision high"], "", "high"},
          {[], "high", "high"},
          {["--erl", "-nx_vulkan precision highest"], "", "highest"}
        ] do
      paths = Enum.flat_map(:code.get_path(), &["-pa", List.to_string(&1)])

      script = """
      {:ok, _} = Application.ensure_all_started(:nx_vulkan)
      Application.put_env(:nx_vulkan, :precision, :default)
      IO.write(Nx.Vulkan.Application.precision())
      """

      env = [{"NX_VULKAN_PRECISION", variable}]
      assert System.cmd("elixir", paths ++ flags ++ ["-e", script], env: env) == {precision, 0}
    end
  end

  test "attention is exact where the configuration says so" do
    paths = Enum.flat_map(:code.get_path(), &["-pa", List.to_string(&1)])

    for {form, expected} <- [{"exact", 0}, {"fused", 0}, {"quick", 1}] do
      script = "{:ok, _} = Application.ensure_all_started(:nx_vulkan)"
      flags = ["--erl", "-nx_vulkan attention #{form}", "-e", script]
      {output, status} = System.cmd("elixir", paths ++ flags, stderr_to_stdout: true)
      assert status == expected, output
      if status == 1, do: assert(output =~ "expected config :nx_vulkan, :attention to be :fused or :exact, got: :quick")
    end
  end

  test "what is no limit of a process is an error at the start" do
    paths = Enum.flat_map(:code.get_path(), &["-pa", List.to_string(&1)])

    for {bytes, expected} <- [
          {"1000", 0},
          {"0", 0},
          {"infinity", 0},
          {"1.5", 1},
          {"all", 1},
          {"#{2 ** 64}", 1}
        ] do
      script = "{:ok, _} = Application.ensure_all_started(:nx_vulkan)"
      flags = ["--erl", "-nx_vulkan process_memory_limit #{bytes}", "-e", script]
      {output, status} = System.cmd("elixir", paths ++ flags, stderr_to_stdout: true)
      assert status == expected, output

      if status == 1,
        do: assert(output =~ "expected config :nx_vulkan, :process_memory_limit to be a number of bytes below")
    end
  end

  test "the library that is loaded is the one of this Mix environment" do
    assert File.regular?(Application.app_dir(:nx_vulkan, "priv/native/test/nx_vulkan_native.so"))
  end

  @root Path.expand("../..", __DIR__)

  defp names(text, regex),
    do: regex |> Regex.scan(text, capture: :all_but_first) |> List.flatten() |> Enum.uniq() |> Enum.sort()

  defp sources(files), do: @root |> Path.join(files) |> Path.wildcard() |> Enum.map_join(&File.read!/1)

  test "guides/configuration.md lists the variables that the engine reads and the keys that the library does" do
    rows = for "| " <> row <- "guides/configuration.md" |> sources() |> String.split("\n"), do: String.split(row, "|")
    column = fn i, regex -> rows |> Enum.map_join(&Enum.at(&1, i)) |> names(regex) end

    # Those are for tests.
    variables =
      names(sources("native/*/src/**/*.rs"), ~r/"(NX_VULKAN_[A-Z_]+)"/) --
        ["NX_VULKAN_REACH", "NX_VULKAN_TEST_DEVICE", "NX_VULKAN_UPDATE_GOLDEN", "NX_VULKAN_WITHOUT"]

    assert column.(0, ~r/`(NX_VULKAN_[A-Z_]+)`/) == variables

    keys = ~r/(?:config :nx_vulkan, |get_env\(:nx_vulkan, :|:nx_vulkan \|> Application.get_env\(:)([a-z_]+)/
    assert column.(1, ~r/`:([a-z_]+)`/) == names(sources("lib/**/*.ex"), keys)
  end
end
