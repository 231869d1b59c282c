# Trains a small neural network to read handwritten digits, on the Vulkan device.
# Exits with 1 where it reads fewer than 95 % of the images that it has not seen in training.
#
#     mix run examples/digits.exs

Code.require_file("digits/data.exs", __DIR__)
Code.require_file("digits/network.exs", __DIR__)

defmodule Digits do
  @moduledoc """
  Trains `Digits.Network` on the images of `Digits.Data` with `Nx.Vulkan.Compiler` and tests it, then takes steps op by
  op, and the first ones on `Nx.BinaryBackend` as well.
  """

  alias Digits.{Data, Network}

  @train 1437
  @seed 42
  @batch 64
  @steps_per_epoch div(@train, @batch)
  @epochs 25
  @steps @epochs * @steps_per_epoch
  @accuracy_limit 0.95

  # Steps that show the speed of others than the compiler. Nx.BinaryBackend computes in Elixir: a few of its show that
  # it has the same losses, but for rounding.
  @steps_op_by_op 100
  @steps_beside 3
  @loss_tolerance 1.0e-3

  def main do
    with {:error, error} <- Nx.Vulkan.init(), do: raise(error)
    device = Nx.Vulkan.device_name()
    # Tensors are made on the device from here on.
    Nx.default_backend(Nx.Vulkan.VulkanoBackend)
    {train, {test_images, test_labels}} = Data.split(@train, @seed)

    IO.puts("""
    handwritten digits, f32 on #{device}
    #{@train} images to train on, #{Nx.size(test_labels)} to test with, seed #{@seed}
    #{@epochs} epochs of #{@steps_per_epoch} batches of #{@batch} images
    """)

    {prepare_us, {state, step}} = :timer.tc(fn -> prepare(train) end)

    IO.puts(
      "the first step took #{format(prepare_us / 1.0e6, 1)} s: it compiles kernels, which later runs find on disk"
    )

    {train_us, {parameters, _means, _squares, _t}} = :timer.tc(fn -> train(step, state, train) end)
    steps_per_s = @steps / (train_us / 1.0e6)
    accuracy = accuracy(Network.classify(parameters, test_images), test_labels)

    IO.puts(
      "test accuracy #{percent(accuracy)}; #{@steps} steps in #{format(train_us / 1.0e6, 1)} s, " <>
        "#{format(steps_per_s, 1)} a second"
    )

    faults =
      compare(step, state, train, steps_per_s) ++
        if accuracy < @accuracy_limit,
          do: ["test accuracy is #{percent(accuracy)}, below #{percent(@accuracy_limit)}"],
          else: []

    Enum.each(faults, &IO.puts(:stderr, "wrong: #{&1}"))
    name = String.replace(device, " ", "_")
    IO.puts("result: device=#{name} accuracy=#{format(accuracy, 4)} steps_per_s=#{format(steps_per_s, 1)}")
    if faults != [], do: System.halt(1)
  end

  # The initial state and the compiled step, after a first step that nothing follows from.
  defp prepare(train) do
    state = Network.init(Nx.Random.key(@seed))
    {images, labels} = train |> epoch(1) |> Enum.at(0)
    step = Nx.Defn.compile(&Network.step/3, [state, images, labels], compiler: Nx.Vulkan)
    losses(step, state, train, 1)
    {state, step}
  end

  # A step whose ops run one by one on the backend of the tensors. This derives the gradient once; calling
  # `Network.step/3` would do so at each step.
  defp op_by_op(state, train) do
    {images, labels} = train |> epoch(1) |> Enum.at(0)
    Nx.Defn.compile(&Network.step/3, [state, images, labels], compiler: Nx.Defn.Evaluator)
  end

  defp op_by_op_per_s(state, train) do
    step = op_by_op(state, train)
    run = fn count -> losses(step, state, train, count) end
    run.(1)

    {us, _losses} =
      :timer.tc(fn -> Enum.each(1..div(@steps_op_by_op, @steps_per_epoch), fn _ -> run.(@steps_per_epoch) end) end)

    div(@steps_op_by_op, @steps_per_epoch) * @steps_per_epoch / (us / 1.0e6)
  end

  # The batches of an epoch: all images in an order of that epoch's own. What is left over waits for another epoch.
  defp epoch({images, labels}, number) do
    order = @train |> Data.permutation(@seed + number) |> Nx.tensor()
    batches = fn tensor -> tensor |> Nx.take(order) |> Nx.to_batched(@batch, leftover: :discard) end
    Stream.zip(batches.(images), batches.(labels))
  end

  defp train(step, state, train) do
    Enum.reduce(1..@epochs, state, fn number, state ->
      {state, total} =
        train
        |> epoch(number)
        |> Stream.with_index(1)
        |> Enum.reduce({state, 0}, fn {{images, labels}, i}, {state, total} ->
          progress(number, i)
          {loss, state} = step.(state, images, labels)
          {state, Nx.add(total, loss)}
        end)

      # Reading the loss is the only wait for the device.
      IO.puts(" loss #{format(Nx.to_number(total) / @steps_per_epoch, 4)}")
      state
    end)
  end

  defp progress(epoch, step) do
    filled = div(30 * step, @steps_per_epoch)

    IO.write(
      "\repoch #{String.pad_leading("#{epoch}", 2)} " <>
        "[#{String.duplicate("#", filled)}#{String.duplicate(".", 30 - filled)}]"
    )
  end

  # The losses of the first steps of the first epoch.
  defp losses(step, state, train, count) do
    {losses, _state} =
      train
      |> epoch(1)
      |> Enum.take(count)
      |> Enum.map_reduce(state, fn {images, labels}, state -> step.(state, images, labels) end)

    Enum.map(losses, &Nx.to_number/1)
  end

  # Takes the first steps on both backends; returns what is wrong.
  defp compare(step, state, train, steps_per_s) do
    ours = losses(step, state, train, @steps_beside)
    op_by_op_per_s = op_by_op_per_s(state, train)
    [state, train] = Enum.map([state, train], &Nx.backend_copy(&1, Nx.BinaryBackend))

    {us, theirs} =
      Nx.with_default_backend(Nx.BinaryBackend, fn ->
        step = op_by_op(state, train)
        :timer.tc(fn -> losses(step, state, train, @steps_beside) end)
      end)

    theirs_per_s = @steps_beside / (us / 1.0e6)
    list = fn losses -> Enum.map_join(losses, ", ", &format(&1, 4)) end

    IO.puts("""

    the first #{@steps_beside} steps  losses                  steps a second
    compiled           #{list.(ours)}  #{format(steps_per_s, 1)}
    op by op           #{String.duplicate(" ", 22)}  #{format(op_by_op_per_s, 1)}
    Nx.BinaryBackend   #{list.(theirs)}  #{format(theirs_per_s, 2)}
    """)

    if Enum.zip(ours, theirs) |> Enum.all?(fn {a, b} -> abs(a - b) <= @loss_tolerance end),
      do: [],
      else: ["the losses differ by more than #{@loss_tolerance}"]
  end

  defp accuracy(classes, labels), do: classes |> Nx.equal(labels) |> Nx.mean() |> Nx.to_number()
  defp percent(share), do: "#{format(100 * share, 1)} %"
  defp format(x, digits), do: :erlang.float_to_binary(x / 1, decimals: digits)
end

Digits.main()
