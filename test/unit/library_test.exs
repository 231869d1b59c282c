defmodule Nx.Vulkan.LibraryTest do
  use ExUnit.Case, async: true

  import Nx.Vulkan.Texts

  alias Nx.Vulkan.Library

  test "the library is loaded from its file" do
    assert Library.error() == nil
    assert File.regular?(Library.file())
  end

  @tag :tmp_dir
  test "what is no library is told by the linker's words", %{tmp_dir: folder} do
    path = Path.join(folder, Path.basename(Library.file()))
    assert Library.why(path) =~ path
    File.write!(path, "no library")
    assert Library.why(path) =~ path
    assert Library.why(Library.file()) =~ "its module can't be loaded: :on_load_failure"
  end

  test "a download that fails says what to do, and nothing that does not hold here" do
    error = %RuntimeError{message: "couldn't fetch NIF.\n\nYou can force the project to build with force_build"}
    said = Library.without(error, "https://example.com/v0.1.0")
    without = "nx_vulkan #{Mix.Project.config()[:version]} has no native library here.\n\ncouldn't fetch NIF.\n"
    assert_says(said, [without, "https://example.com/v0.1.0", "NX_VULKAN_BUILD=1"])
    refute said =~ "force_build"
  end

  test "a checkout builds its library" do
    assert Library.source() == "built"
    assert Mix.Project.config()[:native_library] == :built
    assert :nx_vulkan_native in Mix.Project.config()[:compilers]
  end

  # The application without its priv folder, in a VM of its own, which ends as scripts do.
  @tag :tmp_dir
  test "without the library the application starts, says what is missing, and stops", %{tmp_dir: folder} do
    File.mkdir_p!(Path.join(folder, "nx_vulkan"))
    File.cp_r!(Application.app_dir(:nx_vulkan, "ebin"), Path.join(folder, "nx_vulkan/ebin"))
    others = for path <- :code.get_path(), path = to_string(path), not (path =~ "/nx_vulkan/ebin"), do: path
    paths = Enum.flat_map(others ++ [Path.join(folder, "nx_vulkan/ebin")], &["-pa", &1])

    script = """
    Application.put_env(:nx_vulkan, :device, "0")
    Application.put_env(:nx_vulkan, :precision, :high)
    {:ok, _} = Application.ensure_all_started(:nx_vulkan)
    {:error, %Nx.Vulkan.Error{kind: :no_device, message: message}} = Nx.Vulkan.init()
    IO.puts("said: " <> message)
    [] = Nx.Vulkan.devices()
    nil = Nx.Vulkan.device_name()
    1 = Nx.Vulkan.Calibration.run([], print: &IO.puts("printed: " <> &1))
    0 = Nx.Vulkan.Cache.run([])
    :ok = Application.stop(:nx_vulkan)
    """

    {output, status} = System.cmd("elixir", paths ++ ["-e", script], stderr_to_stdout: true)
    assert status == 0, output
    file = Path.join(folder, "nx_vulkan/priv/native/test/nx_vulkan_native")

    assert_says(output, [
      ~r/said: the native library can't be loaded: .*#{Regex.escape(file)}/,
      ~r/printed: the native library can't be loaded: .*#{Regex.escape(file)}/,
      "no Vulkan device is open: the native library can't be loaded"
    ])

    refute output =~ "UndefinedFunctionError"
  end
end
