#!/usr/bin/env bash
# The main job: a parallel merge sort is checkpointed while it sorts at full speed, killed with -9 and
# brought back; its output must be byte-identical to that of an uninterrupted run.
# Usage: scripts/demo.sh         CKPT_DEMO_SIZE=256M for a smaller sort (default 1G of records)
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

size=${CKPT_DEMO_SIZE:-1G}
threads=3
rounds=4
bytes=$(bytes_of "$size")

# All that the README offers: the commands, the libraries, the program of this demonstration, and the one of bench/peers/compare.py.
"$root/scripts/setup.sh" ckpt ckpt-beside ckpt-on ckpt-srun ckpt-restart ckpt_rt ckpt_heap ckpt_plugins bench_mergesort bench_gaps

# On the disk of the build, not in /tmp, which may be memory.
work=$(mktemp -d "$build/demo.XXXXXX")
pid=
restart_pid=
links=
finish() {
  local status=$?
  trap - EXIT
  # Only what this script started.
  if [ -n "$restart_pid" ]; then kill "$restart_pid" 2>/dev/null || true; fi
  if [ -n "$pid" ]; then kill -9 "$pid" 2>/dev/null || true; fi
  if [ "$status" -eq 0 ]; then
    rm -rf -- "$work" ${links:+"$links"}
  else
    printf '\nThe demonstration FAILED (exit %s). Everything is kept in %s\n' "$status" "$work" >&2
  fi
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

free=$(($(stat -f -c '%a * %S' "$work")))
# Two outputs, an image, and room to breathe.
if [ "$free" -lt $((bytes * 4)) ]; then
  die "$work: $((free >> 20)) MiB free, $((bytes * 4 >> 20)) MiB needed (set CKPT_DEMO_SIZE to a smaller size)"
fi

# LD_PRELOAD separates at spaces and colons: the library is reached through a link without any.
library=$build/lib/libckpt_rt.so
case $library in
  *[[:space:]:]*)
    links=$(mktemp -d /tmp/ckpt-demo-link.XXXXXX)
    ln -s -- "$library" "$links/libckpt_rt.so"
    library=$links/libckpt_rt.so
    ;;
esac

sort_command=("$build/bench/mergesort" --threads "$threads" --size "$size" --rounds "$rounds")
now_ms() { echo $(($(date +%s%N) / 1000000)); }
# Waits until the sort has printed that a round is done: from then on it works on the next one.
wait_for_round() {  # file, round, pid
  until grep -q "^round $2 " "$1" 2>/dev/null; do
    kill -0 "$3" 2>/dev/null || { cat "$work"/*.err >&2; die "the sort ended before round $2 was done"; }
    read -rt 0.02 <>"$work/clock" || true
  done
}
mkfifo "$work/clock"
# Replaces this (sub)shell by a program that inherits nothing but its standard streams: whatever else
# this script was started with is not part of what is shown.
exec_alone() {
  local fd
  for fd in /proc/"$BASHPID"/fd/*; do
    fd=${fd##*/}
    if [ "$fd" -gt 2 ]; then eval "exec $fd>&-"; fi
  done
  exec "$@"
}

say "1. the uninterrupted run: mergesort, $threads threads, $size of records, $rounds rounds"
begin=$(now_ms)
"${sort_command[@]}" --output "$work/reference.sorted" >"$work/reference.out" 2>"$work/reference.err"
plain_ms=$(($(now_ms) - begin))
cat "$work/reference.out"

say "2. the same with LD_PRELOAD=libckpt_rt.so, in the background"
mkdir -m 0700 "$work/images"
(exec_alone env LD_PRELOAD="$library" CKPT_DIR="$work/images" "${sort_command[@]}" \
  --output "$work/checkpointed.sorted") </dev/null >"$work/checkpointed.out" 2>"$work/checkpointed.err" &
pid=$!
wait_for_round "$work/checkpointed.out" 1 "$pid"

say "3. ckpt now $pid, while it sorts at full speed"
"$build/bin/ckpt" now --timeout 300s "$pid" | tee "$work/cost"

say "4. kill -9 $pid"
kill -9 "$pid"
wait "$pid" 2>/dev/null || true
pid=
if cmp -s "$work/reference.out" "$work/checkpointed.out"; then
  die "the sort was done before it could be killed: nothing shown (set CKPT_DEMO_SIZE to a larger size)"
fi
cp -- "$work/checkpointed.out" "$work/killed.out"
"$build/bin/ckpt" ls "$work/images"
"$build/bin/ckpt" verify "$work/images"

say "5. ckpt-restart"
begin=$(now_ms)
"$build/bin/ckpt-restart" --verbose "$work/images" 2>"$work/restart.err" &
restart_pid=$!
status=0
wait "$restart_pid" || status=$?
restart_pid=
restart_total_ms=$(($(now_ms) - begin))
cat "$work/restart.err"
[ "$status" -eq 0 ] || die "ckpt-restart or the restarted sort failed with exit code $status"

say "6. the outputs, byte by byte"
cat "$work/checkpointed.out"
cmp "$work/reference.out" "$work/checkpointed.out" || die "standard output differs from the uninterrupted run"
cmp "$work/reference.sorted" "$work/checkpointed.sorted" || die "the sorted records differ from the uninterrupted run"
[ ! -s "$work/checkpointed.err" ] || { cat "$work/checkpointed.err"; die "the program printed on standard error"; }

say "identical: standard output, and $(stat -c %s "$work/reference.sorted") bytes of sorted records"
seconds() { printf '%d.%03d s' $(($1 / 1000)) $(($1 % 1000)); }
figure() { printf '  %-24s%s\n' "$1" "$2"; }
sed -n '/^  image /d; /^  /p' "$work/cost"
figure "time to restart" "$(sed -n 's/.* running after \(.*\)$/\1/p' "$work/restart.err")"
figure "uninterrupted run" "$(seconds "$plain_ms")"
figure "from restart to the end" "$(seconds "$restart_total_ms")"
