defmodule Nx.Vulkan.Conformance do
  @moduledoc """
  Compares what `Nx.Vulkan.VulkanoBackend` computes with what `Nx.BinaryBackend` does.

  Random values come from `:rand`, which ExUnit seeds for each test from the seed that it prints.
  """

  import ExUnit.Assertions

  alias Nx.Vulkan.VulkanoBackend

  @signed [s: 8, s: 16, s: 32, s: 64]
  @unsigned [u: 8, u: 16, u: 32, u: 64]
  @floats for {class, _bits} = type <- Nx.Vulkan.Ops.Table.types(), class not in [:s, :u, :c], do: type
  @complex [c: 64, c: 128]

  def integers, do: @signed ++ @unsigned
  def floats, do: @floats

  @doc "Floats of no more bits."
  def floats(bits), do: Enum.filter(@floats, &(elem(&1, 1) <= bits))
  def reals, do: integers() ++ @floats
  def complexes, do: @complex
  def types, do: reals() ++ @complex
  # Nx.BinaryBackend computes with these only where the tensor is a scalar.
  def sub_byte, do: [s: 2, s: 4, u: 2, u: 4]

  @doc """
  Random tensor of `Nx.BinaryBackend` with values between `low` and `high` that the type can hold; parts of complex
  numbers too.
  """
  def random(shape, type, low \\ -100, high \\ 100) do
    {low, high} = within(type, low, high)

    number =
      case type do
        {class, _} when class in [:s, :u] ->
          fn -> ceil(low) + :rand.uniform(floor(high) - ceil(low) + 1) - 1 end

        {:c, _} ->
          fn -> Complex.new(uniform(low, high), uniform(low, high)) end

        _ ->
          fn -> uniform(low, high) end
      end

    values = for _ <- 1..Nx.size(shape), do: number.()
    values |> Nx.tensor(type: type, backend: Nx.BinaryBackend) |> Nx.reshape(shape)
  end

  @doc """
  Whether the type has values between `low` and `high`.
  """
  def values_between?({:u, _}, low, high), do: floor(high) >= max(ceil(low), 0)
  def values_between?({:s, _}, low, high), do: floor(high) >= ceil(low)
  def values_between?(_type, _low, _high), do: true

  @doc """
  Random bits: any value of the type.
  """
  def random_bits(shape, {_, size} = type) do
    bytes = div(Nx.size(shape) * size + 7, 8)
    bits = Nx.size(shape) * size
    <<data::bitstring-size(^bits), _::bitstring>> = :rand.bytes(bytes)
    data |> from_bits(type) |> Nx.reshape(shape)
  end

  @doc """
  A tensor of `Nx.BinaryBackend` with the elements in `bits`, which may end within a byte.
  """
  def from_bits(bits, {_, size} = type) do
    template = Nx.template({div(bit_size(bits), size)}, type)
    Nx.BinaryBackend.from_binary(template, bits, [])
  end

  defp uniform(low, high), do: low + (high - low) * :rand.uniform()

  defp within({:u, size}, low, high), do: {max(low, 0), min(high, 2 ** size - 1)}
  defp within({:s, size}, low, high), do: {max(low, -(2 ** (size - 1))), min(high, 2 ** (size - 1) - 1)}
  defp within(_float, low, high), do: {low, high}

  @doc """
  Asserts that `fun` gives the same on both backends.

  `fun` gets `tensors`, and its result is a tensor or a container of tensors. Integers must be equal. Floats may differ
  by `:ulp` units in the last place (default 2: the device's functions are within 1, and the value of `Nx.BinaryBackend`
  is rounded or, for bf16, cut off), plus `:absolute`.
  """
  def assert_same(tensors, fun, opts \\ []) do
    expected = on(Nx.BinaryBackend, tensors, fun)
    actual = on(VulkanoBackend, tensors, fun)
    assert length(actual) == length(expected)

    for {a, e} <- Enum.zip(actual, expected) do
      assert %VulkanoBackend{} = a.data
      assert_close(Nx.backend_copy(a, Nx.BinaryBackend), e, opts, tensors)
    end
  end

  @doc """
  The function of an op: that of `Nx.Vulkan` where it has one, or else Nx's.
  """
  def call(op, args) do
    owner = if function_exported?(Code.ensure_loaded!(Nx.Vulkan), op, length(args)), do: Nx.Vulkan, else: Nx
    apply(owner, op, args)
  end

  @doc """
  The results of `fun` on copies of `tensors` on `backend`, which is the default meanwhile, as a list.
  """
  def on(backend, tensors, fun) do
    previous = Nx.default_backend(backend)

    try do
      Nx.Defn.Composite.flatten_list([apply(fun, Enum.map(tensors, &Nx.backend_copy(&1, backend)))])
    after
      Nx.default_backend(previous)
    end
  end

  @doc """
  Asserts that a tensor equals the expected one, as `assert_same/3` says.
  """
  def assert_close(actual, expected, opts \\ [], inputs \\ []) do
    assert {actual.type, actual.shape, actual.names} == {expected.type, expected.shape, expected.names}

    if Nx.to_binary(actual) != Nx.to_binary(expected) do
      pairs = Enum.zip(Nx.to_flat_list(actual), Nx.to_flat_list(expected))
      {ulp, absolute} = {Keyword.get(opts, :ulp, 2), Keyword.get(opts, :absolute, 0.0)}

      wrong =
        pairs
        |> Enum.with_index()
        |> Enum.reject(fn {{a, e}, _} -> close?(a, e, expected.type, ulp, absolute) end)

      if wrong != [] do
        {{a, e}, at} = hd(wrong)
        at_inputs = for t <- inputs, Nx.size(t) == Nx.size(actual), do: Enum.at(Nx.to_flat_list(t), at)

        flunk("""
        #{length(wrong)} of #{length(pairs)} elements of #{Nx.Type.to_string(expected.type)}#{inspect(expected.shape)} \
        differ, the first at #{at}: got #{inspect(a)}, expected #{inspect(e)}, from #{inspect(at_inputs)}
        """)
      end
    end
  end

  defp close?(same, same, _type, _ulp, _absolute), do: true

  defp close?(%Complex{} = a, %Complex{} = e, {:c, size}, ulp, absolute) do
    type = {:f, div(size, 2)}
    # The error of a complex function is relative to the whole number, not to each part.
    scale = if Enum.all?([e.re, e.im], &is_number/1), do: max(abs(e.re), abs(e.im)), else: 0.0
    slack = absolute + ulp * unit(scale, type)
    close?(a.re, e.re, type, ulp, slack) and close?(a.im, e.im, type, ulp, slack)
  end

  defp close?(a, e, {class, _} = type, ulp, absolute)
       when is_float(a) and is_float(e) and class not in [:s, :u] do
    abs(a - e) <= absolute + ulp * unit(e, type)
  end

  defp close?(_, _, _type, _ulp, _absolute), do: false

  @doc "The distance of neighbouring values near `x`. Below the smallest normal number a device may flush to zero."
  def unit(x, type) do
    {mantissa_bits, smallest_normal_exponent} = layout(type)
    exponent = if x == 0, do: smallest_normal_exponent, else: max(floor(:math.log2(abs(x))), smallest_normal_exponent)
    2.0 ** (exponent - mantissa_bits)
  end

  defp layout({:f, 64}), do: {52, -1022}
  defp layout({:f, 32}), do: {23, -126}
  defp layout({:f, 16}), do: {10, -14}
  defp layout({:bf, 16}), do: {7, -126}
  defp layout({:f, 8}), do: {2, -14}
  defp layout({:f8_e4m3fn, 8}), do: {3, -6}
end
