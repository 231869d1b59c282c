defmodule Nx.Vulkan.Parity.References do
  @moduledoc """
  The plain meaning of ops, an element or a row at a time, for tensors of the host.
  """

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

  # The elements by their places.
  defp elements(x), do: x.shape |> Tuple.to_list() |> grid() |> Enum.zip(Nx.to_flat_list(x)) |> Map.new()

  defp grid([]), do: [[]]
  defp grid([size | sizes]), do: for(i <- 0..(size - 1), rest <- grid(sizes), do: [i | rest])

  defp tensor(values, shape), do: values |> Nx.tensor(type: :f64, backend: Nx.BinaryBackend) |> Nx.reshape(shape)
end
