# Losses of a GPT-2 over 200 steps of Adam in f32, from the same weights and on the same texts as torch's: without
# dropout, and with dropout and five seeds. Prints both curves, and how far they are apart.
#
#     MIX_ENV=test BUMBLEBEE=/path/to/bumblebee mix run bench/curves.exs [small] [FOLDER]
#
# `small` takes a model and steps for a CPU device. FOLDER gets the weights and texts (curves.safetensors, by the names
# of transformers) and our losses (ours.json), from which bench/peers/curves.py computes torch's and compares. That is
# run with PYTHON, `python3` by default, if it has torch; or later, on another machine.

Code.require_file("bumblebee.exs", __DIR__)

defmodule Curves do
  @moduledoc false
  @compile {:no_warn_undefined, Bumblebee}

  alias Nx.Vulkan.VulkanoBackend

  @sizes [vocab_size: 1000, hidden_size: 128, num_blocks: 4, num_attention_heads: 4, max_positions: 64]
  @small [vocab_size: 100, hidden_size: 32, num_blocks: 2, num_attention_heads: 2, max_positions: 16]

  @batch 8
  @seeds 1..5
  @rate 1.0e-3
  @dropout 0.1

  def main(arguments) do
    {options, folders} = Enum.split_with(arguments, &(&1 == "small"))
    {sizes, steps} = if options == [], do: {@sizes, 200}, else: {@small, 20}
    folder = List.first(folders) || Path.join(System.tmp_dir!(), "nx_vulkan_curves_#{System.pid()}")
    File.mkdir_p!(folder)
    Bumblebee.compile(~w(text/bert text/llama text/gpt2))
    Nx.default_backend(VulkanoBackend)
    Nx.Defn.default_options(compiler: Nx.Vulkan)
    texts = texts(sizes[:vocab_size], steps, sizes[:max_positions] + 1)
    batches = for i <- 0..(steps - 1), do: batch(texts[i])
    weights = weights(sizes, hd(batches))
    write(Path.join(folder, "curves.safetensors"), [{"texts", texts} | named(weights, sizes[:num_blocks])])
    plain = losses(sizes, 0.0, 0, weights, batches)
    dropped = for seed <- @seeds, do: losses(sizes, @dropout, seed, weights, batches)

    known = %{
      device: Nx.Vulkan.device_name(),
      heads: sizes[:num_attention_heads],
      rate: @rate,
      dropout: @dropout,
      plain: plain,
      dropped: dropped
    }

    File.write!(Path.join(folder, "ours.json"), :json.encode(known))
    compare(folder)
  end

  # Each word follows from the one before it, but for a tenth; half of the words come.
  defp texts(words, steps, length) do
    {random, _} = Nx.Random.randint(Nx.Random.key(1), 0, 10 * words, shape: {length, steps, @batch}, type: :s64)
    some = div(words, 2)

    columns =
      Enum.scan(0..(length - 1), nil, fn i, before ->
        drawn = Nx.remainder(random[i], some)

        if is_nil(before) or i == 0,
          do: drawn,
          else: Nx.select(Nx.less(random[i], words), drawn, Nx.remainder(Nx.add(Nx.multiply(before, 7), 3), some))
      end)

    Nx.stack(columns, axis: 2)
  end

  defp batch(texts) do
    {ids, labels} = {texts[[.., 0..-2//1]], texts[[.., 1..-1//1]]}
    {%{"input_ids" => ids, "attention_mask" => Nx.broadcast(1, ids)}, Nx.reshape(labels, {:auto, 1})}
  end

  defp training(sizes, dropout, seed) do
    rates = for name <- [:dropout_rate, :embeddings_dropout_rate, :attention_dropout_rate], do: {name, dropout}
    spec = struct(Bumblebee.Text.Gpt2, [architecture: :for_causal_language_modeling] ++ rates ++ sizes)
    rows = &Nx.reshape(&1.logits, {:auto, Nx.axis_size(&1.logits, -1)})
    model = spec |> Bumblebee.build_model() |> Axon.nx(rows)
    loss = &Axon.Losses.categorical_cross_entropy(&1, &2, from_logits: true, reduction: :mean, sparse: true)
    # Those of torch.
    adam = Polaris.Optimizers.adam(learning_rate: @rate, b1: 0.9, b2: 0.999, eps: 1.0e-8, eps_root: 0.0)
    Axon.Loop.train_step(model, loss, adam, seed: seed)
  end

  defp weights(sizes, batch) do
    {init, _step} = training(sizes, 0.0, 0)
    Axon.ModelState.trainable_parameters(init.(batch, Axon.ModelState.empty()).model_state)
  end

  # The loss of each step, before it.
  defp losses(sizes, dropout, seed, weights, batches) do
    {init, step} = training(sizes, dropout, seed)
    state = init.(hd(batches), Axon.ModelState.empty())

    state =
      update_in(state.model_state.data, &(&1 |> seeded(seed) |> Map.merge(weights, fn _, a, b -> Map.merge(a, b) end)))

    step = Nx.Defn.jit(step)

    # A step's loss is the mean of all so far.
    {means, _} =
      Enum.map_reduce(batches, state, fn batch, state ->
        state = step.(batch, state)
        {state.loss, state}
      end)

    means
    |> Enum.map(&Nx.to_number/1)
    |> Enum.with_index(1)
    |> Enum.map_reduce(0.0, fn {mean, i}, sum -> {mean * i - sum, mean * i} end)
    |> elem(0)
  end

  # Bumblebee gives layers of dropout no seeds, and Axon then takes the time.
  defp seeded(layers, seed) do
    for {{name, layer}, i} <- layers |> Enum.sort() |> Enum.with_index(), into: %{} do
      {name, if(is_map_key(layer, "key"), do: %{layer | "key" => Nx.Random.key(1000 * seed + i)}, else: layer)}
    end
  end

  ## The weights by the names of transformers

  defp named(weights, blocks) do
    get = fn layer, name -> weights |> Map.fetch!(layer) |> Map.fetch!(name) end
    norm = fn to, layer -> [{to <> ".weight", get.(layer, "gamma")}, {to <> ".bias", get.(layer, "beta")}] end

    # Several dense layers of ours may be one of transformers'. Its kernels lie as ours do.
    dense = fn to, layers ->
      kernel = layers |> Enum.map(&get.(&1, "kernel")) |> Nx.concatenate(axis: 1)
      [{to <> ".weight", kernel}, {to <> ".bias", layers |> Enum.map(&get.(&1, "bias")) |> Nx.concatenate()}]
    end

    in_blocks =
      for i <- 0..(blocks - 1) do
        {from, to} = {"decoder.blocks.#{i}.", "transformer.h.#{i}."}
        projections = for name <- ~w(query key value), do: from <> "self_attention." <> name

        norm.(to <> "ln_1", from <> "self_attention_norm") ++
          norm.(to <> "ln_2", from <> "output_norm") ++
          dense.(to <> "attn.c_attn", projections) ++
          dense.(to <> "attn.c_proj", [from <> "self_attention.output"]) ++
          dense.(to <> "mlp.c_fc", [from <> "ffn.intermediate"]) ++
          dense.(to <> "mlp.c_proj", [from <> "ffn.output"])
      end

    [
      {"transformer.wte.weight", get.("embedder.token_embedding", "kernel")},
      {"transformer.wpe.weight", get.("embedder.position_embedding", "kernel")},
      {"lm_head.weight", get.("language_modeling_head.output", "kernel")}
      | norm.("transformer.ln_f", "norm") ++ Enum.concat(in_blocks)
    ]
  end

  # https://huggingface.co/docs/safetensors: the length of a header, the header, the numbers.
  defp write(path, tensors) do
    {entries, {_, binaries}} =
      Enum.map_reduce(tensors, {0, []}, fn {name, tensor}, {from, binaries} ->
        binary = Nx.to_binary(tensor)
        to = from + byte_size(binary)
        type = %{{:f, 32} => "F32", {:s, 64} => "I64"}[tensor.type]
        {{name, %{dtype: type, shape: Tuple.to_list(tensor.shape), data_offsets: [from, to]}}, {to, [binaries, binary]}}
      end)

    header = entries |> Map.new() |> :json.encode() |> IO.iodata_to_binary()
    File.write!(path, [<<byte_size(header)::little-64>>, header, binaries])
  end

  defp compare(folder) do
    python = System.get_env("PYTHON", "python3")
    script = Path.join([__DIR__, "peers", "curves.py"])

    with path when is_binary(path) <- System.find_executable(python),
         {_, 0} <- System.cmd(path, ["-c", "import torch, transformers, safetensors"], stderr_to_stdout: true) do
      {_, 0} = System.cmd(path, [script, folder], into: IO.stream())
    else
      _ -> IO.puts("#{python} has no torch. With one that has: bench/peers/curves.py #{folder}")
    end
  end
end

Curves.main(System.argv())
