defmodule Nx.Vulkan.NoDeviceTest do
  # A VM of its own, whose Vulkan loader finds no driver.
  use ExUnit.Case, async: true

  @no_driver [
    {"VK_DRIVER_FILES", "/nonexistent/driver.json"},
    {"VK_ICD_FILENAMES", "/nonexistent/driver.json"},
    {"NX_VULKAN_VALIDATION", nil},
    {"NX_VULKAN_DEVICE", nil},
    {"NXV_DEVICE", nil}
  ]

  defp elixir(code, options \\ []) do
    paths = Path.wildcard("#{Mix.Project.build_path()}/lib/*/ebin")
    arguments = options ++ Enum.flat_map(paths, &["-pa", &1]) ++ ["-e", code]
    {output, status} = System.cmd("elixir", arguments, env: @no_driver, stderr_to_stdout: true)
    assert status == 0, output
    output
  end

  test "the application starts, and what needs a device says that there is none" do
    output =
      elixir("""
      {:ok, _} = Application.ensure_all_started(:nx_vulkan)
      [] = Nx.Vulkan.devices()
      {:error, %Nx.Vulkan.Error{kind: :no_device, op: :init} = error} = Nx.Vulkan.init()
      {:error, ^error} = Nx.Vulkan.init()
      nil = Nx.Vulkan.device_name()
      nil = Nx.Vulkan.Device.info()
      false = Nx.Vulkan.has_f64?()
      {:error, :vulkan_init_failed, message} = Nx.Vulkan.NativeV.buf_alloc(4)
      {:error, :vulkan_init_failed, ^message} = Nx.Vulkan.NativeV.buf_upload("abcd")

      for suffix <- ["", "_f64", "_batch", "_batch_f64"] do
        chain = String.to_existing_atom("leapfrog_chain_synth" <> suffix)
        {:error, :vulkan_init_failed, ^message} = apply(Nx.Vulkan.NativeV, chain, ["", "", "", "", 1, "a.spv"])
      end

      IO.puts("error: " <> Exception.message(error))
      """)

    assert output =~ ~r/error: init: .+\(no_device\)/
    assert length(String.split(output, "no Vulkan device is open")) == 2, "logged once: #{output}"
  end

  test "the application starts when the configured device is not there" do
    output =
      elixir(
        """
        {:ok, _} = Application.ensure_all_started(:nx_vulkan)
        IO.puts("started")
        """,
        ["--erl", "-nx_vulkan device <<\"h200\">>"]
      )

    assert output =~ "no Vulkan device is open"
    assert output =~ "started"
  end
end
