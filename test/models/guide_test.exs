# The cells of guides/transformers.livemd, with small random models in place of those that it downloads, and the example
# beside it.
#
#     mix test --only models
Code.require_file("models.exs", __DIR__)

defmodule Nx.Vulkan.Models.GuideTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.{Guides, Models}

  @moduletag :device
  @moduletag :models
  # Axon's options.
  @moduletag :capture_log
  if Models.missing(), do: @moduletag(skip: Models.missing())

  @guide Path.expand("../../guides/transformers.livemd", __DIR__)
  @external_resource @guide

  # By repository.
  @stand_ins %{
    "HuggingFaceTB/SmolLM2-135M-Instruct" => """
    writer = Tiny.writer(module: Bumblebee.Text.Llama, max_positions: 256, type: {:bf, 16})
    writer_tokenizer = Tiny.tokenizer()
    generation_config = Tiny.generation_config(40)
    """,
    "sentence-transformers/all-MiniLM-L6-v2" => """
    reader = Tiny.reader()
    reader_tokenizer = Tiny.tokenizer()
    """,
    "google/vit-base-patch16-224" => """
    classifier = Tiny.image_classifier(type: {:bf, 16})
    featurizer = Tiny.featurizer()
    """,
    "google-bert/bert-base-uncased" => """
    judge = Tiny.text_classifier(type: {:bf, 16}, dropout_rate: 0.0, attention_dropout_rate: 0.0)
    judge_tokenizer = Tiny.tokenizer()
    """
  }

  defp repository(cell), do: with([_, name] <- Regex.run(~r/\{:hf, "(.*?)"\}/, cell), do: name)

  defp stand_in(cell) do
    case repository(cell) do
      nil -> cell
      name -> Map.fetch!(@stand_ins, name)
    end
  end

  test "every cell runs" do
    Models.tiny()
    names = for cell <- Guides.cells(@guide), name = repository(cell), do: name
    assert Enum.sort(names) == Enum.sort(Map.keys(@stand_ins))
    Nx.default_backend(Nx.Vulkan.VulkanoBackend)
    Nx.Defn.default_options(compiler: Nx.Vulkan)
    output = ExUnit.CaptureIO.capture_io(fn -> Guides.run(@guide, &stand_in/1) end)
    # What was streamed.
    assert output != ""
  end

  test "the adapters are those of the examples" do
    assert File.read!(Path.expand("../../examples/transformers/lora.exs", __DIR__)) in Guides.cells(@guide)
  end

  test "the example runs" do
    paths = for path <- :code.get_path(), path = to_string(path), File.dir?(path), do: ["-pa", path]
    script = Path.expand("../../examples/transformers.exs", __DIR__)
    start = "{:ok, _} = Application.ensure_all_started(:nx_vulkan)"
    arguments = List.flatten(paths) ++ ["-e", start, "-r", script]
    {output, status} = System.cmd("elixir", arguments, stderr_to_stdout: true)
    assert {status, output} == {0, output}
    refute output =~ "wrong:"
    assert output =~ "BERT with adapters"
  end
end
