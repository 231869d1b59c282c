defmodule Nx.Vulkan.NativeVFuzz do
  @moduledoc """
  Random bad calls to `Nx.Vulkan.NativeV`: each must give an error, and the VM and the device must go on working.
  """

  import Bitwise

  alias Nx.Vulkan.NativeV

  @shaders Path.expand("../../priv/shaders", __DIR__)
  @foreign Path.expand("../../native/nx_vulkan_check/tests/spirv", __DIR__)

  # What a call may answer; anything else ends the run.
  @kinds [:spv_read_failed, :dispatch_failed, :upload_failed, :download_failed]

  @doc """
  Makes `calls` calls, the same ones for the same seed, and prints how they were answered. Raises at the first that was
  not answered by an error.
  """
  def run(calls, seed) do
    :rand.seed(:exsss, seed)
    folder = Path.join(System.tmp_dir!(), "nx_vulkan_fuzz_#{System.pid()}")
    File.mkdir_p!(folder)
    Process.put(:folder, folder)
    kinds = kinds(System.find_executable("spirv-val"))
    IO.puts("#{calls} bad calls, seed #{seed}, #{length(kinds)} kinds")

    try do
      counts =
        Enum.reduce(1..calls//1, %{}, fn number, counts ->
          {name, kind} = Enum.at(kinds, rem(number, length(kinds)))
          answer = kind |> attempt(name, number) |> describe()
          check_alive(number, calls)
          Map.update(counts, {name, answer}, 1, &(&1 + 1))
        end)

      for {{name, answer}, count} <- Enum.sort(counts), do: IO.puts("#{pad(name, 24)} #{pad(answer, 20)} #{count}")

      IO.puts(
        "fuzz: ok, #{calls} calls, an error for each, #{Process.get(:valid, 0)} damaged modules that stayed valid"
      )
    after
      File.rm_rf!(folder)
    end
  end

  defp pad(term, width), do: term |> to_string() |> String.pad_trailing(width)

  # A damaged module may still be a valid one: then the damage is done again.
  defp attempt(kind, name, number) do
    case {call(kind), name} do
      {{:answer, :ok}, :bit_flip} ->
        Process.put(:valid, Process.get(:valid, 0) + 1)
        attempt(kind, name, number)

      {{:answer, answer}, _name} ->
        error?(answer) || raise "call #{number} (#{name}) answered #{inspect(answer, limit: 20)}"
        answer

      {{:raised, _exception} = raised, _name} ->
        raised
    end
  end

  defp call(kind) do
    {:answer, kind.()}
  rescue
    error in ArgumentError -> {:raised, error}
  end

  defp error?({:error, reason}) when reason in [:size_mismatch, :bad_input], do: true
  defp error?({:error, kind, message}) when kind in @kinds and is_binary(message), do: true
  defp error?(_answer), do: false

  defp describe({:raised, _exception}), do: :argument_error
  defp describe({:error, reason}), do: reason
  defp describe({:error, kind, _message}), do: kind

  # A good call among the bad ones, and after the last.
  defp check_alive(number, calls) when rem(number, 250) == 0 or number == calls do
    x = :rand.uniform(1000) * 1.0
    {:ok, a} = NativeV.buf_upload(<<x::float-32-native>>)
    {:ok, out} = NativeV.buf_alloc(4)
    :ok = NativeV.apply_binary(out, a, a, 1, 0, shader("elementwise_binary"))
    {:ok, <<y::float-32-native>>} = NativeV.buf_download(out)
    true = y == 2 * x
  end

  defp check_alive(_number, _calls), do: :ok

  defp kinds(spirv_val) do
    [
      wrong_sizes: &wrong_sizes/0,
      unknown_op: &unknown_op/0,
      aliasing: &aliasing/0,
      foreign_term: &foreign_term/0,
      foreign_term_chain: &foreign_term_chain/0,
      chain_sizes: &chain_sizes/0,
      chain_header: &chain_header/0,
      no_file: fn -> with_shader(no_file()) end,
      no_spirv: fn -> with_shader(file(random_bytes(:rand.uniform(4000)))) end,
      header_only: fn -> with_shader(file(binary_part(module(), 0, 20) <> random_bytes(:rand.uniform(200)))) end,
      truncated: fn -> with_shader(file(truncated(module()))) end,
      graphics: fn -> with_shader(graphics()) end,
      capability: fn -> with_shader(file(capability(module()))) end,
      missing_binding: fn -> bindings(:missing) end,
      extra_binding: fn -> bindings(:extra) end
    ] ++ if(spirv_val, do: [bit_flip: fn -> validated(fn -> with_shader(file(bit_flip(module()))) end) end], else: [])
  end

  defp shader(name), do: Path.join(@shaders, name <> ".spv")
  defp one_of(list), do: Enum.random(list)
  defp random_bytes(size), do: :rand.bytes(size)

  defp buffer(size) do
    {:ok, ref} = NativeV.buf_alloc(size)
    ref
  end

  # One name for all: the library must see every change of a file.
  defp file(bytes) do
    path = Path.join(Process.get(:folder), "bad.spv")
    File.write!(path, bytes)
    path
  end

  defp module do
    names = ~w(elementwise_binary elementwise_binary_f64 matmul_tiled transpose leapfrog_chain_gamma)
    name = one_of(names)
    File.read!(shader(name))
  end

  ## Buffers

  defp wrong_sizes do
    n = :rand.uniform(100)
    short = buffer(:rand.uniform(4 * n) - 1)
    right = buffer(4 * n)
    other = buffer(4 * n + 4)

    one_of([
      fn -> NativeV.buf_upload_into(right, random_bytes(4 * n + one_of([-1, 1, 7]))) end,
      fn -> NativeV.apply_binary(right, right, other, n, 0, shader("elementwise_binary")) end,
      fn -> NativeV.apply_binary(short, short, short, n, 0, shader("elementwise_binary")) end,
      fn -> NativeV.apply_binary(right, right, right, n, 0, shader("elementwise_binary_f64")) end,
      fn -> NativeV.apply_unary(right, other, n, 0, shader("elementwise_unary")) end,
      fn -> NativeV.apply_unary(right, right, :rand.uniform(1_000_000_000_000) + n, 0, shader("elementwise_unary")) end,
      fn -> NativeV.reduce_axis(right, short, 1, n, 1, 0, shader("reduce_axis")) end,
      fn -> NativeV.reduce_axis(short, right, n, 1, 1, 0, shader("reduce_axis")) end,
      fn -> NativeV.reduce_axis(right, other, n, 0x7FFFFFFFFFFFFFFF, 3, 0, shader("reduce_axis")) end,
      fn -> NativeV.transpose_2d(right, other, n, 2, shader("transpose")) end,
      fn -> NativeV.matmul(right, other, other, n, n, 3, shader("matmul")) end,
      fn -> NativeV.buf_alloc(one_of([-1, 0xFFFFFFFFFFFFFFFF, 1 <<< 70, 1 <<< 60])) end
    ]).()
  end

  defp unknown_op do
    a = buffer(16)
    op = one_of([-1, 15, 16, 255, 1 <<< 31, 1 <<< 32, -(1 <<< 63), 1 <<< 64, :rand.uniform(1 <<< 40) + 14])

    one_of([
      fn -> NativeV.apply_binary(a, a, a, 4, op, shader("elementwise_binary")) end,
      fn -> NativeV.apply_unary(a, a, 4, op, shader("elementwise_unary")) end,
      fn -> NativeV.reduce_axis(buffer(4), a, 1, 4, 1, op, shader("reduce_axis")) end
    ]).()
  end

  defp aliasing do
    {a, b} = {buffer(64), buffer(64)}

    one_of([
      fn -> NativeV.reduce_axis(a, a, 4, 4, 1, 0, shader("reduce_axis")) end,
      fn -> NativeV.transpose_2d(a, a, 4, 4, shader("transpose")) end,
      fn -> NativeV.matmul(a, a, b, 4, 4, 4, shader("matmul")) end,
      fn -> NativeV.matmul(a, b, a, 4, 4, 4, shader("matmul")) end
    ]).()
  end

  ## Terms

  defp foreign do
    one_of([
      fn -> make_ref() end,
      fn -> self() end,
      fn -> :atom end,
      fn -> 1.5 end,
      fn -> [1 | 2] end,
      fn -> {1, 2} end,
      fn -> %{} end,
      fn -> nil end,
      fn -> <<1::3>> end,
      fn -> &foreign/0 end
    ]).()
  end

  defp foreign_term do
    a = buffer(16)

    {function, arguments} =
      one_of([
        {&NativeV.apply_binary/6, [a, a, a, 4, 0, shader("elementwise_binary")]},
        {&NativeV.apply_unary/5, [a, a, 4, 0, shader("elementwise_unary")]},
        {&NativeV.reduce_axis/7, [buffer(4), a, 1, 4, 1, 0, shader("reduce_axis")]},
        {&NativeV.transpose_2d/5, [buffer(16), a, 2, 2, shader("transpose")]},
        {&NativeV.matmul/7, [buffer(16), a, a, 2, 2, 2, shader("matmul")]},
        {&NativeV.buf_alloc/1, [4]},
        {&NativeV.buf_upload/1, ["abcd"]},
        {&NativeV.buf_upload_into/2, [a, "0123456789abcdef"]},
        {&NativeV.buf_download/1, [a]},
        {&NativeV.buf_byte_size/1, [a]}
      ])

    at = :rand.uniform(length(arguments)) - 1
    apply(function, List.replace_at(arguments, at, foreign()))
  end

  defp foreign_term_chain do
    at = :rand.uniform(6) - 1
    apply(&NativeV.leapfrog_chain_synth/6, List.replace_at(chain([4, 2, 3, 0], [3, 3, 5], 4), at, foreign()))
  end

  ## Chains

  defp chain([k, n_obs, d, n_instances], [q, p, extras], call_k) do
    push = <<k::32-little, n_obs::32-little, d::32-little, n_instances::32-little, 0.1::float-32-little>>
    path = Path.join(@shaders, "examples/regime.spv")
    [zeros(q), zeros(p), zeros(extras), push <> zeros(12), call_k, path]
  end

  defp zeros(count), do: :binary.copy(<<0>>, 4 * count)

  defp chain_sizes do
    d = :rand.uniform(256)
    n_obs = :rand.uniform(300) - 1
    delta = one_of([-1, 1])

    {counts, header_d} =
      one_of([
        {[d, d + 1, d + n_obs], d},
        {[d, d, max(d + n_obs + delta, 0)], d},
        {[d, d, d + n_obs], max(1, rem(d + 7, 256))},
        {[0, 0, n_obs], 0}
      ])

    variants = [&NativeV.leapfrog_chain_synth/6, &NativeV.leapfrog_chain_synth_batch/6]
    # As f64 the same bytes are half as many elements.
    variants = [(&NativeV.leapfrog_chain_synth_f64/6) | variants]
    apply(one_of(variants), chain([4, n_obs, header_d, 1], counts, 4))
  end

  defp chain_header do
    [q, p, extras, push, k, path] = chain([4, 2, 3, 2], [6, 6, 10], 4)
    <<_k::binary-4, rest::binary>> = push
    large = one_of([0, 5, 4097, 1 <<< 31, 0xFFFFFFFF])

    arguments =
      one_of([
        [q, p, extras, push, one_of([0, -1, 3, 5, 4097, 1 <<< 70]), path],
        [q, p, extras, "", k, path],
        [q, p, extras, binary_part(push, 0, :rand.uniform(19)), k, path],
        [q, p, extras, push <> zeros(30), k, path],
        [q, p, extras, <<large::32-little, rest::binary>>, k, path],
        chain([4, 2, 3, 0], [6, 6, 10], 4),
        chain([4, 2, one_of([257, 4096, 0xFFFFFFFF]), 2], [6, 6, 10], 4),
        # Less than the shader declares.
        [q, p, extras, binary_part(push, 0, 20), k, path]
      ])

    apply(&NativeV.leapfrog_chain_synth_batch/6, arguments)
  end

  ## Files

  # A call that a sound module of three bindings might serve.
  defp with_shader(path) do
    a = buffer(256)

    one_of([
      fn -> NativeV.apply_binary(a, a, a, 4, 0, path) end,
      fn -> NativeV.matmul(buffer(256), a, a, 2, 2, 2, path) end
    ]).()
  end

  defp no_file do
    one_of([
      "",
      "/",
      "/nonexistent/a.spv",
      "/dev/zero",
      "a" <> <<0>> <> "b",
      <<255, 254>>,
      String.duplicate("long", 2000),
      Process.get(:folder)
    ])
  end

  defp truncated(bytes), do: binary_part(bytes, 0, :rand.uniform(byte_size(bytes)) - 1)

  defp graphics do
    one_of([
      fn -> Path.join(@foreign, "graphics.vert.spv") end,
      fn -> Path.join(@foreign, "graphics.frag.spv") end,
      # Another execution model in a compute module: vertex, fragment, tessellation, geometry, kernel, mesh, unknown.
      fn -> file(patch(module(), 15, 1, one_of([0, 1, 2, 3, 4, 6, 5365, 77]))) end
    ]).()
  end

  # One capability more: ray tracing, geometry, kernels, images, unknown ones.
  defp capability(bytes) do
    capability = one_of([2, 6, 13, 4479, 5017, 4439, 60_000 + :rand.uniform(5000)])
    <<header::binary-20, body::binary>> = bytes
    header <> <<2 <<< 16 ||| 17::32-little, capability::32-little>> <> body
  end

  # Sets a word of the first instruction with an opcode.
  defp patch(bytes, opcode, word, value) do
    at = find(bytes, opcode, 20) + 4 * word
    <<before::binary-size(^at), _old::32, rest::binary>> = bytes
    <<before::binary, value::32-little, rest::binary>>
  end

  defp find(bytes, opcode, at) do
    <<_::binary-size(^at), op::16-little, words::16-little, _::binary>> = bytes
    if op == opcode, do: at, else: find(bytes, opcode, at + 4 * words)
  end

  defp bindings(:missing) do
    a = buffer(256)
    name = one_of(~w(elementwise_unary reduce_axis transpose random_philox))
    NativeV.matmul(buffer(256), a, a, 4, 4, 4, shader(name))
  end

  defp bindings(:extra) do
    a = buffer(256)
    name = one_of(~w(elementwise_binary matmul leapfrog_chain_normal matmul_f64))
    NativeV.reduce_axis(buffer(256), a, 1, 4, 4, 0, shader(name))
  end

  defp bit_flip(bytes) do
    at = 20 + :rand.uniform(byte_size(bytes) - 20) - 1
    <<before::binary-size(^at), byte, rest::binary>> = bytes
    <<before::binary, bxor(byte, 1 <<< (:rand.uniform(8) - 1)), rest::binary>>
  end

  defp validated(call) do
    Application.put_env(:nx_vulkan, :validate_spirv, true)
    call.()
  after
    Application.delete_env(:nx_vulkan, :validate_spirv)
  end
end
