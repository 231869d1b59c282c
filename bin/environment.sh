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

# Where bin/setup puts drivers that tests alone use.
test_drivers_folder() { printf '%s\n' "${XDG_CACHE_HOME:-$HOME/.cache}/nx_vulkan/drivers"; }

# The manifest of SwiftShader, another Vulkan on the CPU, as bin/setup leaves it.
swiftshader_manifest() { files_like "$(test_drivers_folder)/vk_swiftshader_icd.json"; }

# Another manifest of lavapipe, as bin/setup leaves it: a driver that stands in two of them is two devices.
lavapipe_again_manifest() { files_like "$(test_drivers_folder)/lavapipe_again_icd.json"; }

# Mesa's library that pretends a GPU of `amdgpu` or `nouveau` is there.
drm_shim() {
  local shims
  shims=$(files_like "/usr/lib/*/lib$1_noop_drm_shim.so" "/usr/lib*/lib$1_noop_drm_shim.so") && printf '%s\n' "${shims%%$'\n'*}"
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
# lavapipe alone, `swiftshader` SwiftShader alone, `several` lavapipe twice and SwiftShader where it is there, `none` no
# driver at all, `any` leaves it what it finds. `radv:<family>` and
# `nvk:<chipset>` show it a GPU that is not there, such as radv:navi31 and nvk:0x172: Mesa's driver compiles for it, and what
# is submitted does nothing. Such a device has to be opened by `on_test_device`.
choose_test_device() {
  test_preload=""
  export NX_VULKAN_TEST_DEVICE="${NX_VULKAN_TEST_DEVICE:-lavapipe}"
  case "$NX_VULKAN_TEST_DEVICE" in
    lavapipe) VK_DRIVER_FILES=$(lavapipe_manifest) ;;
    swiftshader)
      VK_DRIVER_FILES=$(swiftshader_manifest) ||
        { echo "SwiftShader is not there: bin/setup --test takes it out of Debian's chromium-common" >&2 && return 1; }
      ;;
    several)
      # The least index is that of the default device, which has all types.
      VK_DRIVER_FILES="$(lavapipe_manifest):$(lavapipe_again_manifest)" ||
        { echo "there is no second manifest of lavapipe: bin/setup --test makes it" >&2 && return 1; }
      export NX_VULKAN_DEVICE=llvmpipe
      if swiftshader_manifest >/dev/null; then VK_DRIVER_FILES+=":$(swiftshader_manifest)"; fi
      ;;
    radv:*)
      export AMDGPU_GPU_ID="${NX_VULKAN_TEST_DEVICE#radv:}"
      pretend amdgpu 'radeon_icd*.json' || return 1
      ;;
    nvk:*)
      # NVK does not open Turing unless it is told to in some versions of Mesa.
      export NOUVEAU_CHIPSET="${NX_VULKAN_TEST_DEVICE#nvk:}" NVK_I_WANT_A_BROKEN_VULKAN_DRIVER=1
      pretend nouveau 'nouveau_icd*.json' || return 1
      ;;
    none) VK_DRIVER_FILES=/nonexistent/no-driver.json ;;
    any) return 0 ;;
    *) echo "NX_VULKAN_TEST_DEVICE is none, lavapipe, swiftshader, several, radv:<family>, nvk:<chipset> or any, not $NX_VULKAN_TEST_DEVICE" >&2 && return 1 ;;
  esac
  # Loaders before 1.3.207 know the second name only.
  export VK_DRIVER_FILES VK_ICD_FILENAMES="$VK_DRIVER_FILES"
}

# The driver and the library for a GPU that is not there.
pretend() {
  local manifests
  test_preload=$(drm_shim "$1") || { echo "there is no lib$1_noop_drm_shim.so: it is in Debian's mesa-drm-shim" >&2 && return 1; }
  manifests=$(driver_manifests "$2") || { echo "there is no driver manifest $2" >&2 && return 1; }
  VK_DRIVER_FILES="${manifests%%$'\n'*}"
}

# Runs a command with the device that choose_test_device chose.
on_test_device() {
  if [ -n "$test_preload" ]; then
    LD_PRELOAD="$test_preload" "$@"
  else
    "$@"
  fi
}
