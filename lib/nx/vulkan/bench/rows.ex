defmodule Nx.Vulkan.Bench.Rows do
  @moduledoc false
  # What is measured, a row for each thing. Sizes are powers of two, `n` below.
  #
  #   * `:name`, `:group`
  #   * `:size` - what `n` means, as text
  #   * `:least`, `:most` - the smallest and the largest `n`; equal where the size is fixed
  #   * `:grows` - the power of `n` with which the time grows
  #   * `:inputs` - the arguments, of `n`, in operations of Nx
  #   * `:fun` - what is measured, of the arguments
  #   * `:runs` - `:compiled`, or `:eager` for what is no numerical definition
  #   * `:from` - where the arguments lie, `:device` or `:host`
  #   * `:reads` - whether calls follow one another and the `:last` is waited for, or `:each`
  #   * `:bytes`, `:flops` - what a call moves or computes at least, of `n`, or nil
  #   * `:memory` - bytes of arguments and results, of `n`: what is moved, unless something else is said
  #   * `:limit` - what bounds it: `:copies`, `:f32`, `:f16` or `:bf16`, or nil where that is not known
  #   * `:checked` - the `n` at which it is compared with `Nx.BinaryBackend`
  #   * `:reference` - what that has to compute: `:fun`, unless something else is said
  #   * `:tolerance` - the largest difference, as a part of the largest number

  import Nx.Defn

  @defaults %{
    grows: 1,
    runs: :compiled,
    from: :device,
    reads: :last,
    bytes: nil,
    flops: nil,
    memory: nil,
    limit: nil,
    checked: nil,
    reference: nil,
    tolerance: 1.0e-5
  }

  # Elements in a row of what works on rows, and of a batch of training.
  @width 1024
  @batch 128
  # Bytes of f32.
  @word 4

  @doc "All rows, in the order of the table."
  def all do
    copies() ++ reductions() ++ products() ++ structured() ++ calls() ++ transfers()
  end

  @doc "The groups of some rows, in their order."
  def groups(rows \\ all()), do: rows |> Enum.map(& &1.group) |> Enum.uniq()

  @doc "A row of what is particular to it."
  def row(name, group, particular) do
    row = Map.merge(@defaults, Map.new([name: name, group: group] ++ particular))
    %{row | memory: row.memory || row.bytes, checked: row.checked || row.least, reference: row.reference || row.fun}
  end

  defp copies do
    for {type, bytes, tolerance} <- [{:f32, 4, 1.0e-6}, {:bf16, 2, 1.0e-2}] do
      row("x + 1, #{type}", :copies,
        size: &elements/1,
        least: 1024,
        most: 2 ** 28,
        inputs: &{spread({&1}, type, 0)},
        fun: &Nx.add(&1, 1),
        bytes: &(2 * bytes * &1),
        limit: :copies,
        tolerance: tolerance
      )
    end ++
      [
        row("transpose, f32", :copies,
          size: &square/1,
          least: 32,
          most: 2 ** 14,
          grows: 2,
          inputs: &{spread({&1, &1}, :f32, 0)},
          # Without the addition it would be a view.
          fun: &Nx.add(Nx.transpose(&1), Nx.iota({1, Nx.axis_size(&1, 0)}, type: :f32)),
          bytes: &(2 * @word * &1 * &1),
          limit: :copies
        )
      ]
  end

  defp reductions do
    rows = [size: &rows_of/1, least: 4, most: 2 ** 18, inputs: &{spread({&1, @width}, :f32, 0)}, limit: :copies]
    reads = &(@word * @width * &1)
    writes = &(2 * @word * @width * &1)

    [
      row("sum of all, f32", :sums, [fun: &Nx.sum/1, bytes: reads] ++ rows),
      row("sums of rows, f32", :sums, [fun: &Nx.sum(&1, axes: [1]), bytes: reads] ++ rows),
      row("sums of columns, f32", :sums, [fun: &Nx.sum(&1, axes: [0]), bytes: reads] ++ rows),
      row("softmax, f32", :rows, [fun: &softmax/1, bytes: writes] ++ rows),
      row("layer norm, f32", :rows, [fun: &layer_norm/1, bytes: writes, tolerance: 1.0e-4] ++ rows)
    ]
  end

  defp products do
    squares =
      for {type, bytes, tolerance} <- [{:f32, 4, 1.0e-5}, {:f16, 2, 1.0e-2}, {:bf16, 2, 2.0e-2}],
          {name, least, most} <- [{"small dot", 256, 256}, {"dot", 64, 8192}] do
        row("#{name}, #{type}", :products,
          size: &square/1,
          least: least,
          most: most,
          grows: 3,
          inputs: &{spread({&1, &1}, type, 0), spread({&1, &1}, type, 1)},
          fun: &Nx.dot/2,
          flops: &(2 * &1 ** 3),
          memory: &(3 * bytes * &1 * &1),
          limit: type,
          checked: 32,
          tolerance: tolerance
        )
      end

    squares ++
      [
        row("matrix by vector, f32", :products,
          size: &square/1,
          least: 64,
          most: 2 ** 14,
          grows: 2,
          inputs: &{spread({&1, &1}, :f32, 0), spread({&1}, :f32, 1)},
          fun: &Nx.dot/2,
          bytes: &(@word * &1 * &1),
          limit: :copies
        ),
        row("3 x 3 convolution, f32", :convolutions,
          size: &"16 images of 28 x 28, #{&1} channels",
          least: 2,
          most: 1024,
          grows: 2,
          inputs: &{spread({16, &1, 28, 28}, :f32, 0), spread({&1, &1, 3, 3}, :f32, 1)},
          fun: &Nx.conv(&1, &2, padding: :same),
          flops: &(2 * 16 * 28 * 28 * 9 * &1 * &1),
          memory: &(@word * (2 * 16 * 28 * 28 * &1 + 9 * &1 * &1)),
          limit: :f32
        )
      ]
  end

  # What moves more than its bound, which is to read and write each element once.
  defp structured do
    elements = [size: &elements/1, least: 1024, most: 2 ** 26, limit: :copies]
    one = fn n -> {spread({n}, :f32, 0)} end

    [
      row("sort, f32", :order, [inputs: one, fun: &Nx.sort/1, bytes: &(2 * @word * &1), tolerance: 0.0] ++ elements),
      row(
        "cumulative sum, f32",
        :order,
        [inputs: one, fun: &Nx.cumulative_sum/1, bytes: &(2 * @word * &1)] ++ elements
      ),
      row(
        "FFT, c64",
        :transforms,
        [inputs: &{Nx.as_type(spread({&1}, :f32, 0), :c64)}, fun: &Nx.fft/1, bytes: &(4 * @word * &1), checked: 256] ++
          elements
      ),
      row(
        "gather, f32",
        :indices,
        [
          inputs: &{spread({&1}, :f32, 0), places(&1, &1)},
          fun: &Nx.gather/2,
          bytes: &(3 * @word * &1),
          tolerance: 0.0
        ] ++ elements
      ),
      # Four updates for each target, more or less.
      row(
        "indexed_add, f32",
        :indices,
        [
          inputs: &{spread({div(&1, 4)}, :f32, 0), places(&1, div(&1, 4)), spread({&1}, :f32, 1)},
          fun: &Nx.indexed_add/3,
          bytes: &div(5 * @word * &1, 2)
        ] ++ elements
      )
    ]
  end

  defp calls do
    tiny = [
      size: &elements/1,
      least: 16,
      most: 16,
      inputs: &{spread({&1}, :f32, 0), spread({&1}, :f32, 1)},
      fun: &small_call/2,
      memory: &(3 * @word * &1)
    ]

    [
      row("small compiled call", :calls, tiny),
      row("the same, each waited for", :calls, [reads: :each] ++ tiny),
      row("dense step", :training,
        size: &"2 layers of #{&1}, batch of #{@batch}",
        least: 16,
        most: 8192,
        grows: 2,
        inputs:
          &{spread({&1, &1}, :f32, 0), spread({&1, &1}, :f32, 1), spread({@batch, &1}, :f32, 2),
           spread({@batch, &1}, :f32, 3)},
        fun: &dense_step/4,
        # A product forwards and two backwards for each layer, but that of the inputs' gradient.
        flops: &(5 * 2 * @batch * &1 * &1),
        memory: &(@word * (4 * &1 * &1 + 6 * @batch * &1)),
        limit: :f32,
        tolerance: 1.0e-4
      )
    ]
  end

  defp transfers do
    bytes = [
      size: &elements/1,
      least: 1024,
      most: 2 ** 26,
      inputs: &{spread({&1}, :f32, 0)},
      runs: :eager,
      bytes: &(@word * &1),
      # Results of calls that are under way.
      memory: &(2 * @word * &1),
      tolerance: 0.0
    ]

    [
      row(
        "upload, f32",
        :transfers,
        [from: :host, fun: &Nx.backend_copy(&1, Nx.Vulkan.VulkanoBackend), reference: & &1] ++ bytes
      ),
      row("download, f32", :transfers, [fun: &Nx.backend_copy(&1, Nx.BinaryBackend), reference: & &1] ++ bytes)
    ]
  end

  ## What is computed

  defn softmax(x) do
    e = Nx.exp(x - Nx.reduce_max(x, axes: [-1], keep_axes: true))
    e / Nx.sum(e, axes: [-1], keep_axes: true)
  end

  defn layer_norm(x) do
    centred = x - Nx.mean(x, axes: [-1], keep_axes: true)
    centred * Nx.rsqrt(Nx.mean(centred * centred, axes: [-1], keep_axes: true) + 1.0e-5)
  end

  defn(small_call(x, y), do: Nx.tanh(x * 2 + y) - y)

  defn dense_step(w1, w2, x, y) do
    {loss, {g1, g2}} =
      value_and_grad({w1, w2}, fn {w1, w2} ->
        Nx.mean((x |> Nx.dot(w1) |> Nx.max(0) |> Nx.dot(w2) |> Nx.subtract(y)) ** 2)
      end)

    {loss, w1 - 0.01 * g1, w2 - 0.01 * g2}
  end

  ## Inputs, the same on every backend

  # Numbers from -0.5 to 0.5, which f32 holds to the bit, and narrow types in 6 bits.
  defp spread(shape, type, seed) do
    bits = if type == :f32, do: 24, else: 6
    shape |> hashed(seed, bits) |> Nx.as_type(:f32) |> Nx.divide(2 ** bits) |> Nx.subtract(0.5) |> Nx.as_type(type)
  end

  # So many places below a power of two.
  defp places(count, below), do: {count, 1} |> hashed(7, trunc(:math.log2(below))) |> Nx.as_type(:s32)

  # The highest bits of multiples of the golden ratio, modulo 2^32.
  defp hashed(shape, seed, bits) do
    shape
    |> Nx.iota(type: :u32)
    |> Nx.add(Nx.u32(seed * 1_000_003))
    |> Nx.multiply(Nx.u32(0x9E3779B1))
    |> Nx.right_shift(Nx.u32(32 - bits))
  end

  ## Sizes as text

  defp elements(n), do: count(n)
  defp square(n), do: "#{n} x #{n}"
  defp rows_of(n), do: "#{count(n)} rows of #{@width}"

  defp count(n) do
    cond do
      n >= 2 ** 20 -> "#{div(n, 2 ** 20)} Mi"
      n >= 2 ** 14 -> "#{div(n, 2 ** 10)} Ki"
      true -> "#{n}"
    end
  end
end
