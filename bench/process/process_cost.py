#!/usr/bin/env python3
"""What the library adds to the making of processes: fork and wait, exec, vfork, posix_spawn, system, popen, with and without it
in turns.

  process_cost.py BUILD                          20 rounds of 50 ms each
  process_cost.py BUILD --rounds 60 --ways fork,fork-exec
  process_cost.py BUILD --against OTHER_BUILD    two builds of the library

A round runs the program (bench/process/makes.cc) once without the library, once with an empty preloaded library, once with ours,
in an order that changes; each gives the median time of a process. The table has the median over the rounds, and the
ratio to the same round without: its median and its quartiles; a second table has processor time of parent and child, which
others on the machine disturb less. All of it stays on one processor unless --everywhere is given:
whether parent and child share one makes more of a difference than any library."""

import argparse
import os
import random
import statistics
import subprocess
import sys

WAYS = "fork,fork-work,fork-exec,vfork-exec,posix_spawn,system,popen"


def environment(library):
    env = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    if library:
        env["LD_PRELOAD"] = library
    return env


def run(args, library):
    command = [os.path.join(args.build, "bench", "makes"), str(args.milliseconds), *args.ways.split(",")]
    out = subprocess.run(command, env=environment(library), capture_output=True, text=True, check=True).stdout
    return {words[0]: (float(words[1]), float(words[2])) for words in map(str.split, out.splitlines())}


def quartiles(values):
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def print_table(title, results, ways, column):
    others = [name for name in results if name != "without"]
    print(f"{title:<12} {'without':>10} " + " ".join(f"{n:>10} {'ratio (quartiles)':>20}" for n in others))
    for way in ways:
        plain = [r[way][column] for r in results["without"]]
        line = f"{way:<12} {statistics.median(plain) / 1000:>7.1f} us "
        for name in others:
            times = [r[way][column] for r in results[name]]
            low, mid, high = quartiles([t / w for t, w in zip(times, plain)])
            line += f" {statistics.median(times) / 1000:>7.1f} us {mid:>6.3f} ({low:.3f}, {high:.3f})"
        print(line)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--milliseconds", type=int, default=50, help="for each way in each round")
    p.add_argument("--ways", default=WAYS)
    p.add_argument("--against", metavar="BUILD", help="another build of the library, in the same rounds")
    p.add_argument("--everywhere", action="store_true", help="on all processors")
    args = p.parse_args()
    if not args.everywhere:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    libraries = {"without": None, "empty": os.path.join(args.build, "bench", "libempty.so"),
                 "ckpt_rt": os.path.join(args.build, "lib", "libckpt_rt.so")}
    if args.against:
        libraries["against"] = os.path.join(args.against, "lib", "libckpt_rt.so")
    for path in filter(None, libraries.values()):
        if not os.path.exists(path):
            sys.exit(f"process_cost.py: {path} is not there; build it first")
    results = {name: [] for name in libraries}
    for _ in range(args.rounds):
        for name in random.sample(list(libraries), len(libraries)):
            results[name].append(run(args, os.path.abspath(libraries[name]) if libraries[name] else None))
    print_table("time", results, args.ways.split(","), 0)
    print_table("processor", results, args.ways.split(","), 1)


if __name__ == "__main__":
    main()
