#!/usr/bin/env python3
"""What the library adds to work that is made of many short programs: `make -j2` of a C project, without it, with an empty preloaded library and
with ours, in turns.

  make_cost.py BUILD                      5 rounds of 40 files
  make_cost.py BUILD --files 80 --rounds 9

The project is written by this script: files of 40 small functions each, compiled with -O2 and linked; for each file make starts gcc, cc1
and as. Processor time of all processes (user and system), which others on the machine disturb less than the time of the clock, and the clock;
medians, and the median and quartiles of the ratio to the same round without. Exit codes: 0 measured, 1 make failed, 64 wrong arguments."""

import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

FUNCTION = """int f{file}_{number}(int n, char* b) {{
  int s = 0;
  for (int j = 0; j < n; j++) {{ s += b[j] * {number}; if (s % 7 == {number} % 7) s ^= j; printf("%d\\n", s); }}
  return s + (int)strlen(b);
}}
"""


def write_project(directory, files):
    for file in range(files):
        text = "#include <pthread.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n"
        text += "".join(FUNCTION.format(file=file, number=number) for number in range(40))
        (directory / f"f{file}.c").write_text(text)
    (directory / "main.c").write_text("int main(void) { return 0; }\n")
    objects = " ".join(f"f{file}.o" for file in range(files)) + " main.o"
    (directory / "Makefile").write_text(f"prog: {objects}\n\tgcc -o $@ $^\n%.o: %.c\n\tgcc -O2 -c $< -o $@\nclean:\n\trm -f *.o prog\n")


def make(directory, library):
    """Processor time and time of the clock, in s."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    subprocess.run(["make", "-s", "clean"], cwd=directory, env=environment, check=True)
    if library:
        environment.update(LD_PRELOAD=library, CKPT_DIR=str(directory))
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(["make", "-s", "-j2"], cwd=directory, env=environment, check=True)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, took


def ratio(times, base):
    low, middle, high = statistics.quantiles([t / b for t, b in zip(times, base)], n=4)
    return f"{middle:.3f} ({low:.3f}, {high:.3f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=40)
    options = parser.parse_args()
    build = options.build.resolve()
    libraries = {"without": None, "empty library": build / "bench/libempty.so", "ckpt_rt": build / "lib/libckpt_rt.so"}
    missing = [str(p) for p in libraries.values() if p and not p.exists()]
    if missing or options.rounds < 2 or options.files < 1:
        print(f"make_cost: {', '.join(missing) or 'two rounds at least, and a file'}: build all first", file=sys.stderr)
        return 64
    seen = {name: [] for name in libraries}
    with tempfile.TemporaryDirectory() as place:
        directory = pathlib.Path(place)
        write_project(directory, options.files)
        try:
            for turn in range(options.rounds):
                names = list(libraries)[turn % 3:] + list(libraries)[:turn % 3]
                for name in names:
                    seen[name].append(make(directory, libraries[name] and str(libraries[name])))
        except subprocess.CalledProcessError as error:
            print(f"make_cost: {error}", file=sys.stderr)
            return 1
    base = list(zip(*seen["without"]))
    print("| make -j2 | processor time, s | ratio | clock, s | ratio |\n| --- | --- | --- | --- | --- |")
    for name, pairs in seen.items():
        processor, clock = zip(*pairs)
        print(f"| {name} | {statistics.median(processor):.2f} | {ratio(processor, base[0])} | {statistics.median(clock):.2f} | {ratio(clock, base[1])} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
