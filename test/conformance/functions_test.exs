defmodule Nx.Vulkan.Conformance.FunctionsTest do
  # Functions of Nx.Vulkan: op by op and compiled on the device, and their steps in ops of Nx elsewhere.
  use ExUnit.Case, async: true
  use ExUnitProperties

  defmodule Looped do
    import Nx.Defn

    defn places(row, values) do
      {_, places, _, _} =
        while {i = 0, places = Nx.Vulkan.searchsorted(row, values), row, values}, i < 3 do
          more = if Nx.any(places > 4), do: Nx.Vulkan.searchsorted(row, values + i, side: :right), else: places + 1
          {i + 1, places + more, row, values}
        end

      places
    end
  end

  import Nx.Vulkan.Conformance
  alias Nx.Vulkan.VulkanoBackend

  @moduletag :device
  @moduletag timeout: 600_000

  doctest Nx.Vulkan

  # What `fun` gives on the device, where all ways have the same bits if it does nothing but the op, and on the host.
  defp ways(tensors, fun, opts \\ []) do
    jit = &Nx.Defn.jit(fun, compiler: &1)
    place = fn f -> for t <- on(VulkanoBackend, tensors, f), do: Nx.backend_copy(t, Nx.BinaryBackend) end
    [eager | others] = Enum.map([fun, deferred(fun), jit.(Nx.Vulkan.Compiler)], place)
    [direct, evaluated] = for f <- [fun, jit.(Nx.Defn.Evaluator)], do: on(Nx.BinaryBackend, tensors, f)

    for other <- others, {a, b} <- Enum.zip(eager, other) do
      if Keyword.get(opts, :same_bits, true), do: assert(Nx.to_binary(a) == Nx.to_binary(b))
      assert_close(b, a, opts, tensors)
    end

    for {d, e} <- Enum.zip(direct, evaluated), do: assert(Nx.to_binary(d) == Nx.to_binary(e))
    for {a, e} <- Enum.zip(eager, evaluated), do: assert_close(a, e, opts, tensors)
    %{device: hd(eager), host: hd(evaluated)}
  end

  defp deferred(fun) when is_function(fun, 1), do: fn a -> Nx.Vulkan.eager(:deferred, fn -> fun.(a) end) end
  defp deferred(fun) when is_function(fun, 2), do: fn a, b -> Nx.Vulkan.eager(:deferred, fn -> fun.(a, b) end) end

  describe "log2" do
    @exponents [
      f32: -149..127,
      f64: -1074..1023,
      f16: -24..15,
      bf16: -126..127,
      f8: -14..15,
      f8_e4m3fn: -6..8
    ]

    test "of powers of two is their exponent" do
      for {type, exponents} <- @exponents do
        powers = Nx.tensor(Enum.map(exponents, &(2.0 ** &1)), type: type, backend: Nx.BinaryBackend)
        # An exponent may have more digits than f8.
        [want] = on(VulkanoBackend, [Nx.tensor(Enum.to_list(exponents), type: :f64)], &Nx.as_type(&1, type))
        got = ways([powers], &Nx.Vulkan.log2/1, ulp: 1)
        assert Nx.to_flat_list(got.device) == Nx.to_flat_list(want)
        if type in [:f32, :f64, :f16], do: assert(Nx.to_flat_list(got.host) == Nx.to_flat_list(want))
      end

      for type <- integers(), {_, bits} = type do
        exponents = Enum.to_list(0..(bits - 2))
        got = ways([Nx.tensor(Enum.map(exponents, &(2 ** &1)), type: type)], &Nx.Vulkan.log2/1)
        assert {got.device.type, Nx.to_flat_list(got.device)} == {{:f, 32}, Enum.map(exponents, &(&1 * 1.0))}
        assert Nx.to_flat_list(got.host) == Nx.to_flat_list(got.device)
      end
    end

    test "at the ends of its domain" do
      for type <- [:f32, :f64, :f16, :bf16, :f8] do
        values = Nx.tensor([0.0, -0.0, -1.0, :infinity, :nan], type: type, backend: Nx.BinaryBackend)
        got = ways([values], &Nx.Vulkan.log2/1)
        assert Nx.to_flat_list(got.device) == [:neg_infinity, :neg_infinity, :nan, :infinity, :nan]
        # Nx.BinaryBackend has no logarithm of it.
        [got] = on(VulkanoBackend, [Nx.tensor(:neg_infinity, type: type)], &Nx.Vulkan.log2/1)
        assert Nx.to_number(got) == :nan
      end
    end

    test "of random bits, as the C library has it" do
      for type <- [f: 32, f: 64] do
        bits = Nx.abs(random_bits({3000}, type))
        got = ways([bits], &Nx.Vulkan.log2/1)

        for {x, y} <- Enum.zip(Nx.to_flat_list(bits), Nx.to_flat_list(got.device)), is_float(x) and x > 0 do
          want = :math.log2(x)
          assert abs(y - want) <= unit(want, type), "log2(#{x}) is #{y}, not #{want}"
        end
      end
    end

    property "is what it is of the parts of a product" do
      check all(x <- float(min: 0.001, max: 1000.0), k <- integer(-900..900)) do
        [whole, part] =
          for value <- [x * 2.0 ** k, x] do
            [result] = on(VulkanoBackend, [Nx.tensor(value, type: :f64)], &Nx.Vulkan.log2/1)
            Nx.to_number(result)
          end

        assert abs(whole - (part + k)) <= unit(whole, {:f, 64}) + unit(part, {:f, 64})
        assert abs(part - :math.log2(x)) <= unit(part, {:f, 64})
      end
    end

    test "of complex numbers is a logarithm by that of 2" do
      for type <- complexes() do
        tensor = random({41}, type, 0.2, 1.5)
        got = ways([tensor], &Nx.Vulkan.log2/1, ulp: 4)

        for {z, y} <- Enum.zip(Nx.to_flat_list(tensor), Nx.to_flat_list(got.device)) do
          # Near 0 the host's own logarithm has lost digits.
          want = Complex.divide(Complex.log(z), :math.log(2))
          assert Complex.abs(Complex.subtract(y, want)) <= 4 * unit(1.0, Nx.Type.to_real(type))
        end
      end
    end

    test "has the gradient of a logarithm, at powers of two, too" do
      for type <- [f: 32, f: 64, bf: 16] do
        values = Nx.tensor([0.125, 0.3, 1.0, 1.5, 2.0, 3.7, 8.0, 1.0e4], type: type, backend: Nx.BinaryBackend)
        gradient = fn x -> Nx.Defn.grad(x, &Nx.sum(Nx.multiply(Nx.Vulkan.log2(&1), 3))) end
        got = ways([values], gradient, same_bits: false)

        for {x, y} <- Enum.zip(Nx.to_flat_list(values), Nx.to_flat_list(got.device)) do
          want = 3 / (x * :math.log(2))
          assert abs(y - want) <= 2 * unit(want, type), "at #{x}: #{y}, not #{want}"
        end
      end
    end

    test "keeps names and vectorized axes, and takes views and numbers" do
      tensor = random({4, 6}, {:f, 32}, 0.1, 9)
      ways([tensor], &Nx.Vulkan.log2(Nx.rename(&1, [:x, :y])))
      ways([tensor], &(&1 |> Nx.vectorize(:x) |> Nx.Vulkan.log2() |> Nx.devectorize()))
      ways([tensor], &(&1 |> Nx.transpose() |> Nx.reverse(axes: [0]) |> Nx.Vulkan.log2()))
      ways([tensor], &Nx.multiply(Nx.add(Nx.Vulkan.log2(&1), 1), Nx.Vulkan.log2(16)), absolute: 1.0e-6)
      assert Nx.vectorize(tensor, :x) |> Nx.Vulkan.log2() |> Map.fetch!(:vectorized_axes) == [x: 4]
    end
  end

  describe "searchsorted" do
    # How many elements come before a value, as Nx.to_flat_list/1 has them.
    defp before(row, value, side) do
      Enum.count(row, fn x -> less?(x, value) or (side == :right and not less?(value, x)) end)
    end

    defp less?(_x, :neg_infinity), do: false
    defp less?(:nan, _value), do: false
    defp less?(x, :nan), do: x != :nan
    defp less?(:neg_infinity, _value), do: true
    defp less?(:infinity, _value), do: false
    defp less?(_x, :infinity), do: true
    defp less?(x, value), do: x < value

    defp assert_places(row, values, side) do
      got = ways([row, values], &Nx.Vulkan.searchsorted(&1, &2, side: side))
      assert {got.device.type, got.device.shape} == {{:s, 32}, values.shape}
      elements = Nx.to_flat_list(row)
      assert Nx.to_flat_list(got.device) == Enum.map(Nx.to_flat_list(values), &before(elements, &1, side))
    end

    defp sorted(tensor),
      do: on(VulkanoBackend, [tensor], &Nx.sort(&1, axis: -1)) |> hd() |> Nx.backend_copy(Nx.BinaryBackend)

    test "of all real types, random bits and what repeats" do
      for type <- reals(), side <- [:left, :right] do
        # Nx.BinaryBackend reads denormals of f8 as other numbers.
        bits = if elem(type, 1) == 8 and type not in [s: 8, u: 8], do: &random(&1, type), else: &random_bits(&1, type)
        assert_places(sorted(bits.({50})), bits.({40}), side)
        assert_places(sorted(random({50}, type, -4, 4)), random({3, 9}, type, -5, 5), side)
      end
    end

    property "counts the elements that come before" do
      number = one_of([integer(-5..5), integer()])

      check all(
              row <- list_of(number, min_length: 1, max_length: 40),
              values <- list_of(number, min_length: 1, max_length: 9),
              side <- member_of([:left, :right]),
              max_runs: 30
            ) do
        row = Enum.sort(row)
        [got] = on(VulkanoBackend, [Nx.tensor(row), Nx.tensor(values)], &Nx.Vulkan.searchsorted(&1, &2, side: side))
        assert Nx.to_flat_list(got) == Enum.map(values, &before(row, &1, side))
      end
    end

    test "of infinities, NaN and zeros of both signs" do
      special = [:neg_infinity, -1.0, -0.0, 0.0, 1.0, :infinity, :nan, :nan]

      for type <- [:f32, :f64, :f16, :bf16, :f8], side <- [:left, :right] do
        [row, values] = for list <- [special, Enum.reverse(special)], do: Nx.tensor(list, type: type)
        assert_places(row, values, side)
      end
    end

    test "of integers of less than a byte" do
      for {class, bits} = type <- sub_byte() do
        values =
          if class == :s,
            do: Enum.to_list(-(2 ** (bits - 1))..(2 ** (bits - 1) - 1)),
            else: Enum.to_list(0..(2 ** bits - 1))

        [tensor] = on(VulkanoBackend, [Nx.tensor(values, type: type)], & &1)
        got = Nx.Vulkan.searchsorted(tensor, tensor, side: :right)
        assert Nx.to_flat_list(got) == Enum.to_list(1..length(values))
      end
    end

    test "of different types, as the type that holds both" do
      for {a, b} <- [{{:s, 32}, {:f, 32}}, {{:u, 8}, {:s, 16}}, {{:f, 16}, {:f, 64}}, {{:u, 64}, {:u, 8}}] do
        assert_places(sorted(random({30}, a, 0, 9)), random({20}, b, 0, 9), :right)
      end

      [a, b, c] =
        on(
          VulkanoBackend,
          [Nx.tensor([1, 2, 3], type: :u8)],
          &{
            Nx.Vulkan.searchsorted(&1, 2.5),
            Nx.Vulkan.searchsorted(&1, -1),
            Nx.Vulkan.searchsorted(Nx.as_type(&1, :bf16), 2.0)
          }
        )

      assert Enum.map([a, b, c], &Nx.to_number/1) == [2, 0, 1]
    end

    test "in a row of each of some rows, in vectorized axes and in views" do
      [rows, values] = [sorted(random({2, 3, 17}, {:f, 32})), random({2, 3, 8}, {:f, 32})]
      search = &Nx.Vulkan.searchsorted/2
      by = fn tensor, names -> Enum.reduce(names, tensor, &Nx.vectorize(&2, &1)) end

      got = ways([rows, values], search)

      for {{row, values}, places} <- Enum.zip(Enum.zip(lists(rows), lists(values)), lists(got.device)) do
        assert places == Enum.map(values, &before(row, &1, :left))
      end

      for names <- [[:x], [:x, :y]] do
        vectorized =
          ways([rows, values], fn a, b ->
            search.(by.(a, names), by.(b, names)) |> Nx.devectorize(keep_names: false)
          end)

        assert Nx.to_binary(vectorized.device) == Nx.to_binary(got.device)
      end

      # A row of each place along the axis for the same values, and the same row for values of each place.
      ways([rows[0], values[[0, 0]]], fn a, b -> search.(by.(a, [:x]), b) |> Nx.devectorize() end)
      ways([rows[[0, 0]], values[0]], fn a, b -> search.(a, by.(b, [:x])) |> Nx.devectorize() end)

      ways([rows[0], values[0]], fn a, b ->
        search.(by.(a, [:x]), Nx.reshape(by.(b, [:x]), {2, 4})) |> Nx.devectorize()
      end)

      ways([rows, values], &search.(Nx.reverse(Nx.negate(&1), axes: [2]), Nx.transpose(Nx.transpose(&2))))
      ways([values, rows], &search.(Nx.iota({5}, type: :f32), Nx.add(Nx.transpose(&1), Nx.sum(&2))))
      assert search.(rows[[0, 0]], Nx.rename(values[0], [:a, :b])).names == [:a, :b]
    end

    defp lists(tensor), do: tensor |> Nx.reshape({:auto, Nx.axis_size(tensor, -1)}) |> Nx.to_list()

    test "of many values in a long row" do
      [got] =
        on(VulkanoBackend, [Nx.tensor(0)], fn zero ->
          row = Nx.multiply(Nx.iota({70_000}), 2)
          values = Nx.add(Nx.iota({300_000}), zero)
          places = Nx.Vulkan.searchsorted(row, values)
          Nx.all(Nx.equal(places, Nx.min(Nx.quotient(Nx.add(values, 1), 2), 70_000)))
        end)

      assert Nx.to_number(got) == 1
    end

    test "in loops, branches and gradients" do
      [row, values] = [sorted(random({33}, {:f, 32})), random({7}, {:f, 32})]
      places = ways([row, values], &Nx.Vulkan.searchsorted/2)
      ways([row, values], &Looped.places/2)

      # Places have no gradient of their own.
      weighed = fn row, values ->
        total = fn {row, values} -> Nx.sum(Nx.multiply(values, Nx.Vulkan.searchsorted(row, values))) end
        {row, values} |> Nx.Defn.grad(total) |> elem(1)
      end

      got = ways([row, values], weighed)
      assert Nx.to_flat_list(got.device) == Enum.map(Nx.to_flat_list(places.device), &(&1 * 1.0))
    end

    test "says what was expected" do
      row = Nx.tensor([1, 2, 3])

      for {sorted, values, opts, message} <- [
            {row, row, [side: :both], "expected :side to be :left or :right, got: :both"},
            {row, row, [sides: :left], "unknown keys [:sides]"},
            {Nx.tensor(1), row, [], "expected the first tensor to be a sorted row"},
            {Nx.iota({2, 3}), Nx.iota({3, 3}), [], "got: shape {2, 3} for values of shape {3, 3}"},
            {Nx.iota({2, 3}), Nx.iota({3}), [], "got: shape {2, 3} for values of shape {3}"},
            {row, Nx.tensor([Complex.new(1, 2)]), [], "expected real numbers to search among, got: c64"}
          ] do
        assert_raise ArgumentError, ~r/#{Regex.escape(message)}/, fn -> Nx.Vulkan.searchsorted(sorted, values, opts) end
      end
    end
  end
end
