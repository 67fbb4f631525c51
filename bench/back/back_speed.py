#!/usr/bin/env python3
"""How long `ckpt back` takes: the threads' pause, and the command from its start to its end.

  back_speed.py BUILD [--mib 1024] [--percent 1] [--run-kib 64] [--rounds 20] [--without-watch]
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--mib", default="1024")
    parser.add_argument("--percent", default="1")
    parser.add_argument("--run-kib", default="64")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--without-watch", action="store_true")
    o = parser.parse_args()
    o.build = os.path.abspath(o.build)
    images = tempfile.mkdtemp(prefix="back-speed.")
    env = {**os.environ, "LD_PRELOAD": f"{o.build}/lib/libckpt_rt.so", "CKPT_DIR": images,
           "CKPT_INCREMENTS": "0" if o.without_watch else "8"}
    program = subprocess.Popen([f"{o.build}/bench/back_writes", o.mib, o.percent, o.run_kib], env=env,
                               stdout=subprocess.PIPE, cwd=images)
    try:
        program.stdout.readline()
        subprocess.run([f"{o.build}/bin/ckpt", "now", str(program.pid)], check=True, stdout=subprocess.DEVNULL)
        pauses, totals, bytes_back = [], [], []
        for _ in range(o.rounds):
            time.sleep(0.1)
            said = json.loads(subprocess.run([f"{o.build}/bin/ckpt", "back", "--json", str(program.pid)], check=True,
                                             capture_output=True).stdout)
            pauses.append(said["pause_ns"] / 1e6)
            totals.append(said["total_ns"] / 1e6)
            bytes_back.append(said["bytes"] / 2**20)
        load = os.getloadavg()[0]
        print(f"{o.mib} MiB, {o.percent} % in runs of {o.run_kib} KiB, {o.rounds} times, load average {load:.0f}: put back "
              f"{statistics.median(bytes_back):.1f} MiB")
        for name, values in (("pause", pauses), ("command", totals)):
            print(f"  {name}: median {statistics.median(values):.1f} ms, least {min(values):.1f}, most {max(values):.1f}")
        return 0
    finally:
        program.kill()
        program.wait()
        shutil.rmtree(images, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
