#!/usr/bin/env python3
"""The latency suite of two builds in turns, and which figures differ by more than their spread (of four rounds or more).

  side_by_side.py OLD_BUILD NEW_BUILD                       six rounds of a quick choice of lines
  side_by_side.py OLD NEW --filter 'stand/.*/256M/' --rounds 9 --seconds 600
  side_by_side.py OLD NEW --rounds 2 --record rounds.json   again later: a machine that is quiet for some minutes at a time

A round runs the lines once in each build, the order of the builds changing. A figure is worse (better) if its median in the
new build is more than 10 % above (below) that of the old, and the two middle halves of the rounds do not meet; everything
else cannot be told from the machine's noise. Exit codes: 0 nothing is worse, 1 something is, 64 wrong arguments."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

QUICK = "stand/(idle|sort|uniform)/256M/(realtime|fork)/|memory/realtime/|rate/(realtime|increments)/|preloaded/syscalls/"
# What a user would call the figure of a line. More of it is worse, but for what is done in a second.
FIGURES = ("library_ms_p50", "library_ms_p99", "inside_ms_p50", "largest_gap_ms_p50", "lost_s", "lost_ms", "checkpoint_s", "checkpoint_ms", "extra_MiB",
           "wait_us_p50", "wait_us_p999", "lost_percent", "per_second")
MORE_IS_BETTER = ("per_second",)
SETTLED = 0.10


def stolen():
    """Seconds of processor time that the host has given to others since boot."""
    with open("/proc/stat", encoding="ascii") as f:
        return int(f.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def measure(build, lines, images):
    done = subprocess.run([f"{build}/bench/latency", "--quick", "--images", images, f"--benchmark_filter={lines}", "--benchmark_format=json"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    found = {}
    for line in json.loads(done.stdout)["benchmarks"]:
        if line.get("error_occurred"):
            sys.exit(f"side_by_side.py: {build}: {line['name']}: {line.get('error_message')}")
        name = line["name"].split("/iterations")[0]
        found.update({(name, key): line[key] for key in FIGURES if key in line})
        if (name, "lost_ms") in found:
            del found[name, "lost_percent"]  # of the checkpoint's time: one that is done sooner would seem to cost more
    return found


def recorded(path):
    """What rounds of earlier calls have found: for each build the values of each figure, one a round."""
    if not path or not os.path.exists(path):
        return {"old": {}, "new": {}}
    with open(path, encoding="utf-8") as f:
        return {which: {(line, key): values for line, key, values in found} for which, found in json.load(f).items()}


def quartiles(values):
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def verdict(old, new, key):
    (low, before, high), (low_now, now, high_now) = quartiles(old), quartiles(new)
    if min(len(old), len(new)) < 4:
        return ""
    if key in MORE_IS_BETTER:
        before, now, low, high, low_now, high_now = -before, -now, -high, -low, -high_now, -low_now
    if now > before + SETTLED * abs(before) and low_now > high:
        return "worse"
    if now < before - SETTLED * abs(before) and high_now < low:
        return "better"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--filter", default=QUICK, help="lines of the suite, as a regular expression")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no round after these")
    parser.add_argument("--images", default=".", help="where images are written")
    parser.add_argument("--record", help="a file: rounds of earlier calls are in it and count too, those of this call are added")
    options = parser.parse_args()
    builds = {"old": options.old, "new": options.new}
    for build in builds.values():
        if not os.path.exists(f"{build}/bench/latency"):
            sys.exit(f"side_by_side.py: {build}/bench/latency is not there: build the target ckpt_latency")
    all_found = recorded(options.record)
    begin, steal, rounds = time.monotonic(), stolen(), 0
    with tempfile.TemporaryDirectory(dir=options.images) as images:
        while rounds < options.rounds and (rounds == 0 or time.monotonic() - begin < options.seconds):
            for which in ("old", "new") if rounds % 2 == 0 else ("new", "old"):
                for figure, value in measure(builds[which], options.filter, images).items():
                    all_found[which].setdefault(figure, []).append(value)
            rounds += 1
            if options.record:
                with open(options.record, "w", encoding="utf-8") as f:
                    json.dump({which: [[*figure, values] for figure, values in found.items()] for which, found in all_found.items()}, f)
    taken = time.monotonic() - begin
    print(f"{rounds} rounds now, {taken:.0f} s; the host took {(stolen() - steal) / taken * 100:.1f} % of a processor; "
          f"load {os.getloadavg()[0]:.2f}\n")
    print("| line | figure | old: median (quartiles) | new: median (quartiles) | |\n| --- | --- | --- | --- | --- |")
    worse = 0
    for figure, old in sorted(all_found["old"].items()):
        new = all_found["new"].get(figure)
        if new is None:
            continue
        word = verdict(old, new, figure[1])
        worse += word == "worse"
        cells = [f"{q[1]:.3g} ({q[0]:.3g}–{q[2]:.3g})" for q in (quartiles(old), quartiles(new))]
        print(f"| {figure[0]} | {figure[1]} | {cells[0]} | {cells[1]} | {word} |")
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
