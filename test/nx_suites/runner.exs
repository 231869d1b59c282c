# Runs one test file of Nx, Axon or Scholar with our backend as the default of every process, in a VM of its own:
#
#     elixir -pa ... runner.exs <folder of the package> <test file> <file for the results> <compiler>
#
# The VM has no consolidated protocols, since the files define implementations of them. The results are an Erlang term:
# a list of {name, :passed | :excluded | :skipped | {:failed, message}}.
[package, file, results, compiler] = System.argv()

defmodule Nx.Vulkan.Suites.Values do
  @moduledoc false

  # `==` on tensors: those of Nx.BinaryBackend are equal if their elements are, references to device memory never are.
  def equal?(left, right), do: left == right or on(left, Nx.BinaryBackend) == on(right, Nx.BinaryBackend)

  # What a doctest compares `value` with: itself, where it is what was expected. Floats may be as far off as Scholar's
  # `assert_all_close/3` lets them: its examples have all digits of Nx.BinaryBackend.
  def expected(value, expected) do
    if equal?(value, expected) or close?(on(value, Nx.BinaryBackend), on(expected, Nx.BinaryBackend)),
      do: value,
      else: expected
  end

  defp close?(same, same), do: true

  defp close?(%Nx.Tensor{type: {class, _}} = value, %Nx.Tensor{} = expected) when class in [:f, :bf] do
    same = &{&1.type, &1.shape, &1.names, &1.vectorized_axes}
    [left, right] = Enum.map([value, expected], &Nx.devectorize/1)

    same.(value) == same.(expected) and
      Nx.to_number(Nx.all_close(left, right, atol: 1.0e-4, rtol: 1.0e-4, equal_nan: true)) == 1
  end

  defp close?(%Nx.Tensor{}, _expected), do: false
  defp close?(%struct{} = value, %struct{} = expected), do: close?(Map.from_struct(value), Map.from_struct(expected))

  defp close?(value, expected) when is_map(value) and is_map(expected) and map_size(value) == map_size(expected) do
    Enum.all?(value, fn {key, value} -> is_map_key(expected, key) and close?(value, expected[key]) end)
  end

  defp close?(value, expected) when is_tuple(value) and is_tuple(expected) do
    close?(Tuple.to_list(value), Tuple.to_list(expected))
  end

  defp close?([value | values], [expected | rest]), do: close?(value, expected) and close?(values, rest)

  defp close?(value, expected) when is_float(value) and is_float(expected),
    do: abs(value - expected) <= 1.0e-4 * (1 + abs(expected))

  defp close?(_value, _expected), do: false

  # What a doctest prints where `expected` is to be printed: the same but for floats, which earlier versions of Nx
  # printed with the digits of f64, and for the line breaks that follow from those.
  def printed(value, expected) do
    text = inspect(value)
    if alike?(parts(text), parts(expected)), do: text, else: expected
  end

  defp parts(text),
    do: Regex.split(~r/-?\d+\.\d+(e[+-]?\d+)?/, String.replace(text, ~r/\s/, ""), include_captures: true)

  defp alike?(parts, expected) do
    length(parts) == length(expected) and
      Enum.all?(Enum.zip(parts, expected), fn {part, other} -> part == other or floats_close?(part, other) end)
  end

  defp floats_close?(part, other) do
    with {value, ""} <- Float.parse(part),
         {expected, ""} <- Float.parse(other),
         do: close?(value, expected),
         else: (_ -> false)
  end

  # The term with its tensors on the default backend.
  def place(term), do: on(term, Nx.default_backend())

  defp on(%Nx.Tensor{data: %backend{}} = tensor, to) when backend in [Nx.BinaryBackend, Nx.Vulkan.VulkanoBackend] do
    tensor |> Nx.backend_copy(to) |> one_nan(to)
  end

  defp on(%struct{} = term, to), do: term |> Map.from_struct() |> on(to) |> Map.put(:__struct__, struct)
  defp on(term, to) when is_map(term), do: Map.new(term, fn {key, value} -> {on(key, to), on(value, to)} end)
  defp on(term, to) when is_tuple(term), do: term |> Tuple.to_list() |> on(to) |> List.to_tuple()
  defp on([head | tail], to), do: [on(head, to) | on(tail, to)]
  defp on(term, _to), do: term

  # Which NaN it is means nothing.
  @infinity %{{:f, 16} => 0x7C00, {:bf, 16} => 0x7F80, {:f, 32} => 0x7F800000, {:f, 64} => 0x7FF0000000000000}

  defp one_nan(%{type: type} = tensor, Nx.BinaryBackend) do
    {_, size} = part = with {:c, size} <- type, do: {:f, div(size, 2)}

    case @infinity do
      %{^part => infinity} ->
        bits =
          for <<bits::native-size(size) <- Nx.to_binary(tensor)>>,
            into: <<>>,
            do: <<nan(bits, infinity, size)::native-size(size)>>

        Nx.BinaryBackend.from_binary(tensor, bits, [])

      %{} ->
        tensor
    end
  end

  defp one_nan(tensor, _to), do: tensor

  defp nan(bits, infinity, size) do
    if Bitwise.band(bits, 2 ** (size - 1) - 1) > infinity, do: infinity + 1, else: bits
  end
end

