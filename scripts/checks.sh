#!/usr/bin/env bash
# What runs beside the tests: what runs in the program, built by clang and tried; clang-tidy on what is
# delivered; tests of parts under sanitizers. Each in a build of its own.
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
    # Some have a folder of their own.
    set -- "$folder/bin/$program" "$folder"/tests/*/"$program"
    [ -x "$1" ] || shift
    "$1" --gtest_brief=1 || die "$program failed in $folder"
  done
}

try_with_clang() {
  "$root/scripts/setup.sh" ckpt ckpt-restart battery_ipc battery_memory battery_signals battery_threads
  local tried=$root/build-checks-clang/tried
  mkdir -p "$tried/bin" "$tried/lib"
  cp -- "$build/bin/ckpt" "$build/bin/ckpt-restart" "$tried/bin/"
  cp -- build-checks-clang/lib/libckpt_rt.so "$tried/lib/"
  PATH=$tried/bin:$PATH sh "$root/scripts/package_smoke.sh"
  # Programs that have the library take many locks: a wrong order fails the checkpoint (docs/locks.md).
  CKPT_LONG=1 CKPT_BUILD=$tried CKPT_BATTERY_PROGRAMS=$build/tests/battery python3 "$root/tests/battery/battery.py" --ways twice --faults in-thread \
    ipc.semaphores_sysv ipc.messages_sysv memory.moved memory.twice_mapped signals.queued signals.alternate threads.churn threads.mutex_types \
    threads.robust_dead
}

for part; do
  say "$part"
  begin=$SECONDS
  case $part in
    clang)  # the libraries, without NDEBUG; the commands that are tried are those of the other compiler
      cmake --preset clang -B build-checks-clang -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -g1" >/dev/null
      cmake --build build-checks-clang --target ckpt_rt ckpt_heap
      if $run; then try_with_clang; fi
      ;;
    tidy) "$root/scripts/tidy.sh" base beside cli cluster copier heap image job libckpt_rt plugins restart timewarp ;;
    # By clang: so both compilers build these tests, and their warnings are seen.
    asan)
      sanitize build-checks-asan address,undefined "protect_model_test copy_engine_test writer_test unit_test cli_unit_test birth_plan_test
          redundancy_test explore_test sealed_link_test" \
        -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
      ;;
    tsan)
      # Left out is what has one thread, and opens thousands of damaged images or traces a process: minutes under ThreadSanitizer,
      # which has nothing to find there. scripts/sanitize.sh runs it.
      GTEST_FILTER="-Mutation.TheReaderSurvives:PowerLoss.AtEveryInstant:*.EveryFlippedByteIsSeen:*.EveryLengthIsRefused:Sealed.AnyByteChanged" \
        sanitize build-checks-tsan thread "unit_test copy_engine_test timewarp_test sealed_link_test exchange_test writer_test"
      ;;
    *) die "no such part: $part (clang, tidy, asan, tsan)" ;;
  esac
  say "$part: $((SECONDS - begin)) s"
done
