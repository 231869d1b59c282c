defmodule Nx.Vulkan.Compiler.Live do
  @moduledoc """
  How many bytes intermediate results take while each launch of a run runs, as a drawing: `Nx.Vulkan.Compiler.explain/3`.

  `:bytes` has a number for each launch, `:most` the first launch at which they are most: the number, its place and its
  kernel, or nil.
  """

  @enforce_keys [:bytes, :most]
  defstruct [:bytes, :most]

  @type t :: %__MODULE__{
          bytes: [non_neg_integer],
          most: {non_neg_integer, non_neg_integer, String.t()} | nil
        }

  # Characters for all launches, and for the most bytes.
  @columns 72
  @rows 6
  @eighths {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}

  @doc "Of launches, as `explain/3` lists them. What waits for the device is none."
  @spec new([map]) :: t
  def new(launches) do
    launches = Enum.filter(launches, &is_map_key(&1, :kernel))
    numbered = for {%{live_bytes: bytes, kernel: kernel}, at} <- Enum.with_index(launches), do: {bytes, at, kernel}
    %__MODULE__{bytes: Enum.map(launches, & &1.live_bytes), most: Enum.max_by(numbered, &elem(&1, 0), fn -> nil end)}
  end

  @doc "A drawing of ten lines at most: bars for the launches from the first to the last, and the peak."
  @spec draw(t) :: String.t()
  def draw(%__MODULE__{most: nil}), do: "no launches"
  def draw(%__MODULE__{most: {0, _, _}, bytes: bytes}), do: "no intermediate results in #{launches(bytes)}"

  def draw(%__MODULE__{bytes: bytes, most: {most, at, kernel}}) do
    columns = min(length(bytes), @columns)
    count = length(bytes)

    highest =
      bytes
      |> Enum.with_index()
      |> Enum.group_by(fn {_, i} -> div(i * columns, count) end, &elem(&1, 0))
      |> Enum.sort()
      |> Enum.map(fn {_, bytes} -> eighths(Enum.max(bytes), most) end)

    rows = for row <- (@rows - 1)..0//-1, do: Enum.map_join(highest, &elem(@eighths, min(max(&1 - row * 8, 0), 8)))
    title = size(most)
    labels = [title | List.duplicate("", @rows - 1)]
    lines = Enum.zip_with(labels, rows, &"#{String.pad_leading(&1, String.length(title))} |#{String.trim_trailing(&2)}")
    below = "#{String.pad_leading("0", String.length(title))} +#{String.duplicate("-", columns)}"
    peak = "intermediate results over #{launches(bytes)}, most at launch #{at}: #{kernel}"
    Enum.join(lines ++ [below, peak], "\n")
  end

  defp launches([_]), do: "1 launch"
  defp launches(bytes), do: "#{length(bytes)} launches"

  # What is there is seen.
  defp eighths(0, _most), do: 0
  defp eighths(bytes, most), do: max(round(bytes * @rows * 8 / most), 1)

  defp size(bytes) when bytes < 1000, do: "#{bytes} B"

  defp size(bytes) do
    {unit, name} = Enum.find([{1.0e9, "GB"}, {1.0e6, "MB"}, {1.0e3, "kB"}], fn {unit, _} -> bytes >= unit end)
    "#{:erlang.float_to_binary(bytes / unit, decimals: 2)} #{name}"
  end

  defimpl String.Chars do
    def to_string(live), do: Nx.Vulkan.Compiler.Live.draw(live)
  end

  defimpl Inspect do
    import Inspect.Algebra

    def inspect(live, _opts) do
      lines = live |> Nx.Vulkan.Compiler.Live.draw() |> String.split("\n")
      concat(["#Nx.Vulkan.Compiler.Live<", nest(concat([line() | Enum.intersperse(lines, line())]), 2), line(), ">"])
    end
  end
end
