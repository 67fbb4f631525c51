#!/usr/bin/env bash
# Installs what is missing (Debian 12, by apt) and builds into build/.
# Usage: scripts/setup.sh [--packages-only] [--checks] [--bench] [--package] [TARGET...]      no target: everything
#        --checks: also what scripts/checks.sh needs
#        --bench: also what scripts/latency.sh draws with and compares with; --package: what scripts/package.sh needs
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

packages=(
  build-essential cmake ninja-build pkg-config git clang-format
  liburing-dev libunwind-dev libdw-dev liblzma-dev zlib1g-dev libbz2-dev libjemalloc-dev libxxhash-dev liblz4-dev libzstd-dev libsodium-dev
  libisal-dev libfmt-dev libcli11-dev nlohmann-json3-dev libgtest-dev libbenchmark-dev
  # transports of distributed simulations
  libopenmpi-dev openmpi-bin libmpich-dev mpich
  # srun --mpi=pmix
  libpmix-dev
  # the programs that the tests checkpoint, and what they are looked at with
  python3 python3-numpy sqlite3 xz-utils perl gdb procps util-linux
  # hosts in namespaces, which start programs on each other (tests/support/hosts.py)
  iproute2 dropbear-bin
)
# gfortran: for bench/diskless/pstswm
bench_packages=(python3-matplotlib criu gfortran)
package_packages=(dpkg-dev debootstrap file)
# libclang-rt-dev: the sanitizers of clang, which clang only recommends
check_packages=(clang clang-tidy libclang-rt-dev)

install_missing() {
  if ! command -v dpkg-query >/dev/null; then
    say "no dpkg here: taking it that the packages named in scripts/setup.sh are installed"
    return
  fi
  local missing=() package
  for package in "${packages[@]}"; do
    # Virtual or never-seen packages make dpkg-query fail: they are missing as well.
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${missing[*]}"
  as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" </dev/null
}

configure() {
  local fresh=()
  # A clone that was moved has a cache that points to where it was.
  if [ -f "$build/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$build/CMakeCache.txt"; then
    fresh=(--fresh)
  fi
  mkdir -p "$build"
  cmake -S "$root" -B "$build" -G Ninja "${fresh[@]}" >"$build/configure.log" 2>&1 || {
    cat "$build/configure.log" >&2
    die "cmake failed; its output is above and in $build/configure.log"
  }
}

# A static program of Go (tests/beside)
command -v go >/dev/null || packages+=(golang-go)
only_packages=false
while true; do
  case ${1-} in
    --packages-only) only_packages=true ;;
    --bench) packages+=("${bench_packages[@]}") ;;
    --checks) packages+=("${check_packages[@]}") ;;
    --package) packages+=("${package_packages[@]}") ;;
    *) break ;;
  esac
  shift
done
install_missing
if $only_packages; then exit 0; fi
say "building into $build"
configure
cmake --build "$build" ${1:+--target "$@"}
