defmodule Nx.Vulkan.WithoutF64Test do
  # A VM of its own, on a device that has no shaderFloat64 as far as the engine knows.
  use ExUnit.Case, async: true

  @moduletag :device

  defp elixir(code, without \\ "shaderFloat64") do
    paths = Path.wildcard("#{Mix.Project.build_path()}/lib/*/ebin")
    arguments = Enum.flat_map(paths, &["-pa", &1]) ++ ["-e", code]

    {output, status} =
      System.cmd("elixir", arguments, env: [{"NX_VULKAN_WITHOUT", without}], stderr_to_stdout: true)

    assert status == 0, output
    output
  end

  test "f64 is refused by name, f32 goes on" do
    output =
      elixir("""
      {:ok, _} = Application.ensure_all_started(:nx_vulkan)
      alias Nx.Vulkan.{Native, NativeV, VulkanoBackend}
      :ok = Nx.Vulkan.init()
      false = Nx.Vulkan.has_f64?()
      false = Native.has_f64()
      %{has_f64: false} = Enum.find(Nx.Vulkan.devices(), &(&1.name == Nx.Vulkan.device_name()))
      shader = fn name -> Application.app_dir(:nx_vulkan, "priv/shaders/" <> name <> ".spv") end

      f64 = fn ->
        push = <<2::32-little, 3::32-little, 0.1::float-64-little, 0.0::float-64-little, 1.0::float-64-little>>
        two = :binary.copy(<<1.0::float-64-little>>, 2)
        NativeV.leapfrog_chain_synth_f64(two, two, two, push, 3, shader.("leapfrog_chain_normal_f64"))
      end

      f32 = fn ->
        push = <<2::32-little, 3::32-little, 0.1::float-32-little, 0.0::float-32-little, 1.0::float-32-little>>
        two = :binary.copy(<<1.0::float-32-little>>, 2)
        NativeV.leapfrog_chain_synth(two, two, two, push, 3, shader.("leapfrog_chain_normal"))
      end

      {:error, :dispatch_failed, message} = f64.()
      {:ok, chain} = f32.()
      {:error, :dispatch_failed, ^message} = f64.()
      {:ok, ^chain} = f32.()
      IO.puts("chain: " <> message)

      error =
        try do
          Nx.add(Nx.tensor([1.0], type: :f64, backend: VulkanoBackend), 1)
        rescue
          error in Nx.Vulkan.Error -> error
        end

      :unsupported = error.kind
      IO.puts("op: " <> Exception.message(error))
      [2.0] = Nx.to_flat_list(Nx.add(Nx.tensor([1.0], type: :f32, backend: VulkanoBackend), 1))
      """)

    assert output =~ ~r/chain: .* has not: shaderFloat64$/m
    assert output =~ ~r/op: add: kernel map\.add\.f64 .*shaderFloat64/
  end

  test "chains and samplers of f64 are refused by name, those of f32 go on" do
    output =
      elixir("""
      {:ok, _} = Application.ensure_all_started(:nx_vulkan)
      alias Nx.Vulkan.{Chain, NUTS}
      log_density = fn q -> Nx.multiply(Nx.tensor(-0.5, type: q.type), Nx.sum(Nx.multiply(q, q))) end

      errors = fn ->
        calls =
          [fn -> NUTS.sample(log_density, Nx.template({3}, :f64), num_samples: 2, num_warmup: 2) end] ++
            for form <- [:workgroup, :device, :auto], do: fn -> Chain.compile(log_density, Nx.template({3}, :f64), form: form) end

        for call <- calls do
          try do
            call.()
          rescue
            error in Nx.Vulkan.Error -> IO.puts("\#{error.kind}: " <> Exception.message(error))
          end
        end
      end

      good = fn ->
        q = Nx.tensor([0.5, 1.0, 2.0], type: :f32)

        traces =
          for form <- [:workgroup, :device] do
            chain = Chain.compile(log_density, Nx.template({3}, :f32), form: form)
            chain |> Chain.run(q, q, steps: 3, step_size: 0.1) |> Map.new(fn {k, v} -> {k, Nx.to_binary(v)} end)
          end

        {traces, Nx.to_binary(NUTS.sample(log_density, Nx.template({3}, :f32), num_samples: 2, num_warmup: 2, key: 1).draws)}
      end

      errors.()
      before = good.()
      errors.()
      ^before = good.()
      """)

    assert Enum.count(String.split(output, "\n"), &(&1 =~ ~r/^unsupported: .*shaderFloat64/)) == 8, output
  end

  test "draws and chains of f32 need no 64-bit integers" do
    output =
      elixir(
        """
        {:ok, _} = Application.ensure_all_started(:nx_vulkan)
        alias Nx.Vulkan.{Chain, NUTS}
        log_density = fn q -> Nx.multiply(-0.5, Nx.sum(Nx.multiply(q, q))) end

        for form <- [:workgroup, :device], mass <- [:diagonal, :dense] do
          opts = [num_samples: 10, num_warmup: 10, num_chains: 2, form: form, mass_matrix: mass]
          %{draws: draws} = NUTS.sample(log_density, Nx.template({2}, :f32), opts)
          true = Enum.all?(Nx.to_flat_list(draws), &is_float/1)
          q = Nx.tensor([1.0, 2.0])
          chain = Chain.compile(log_density, Nx.template({2}, :f32), form: form, mass: mass)
          [_, _] = Nx.to_flat_list(Chain.run(chain, q, q, steps: 2, step_size: 0.1).energy)
          IO.puts("drawn")
        end
        """,
        "shaderInt64"
      )

    assert output |> String.split("\n") |> Enum.count(&(&1 == "drawn")) == 4, output
  end

  test "what is no feature is refused, with the names of those that are" do
    output = elixir("{:error, error} = Nx.Vulkan.init(); IO.puts(Exception.message(error))", "shaderInt8,bogus")

    assert output =~
             ~r/NX_VULKAN_WITHOUT: expected some of shaderFloat64, .*, cooperativeMatrix, shaderBFloat16CooperativeMatrix, got bogus/
  end

  test "errors of compiled functions name the function, the op and shapes" do
    output =
      elixir("""
      {:ok, _} = Application.ensure_all_started(:nx_vulkan)

      defmodule Model do
        import Nx.Defn
        defn loss(x), do: Nx.sum(Nx.exp(x) * 2)
        defn sorted(x), do: {Nx.sort(x, axis: 1), Nx.as_type(Nx.sort(x), :f32)}
      end

      for fun <- [&Model.loss/1, &Model.sorted/1, &Nx.cumulative_sum/1] do
        try do
          Nx.Defn.jit_apply(fun, [Nx.iota({2, 3}, type: :f64, backend: Nx.BinaryBackend)], compiler: Nx.Vulkan)
        rescue
          error in Nx.Vulkan.Error ->
            IO.puts("\#{error.kind} \#{error.op} \#{inspect(error.details.operands)} " <> Exception.message(error))
        end
      end
      """)

    assert output =~
             ~s(unsupported fused ["f64[2, 3]"] fused: fused is not supported: needs shaderFloat64, ) <>
               "in fused (exp, multiply, sum) of f64[2, 3] giving f64[], in Model.loss/1 (unsupported)"

    assert output =~ ~r/unsupported as_type .* in as_type of f64\[2, 3\] giving f32\[2, 3\], in Model.sorted\/1/
    assert output =~ ~r/unsupported cumulative_sum .* of f64\[2, 3\] giving f64\[2, 3\], in Nx.cumulative_sum\/1/
  end
end
