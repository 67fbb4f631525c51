#!/usr/bin/env python3
"""What a checkpoint of a tree of processes costs, ckpt_rt beside CRIU and DMTCP (bench/peers/methods.py), in turns.

  job_speed.py BUILD                              all families, 3 rounds
  job_speed.py BUILD --only writers,idle --rounds 1

  writers    8 processes of 256 MiB, each writes single words everywhere, at full speed
  idle       64 processes, 63 of which wake 20 times a second
  shared     4 processes write all over 1 GiB that they share
  private    4 processes write all over 256 MiB each, to be laid beside `shared`

For each: for how long not one of the processes took a step while a checkpoint was taken (and the longest such time before, without one: the
scheduler's), the request's time, and after kill -9 the time until all of them run again.
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
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "peers"))
from methods import all_methods  # noqa: E402
from record import read_record  # noqa: E402

MARK = f"JOB_SPEED={os.getpid()}"
TICK = os.sysconf("SC_CLK_TCK")
SLEEPER = """'import time
d, n = bytearray(1 << 20), 0
while True:
    n += 1; d[n * 4096 % len(d)] = n & 255; time.sleep(0.05)'"""


def family(name, build):
    """Commands of the tree; {record}: a file that the process writes when it is asked to end."""
    gaps = f"{build}/bench/gaps --threads 1 --seconds 600 --record-from 20000 --record {{record}}"
    witness = f"{gaps} --load idle --size 1M"
    return {"writers": [f"{gaps} --load uniform --size 256M"] * 8,
            "idle": [witness] + [f"/usr/bin/python3 -c {SLEEPER}"] * 63,
            "shared": [witness, f"{build}/tests/jobs/shared_job 1024 4"],
            "private": [witness] + [f"{gaps} --load uniform --size 256M"] * 4}[name]


def ours(roots):
    """Processes of this run, by a mark in their environment or their parents: pid to its name and processor time in ticks."""
    found, parents = {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if not entry.name.isdigit():
                continue
            text = (entry / "stat").read_text()
            fields = text[text.rindex(")") + 2:].split()
            if fields[0] in "ZX":
                continue
            pid = int(entry.name)
            parents[pid] = int(fields[1])
            found[pid] = text[text.index("(") + 1:text.rindex(")")], int(fields[11]) + int(fields[12]), \
                MARK.encode() in (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            pass

    def below(pid):
        while pid > 1 and pid in parents:
            if pid in roots:
                return True
            pid = parents[pid]
        return False
    return {pid: (name, ticks) for pid, (name, ticks, marked) in found.items() if marked or below(pid)}


def longest_standstill(records, begin, end):
    """ms for which all threads of all records were in a gap at once, between begin and end."""
    events, threads = [], 0
    for record in records:
        for gaps, _ in read_record(record):
            threads += 1
            for at, length in gaps:
                if at + length > begin and at < end:
                    events += [(max(at, begin), 1), (min(at + length, end), -1)]
    inside, since, longest = 0, None, 0
    for at, change in sorted(events):
        inside += change
        if inside == threads:
            since = at
        elif since is not None:
            longest, since = max(longest, at - since), None
    return longest / 1e6


def end_all(roots):
    while left := ours(roots):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.01)


def until(what, there, seconds=120):
    end = time.monotonic() + seconds
    while not there():
        if time.monotonic() > end:
            raise RuntimeError(f"no {what} in {seconds} s")
        time.sleep(0.002)


def have_run(roots, processes, working):
    there = ours(roots)
    return len(there) >= processes and sum(ticks > 0 for name, ticks in there.values() if name.endswith("gaps")) == working


def turn(method, commands, work, options):
    records = [work / f"record.{i}" for i in range(len(commands))]
    script = "\n".join(c.replace("{record}", str(records[i])) + " &" for i, c in enumerate(commands)) + "\nwait"
    starter = method.start(["sh", "-c", script])
    roots = [starter.pid]
    try:
        time.sleep(options.settle)
        count = len(ours(roots))
        windows = []
        for _ in range(options.checkpoints):
            time.sleep(2)
            begin = time.monotonic_ns()
            method.checkpoint(starter.pid)
            done = time.monotonic_ns()
            time.sleep(1)
            windows.append((begin, done, time.monotonic_ns()))
        for pid, (name, _) in ours(roots).items():
            if name.endswith("gaps"):
                os.kill(pid, signal.SIGTERM)
        wanted = [r for r, c in zip(records, commands) if "{record}" in c]
        until("record", lambda: all(r.exists() and r.stat().st_size > 0 for r in wanted))
        time.sleep(0.5)  # their last bytes
        end_all(roots)
        starter.wait()
        begin = time.monotonic()
        restarter = method.restart()
        roots.append(restarter.pid)
        until("restart", lambda: have_run(roots, count, len(wanted)), 60)
        back = time.monotonic() - begin
        end_all(roots)
        restarter.wait()
        return {"nobody ran, ms": max(longest_standstill(wanted, b, e) for b, _, e in windows),
                "the same without, ms": longest_standstill(wanted, windows[0][0] - 1_900_000_000, windows[0][0] - 100_000_000),
                "until durable, ms": statistics.median((d - b) / 1e6 for b, d, _ in windows),
                "restart until all run, ms": back * 1e3}
    finally:
        end_all(roots)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", default="writers,idle,shared,private")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--checkpoints", type=int, default=3, help="in each round")
    parser.add_argument("--settle", type=float, default=6, help="seconds before the first checkpoint")
    options = parser.parse_args()
    options.build = options.build.resolve()
    os.environ.update([MARK.split("=")])
    methods = all_methods(options.build)
    failed = False
    for name in options.only.split(","):
        seen = {method: [] for method in methods}
        for number in range(options.rounds):
            for method, maker in methods.items():
                with tempfile.TemporaryDirectory(dir=options.build, prefix="job_speed.") as directory:
                    try:
                        seen[method].append(turn(maker(pathlib.Path(directory)), family(name, options.build), pathlib.Path(directory), options))
                    except (RuntimeError, subprocess.TimeoutExpired, OSError) as error:
                        print(f"{name}, round {number + 1}, {method}: {error}", flush=True)
                        failed = failed or method == "ckpt_rt"
        print(f"\n{name}, {options.rounds} rounds of {options.checkpoints} checkpoints in turns; median (least to largest)\n\n| | " + " | ".join(seen) +
              " |\n" + "| --- " * (len(seen) + 1) + "|")
        for row in dict.fromkeys(key for turns in seen.values() for one in turns for key in one):
            values = [[one[row] for one in turns] for turns in seen.values()]
            print(f"| {row} | " + " | ".join(f"{statistics.median(v):.3g} ({min(v):.3g} to {max(v):.3g})" if v else "-" for v in values) + " |", flush=True)
    with open("/proc/loadavg", encoding="ascii") as load:
        print(f"\n{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, Linux {os.uname().release}, {os.cpu_count()} processors, load average "
              f"{load.read().split()[0]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
