#!/usr/bin/env bash
# Builds and tests with AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, one after another.
# All tests that sanitizers can take: three builds. scripts/checks.sh has the part that every change must pass. Usage: scripts/sanitize.sh [asan|ubsan|tsan...]
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

"$root/scripts/setup.sh" --packages-only
cd -- "$root"
[ $# -gt 0 ] || set -- asan ubsan tsan
for preset; do
  say "$preset: building into build-$preset"
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset"
  say "$preset: running the tests"
  ctest --preset "$preset" --no-tests=error
done
