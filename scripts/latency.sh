#!/usr/bin/env bash
# What checkpoints cost: measures in every mode, beside fork() and CRIU, draws graphs and writes a page.
# Usage: scripts/latency.sh [--quick] [options of build/bench/latency]
#        --quick: under five minutes on two cores; without it, about an hour
# Results: build/latency/latency.html, its graphs as PNG and SVG, and latency.json.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

command="scripts/latency.sh${*:+ $*}"
results=$build/latency
mkdir -p "$results"
"$root/scripts/setup.sh" --bench ckpt_latency

# What an interrupted measurement leaves behind.
trap 'rm -rf -- "$results"/latency.?????? "$results"/latency.disk' EXIT
trap 'exit 130' INT TERM

say "measuring (images in $results)"
status=0
"$build/bench/latency" --images "$results" --benchmark_out="$results/latency.json" --benchmark_out_format=json "$@" ||
  status=$?
case $status in
  0) ;;
  1) say "a measurement failed: see above and the page" ;;
  *) exit "$status" ;;
esac
say "drawing"
# The system's own: apt puts matplotlib there, whatever other python3 comes first in PATH.
/usr/bin/python3 "$root/bench/latency/report.py" "$results/latency.json" "$results" "$command; load average at the end: $(cut -d' ' -f1-3 /proc/loadavg)"
exit "$status"
