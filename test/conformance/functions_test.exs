defmodule Nx.Vulkan.Conformance.FunctionsTest do
  # Functions of Nx.Vulkan: op by op and compiled on the device, and their steps in ops of Nx elsewhere.
  use ExUnit.Case, async: true
  use ExUnitProperties

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
end
