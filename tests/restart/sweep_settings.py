#!/usr/bin/env python3
"""Programs killed and restarted under settings drawn at random, each setting from its least value to its largest.

  sweep_settings.py --first 1 --count 12      twelve draws; a draw follows from its number
  sweep_settings.py --seconds 3600            as many as fit

Exit codes: 0 all passed, or had ended before their checkpoint; 1 some failed or did not end (the command that reproduces each is printed); 64 wrong arguments.
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
JOBS = ["pipeline", "make", "xargs", "sort", "tar", "fork", "spawn", "gcc"]
PROGRAMS = ["mergesort", "hunters", "accounts", "churn", "heap", "locks", "threads", "shared", "sweep", "stacks", "bubblesort"]
SEGMENTS = [4, 8, 16, 32, 64, 128, 256]  # KiB
LEAST_AUTO = 64  # KiB, which a pool is measured by where the segment is chosen later
COMPRESS = ["none"] * 4 + ["lz4", "zstd", "zstd:1", "zstd:9", "auto"]
ENGINES = ["cpu"] * 6 + ["dma", "dma:200M:40:16K", "dma:2G:100:512", "dma:1G:10:256K"]
MODES = ["auto", "realtime", "realtime", "realtime-large", "standing", "concurrent", "sequential", "fork"]


def settings_of(chance):
    return {"CKPT_COMPRESS": chance.choice(COMPRESS), "CKPT_ENGINE": chance.choice(ENGINES),
            "CKPT_ORDER": chance.choice(["address", "follow", "hot", "cold"]),
            "CKPT_FAULTS": chance.choice(["auto", "auto", "handler", "in-thread", "mprotect"]),
            "CKPT_HEAP": chance.choice(["libc", "libc", "jemalloc", "jemalloc:huge"]),
            "CKPT_FILES": chance.choice(["auto", "none", "links", "copies"])}


def pool_of(chance, segment):
    """From the smallest that is taken, sixteen segments, to more than the program has."""
    return f"{2 ** chance.randrange(4, 11) * segment}K"


def draw(number):
    """A command, and variables for it."""
    chance = random.Random(number)
    segment = chance.choice(SEGMENTS)
    settings = settings_of(chance)
    size = f"{segment}K"
    if chance.random() < 0.1:
        size, segment = "auto", max(segment, LEAST_AUTO)
    if chance.random() < 0.25:
        settings.update(CKPT_MODE=chance.choice(MODES), CKPT_SEGMENT=size, CKPT_POOL=pool_of(chance, segment),
                        CKPT_INCREMENTS=chance.choice(["0", "0", "2", "5"]))
        if settings["CKPT_FILES"] == "none":
            settings["CKPT_FILES"] = "auto"  # some of them delete files that they have open
        test = "Jobs.test_" + chance.choice(JOBS) + chance.choice(["", "_as_user"])
        return ["../jobs/jobs.py", test], {"JOB_TREE_SETTINGS": " ".join(f"{k}={v}" for k, v in settings.items())}
    # An instant of the run, not a seed: with that, programs that ended before would be run again for minutes.
    words = ["run_killed.py", chance.choice(PROGRAMS), "--instants", f"{chance.uniform(0.02, 0.5):.3f}", "--mode", chance.choice(MODES),
             "--segment", size, "--pool", pool_of(chance, segment)]
    if chance.random() < 0.5:
        words += ["--increments", str(chance.choice([1, 2, 5]))]
    if chance.random() < 0.3:
        words += ["--generations", "2"]
    if chance.random() < 0.25:
        words += ["--no-kill", "--checkpoints", "12"]
        # Not of those that are killed: a checkpoint would be under way while the restarted program is looked at.
        settings["CKPT_EVERY"] = chance.choice(["0", "30ms", "200ms"])
    elif chance.random() < 0.4:
        words.append("--restart-option=--" + chance.choice(["lazy", "eager"]))
    for name, value in settings.items():
        words += ["--setting", f"{name}={value}"]
    return words, {}


def run(words, variables, build):
    """What it said, and whether all was well."""
    of_build = [] if variables else ["--build", build]
    child = subprocess.Popen([sys.executable, os.path.join(HERE, words[0]), *words[1:], *of_build], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, start_new_session=True,
                             env={**os.environ, "CKPT_BUILD": build, **variables})
    try:
        said, _ = child.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return "did not end", False
    # 1 as well where the program had ended before its checkpoint.
    return said.strip(), child.returncode in (0, 77) or " 0 failed, 1 ended" in said


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
        words, variables = draw(number)
        since = time.monotonic()
        said, well = run(words, variables, os.path.abspath(arguments.build))
        first = shlex.join(words[:2]) + ": ok" if variables and well else said.splitlines()[0] if said else ""
        print(f"draw {number}, {time.monotonic() - since:.0f} s: {first}", flush=True)
        if not well:
            failed += 1
            print(f"{said}\n  reproduce: {shlex.join([f'{k}={v}' for k, v in variables.items()] + words)}", flush=True)
        number += 1
    print(f"{number - arguments.first} draws, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
