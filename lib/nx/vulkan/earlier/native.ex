defmodule Nx.Vulkan.Native do
  @moduledoc """
  Names under which earlier programs call the native library. New ones call `Nx.Vulkan` and `Nx.Vulkan.NativeV`.
  """

  alias Nx.Vulkan.NativeV

  @doc "As `Nx.Vulkan.init/0`."
  @spec init() :: :ok | {:error, Nx.Vulkan.Error.t()}
  defdelegate init, to: Nx.Vulkan

  @doc "As `Nx.Vulkan.device_name/0`."
  @spec device_name() :: String.t() | nil
  defdelegate device_name, to: Nx.Vulkan

  @doc "As `Nx.Vulkan.has_f64?/0`."
  @spec has_f64() :: boolean
  defdelegate has_f64, to: Nx.Vulkan, as: :has_f64?

  @doc "As `Nx.Vulkan.NativeV.leapfrog_chain_synth/6`."
  @spec leapfrog_chain_synth(binary, binary, binary, binary, pos_integer, Path.t()) ::
          {:ok, NativeV.chain()} | NativeV.failure()
  defdelegate leapfrog_chain_synth(q, p, extras, push, k, spv), to: NativeV

  @doc """
  Reduces a whole buffer of f32 to one number, which it waits for. Op codes and shaders as
  `Nx.Vulkan.NativeV.reduce_axis/7`.

  A result that is no number, NaN or an infinity, is `:nan`, `:infinity` or `:neg_infinity`. `{:error, :size_mismatch}`
  for a buffer whose size is no multiple of 4 bytes.
  """
  @spec reduce_scalar(NativeV.ref(), 0..3, Path.t()) ::
          {:ok, float | :nan | :infinity | :neg_infinity} | NativeV.failure()
  def reduce_scalar(ref, op, spv) do
    size = NativeV.buf_byte_size(ref)

    with 0 <- rem(size, 4),
         {:ok, out} <- NativeV.buf_alloc(4),
         :ok <- NativeV.reduce_axis(out, ref, 1, div(size, 4), 1, op, spv),
         {:ok, binary} <- NativeV.buf_download(out) do
      {:ok, number(binary)}
    else
      rest when is_integer(rest) -> {:error, :size_mismatch}
      failure -> failure
    end
  end

  defp number(<<x::float-32-little>>), do: x
  defp number(<<0x7F800000::32-little>>), do: :infinity
  defp number(<<0xFF800000::32-little>>), do: :neg_infinity
  defp number(<<_::32>>), do: :nan
end
