defmodule Nx.Vulkan.Bench.Text do
  @moduledoc false
  # What was measured, for people to read: functions of data.

  @name 28
  @size 37
  @time 10
  @rate 15

  # SI prefixes by powers of a thousand, up to what a device may do.
  @prefixes ["", "k", "M", "G", "T", "P"]

  @doc "What stands before the rows."
  def head(%{device: device, limits: limits, memory_bytes: memory_bytes}) do
    measured =
      for {name, key, unit} <- [
            {"copies", :copies, "B/s"},
            {"f32", :f32, "FLOP/s"},
            {"f16", :f16, "FLOP/s"},
            {"bf16", :bf16, "FLOP/s"}
          ],
          limit = limits[key],
          do: "#{name} #{rate(limit, unit)}"

    limits = if measured == [], do: "not known", else: Enum.join(measured, ", ")

    [
      "#{device.name}, #{device.driver}",
      "Limits: #{limits}; a row may take #{Nx.Vulkan.Cache.size(memory_bytes)}",
      "",
      columns(["", "size", "time", "per second", "of its limit"])
    ]
  end

  @doc "The lines of a row."
  def row(row) do
    figures = [row.name, row.size || "", row.time_s && time(row.time_s), per_second(row), share(row)]

    [columns(figures)] ++
      if(row.wrong, do: ["  WRONG: #{row.wrong}"], else: []) ++
      if(row.left_out, do: ["  left out: #{row.left_out}"], else: [])
  end

  @doc "What stands after the rows."
  def conclusion(rows) do
    wrong = for %{wrong: why, name: name} <- rows, why, do: name
    left_out = for %{left_out: why, name: name} <- rows, why, do: name

    if(left_out == [], do: [], else: ["Left out: #{Enum.join(left_out, "; ")}"]) ++
      if(wrong == [], do: ["All results are right."], else: ["WRONG results: #{Enum.join(wrong, "; ")}"])
  end

  defp columns([name, size, time, rate, share]) do
    [
      String.pad_trailing(name, @name),
      String.pad_trailing(size, @size),
      String.pad_leading(time || "-", @time),
      String.pad_leading(rate, @rate),
      "  ",
      share
    ]
    |> IO.iodata_to_binary()
    |> String.trim_trailing()
  end

  @doc "Bytes or operations per second."
  def per_second(%{flops_per_second: flops}) when is_number(flops), do: rate(flops, "FLOP/s")
  def per_second(%{bytes_per_second: bytes}) when is_number(bytes), do: rate(bytes, "B/s")
  def per_second(_row), do: "-"

  defp share(%{share: nil}), do: "-"
  defp share(%{share: share, limit: limit}), do: "#{percent(share)} of #{limit}"

  @doc "A share in percent, with a digit after the point where it is small."
  def percent(share) when share == 0, do: "0 %"
  def percent(share) when share < 0.0005, do: "< 0.1 %"
  def percent(share) when share < 0.0995, do: "#{decimal(100 * share, 1)} %"
  def percent(share), do: "#{round(100 * share)} %"

  @doc "Seconds in the unit in which they are short."
  def time(seconds) when seconds < 0.9995e-3, do: "#{three(seconds * 1.0e6)} us"
  def time(seconds) when seconds < 0.9995, do: "#{three(seconds * 1.0e3)} ms"
  def time(seconds), do: "#{three(seconds)} s"

  @doc "A number of a unit per second, with the prefix that makes it short."
  def rate(number, unit) do
    # 999.6 has the next prefix, as it would have four digits.
    thousands = max(number, 1) |> Kernel.*(1.0005) |> :math.log10() |> Kernel./(3) |> floor() |> min(5)
    "#{three(number / 1000 ** thousands)} #{Enum.at(@prefixes, thousands)}#{unit}"
  end

  # Three digits.
  defp three(number) when number < 9.995, do: decimal(number, 2)
  defp three(number) when number < 99.95, do: decimal(number, 1)
  defp three(number), do: decimal(number, 0)

  defp decimal(number, decimals), do: :erlang.float_to_binary(number / 1, decimals: decimals)
end
