defmodule Nx.Vulkan.TelemetryTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.{Error, Telemetry}

  setup context do
    test = self()
    selector = "#{context.test}"

    :telemetry.attach(selector, [:nx_vulkan, :device, :open], &__MODULE__.handle/4, {test, selector})
    on_exit(fn -> :telemetry.detach(selector) end)
    %{selector: selector}
  end

  def handle(_event, measurements, %{selector: selector, result: result}, {test, selector}) do
    send(test, {:opened, measurements, result})
  end

  def handle(_event, _measurements, _metadata, _config), do: :ok

  test "device_open/2 returns and reports what was opened", %{selector: selector} do
    assert Telemetry.device_open(selector, fn -> :ok end) == :ok
    assert_received {:opened, %{duration: duration}, :ok}
    assert is_integer(duration) and duration >= 0
  end

  test "device_open/2 returns and reports the error", %{selector: selector} do
    error = Error.exception(kind: :no_device, message: "no driver")
    assert Telemetry.device_open(selector, fn -> {:error, error} end) == {:error, error}
    assert_received {:opened, _, ^error}
  end
end
