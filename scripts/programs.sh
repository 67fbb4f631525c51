#!/usr/bin/env bash
# Installs the programs of docs/programs.md (Debian 12, by apt), builds what they need, and runs tests/jobs/real_programs/programs.py.
# Usage: scripts/programs.sh [--packages-only] [ARGUMENT OF programs.py...]      none: writes docs/programs.md, in an hour or so
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

packages=(
  parallel rsync zstd git make gcc binutils gunicorn nodejs redis-server memcached openssl tmux stress-ng vim gdb screen
  xvfb xterm ffmpeg nginx postgresql r-base-core octave default-jdk-headless python3-torch erlang-base mariadb-server lammps gromacs
  haproxy lighttpd apache2 php-cli php-fpm puma starman squid varnish mosquitto mosquitto-clients beanstalkd nats-server etcd-server unbound bind9 dnsmasq slapd
  ldap-utils celery python3-redis supervisor runit s6 openssh-server aria2 curl wget zsh ksh fish expect tcl lua5.4 guile-3.0 sbcl racket gforth ocaml-nox ghc
  libghc-process-dev golang emacs-nox python3-scipy python3-pandas python3-joblib python3-distributed python3-sklearn cmake ninja-build ccache cargo npm sqlite3
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
if [ "${1-}" = --packages-only ]; then exit 0; fi
"$root/scripts/setup.sh" ckpt ckpt_rt ckpt-restart
[ $# -gt 0 ] || set -- --table "$root/docs/programs.md"
CKPT_BUILD=$build exec python3 "$root/tests/jobs/real_programs/programs.py" "$@"
