# What several devices bring: copies between them, a serving with a partition on each, functions on a mesh of them, and
# pipelines with a stage on each, beside one device.
#
#     MIX_ENV=prod mix run bench/devices.exs [small] [DEVICE DEVICE ...]    # indices, two devices by default
#
# With BUMBLEBEE, the folder of a checkout, a serving of BERT base as well (MIX_ENV=test, which has Axon).

if System.get_env("BUMBLEBEE") do
  Code.require_file("bumblebee.exs", __DIR__)
  Bumblebee.compile(~w(text/bert))
end

defmodule BenchDevices do
  @compile {:no_warn_undefined, Bumblebee}

  import Nx.Defn

  alias Nx.Vulkan.{Pipeline, Sharding, VulkanoBackend}

  @calls 7

  def run(small?, devices) do
    Nx.default_backend({VulkanoBackend, device: hd(devices)})

    for device <- devices,
        {:ok, info} = Nx.Vulkan.device_info(device),
        do: IO.puts("#{device}: #{info.name}, #{info.driver}")

    IO.puts("\n| copy from the first device to the second | ms | GB/s |\n|---|---:|---:|")
    for mib <- if(small?, do: [1, 64], else: [1, 16, 64, 256, 1024]), do: copy(mib, devices)
    IO.puts("\n| | one device | #{length(devices)} devices | ratio |\n|---|---:|---:|---:|")
    product(if(small?, do: 512, else: 16_384), :f32, devices)
    product(if(small?, do: 512, else: 16_384), :bf16, devices)

    for batch <- if(small?, do: [64], else: [8_192, 65_536]),
        do: training(batch, if(small?, do: 64, else: 4_096), devices)

    for count <- [1, 2, 4, 8], do: pipeline(if(small?, do: {256, 256}, else: {8_192, 4_096}), count, devices)
    serving(if(small?, do: {8, 64}, else: {64, 4_096}), devices)

    if System.get_env("BUMBLEBEE"),
      do: for(type <- [f: 32, bf: 16], do: bert(type, if(small?, do: 16, else: 128), devices))
  end

  defp copy(mib, [from, to | _]) do
    x = Nx.iota({mib * 262_144}, type: :f32, backend: {VulkanoBackend, device: from})
    wait(x)

    us =
      median(fn ->
        copy = Nx.backend_copy(x, {VulkanoBackend, device: to})
        wait(copy)
        Nx.backend_deallocate(copy)
      end)

    row(["#{mib} MiB", "#{ms(us)} | #{Float.round(mib * 1.048576e6 / us / 1000, 1)}"])
  end

  defn(dot(a, b), do: Nx.dot(a, b))

  defp product(n, type, devices) do
    a = random({n, n}, type)
    single = Nx.Defn.jit(&dot/2, compiler: Nx.Vulkan)
    one = median(fn -> single.(a, a) |> done() end)
    shardings = [%{0 => [0]}, %{}]
    {sharded, mesh} = sharded(&dot/2, shardings, nil, devices)
    pieces = placed([a, a], mesh, shardings, devices)
    several = median(fn -> sharded.(pieces) |> Enum.each(&done/1) end)
    compare("product #{type} #{n}, rows cut", one, several)
  end

  # Four layers, cross-entropy, gradient descent.
  defn loss({w1, w2, w3, w4}, x, y) do
    h = Nx.max(Nx.dot(x, w1), 0)
    h = Nx.max(Nx.dot(h, w2), 0)
    h = Nx.max(Nx.dot(h, w3), 0)
    Nx.mean((Nx.dot(h, w4) - y) ** 2)
  end

  defn step(parameters, x, y) do
    {w1, w2, w3, w4} = parameters
    {g1, g2, g3, g4} = grad(parameters, &loss(&1, x, y))
    {w1 - 0.1 * g1, w2 - 0.1 * g2, w3 - 0.1 * g3, w4 - 0.1 * g4}
  end

  defp training(batch, units, devices) do
    parameters = List.to_tuple(for _ <- 1..4, do: random({units, units}, :bf16) |> Nx.multiply(0.02))
    {x, y} = {random({batch, units}, :bf16), random({batch, units}, :bf16)}
    single = Nx.Defn.jit(&step/3, compiler: Nx.Vulkan)
    one = median(fn -> single.(parameters, x, y) |> done() end)
    shardings = [%{}, %{0 => [0]}, %{0 => [0]}]
    {sharded, mesh} = sharded(&step/3, shardings, List.duplicate(%{}, 4), devices)
    pieces = placed([parameters, x, y], mesh, shardings, devices)
    several = median(fn -> sharded.(pieces) |> Enum.each(&done/1) end)
    compare("step of #{4 * units * units} bf16 parameters, batch of #{batch} cut", one, several)
  end

  defn(predict({w1, w2, w3, w4}, x),
    do: Nx.dot(Nx.max(Nx.dot(Nx.max(Nx.dot(Nx.max(Nx.dot(x, w1), 0), w2), 0), w3), 0), w4)
  )

  defp serving({batch, units}, devices) do
    parameters = List.to_tuple(for _ <- 1..4, do: random({units, units}, :bf16) |> Nx.multiply(0.02))
    row = Nx.broadcast(Nx.tensor(1, type: :bf16, backend: Nx.BinaryBackend), {units})
    served("a batch of #{batch} of a serving", &rounds/2, parameters, row, batch, devices)
  end

  defp bert(type, length, devices) do
    sizes =
      if length < 128, do: [hidden_size: 32, num_blocks: 2, num_attention_heads: 2, intermediate_size: 64], else: []

    spec = struct(Bumblebee.Text.Bert, [architecture: :base] ++ sizes)
    {init, predict} = spec |> Bumblebee.build_model(type) |> Axon.build()
    ids = Nx.broadcast(Nx.tensor(7, type: :s64, backend: Nx.BinaryBackend), {length})

    inputs = %{
      "input_ids" => Nx.new_axis(ids, 0),
      "attention_mask" => Nx.broadcast(Nx.tensor(1, type: :s64), {1, length})
    }

    parameters = Nx.Defn.jit(init, compiler: Nx.Vulkan).(inputs, Axon.ModelState.empty())

    embeddings = fn parameters, ids ->
      predict.(parameters, %{"input_ids" => ids, "attention_mask" => Nx.broadcast(1, Nx.shape(ids))}).pooled_state
    end

    served("32 texts of #{length} by BERT in #{Nx.Type.to_string(type)}", embeddings, parameters, ids, 32, devices)
  end

  # Eight clients with a batch each, forty times, by one partition and by one on each device. The first ten are not
  # counted: a partition's first calls compile.
  defp served(name, fun, parameters, row, batch, devices) do
    [one, several] =
      for partitions <- [[hd(devices)], devices] do
        serving =
          Nx.Serving.new(
            fn opts ->
              copy = &Nx.backend_copy(&1, Nx.Defn.to_backend(opts))
              parameters = Nx.Defn.Composite.traverse(parameters, copy)
              predict = Nx.Defn.jit(fun, opts)
              fn batch -> predict.(parameters, batch) end
            end,
            compiler: Nx.Vulkan,
            devices: partitions
          )

        {:ok, pid} = Nx.Serving.start_link(name: BenchServing, serving: serving, batch_size: batch, partitions: true)
        ask = fn -> Nx.Serving.batched_run(BenchServing, Nx.Batch.stack(List.duplicate(row, batch))) |> wait() end

        clients = fn times ->
          1..8
          |> Enum.map(fn _ -> Task.async(fn -> for(_ <- 1..times, do: ask.()) end) end)
          |> Task.await_many(:infinity)
        end

        clients.(10)
        {us, _} = :timer.tc(fn -> clients.(40) end)
        Supervisor.stop(pid)
        us / 320
      end

    compare(name <> ", 8 clients", one, several)
  end

  # As much as a model of many layers.
  defn rounds(parameters, x) do
    {x, _, _} =
      while {x, parameters, i = 0}, i < 20 do
        {predict(parameters, x), parameters, i + 1}
      end

    x
  end

  # As many layers on each device, beside all of them on one.
  defp pipeline({batch, units}, count, devices) do
    parameters = List.to_tuple(for _ <- 1..4, do: random({units, units}, :bf16) |> Nx.multiply(0.02))
    x = random({batch, units}, :bf16)
    stages = for device <- devices, do: {&rounds/2, parameters, device}
    all = Enum.map(stages, &elem(&1, 1)) |> List.to_tuple()
    whole = fn all, x -> all |> Tuple.to_list() |> Enum.reduce(x, &rounds/2) end
    single = Nx.Defn.jit(whole, compiler: Nx.Vulkan)
    one = median(fn -> single.(all, x) |> done() end)
    pipeline = Pipeline.new(stages, micro_batches: count)
    several = median(fn -> pipeline |> Pipeline.run(x) |> done() end)
    compare("batch of #{batch} through #{80 * length(devices)} layers in stages, micro-batches: #{count}", one, several)
  end

  defp sharded(fun, shardings, outputs, devices) do
    mesh = %Nx.Mesh{name: "mesh", shape: {length(devices)}}
    opts = [compiler: Nx.Vulkan, input_shardings: shardings, output_shardings: outputs, devices: devices]
    {Nx.Defn.shard_jit(fun, mesh, opts), mesh}
  end

  defp placed(args, mesh, shardings, devices) do
    for {pieces, device} <- Enum.zip(Sharding.split(args, mesh, shardings), devices) do
      copy = &Nx.backend_copy(&1, {VulkanoBackend, device: device})
      Enum.map(pieces, fn container -> Nx.Defn.Composite.traverse(container, copy) end)
    end
  end

  defp random(shape, type) do
    {x, _} = Nx.Random.uniform(Nx.Random.key(1), -1, 1, shape: shape, type: type)
    wait(x)
    x
  end

  defp done(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> Enum.each(&done/1)

  defp done(tensor) do
    wait(tensor)
    Nx.backend_deallocate(tensor)
  end

  # An element on the host.
  defp wait(tensor), do: tensor |> Nx.to_binary(limit: 1)

  defp median(fun) do
    for _ <- 1..2, do: fun.()
    times = for _ <- 1..@calls, do: fun |> :timer.tc() |> elem(0)
    times |> Enum.sort() |> Enum.at(div(@calls, 2))
  end

  defp compare(name, one, several),
    do: row([name, "#{ms(one)} ms", "#{ms(several)} ms", "#{Float.round(one / several, 2)}"])

  defp ms(us), do: Float.round(us / 1000, 2)
  defp row(cells), do: IO.puts("| " <> Enum.join(cells, " | ") <> " |")
end

{small, devices} = Enum.split_with(System.argv(), &(&1 == "small"))

devices =
  if devices == [], do: Nx.Vulkan.Devices.partitions() |> Enum.take(2), else: Enum.map(devices, &String.to_integer/1)

BenchDevices.run(small != [], if(length(devices) > 1, do: devices, else: List.duplicate(hd(devices), 2)))
