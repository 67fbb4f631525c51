#!/usr/bin/env python3
"""A simulation on several processes has the result of a sequential one, over each MPI that is there.

  mpi.py --build BUILD [--hosts]      77: neither Open MPI nor MPICH is there
"""
import argparse
import json
import os
import shutil
import subprocess
import sys

MPIS = {
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
    "mpich": ["mpirun.mpich"],
}
MODELS = [
    ["phold", "--lps", "96", "--events", "4", "--end", "8", "--way", "reverse"],
    ["phold", "--lps", "7", "--events", "3", "--end", "6", "--lookahead", "0", "--remote", "1", "--every", "4"],
    ["pcs_calls", "--lps", "20", "--end", "400", "--way", "ccl", "--batch", "2"],
]


def result(argv):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    bench = os.path.join(os.path.abspath(parser.parse_args().build), "bench")
    there = [m for m, run in MPIS.items() if shutil.which(run[0])
             and os.path.exists(os.path.join(bench, "..", "lib", f"libckpt_timewarp_{m}.so"))]
    if not there:
        print("neither mpirun.openmpi nor mpirun.mpich is here")
        return 77
    undone = 0
    for model in MODELS:
        argv = [os.path.join(bench, model[0]), *model[1:], "--json", "--digest"]
        expected = result([*argv, "--threads", "0"])
        for mpi in there:
            for processes in (2, 3):
                got = result([*MPIS[mpi], "-np", str(processes), *argv, "--threads", "1", "--mpi", mpi])
                for field in ("committed", "state_digest", "events_digest"):
                    if got[field] != expected[field]:
                        sys.exit(f"{' '.join(model)}: {field} is {got[field]} on {processes} processes over {mpi}, "
                                 f"{expected[field]} sequentially")
                if got["processes"] != processes:
                    sys.exit(f"{got['processes']} processes, {processes} were wanted")
                undone += got["rolled_back"]
    if undone == 0:
        sys.exit("nothing was undone in any run: no anti-message was tested")
    print(f"the same over {' and '.join(there)}; {undone} events undone")
    return 0


sys.exit(main())
