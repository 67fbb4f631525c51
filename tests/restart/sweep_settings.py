#!/usr/bin/env python3
"""Programs killed and restarted under settings drawn at random, each setting from its least value to its largest.

  sweep_settings.py --first 1 --count 12      twelve draws; a draw follows from its number
  sweep_settings.py --seconds 3600            as many as fit

Exit codes: 0 all passed; 1 some failed or did not end (the command that reproduces each is printed); 64 wrong arguments.
"""
import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LONGEST = 240  # seconds, of a draw: most take three
PROGRAMS = ["mergesort", "hunters", "accounts", "churn", "heap", "locks", "threads", "shared", "sweep", "stacks", "bubblesort"]
SEGMENTS = [4, 8, 16, 32, 64, 128, 256]  # KiB
COMPRESS = ["none"] * 4 + ["lz4", "zstd", "zstd:1", "zstd:9", "auto"]
ENGINES = ["cpu"] * 6 + ["dma", "dma:200M:40:16K", "dma:2G:100:512", "dma:1G:10:256K"]
MODES = ["auto", "realtime", "realtime", "realtime-large", "standing", "concurrent", "sequential", "fork"]


def draw(number):
    """Arguments of run_killed.py."""
    chance = random.Random(number)
    segment = chance.choice(SEGMENTS)
    words = [chance.choice(PROGRAMS), "--seeds", str(chance.randrange(1, 1000)), "--mode", chance.choice(MODES),
             "--segment", "auto" if chance.random() < 0.1 else f"{segment}K"]
    # From the smallest that is taken, sixteen segments, to more than the program has.
    words += ["--pool", f"{max(16, 2 ** chance.randrange(4, 11)) * segment}K"]
    if chance.random() < 0.5:
        words += ["--increments", str(chance.choice([1, 2, 5]))]
    if chance.random() < 0.3:
        words += ["--generations", "2"]
    if chance.random() < 0.25:
        words += ["--no-kill", "--checkpoints", "12"]
    elif chance.random() < 0.4:
        words.append("--restart-option=--" + chance.choice(["lazy", "eager"]))
    settings = {"CKPT_COMPRESS": chance.choice(COMPRESS), "CKPT_ENGINE": chance.choice(ENGINES),
                "CKPT_ORDER": chance.choice(["address", "follow", "hot", "cold"]),
                "CKPT_FAULTS": chance.choice(["auto", "auto", "handler", "in-thread", "mprotect"]),
                "CKPT_HEAP": chance.choice(["libc", "libc", "jemalloc", "jemalloc:huge"]),
                "CKPT_FILES": chance.choice(["auto", "none", "links", "copies"])}
    # Of those that are killed: one more checkpoint would be under way while the restarted program is looked at.
    if "--no-kill" in words:
        settings["CKPT_EVERY"] = chance.choice(["0", "30ms", "200ms"])
    for name, value in settings.items():
        words += ["--setting", f"{name}={value}"]
    return words


def run(words, build):
    """The last line, and whether all was well."""
    child = subprocess.Popen([sys.executable, os.path.join(HERE, "run_killed.py"), *words, "--build", build], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        said, _ = child.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return "did not end", False
    return said.strip(), child.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.environ.get("CKPT_BUILD", "build"))
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=10**9, help="begins no draw after these")
    try:
        arguments = parser.parse_args()
    except SystemExit as e:
        sys.exit(64 if e.code else 0)
    began, failed, number = time.monotonic(), 0, arguments.first
    while number < arguments.first + arguments.count and time.monotonic() < began + arguments.seconds:
        words = draw(number)
        since = time.monotonic()
        said, well = run(words, os.path.abspath(arguments.build))
        print(f"draw {number}, {time.monotonic() - since:.0f} s: {said.splitlines()[0] if said else ''}", flush=True)
        if not well:
            failed += 1
            print(f"{said}\n  reproduce: run_killed.py {shlex.join(words)}", flush=True)
        number += 1
    print(f"{number - arguments.first} draws, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
