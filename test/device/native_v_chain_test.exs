defmodule Nx.Vulkan.NativeVChainTest do
  use ExUnit.Case, async: true

  alias Nx.Vulkan.NativeV

  @moduletag :device

  @variants [
    f32: &NativeV.leapfrog_chain_synth/6,
    f64: &NativeV.leapfrog_chain_synth_f64/6,
    batch_f32: &NativeV.leapfrog_chain_synth_batch/6,
    batch_f64: &NativeV.leapfrog_chain_synth_batch_f64/6
  ]

  # The priors of the regime model, in q's order: Normal mean and sd, HalfCauchy scale.
  @priors [0.001, 0.01, 0.02, 0.001, 0.01, 0.02, 0.05, 0.5, 0.0, 1.0, 0.0, 1.0]
  @q [0.01, 0.05, 0.02, 0.05, 0.02, 0.05, 0.05, 0.05]

  defp shader(name), do: Application.app_dir(:nx_vulkan, "priv/shaders/#{name}.spv")
  defp type(variant) when variant in [:f32, :batch_f32], do: :f32
  defp type(variant) when variant in [:f64, :batch_f64], do: :f64
  defp bytes(:f32), do: 4
  defp bytes(:f64), do: 8

  defp pack(:f32, values), do: for(x <- values, into: <<>>, do: <<x::float-32-little>>)
  defp pack(:f64, values), do: for(x <- values, into: <<>>, do: <<x::float-64-little>>)
  defp unpack(:f32, binary), do: for(<<x::float-32-little <- binary>>, do: x)
  defp unpack(:f64, binary), do: for(<<x::float-64-little <- binary>>, do: x)

  defp header(words), do: for(w <- words, into: <<>>, do: <<w::32-little>>)

  defp regime_shader(:f32), do: shader("examples/regime")
  defp regime_shader(:f64), do: shader("examples/regime_f64")

  # One instance: q, p, extras.
  defp instance(type, n_obs, seed) do
    state = :rand.seed_s(:exsss, seed)
    {returns, state} = Enum.map_reduce(1..n_obs//1, state, &uniform(&1, &2, 0.02))
    {p, _state} = Enum.map_reduce(@q, state, &uniform(&1, &2, 1.0))
    {pack(type, @q), pack(type, p), pack(type, returns ++ List.duplicate(1.0e-4, 8))}
  end

  defp uniform(_item, state, width) do
    {x, state} = :rand.uniform_s(state)
    {(x - 0.5) * width, state}
  end

  defp push(type, k, n_obs, n_instances), do: header([k, n_obs, 8, n_instances]) <> pack(type, [0.05 | @priors])

  defp single(variant, {q, p, extras}, n_obs, k) do
    type = type(variant)
    @variants[variant].(q, p, extras, push(type, k, n_obs, 1), k, regime_shader(type))
  end

  for {variant, _function} <- @variants do
    test "#{variant}: four binaries, the same bits again, and as the beginning of a longer chain" do
      variant = unquote(variant)
      size = bytes(type(variant))
      instance = instance(type(variant), 200, 1)
      assert {:ok, {q, p, grad, logp} = chain} = single(variant, instance, 200, 32)
      for binary <- [q, p, grad], do: assert(byte_size(binary) == 32 * 8 * size)
      assert byte_size(logp) == 32 * size
      assert {:ok, ^chain} = single(variant, instance, 200, 32)

      for k <- [1, 7] do
        assert {:ok, short} = single(variant, instance, 200, k)

        for {short, long} <- Enum.zip(Tuple.to_list(short), Tuple.to_list(chain)) do
          assert short == binary_part(long, 0, byte_size(short))
        end
      end
    end
  end

  for {batch, single} <- [batch_f32: :f32, batch_f64: :f64] do
    test "#{batch}: the bits of its instances" do
      type = unquote(single)
      instances = for seed <- 1..5, do: instance(type, 60, seed)
      [q, p, extras] = instances |> Enum.map(&Tuple.to_list/1) |> Enum.zip_with(&IO.iodata_to_binary/1)
      function = @variants[unquote(batch)]
      assert {:ok, batch} = function.(q, p, extras, push(type, 9, 60, 5), 9, regime_shader(type))

      singles =
        for instance <- instances do
          {:ok, chain} = single(type, instance, 60, 9)
          Tuple.to_list(chain)
        end

      assert Tuple.to_list(batch) == Enum.zip_with(singles, &IO.iodata_to_binary/1)
    end
  end

  for {batch, variant, n_obs, k} <- [
        {:batch_f32, :f32, 0, 1024},
        {:batch_f64, :f64, 0, 1024},
        {:batch_f32, :f32, 257, 1024},
        {:batch_f64, :f64, 255, 1024},
        {:batch_f32, :f32, 10_000, 64},
        {:batch_f64, :f64, 10_000, 64}
      ] do
    test "#{variant}: #{k} steps with #{n_obs} observations begin as shorter chains, and are the same in a batch" do
      {variant, n_obs, k} = {unquote(variant), unquote(n_obs), unquote(k)}
      type = type(variant)
      instances = for seed <- 1..2, do: instance(type, n_obs, seed)
      chains = for instance <- instances, do: elem(single(variant, instance, n_obs, k), 1)

      for steps <- [1, div(k, 3), k - 1], {instance, long} <- Enum.zip(instances, chains) do
        assert {:ok, short} = single(variant, instance, n_obs, steps)

        for {short, long} <- Enum.zip(Tuple.to_list(short), Tuple.to_list(long)) do
          assert short == binary_part(long, 0, byte_size(short))
        end
      end

      [q, p, extras] = instances |> Enum.map(&Tuple.to_list/1) |> Enum.zip_with(&IO.iodata_to_binary/1)
      assert {:ok, batch} = @variants[unquote(batch)].(q, p, extras, push(type, k, n_obs, 2), k, regime_shader(type))
      assert Tuple.to_list(batch) == chains |> Enum.map(&Tuple.to_list/1) |> Enum.zip_with(&IO.iodata_to_binary/1)
    end
  end

  test "no observations, many, and the longest chain" do
    for n_obs <- [0, 1, 600, 1000] do
      assert {:ok, {q, _, _, _}} = single(:f64, instance(:f64, n_obs, 3), n_obs, 2)
      assert Enum.all?(unpack(:f64, q), &is_float/1)
    end

    assert {:ok, {_, _, _, logp}} = single(:f32, instance(:f32, 4, 3), 4, 4096)
    assert byte_size(logp) == 4096 * 4
  end

  for {type, name, tolerance} <- [{:f32, "leapfrog_chain_normal", 1.0e-4}, {:f64, "leapfrog_chain_normal_f64", 1.0e-12}] do
    test "a family in #{type} integrates independent elements" do
      {type, name, n, k} = {unquote(type), unquote(name), 300, 6}
      {eps, mu, sigma} = {-0.125, 0.5, 1.5}
      q = for i <- 1..n, do: rem(i * 37, 64) / 32 - 1
      p = for i <- 1..n, do: rem(i * 11, 64) / 32 - 1
      inv_mass = for i <- 1..n, do: 0.5 + rem(i, 8) / 8
      push = header([n, k]) <> pack(type, [eps, mu, sigma])
      function = @variants[type]

      assert {:ok, {q_chain, p_chain, grad, logp}} =
               function.(pack(type, q), pack(type, p), pack(type, inv_mass), push, k, shader(name))

      gradient = fn q -> (mu - q) / (sigma * sigma) end

      steps =
        Enum.scan(1..k, Enum.zip([q, p, inv_mass]), fn _step, state ->
          for {q, p, m} <- state do
            half = p + eps / 2 * gradient.(q)
            q = q + eps * m * half
            {q, half + eps / 2 * gradient.(q), m}
          end
        end)

      rows = Enum.concat(steps)
      assert_close(type, q_chain, Enum.map(rows, &elem(&1, 0)), unquote(tolerance))
      assert_close(type, p_chain, Enum.map(rows, &elem(&1, 1)), unquote(tolerance))
      assert_close(type, grad, Enum.map(rows, &gradient.(elem(&1, 0))), unquote(tolerance))
      density = fn {q, _, _} -> -0.5 * ((q - mu) / sigma) ** 2 - :math.log(sigma) - 0.5 * :math.log(2 * :math.pi()) end

      assert_close(
        type,
        logp,
        Enum.map(steps, fn step -> step |> Enum.map(density) |> Enum.sum() end),
        unquote(tolerance)
      )
    end
  end

  defp assert_close(type, binary, want, tolerance) do
    got = unpack(type, binary)
    assert length(got) == length(want)
    for {got, want} <- Enum.zip(got, want), do: assert(abs(got - want) <= tolerance * (1 + abs(want)))
  end

  test "push data beyond what the shader declares is not looked at" do
    {q, p, extras} = instance(:f32, 4, 1)
    push = push(:f32, 3, 4, 1)
    call = fn push -> NativeV.leapfrog_chain_synth(q, p, extras, push, 3, regime_shader(:f32)) end
    assert call.(push) == call.(push <> :binary.copy(<<255>>, 128 - byte_size(push)))
    assert call.(binary_part(push, 0, byte_size(push) - 4)) == {:error, :bad_input}
  end

  for {variant, _function} <- @variants do
    test "#{variant}: errors" do
      type = type(unquote(variant))
      function = @variants[unquote(variant)]
      {q, p, extras} = instance(type, 4, 1)
      push = push(type, 3, 4, 1)
      path = regime_shader(type)
      one = :binary.copy(<<0>>, bytes(type))

      assert {:ok, _} = function.(q, p, extras, push, 3, path)
      assert function.(q, p <> one, extras, push, 3, path) == {:error, :size_mismatch}
      assert function.(q <> one, p <> one, extras, push, 3, path) == {:error, :size_mismatch}
      assert function.(q, p, extras <> one, push, 3, path) == {:error, :size_mismatch}
      assert function.("", "", extras, header([3, 4, 0, 1]) <> pack(type, [0.05]), 3, path) == {:error, :size_mismatch}
      assert function.(q, p, extras, header([3, 4, 9, 1]) <> pack(type, [0.05]), 3, path) == {:error, :size_mismatch}
      assert function.(q, p, extras, header([3, 4, 257, 1]) <> pack(type, [0.05]), 3, path) == {:error, :bad_input}
      assert function.(q, p, extras, push, 0, path) == {:error, :bad_input}
      assert function.(q, p, extras, push, -3, path) == {:error, :bad_input}
      assert function.(q, p, extras, push, 4, path) == {:error, :bad_input}
      assert function.(q, p, extras, push(type, 4097, 4, 1), 4097, path) == {:error, :bad_input}
      assert function.(q, p, extras, "", 3, path) == {:error, :bad_input}
      assert function.(q, p, extras, binary_part(push, 0, 16), 3, path) == {:error, :bad_input}
      assert function.(q, p, extras, push <> :binary.copy(<<0>>, 128), 3, path) == {:error, :bad_input}

      assert {:error, :dispatch_failed, "read spv: " <> _} = function.(q, p, extras, push, 3, path <> ".missing")
      assert {:error, :dispatch_failed, message} = function.(q, p, extras, push, 3, shader("elementwise_binary"))
      assert message =~ "elementwise_binary"
      other = if type == :f32, do: :f64, else: :f32
      assert {:error, :dispatch_failed, message} = function.(q, p, extras, push, 3, regime_shader(other))
      assert message =~ "bytes"
      assert_raise ArgumentError, fn -> function.(q, p, extras, push, 3.0, path) end
      assert_raise ArgumentError, fn -> function.(q, :p, extras, push, 3, path) end
    end
  end

  for variant <- [:batch_f32, :batch_f64] do
    test "#{variant}: as many instances as the buffers hold, at least one" do
      type = type(unquote(variant))
      {q, p, extras} = instance(type, 4, 1)
      call = fn push -> @variants[unquote(variant)].(q, p, extras, push, 3, regime_shader(type)) end
      assert call.(push(type, 3, 4, 0)) == {:error, :bad_input}
      assert call.(push(type, 3, 4, 2)) == {:error, :size_mismatch}
    end
  end

  test "sixteen processes at once" do
    instances = for seed <- 1..16, do: instance(:f64, 50, seed)
    want = for instance <- instances, do: single(:f64, instance, 50, 16)

    tasks =
      for instance <- instances do
        Task.async(fn -> for _ <- 1..5, do: single(:f64, instance, 50, 16) end)
      end

    for {got, want} <- Enum.zip(Task.await_many(tasks, 60_000), want), do: assert(got == List.duplicate(want, 5))
  end
end
