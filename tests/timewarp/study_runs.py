#!/usr/bin/python3
"""The study keeps what each run took: a peer that does not end is stopped and said, a slow run is said, others are not."""
import argparse
import os
import sys
import tempfile

root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(root, "bench", "timewarp"))
from runs import Runs, notes  # noqa: E402


def expect(what, is_so):
    if not is_so:
        sys.exit(f"FAILED: {what}")


def peers(folder):
    """One spins for ever as the second of two runs, one fails, one is well."""
    for name, text in {
            "spins": 'if [ -e second ]; then while :; do :; done; fi\ntouch second\necho "took 7 seconds"',
            "fails": "echo no luck; exit 3", "well": 'echo "took 1,024.5 seconds"'}.items():
        with open(os.path.join(folder, name), "w") as out:
            out.write(f"#!/bin/sh\n{text}\n")
        os.chmod(os.path.join(folder, name), 0o700)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    build = parser.parse_args().build
    took = r"took ([0-9.,]+) seconds"
    with tempfile.TemporaryDirectory(prefix="ckpt-study.") as folder:
        peers(folder)
        # The limit of the second run of `spins` is what decides, whatever the load: it never ends.
        spins, runs = (Runs(os.path.join(build, "bench"), folder, folder, first_limit=60, least_limit=least) for least in (5, 60))
        figures = {name: [of.once("peers", name, lambda name=name, of=of: of.peer(took, name)) for _ in range(2)]
                   for name, of in (("spins", spins), ("fails", runs), ("well", runs), ("absent", runs))}
        expect(f"figures: {figures}", figures == {
            "spins": [7, None], "fails": [None, None], "well": [1024.5, 1024.5], "absent": [None, None]})
        said = notes(spins.all + runs.all)
        expect(f"what is said of peers: {said}", any("spins, turn 2 of 2: stopped" in s for s in said))
        expect(f"what is said of a failure: {said}", any("fails, turn 1 of 2: gave no figure, exit code 3" in s for s in said))
        expect(f"nothing of what is not here: {said}", not any("absent" in s for s in said))

        runs.once("ours", "phold", lambda: runs.ours("phold", "--lps", 16, "--threads", 1)["committed"])
        last = runs.all[-1]
        expect(f"a run of ours: {last}", last["figure"] == last["executed"] > 0 and last["rolled_back"] == 0 and
               last["seconds"] > 0)

    made_up = [{"study": "s", "run": "r", "figure": 1, "seconds": s, "processor_seconds": 2 * s, "load": 1.5, "executed": 2000,
                "rolled_back": 1000} for s in (1, 1.1, 122, 1.2, 2.9)]
    said = notes(made_up)
    expect(f"one run of five is odd: {said}",
           len(said) == 1 and said[0].startswith("r, turn 3 of 5: 122.00 s") and "1,000 of 2,000 events undone" in said[0])


main()
