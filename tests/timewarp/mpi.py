#!/usr/bin/env python3
"""A simulation on several processes has the result of a sequential one, over each MPI that is there.

  mpi.py --build BUILD            on this host
  mpi.py --build BUILD --hosts    on three hosts, in namespaces (root)
77: neither Open MPI nor MPICH is there, or no hosts can be made.
"""
import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # the source directory stays as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import hosts  # noqa: E402

MPIS = {
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
    "mpich": ["mpirun.mpich"],
}


def over_hosts(mpi, some, processes):
    """What begins the command line of a run with as many processes, one a host as long as there are some."""
    places = ",".join(some.names)
    start = some.enter(some.names[0]) + MPIS[mpi]
    if mpi == "openmpi":
        return [*start, "--mca", "plm_rsh_agent", some.agent, "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
                "--mca", "mpi_yield_when_idle", "1", "--map-by", "node", "-H", ",".join(f"{n}:4" for n in some.names),
                "-np", str(processes)]
    return [*start, "-launcher", "ssh", "-launcher-exec", some.agent, "-hosts", places, "-n", str(processes)]


MODELS = [
    ["phold", "--lps", "96", "--events", "4", "--end", "8", "--way", "reverse"],
    ["phold", "--lps", "7", "--events", "3", "--end", "6", "--lookahead", "0", "--remote", "1", "--every", "4"],
    ["pcs_calls", "--lps", "20", "--end", "400", "--way", "ccl", "--batch", "2"],
]


def mpich_version():
    text = subprocess.run([*MPIS["mpich"], "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(n) for n in re.search(r"Version:\s+(\d+)\.(\d+)", text).groups())


def result(argv):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def refuse_unlike_models(mpi, phold):
    """Processes that were started with unlike arguments say so, and end."""
    argv = MPIS[mpi] + ["-np", "1", phold, "--lps", "8", "--mpi", mpi, ":", "-np", "1", phold, "--lps", "96", "--mpi", mpi]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    if done.returncode == 0 or "same arguments" not in done.stderr:
        sys.exit(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--hosts", action="store_true")
    options = parser.parse_args()
    if options.hosts and hosts.missing(ssh=True):
        print(hosts.missing(ssh=True))
        return 77
    bench = os.path.join(os.path.abspath(options.build), "bench")
    there = [m for m, run in MPIS.items() if shutil.which(run[0])
             and os.path.exists(os.path.join(bench, "..", "lib", f"libckpt_timewarp_{m}.so"))]
    if options.hosts and "mpich" in there and mpich_version() < (4, 2):
        there.remove("mpich")  # hangs in MPI_Finalize now and then: docs/timewarp.md
    if not there:
        print("neither mpirun.openmpi nor mpirun.mpich is here, or not one that ends on several hosts")
        return 77
    for mpi in () if options.hosts else there:
        refuse_unlike_models(mpi, os.path.join(bench, "phold"))
    undone = 0
    with contextlib.ExitStack() as stack:
        some = stack.enter_context(hosts.Hosts(3, ssh=True, keep=[options.build])) if options.hosts else None
        for model in MODELS:
            argv = [os.path.join(bench, model[0]), *model[1:], "--json", "--digest"]
            expected = result([*argv, "--threads", "0"])
            for mpi in there:
                for processes in (3, 4) if some else (2, 3):
                    start = over_hosts(mpi, some, processes) if some else [*MPIS[mpi], "-np", str(processes)]
                    got = result([*start, *argv, "--threads", "1", "--mpi", mpi])
                    for field in ("committed", "state_digest", "events_digest"):
                        if got[field] != expected[field]:
                            sys.exit(f"{' '.join(model)}: {field} is {got[field]} on {processes} processes over {mpi}, "
                                     f"{expected[field]} sequentially")
                    if got["processes"] != processes:
                        sys.exit(f"{got['processes']} processes, {processes} were wanted")
                    undone += got["rolled_back"]
    if undone == 0:
        sys.exit("nothing was undone in any run: no anti-message was tested")
    print(f"the same over {' and '.join(there)}; {undone} events undone"
          f"{' on three hosts' if options.hosts else ''}")
    return 0


sys.exit(main())
