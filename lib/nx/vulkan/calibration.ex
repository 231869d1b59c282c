defmodule Nx.Vulkan.Calibration do
  @usage """
  usage: [--forget | --help]

    --forget   deletes what was measured on the device, whatever its driver was
    --help     prints this

  Without any, measures the device in use for a second or two, tells how far it is, then the numbers, and where they are
  kept in the folder of the cache. Nothing else should use the device meanwhile.
  """

  @moduledoc """
  What is measured on a device, so that kernels are chosen by what it can do.

  Which kernels run, and with how many workgroups, depends on a model of the device: on what its driver says, and on
  guesses by its class where nothing was measured. VMs that start after a measurement use the measured numbers instead;
  those that run stay as they are. The file is that of one device and driver: a new driver wants a new measurement, and
  deleting the file brings the guesses back. Results may differ in their last digits from those before, as other kernels
  add up in another order.

      Nx.Vulkan.Calibration.run([])

  from a release does what `mix nx_vulkan.calibrate` does, which prints

        1 of 6: copies
        2 of 6: fma in f32, about 2.4 s left
        ...
      llvmpipe (LLVM 19.1.7, 256 bits) (CPU, 2 processors)
        copies                           11.02 GB/s
        fma in f32                       38.77 GFLOP/s
        a dispatch                       3.36 us
        one that waits                   8.52 us
        products of f32                  22.90 GFLOP/s
        products of f64                  10.31 GFLOP/s
      kept in /home/me/.cache/nx_vulkan/tuning/10005-6d65736132352e302e372d322b646500-00000001.json
  """

  alias Nx.Vulkan.{Cache, Error, Library, NativeV, Tasks}

  @doc false
  def usage, do: @usage

  @doc """
  Does what the arguments of `mix nx_vulkan.calibrate` say, and returns the exit status: 0, 1 where there is no device
  or it fails, 2 for other arguments.

  ## Options

    * `:print` - a function of a line, `IO.puts/1` unless set
  """
  @spec run([String.t()], keyword) :: 0..2
  def run(args, opts \\ []) do
    print = Keyword.validate!(opts, print: &IO.puts/1)[:print]

    case OptionParser.parse(args, strict: [forget: :boolean, help: :boolean], aliases: [h: :help]) do
      {[help: true], [], []} -> done(print.(@usage), 0)
      {[], [], []} -> on_device(&say_measured(&1, print), print)
      {[forget: true], [], []} -> on_device(&say_forgotten(&1, print), print)
      _other -> done(print.(@usage), 2)
    end
  end

  defp done(_printed, status), do: status

  defp on_device(fun, print) do
    with nil <- Library.error(),
         {:ok, _apps} <- Application.ensure_all_started(:nx_vulkan),
         {:ok, device} <- Nx.Vulkan.device_info(),
         :ok <- fun.(device) do
      0
    else
      {:error, %Error{} = error} -> done(print.(Exception.message(error)), 1)
      {:error, reason} -> done(print.("the application can't be started: #{inspect(reason)}"), 1)
      why -> done(print.("the native library can't be loaded: #{why}"), 1)
    end
  end

  @doc """
  Measures the default device, which this opens if need be, and keeps what was found for VMs that start from then on.

  `progress` is called in this process before each of the `of` measurements with what is measured, and `at`, from 0 on.

  ## Units

  The answer has `:bytes_per_second` of copies, `:flops_per_second` of fma in f32, `:dispatch_ns` and `:wait_ns` of a
  dispatch beside others and of one that waits for another, in nanoseconds, and multiplications of products in
  `:f32_products_per_second`, `:f64_products_per_second` and `:unit_products_per_second` of f16 on matrix units, nil
  where the device has none. Then the device's `:class`, its number of `:processors`, and the `:path` of the file, nil
  where the folder of the cache can't be written.

  ## Errors

  As `Nx.Vulkan.init/0`, `:out_of_memory`, and what a device that fails answers.
  """
  @spec measure((String.t(), non_neg_integer, pos_integer -> term)) :: {:ok, map} | {:error, Error.t()}
  def measure(progress \\ fn _what, _at, _of -> :ok end) do
    caller = self()
    measuring = Task.async(fn -> NativeV.device_calibrate(caller, nil) end)

    with {:error, kind, message} <- await(measuring, progress) do
      {:error, Error.exception(kind: kind, op: :calibrate, message: message)}
    end
  end

  defp await(%Task{ref: ref} = measuring, progress) do
    receive do
      {:nx_vulkan_calibration, what, at, of} ->
        progress.(what, at, of)
        await(measuring, progress)

      {^ref, measured} ->
        Process.demonitor(ref, [:flush])
        Tasks.forget([measuring])
        measured

      {:DOWN, ^ref, :process, _pid, reason} ->
        exit(reason)
    end
  end

  @doc """
  The files of what was measured on a device of `t:Nx.Vulkan.device/0`, whatever its driver was: the newest first.
  """
  @spec files(map) :: [Path.t()]
  def files(device) do
    with folder when is_binary(folder) <- Cache.folder(:tuning), {:ok, names} <- File.ls(folder) do
      # By the name too, as drivers of Mesa have another UUID in each version.
      names
      |> Enum.filter(&(Path.extname(&1) == ".json"))
      |> Enum.map(&Path.join(folder, &1))
      |> Enum.filter(&of?(&1, device))
      |> Enum.sort_by(&modified/1, :desc)
    else
      _no_folder -> []
    end
  end

  defp of?(path, device) do
    case read(path) do
      {:ok, file} -> file["uuid"] == device.uuid or file["device"] == device.name
      # A damaged file counts for nobody but the device after which it is named.
      :error -> String.contains?(Path.basename(path), device.uuid)
    end
  end

  @doc false
  # What a file says of what was measured, where it is not damaged.
  def read(path) do
    with {:ok, text} <- File.read(path), {:ok, %{} = file} <- JSON.decode(text), do: {:ok, file}, else: (_ -> :error)
  end

  defp modified(path) do
    case File.stat(path, time: :posix) do
      {:ok, %{mtime: time}} -> time
      {:error, _gone} -> 0
    end
  end

  defp say_forgotten(device, print) do
    case files(device) do
      [] -> print.("nothing was measured on #{device.name}")
      files -> for path <- files, File.rm(path) == :ok, do: print.("deleted #{path}")
    end

    :ok
  end

  defp say_measured(device, print) do
    begin = now_ms()

    with {:ok, found} <- measure(&print.(progress(&1, &2, &3, now_ms() - begin))) do
      Enum.each(lines(device.name, found), print)
    end
  end

  defp progress(what, 0, of, _elapsed_ms), do: "  1 of #{of}: #{what}"

  defp progress(what, at, of, elapsed_ms) do
    "  #{at + 1} of #{of}: #{what}, about #{decimal(elapsed_ms / at * (of - at) / 1000, 1)} s left"
  end

  defp now_ms, do: System.monotonic_time(:millisecond)

  # Products are counted in multiplications.
  defp lines(name, found) do
    numbers = [
      {"copies", "GB/s", found.bytes_per_second, 1.0e9},
      {"fma in f32", "GFLOP/s", found.flops_per_second, 1.0e9},
      {"a dispatch", "us", found.dispatch_ns, 1.0e3},
      {"one that waits", "us", found.wait_ns, 1.0e3},
      {"products of f32", "GFLOP/s", found.f32_products_per_second, 0.5e9},
      {"products of f64", "GFLOP/s", found.f64_products_per_second, 0.5e9},
      {"products of f16 on matrix units", "GFLOP/s", found.unit_products_per_second, 0.5e9}
    ]

    measured =
      for {what, unit, number, of} when is_number(number) <- numbers,
          do: "  #{String.pad_trailing(what, 32)} #{decimal(number / of, 2)} #{unit}"

    kept = if found.path, do: "kept in #{found.path}", else: "not kept: the folder of the cache can't be written"
    ["#{name} (#{found.class}, #{found.processors} processors)"] ++ measured ++ [kept]
  end

  defp decimal(number, decimals), do: :erlang.float_to_binary(number / 1, decimals: decimals)
end
