"""Runs of one study: what was run, how long it took, what it gave, and what is odd about it.

Each run keeps its wall and processor seconds, the load, and how it ended, so that a slow one can be found afterwards. A peer
that does not end is stopped, written down and left out of the medians, which is to the peer's advantage.
"""
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time

ODD = 3  # times the median seconds of the same run


class Runs:
    def __init__(self, bench, peers, scratch, first_limit=120, least_limit=10):
        """bench, peers: folders. scratch: peers write files where they run. Limits: seconds for a peer's run; the first of a
        kind has `first_limit`, the later ones ten times what the quickest took, but at least `least_limit`."""
        self.bench, self.peers, self.scratch = bench, peers, scratch
        self.first_limit, self.least_limit = first_limit, least_limit
        self.quickest = {}  # a peer's command line -> seconds
        self.all = []

    def once(self, study, name, run):
        """The figure that run() returns, or None. Writes the run down."""
        began, before, load = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN), os.getloadavg()[0]
        self.more = {}
        figure = run()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.all.append({
            "study": study, "run": name, "figure": figure, "seconds": round(time.monotonic() - began, 3),
            "processor_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3),
            "load": round(load, 1), **self.more})
        return figure

    def ours(self, model, *arguments):
        """The result that the model prints with --json."""
        done = subprocess.run([os.path.join(self.bench, model), *map(str, arguments), "--json"], capture_output=True,
                              text=True)
        if done.returncode != 0:
            sys.exit(f"{model} {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        result = json.loads(done.stdout)
        self.more = {k: result[k] for k in ("executed", "rolled_back", "gvt_rounds", "stalls", "window")}
        return result

    def peer(self, pattern, program, *arguments, launcher=()):
        """The last number that the pattern finds in what the peer prints, or None: it is not here, or gave none."""
        path = os.path.abspath(os.path.join(self.peers, program))
        if not os.path.exists(path):
            return None
        command = [*launcher, path, *map(str, arguments)]
        kind = " ".join(command)
        quickest = self.quickest.get(kind)
        limit = self.first_limit if quickest is None else max(10 * quickest, self.least_limit)
        began = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit, cwd=self.scratch)
        except subprocess.TimeoutExpired:
            self.more = {"ended": f"stopped, it had not ended after {limit:.0f} s"}
            return None
        except OSError as error:
            self.more = {"ended": f"does not start: {error.strerror}"}
            return None
        found = re.findall(pattern, done.stdout + done.stderr)
        if not found:
            self.more = {"ended": f"gave no figure, exit code {done.returncode}"}
            return None
        self.quickest[kind] = min(quickest or float("inf"), time.monotonic() - began)
        return float(found[-1].replace(",", ""))


def notes(runs):
    """A sentence for each run that took ODD times the median seconds of its kind, or gave no figure though it is here."""
    kinds = {}
    for run in runs:
        kinds.setdefault((run["study"], run["run"]), []).append(run)
    said = []
    for (_, name), group in kinds.items():
        median = statistics.median(r["seconds"] for r in group)
        for turn, run in enumerate(group, 1):
            what = f"{name}, turn {turn} of {len(group)}"
            if "ended" in run:
                said.append(f"{what}: {run['ended']}; processors were at work on it for {run['processor_seconds']:.1f} s. It "
                            "is not in the median.")
            elif run["seconds"] > ODD * median:
                undone = f", {run['rolled_back']:,} of {run['executed']:,} events undone" if "executed" in run else ""
                said.append(f"{what}: {run['seconds']:.2f} s, the median is {median:.2f} s; processors were at work on it for "
                            f"{run['processor_seconds']:.2f} s, the load was {run['load']}{undone}.")
    return said
