# Measures models that Nx.Vulkan.Pretrained loads from GGUF files: a Llama of the shape of Llama 3 8B and one of 1
# billion parameters, in Q4_K and Q6_K as files called Q4_K_M have them, beside the smaller one in bf16. Weights are
# random. Prints a Markdown table.
#
#     MIX_ENV=test mix run bench/packed_models.exs [small] [profile] [ROWS ...]
#
# It needs a checkout of Bumblebee, see bench/bumblebee.exs. ROWS are parts of the names of the rows to measure, all by
# default; `small` takes sizes for a CPU device; `profile` prints the kernels of a token in place of the table. Files
# are written into a folder of the system's temporary one and removed: 5 GB at most at once.
#
# Without mix: elixir -pa 'FOLDER/*/ebin' bench/packed_models.exs

Code.require_file("bumblebee.exs", __DIR__)
Bumblebee.compile(~w(text/llama))
{:ok, _} = Application.ensure_all_started(:nx_vulkan)

defmodule PackedModels do
  @moduledoc false
  @compile {:no_warn_undefined, Bumblebee.Text.Generation}

  alias Bumblebee.Text
  alias Nx.Vulkan.{GGUF, NativeV, Pretrained, Profile, Quantized, VulkanoBackend}
  alias Nx.Vulkan.Quantized.Formats

  @llama_8b %{
    vocabulary: 128_256,
    hidden: 4096,
    inner: 14_336,
    blocks: 32,
    heads: 32,
    key_heads: 8,
    base: 500_000.0
  }
  # That of bench/half.exs.
  @llama_1b %{vocabulary: 50_000, hidden: 2048, inner: 8192, blocks: 16, heads: 32, key_heads: 8, base: 10_000.0}
  @tiny %{vocabulary: 2000, hidden: 256, inner: 512, blocks: 2, heads: 8, key_heads: 2, base: 10_000.0}

  # So many calls of each length are measured, after two that are not.
  @calls 7
  # Profiles have so many kernels.
  @top 30

  # As of weights that begin at random.
  @deviation 0.02
  # Random blocks of a format that tensors repeat. A prime, so that rows differ.
  @pool 4093

  def main(arguments) do
    {options, wanted} = Enum.split_with(arguments, &(&1 in ["small", "profile"]))
    {models, lengths} = if "small" in options, do: small(), else: full()
    models = for {name, _, _} = model <- models, wanted == [] or Enum.any?(wanted, &(name =~ &1)), do: model
    folder = Path.join(System.tmp_dir!(), "nx_vulkan-packed_models-#{System.pid()}")
    File.mkdir_p!(folder)

    try do
      # The first call compiles the loader.
      each([{"tiny Llama", @tiny, :q4_k_m}], folder, fn _name, path -> load(path) end)
      if "profile" in options, do: profiles(models, folder, lengths), else: table(models, folder, lengths)
    after
      File.rm_rf!(folder)
    end
  end

  # Those that take more memory come later, so that the peak of each is its own.
  defp full do
    {[
       {"Llama 1B, Q4_K_M", @llama_1b, :q4_k_m},
       {"Llama 1B, bf16", @llama_1b, :bf16},
       {"Llama 8B, Q4_K_M", @llama_8b, :q4_k_m}
     ], %{prompt: 512, tokens: 64}}
  end

  defp small do
    {[{"tiny Llama, Q4_K_M", @tiny, :q4_k_m}, {"tiny Llama, bf16", @tiny, :bf16}], %{prompt: 32, tokens: 4}}
  end

  defp table(models, folder, %{prompt: prompt, tokens: tokens} = lengths) do
    {:ok, info} = NativeV.device_describe()

    IO.puts("""
    #{info.name}, #{info.driver}; Elixir #{System.version()}, OTP #{System.otp_release()}, \
    Nx #{Application.spec(:nx, :vsn)}

    | | file | load | in use | peak | reserved | first call | prompt of #{prompt} | \
    a token of #{tokens} after #{prompt} | tokens a second |
    |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\
    """)

    each(models, folder, fn name, path -> row(name, path, lengths) end)
  end

  defp row(name, path, lengths) do
    size = File.stat!(path).size
    {us, loaded} = :timer.tc(fn -> load(path) end)
    in_use = Nx.Vulkan.memory().in_use_bytes
    {prompt, generate} = {generator(loaded, lengths, 1), generator(loaded, lengths, lengths.tokens)}
    {first_us, _} = :timer.tc(fn -> generate.(0) end)
    [prompt_us, all_us] = for fun <- [prompt, generate], do: median(fun)
    memory = Nx.Vulkan.memory()
    token_us = (all_us - prompt_us) / (lengths.tokens - 1)

    columns = [
      gigabytes(size),
      "#{seconds(us)}, #{number(size / us / 1000, 2)} GB/s",
      gigabytes(in_use),
      gigabytes(memory.peak_bytes),
      gigabytes(memory.reserved_bytes),
      seconds(first_us),
      milliseconds(prompt_us),
      milliseconds(token_us),
      number(1.0e6 / token_us, 1)
    ]

    IO.puts("| #{name} | #{Enum.join(columns, " | ")} |")
  end

  # What a token takes is the difference of many tokens and one.
  defp profiles(models, folder, lengths) do
    each(models, folder, fn name, path ->
      loaded = load(path)

      [one, many] =
        for tokens <- [1, lengths.tokens] do
          generate = generator(loaded, lengths, tokens)
          generate.(0)
          Profile.reset()
          Profile.start()
          generate.(1)
          Profile.stop()
          Map.new(Profile.rows(), &{&1.kernel, &1})
        end

      kernels =
        for {kernel, row} <- many do
          before = Map.get(one, kernel, %{calls: 0, time_ns: 0})
          {kernel, row.calls - before.calls, row.time_ns - before.time_ns}
        end

      IO.puts("""
      #{name}, kernels of a token after #{lengths.prompt}, \
      #{number(per_token(Enum.sum_by(kernels, &elem(&1, 2)), lengths) / 1000, 1)} us in all

      | kernel | launches | us |
      |---|---:|---:|\
      """)

      for {kernel, calls, ns} <- kernels |> Enum.sort_by(&elem(&1, 2), :desc) |> Enum.take(@top) do
        launches = number(per_token(calls, lengths), 1)
        IO.puts("| #{kernel} | #{launches} | #{number(per_token(ns, lengths) / 1000, 1)} |")
      end

      IO.puts("")
    end)
  end

  defp per_token(count, lengths), do: count / (lengths.tokens - 1)

  # Each in a process of its own, so that the memory of one is free before the next.
  defp each(models, folder, fun) do
    for {name, shape, kind} <- models do
      task =
        Task.async(fn ->
          Nx.default_backend(VulkanoBackend)
          Nx.Defn.default_options(compiler: Nx.Vulkan)
          path = Path.join(folder, "model.gguf")
          write(path, shape, kind)
          fun.(name, path)
          File.rm!(path)
        end)

      Task.await(task, :infinity)
      Nx.Vulkan.trim()
    end
  end

  ## Runs

  defp load(path) do
    loaded = Pretrained.load_model!(path, type: :bf16, backend: VulkanoBackend)
    # The device has what it was sent when an element of the last tensor is there.
    for {_, tensors} <- loaded.params.data, {_, tensor} <- tensors, leaf <- leaves(tensor) do
      leaf |> Nx.flatten() |> Nx.slice([0], [1]) |> Nx.to_binary()
    end

    :erlang.garbage_collect()
    loaded
  end

  defp leaves(%Nx.Tensor{} = tensor), do: [tensor]
  defp leaves(map), do: Map.values(map)

  # Greedy, with a cache, and no token that ends it.
  defp generator(%{model: model, params: params, spec: spec}, %{prompt: prompt}, tokens) do
    config = struct(Text.GenerationConfig, max_new_tokens: tokens, pad_token_id: 0, eos_token_id: nil)
    generate = Nx.Defn.jit(Text.Generation.build_generate(model, spec, config))
    ids = Nx.remainder(Nx.multiply(Nx.iota({1, prompt}), 7919), spec.vocab_size)

    requests =
      for ids <- [ids, Nx.reverse(ids)] do
        %{"input_ids" => ids, "attention_mask" => Nx.broadcast(1, {1, prompt}), "seed" => Nx.tensor([0], type: :s64)}
      end

    fn turn ->
      written = generate.(params, Enum.at(requests, rem(turn, 2))).token_ids |> Nx.to_flat_list()
      if length(written) != tokens, do: raise("expected #{tokens} tokens, got: #{inspect(written)}")
    end
  end

  defp median(fun) do
    for turn <- 0..1, do: fun.(turn)
    times = for turn <- 1..@calls, do: elem(:timer.tc(fn -> fun.(turn) end), 0)
    times |> Enum.sort() |> Enum.at(div(@calls, 2))
  end

  ## Files

  # The tensors of one format and shape are one binary, and all are repetitions of few random blocks.
  defp write(path, shape, kind) do
    :rand.seed(:exsss, 1)
    pools = for format <- [:q4_k, :q6_k, {:bf, 16}], into: %{}, do: {format, pool(format)}
    tensors = tensors(shape, kind)
    values = for {_, format, shape} <- tensors, uniq: true, do: {format, shape}
    values = Map.new(values, fn {format, shape} = key -> {key, tensor(format, shape, pools)} end)
    :ok = GGUF.write(path, metadata(shape), for({name, format, shape} <- tensors, do: {name, values[{format, shape}]}))
  end

  defp metadata(shape) do
    %{
      "general.architecture" => "llama",
      "llama.context_length" => 8192,
      "llama.embedding_length" => shape.hidden,
      "llama.block_count" => shape.blocks,
      "llama.feed_forward_length" => shape.inner,
      "llama.attention.head_count" => shape.heads,
      "llama.attention.head_count_kv" => shape.key_heads,
      "llama.attention.layer_norm_rms_epsilon" => 1.0e-5,
      "llama.rope.freq_base" => shape.base
    }
  end

  defp tensors(%{vocabulary: vocabulary, hidden: hidden, inner: inner, blocks: blocks} = shape, kind) do
    keys = div(hidden, shape.heads) * shape.key_heads
    {most, more} = if kind == :bf16, do: {{:bf, 16}, {:bf, 16}}, else: {:q4_k, :q6_k}

    outside = [
      {"token_embd.weight", most, {vocabulary, hidden}},
      {"output_norm.weight", {:f, 32}, {hidden}},
      {"output.weight", more, {vocabulary, hidden}}
    ]

    inside =
      for block <- 0..(blocks - 1),
          mixed = if(more_bits?(block, blocks), do: more, else: most),
          {layer, format, shape} <- [
            {"attn_norm", {:f, 32}, {hidden}},
            {"attn_q", most, {hidden, hidden}},
            {"attn_k", most, {keys, hidden}},
            {"attn_v", mixed, {keys, hidden}},
            {"attn_output", most, {hidden, hidden}},
            {"ffn_norm", {:f, 32}, {hidden}},
            {"ffn_gate", most, {inner, hidden}},
            {"ffn_up", most, {inner, hidden}},
            {"ffn_down", mixed, {hidden, inner}}
          ],
          do: {"blk.#{block}.#{layer}.weight", format, shape}

    outside ++ inside
  end

  # Which blocks have values and the last product in Q6_K: use_more_bits of llama.cpp.
  defp more_bits?(block, blocks) do
    eighth = div(blocks, 8)
    block < eighth or block >= div(7 * blocks, 8) or rem(block - eighth, 3) == 2
  end

  # The weights of norms.
  defp tensor({:f, 32}, shape, _pools), do: Nx.broadcast(Nx.tensor(1.0, backend: Nx.BinaryBackend), shape)

  defp tensor({:bf, 16} = type, shape, pools) do
    pools[type] |> repeated(2 * Tuple.product(shape)) |> from_binary(type, shape)
  end

  defp tensor(format, shape, pools) do
    blocks = Formats.shapes(shape, format).blocks
    pools[format] |> repeated(Tuple.product(blocks)) |> from_binary({:u, 8}, blocks) |> Quantized.from_blocks(format)
  end

  defp from_binary(binary, type, shape) do
    binary |> Nx.from_binary(type, backend: Nx.BinaryBackend) |> Nx.reshape(shape)
  end

  defp repeated(pool, bytes) do
    pool |> :binary.copy(div(bytes, byte_size(pool)) + 1) |> binary_part(0, bytes)
  end

  # Any bits are valid besides those of the scales, which give weights a mean of zero and a deviation.
  defp pool(:q4_k) do
    # d * scale * q - dmin * min, with scales and minima of 6 bits and q of 4.
    {d, dmin} = {@deviation / 257, 7.5 * @deviation / 257}
    for _ <- 1..@pool, into: <<>>, do: <<d::float-little-16, dmin::float-little-16, :rand.bytes(140)::binary>>
  end

  defp pool(:q6_k) do
    # d * scale * (q - 32), with scales of 8 bits with a sign and q of 6.
    d = @deviation / 1367
    for _ <- 1..@pool, into: <<>>, do: <<:rand.bytes(208)::binary, d::float-little-16>>
  end

  defp pool({:bf, 16}) do
    for _ <- 1..(64 * @pool), into: <<>> do
      <<high::16, _::16>> = <<@deviation * :rand.normal()::float-32>>
      <<high::little-16>>
    end
  end

  ## Text

  defp seconds(us), do: "#{number(us / 1.0e6, 2)} s"
  defp milliseconds(us), do: "#{number(us / 1000, 2)} ms"
  defp gigabytes(bytes), do: "#{number(bytes / 1.0e9, 3)} GB"
  defp number(number, decimals), do: :erlang.float_to_binary(number / 1, decimals: decimals)
end

PackedModels.main(System.argv())
