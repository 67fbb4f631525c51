# Shared by the scripts; sourced, not run. Bash, errors stop the script.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
build=${CKPT_BUILD_DIR:-$root/build}

say() { printf '== %s\n' "$*"; }
die() {
  printf '%s: %s\n' "$(basename -- "$0")" "$*" >&2
  exit 1
}

# Runs a command with root's rights.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "root is needed to install packages: run as root, or install sudo (wanted: $*)"
  fi
}

# "64K", "256M", "1G", "4096" -> bytes
bytes_of() {
  local number=${1%[KMG]}
  [[ $number =~ ^[0-9]+$ ]] || die "'$1' is not a size; use for example 256M or 1G"
  case $1 in
    *K) echo $((number << 10)) ;;
    *M) echo $((number << 20)) ;;
    *G) echo $((number << 30)) ;;
    *) echo "$number" ;;
  esac
}
