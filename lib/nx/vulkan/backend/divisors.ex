defmodule Nx.Vulkan.Divisors do
  @moduledoc false

  # Integers divided by zero raise what Nx.BinaryBackend raises, so an op that divides them waits for its divisor unless
  # that is a number of the caller's.

  alias Nx.Tensor, as: T
  alias Nx.Vulkan.VulkanoBackend, as: B

  @doc """
  Raises if an element of the divisor of integers is zero.

  `config :nx_vulkan, check_divisors: false` leaves the check out.
  """
  @spec check!(T.t() | number) :: :ok
  def check!(divisor), do: if(check?() and zero?(divisor), do: raise(ArithmeticError), else: :ok)

  defp check?, do: Application.get_env(:nx_vulkan, :check_divisors, true)

  defp zero?(%T{type: type, data: %B{type: type, known: number}}) when is_number(number), do: number == 0
  defp zero?(%T{} = divisor), do: Nx.to_number(Nx.all(divisor)) == 0
  defp zero?(number), do: number == 0
end
