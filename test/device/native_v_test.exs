defmodule Nx.Vulkan.NativeVTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.NativeV

  @moduletag :device

  # The shaders' functions are good to one unit in the last place of f32 (6.0e-8) and two of f64 (2.2e-16); the host
  # rounds too.
  @relative %{f32: 2.0e-7, f64: 2.0e-15}

  @binary ~w(add multiply subtract divide pow max min equal less greater)a
  @unary ~w(exp log sqrt abs negate sigmoid tanh relu ceil floor sign reciprocal square erf expm1)a

  defp shader(name), do: Application.app_dir(:nx_vulkan, "priv/shaders/#{name}.spv")
  defp suffix(:f32), do: ""
  defp suffix(:f64), do: "_f64"
  defp bytes(:f32), do: 4
  defp bytes(:f64), do: 8

  defp pack(:f32, values), do: for(x <- values, into: <<>>, do: <<x::float-32-little>>)
  defp pack(:f64, values), do: for(x <- values, into: <<>>, do: <<x::float-64-little>>)
  defp unpack(:f32, binary), do: for(<<x::float-32-little <- binary>>, do: x)
  defp unpack(:f64, binary), do: for(<<x::float-64-little <- binary>>, do: x)

  defp upload(type, values) do
    {:ok, ref} = NativeV.buf_upload(pack(type, values))
    ref
  end

  defp zeros(type, count) do
    {:ok, ref} = NativeV.buf_alloc(count * bytes(type))
    ref
  end

  defp download(type, ref) do
    {:ok, binary} = NativeV.buf_download(ref)
    unpack(type, binary)
  end

  defp assert_close(got, want, relative, what) do
    assert length(got) == length(want)

    for {got, want} <- Enum.zip(got, want) do
      assert abs(got - want) <= relative * max(abs(want), 1.0e-300), "#{what}: #{got}, not #{want}"
    end
  end

  # Values that f32 has exactly.
  defp reals(count, low, high) do
    for _ <- 1..count, do: low + round(:rand.uniform() * (high - low) * 4096) / 4096
  end

  describe "buffers" do
    test "are zeros, hold bytes, and know their size" do
      for size <- [0, 1, 5, 4096, 1_000_003] do
        assert {:ok, ref} = NativeV.buf_alloc(size)
        assert NativeV.buf_byte_size(ref) == size
        assert NativeV.buf_download(ref) == {:ok, :binary.copy(<<0>>, size)}
        bytes = :rand.bytes(size)
        assert NativeV.buf_upload_into(ref, bytes) == :ok
        assert NativeV.buf_download(ref) == {:ok, bytes}
        assert {:ok, other} = NativeV.buf_upload(bytes)
        assert NativeV.buf_download(other) == {:ok, bytes}
      end
    end

    test "take no other number of bytes, and no impossible size" do
      {:ok, ref} = NativeV.buf_alloc(8)
      assert NativeV.buf_upload_into(ref, "1234567") == {:error, :size_mismatch}
      assert NativeV.buf_upload_into(ref, "123456789") == {:error, :size_mismatch}
      assert NativeV.buf_alloc(-1) == {:error, :bad_input}
      assert NativeV.buf_alloc(Integer.pow(2, 70)) == {:error, :bad_input}
      assert {:error, :upload_failed, message} = NativeV.buf_alloc(Integer.pow(2, 60))
      assert message =~ "bytes"
    end

    test "refuse terms that are none of theirs" do
      {:ok, ref} = NativeV.buf_alloc(4)

      for call <- [
            fn -> NativeV.buf_byte_size(make_ref()) end,
            fn -> NativeV.buf_byte_size(:a) end,
            fn -> NativeV.buf_download(self()) end,
            fn -> NativeV.buf_upload(:a) end,
            fn -> NativeV.buf_upload(<<1::3>>) end,
            fn -> NativeV.buf_upload_into(ref, 1) end,
            fn -> NativeV.buf_alloc(1.0) end,
            fn -> NativeV.apply_unary(ref, make_ref(), 1, 0, shader("elementwise_unary")) end,
            fn -> NativeV.apply_unary(ref, ref, "1", 0, shader("elementwise_unary")) end,
            fn -> NativeV.apply_unary(ref, ref, 1, :exp, shader("elementwise_unary")) end,
            fn -> NativeV.apply_unary(ref, ref, 1, 0, ~c"a charlist") end
          ] do
        assert_raise ArgumentError, call
      end
    end

    test "give their memory back when the BEAM collects them" do
      # Everything happens in a process of its own, whose end drops its references.
      before = NativeV.device_stats().in_use_bytes

      Task.await(
        Task.async(fn ->
          for _ <- 1..200, do: {:ok, _} = NativeV.buf_alloc(1_000_000)
          :ok
        end)
      )

      # Other tests hold memory of their own at the same time, none of them 200 MB.
      assert eventually(fn -> NativeV.device_stats().in_use_bytes - before < 100_000_000 end)
    end
  end

  defp eventually(holds?, attempts \\ 50) do
    cond do
      holds?.() -> true
      attempts == 0 -> false
      true -> Process.sleep(20) && eventually(holds?, attempts - 1)
    end
  end

  describe "apply_binary/6" do
    for type <- [:f32, :f64], {name, op} <- Enum.with_index(@binary) do
      test "#{name} in #{type}", do: check_binary(unquote(type), unquote(name), unquote(op))
    end

    test "pow of a negative base and NaN follow C" do
      shader = shader("elementwise_binary")
      {a, b} = {upload(:f32, [-2.0, -2.0, -8.0]), upload(:f32, [3.0, 2.0, -1.0])}
      out = zeros(:f32, 3)
      :ok = NativeV.apply_binary(out, a, b, 3, 4, shader)
      assert download(:f32, out) == [-8.0, 4.0, -0.125]

      # NaN is no float to Elixir.
      {:ok, nan} = NativeV.buf_upload(<<0x7FC00000::32-little, 1.0::float-32-little>>)
      {:ok, other} = NativeV.buf_upload(<<1.0::float-32-little, 0x7FC00000::32-little>>)
      {:ok, out} = NativeV.buf_alloc(8)

      for op <- [5, 6] do
        :ok = NativeV.apply_binary(out, nan, other, 2, op, shader)
        {:ok, binary} = NativeV.buf_download(out)
        assert for(<<bits::32-little <- binary>>, do: bits > 0x7F800000) == [true, true]
      end
    end

    test "the output may be an operand" do
      a = upload(:f32, [1.0, 2.0, 3.0])
      :ok = NativeV.apply_binary(a, a, a, 3, 0, shader("elementwise_binary"))
      :ok = NativeV.apply_binary(a, a, a, 2, 1, shader("elementwise_binary"))
      assert download(:f32, a) == [4.0, 16.0, 6.0]
    end

    test "nothing to do is done" do
      {:ok, ref} = NativeV.buf_alloc(0)
      assert NativeV.apply_binary(ref, ref, ref, 0, 0, shader("elementwise_binary")) == :ok
    end

    test "errors" do
      {two, three} = {zeros(:f32, 2), zeros(:f32, 3)}
      shader = shader("elementwise_binary")
      assert NativeV.apply_binary(two, two, three, 2, 0, shader) == {:error, :size_mismatch}
      assert NativeV.apply_binary(three, two, two, 2, 0, shader) == {:error, :size_mismatch}
      assert NativeV.apply_binary(two, two, two, 3, 0, shader) == {:error, :size_mismatch}
      assert NativeV.apply_binary(two, two, two, 2, 0, shader("elementwise_binary_f64")) == {:error, :size_mismatch}
      assert NativeV.apply_binary(two, two, two, -1, 0, shader) == {:error, :bad_input}
      for op <- [-1, 10, 99], do: assert(NativeV.apply_binary(two, two, two, 2, op, shader) == {:error, :bad_input})
    end
  end

  defp check_binary(type, name, op) do
    n = 777
    a = if name == :pow, do: reals(n, 0.015625, 9.0), else: reals(n, -9.0, 9.0)
    b = Enum.map(reals(n, -4.0, 4.0), &if(&1 == 0.0, do: 1.0, else: &1))
    b = if op >= 7, do: Enum.zip_with(a, b, &Enum.random([&1, &2])), else: b
    {out, da, db} = {zeros(type, n), upload(type, a), upload(type, b)}
    assert NativeV.apply_binary(out, da, db, n, op, shader("elementwise_binary#{suffix(type)}")) == :ok
    assert_close(download(type, out), Enum.zip_with(a, b, &binary(name, &1, &2)), @relative[type], name)
  end

  defp binary(:add, a, b), do: a + b
  defp binary(:multiply, a, b), do: a * b
  defp binary(:subtract, a, b), do: a - b
  defp binary(:divide, a, b), do: a / b
  defp binary(:pow, a, b), do: :math.pow(a, b)
  defp binary(:max, a, b), do: max(a, b)
  defp binary(:min, a, b), do: min(a, b)
  defp binary(:equal, a, b), do: if(a == b, do: 1.0, else: 0.0)
  defp binary(:less, a, b), do: if(a < b, do: 1.0, else: 0.0)
  defp binary(:greater, a, b), do: if(a > b, do: 1.0, else: 0.0)

  describe "apply_unary/5" do
    for type <- [:f32, :f64], {name, op} <- Enum.with_index(@unary) do
      test "#{name} in #{type}", do: check_unary(unquote(type), unquote(name), unquote(op))
    end

    test "errors" do
      {two, three} = {zeros(:f32, 2), zeros(:f32, 3)}
      shader = shader("elementwise_unary")
      assert NativeV.apply_unary(two, three, 2, 0, shader) == {:error, :size_mismatch}
      assert NativeV.apply_unary(two, two, 3, 0, shader) == {:error, :size_mismatch}
      for op <- [-1, 15], do: assert(NativeV.apply_unary(two, two, 2, op, shader) == {:error, :bad_input})
    end
  end

  defp check_unary(type, name, op) do
    n = 1000
    a = if name in [:log, :sqrt, :reciprocal], do: reals(n, 0.015625, 20.0), else: reals(n, -8.0, 8.0)
    {out, da} = {zeros(type, n), upload(type, a)}
    assert NativeV.apply_unary(out, da, n, op, shader("elementwise_unary#{suffix(type)}")) == :ok
    # expm1 on the host is a difference of numbers near 1, log of a number near 1 is a small one.
    relative = if name in [:expm1, :log], do: max(@relative[type], 1.0e-12), else: @relative[type]
    assert_close(download(type, out), Enum.map(a, &unary(name, &1)), relative, name)
  end

  defp unary(:exp, x), do: :math.exp(x)
  defp unary(:log, x), do: :math.log(x)
  defp unary(:sqrt, x), do: :math.sqrt(x)
  defp unary(:abs, x), do: abs(x)
  defp unary(:negate, x), do: -x
  defp unary(:sigmoid, x), do: 1.0 / (1.0 + :math.exp(-x))
  defp unary(:tanh, x), do: :math.tanh(x)
  defp unary(:relu, x), do: max(x, 0.0)
  defp unary(:ceil, x), do: Float.ceil(x)
  defp unary(:floor, x), do: Float.floor(x)
  defp unary(:sign, x), do: if(x > 0, do: 1.0, else: if(x < 0, do: -1.0, else: 0.0))
  defp unary(:reciprocal, x), do: 1.0 / x
  defp unary(:square, x), do: x * x
  defp unary(:erf, x), do: :math.erf(x)
  defp unary(:expm1, x) when abs(x) < 1.0e-3, do: x + x * x / 2 + x * x * x / 6 + x * x * x * x / 24
  defp unary(:expm1, x), do: :math.exp(x) - 1.0

  describe "reduce_axis/7" do
    for type <- [:f32, :f64], {name, op} <- Enum.with_index([:sum, :max, :min, :product]) do
      test "#{name} in #{type}" do
        {type, op} = {unquote(type), unquote(op)}
        {outer, reduce, inner} = {3, 17, 5}

        values =
          Enum.map(reals(outer * reduce * inner, 0.5, 1.5), &Float.round(&1, 3)) |> then(&unpack(type, pack(type, &1)))

        {out, a} = {zeros(type, outer * inner), upload(type, values)}
        assert NativeV.reduce_axis(out, a, outer, reduce, inner, op, shader("reduce_axis#{suffix(type)}")) == :ok

        want =
          for o <- 0..(outer - 1), i <- 0..(inner - 1) do
            column = for r <- 0..(reduce - 1), do: Enum.at(values, (o * reduce + r) * inner + i)

            case unquote(name) do
              :sum -> Enum.sum(column)
              :max -> Enum.max(column)
              :min -> Enum.min(column)
              :product -> Enum.product(column)
            end
          end

        # A product rounds at each of its 16 steps.
        assert_close(download(type, out), want, 16 * @relative[type], unquote(name))
      end
    end

    test "over nothing" do
      {out, a} = {zeros(:f32, 2), zeros(:f32, 0)}
      assert NativeV.reduce_axis(out, a, 2, 0, 1, 0, shader("reduce_axis")) == :ok
      assert download(:f32, out) == [0.0, 0.0]
      assert NativeV.reduce_axis(out, a, 2, 0, 1, 1, shader("reduce_axis")) == :ok
      assert NativeV.buf_download(out) == {:ok, <<0xFF800000::32-little, 0xFF800000::32-little>>}
      assert NativeV.reduce_axis(out, a, 2, 0, 1, 2, shader("reduce_axis")) == :ok
      assert NativeV.buf_download(out) == {:ok, <<0x7F800000::32-little, 0x7F800000::32-little>>}
    end

    test "logsumexp" do
      {out, a} = {zeros(:f32, 2), upload(:f32, [1000.0, 1000.0, -1.0, 2.0])}
      assert NativeV.reduce_axis(out, a, 2, 2, 1, 0, shader("logsumexp")) == :ok
      want = [1000.0 + :math.log(2.0), :math.log(:math.exp(-1.0) + :math.exp(2.0))]
      assert_close(download(:f32, out), want, @relative.f32, :logsumexp)
    end

    test "errors" do
      {out, a} = {zeros(:f32, 2), zeros(:f32, 6)}
      shader = shader("reduce_axis")
      assert NativeV.reduce_axis(out, a, 2, 4, 1, 0, shader) == {:error, :size_mismatch}
      assert NativeV.reduce_axis(out, a, 3, 2, 1, 0, shader) == {:error, :size_mismatch}
      assert NativeV.reduce_axis(a, a, 2, 3, 1, 0, shader) == {:error, :bad_input}
      assert NativeV.reduce_axis(out, a, 2, 3, 1, 4, shader) == {:error, :bad_input}
      assert NativeV.reduce_axis(out, a, 2, -3, 1, 0, shader) == {:error, :bad_input}
    end
  end

  describe "transpose_2d/5" do
    for {type, name} <- [f32: "transpose", f64: "transpose_f64"] do
      test "in #{type}" do
        {m, n} = {37, 21}
        values = reals(m * n, -5.0, 5.0)
        {out, a} = {zeros(unquote(type), m * n), upload(unquote(type), values)}
        assert NativeV.transpose_2d(out, a, m, n, shader(unquote(name))) == :ok
        want = values |> Enum.chunk_every(n) |> Enum.zip_with(& &1) |> List.flatten()
        assert download(unquote(type), out) == want
      end
    end

    test "errors" do
      {out, a} = {zeros(:f32, 6), zeros(:f32, 6)}
      assert NativeV.transpose_2d(out, a, 3, 3, shader("transpose")) == {:error, :size_mismatch}
      assert NativeV.transpose_2d(a, a, 2, 3, shader("transpose")) == {:error, :bad_input}
    end
  end

  describe "matmul/7" do
    for name <- ~w(matmul matmul_tiled matmul_tiled32 matmul_tiled16x2 matmul_f64) do
      test "by #{name}" do
        type = if unquote(name) == "matmul_f64", do: :f64, else: :f32
        {m, n, k} = {35, 18, 40}
        {a, b} = {reals(m * k, -1.0, 1.0), reals(k * n, -1.0, 1.0)}
        {out, da, db} = {zeros(type, m * n), upload(type, a), upload(type, b)}
        assert NativeV.matmul(out, da, db, m, n, k, shader(unquote(name))) == :ok
        columns = b |> Enum.chunk_every(n) |> Enum.zip_with(& &1)

        want =
          for row <- Enum.chunk_every(a, k), column <- columns do
            Enum.zip_with(row, column, &*/2) |> Enum.sum()
          end

        for {got, want} <- Enum.zip(download(type, out), want), do: assert_in_delta(got, want, 1.0e-5)
      end
    end

    test "errors" do
      {a, b} = {zeros(:f32, 6), zeros(:f32, 6)}
      assert NativeV.matmul(a, b, b, 3, 3, 2, shader("matmul")) == {:error, :size_mismatch}
      assert NativeV.matmul(a, b, b, 2, 3, 4, shader("matmul")) == {:error, :size_mismatch}
      assert NativeV.matmul(a, a, b, 2, 2, 2, shader("matmul")) == {:error, :bad_input}
      assert NativeV.matmul(a, b, a, 2, 2, 2, shader("matmul")) == {:error, :bad_input}
    end
  end

  describe "shader files" do
    @describetag :tmp_dir

    defp add(path) do
      a = upload(:f32, [1.0, 2.0])
      NativeV.apply_binary(a, a, a, 2, 0, path)
    end

    test "that are none", %{tmp_dir: dir} do
      good = File.read!(shader("elementwise_binary"))
      path = Path.join(dir, "bad.spv")

      for bytes <- ["", "no SPIR-V", binary_part(good, 0, 20), binary_part(good, 0, 400), :rand.bytes(400), "x" <> good] do
        File.write!(path, bytes)
        assert {:error, :spv_read_failed, message} = add(path)
        assert message =~ "bad.spv"
      end

      assert {:error, :spv_read_failed, _} = add(Path.join(dir, "missing.spv"))
      assert {:error, :spv_read_failed, _} = add(dir)
      assert {:error, :spv_read_failed, _} = add("")
    end

    test "that are graphics or need what the device has not", %{tmp_dir: dir} do
      <<header::binary-20, body::binary>> = File.read!(shader("elementwise_binary"))
      path = Path.join(dir, "geometry.spv")
      File.write!(path, header <> <<17::16-little, 2::16-little, 2::32-little>> <> body)
      assert {:error, :dispatch_failed, message} = add(path)
      assert message =~ "Geometry"
      File.write!(path, header <> <<17::16-little, 2::16-little, 65_001::32-little>> <> body)
      assert {:error, :spv_read_failed, message} = add(path)
      assert message =~ "65001"
    end

    test "with other bindings or more push data than the call has" do
      a = zeros(:f32, 2)
      assert {:error, :dispatch_failed, message} = NativeV.apply_unary(a, a, 2, 0, shader("elementwise_binary"))
      assert message =~ "[0, 1, 2]"
      assert {:error, :dispatch_failed, _} = add(shader("elementwise_unary"))
      assert add(shader("elementwise_binary_broadcast")) == {:error, :bad_input}
    end

    test "that change are read again", %{tmp_dir: dir} do
      path = Path.join(dir, "changes.spv")
      {a, out} = {upload(:f32, [3.0]), zeros(:f32, 1)}
      File.cp!(shader("elementwise_unary"), path)
      assert NativeV.apply_unary(out, a, 1, 12, path) == :ok
      assert download(:f32, out) == [9.0]
      File.write!(path, "something else")
      assert {:error, :spv_read_failed, _} = NativeV.apply_unary(out, a, 1, 12, path)
    end
  end
end
