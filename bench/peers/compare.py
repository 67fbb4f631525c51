#!/usr/bin/env python3
"""Compares ckpt_rt with CRIU and DMTCP: the same program, in turns, in one run.

Each turn starts bench/gaps, takes checkpoints, kills the program and restarts it. Printed: medians, and least and largest.
bench/peers/methods.py says where CRIU and DMTCP are looked for; one that is missing is named and left out. CRIU needs root.
"""

import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from methods import all_methods  # noqa: E402
from record import read_record  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")


def gaps_processes():
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            name, fields = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
            if name in ("gaps", "DMTCP:gaps") and fields[0] not in "ZX":
                yield int(entry.name), int(fields[11])


def bytes_below(directory):
    return sum(p.stat().st_blocks * 512 for p in pathlib.Path(directory).rglob("*") if p.is_file())


def steps_at(ticks, when):
    """Steps done at a time, between two ticks in proportion."""
    for (t0, s0), (t1, s1) in zip(ticks, ticks[1:]):
        if t0 <= when <= t1:
            return s0 + (s1 - s0) * (when - t0) / max(1, t1 - t0)
    return ticks[0][1] if when < ticks[0][0] else ticks[-1][1]


def judge(record, begin, end, quiet):
    """Longest gap (ms) and thread-seconds lost between begin and end; `quiet`: a span without a checkpoint."""
    longest, lost = 0, 0.0
    for gaps, ticks in read_record(record):
        longest = max([longest] + [n for at, n in gaps if at + n >= begin and at <= end])
        rate = (steps_at(ticks, quiet[1]) - steps_at(ticks, quiet[0])) / (quiet[1] - quiet[0])
        done = steps_at(ticks, end) - steps_at(ticks, begin)
        lost += ((end - begin) - done / rate) / 1e9
    return longest / 1e6, lost


def turn(method, arguments, work):
    record = work / "record"
    command = [str(arguments.build / "bench" / "gaps"), "--size", arguments.size, "--load", arguments.load, "--threads",
               "2", "--seconds", "600", "--record", str(record)]
    before = {pid for pid, _ in gaps_processes()}
    starter = method.start(command)
    try:
        deadline = time.monotonic() + 60
        while not (mine := [(p, t) for p, t in gaps_processes() if p not in before and t > 3 * TICK]):
            if time.monotonic() > deadline:
                raise RuntimeError("the program did not start")
            time.sleep(0.1)
        pid = mine[0][0]
        time.sleep(2)
        quiet_end = time.monotonic_ns()
        method.checkpoint(pid)
        end = time.monotonic_ns()
        settled = end + 1_000_000_000
        time.sleep(1.2)
        size = bytes_below(method.images)
        os.kill(pid, signal.SIGTERM)  # writes the record
        starter.wait(timeout=60)
        gap, lost = judge(record, quiet_end, settled, (quiet_end - 1_800_000_000, quiet_end))
        begin = time.monotonic_ns()
        restarter = method.restart()
        back = None
        while back is None and time.monotonic_ns() - begin < 60e9:
            running = [p for p, t in gaps_processes() if p not in before and t > 0]
            if running:
                back = (time.monotonic_ns() - begin) / 1e6
                pid = running[0]
            time.sleep(0.001)
        if back is None:
            raise RuntimeError("did not come back")
        os.kill(pid, signal.SIGKILL)
        restarter.wait(timeout=60)
        return {"longest gap, ms": gap, "work lost, thread-s": lost, "until durable, ms": (end - quiet_end) / 1e6,
                "image, MiB": size / 2**20, "restart until it computes, ms": back}
    finally:
        for pid, _ in list(gaps_processes()):
            if pid not in before:
                os.kill(pid, signal.SIGKILL)
        if starter.poll() is None:
            starter.terminate()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, nargs="?", default=pathlib.Path("build"))
    parser.add_argument("--size", default="1G")
    parser.add_argument("--load", default="uniform", help="as of bench/gaps; uniform: single words everywhere, the worst case")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    makers = all_methods(arguments.build)
    seen = {name: [] for name in makers}
    for number in range(arguments.rounds):
        for name, maker in makers.items():
            with tempfile.TemporaryDirectory(dir=arguments.build, prefix="compare.") as work:
                try:
                    seen[name].append(turn(maker(pathlib.Path(work)), arguments, pathlib.Path(work)))
                except (RuntimeError, subprocess.TimeoutExpired, OSError) as error:
                    print(f"round {number + 1}, {name}: {error}")
    rows = list(dict.fromkeys(key for turns in seen.values() for one in turns for key in one))
    print(f"\n{arguments.size}, load {arguments.load}, 2 threads, {arguments.rounds} rounds in turns; median (least to largest)\n")
    print("| | " + " | ".join(seen) + " |\n" + "| --- " * (len(seen) + 1) + "|")
    for row in rows:
        cells = []
        for turns in seen.values():
            values = [one[row] for one in turns]
            cells.append(f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})" if values else "-")
        print(f"| {row} | " + " | ".join(cells) + " |")
    with open("/proc/loadavg") as load:
        print(f"\n{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, Linux {os.uname().release}, {os.cpu_count()} "
              f"processors, load average {load.read().split()[0]}")
    return 0 if all(seen.values()) else 1


sys.exit(main())
