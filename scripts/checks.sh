#!/usr/bin/env bash
# What runs beside the tests: what runs in the program, built by clang and tried; clang-tidy on what runs in
# the program; tests of parts under sanitizers. Each in a build of its own.
# Usage: scripts/checks.sh [--compile] [clang|tidy|asan|tsan...]      default: all, which is what CI runs
#        --compile: compiles and looks only, so that what is run later is there; nothing whose result depends on who else has the processors
# scripts/tidy.sh and scripts/sanitize.sh without arguments look at everything there is, and take longer.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

run=true
if [ "${1-}" = --compile ]; then
  run=false
  shift
fi
"$root/scripts/setup.sh" --packages-only --checks
cd -- "$root"
[ $# -gt 0 ] || set -- clang tidy asan tsan

# Builds these programs of tests with these sanitizers, and runs them.
sanitize() {  # folder, sanitizers, programs, more for cmake
  local folder=$1 sanitizers=$2 programs=$3 program
  shift 3
  # Optimised a little only: compiling takes longer than running. Without NDEBUG: ASSERT holds here.
  cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCKPT_SANITIZE="$sanitizers" \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" "$@" >/dev/null
  # shellcheck disable=SC2086
  cmake --build "$folder" --target $programs
  $run || return 0
  for program in $programs; do
    "$folder/bin/$program" --gtest_brief=1 || die "$program failed in $folder"
  done
}

try_with_clang() {
  "$root/scripts/setup.sh" ckpt ckpt-restart
  mkdir -p build-clang/tried/bin build-clang/tried/lib
  cp -- "$build/bin/ckpt" "$build/bin/ckpt-restart" build-clang/tried/bin/
  cp -- build-clang/lib/libckpt_rt.so build-clang/tried/lib/
  PATH=$root/build-clang/tried/bin:$PATH sh "$root/scripts/package_smoke.sh"
}

for part; do
  say "$part"
  begin=$SECONDS
  case $part in
    clang)  # the library; the commands are those of the other compiler
      cmake --preset clang >/dev/null
      cmake --build --preset clang --target ckpt_rt
      if $run; then try_with_clang; fi
      ;;
    tidy) "$root/scripts/tidy.sh" base copier image/format image/write libckpt_rt job/capture ;;
    # By clang: so both compilers build these tests, and their warnings are seen.
    asan)
      sanitize build-checks-asan address,undefined "protect_model_test copy_engine_test writer_test" \
        -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
      ;;
    tsan) sanitize build-checks-tsan thread "unit_test copy_engine_test timewarp_test" ;;
    *) die "no such part: $part (clang, tidy, asan, tsan)" ;;
  esac
  say "$part: $((SECONDS - begin)) s"
done
