#!/usr/bin/env bash
# The studies of the optimistic simulator: event rates against threads, states, LPs, ways of going back, CCL thresholds;
# peers beside, where ../shared/peers is. Graphs in one HTML page.
# Usage: scripts/timewarp_study.sh [--quick] [--turns=N] [--pair-turns=N]
#   --quick       under five minutes on two quiet processors
#   --turns       of each run, 7 without it
#   --pair-turns  of one optimistic thread against the sequential engine, 21 without it
# Results: build/timewarp/timewarp.html and timewarp.json; the latter has the seconds of every run.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

for argument; do
  [[ $argument =~ ^(--quick|--(pair-)?turns=[1-9][0-9]*)$ ]] ||
    die "$argument: usage: scripts/timewarp_study.sh [--quick] [--turns=N] [--pair-turns=N]"
done
"$root/scripts/setup.sh" --bench bench_phold bench_pcs bench_pcs_calls
mkdir -p "$build/timewarp"
exec /usr/bin/python3 "$root/bench/timewarp/study.py" --build "$build" --peers "${CKPT_PEERS:-$root/../shared/peers}" "$@"
