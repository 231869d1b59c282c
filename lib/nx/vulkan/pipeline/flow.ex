defmodule Nx.Vulkan.Pipeline.Flow do
  @moduledoc false

  # How micro-batches go through the stages of a pipeline. Each stage is a process, so that what waits for one device
  # does not keep the others. A stage waits for its result before it gives this away: the copy to the next device
  # would come after the next micro-batch otherwise, on a queue that does all in order.

  alias Nx.Defn.Composite
  alias Nx.Vulkan.{Devices, Error, Tasks}
  alias Nx.Vulkan.Pipeline.MicroBatches
  alias Nx.Vulkan.VulkanoBackend, as: B

  @typedoc """
  A function of parameters and input, the index of its device, the parameters there, and the function of a training, nil
  where that is the same; it gives the new state of the layers as well.
  """
  @type stage :: %{fun: fun, device: non_neg_integer, parameters: Nx.Container.t(), train: fun | nil}

  @typedoc "Where a stage stands: its number, the processes before and after it (or nil), and the mark of its messages."
  @type place :: %{
          number: non_neg_integer,
          device: non_neg_integer,
          previous: {pid, stage} | nil,
          next: {pid, stage} | nil,
          mark: reference
        }

  @doc "What the last stage gives for all micro-batches of a batch."
  @spec forward([stage], Nx.Container.t(), pos_integer) :: Nx.Container.t()
  def forward(stages, batch, count) do
    stages
    |> together(fn stage, place ->
      results = micro_batches(0, count, [], batch, stage, place)

      if place.next == nil,
        do: named(place.number, stage.device, fn -> MicroBatches.join(results, batch) end)
    end)
    |> List.last()
  end

  # The results of the last stage; of the others none, who have given them away.
  defp micro_batches(count, count, results, _batch, _stage, _place), do: Enum.reverse(results)

  defp micro_batches(number, count, results, batch, stage, place) do
    # The BEAM does not see what the last micro-batch holds on the device.
    :erlang.garbage_collect()
    result = number |> input(count, batch, stage, place) |> result(stage, place, stage.fun, stage.parameters)

    if place.next == nil do
      micro_batches(number + 1, count, [result | results], batch, stage, place)
    else
      # One waits there at most, while another is computed.
      if number > 0, do: await_taken(place)
      give(:next, result, place)
      micro_batches(number + 1, count, [], batch, stage, place)
    end
  end

  defp input(number, count, batch, stage, %{previous: nil} = place),
    do: named(place.number, stage.device, fn -> batch |> MicroBatches.part(number, count) |> place(stage.device) end)

  defp input(_number, _count, _batch, _stage, %{previous: {pid, _}, mark: mark}) do
    receive do
      {^mark, :next, input} ->
        send(pid, {mark, :taken})
        input
    end
  end

  defp await_taken(%{mark: mark}) do
    receive do
      {^mark, :taken} -> :ok
    end
  end

  @doc "What a function of a stage gives for an input, which is there when this returns."
  @spec result(Nx.Container.t(), stage, place, fun, Nx.Container.t()) :: Nx.Container.t()
  def result(input, stage, place, fun, parameters) do
    of_input(input, place, fn ->
      named(place.number, stage.device, fn -> stage |> call(fun, [parameters, input]) |> wait() end)
    end)
  end

  @doc "Runs what a stage does with an input. What Nx says of shapes that do not fit does not tell which it was given."
  @spec of_input(Nx.Container.t(), place, (-> result)) :: result when result: term
  def of_input(input, place, fun) do
    fun.()
  rescue
    error in ArgumentError ->
      given = if place.previous, do: "stage #{place.number - 1} gave", else: "the batch has"
      message = "#{error.message}\n\n#{given}: #{inspect(Composite.traverse(input, &Nx.to_template/1))}"
      reraise %{error | message: message}, __STACKTRACE__
  end

  @doc """
  Gives a value, which is there, to the stage after or before this one, on the device of that one. A failure is an error
  of that stage, unless this one's device alone is lost.
  """
  @spec give(:next | :previous, Nx.Container.t(), place) :: :ok
  def give(direction, value, %{number: number, device: device, mark: mark} = place) do
    {pid, stage} = Map.fetch!(place, direction)
    receiver = if direction == :next, do: number + 1, else: number - 1

    value =
      try do
        place(value, stage.device)
      rescue
        error in Error ->
          lost = Map.get(error.details, :devices, [])
          own? = device in lost and stage.device not in lost
          named = if own?, do: told(error, number, device), else: told(error, receiver, stage.device)
          reraise named, __STACKTRACE__
      end

    send(pid, {mark, direction, value})
    :ok
  end

  @doc "Compiles a function for the device of a stage, and calls it there."
  @spec call(stage, fun, [Nx.Container.t()]) :: Nx.Container.t()
  def call(%{device: device}, fun, args),
    do: Nx.Defn.jit_apply(fun, args, compiler: Nx.Vulkan, device: device, automatic_transfers: true)

  @doc "A container on a device. Stages use it again, so no call takes its memory, whatever `Nx.donatable/1` says."
  @spec place(Nx.Container.t(), non_neg_integer) :: Nx.Container.t()
  def place(container, device) do
    Composite.traverse(container, fn leaf ->
      leaf |> Nx.to_tensor() |> Nx.backend_copy({B, device: device}) |> Map.replace(:donatable?, false)
    end)
  end

  @doc "Waits until a container is computed, and raises what went wrong."
  @spec wait(Nx.Container.t()) :: Nx.Container.t()
  def wait(container) do
    for leaf <- Composite.flatten_list([container]), do: Nx.to_binary(leaf, limit: 1)
    container
  end

  @doc "Compiles the stages for an input of the first one like `template`, and gives the template of the last result."
  @spec compile([stage], Nx.Container.t()) :: Nx.Container.t()
  def compile(stages, template) do
    {inputs, last} =
      stages
      |> Enum.with_index()
      |> Enum.map_reduce(template, fn {stage, number}, template ->
        args = [Composite.traverse(stage.parameters, &Nx.to_template/1), template]

        result =
          named(number, stage.device, fn ->
            stage.fun |> Nx.Defn.debug_expr_apply(args) |> Composite.traverse(&Nx.to_template/1)
          end)

        {args, result}
      end)

    each([stages, inputs], fn [stage, args] ->
      Nx.Defn.compile(stage.fun, args, compiler: Nx.Vulkan, device: stage.device, automatic_transfers: true)
      :ok
    end)

    last
  end

  ## Processes

  @doc "What `fun` gives for each stage and what else belongs to it, at once; the lists begin with the stages."
  @spec each([list], ([term] -> result)) :: [result] when result: term
  def each([stages | _] = lists, fun) do
    of_each = lists |> Enum.zip_with(& &1) |> List.to_tuple()

    together(stages, fn stage, %{number: number} ->
      named(number, stage.device, fn -> of_each |> elem(number) |> fun.() end)
    end)
  end

  @doc """
  What `fun` gives for each stage and its place, each in a process of its own. What one raises, this raises, after it
  has ended the others.
  """
  @spec together([stage], (stage, place -> result)) :: [result] when result: term
  def together(stages, fun) do
    mark = make_ref()
    tasks = Enum.map(stages, fn stage -> Task.async(fn -> tried(fn -> begin(stage, mark, fun) end) end) end)
    neighbours = Enum.zip(Enum.map(tasks, & &1.pid), stages)
    places = Enum.zip([[nil | neighbours], tl(neighbours) ++ [nil]])

    for {task, {{previous, next}, number}} <- Enum.zip(tasks, Enum.with_index(places)),
        do: send(task.pid, {mark, %{number: number, previous: previous, next: next, mark: mark}})

    try do
      answers = collect(Map.new(tasks, &{&1.ref, &1}), %{})
      Enum.map(tasks, &Map.fetch!(answers, &1.ref))
    after
      Tasks.forget(tasks)
    end
  end

  defp begin(stage, mark, fun) do
    Nx.default_backend({B, device: stage.device})

    receive do
      {^mark, %{} = place} -> fun.(stage, Map.put(place, :device, stage.device))
    end
  end

  defp tried(fun) do
    {:ok, fun.()}
  catch
    kind, reason -> {kind, reason, __STACKTRACE__}
  end

  defp collect(waiting, answers) when map_size(waiting) == 0, do: answers

  defp collect(waiting, answers) do
    receive do
      {ref, {:ok, answer}} when is_map_key(waiting, ref) ->
        Process.demonitor(ref, [:flush])
        collect(Map.delete(waiting, ref), Map.put(answers, ref, answer))

      {ref, {kind, reason, stacktrace}} when is_map_key(waiting, ref) ->
        Process.demonitor(ref, [:flush])
        waiting |> Map.delete(ref) |> end_all()
        :erlang.raise(kind, reason, stacktrace)

      {:DOWN, ref, :process, _pid, reason} when is_map_key(waiting, ref) ->
        waiting |> Map.delete(ref) |> end_all()
        exit(reason)
    end
  end

  defp end_all(waiting), do: waiting |> Map.values() |> Enum.each(&Task.shutdown(&1, :brutal_kill))

  ## Errors

  @doc "Runs `fun`; what it raises names a stage and its device, which is an index, or a selector of none."
  @spec named(non_neg_integer, Devices.selector(), (-> result)) :: result when result: term
  def named(number, device, fun) do
    fun.()
  rescue
    error -> reraise told(error, number, device), __STACKTRACE__
  end

  defp told(%Error{message: message, details: details} = error, number, device) do
    details = details |> Map.put(:stage, number) |> Map.put(:device, device)
    %{error | message: where(number, device) <> message, details: details}
  end

  defp told(%{message: message} = error, number, device) when is_binary(message),
    do: %{error | message: where(number, device) <> message}

  # Errors such as a `KeyError` make their message unless they have one.
  defp told(%{message: nil} = error, number, device),
    do: %{error | message: where(number, device) <> Exception.message(error)}

  # Others, such as a `MatchError`, have no place for it.
  defp told(%kind{} = error, number, device),
    do: RuntimeError.exception("#{where(number, device)}(#{inspect(kind)}) #{Exception.message(error)}")

  defp where(number, device) when is_integer(device), do: "stage #{number} on #{Devices.name(device)}: "
  defp where(number, selector), do: "stage #{number} on device #{inspect(selector)}: "
end
