defmodule Nx.Vulkan.LoweredTest do
  # VMs of their own, on a device that lacks types as far as the engine knows.
  use ExUnit.Case, async: true

  @moduletag :device

  # What the tests themselves run with is not meant for these VMs.
  @own %{"NX_VULKAN_LOWER" => nil, "NX_VULKAN_WITHOUT" => nil}

  defp elixir(code, env) do
    env = Map.merge(@own, Map.new(env))
    paths = Path.wildcard("#{Mix.Project.build_path()}/lib/*/ebin")
    arguments = Enum.flat_map(paths, &["-pa", &1]) ++ ["-e", code]
    {output, status} = System.cmd("elixir", arguments, env: env, stderr_to_stdout: true)
    assert status == 0, output
    output
  end

  # What the code prints with the device's own types and with all that it may lack lowered.
  defp both(code), do: {elixir(code, []), elixir(code, [{"NX_VULKAN_LOWER", "all"}])}

  @start "{:ok, _} = Application.ensure_all_started(:nx_vulkan); Nx.default_backend(Nx.Vulkan.VulkanoBackend); "

  test "a device says which types are lowered" do
    code =
      @start <>
        """
        :ok = Nx.Vulkan.init()
        IO.inspect({Nx.Vulkan.has_f64?(), Nx.Vulkan.Native.has_f64()})
        IO.inspect(Enum.find(Nx.Vulkan.devices(), &(&1.name == Nx.Vulkan.device_name())).lowered)
        """

    assert elixir(code, [{"NX_VULKAN_WITHOUT", "shaderFloat64"}]) == "{false, false}\n[:f64, :c128]\n"
    assert elixir(code, [{"NX_VULKAN_LOWER", "f64"}]) =~ "{false, false}"
    assert elixir(code, [{"NX_VULKAN_LOWER", "s64"}]) =~ "{true, true}"
  end

  test "types to lower come from the configuration, too" do
    code = fn types ->
      """
      Application.put_env(:nx_vulkan, :lower, #{inspect(types)})
      {:ok, _} = Application.ensure_all_started(:nx_vulkan)
      IO.inspect(Nx.Vulkan.init())
      IO.inspect(Nx.Vulkan.has_f64?())
      """
    end

    assert elixir(code.([:f64, :s8]), []) == ":ok\nfalse\n"
    assert elixir(code.([:s64]), []) == ":ok\ntrue\n"
    assert elixir(code.([:f32]), []) =~ "NX_VULKAN_LOWER: expected all, or types of 8, 16 or 64 bits"
  end

  test "f64, s64, narrow types and keys have the same bits" do
    {own, lowered} =
      both(
        @start <>
          """
          print = fn tensor -> IO.puts(Base.encode16(Nx.to_binary(tensor))) end
          x = Nx.multiply(Nx.subtract(Nx.iota({37}, type: :f64), 17.3), 0.71)
          # Kernels of more functions take a CPU's compiler minutes.
          for fun <- [&Nx.exp/1, &Nx.sort/1], do: print.(fun.(x))
          print.(Nx.Defn.jit_apply(&Nx.add(Nx.divide(&1, 7), &1), [x], compiler: Nx.Vulkan.Compiler))
          n = Nx.multiply(Nx.subtract(Nx.iota({37}, type: :s64), 11), 123_456_789_012)
          for m <- [Nx.multiply(n, n), Nx.quotient(n, 1_000_003), Nx.right_shift(n, 7), Nx.as_type(n, :f32)],
              do: print.(m)
          for type <- [:u8, :s8, :s16, :f16, :bf16, :f8, :f8_e4m3fn] do
            narrow = Nx.as_type(Nx.iota({5, 7}), type)
            print.(Nx.add(Nx.transpose(narrow), 3))
            print.(Nx.slice_along_axis(narrow, 1, 3, axis: 1))
            print.(Nx.put_slice(narrow, [1, 2], Nx.as_type(Nx.iota({2, 3}), type)))
          end
          {values, key} = Nx.Random.normal(Nx.Random.key(42), shape: {3, 5})
          print.(values)
          print.(key)
          """
      )

    assert own == lowered
    assert length(String.split(own, "\n")) == 31
  end

  test "supplied shaders and chains of f64 are lowered" do
    {own, lowered} =
      both(
        @start <>
          """
          alias Nx.Vulkan.{Chain, NativeV}
          shader = fn name -> Application.app_dir(:nx_vulkan, "priv/shaders/" <> name <> ".spv") end
          push = <<2::32-little, 3::32-little, 0.1::float-64-little, 0.0::float-64-little, 1.0::float-64-little>>
          two = :binary.copy(<<1.0::float-64-little>>, 2)
          {:ok, chain} = NativeV.leapfrog_chain_synth_f64(two, two, two, push, 3, shader.("leapfrog_chain_normal_f64"))
          IO.inspect(chain, limit: :infinity)
          log_density = fn q -> Nx.multiply(Nx.tensor(-0.5, type: q.type), Nx.sum(Nx.multiply(q, q))) end
          q = Nx.tensor([0.5, 1.0, 2.0], type: :f64)
          run = Chain.run(Chain.compile(log_density, Nx.template({3}, :f64)), q, q, steps: 3, step_size: 0.1)
          for {k, v} <- Enum.sort(run), do: IO.puts("\#{k} \#{Base.encode16(Nx.to_binary(v))}")
          """
      )

    assert own == lowered
  end

  test "what is no feature or type is refused, with the names of those that are" do
    code = "{:error, error} = Nx.Vulkan.init(); IO.puts(Exception.message(error))"

    assert elixir(code, [{"NX_VULKAN_WITHOUT", "shaderInt8,bogus"}]) =~
             ~r/NX_VULKAN_WITHOUT: expected some of shaderFloat64, .*, cooperativeMatrix, shaderBFloat16CooperativeMatrix, got bogus/

    assert elixir(code, [{"NX_VULKAN_LOWER", "f64,f32"}]) =~
             "NX_VULKAN_LOWER: expected all, or types of 8, 16 or 64 bits with commas between them, got f64,f32"
  end

  test "errors of compiled functions name the function, the op and shapes" do
    output =
      elixir(
        """
        {:ok, _} = Application.ensure_all_started(:nx_vulkan)

        defmodule Model do
          import Nx.Defn
          defn sorted(x), do: {Nx.sort(x, axis: 1), Nx.sort(Nx.broadcast(x, {2_000_000, 2_000_000, 2, 3}), axis: 0)}
        end

        try do
          Nx.Defn.jit_apply(&Model.sorted/1, [Nx.iota({2, 3}, backend: Nx.BinaryBackend)], compiler: Nx.Vulkan)
        rescue
          error in Nx.Vulkan.Error ->
            IO.puts("\#{error.kind} \#{error.op} " <> Exception.message(error))
        end
        """,
        []
      )

    assert output =~ ~r/too_large sort .*in sort of s32\[2000000, 2000000, 2, 3\].*, in Model.sorted\/1/, output
  end
end
