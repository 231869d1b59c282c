# Measures training steps of whole models: Axon's step with Adam, in f32 and bf16. Prints a Markdown table.
#
#     MIX_ENV=test BUMBLEBEE=/path/to/bumblebee mix run bench/training.exs \
#       [small] [donated] [checkpoints] [long] [ROWS ...]
#
# ROWS are parts of the names of the rows to measure, all by default; `small` takes models and sizes for a CPU device;
# `donated` gives the memory of a step's state to the next, as torch does, where Axon's loop keeps both. `checkpoints`
# computes the blocks of transformers again in the backward pass. `long` takes 10,000 steps, and prints what is in use
# and how many kernels there are after 50 of them and after all.
# Each row runs in a VM of its own, with the caches of kernels empty, so that its first call and its peak are its own; a
# second VM takes the first call with what the first one left in them.
# bench/peers/training.py measures the same with torch and transformers.
#
# NX_VULKAN_MEMORY_LIMIT says what a row may take of the device, in bytes. Beyond it tensors lie in the host's memory:
# it is enough where the peak is below it. GPT-2 in 10 GB, as Axon's loop trains it and donated:
#
#     NX_VULKAN_MEMORY_LIMIT=10000000000 MIX_ENV=test BUMBLEBEE=... mix run bench/training.exs "GPT-2, 8 x 512, f32"
#     NX_VULKAN_MEMORY_LIMIT=10000000000 MIX_ENV=test BUMBLEBEE=... mix run bench/training.exs donated "8 x 512, f32"

Code.require_file("bumblebee.exs", __DIR__)

