# Samples the eight-schools posterior by Hamiltonian Monte Carlo on the Vulkan device and compares it with posteriordb's
# reference. Exits with 1 where they disagree.
#
#     mix run examples/eight_schools.exs

Code.require_file("eight_schools/hmc.exs", __DIR__)

defmodule EightSchools do
  @moduledoc """
  The non-centred posterior of Rubin's eight schools (posteriordb, `eight_schools_noncentered`):

      mu ~ N(0, 5), tau ~ HalfCauchy(0, 5), theta_tilde[j] ~ N(0, 1), y[j] ~ N(mu + tau theta_tilde[j], sigma[j])

  with q = (mu, log tau, theta_tilde). `priv/shaders/src/nativev/eight_schools.comp` integrates K leapfrog steps of
  every chain in one dispatch, gradient included.
  """

  alias EightSchools.HMC
  alias Nx.Vulkan.NativeV
  alias Nx.Vulkan.NUTS.Diagnostics

  @y [28, 8, -3, 7, -1, 1, 18, 12]
  @sigma [15, 10, 16, 11, 9, 11, 10, 18]
  @d 10

  # 32,000 draws. Six steps at an acceptance rate of 0.9 are a third of an orbit of the scaled posterior.
  @settings [chains: 32, d: @d, warmup: 400, draws: 1000, k_steps: 6, target_accept: 0.9, seed: 8]

  # posteriordb's reference draws, rounded to what their Monte Carlo error supports.
  @reference [
    {"mu", [mean: 4.4, sd: 3.3, median: 4.4]},
    {"tau", [mean: 3.6, sd: 3.2, median: 2.7]}
  ]
  # How far from the reference is right: four Monte Carlo errors of the mean and this, 0.05 of which is the reference's
  # own rounding.
  @tolerance 0.15
  # Largest R-hat at which chains count as converged (Vehtari et al. 2021).
  @rhat_limit 1.01

  def main do
    {:ok, device} = NativeV.device_describe()
    bits = if device.has_f64, do: 64, else: 32
    IO.puts("eight schools, non-centred, f#{bits} on #{device.name}")
    total = @settings[:warmup] + @settings[:draws]
    {time_us, samples} = :timer.tc(fn -> HMC.sample(trajectories(bits), @settings, &progress(&1, total)) end)
    IO.puts("\r" <> String.duplicate(" ", 60) <> "\r#{@settings[:chains]} chains of #{@settings[:draws]} draws")

    {faults, rhats} = report(samples)
    draws_per_s = round(@settings[:chains] * total / (time_us / 1.0e6))

    IO.puts(
      "step size #{format(samples.eps)}, #{@settings[:k_steps]} steps per trajectory, " <>
        "acceptance #{format(samples.accept_rate)}, #{draws_per_s} draws per second, warm-up included"
    )

    Enum.each(faults, &IO.puts(:stderr, "disagrees: #{&1}"))
    IO.puts("result: rhat=#{format(Enum.max(rhats), 4)} draws_per_s=#{draws_per_s}")
    if faults != [], do: System.halt(1)
  end

  # Runs the trajectories of all chains in one dispatch, and decodes the last state of each.
  defp trajectories(bits) do
    {function, file} =
      if bits == 64,
        do: {&NativeV.leapfrog_chain_synth_batch_f64/6, "eight_schools_f64.spv"},
        else: {&NativeV.leapfrog_chain_synth_batch/6, "eight_schools.spv"}

    path = Application.app_dir(:nx_vulkan, ["priv/shaders/examples/", file])
    data = encode(@y ++ @sigma, bits)

    fn q, p, inv_mass, eps, k_steps ->
      n = length(q)
      extras = :binary.copy(data <> encode(inv_mass, bits), n)
      header = for word <- [k_steps, length(@y ++ @sigma), @d, n], into: <<>>, do: <<word::32-little>>
      push = header <> encode([eps], bits)

      {:ok, {q_chain, p_chain, _grad_chain, logp_chain}} =
        function.(encode(Enum.concat(q), bits), encode(Enum.concat(p), bits), extras, push, k_steps, path)

      Enum.zip_with(
        [
          last_rows(q_chain, n, k_steps, @d, bits),
          last_rows(p_chain, n, k_steps, @d, bits),
          last_rows(logp_chain, n, k_steps, 1, bits)
        ],
        fn
          [q, p, [logp]] when is_list(q) and is_list(p) -> {q, p, logp}
          _ -> :diverged
        end
      )
    end
  end

  defp encode(values, bits), do: for(x <- values, into: <<>>, do: <<x::float-little-size(bits)>>)

  # The last of the k rows of each instance; :diverged in the place of one that a trajectory ran out of.
  defp last_rows(binary, n, k_steps, width, bits) do
    row_bytes = width * div(bits, 8)
    for i <- 1..n, do: decode(binary_part(binary, (i * k_steps - 1) * row_bytes, row_bytes), bits, [])
  end

  # Infinities and NaN match no float, and squares of what is larger would overflow.
  defp decode(<<>>, _bits, row), do: Enum.reverse(row)

  defp decode(binary, bits, row) do
    case binary do
      <<x::float-little-size(bits), rest::binary>> when abs(x) < 1.0e100 -> decode(rest, bits, [x | row])
      _ -> :diverged
    end
  end

  # Prints a table; returns what is wrong with the samples, and all R-hats.
  defp report(samples) do
    IO.puts("             mean      sd  median   R-hat  ESS bulk    reference: mean   sd  median")

    quantities =
      [{"mu", fn [mu | _] -> mu end}, {"tau", fn [_, log_tau | _] -> :math.exp(log_tau) end}] ++
        for school <- 0..7 do
          {"theta[#{school}]", fn [mu, log_tau | theta] -> mu + :math.exp(log_tau) * Enum.at(theta, school) end}
        end

    {faults, rhats} =
      quantities
      |> Enum.map(fn {name, of} ->
        chains = for chain <- samples.draws, do: Enum.map(chain, of)
        report_quantity(name, chains, List.keyfind(@reference, name, 0))
      end)
      |> Enum.unzip()

    worst = Enum.max(rhats)
    unconverged = if worst > @rhat_limit, do: ["R-hat is #{format(worst, 4)}, above #{@rhat_limit}"], else: []
    {Enum.concat(faults) ++ unconverged, rhats}
  end

  defp report_quantity(name, chains, reference) do
    all = Enum.concat(chains)
    found = [mean: Diagnostics.mean(all), sd: Diagnostics.sd(all), median: Diagnostics.median(all)]
    rhat = Diagnostics.rhat(chains)
    columns = Enum.map(found, fn {_, x} -> String.pad_leading(format(x), 8) end)
    beside = if reference, do: Enum.map(elem(reference, 1), fn {_, x} -> String.pad_leading("#{x}", 7) end), else: []

    IO.puts([
      String.pad_leading(name, 9),
      columns,
      String.pad_leading(format(rhat, 4), 8),
      String.pad_leading("#{round(Diagnostics.ess_bulk(chains))}", 10),
      if(reference, do: "            ", else: ""),
      beside
    ])

    allowed = @tolerance + 4 * found[:sd] / :math.sqrt(Diagnostics.ess_mean(chains))

    faults =
      for {what, expected} <- (reference && elem(reference, 1)) || [], abs(found[what] - expected) > allowed do
        "#{what} of #{name} is #{format(found[what])}, not #{expected} +- #{format(allowed)}"
      end

    {faults, rhat}
  end

  defp format(x, digits \\ 3), do: :erlang.float_to_binary(x / 1, decimals: digits)

  defp progress(done, total) do
    if rem(done, div(total, 40)) == 0 do
      filled = div(40 * done, total)
      IO.write("\r[#{String.duplicate("#", filled)}#{String.duplicate(".", 40 - filled)}] #{done}/#{total} transitions")
    end
  end
end

EightSchools.main()
