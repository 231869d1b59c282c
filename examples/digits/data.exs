defmodule Digits.Data do
  @moduledoc """
  The UCI optical digits (`examples/data/README.md`): 1,797 images of 8x8 pixels from 0 to 16, and the digit that each
  one shows.
  """

  @file_name Path.expand("../data/digits.csv.gz", __DIR__)

  @doc """
  Shuffles the images by a seed and cuts them in two: `{train, test}`, each `{images, labels}`, `{n, 64}` and `{n}` of
  type u8.
  """
  def split(train_count, seed) do
    rows = @file_name |> File.read!() |> :zlib.gunzip() |> String.split("\n", trim: true)
    {train, test} = rows |> Enum.map(&row/1) |> shuffle(seed) |> Enum.split(train_count)
    {tensors(train), tensors(test)}
  end

  @doc "The numbers from 0 to n-1 in an order that the seed decides."
  def permutation(n, seed), do: shuffle(Enum.to_list(0..(n - 1)//1), seed)

  defp shuffle(list, seed) do
    {keyed, _generator} =
      Enum.map_reduce(list, :rand.seed_s(:exsss, seed), fn item, generator ->
        {key, generator} = :rand.uniform_s(generator)
        {{key, item}, generator}
      end)

    keyed |> Enum.sort() |> Enum.map(&elem(&1, 1))
  end

  defp row(line), do: line |> String.split(",") |> Enum.map(&String.to_integer/1) |> Enum.split(64)

  defp tensors(rows) do
    {images, labels} = Enum.unzip(rows)
    {Nx.tensor(images, type: :u8), labels |> Enum.concat() |> Nx.tensor(type: :u8)}
  end
end
