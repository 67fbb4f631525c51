#!/usr/bin/env bash
# What can be run beside the tests: clang and clang-tidy on the code that runs in the program, and the tests of parts under
# sanitizers, in builds of their own. CI runs tsan. Usage: scripts/checks.sh [tidy|asan|tsan...]      default: all three
# scripts/tidy.sh and scripts/sanitize.sh without arguments look at everything there is, and take longer.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

"$root/scripts/setup.sh" --packages-only
cd -- "$root"
[ $# -gt 0 ] || set -- tidy asan tsan

# Builds these programs of tests with these sanitizers, and runs them.
sanitize() {  # folder, sanitizers, programs
  local program
  cmake -S . -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCKPT_SANITIZE="$2" >/dev/null
  # shellcheck disable=SC2086
  cmake --build "$1" --target $3
  for program in $3; do
    "$1/bin/$program" --gtest_brief=1 || die "$program failed in $1"
  done
}

for part; do
  say "$part"
  begin=$SECONDS
  case $part in
    tidy) "$root/scripts/tidy.sh" base copier image/format image/write libckpt_rt job/capture ;;
    asan) sanitize build-checks-asan address,undefined "unit_test protect_model_test copy_engine_test writer_test" ;;
    tsan) sanitize build-checks-tsan thread "unit_test copy_engine_test timewarp_test" ;;
    *) die "no such part: $part (tidy, asan, tsan)" ;;
  esac
  say "$part: $((SECONDS - begin)) s"
done
