#!/usr/bin/env bash
# clang and clang-tidy look at every source file: clang's warnings with the flags of the build, and the checks of .clang-tidy.
# Nothing is compiled. Usage: scripts/tidy.sh [PATH...]      a PATH is a file or a folder; default: the whole tree
# Files that the build compiles together (ckpt_compile_together) are looked at together, which reads their headers once: of such a file,
# all that are compiled with it.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

"$root/scripts/setup.sh" --packages-only --checks
cd -- "$root"
# The preset clang has each file alone. Compiled together are only targets that say so, nothing that runs in the program.
cmake --preset clang -B build-tidy -DCKPT_UNITY=ON >/dev/null
[ $# -gt 0 ] || set -- .
mapfile -t files < <(python3 - build-tidy/compile_commands.json "$@" <<'P'
import json, os, re, sys
wanted = [os.path.abspath(p) for p in sys.argv[2:]]
named = {os.path.normpath(os.path.join(c["directory"], c["file"])) for c in json.load(open(sys.argv[1]))}
for path in sorted(named):
    if not path.endswith((".cc", ".c", ".cxx")):
        continue
    # A source that cmake made has only the names of those that are compiled together.
    parts = re.findall(r'^#include "(.*)"$', open(path).read(), re.M) if "/Unity/" in path else [path]
    if any(part == w or part.startswith(w + "/") for part in parts for w in wanted):
        print(os.path.relpath(path))
P
)
[ ${#files[@]} -gt 0 ] || die "no source file of the build is in: $*"
say "clang-tidy: ${#files[@]} compilations"
# What was found good is not looked at again: the same text behind the preprocessor, flags, checks and version.
export CKPT_TIDIED=${XDG_CACHE_HOME:-$HOME/.cache}/ckpt_rt/tidy
mkdir -p "$CKPT_TIDIED"
find "$CKPT_TIDIED" -type f -mtime +30 -delete
CKPT_TIDY_KIND=$(clang-tidy --version | cat - .clang-tidy | sha256sum)
export CKPT_TIDY_KIND
# One file at a time for each processor.
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" "$root/scripts/tidy_file.py" build-tidy
