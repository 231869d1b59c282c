defmodule Nx.Vulkan.Parity.Control do
  @moduledoc """
  Branches and loops that go along a tensor.
  """

  import Nx.Defn

  defn(branch(x), do: if(Nx.sum(x) > -7, do: Nx.exp(x), else: x * x))

  @doc "Sums of powers, of which each is the one before times `x`: a state and what every step of it gives."
  defn powers(x) do
    {_, _, all, _} =
      while {i = 0, power = x, all = Nx.broadcast(x, {4, Nx.axis_size(x, 0)}), x}, i < 4 do
        {i + 1, power * x, Nx.put_slice(all, [i, 0], Nx.new_axis(power, 0)), x}
      end

    Nx.cumulative_sum(all, axis: 0)
  end
end
