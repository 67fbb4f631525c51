#!/usr/bin/env python3
"""Checkpoints of a job over hosts into the memory of keepers, with redundancy: how long until one counts, full and of what was written since, and
how many a second.

usage: hosts_speed.py BUILD [MEGABYTES] [REDUNDANCY] [HOSTS] [PERCENT]     each of 4 programs has so much memory (64), rs:4+2, 6 hosts, 1 % is written

Hosts are namespaces of this machine, so all share its processors and its memory's bandwidth. Root only.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
import hosts as made_hosts  # noqa: E402

BUILD = os.path.abspath(sys.argv[1])
MEGABYTES = int(sys.argv[2]) if len(sys.argv) > 2 else 64
SCHEME = sys.argv[3] if len(sys.argv) > 3 else "rs:4+2"
HOSTS = int(sys.argv[4]) if len(sys.argv) > 4 else 6
PERCENT = float(sys.argv[5]) if len(sys.argv) > 5 else 1.0
PROGRAMS, SECONDS = 4, 10
CKPT, ON = f"{BUILD}/bin/ckpt", f"{BUILD}/bin/ckpt-on"
# Writes its share of pages, all in a row, twenty times a second: so much has changed whenever a checkpoint comes.
PROGRAM = f"""
import os, sys, time
memory = bytearray(os.urandom(1 << 20) * {MEGABYTES})
wanted, round = int(len(memory) * {PERCENT} / 100), 0
open(sys.argv[1], "w").close()
while True:
    round += 1
    for page in range(0, wanted, 4096):
        memory[page] = round & 255
    time.sleep(0.05)
"""


def clean():
    return {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}


def job(hosts, directory):
    for name in hosts.names:
        own = f"{hosts.base}/keeper-{name}"
        os.mkdir(own, 0o700)
        hosts.run(name, "mount", "--bind", own, "/tmp/ckpt-keeper-0", check=True)
    with open(f"{directory}/program.py", "w", encoding="ascii") as f:
        f.write(PROGRAM)
    started = [f"{ON} {name} {sys.executable} {directory}/program.py {directory}/{name} &" for name in hosts.names[1:PROGRAMS]]
    shell = " ".join(started) + f" exec {sys.executable} {directory}/program.py {directory}/{hosts.names[0]}"
    head = subprocess.Popen([CKPT, "run", "--hosts", ",".join(hosts.names), "--launch", hosts.launch, "--dir", f"{directory}/images", "--redundancy", SCHEME,
                             "--memory", f"{MEGABYTES * 8 + 64}M", "--stop-timeout", "30s", "--", "sh", "-c", shell], env=clean(), stdout=subprocess.DEVNULL)
    while not all(os.path.exists(f"{directory}/{name}") for name in hosts.names[:PROGRAMS]):
        time.sleep(0.1)
    return head


def main():
    os.makedirs("/tmp/ckpt-keeper-0", 0o700, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="ckpt-hosts-speed.")
    with made_hosts.Hosts(HOSTS, 5000) as hosts:
        head = job(hosts, directory)
        try:
            time.sleep(2)
            costs, first = [], None
            end = time.monotonic() + SECONDS
            while first is None or time.monotonic() < end:
                done = subprocess.run([CKPT, "now", "--json", str(head.pid)], capture_output=True, env=clean(), check=True)
                first = first or json.loads(done.stdout)
                costs.append(json.loads(done.stdout))
                if first is costs[-1]:
                    end = time.monotonic() + SECONDS
            later = costs[1:]
            with open(later[-1]["checkpoint"], encoding="ascii") as f:
                parts = json.load(f)["redundancy"]["parts"]
            print(f"| {SCHEME}, {HOSTS} hosts, {PROGRAMS} x {MEGABYTES} MiB, {PERCENT:g} % written | until it counts, ms | all stand, ms | parts together, MiB | a second |")
            print("| --- | --- | --- | --- | --- |")
            print(f"| the first, full | {first['durable_ns'] / 1e6:.0f} | {first['stop_ns'] / 1e6:.1f} | | |")
            print(f"| later ones, median | {statistics.median(c['durable_ns'] for c in later) / 1e6:.0f} | {statistics.median(c['stop_ns'] for c in later) / 1e6:.1f} | "
                  f"{sum(p['bytes'] for p in parts) / 2**20:.1f} | {len(later) / SECONDS:.1f} |")
        finally:
            head.terminate()
            head.wait()
    shutil.rmtree(directory)


main()
