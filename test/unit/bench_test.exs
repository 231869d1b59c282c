defmodule Nx.Vulkan.BenchTest do
  use ExUnit.Case, async: true

  # The parser of XML is no part of this application.
  Mix.ensure_application!(:xmerl)

  alias Nx.Vulkan.Bench
  alias Nx.Vulkan.Bench.{Measure, Rows, Svg, Text}

  defp measured(name, particular \\ []) do
    row = %{
      name: name,
      group: :copies,
      size: "1 Mi",
      time_s: 1.234e-3,
      bytes_per_second: 2.0e9,
      flops_per_second: nil,
      limit: :copies,
      share: 0.5,
      wrong: nil,
      left_out: nil
    }

    Map.merge(row, Map.new(particular))
  end

  describe "the rows" do
    test "have names of their own, and sizes that are powers of two" do
      rows = Rows.all()
      assert rows |> Enum.map(& &1.name) |> Enum.uniq() |> length() == length(rows)

      for row <- rows do
        for n <- [row.least, row.most], do: assert(Bitwise.band(n, n - 1) == 0, row.name)
        assert row.least <= row.most
        assert row.checked <= row.most
        assert is_binary(row.size.(row.most))
        assert row.memory.(row.least) > 0
        assert row.memory.(row.most) >= row.memory.(row.least)
        refute row.bytes && row.flops, row.name
        assert row.limit in [nil, :copies, :f32, :f16, :bf16]
      end
    end

    test "know what their arguments and results take" do
      for row <- Rows.all() do
        n = row.checked

        bytes =
          Nx.with_default_backend(Nx.BinaryBackend, fn ->
            args = row.inputs.(n) |> Tuple.to_list()
            result = Nx.Defn.jit_apply(row.reference, args, compiler: Nx.Defn.Evaluator)
            [List.to_tuple(args), result] |> Nx.Defn.Composite.flatten_list() |> Enum.map(&Nx.byte_size/1) |> Enum.sum()
          end)

        # Vectors beside matrices may be missing, and what is computed on the way may be counted.
        assert row.memory.(n) / bytes > 0.7 and row.memory.(n) / bytes < 3, row.name
      end
    end
  end

  describe "sizes" do
    defp sized(particular),
      do: Rows.row("a row", :copies, [least: 16, most: 4096, fun: &Nx.sum/1, bytes: &(8 * &1)] ++ particular)

    test "grow by the time of a call" do
      assert Measure.next_size(sized([]), 16, 0.001, 0.0041, 1.0e9) == 64
      assert Measure.next_size(sized([]), 16, 0.001, 0.0019, 1.0e9) == 16
      assert Measure.next_size(sized(grows: 3), 16, 0.001, 0.065, 1.0e9) == 64
      assert Measure.next_size(sized([]), 16, 1.0, 0.03, 1.0e9) == 16
    end

    test "stay below what the row and the memory allow" do
      assert Measure.next_size(sized([]), 16, 1.0e-9, 1.0, 1.0e9) == 4096
      assert Measure.next_size(sized([]), 16, 1.0e-9, 1.0, 8 * 100) == 64
      assert Measure.next_size(sized(most: 16), 16, 1.0e-9, 1.0, 1.0e9) == 16
    end
  end

  test "numbers that differ are told" do
    assert Measure.difference([1.0, 2.0], [1.0, 2.001], 1.0e-3) == nil
    assert Measure.difference([1.0, 2.1], [1.0, 2.0], 1.0e-3) == "number 1 is 2.1 instead of 2.0"
    assert Measure.difference([:nan], [1.0], 1.0) == "number 0 is nan instead of 1.0"
    assert Measure.difference([:infinity], [1.0], 1.0) =~ "infinity"
    assert Measure.difference([0, 0], [0, 0], 0.0) == nil
    assert Measure.difference([1], [1, 2], 0.0) == "1 numbers instead of 2"
  end

  describe "the table" do
    test "has three digits and the shortest unit" do
      assert Text.time(1.0e-7) == "0.10 us"
      assert Text.time(99.96e-6) == "100 us"
      assert Text.time(999.6e-6) == "1.00 ms"
      assert Text.time(0.0123) == "12.3 ms"
      assert Text.time(0.9996) == "1.00 s"
      assert Text.rate(999.6e6, "B/s") == "1.00 GB/s"
      assert Text.rate(999.4e6, "B/s") == "999 MB/s"
      assert Text.rate(3.35e12, "B/s") == "3.35 TB/s"
      assert Text.rate(0.5, "B/s") == "0.50 B/s"
      assert Text.rate(5.0e19, "FLOP/s") == "50000 PFLOP/s"
      assert Text.percent(0) == "0 %"
      assert Text.percent(0.0004) == "< 0.1 %"
      assert Text.percent(0.0042) == "0.4 %"
      assert Text.percent(0.0996) == "10 %"
      assert Text.percent(1.237) == "124 %"
    end

    test "stands in columns" do
      facts = %{
        device: %{name: "a device", driver: "a driver 1.0"},
        limits: %{copies: 1.0e10, f32: 2.0e11, f16: nil, bf16: nil},
        memory_bytes: 2 ** 30
      }

      assert ["a device, a driver 1.0", limits, "", columns] = Text.head(facts)
      assert limits == "Limits: copies 10.0 GB/s, f32 200 GFLOP/s; a row may take 1.0 GiB"
      assert [line] = Text.row(measured("x + 1, f32"))
      assert line =~ ~r"^x \+ 1, f32 +1 Mi +1\.23 ms +2\.00 GB/s  50 % of copies$"
      {at, _} = :binary.match(line, "50 %")
      assert {^at, _} = :binary.match(columns, "of its limit")

      assert [line] = Text.row(measured("a call", bytes_per_second: nil, share: nil, limit: nil))
      assert line =~ ~r"^a call +1 Mi +1\.23 ms +-  -$"

      for row <- Rows.all(), n <- [row.least, row.most] do
        [line] = Text.row(measured(row.name, size: row.size.(n)))
        assert {^at, _} = :binary.match(line, "50 %"), row.name
      end
    end

    test "tells what is wrong or missing" do
      wrong = measured("sort", wrong: "number 3 is 1 instead of 2")
      absent = measured("dot", size: nil, time_s: nil, bytes_per_second: nil, share: nil, left_out: "out of memory")
      assert [_, "  WRONG: number 3 is 1 instead of 2"] = Text.row(wrong)
      assert [_, "  left out: out of memory"] = Text.row(absent)
      assert Text.conclusion([wrong, absent]) == ["Left out: dot", "WRONG results: sort"]
      assert Text.conclusion([measured("sort")]) == ["All results are right."]
    end
  end

  describe "the drawing" do
    # Its texts, and how many bars there are. Any fault of XML ends the match.
    defp draw(rows) do
      svg = Svg.draw(%{device: %{name: "A <b> & C", driver: "\"d\" > 1"}, rows: rows})
      {:ok, {words, bars}, _end} = :xmerl_sax_parser.stream(svg, event_fun: &event/3, event_state: {[""], 0})
      {svg, Enum.map(words, &String.trim/1), bars}
    end

    # What the parser gives in pieces is one text.
    defp event({:characters, part}, _at, {[text | words], bars}), do: {[text <> to_string(part) | words], bars}
    defp event({:endElement, _, _, _}, _at, {words, bars}), do: {["" | words], bars}

    defp event({:startElement, _uri, name, _qualified, attributes}, _at, {words, bars}) do
      bar? = name == ~c"rect" and Enum.any?(attributes, &match?({_, _, ~c"class", ~c"bar"}, &1))
      {words, if(bar?, do: bars + 1, else: bars)}
    end

    defp event(_event, _at, state), do: state

    test "is XML with a bar for each share, for light and dark pages" do
      rows = [
        measured("x < 1 & y", share: 0.9),
        measured("a call", share: nil, bytes_per_second: nil),
        measured("sort", wrong: "number 0"),
        measured("dot", size: nil, time_s: nil, bytes_per_second: nil, share: nil, left_out: "memory"),
        measured("sum", size: nil, time_s: nil, bytes_per_second: nil, share: nil, wrong: "it failed")
      ]

      {svg, words, bars} = draw(rows)
      assert bars == 2
      assert "x < 1 & y" in words
      figures = words |> Enum.reverse() |> Enum.reject(&(&1 == ""))
      assert ["x < 1 & y", "90 %", "2.00 GB/s", "1.23 ms" | figures] = Enum.drop_while(figures, &(&1 != "x < 1 & y"))
      assert ["a call", "1.23 ms", "sort", "WRONG", "2.00 GB/s", "1.23 ms" | figures] = figures
      assert ["dot", "left out", "sum", "failed"] = figures
      assert svg =~ ~r/class="wrong"[^>]*>WRONG</
      assert svg =~ ~r/class="quiet"[^>]*>left out</
      assert svg =~ "prefers-color-scheme: dark"
    end

    test "has decades where most shares are small, and room for those above 1" do
      {_, words, 3} = draw([measured("a", share: 0.0001), measured("b", share: 0.002), measured("c", share: 1.7)])
      assert Enum.any?(words, &(&1 =~ "in decades"))
      assert "0.1 %" in words
      {svg, _, 1} = draw([measured("a", share: 1.0e-9)])
      assert svg =~ ~r/class="bar"[^>]* width="[1-9]/
      {svg, words, 2} = draw([measured("a", share: 0.4), measured("c", share: 1.7)])
      assert "150 %" in words
      for [_, width] <- Regex.scan(~r/class="bar" .*width="(\d+)"/U, svg), do: assert(String.to_integer(width) <= 400)
      assert {_, _, 0} = draw([])
    end
  end

  describe "arguments" do
    defp run(args) do
      me = self()
      status = Bench.run(args, print: &send(me, {:printed, &1}))
      assert_received {:printed, text}
      {status, text}
    end

    test "others are not taken, and the groups are named" do
      assert {0, help} = run(["--help"])
      for group <- Rows.groups(), do: assert(help =~ ~r/\b#{group}\b/)
      assert {2, ^help} = run(["again"])
      assert {2, ^help} = run(["--seconds", "soon"])
      assert {2, ^help} = run(["--seconds", "0"])
      assert {2, ^help} = run(["--help", "--json"])
      assert {2, text} = run(["--only", "sorts", "--only", "copies"])
      assert text =~ "there is no group sorts\n"
    end

    test "a file that can't be written is told before anything is measured" do
      assert {1, text} = run(["--svg", "/nonexistent/bench.svg"])
      assert text == "/nonexistent/bench.svg can't be written: no such file or directory"
    end
  end
end
