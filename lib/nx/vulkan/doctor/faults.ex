defmodule Nx.Vulkan.Doctor.Faults do
  @moduledoc false
  # Known faults of drivers, as docs/design/driver-faults.md has them: that page is their one owner, and is read when
  # this is compiled.

  @page Path.expand("../../../../docs/design/driver-faults.md", __DIR__)
  @external_resource @page

  # How headings of the page begin, which driver they mean, the version that the faults were seen with, and from which
  # version on they are known to be gone.
  @sections [
    {"NVIDIA, driver 580.159", "NVIDIA", "580.159", nil},
    {"Mesa 25.0 (lavapipe", "llvmpipe", "25.0", nil},
    {"Mesa 22.3 (lavapipe", "llvmpipe", "22.3", "25.0"},
    {"SwiftShader", "SwiftShader", nil, nil}
  ]

  # Headings of what is no driver's, or of none that has a name of its own.
  @without_driver ["Other drivers", "Tools and libraries"]

  @parsed @page
          |> File.read!()
          |> String.split(~r/^## /m)
          |> tl()
          |> Map.new(fn section ->
            [heading, body] = String.split(section, "\n", parts: 2)

            faults =
              for item <- body |> String.split(~r/^- /m) |> tl() do
                [what | rest] = item |> String.replace(~r/\s+/, " ") |> String.trim() |> String.split(" *Here*: ")
                [here | _where] = rest |> Enum.join(" ") |> String.split(" *In*: ")
                %{what: String.trim(what), here: String.trim(here)}
              end

            {heading, faults}
          end)

  @doc "The headings of the page that mean a driver, or none, and those that this does not know."
  def headings do
    known = Enum.map(@sections, &elem(&1, 0)) ++ @without_driver
    Enum.split_with(Map.keys(@parsed), &String.starts_with?(&1, known))
  end

  @doc """
  The faults that the driver of a device may have: `:what` is wrong, what is done about it `:here`, whether it is
  `:left` as it is, and the `:version` that it was `:seen_with`.
  """
  def of(%{driver_name: name, driver_info: info}) do
    version = version(info)

    for {heading, driver, seen_with, gone_from} <- @sections,
        String.contains?(name, driver),
        not (gone_from != nil and at_least?(version, gone_from)),
        {found, faults} <- @parsed,
        String.starts_with?(found, heading),
        fault <- faults do
      same? = seen_with == nil or String.starts_with?("#{Enum.join(version, ".")}.", seen_with <> ".")
      Map.merge(fault, %{left: left?(fault.here), seen_with: found, same_version: same?})
    end
  end

  # What is said of those that can be seen in results or times.
  defp left?(here), do: here =~ ~r/^nothing|^not looked into|^listed as a difference|guides\/numerics\.md states it/

  defp version(info) do
    case Regex.run(~r/\d+(?:\.\d+)+/, info) do
      [version] -> numbers(version)
      nil -> []
    end
  end

  defp at_least?(version, other), do: version >= numbers(other)
  defp numbers(version), do: version |> String.split(".") |> Enum.map(&String.to_integer/1)
end
