#!/usr/bin/env bash
# Makes build/package/*.deb and tries it where nothing else of this project is: in fresh Debian systems made by debootstrap.
# Usage: scripts/package.sh [--no-try] [SUITE...]      default: bullseye trixie       needs root for the trial
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

try=true
if [ "${1-}" = --no-try ]; then
  try=false
  shift
fi
[ $# -gt 0 ] || set -- bullseye trixie  # the oldest glibc that is promised, and the newest that can be had

"$root/scripts/setup.sh" --package
mkdir -p "$build/package"
rm -f "$build"/package/*.deb
(cd "$build" && cpack --config CPackConfig.cmake -B package >package/cpack.log) || {
  cat "$build/package/cpack.log" >&2
  die "cpack failed"
}
packages=("$build"/package/*.deb)
say "made ${packages[0]} ($(stat -c %s "${packages[0]}") bytes)"
$try || exit 0
[ "$(id -u)" -eq 0 ] || die "the trial needs root (debootstrap, chroot); --no-try leaves it out"

# The mirror, and the proxy, that apt has here.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)
[ -n "$mirror" ] || die "apt knows no archive of Debian here: put one into /etc/apt/sources.list.d, then: apt-get update"
eval "$(apt-config shell proxy Acquire::http::Proxy)"
[ -z "${proxy-}" ] || export http_proxy=$proxy

for suite; do
  say "$suite: a fresh system"
  system=$(mktemp -d "$build/package/$suite.XXXXXX")
  # /proc is unmounted before the system is removed, whatever happened.
  trap 'umount "$system/proc" 2>/dev/null || true; rm -rf -- "$system"' EXIT
  debootstrap --variant=minbase "$suite" "$system" "$mirror" >"$build/package/$suite.log" 2>&1 || {
    tail -n 20 "$build/package/$suite.log" >&2
    die "debootstrap could not make a system of $suite from $mirror; its last lines are above. Can that be reached from here?"
  }
  mount -t proc proc "$system/proc"
  cp -- "${packages[0]}" "$system/tmp/ckpt.deb"
  cp -- "$root/scripts/package_smoke.sh" "$system/tmp/"
  chroot "$system" sh -c 'apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends /tmp/ckpt.deb' \
    >>"$build/package/$suite.log" 2>&1 || {
    tail -n 20 "$build/package/$suite.log" >&2
    die "$suite: the package does not install"
  }
  # Nothing of the package asks for a library, or a version of a symbol, that is not there.
  chroot "$system" sh -c 'for f in $(dpkg -L ckpt-rt); do case $f in /usr/bin/* | *.so) ldd -r "$f" 2>&1 ;; esac; done' >"$build/package/$suite.libraries"
  ! grep -E 'not found|undefined symbol' "$build/package/$suite.libraries" || die "$suite: libraries are missing"
  chroot "$system" env PATH=/usr/sbin:/usr/bin:/sbin:/bin sh /tmp/package_smoke.sh || die "$suite: the smoke test failed"
  umount "$system/proc"
  rm -rf -- "$system"
  trap - EXIT
done
