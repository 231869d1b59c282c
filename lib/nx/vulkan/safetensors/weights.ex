defmodule Nx.Vulkan.Safetensors.Weights do
  @moduledoc false

  # Which tensors of files are one quantised weight together, and how they are read as one. A weight is
  # `%{name, format, shape, bytes, layout, parts}`: `layout` says whose it is, `parts` has the tensors of the files.

  alias Nx.Vulkan.Quantized

  @bits [2, 4, 8]
  @groups [32, 64, 128]

  # What follows the name of a weight of floats of 8 bits: of DeepSeek and Qwen, and of compressed-tensors.
  @float_scales ["_scale_inv", "_scale"]

  @doc """
  The weights of tensors of files, in their order. `config` is what the model's configuration says of quantisation.
  """
  def of(tensors, config) do
    by_name = Map.new(tensors, &{&1.name, &1})
    weights = for tensor <- tensors, do: weight(tensor, by_name, config)
    # Parts that belong to none are tensors by themselves.
    taken =
      for weight <- weights,
          weight.layout != :plain,
          part <- Map.values(weight.parts),
          into: MapSet.new(),
          do: part.name

    Enum.reject(weights, &(&1.layout == :plain and &1.parts.tensor.name in taken))
  end

  @doc """
  The tensors of files, each by itself.
  """
  def of_plain(tensors), do: Enum.map(tensors, &plain/1)

  defp weight(%{name: name} = tensor, by_name, config) do
    cond do
      base = suffixed(name, ".qweight") -> words(tensor, base, by_name, config)
      base = suffixed(name, ".weight_packed") -> packed(tensor, base)
      base = tensor.type == {:u, 32} && suffixed(name, ".weight") -> mlx(tensor, base, by_name, config)
      tensor.type in [{:f8_e4m3fn, 8}, {:f, 8}] -> float(tensor, by_name)
      true -> plain(tensor)
    end
  end

  defp suffixed(name, suffix), do: if(String.ends_with?(name, suffix), do: String.replace_suffix(name, suffix, ""))

  defp plain(tensor) do
    %{
      name: tensor.name,
      format: tensor.type,
      shape: tensor.shape,
      bytes: tensor.bytes,
      layout: :plain,
      parts: %{tensor: tensor}
    }
  end

  defp joined(name, layout, format, shape, parts) do
    bytes = parts |> Map.values() |> Enum.sum_by(& &1.bytes)
    %{name: name, format: format, shape: shape, bytes: bytes, layout: layout, parts: parts}
  end

  # Named as the weight, so that who wants it is told.
  defp packed(tensor, base) do
    joined(base <> ".weight", :unknown, {:unknown, "weight_packed of compressed-tensors"}, tensor.shape, %{
      weight: tensor
    })
  end

  ## Floats of 8 bits

  defp float(tensor, by_name) do
    case Enum.find_value(@float_scales, &by_name[tensor.name <> &1]) do
      nil -> plain(tensor)
      scales -> joined(tensor.name, :fp8, float_format(tensor, scales), tensor.shape, %{weight: tensor, scales: scales})
    end
  end

  defp float_format(%{type: type, shape: shape}, scales) do
    part =
      case {shape, scales.shape} do
        {{_, _}, {_, _}} when scales.type == {:u, 8} -> :mx
        {{_, _}, one} when one in [{}, {1}] -> :tensor
        {{n, _}, {n, 1}} -> :channel
        {{_, _}, {_, _}} -> :block
        _ -> nil
      end

    name = if type == {:f, 8}, do: :f8, else: :f8_e4m3fn
    if part, do: {name, part}, else: {:unknown, "#{name} with scales of shape #{inspect(scales.shape)}"}
  end

  ## MLX

  defp mlx(tensor, base, by_name, config) do
    case {by_name[base <> ".scales"], tensor.shape} do
      {%{shape: factors} = scales, shape} when tuple_size(shape) >= 2 and tuple_size(factors) == tuple_size(shape) ->
        biases = by_name[base <> ".biases"]
        parts = Map.reject(%{weight: tensor, scales: scales, biases: biases}, fn {_, part} -> is_nil(part) end)
        last = tuple_size(shape) - 1
        format = mlx_format(of_layer(config, base), elem(shape, last), elem(factors, last), biases)

        shape =
          case format do
            {:affine, bits, _group} -> put_elem(shape, last, div(elem(shape, last) * 32, bits))
            _ -> shape
          end

        joined(tensor.name, :mlx, format, shape, parts)

      _ ->
        plain(tensor)
    end
  end

  # Layers may have formats of their own, by their names.
  defp of_layer(config, base) do
    case config[base] do
      %{} = own -> Map.merge(config, own)
      _ -> config
    end
  end

  defp mlx_format(config, words, groups, biases) do
    {bits, group, mode} = {config["bits"], config["group_size"], Map.get(config, "mode", "affine")}

    cond do
      mode != "affine" ->
        {:unknown, "#{inspect(mode)} of MLX"}

      bits == nil or group == nil ->
        {:unknown, "affine of unknown bits and group: say them in :quantization"}

      bits not in @bits or group not in @groups ->
        {:unknown, "affine of #{inspect(bits)} bits in groups of #{inspect(group)}"}

      biases == nil ->
        {:unknown, "affine without biases"}

      words * 32 != groups * bits * group ->
        {:unknown, "#{words} words and #{groups} groups, not of #{bits} bits in groups of #{group}"}

      true ->
        {:affine, bits, group}
    end
  end

  ## GPTQ and AWQ

  defp words(tensor, base, by_name, config) do
    parts = %{
      qweight: tensor,
      qzeros: by_name[base <> ".qzeros"],
      scales: by_name[base <> ".scales"],
      g_idx: by_name[base <> ".g_idx"]
    }

    case parts do
      %{qzeros: %{shape: {groups, zeros}}, scales: %{shape: {groups, n}}} when groups > 0 and n > 0 ->
        parts = Map.reject(parts, fn {_, part} -> is_nil(part) end)
        {layout, format, k} = words_format(tensor.shape, groups, zeros, n, config)
        joined(base <> ".weight", layout, format, {n, k}, parts)

      _ ->
        plain(tensor)
    end
  end

  # The integers of a word lie along k in GPTQ, {k * bits / 32, n}, and along n in AWQ, {k, n / 8}.
  defp words_format({rows, n}, groups, zeros, n, config) do
    bits = if rem(zeros * 32, n) == 0, do: div(zeros * 32, n), else: 0
    k = if bits > 0, do: div(rows * 32, bits), else: 0

    if Map.get(config, "checkpoint_format", "gptq") == "gptq",
      do: {:gptq, affine(bits, k, groups), k},
      else: {:gptq, {:unknown, "#{config["checkpoint_format"]} of GPTQ"}, k}
  end

  defp words_format({k, words}, groups, words, n, _config) when words * 8 == n, do: {:awq, affine(4, k, groups), k}

  defp words_format(shape, _groups, _zeros, n, _config) do
    {:unknown, {:unknown, "words of shape #{inspect(shape)} for #{n} rows"}, elem(shape, 0)}
  end

  defp affine(bits, k, groups) do
    group = if rem(k, groups) == 0, do: div(k, groups), else: 0

    if bits in @bits and group in @groups,
      do: {:affine, bits, group},
      else: {:unknown, "#{bits} bits of #{k} columns in #{groups} groups"}
  end

  ## Values

  @doc """
  The tensor or quantised tensor of a weight, of the tensors of its parts. An ArgumentError where they don't fit
  together.
  """
  def value(%{layout: :plain}, %{tensor: tensor}), do: tensor
  def value(%{layout: layout, format: format}, parts), do: quantised(layout, format, parts)

  defp quantised(:fp8, _format, %{weight: weight, scales: scales}), do: Quantized.from_fp8(weight, scales)

  defp quantised(:mlx, {:affine, bits, group}, %{weight: weight, scales: scales, biases: biases}) do
    Quantized.from_mlx(weight, scales, biases, bits: bits, group: group)
  end

  defp quantised(:gptq, {:affine, bits, group}, %{qweight: qweight, qzeros: qzeros, scales: scales} = parts) do
    Quantized.from_gptq(qweight, qzeros, scales, bits: bits, group: group, g_idx: parts[:g_idx])
  end

  defp quantised(:awq, {:affine, 4, group}, %{qweight: qweight, qzeros: qzeros, scales: scales}) do
    Quantized.from_awq(qweight, qzeros, scales, group: group)
  end
end
