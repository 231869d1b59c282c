defmodule Nx.Vulkan.NUTS.Random do
  @moduledoc false

  # Random numbers of a chain on the device. They are hashes of the chain's key and of what they are for, so that no
  # state passes from one to the next: Threefry-2x32-20 (Salmon et al. 2011), which Nx.Random uses too, written without
  # loops.
  #
  # What a number is for is its first word, the number of the draw (of the try, for starts), and its second: a kind and
  # a place.

  import Nx.Defn

  # Kinds. Places are below 2^28.
  @momenta 0
  @directions 0x10000000
  @leaves 0x20000000
  @starts 0x30000000

  @rotations [[13, 15, 26, 6], [17, 29, 16, 24]]
  @parity 0x1BD11BDA

  @doc """
  Two words, u32, of the shape of `counters`.
  """
  deftransform words(key, draw, counters) do
    word = &Nx.tensor(&1, type: :u32, backend: Nx.BinaryBackend)
    {k0, k1} = {key[0], key[1]}
    keys = [k0, k1, k0 |> Nx.bitwise_xor(k1) |> Nx.bitwise_xor(word.(@parity))]
    start = {Nx.add(draw, k0), Nx.add(counters, k1)}

    Enum.reduce(0..4, start, fn group, {x0, x1} ->
      {x0, x1} =
        @rotations
        |> Enum.at(rem(group, 2))
        |> Enum.reduce({x0, x1}, fn bits, {x0, x1} ->
          x0 = Nx.add(x0, x1)
          turned = Nx.bitwise_or(Nx.left_shift(x1, word.(bits)), Nx.right_shift(x1, word.(32 - bits)))
          {x0, Nx.bitwise_xor(turned, x0)}
        end)

      injected = Nx.add(Enum.at(keys, rem(group + 2, 3)), word.(group + 1))
      {Nx.add(x0, Enum.at(keys, rem(group + 1, 3))), Nx.add(x1, injected)}
    end)
  end

  @doc """
  Standard normals, as many as `like` has elements and of its type.
  """
  defn normals(key, draw, like) do
    # Box and Muller's radius and angle, of 64 or 24 random bits each.
    places = Nx.iota(shape_of_pairs(like), type: :u32)
    uniforms = key |> words(draw, places + kind(@momenta)) |> uniform(like)
    Nx.sqrt(-2.0 * Nx.log(uniforms[0])) * Nx.cos(2.0 * pi(like) * uniforms[1])
  end

  @doc """
  The word whose bit k is the direction of the doubling k.
  """
  defn directions(key, draw) do
    {word, _} = words(key, draw, kind(@directions))
    word
  end

  @doc """
  Two numbers between 0 and 1, exclusively, of the type of `like` for a leaf of the tree.
  """
  defn leaf(key, draw, leaf, like) do
    {a, b} = words(key, draw, leaf + kind(@leaves))
    {short_uniform(a, like), short_uniform(b, like)}
  end

  @doc """
  Numbers between -1 and 1, exclusively, as many for each chain as `like` has elements and of its type. `keys` are those
  of the chains, `{chains, 2}`, and `number` counts the tries.
  """
  defn starts(keys, number, like) do
    places = Nx.iota({1, Nx.size(like)}, type: :u32) + kind(@starts)
    2.0 * (keys |> Nx.transpose() |> Nx.new_axis(2) |> words(number, places) |> uniform(like)) - 1.0
  end

  deftransformp(shape_of_pairs(like), do: {2, Nx.size(like)})
  deftransformp(kind(number), do: Nx.tensor(number, type: :u32, backend: Nx.BinaryBackend))
  deftransformp(pi(like), do: Nx.tensor(:math.pi(), type: like.type, backend: Nx.BinaryBackend))

  deftransformp uniform({high, low}, like) do
    case like.type do
      {:f, 32} -> short_uniform(high, like)
      {:f, 64} -> Nx.add(scaled(high, 32, 0.0, like), scaled(low, 64, 0.5, like))
    end
  end

  # Of 32 bits in f64, of the upper 23 in f32.
  deftransformp short_uniform(word, like) do
    case like.type do
      {:f, 32} ->
        word
        |> Nx.right_shift(Nx.tensor(9, type: :u32, backend: Nx.BinaryBackend))
        |> scaled(23, 0.5, like)

      {:f, 64} ->
        scaled(word, 32, 0.5, like)
    end
  end

  defp scaled(word, bits, plus, like) do
    [plus, scale] = for x <- [plus, 2 ** -bits], do: Nx.tensor(x, type: like.type, backend: Nx.BinaryBackend)
    word |> Nx.as_type(like.type) |> Nx.add(plus) |> Nx.multiply(scale)
  end
end
