#!/usr/bin/env python3
"""What a checkpoint of processes that write to one shared memory costs: the pause of the job, for each build given, in turns.
  shared_memory.py [--mib 1024] [--processes 4] [--checkpoints 10] [--rounds 2] BUILD...
The program is tests/jobs/shared_job of the first build: each process writes all over the memory at full speed.
"""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time


def one_round(build, program, options):
    directory = tempfile.mkdtemp(prefix="ckpt-bench-shared-")
    ckpt = os.path.join(build, "bin", "ckpt")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    child = subprocess.Popen([ckpt, "run", "--dir", os.path.join(directory, "images"), "--keep", "2", "--", program, str(options.mib),
                              str(options.processes)], cwd=directory, env=clean, start_new_session=True)
    try:
        # Until all memory has been written to once.
        time.sleep(options.settle)
        pauses, durable = [], []
        for _ in range(options.checkpoints):
            done = subprocess.run([ckpt, "now", "--json", str(child.pid)], capture_output=True, text=True, env=clean, check=True)
            cost = json.loads(done.stdout)
            pauses.append(cost["job_pause_ns"] / 1e6)
            durable.append(cost.get("durable_ns", 0) / 1e6)
        return pauses, durable
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        shutil.rmtree(directory, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+", metavar="BUILD")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--settle", type=float, default=5, help="seconds before the first checkpoint")
    options = parser.parse_args()
    builds = [os.path.abspath(b) for b in options.builds]
    program = os.path.join(builds[0], "tests", "jobs", "shared_job")
    found = {b: ([], []) for b in builds}
    for _ in range(options.rounds):
        for build in builds:
            pauses, durable = one_round(build, program, options)
            found[build][0].extend(pauses)
            found[build][1].extend(durable)
    for build, (pauses, durable) in found.items():
        print(f"{build}: {options.mib} MiB, {options.processes} processes, {len(pauses)} checkpoints: pause median "
              f"{statistics.median(pauses):.2f} ms, largest {max(pauses):.2f}; durable after {statistics.median(durable):.0f} ms")


if __name__ == "__main__":
    main()
