defmodule Nx.Vulkan.Device.BenchTest do
  # What is measured depends on who else uses the device.
  use ExUnit.Case, async: false

  alias Nx.Vulkan.Bench
  alias Nx.Vulkan.Bench.Rows

  @moduletag :device
  @moduletag :tmp_dir

  # Every row stays at its smallest size.
  @seconds 1.0e-6

  @tag timeout: 300_000
  test "measures all rows, prints them and draws them", %{tmp_dir: folder} do
    me = self()
    file = Path.join(folder, "bench.svg")
    status = Bench.run(["--seconds", "#{@seconds}", "--svg", file], print: &send(me, {:printed, &1}))
    text = printed()
    assert status == 0, text
    assert text =~ "All results are right."
    assert String.starts_with?(text, Nx.Vulkan.device_name())
    for row <- Rows.all(), do: assert(text =~ ~r/^#{Regex.escape(row.name)} .*\d (us|ms|s) /m)
    drawn = File.read!(file)
    for row <- Rows.all(), do: assert(drawn =~ ">#{row.name}<")
  end

  test "some rows as JSON" do
    me = self()
    args = ["--json", "--only", "calls", "--only", "transfers", "--seconds", "0.01"]
    assert Bench.run(args, print: &send(me, {:printed, &1})) == 0
    found = JSON.decode!(printed())
    assert found["device"]["name"] == Nx.Vulkan.device_name()
    assert found["limits"]["copies"] > 0
    assert ["calls", "calls", "transfers", "transfers"] = Enum.map(found["rows"], & &1["group"])
    for row <- found["rows"], do: assert(row["time_s"] > 0 and row["wrong"] == nil)
  end

  defp printed do
    receive do
      {:printed, text} -> text <> "\n" <> printed()
    after
      0 -> ""
    end
  end

  defp measure(rows, opts \\ []) do
    {:ok, found} = Bench.measure(Keyword.merge([rows: rows, seconds: @seconds], opts))
    found.rows
  end

  defp sum(particular) do
    sum = [size: &"#{&1}", least: 16, most: 32, inputs: &{Nx.iota({&1})}, fun: &Nx.sum/1, bytes: &(4 * &1)]
    Rows.row("a sum", :sums, sum ++ particular)
  end

  test "a row that computes something else is told" do
    assert [%{wrong: nil, time_s: time, size: "16"}, %{wrong: why, name: "a sum"}] =
             measure([sum([]), sum(reference: &Nx.add(Nx.sum(&1), 1))])

    assert time > 0
    assert why == "number 0 is 120 instead of 121"
  end

  test "a row that fails is told, and the others go on" do
    fails = fn _ -> raise Nx.Vulkan.Error, kind: :device_lost, op: :sum, message: "it is gone" end
    lacks = fn _ -> raise Nx.Vulkan.Error, kind: :out_of_memory, op: :sum, message: "none left" end

    assert [%{wrong: gone, time_s: nil}, %{left_out: none, wrong: nil}, %{wrong: nil, time_s: time}] =
             measure([
               sum(fun: fails, reference: &Nx.sum/1, runs: :eager),
               sum(fun: lacks, reference: &Nx.sum/1, runs: :eager),
               sum([])
             ])

    assert gone =~ "it is gone"
    assert none =~ "none left"
    assert time > 0
  end

  test "sizes stay within the memory, and a row that never fits is left out" do
    assert [%{size: "16", left_out: nil}] = measure([sum([])], memory_bytes: 100, seconds: 10.0)
    assert [%{size: "16", left_out: why, time_s: nil}] = measure([sum([])], memory_bytes: 63)
    assert why =~ "more memory"
  end

  test "without a device it says so, and ends with 1" do
    env = [
      {"MIX_ENV", to_string(Mix.env())},
      {"VK_DRIVER_FILES", "/nonexistent.json"},
      {"VK_ICD_FILENAMES", "/nonexistent.json"}
    ]

    {output, 1} = System.cmd("mix", ["nx_vulkan.bench"], env: env, stderr_to_stdout: true)
    assert output =~ "no_device"
  end
end
