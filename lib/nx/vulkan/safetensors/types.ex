defmodule Nx.Vulkan.Safetensors.Types do
  @moduledoc false

  # The types of elements in safetensors, `enum Dtype` of its reference, that Nx has, too.

  @types %{
    "BOOL" => {:u, 8},
    "U8" => {:u, 8},
    "I8" => {:s, 8},
    "F8_E5M2" => {:f, 8},
    "F8_E4M3" => {:f8_e4m3fn, 8},
    "U16" => {:u, 16},
    "I16" => {:s, 16},
    "F16" => {:f, 16},
    "BF16" => {:bf, 16},
    "U32" => {:u, 32},
    "I32" => {:s, 32},
    "F32" => {:f, 32},
    "U64" => {:u, 64},
    "I64" => {:s, 64},
    "F64" => {:f, 64},
    "C64" => {:c, 64}
  }

  @names for {name, type} <- @types, name != "BOOL", into: %{}, do: {type, name}

  @doc "The type of a name in files, or :error."
  def type(name), do: Map.fetch(@types, name)

  @doc "The name of a type, or :error."
  def name(type), do: Map.fetch(@names, type)

  @doc "The types that files have."
  def types, do: Map.keys(@names)

  @doc "Bytes of an element."
  def bytes({_, bits}), do: div(bits, 8)
end
