#!/usr/bin/env bash
# Sets up, builds everything and runs all tests. Usage: scripts/test.sh [ctest arguments]
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

"$root/scripts/setup.sh"
say "what this machine allows (build/bin/ckpt check)"
"$build/bin/ckpt" check "$build" || die "checkpoint or restart is impossible here: see the findings above"
if [ "$(id -u)" -ne 0 ]; then
  say "not root: tests that need rights take the unprivileged path (mode fork, namespaces) and say so"
fi
say "running the tests"
# Three at a time, on two processors too: tests of jobs, of hosts and of the commands use a third of one, and wait. A test that
# cannot share the machine has RUN_SERIAL.
ctest --test-dir "$build" --output-on-failure --no-tests=error -j3 "$@" || {
  code=$?
  say "what failed, and the end of what it said"
  # A section of the log for each test; those that passed are left out.
  awk '/^[0-9]+\/[0-9]+ Testing: / { name = $3; n = 0 }
       { lines[n++] = substr($0, 1, 400) }
       /^Test Failed\.$/ { print "-- " name; for (i = n > 25 ? n - 25 : 0; i < n; ++i) print lines[i] }' \
    "$build/Testing/Temporary/LastTest.log"
  # Where the checkout is thrown away, what happened is not.
  kept=$(mktemp "${TMPDIR:-/tmp}/ckpt_rt-failed-tests.XXXXXX") && cp "$build/Testing/Temporary/LastTest.log" "$kept" &&
    say "all that the tests said: $kept"
  exit $code
}