defmodule Training do
  @moduledoc false
  @compile {:no_warn_undefined, Bumblebee}

  alias Bumblebee.{Text, Vision}
  alias Nx.Vulkan.{NativeV, VulkanoBackend}

  # f32; bf16 with gradients of f32, as Axon's policies have them; bf16 forwards and backwards, as in torch.autocast.
  @kinds ["f32", "bf16", "bf16, narrow gradients"]

  @sizes %{
    # The small GPT-2 that transformers makes by default; Bumblebee's default has 24 blocks.
    gpt2: [num_blocks: 12, num_attention_heads: 12],
    # 100 million parameters, with a head of keys for three of queries.
    llama: [
      vocab_size: 16_000,
      hidden_size: 768,
      intermediate_size: 2048,
      num_blocks: 12,
      num_attention_heads: 12,
      num_key_value_heads: 4,
      attention_head_size: 64
    ],
    bert: [],
    vit: [],
    resnet: [],
    lstm: %{words: 10_000, units: 650, texts: {64, 35}},
    unet: %{filters: [64, 128, 256, 512, 1024], images: {16, 128}},
    sentences: {32, 128},
    texts: {8, 512},
    long_texts: {4, 1024},
    images: {32, 224}
  }
  @small_text [vocab_size: 1000, hidden_size: 64, num_blocks: 2, num_attention_heads: 2]
  @small %{
    gpt2: @small_text,
    llama: [intermediate_size: 128, num_key_value_heads: 1, attention_head_size: 32] ++ @small_text,
    bert: [intermediate_size: 128] ++ @small_text,
    vit: [hidden_size: 64, num_blocks: 2, num_attention_heads: 2, intermediate_size: 128],
    resnet: [embedding_size: 16, hidden_sizes: [32, 64], depths: [1, 1]],
    lstm: %{words: 1000, units: 64, texts: {4, 8}},
    unet: %{filters: [8, 16, 32], images: {2, 32}},
    sentences: {2, 32},
    texts: {2, 64},
    long_texts: {1, 128},
    images: {2, 32}
  }

  @options ["small", "donated", "checkpoints", "long"]
  @columns ["million parameters", "first call", "a step", "peak GB", "dispatches a step", "first call with caches"]
  @long_columns ["a step", "GB in use after 50 steps", "after 10,000", "kernels after 50 steps", "after 10,000"]

  # After the first step and these the pool has what steps in flight need.
  @warm_up 3
  @batches 5
  @batch_us 1_000_000

  def main([part, name | options]) when part in ["--row", "--first"] do
    sizes = if "small" in options, do: @small, else: @sizes
    {_, module, config, inputs, kind} = sizes |> rows(options) |> List.keyfind(name, 0)
    if module not in [:lstm, :unet], do: Bumblebee.compile(~w(text/bert text/llama text/gpt2 vision/resnet vision/vit))
    Nx.default_backend(VulkanoBackend)
    Nx.Defn.default_options(compiler: Nx.Vulkan)
    {init, step} = step(module, config, kind, "checkpoints" in options)
    # No two batches that follow one another are the same.
    inputs = inputs.()
    others = Map.new(inputs, fn {name, tensor} -> {name, Nx.reverse(tensor)} end)
    batches = List.to_tuple(for inputs <- [inputs, others], do: {inputs, labels(module, config, inputs)})
    Process.put(:state, init.(elem(batches, 0), Axon.ModelState.empty()))

    step = fn state ->
      turn = Process.get(:turn, 0)
      Process.put(:turn, 1 - turn)
      step.(elem(batches, turn), if("donated" in options, do: Nx.donatable(state), else: state))
    end

    columns =
      cond do
        part == "--first" -> [first(step)]
        "long" in options -> long(step)
        true -> row(step)
      end

    IO.puts(Enum.map_join(columns, &" #{&1} |"))
  end

  def main(arguments) do
    {options, wanted} = Enum.split_with(arguments, &(&1 in @options))
    sizes = if "small" in options, do: @small, else: @sizes
    names = for {name, _, _, _, _} <- rows(sizes, options), do: name
    strays = Enum.reject(wanted, fn part -> Enum.any?(names, &(&1 =~ part)) end)

    if strays != [] do
      Mix.raise(
        "no row has #{Enum.map_join(strays, ", ", &inspect/1)} in its name: #{Enum.map_join(names, "; ", & &1)}"
      )
    end

    {:ok, info} = NativeV.device_describe()
    columns = if "long" in options, do: @long_columns, else: @columns
    [nx, axon] = for app <- [:nx, :axon], do: Application.spec(app, :vsn)

    IO.puts("""
    #{info.name}, #{info.driver}; Elixir #{System.version()}, OTP #{System.otp_release()}, Nx #{nx}, Axon #{axon}

    | #{Enum.map_join(columns, &" | #{&1}")} |
    |---|#{Enum.map_join(columns, fn _ -> "---:|" end)}\
    """)

    for name <- names, wanted == [] or Enum.any?(wanted, &(name =~ &1)), do: alone(name, options)
  end

  defp alone(name, options) do
    cache = Path.join(System.tmp_dir!(), "nx_vulkan_training_#{System.unique_integer([:positive])}_#{System.pid()}")
    File.mkdir_p!(cache)
    env = [NX_VULKAN_CACHE_DIR: cache, MESA_SHADER_CACHE_DISABLE: "true", __GL_SHADER_DISK_CACHE: "0"]
    env = for {variable, value} <- env, do: {Atom.to_string(variable), value}
    # The second VM finds in the cache what the first one compiled.
    parts = if "long" in options, do: ["--row"], else: ["--row", "--first"]

    columns =
      for part <- parts do
        arguments = ["run", "--no-compile", __ENV__.file, part, name | options]
        {columns, status} = System.cmd("mix", arguments, env: env)
        # What else it says stands before.
        {others, [columns]} = columns |> String.trim_trailing() |> String.split("\n") |> Enum.split(-1)
        Enum.each(others, &IO.puts(:stderr, &1))
        if status == 0, do: columns, else: " failed |"
      end

    File.rm_rf!(cache)
    IO.puts("| #{name} |#{columns}")
  end

  defp rows(sizes, options) do
    suffix = for option <- ["donated", "checkpoints"], option in options, into: "", do: ", " <> option
    {lstm, unet} = {sizes.lstm, sizes.unet}
    {side, images} = {elem(sizes.images, 1), fn -> images(sizes.images) end}
    classes = [architecture: :for_image_classification, num_labels: 2]
    language = [architecture: :for_causal_language_modeling]
    x = fn {n, length} -> "#{n} x #{length}" end

    models = [
      {"BERT base, #{x.(sizes.sentences)}", Text.Bert,
       [architecture: :for_sequence_classification, num_labels: 2] ++ sizes.bert,
       fn -> words(sizes.sentences, sizes.bert[:vocab_size]) end},
      {"ResNet-50, #{x.(sizes.images)}", Vision.ResNet, classes ++ sizes.resnet, images},
      {"GPT-2, #{x.(sizes.texts)}", Text.Gpt2, language ++ sizes.gpt2,
       fn -> words(sizes.texts, sizes.gpt2[:vocab_size]) end},
      {"ViT base, #{x.(sizes.images)}", Vision.Vit, [image_size: side] ++ classes ++ sizes.vit, images},
      {"Llama 100M, #{x.(sizes.long_texts)}", Text.Llama, language ++ sizes.llama,
       fn -> words(sizes.long_texts, sizes.llama[:vocab_size]) end},
      # :dynamic is a `while`: Nx 0.13.0 and 0.13.1 get its gradients wrong, later ones take n^2 steps for them.
      {"LSTM 2 x #{lstm.units}, #{x.(lstm.texts)}", :lstm, [unroll: :static] ++ Map.to_list(lstm),
       fn -> words(lstm.texts, lstm.words) end},
      {"LSTM 2 x #{lstm.units}, #{x.(lstm.texts)}, in a while", :lstm, [unroll: :dynamic] ++ Map.to_list(lstm),
       fn -> words(lstm.texts, lstm.words) end},
      {"U-Net, #{x.(unet.images)}", :unet, Map.to_list(unet), fn -> images(unet.images) end}
    ]

    for {name, module, options, inputs} <- models, kind <- @kinds do
      {"#{name}, #{kind}#{suffix}", module, options, inputs, kind}
    end
  end

  defp first(step) do
    wait()
    step |> timed(1) |> time()
  end

  defp row(step) do
    # What making the state left behind is no part of a step.
    :erlang.garbage_collect()
    wait()
    before = NativeV.device_stats()
    first_us = timed(step, 1)
    run(step, @warm_up)
    once_us = timed(step, 1)
    steps = @batch_us |> div(max(once_us, 1)) |> max(1) |> min(200)
    dispatches = NativeV.device_stats().dispatches
    times = for _ <- 1..@batches, do: timed(step, steps) / steps
    stats = NativeV.device_stats()
    sound!()
    # Where no step takes more than making the first state did, the peak is below that.
    peak = "#{if stats.peak_bytes == before.peak_bytes, do: "< "}#{gigabytes(stats.peak_bytes)}"
    dispatches = (stats.dispatches - dispatches) / (steps * @batches)
    a_step = times |> Enum.sort() |> Enum.at(div(@batches, 2))
    [parameters(), time(first_us), time(a_step), peak, number(dispatches, 1)]
  end

  defp timed(step, steps) do
    start = System.monotonic_time(:microsecond)
    run(step, steps)
    System.monotonic_time(:microsecond) - start
  end

  # The loss is read at every fiftieth step, as Axon's loop prints it.
  defp long(step) do
    counted = fn ->
      :erlang.garbage_collect()
      wait()
      # The BEAM ends resources some time after the collection.
      Process.sleep(500)
      NativeV.device_stats()
    end

    run(step, 50)
    early = counted.()
    {us, _} = :timer.tc(fn -> for _ <- 1..199, do: run(step, 50) end)
    late = counted.()
    sound!()
    in_use = Enum.map([early, late], &gigabytes(&1.in_use_bytes))
    [time(us / (199 * 50))] ++ in_use ++ Enum.map([early, late], & &1.pipelines)
  end

  defp sound! do
    loss = Nx.to_number(Process.get(:state).loss)
    if not is_number(loss), do: raise("the loss is #{inspect(loss)}")
  end

  # Between runs the state is in the process dictionary: a function that has it in a variable may keep it, with all of
  # its memory, until the function ends.
  defp run(step, steps) do
    Process.put(:state, Enum.reduce(1..steps, Process.delete(:state), fn _, state -> step.(state) end))
    wait()
  end

  defp wait, do: Nx.to_binary(Process.get(:state).loss)

  ## The step

  # Parameters are f32 whatever the type.
  defp step(module, options, kind, checkpoints?) do
    compute = if kind == "f32", do: {:f, 32}, else: {:bf, 16}
    narrow? = kind == "bf16, narrow gradients"
    output = if narrow?, do: compute, else: {:f, 32}
    policy = Axon.MixedPrecision.create_policy(params: {:f, 32}, compute: compute, output: output)
    model = module |> model(options) |> Axon.MixedPrecision.apply_policy(policy)
    model = if checkpoints?, do: Nx.Vulkan.checkpoint(model, &String.ends_with?(&1, "self_attention_norm")), else: model
    model = if narrow?, do: model |> narrow_gradients() |> Axon.nx(&widen/1), else: model
    loss = &Axon.Losses.categorical_cross_entropy(&1, &2, from_logits: true, reduction: :mean, sparse: true)
    {init, step} = Axon.Loop.train_step(model, loss, Polaris.Optimizers.adam(learning_rate: 1.0e-5))
    {init, Nx.Defn.jit(step)}
  end

  # As in guides/mixed_precision.md: gradients go on in the types of the layers' results.
  defp widen(x), do: Nx.Defn.Kernel.custom_grad(Nx.as_type(x, :f32), [x], fn g -> [Nx.as_type(g, x.type)] end)

  defp narrow(%Nx.Tensor{type: {:bf, 16}} = x),
    do: Nx.Defn.Kernel.custom_grad(x, [x], fn g -> [Nx.as_type(g, x.type)] end)

  defp narrow(x), do: x

  defp narrow_gradients(model) do
    model
    |> Axon.map_nodes(fn
      %{op: :lstm} = node -> %{node | op: &narrow_lstm/7}
      node -> node
    end)
    |> Axon.rewrite_nodes(fn
      %{parent: []} -> :skip
      %{op_name: name} when name in [:container, :optional] -> :skip
      _ -> fn [x | _], result -> Axon.layer(fn result, _, _ -> narrow(result) end, [result, x]) end
    end)
  end

  defp narrow_lstm(input, carry, mask, input_kernel, hidden_kernel, bias, options) do
    [gate, activation] =
      for name <- [options[:gate], options[:activation]], do: fn x -> narrow(apply(Axon.Activations, name, [x])) end

    unroll = if options[:unroll] == :static, do: &Axon.Layers.static_unroll/7, else: &Axon.Layers.dynamic_unroll/7
    cell = &Axon.Layers.lstm_cell(&1, &2, &3, &4, &5, &6, gate, activation)
    unroll.(cell, input, carry, mask, input_kernel, hidden_kernel, bias)
  end

  defp model(:lstm, options) do
    Enum.reduce(1..2, Axon.embedding(Axon.input("input_ids"), options[:words], options[:units]), fn _, x ->
      {x, _} = x |> Axon.dropout(rate: 0.5) |> Axon.lstm(options[:units], unroll: options[:unroll])
      x
    end)
    |> Axon.dropout(rate: 0.5)
    |> Axon.dense(options[:words])
    |> rows()
  end

  defp model(:unet, options) do
    {filters, [deepest]} = Enum.split(options[:filters], -1)

    {x, skipped} =
      Enum.reduce(filters, {Axon.input("pixel_values"), []}, fn n, {x, skipped} ->
        x = convolutions(x, n)
        {Axon.max_pool(x, kernel_size: 2), [{x, n} | skipped]}
      end)

    Enum.reduce(skipped, convolutions(x, deepest), fn {skip, n}, x ->
      up = Axon.conv_transpose(x, n, kernel_size: 2, strides: 2)
      convolutions(Axon.concatenate(skip, up), n)
    end)
    |> Axon.conv(2, kernel_size: 1)
    |> rows()
  end

  defp model(module, options) do
    module |> struct(options) |> Bumblebee.build_model() |> Axon.nx(& &1.logits) |> rows()
  end

  defp convolutions(x, n) do
    Enum.reduce(1..2, x, fn _, x ->
      x |> Axon.conv(n, kernel_size: 3, padding: :same, use_bias: false) |> Axon.batch_norm() |> Axon.relu()
    end)
  end

  # A row of logits for each label.
  defp rows(model), do: Axon.nx(model, &Nx.reshape(&1, {:auto, Nx.axis_size(&1, -1)}))

  ## The data

  # Classes of images, texts and pixels, or the words of a text, each from those up to it.
  defp labels(module, options, inputs) do
    [given] = for {name, tensor} <- inputs, name != "attention_mask", do: tensor

    cond do
      module == :lstm or options[:architecture] == :for_causal_language_modeling -> Nx.reshape(given, {:auto, 1})
      module == :unet -> given |> Nx.sum(axes: [-1]) |> Nx.greater(0) |> Nx.as_type(:s32) |> Nx.reshape({:auto, 1})
      true -> Nx.remainder(Nx.iota({Nx.axis_size(given, 0), 1}), 2)
    end
  end

  defp words(shape, vocabulary) do
    ids = Nx.remainder(Nx.multiply(Nx.iota(shape), 7919), vocabulary || 30_000)
    %{"input_ids" => ids, "attention_mask" => Nx.broadcast(1, shape)}
  end

  defp images({n, side}) do
    {pixels, _} = Nx.Random.uniform(Nx.Random.key(42), -1.0, 1.0, shape: {n, side, side, 3})
    %{"pixel_values" => pixels}
  end

  defp parameters do
    parameters = Axon.ModelState.trainable_parameters(Process.get(:state).model_state)
    number(Nx.Defn.Composite.reduce(parameters, 0, &(Nx.size(&1) + &2)) / 1.0e6, 1)
  end

  defp time(us), do: "#{number(us / 1000, 1)} ms"
  defp gigabytes(bytes), do: number(bytes / 1.0e9, 3)
  defp number(number, decimals), do: :erlang.float_to_binary(number / 1, decimals: decimals)
end

Training.main(System.argv())
