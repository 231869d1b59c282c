defmodule Nx.Vulkan.LostDevice do
  @moduledoc """
  Steps on two devices of which one is lost in the middle, on a node of `Nx.Vulkan.Faults`; what came of them.
  """

  import Nx.Defn

  alias Nx.Vulkan.{Devices, Faults, NativeV, Pipeline, Sharding}
  alias Nx.Vulkan.VulkanoBackend, as: B

  @doc """
  A pipeline of two stages whose second device is lost while both have a micro-batch, the first one its second.
  """
  def pipeline(layer, [first, second]) do
    here = self()

    stages = fn devices ->
      for {device, number} <- Enum.with_index(devices), do: {met(here, number), weights(number), device}
    end

    pipeline = Pipeline.new(stages.([first, second]), micro_batches: 3)
    x = Nx.iota({6, 64}, type: :f32, backend: Nx.BinaryBackend)
    expected = driven(pipeline, x)
    before = in_use(first)

    run = Task.async(fn -> caught(fn -> Pipeline.run(pipeline, x) end) end)
    go(await(0))
    {_first, second_stage} = {await(0), await(1)}
    # Nothing else is under way, so it is the second device that submits next.
    Faults.lose(layer)
    go(second_stage)
    error = Task.await(run, 60_000)
    after_loss = in_use(first)

    %{
      error: error,
      expected: expected,
      kept: {before, after_loss},
      # All on the device that is left.
      again: [first, first] |> stages.() |> Pipeline.new(micro_batches: 3) |> driven(x),
      lost: Devices.lost(),
      placing: caught(fn -> Pipeline.new(stages.([first, second])) end)
    }
  end

  defp weights(number),
    do: Nx.broadcast(Nx.tensor(0.5 + number, backend: Nx.BinaryBackend), {64, 64}) |> Nx.add(Nx.iota({64, 64}))

  # A product, once the process that is told of it says so.
  defp met(here, number) do
    fn w, x ->
      x =
        Nx.runtime_call(Nx.template(x.shape, :f32), x, [], fn x, [] ->
          send(here, {:at, number, self()})

          receive do
            :go -> x
          end
        end)

      Nx.tanh(Nx.dot(x, Nx.divide(w, 4096)))
    end
  end

  defp await(number) do
    receive do
      {:at, ^number, pid} -> pid
    after
      60_000 -> raise "stage #{number} did not come"
    end
  end

  defp go(pid), do: send(pid, :go)

  # A run in which nobody has to wait for long.
  defp driven(pipeline, x) do
    run = Task.async(fn -> pipeline |> Pipeline.run(x) |> bits() end)
    for _ <- 1..6, do: receive(do: ({:at, _number, pid} -> go(pid)))
    Task.await(run, 60_000)
  end

  @doc """
  Gradients through a pipeline of two stages, of which the device is lost that does the `call`-th submission.
  """
  def training(layer, devices, call) do
    stages = fn devices ->
      for {device, number} <- Enum.with_index(devices), do: {&product/2, weights(number), device}
    end

    pipeline = Pipeline.new(stages.(devices), micro_batches: 4)
    x = Nx.iota({8, 64}, type: :f32, backend: Nx.BinaryBackend) |> Nx.divide(512)

    gradients = fn pipeline ->
      {loss, gradients, _pipeline} = Pipeline.value_and_grad(pipeline, x, x, &loss/2)
      Enum.map([loss | gradients], &bits/1)
    end

    again = fn left -> [left, left] |> stages.() |> Pipeline.new(micro_batches: 4) |> gradients.() end
    losing(layer, devices, call, fn -> gradients.(pipeline) end, again)
  end

  # Steps on two devices, of which one is lost on the way, and `again` on the one that is left.
  defp losing(layer, devices, call, step, again) do
    expected = apart(step)
    before = Map.new(devices, &{&1, in_use(&1)})
    Faults.lose(layer, call)
    # Until it has done so many submissions.
    error = apart(fn -> caught(fn -> for(_ <- 1..(3 * call), do: step.()) end) end)
    lost = apart(fn -> Devices.lost() end)
    [left] = devices -- lost
    %{error: error, expected: expected, lost: lost, kept: {before[left], in_use(left)}, again: again.(left)}
  end

  defn(product(w, x), do: Nx.tanh(Nx.dot(x, w / 4096)))
  defn(loss(y, x), do: Nx.mean((x - y) ** 2))

  @doc """
  Steps of a training on a mesh of two devices, of which the one is lost that does the `call`-th submission.
  """
  def mesh(layer, devices, call) do
    {x, y} = {Nx.iota({8, 32}, type: :f32, backend: Nx.BinaryBackend) |> Nx.divide(256), Nx.broadcast(0.25, {8, 16})}
    parameters = %{w: Nx.iota({32, 16}, type: :f32, backend: Nx.BinaryBackend) |> Nx.divide(512)}
    step = fn devices -> parameters |> steps(x, y, devices, 3) |> bits() end
    losing(layer, devices, call, fn -> step.(devices) end, &step.([&1, &1]))
  end

  defp steps(parameters, x, y, devices, count) do
    mesh = %Nx.Mesh{name: "mesh", shape: {2}}
    batch = %{0 => [0]}
    opts = [compiler: Nx.Vulkan, devices: devices, input_shardings: [%{}, batch, batch], output_shardings: [%{}]]
    step = Nx.Defn.shard_jit(&step/3, mesh, opts)
    pieces = Sharding.split([x, y], mesh, [batch, batch])

    [first, _second] =
      Enum.reduce(1..count, [parameters, parameters], fn _, copies ->
        copies |> Enum.zip_with(pieces, &[&1 | &2]) |> step.()
      end)

    first.w
  end

  defnp step(parameters, x, y) do
    gradient = grad(parameters, fn %{w: w} -> Nx.mean((Nx.tanh(Nx.dot(x, w)) - y) ** 2) end)
    %{w: parameters.w - 0.5 * gradient.w}
  end

  defp bits(tensor), do: Nx.to_binary(tensor)

  # A process may have what it has done with in a register.
  defp apart(fun), do: fun |> Task.async() |> Task.await(:infinity)

  defp caught(fun) do
    fun.()
    :no_error
  rescue
    error -> error
  end

  # Bytes that are in use on a device, once that does not change any more.
  defp in_use(device, last \\ nil, equal \\ 0) do
    for pid <- Process.list(), do: :erlang.garbage_collect(pid)
    Process.sleep(10)
    now = NativeV.device_stats(device).in_use_bytes
    if equal == 20, do: now, else: in_use(device, now, if(now == last, do: equal + 1, else: 0))
  end

  @doc "The devices by their indices: the default one, and another of the same kind."
  def devices do
    {:ok, %{index: default, name: name}} = Nx.Vulkan.device_info()
    [twin | _] = for %{usable: true, name: ^name, index: index} <- Nx.Vulkan.devices(), index != default, do: index
    for index <- [default, twin], do: Nx.to_binary(Nx.tensor([1], backend: {B, device: index}))
    [] = apart(fn -> Devices.lost() end)
    [default, twin]
  end
end
