#!/usr/bin/env bash
# Installs the programs of docs/programs.md (Debian 12, by apt), builds what they need, and runs tests/jobs/real_programs/programs.py.
# --newest: also what PyPI and npm have, some 4 GB, in ~/.cache/ckpt_rt/programs. Without it, programs that are not there are passed over.
# Usage: scripts/programs.sh [--packages-only] [--newest] [ARGUMENT OF programs.py...]      none: writes docs/programs.md, in an hour or so
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

packages=(
  parallel rsync zstd git make gcc binutils gunicorn nodejs redis-server memcached openssl tmux stress-ng vim gdb screen
  xvfb xterm ffmpeg nginx postgresql r-base-core octave default-jdk-headless python3-torch erlang-base mariadb-server lammps gromacs
  haproxy lighttpd apache2 php-cli php-fpm puma starman squid varnish mosquitto mosquitto-clients beanstalkd nats-server etcd-server unbound bind9 dnsmasq slapd
  ldap-utils celery python3-redis supervisor runit s6 openssh-server aria2 curl wget zsh ksh fish expect tcl lua5.4 guile-3.0 sbcl racket gforth ocaml-nox ghc
  libghc-process-dev golang emacs-nox python3-scipy python3-pandas python3-joblib python3-distributed python3-sklearn cmake ninja-build ccache cargo npm python3-venv sqlite3
  imagemagick texlive-latex-base gstreamer1.0-tools gstreamer1.0-plugins-base
)
missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  say "installing ${missing[*]}"
  as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" </dev/null
fi
packages_only=
if [ "${1-}" = --packages-only ]; then packages_only=yes; shift; fi
if [ "${1-}" = --newest ]; then
  shift
  newest=${XDG_CACHE_HOME:-$HOME/.cache}/ckpt_rt/programs
  mkdir -p "$newest"
  [ -x "$newest/venv/bin/python3" ] || python3 -m venv "$newest/venv"
  "$newest/venv/bin/pip" install -q numba polars duckdb pyarrow xgboost lightgbm jax tensorflow-cpu ray ipykernel jupyter_client uvloop grpcio optuna pyspark snakemake
  npm install -s --prefix "$newest" deno bun esbuild typescript
fi
[ -z "$packages_only" ] || exit 0
"$root/scripts/setup.sh" ckpt ckpt_rt ckpt-restart
[ $# -gt 0 ] || set -- --table "$root/docs/programs.md"
CKPT_BUILD=$build exec python3 "$root/tests/jobs/real_programs/programs.py" "$@"
