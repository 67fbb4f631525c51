#!/usr/bin/env bash
# Grows the stored inputs of the fuzz targets (corpus/TARGET): fuzzes from them and from images that the writer writes now, keeps the
# smallest inputs that reach what can be reached, and writes down what becomes of each. After a change of the format this alone is
# what makes them inputs of the new one: those of the old one reach nothing more and fall out. Needs clang.
#   tests/fuzz/grow_corpus.sh [SECONDS [TARGET...]]    for each target, 600 by default; all of them by default
#   tests/fuzz/grow_corpus.sh --verdicts               only writes down what becomes of the stored inputs, after another text of an
#                                                      error; by the build in build/ (CKPT_BUILD_DIR), without clang
source "$(dirname -- "${BASH_SOURCE[0]}")/../../scripts/common.sh"

all=(fuzz_image_reader fuzz_image_sealed fuzz_image_chain)
corpus=$root/tests/fuzz/corpus
most_bytes=98304  # of an input: a little more than the largest image to start from

# write_verdicts REPLAY TARGET DIRECTORY
write_verdicts() {
  FUZZ_PARENT=$3/parent "$1" "$3/inputs" "$corpus/$2/verdicts" --write >/dev/null || die "$2: cannot be replayed"
  say "$2: $(wc -l <"$corpus/$2/verdicts") inputs, $(grep -c ' taken ' "$corpus/$2/verdicts" || true) of them taken, $(wc -c <"$corpus/$2/inputs.tar.xz") bytes"
}

# The same inputs make the same bytes.
pack() {
  tar -C "$1" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -c inputs parent | xz -9e >"$2"
}

unpack() {
  rm -rf "$2"
  mkdir -p "$2/inputs"
  if [ -f "$1" ]; then tar -C "$2" -xf "$1"; fi
}

if [ "${1-}" = --verdicts ]; then
  for target in "${all[@]}"; do
    cmake --build "$build" --target "replay_$target"
    write_verdicts "$build/bin/replay_$target" "$target" "$build/tests/fuzz/$target"
  done
  exit
fi

seconds=${1:-600}
[[ $seconds =~ ^[0-9]+$ ]] || die "'$seconds' is not a number of seconds"
if [ $# -gt 1 ]; then targets=("${@:2}"); else targets=("${all[@]}"); fi
cd -- "$root"
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz --target fuzz_corpus "${targets[@]}"
bin=$root/build-fuzz/bin
for target in "${targets[@]}"; do
  work=$root/build-fuzz/corpus/$target
  unpack "$corpus/$target/inputs.tar.xz" "$work/stored"
  rm -rf "$work/seeds" "$work/minimal"
  mkdir -p "$work/grown" "$work/minimal/inputs" "$corpus/$target"
  "$bin/fuzz_corpus" "$work/seeds"
  export FUZZ_PARENT=$work/seeds/plain
  say "$target: fuzzing for $seconds seconds; what it finds is $work/crash-*"
  "$bin/$target" -max_total_time="$seconds" -max_len=$most_bytes -timeout=30 -artifact_prefix="$work/" -print_final_stats=1 \
    "$work/grown" "$work/stored/inputs" "$work/seeds" 2>"$work/log" || die "$target found something: $work/log"
  say "$target: keeping the smallest"
  "$bin/$target" -merge=1 -max_len=$most_bytes -artifact_prefix="$work/" \
    "$work/minimal/inputs" "$work/seeds" "$work/stored/inputs" "$work/grown" 2>"$work/merge.log" || die "$target: $work/merge.log"
  cp "$work/seeds/plain" "$work/minimal/parent"
  pack "$work/minimal" "$corpus/$target/inputs.tar.xz"
  cmake --build --preset fuzz --target "replay_$target"
  write_verdicts "$bin/replay_$target" "$target" "$work/minimal"
done
