defmodule Nx.Vulkan.Parity.References do
  @moduledoc """
  The plain meaning of ops, an element or a row at a time, for tensors of the host.
  """

  def group_limited_gate(logits, bias, groups, kept, k) do
    bias = Nx.to_list(bias)

    rows =
      for row <- Nx.to_list(logits) do
        scores = Enum.map(row, &(1 / (1 + :math.exp(-&1))))

        experts =
          scores |> Enum.zip_with(bias, &(&1 + &2)) |> Enum.with_index() |> Enum.chunk_every(div(length(row), groups))

        best =
          experts
          |> Enum.sort_by(
            &(&1 |> Enum.map(fn {s, _} -> s end) |> Enum.sort(:desc) |> Enum.take(2) |> Enum.sum()),
            :desc
          )

        chosen = best |> Enum.take(kept) |> Enum.concat() |> Enum.sort(:desc) |> Enum.take(k) |> Enum.map(&elem(&1, 1))
        shares = Enum.map(chosen, &Enum.at(scores, &1))
        {Enum.map(shares, &(&1 / Enum.sum(shares))), chosen}
      end

    shape = {length(rows), k}
    {shares, chosen} = Enum.unzip(rows)
    {tensor(List.flatten(shares), shape), chosen |> Nx.tensor(type: :s32) |> Nx.reshape(shape)}
  end

  @doc "Row by row."
  def grouped_dot(x, w, experts) do
    experts |> Nx.to_list() |> Enum.with_index(fn expert, row -> Nx.dot(x[row], w[expert]) end) |> Nx.stack()
  end

  @doc "Pixel by pixel."
  def im2col(x, {kh, kw}, opts) do
    {n, c, h, w} = x.shape
    [{sh, sw}, {ph, pw}, {dh, dw}] = for name <- [:strides, :padding, :dilation], do: opts[name]
    {oh, ow} = {div(h + 2 * ph - dh * (kh - 1) - 1, sh) + 1, div(w + 2 * pw - dw * (kw - 1) - 1, sw) + 1}
    pixel = elements(x)

    for b <- 0..(n - 1), f <- 0..(c - 1), i <- 0..(kh - 1), j <- 0..(kw - 1), y <- 0..(oh - 1), z <- 0..(ow - 1) do
      Map.get(pixel, [b, f, y * sh + i * dh - ph, z * sw + j * dw - pw], 0.0)
    end
    |> tensor({n, c * kh * kw, oh * ow})
  end

  @doc "Every pixel of `x` adds the kernel, times itself, to the result. Of any number of axes."
  def conv_transpose(x, kernel, opts) do
    [n, c | sizes] = Tuple.to_list(x.shape)
    [_c, filters | kernel_sizes] = Tuple.to_list(kernel.shape)
    {groups, more, weights} = {opts[:groups], opts[:output_padding], elements(kernel)}
    axes = Enum.zip([opts[:strides], opts[:dilation], opts[:padding]])

    out =
      for {{size, k, more}, {stride, dilation, padding}} <- Enum.zip(Enum.zip([sizes, kernel_sizes, more]), axes) do
        (size - 1) * stride - 2 * padding + dilation * (k - 1) + 1 + more
      end

    sums =
      for {[b, channel | at], value} <- elements(x),
          filter <- 0..(filters - 1),
          offset <- grid(kernel_sizes),
          reduce: %{} do
        sums ->
          place =
            for {i, k, {stride, dilation, padding}} <- Enum.zip([at, offset, axes]),
                do: i * stride + k * dilation - padding

          group = div(channel * groups, c)
          term = value * weights[[channel, filter | offset]]
          Map.update(sums, [b, group * filters + filter | place], term, &(&1 + term))
      end

    shape = [n, groups * filters | out]
    shape |> grid() |> Enum.map(&Map.get(sums, &1, 0.0)) |> tensor(List.to_tuple(shape))
  end

  @doc "Rows of real parts and then imaginary ones, transformed by the definition; `sign` is -1 backwards."
  def fft(x, sign) do
    {rows, width} = x.shape
    n = div(width, 2)

    for row <- Nx.to_list(x) do
      {re, im} = Enum.split(row, n)
      z = Enum.with_index(Enum.zip(re, im))

      sums =
        for k <- 0..(n - 1) do
          for {{a, b}, j} <- z, reduce: {0.0, 0.0} do
            {re, im} ->
              angle = -sign * 2 * :math.pi() * rem(j * k, n) / n
              {c, s} = {:math.cos(angle), :math.sin(angle)}
              {re + a * c - b * s, im + a * s + b * c}
          end
        end

      scale = if sign == 1, do: 1, else: n
      for part <- [0, 1], sum <- sums, do: elem(sum, part) / scale
    end
    |> List.flatten()
    |> tensor({rows, width})
  end

  @doc "GGUF's `:q8_0` and `:q4_0`: a scale in f16, then 32 integers, or 16 with another in their high halves."
  def dequantize(blocks, format) do
    {rows, groups, bytes} = blocks.shape

    for <<scale::float-little-16, rest::binary-size(bytes - 2) <- Nx.to_binary(blocks)>>, q <- integers(rest, format) do
      scale * q
    end
    |> tensor({rows, groups * 32})
  end

  defp integers(bytes, :q8_0), do: for(<<q::signed-8 <- bytes>>, do: q)

  defp integers(bytes, :q4_0) do
    for(<<_::4, q::4 <- bytes>>, do: q - 8) ++ for(<<q::4, _::4 <- bytes>>, do: q - 8)
  end

  @doc "The power of windowed frames of a list, one frequency after the other; `center?` takes off the mean of each."
  def frame_powers(x, size, hop, center?) do
    x = Nx.to_list(x)
    window = for i <- 0..(size - 1), do: 0.5 - 0.5 * :math.cos(2 * :math.pi() * i / size)

    for start <- 0..(length(x) - size)//hop do
      part = Enum.slice(x, start, size)
      mean = if center?, do: Enum.sum(part) / size, else: 0
      frame = part |> Enum.zip_with(window, &((&1 - mean) * &2)) |> Enum.with_index()

      for k <- 0..div(size, 2) do
        angle = &(2 * :math.pi() * rem(&1 * k, size) / size)
        re = Enum.sum(for {a, j} <- frame, do: a * :math.cos(angle.(j)))
        im = Enum.sum(for {a, j} <- frame, do: a * :math.sin(angle.(j)))
        re * re + im * im
      end
    end
  end

  def log_mel(x, filters, size, hop) do
    rows = frame_powers(x, size, hop, false)
    bands = Nx.to_list(filters)

    for row <- rows, band <- bands do
      :math.log(max(1.0e-10, Enum.sum(Enum.zip_with(row, band, &(&1 * &2)))))
    end
    |> tensor({length(rows), length(bands)})
  end

  def welch(x, size, rate) do
    rows = frame_powers(x, size, div(size, 2), true)
    scale = rate * Enum.sum(for i <- 0..(size - 1), do: (0.5 - 0.5 * :math.cos(2 * :math.pi() * i / size)) ** 2)
    means = Enum.zip_with(rows, &(Enum.sum(&1) / length(&1)))

    means
    |> Enum.with_index(fn mean, k -> if(k == 0 or 2 * k == size, do: mean, else: 2 * mean) / scale end)
    |> tensor({length(means)})
  end

  def nearest(x, k) do
    rows = x |> Nx.to_list() |> Enum.with_index()

    found =
      for {row, i} <- rows do
        others =
          for {other, j} <- rows, i != j, do: {:math.sqrt(Enum.sum(Enum.zip_with(row, other, &((&1 - &2) ** 2)))), j}

        others |> Enum.sort() |> Enum.take(k)
      end

    shape = {length(rows), k}
    ids = for row <- found, {_, id} <- row, do: id
    {tensor(for(row <- found, {apart, _} <- row, do: apart), shape), ids |> Nx.tensor(type: :s32) |> Nx.reshape(shape)}
  end

  @doc "NCHW to another size, a pixel at a time."
  def resize_bilinear(x, {height, width}) do
    {n, c, h, w} = x.shape
    pixel = elements(x)
    place = fn i, old, new -> min(max((i + 0.5) * old / new - 0.5, 0), old - 1) end

    for b <- 0..(n - 1), f <- 0..(c - 1), i <- 0..(height - 1), j <- 0..(width - 1) do
      [y, z] = [place.(i, h, height), place.(j, w, width)]

      Enum.sum(
        for p <- 0..(h - 1), q <- 0..(w - 1) do
          pixel[[b, f, p, q]] * max(0, 1 - abs(y - p)) * max(0, 1 - abs(z - q))
        end
      )
    end
    |> tensor({n, c, height, width})
  end

  # The elements by their places.
  defp elements(x), do: x.shape |> Tuple.to_list() |> grid() |> Enum.zip(Nx.to_flat_list(x)) |> Map.new()

  defp grid([]), do: [[]]
  defp grid([size | sizes]), do: for(i <- 0..(size - 1), rest <- grid(sizes), do: [i | rest])

  defp tensor(values, shape), do: values |> Nx.tensor(type: :f64, backend: Nx.BinaryBackend) |> Nx.reshape(shape)
end
