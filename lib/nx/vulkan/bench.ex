defmodule Nx.Vulkan.Bench do
  alias Nx.Vulkan.Bench.{Measure, Rows, Svg, Text}
  alias Nx.Vulkan.{Calibration, Error, Library, NativeV, Profile}

  @seconds 0.3

  @usage """
  usage: [--only GROUP]... [--seconds N] [--json] [--svg FILE] | --help

    --only GROUP   measures this group of rows alone; may be given more than once. The groups are
                   #{Rows.groups() |> Enum.take(6) |> Enum.join(", ")},
                   #{Rows.groups() |> Enum.drop(6) |> Enum.join(", ")}
    --seconds N    how long each row is measured, #{@seconds} unless set; finding its size takes as long again
    --json         prints all that was found as an object of JSON, when it is complete
    --svg FILE     draws the shares into this file
    --help         prints this

  Takes about a minute. Nothing else should use the device meanwhile.
  """

  @moduledoc """
  Measures what the device in use does with Nx, and how near that is to what the device can do.

      Nx.Vulkan.Bench.run([])

  from a release does what `mix nx_vulkan.bench` does, as `bin/my_app eval "System.halt(Nx.Vulkan.Bench.run([]))"`. It
  prints a line for each row as soon as it is measured:

  ```text
  llvmpipe (LLVM 19.1.7, 256 bits), llvmpipe Mesa 25.0.7-2 (LLVM 19.1.7)
  Limits: copies 21.8 GB/s, f32 34.7 GFLOP/s, f16 34.7 GFLOP/s, bf16 34.7 GFLOP/s; a row may take 4.7 GiB

                              size                                       time     per second  of its limit
  x + 1, f32                  16 Mi                                   36.0 ms      3.73 GB/s  17 % of copies
  sums of rows, f32           16 Ki rows of 1024                      27.9 ms      2.41 GB/s  11 % of copies
  dot, f32                    512 x 512                               10.3 ms   26.1 GFLOP/s  75 % of f32
  small compiled call         16                                      83.1 us              -  -
  ...

  All results are right.
  ```

  ## How to read it

  A row is one call of a compiled numerical definition, but for uploads and downloads. Its size is the largest power of
  two whose call takes up to a tenth of `--seconds` and a quarter of the device's memory. The *time* is that of a call
  where calls follow one another, the median of five batches; what is "each waited for" has the answer on the host
  before the next call begins. So it is the clock of the host, and what the host does for a call is part of it.

  *Per second* are bytes (B/s) or floating-point operations (FLOP/s; a fused multiply-add is two) in units of powers of
  1,000. Counted is what the row has to do at least: to read each input once and to write each result, or the products
  of the definition. Sizes such as `64 Mi` are in powers of 1,024.

  *Of its limit* is the share of what bounds the row. `copies` is what the fastest copy within the device's memory reads
  and writes; `f32` a kernel of nothing but fused multiply-adds; both are measured first, unless
  `config :nx_vulkan, :profile_limits` says them. `f16` and `bf16` are products of f16 on matrix units where these are
  used: what `mix nx_vulkan.calibrate` has measured, and no share is told before it did. Elsewhere narrow types are
  computed in f32. A share above 100 % is possible: products of f32 on matrix units are faster than fma, and what lies
  in a cache is faster than memory. Sorts, scans, transforms and updates have to move their elements more than once, so
  their shares are small everywhere. What the way to the host could carry is not known, so transfers have no share.

  Each row is also computed in small and compared with `Nx.BinaryBackend`. One that differs is marked `WRONG` with the
  first number that does, and the exit status is 1: then the driver is at fault, or this library. A row that does not
  fit into memory is left out, and told.

  ## The object

  `measure/1` gives a map, and `--json` prints it; new keys may come.

    * `:device` - as `Nx.Vulkan.device_info/0`
    * `:limits` - of `:copies` in bytes per second, and of `:f32`, `:f16` and `:bf16` in FLOP/s; nil where not known
    * `:memory_bytes` - what a row may take
    * `:seconds` - as `--seconds`
    * `:rows` - a list of each `:name`, `:group`, `:size`, `:time_s`, `:bytes_per_second` or `:flops_per_second`, its
      `:limit` and `:share`, and why it is `:wrong` or `:left_out`. What does not apply is nil
  """

  # What a row may take of the memory of tensors: calls that are under way have results beside its own.
  @part_of_memory 4

  @doc false
  def usage, do: @usage

  @doc """
  Does what the arguments of `mix nx_vulkan.bench` say, and returns the exit status: 0 where all results are right, 1
  where there is no device, a result is wrong or the file can't be written, 2 for other arguments.

  ## Options

    * `:print` - a function of a text, `IO.puts/1` unless set
  """
  @spec run([String.t()], keyword) :: 0..2
  def run(args, opts \\ []) do
    print = Keyword.validate!(opts, print: &IO.puts/1)[:print]
    switches = [only: [:string, :keep], seconds: :float, json: :boolean, svg: :string, help: :boolean]

    case OptionParser.parse(args, strict: switches, aliases: [h: :help]) do
      {[help: true], [], []} -> done(print.(@usage), 0)
      {options, [], []} -> chosen(options, print)
      _other -> done(print.(@usage), 2)
    end
  end

  defp done(_printed, status), do: status

  defp chosen(options, print) do
    groups = Map.new(Rows.groups(), &{to_string(&1), &1})
    only = Keyword.get_values(options, :only)
    seconds = Keyword.get(options, :seconds, @seconds)
    unknown = Enum.reject(only, &is_map_key(groups, &1))

    cond do
      options[:help] || seconds <= 0 -> done(print.(@usage), 2)
      unknown != [] -> done(print.("there is no group #{Enum.join(unknown, ", ")}\n\n" <> @usage), 2)
      true -> measured([only: Enum.map(only, &groups[&1]), seconds: seconds], options, print)
    end
  end

  defp measured(opts, options, print) do
    told = if options[:json], do: fn _lines -> :ok end, else: &Enum.each(&1, print)

    # A file that can't be written is told before a minute has passed.
    with :ok <- write(options[:svg], ""), {:ok, found} <- measure([told: told] ++ opts) do
      if options[:json], do: print.(JSON.encode!(found)), else: told.(["" | Text.conclusion(found.rows)])
      drawn = write(options[:svg], Svg.draw(found))
      if drawn != :ok, do: print.(elem(drawn, 1))
      if drawn == :ok and Enum.all?(found.rows, &is_nil(&1.wrong)), do: 0, else: 1
    else
      {:error, %Error{} = error} -> done(print.(Exception.message(error)), 1)
      {:error, why} -> done(print.(why), 1)
    end
  end

  defp write(nil, _text), do: :ok

  defp write(path, text) do
    with {:error, reason} <- File.write(path, text),
         do: {:error, "#{path} can't be written: #{:file.format_error(reason)}"}
  end

  @doc """
  All that was measured, as the module's documentation lists it.

  ## Options

    * `:only` - a list of groups, as `[:copies]`; all of them where it is empty
    * `:seconds` - how long each row is measured, #{@seconds} unless set

  ## Errors

  As `Nx.Vulkan.init/0`, and what a device that fails answers. What fails in a row is told there.
  """
  @spec measure(keyword) :: {:ok, map} | {:error, Error.t() | String.t()}
  def measure(opts \\ []) do
    # What tests give: other rows, and less memory.
    opts =
      Keyword.validate!(opts, [:memory_bytes, only: [], seconds: @seconds, told: fn _ -> :ok end, rows: Rows.all()])

    only = opts[:only]
    rows = Enum.filter(opts[:rows], &(only == [] or &1.group in only))

    with nil <- Library.error(),
         {:ok, _apps} <- Application.ensure_all_started(:nx_vulkan),
         {:ok, device} <- Nx.Vulkan.device_info() do
      found = %{
        device: device,
        limits: limits(device),
        memory_bytes: opts[:memory_bytes] || div(NativeV.device_stats().budget_bytes, @part_of_memory),
        seconds: opts[:seconds]
      }

      opts[:told].(Text.head(found))
      {:ok, Map.put(found, :rows, Enum.map(rows, &row(&1, found, opts[:told])))}
    else
      {:error, %Error{} = error} -> {:error, error}
      {:error, reason} -> {:error, "the application can't be started: #{inspect(reason)}"}
      why -> {:error, "the native library can't be loaded: #{why}"}
    end
  rescue
    error in Error -> {:error, error}
  end

  defp row(row, found, told) do
    measured = Measure.row(row, found.seconds, found.memory_bytes)
    limit = row.limit && found.limits[row.limit]
    rate = measured.flops_per_second || measured.bytes_per_second
    share = if limit && rate, do: rate / limit
    measured = Map.merge(measured, %{limit: row.limit, share: share})
    told.(Text.row(measured))
    measured
  end

  defp limits(device) do
    known = Profile.device_limits()
    copies = known && known.bytes_per_second
    f32 = known && known.flops_per_second
    units = units(device.calibration)

    %{
      copies: copies,
      f32: f32,
      f16: if(device.f16_matrices, do: units, else: f32),
      bf16: if(device.bf16_matrices, do: units, else: f32)
    }
  end

  # What was measured of matrix units, in multiplications, each of which goes with an addition.
  defp units(%{measured: true, path: path}) when is_binary(path) do
    with {:ok, %{"measured" => %{"unit_products_per_second" => rate}}} when is_number(rate) <- Calibration.read(path),
         do: 2 * rate,
         else: (_ -> nil)
  end

  defp units(_calibration), do: nil
end
