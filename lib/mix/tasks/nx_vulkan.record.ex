defmodule Mix.Tasks.NxVulkan.Record do
  @shortdoc "Records programs with their inputs and results, for the engine's tests"

  @moduledoc """
  Records programs that `Nx.Vulkan.VulkanoBackend` runs, with their inputs and the results of `Nx.BinaryBackend`.

      mix nx_vulkan.record [--out FOLDER] [SCRIPT]

  The script's value is a list of `{name, inputs, fun, opts}`, as in `test/recordings.exs` (the options are those of
  `record/4` in `lib/nx/vulkan/backend/recorder.ex`); each becomes the file `FOLDER/name.nxp`. By default the script is
  `test/recordings.exs`, and the folder is the one that `cargo test` replays, `native/nx_vulkan_engine/tests/vectors`.
  """

  use Mix.Task

  @default_script "test/recordings.exs"
  @default_folder "native/nx_vulkan_engine/tests/vectors"

  @impl true
  def run(args) do
    {opts, scripts} = OptionParser.parse!(args, strict: [out: :string])
    Mix.Task.run("app.start")
    folder = Keyword.get(opts, :out, @default_folder)
    File.mkdir_p!(folder)

    {recordings, _bindings} =
      case scripts do
        [] -> Code.eval_file(@default_script)
        [script] -> Code.eval_file(script)
        _ -> Mix.raise("mix nx_vulkan.record takes one script, got: #{Enum.join(scripts, " ")}")
      end

    for {name, inputs, fun, opts} <- recordings do
      path = Path.join(folder, "#{name}.nxp")
      File.write!(path, Nx.Vulkan.Recorder.record(name, inputs, fun, opts))
      Mix.shell().info(path)
    end

    :ok
  end
end
