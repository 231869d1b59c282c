# Measures the first call of BERT base (1 x 128 tokens, f32) in this VM. Prints a row of a Markdown table, in ms: the
# device with the first op, what of the first call compiles (tracing, lowering, passes, kernels), that call until its
# result can be read, and a later call.
#
#     NX_VULKAN_CACHE_DIR=folder MESA_SHADER_CACHE_DIR=folder MIX_ENV=test BUMBLEBEE=/path/to/bumblebee \
#       mix run bench/cold_starts.exs NAME
#
# With empty folders it is cold. The next VM finds what that one left; with NX_VULKAN_KEEP_COMPILED=0 the driver's part
# alone. `native/nx_vulkan_engine/examples/first_calls.rs` measures the engine's part where there is no Elixir.

Code.require_file("bumblebee.exs", __DIR__)

defmodule ColdStarts do
  @moduledoc false
  @compile {:no_warn_undefined, [Axon, Axon.ModelState, Bumblebee]}

  alias Nx.Vulkan.VulkanoBackend

  def main(name) do
    Nx.default_backend(VulkanoBackend)
    Bumblebee.compile(~w(text/bert))
    {init, predict} = Bumblebee.Text.Bert |> struct(architecture: :base) |> Bumblebee.configure() |> model()
    {open, _} = timed(fn -> [1.0, 2.0] |> Nx.tensor() |> Nx.add(1) |> Nx.to_binary() end)
    inputs = Map.new(["input_ids", "attention_mask"], &{&1, Nx.broadcast(Nx.tensor(1, type: :s64), {1, 128})})
    # Weights take no time of a first call, and which these are does not matter to it.
    shapes = Nx.Defn.debug_expr(init).(inputs, Axon.ModelState.empty())
    parameters = Nx.Defn.Composite.traverse(shapes, &Nx.broadcast(Nx.tensor(0.01, type: &1.type), &1.shape))
    run = fn parameters, inputs -> predict.(parameters, inputs).hidden_state end
    jitted = Nx.Defn.jit(run, compiler: Nx.Vulkan)
    :telemetry.attach("compiled", [:nx_vulkan, :compiler, :compile, :stop], &__MODULE__.compiled/4, nil)
    {first, _} = timed(fn -> jitted.(parameters, inputs) |> Nx.to_binary() end)
    {later, _} = timed(fn -> jitted.(parameters, inputs) |> Nx.to_binary() end)
    times = Enum.map_join([open, Process.get(:compiled), first, later], " | ", &round(&1 / 1000))
    IO.puts("| #{name} | #{times} |")
  end

  def compiled(_event, %{duration: duration}, _metadata, _config),
    do: Process.put(:compiled, System.convert_time_unit(duration, :native, :microsecond))

  defp model(spec), do: spec |> Bumblebee.build_model() |> Axon.build()

  defp timed(fun), do: :timer.tc(fun)
end

ColdStarts.main(List.first(System.argv(), "BERT base"))
