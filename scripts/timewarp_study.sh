#!/usr/bin/env bash
# The studies of the optimistic simulator: event rates against threads, states, LPs, ways of going back, CCL thresholds;
# peers beside, where ../shared/peers is. Graphs in one HTML page.
# Usage: scripts/timewarp_study.sh [--quick]      --quick: under five minutes on two quiet processors
# Results: build/timewarp/timewarp.html and timewarp.json.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

[ $# -eq 0 ] || { [ $# -eq 1 ] && [ "$1" = --quick ]; } || die "usage: scripts/timewarp_study.sh [--quick]"
"$root/scripts/setup.sh" --bench bench_phold bench_pcs bench_pcs_calls
mkdir -p "$build/timewarp"
exec /usr/bin/python3 "$root/bench/timewarp/study.py" --build "$build" --peers "${CKPT_PEERS:-$root/../shared/peers}" "$@"
