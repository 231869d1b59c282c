# Sourced by the scripts beside it: what this machine has. Prints nothing and changes nothing.
# shellcheck shell=bash

# The files that fit any of the patterns, one on a line; false where there is none.
files_like() {
  local pattern found=1
  for pattern in "$@"; do
    if compgen -G "$pattern"; then found=0; fi
  done
  return "$found"
}

# The driver manifests of this system whose file name fits the pattern.
driver_manifests() { files_like "/usr/share/vulkan/icd.d/$1" "/usr/local/share/vulkan/icd.d/$1" "/etc/vulkan/icd.d/$1"; }

# The manifest of lavapipe, Vulkan on the CPU.
lavapipe_manifest() {
  local manifests
  manifests=$(driver_manifests 'lvp_icd*.json') && printf '%s\n' "${manifests%%$'\n'*}"
}

# A driver manifest for real hardware and the device nodes of such hardware. A driver without its device, as in many
# containers, and a device without its driver both count as no GPU. Elsewhere the driver comes with the system or MoltenVK.
has_gpu() {
  case "$(uname -s)" in Linux | FreeBSD) ;; *) return 0 ;; esac
  { driver_manifests '[!l]*.json' || driver_manifests 'l[!v]*.json'; } >/dev/null &&
    files_like '/dev/dri/renderD*' '/dev/nvidia[0-9]*' >/dev/null
}

has_validation_layer() {
  files_like '/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json' \
    '/usr/local/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json' \
    '/opt/homebrew/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json' \
    '/etc/vulkan/explicit_layer.d/VkLayer_khronos_validation.json' >/dev/null
}

# Elixir 1.18 or later.
has_elixir() {
  command -v elixir >/dev/null &&
    elixir -e 'System.halt(if Version.match?(System.version(), ">= 1.18.0"), do: 0, else: 1)' >/dev/null 2>&1
}

# The folder of source checkouts that mix.exs uses in place of Hex; the same rule as there.
checkouts_folder() {
  local folder="${NX_VULKAN_DEPS-$HOME/.cache/nx_vulkan/deps}"
  [ -n "$folder" ] && { [ -n "${NX_VULKAN_DEPS-}" ] || [ -d "$folder" ]; } && printf '%s\n' "$folder"
}

hex_reachable() {
  if command -v curl >/dev/null; then
    curl --fail --silent --max-time 15 --output /dev/null https://repo.hex.pm/packages/nx
  else
    timeout 15 bash -c '</dev/tcp/repo.hex.pm/443' 2>/dev/null
  fi
}

# Whether Elixir packages can be had; where they can't, elixir_missing says why.
elixir_packages() {
  elixir_missing=""
  if ! has_elixir; then
    elixir_missing="Elixir 1.18 or later is not installed"
  elif [ -n "${NX_VULKAN_DEPS-}" ] && [ ! -d "$NX_VULKAN_DEPS" ]; then
    elixir_missing="NX_VULKAN_DEPS names $NX_VULKAN_DEPS, which is no folder"
  elif ! checkouts_folder >/dev/null && ! hex_reachable; then
    elixir_missing="hex.pm can't be reached and there is no folder of checkouts (NX_VULKAN_DEPS)"
  fi
  [ -z "$elixir_missing" ]
}

# Hex and rebar3, then the packages. Only after elixir_packages; a failure from here on is a failure.
fetch_elixir_packages() {
  if ! checkouts_folder >/dev/null; then
    mix local.hex --force --if-missing
    mix local.rebar --force --if-missing
  fi
  mix deps.get
}

# What a run of the tests may use, by NX_VULKAN_TEST_DEVICE: `lavapipe` (as when it is unset) shows the Vulkan loader
# lavapipe alone, `none` no driver at all, `any` leaves it what it finds.
choose_test_device() {
  export NX_VULKAN_TEST_DEVICE="${NX_VULKAN_TEST_DEVICE:-lavapipe}"
  case "$NX_VULKAN_TEST_DEVICE" in
    lavapipe) VK_DRIVER_FILES=$(lavapipe_manifest) ;;
    none) VK_DRIVER_FILES=/nonexistent/no-driver.json ;;
    any) return 0 ;;
    *) echo "NX_VULKAN_TEST_DEVICE is none, lavapipe or any, not $NX_VULKAN_TEST_DEVICE" >&2 && return 1 ;;
  esac
  # Loaders before 1.3.207 know the second name only.
  export VK_DRIVER_FILES VK_ICD_FILENAMES="$VK_DRIVER_FILES"
}
