#!/usr/bin/env python3
"""Checkpoints into a keeper's memory: how many a second where little changes, and how long a full one takes.

usage: keeper_speed.py BUILD [MEGABYTES]     the program has so much memory (256)
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

BUILD, MEGABYTES = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 256
CKPT = f"{BUILD}/bin/ckpt"
# One percent of its pages are written in each hundredth of a second.
PROGRAM = f"""
import os, time
memory = bytearray(os.urandom(1 << 20) * {MEGABYTES})
pages, round = len(memory) // 4096, 0
print("ready", flush=True)
while True:
    round += 1
    for page in range(round % 100, pages, 100):
        memory[page * 4096] = round & 255
    time.sleep(0.01)
"""


def measure(to, increments, seconds=5.0):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CKPT")}
    program = subprocess.Popen([CKPT, "run", *to, "--increments", str(increments), "--keep", "1", "--", sys.executable, "-c", PROGRAM],
                               stdout=subprocess.PIPE, env=environment)
    try:
        program.stdout.readline()
        costs, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            done = subprocess.run([CKPT, "now", "--json", str(program.pid)], capture_output=True, check=True, env=environment)
            costs.append(json.loads(done.stdout))
        if increments:
            costs = [c for c in costs if c["parent_sequence"]]
        return (statistics.median(c["durable_ns"] for c in costs) / 1e6, statistics.median(c["pause_ns"] for c in costs) / 1e6,
                statistics.median(c["bytes_written"] for c in costs) / 2**20, len(costs) / seconds)
    finally:
        program.kill()
        program.wait()


def main():
    name = f"bench-{os.getpid()}"
    subprocess.run([CKPT, "keeper", "start", name, "--memory", f"{MEGABYTES * 4}M"], check=True)
    print(f"| {MEGABYTES} MiB, to | images | written, MiB | until it counts, ms | pause, ms | a second, asked one after another |")
    print("| --- | --- | --- | --- | --- | --- |")
    try:
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR", "/var/tmp")) as directory:
            for what, to in (("keeper", ["--to", f"keeper:{name}"]), ("disk", ["--dir", directory + "/images"])):
                for increments in (64, 0):
                    durable, pause, written, rate = measure(to, increments)
                    print(f"| {what} | {'increments' if increments else 'full'} | {written:.1f} | {durable:.1f} | {pause:.2f} | {rate:.1f} |", flush=True)
    finally:
        subprocess.run([CKPT, "keeper", "stop", name], check=True)


main()
