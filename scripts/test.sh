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
# Two at a time; a test that cannot share the machine has RUN_SERIAL.
ctest --test-dir "$build" --output-on-failure --no-tests=error -j2 "$@"