defmodule Nx.Vulkan.Suites.Source do
  @moduledoc false

  alias Nx.Vulkan.Suites.Values

  # Two things in the source depend on tensors being plain terms: `==`, and attributes, which are made while the file is
  # compiled, on Nx.BinaryBackend. Numerical definitions give `==` a meaning of their own.
  def compile(file) do
    {:ok, quoted} = file |> File.read!() |> Code.string_to_quoted(file: file)
    quoted |> rewrite(:module) |> Code.compile_quoted(Path.expand(file))
  end

  # The backend and the compiler that Axon's support files choose.
  def compile_support(file, compiler) do
    {:ok, quoted} = file |> File.read!() |> Code.string_to_quoted(file: file)

    quoted
    |> Macro.prewalk(fn
      {:def, meta, [{:test_compiler, _, _} = head, _]} -> {:def, meta, [head, [do: compiler]]}
      {:def, meta, [{:test_backend, _, _} = head, _]} -> {:def, meta, [head, [do: Nx.Vulkan.VulkanoBackend]]}
      node -> node
    end)
    |> rewrite(:module)
    |> Code.compile_quoted(Path.expand(file))
  end

  # The test of a doctest, which compares values or what is printed with `===`.
  def by_value(test) do
    Macro.prewalk(test, fn
      {{:., _, [_, :__inspect__]} = call, meta, [value, expected | rest]} when is_binary(expected) ->
        shown = Macro.unique_var(:shown, __MODULE__)
        printed = quote(do: unquote(Values).printed(unquote(shown), unquote(expected)))
        {:__block__, [], [{:=, [], [shown, value]}, {call, meta, [shown, printed | rest]}]}

      {{:., _, [_, :__test__]} = call, meta, [value, expected | rest]} ->
        {call, meta, [value, quote(do: unquote(Values).expected(unquote(value), unquote(expected))) | rest]}

      node ->
        node
    end)
  end

  defp rewrite({defn, _, _} = node, _in) when defn in [:defn, :defnp, :deftransform, :deftransformp, :quote], do: node
  defp rewrite({:when, meta, [head | guard]}, within), do: {:when, meta, [rewrite(head, within) | guard]}

  defp rewrite({code, meta, [head | body]}, _in) when code in [:test, :def, :defp, :setup] do
    {code, meta, [rewrite(head, :module) | rewrite(body, :function)]}
  end

  defp rewrite({:doctest, _, [module | opts]}, :module) do
    quote bind_quoted: [module: module, opts: List.first(opts, [])] do
      for {name, test, tags} <- ExUnit.DocTest.__doctests__(module, opts) do
        name = ExUnit.Case.register_test(__ENV__, :doctest, name, [:doctest | tags])
        def unquote(name)(_context), do: unquote(Nx.Vulkan.Suites.Source.by_value(test))
      end
    end
  end

  defp rewrite({op, _, [left, right]}, :function) when op in [:==, :!=] do
    equal = quote do: unquote(Values).equal?(unquote(rewrite(left, :function)), unquote(rewrite(right, :function)))
    if op == :==, do: equal, else: quote(do: not unquote(equal))
  end

  defp rewrite({:@, _, [{name, _, context}]} = node, :function) when is_atom(name) and is_atom(context) do
    quote do: unquote(Values).place(unquote(node))
  end

  defp rewrite({:^, _, _} = node, _in), do: node
  defp rewrite({form, meta, args}, within), do: {rewrite(form, within), meta, rewrite(args, within)}
  defp rewrite({left, right}, within), do: {rewrite(left, within), rewrite(right, within)}
  defp rewrite(list, within) when is_list(list), do: Enum.map(list, &rewrite(&1, within))
  defp rewrite(node, _in), do: node
end

defmodule Nx.Vulkan.Suites.Formatter do
  @moduledoc false
  use GenServer

  @impl true
  def init(opts), do: {:ok, {opts, []}}

  @impl true
  def handle_cast({:test_finished, test}, {opts, seen}), do: {:noreply, {opts, [{name(test), outcome(test)} | seen]}}

  def handle_cast({:suite_finished, _times}, {opts, seen} = state) do
    File.write!(opts[:results], :erlang.term_to_binary(seen))
    {:noreply, state}
  end

  def handle_cast(_event, state), do: {:noreply, state}

  defp name(test), do: Atom.to_string(test.name)

  defp outcome(%{state: nil}), do: :passed
  defp outcome(%{state: {:skipped, _}}), do: :skipped
  defp outcome(%{state: {:excluded, _}}), do: :excluded
  defp outcome(%{state: {:invalid, module}}), do: {:failed, "setup_all of #{inspect(module.name)}"}

  defp outcome(%{state: {:failed, failures}} = test) do
    {:failed, ExUnit.Formatter.format_test_failure(test, failures, 1, 120, fn _key, text -> text end)}
  end
end

File.cd!(package)
{:ok, _} = Application.ensure_all_started(:nx_vulkan)
Application.put_env(:nx_vulkan, :add_backend_on_inspect, false)

# The distributed tests start further nodes of the BEAM, which would compute with their own default backend. Axon leaves
# out its doctests on other backends than Nx.BinaryBackend, and they print floats as an earlier Nx did.
doctests = if Path.basename(package) == "axon", do: [test_type: :doctest], else: []

ExUnit.start(
  autorun: false,
  formatters: [Nx.Vulkan.Suites.Formatter],
  results: results,
  exclude: [:distributed, :integration] ++ doctests,
  # Kernels are compiled in between, which takes seconds where the machine has other work, and loops in loops wait for
  # the device in every iteration: what is tested here is values.
  assert_receive_timeout: 30_000,
  timeout: 300_000,
  colors: [enabled: false],
  seed: 0
)

compiler = Module.concat([compiler])
for file <- Path.wildcard("test/support/**/*.ex"), do: Nx.Vulkan.Suites.Source.compile_support(file, compiler)
Nx.Vulkan.Suites.Source.compile(file)
Nx.global_default_backend(Nx.Vulkan.VulkanoBackend)
# Tests of Nx look at the options, which are empty where nobody chose a compiler.
if compiler != Nx.Defn.Evaluator, do: Nx.Defn.global_default_options(compiler: compiler)
ExUnit.run()
