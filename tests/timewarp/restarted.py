#!/usr/bin/env python3
"""A simulation under `ckpt run`, checkpointed and killed in the middle, and restarted, has the result of one that was
left alone.

  restarted.py --build BUILD
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

SIMULATION = ["--lps", "512", "--end", "400", "--threads", "2", "--digest", "--json"]
COMPARED = ("committed", "state_digest", "events_digest")


def wait_for(what, condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"{what}: not within {seconds} s")
        time.sleep(0.02)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    build = os.path.abspath(parser.parse_args().build)
    phold = os.path.join(build, "bench", "phold")
    ckpt, restart = (os.path.join(build, "bin", name) for name in ("ckpt", "ckpt-restart"))
    for way in ("copy", "reverse"):
        argv = [phold, *SIMULATION, "--way", way]
        expected = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True, timeout=300).stdout)
        with tempfile.TemporaryDirectory() as directory:
            output = os.path.join(directory, "output")
            images = os.path.join(directory, "images")
            os.mkdir(images, 0o700)
            with open(output, "w") as out:
                victim = subprocess.Popen([ckpt, "run", "--dir", images, "--", *argv, "--progress", "0.01"], stdout=out,
                                          stderr=subprocess.PIPE, text=True)
            # The second line: it is in the middle.
            for _ in range(2):
                if not victim.stderr.readline():
                    sys.exit(f"the simulation ended before its second line of progress (exit code {victim.wait()})")
            now = subprocess.run([ckpt, "now", str(victim.pid)], capture_output=True, text=True, timeout=300)
            if now.returncode != 0:
                sys.exit(f"ckpt now: {now.stderr.strip()}")
            if victim.poll() is not None or os.path.getsize(output) != 0:
                sys.exit("the simulation ended before it could be killed: give it more to do")
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            victim.stderr.close()
            again = subprocess.run([restart, images], stderr=subprocess.DEVNULL, timeout=300)
            if again.returncode != 0:
                sys.exit(f"the restarted simulation ended with {again.returncode}")
            with open(output) as out:
                got = json.load(out)
            for field in COMPARED:
                if got[field] != expected[field]:
                    sys.exit(f"{way}: {field} is {got[field]} after the restart, {expected[field]} left alone")
    print("the same after kill and restart")
    return 0


sys.exit(main())
