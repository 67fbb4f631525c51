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

END = 400  # of the simulation, in its time
SIMULATION = ["--lps", "512", "--threads", "2", "--digest", "--json"]
COMPARED = ("committed", "state_digest", "events_digest")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    build = os.path.abspath(parser.parse_args().build)
    phold = os.path.join(build, "bench", "phold")
    ckpt, restart = (os.path.join(build, "bin", name) for name in ("ckpt", "ckpt-restart"))
    for way in ("copy", "reverse"):
        # On a machine that stands still now and then it may have ended before ckpt runs: then it gets more to do.
        end = END
        while not try_once(phold, ckpt, restart, way, end):
            end *= 2
            if end > 64 * END:
                sys.exit(f"{way}: the simulation ended before it could be killed, even one of {end // 2}")
    print("the same after kill and restart")
    return 0


def try_once(phold, ckpt, restart, way, end):
    """False: it had ended before it was killed."""
    argv = [phold, *SIMULATION, "--end", str(end), "--way", way]
    expected = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True, timeout=300).stdout)
    with tempfile.TemporaryDirectory() as directory:
        output = os.path.join(directory, "output")
        images = os.path.join(directory, "images")
        os.mkdir(images, 0o700)
        with open(output, "w") as out:
            victim = subprocess.Popen([ckpt, "run", "--dir", images, "--stop-timeout", "30s", "--", *argv, "--progress", "0.01"], stdout=out,
                                      stderr=subprocess.PIPE, text=True)
        # The second line: it is in the middle.
        for _ in range(2):
            if not victim.stderr.readline():
                sys.exit(f"the simulation ended before its second line of progress (exit code {victim.wait()})")
        now = subprocess.run([ckpt, "now", str(victim.pid)], capture_output=True, text=True, timeout=300)
        if now.returncode == 67:  # it ends
            victim.wait(60)
        ended = victim.poll() is not None or os.path.getsize(output) != 0
        if now.returncode not in ((0, 67) if ended else (0,)):
            sys.exit(f"ckpt now: {now.stderr.strip()}")
        victim.send_signal(signal.SIGKILL)
        code = victim.wait()
        victim.stderr.close()
        if ended or now.returncode != 0:
            if code not in (0, -signal.SIGKILL):
                sys.exit(f"the simulation ended with {code}")
            return False
        again = subprocess.run([restart, images], stderr=subprocess.DEVNULL, timeout=300)
        if again.returncode != 0:
            sys.exit(f"the restarted simulation ended with {again.returncode}")
        with open(output) as out:
            got = json.load(out)
        for field in COMPARED:
            if got[field] != expected[field]:
                sys.exit(f"{way}: {field} is {got[field]} after the restart, {expected[field]} left alone")
    return True


sys.exit(main())
