#!/usr/bin/env python3
"""What the models' commands print and write: the result as JSON, progress, the trace; how they refuse wrong arguments.

  commands.py --build BUILD
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

BENCH = ""


def run(*argv):
    return subprocess.run([os.path.join(BENCH, argv[0]), *argv[1:]], capture_output=True, text=True, timeout=120, check=False)


class Commands(unittest.TestCase):
    def test_json_has_what_scripts_read(self):
        for model in ("phold", "pcs", "pcs_calls"):
            done = run(model, "--end", "2", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(done.stdout)
            self.assertGreater(result["committed"], 0)
            self.assertGreater(result["seconds"], 0)
            self.assertEqual(result["executed"] - result["rolled_back"], result["committed"])

    def test_progress_comes_while_it_runs_and_never_goes_back(self):
        for threads in ("0", "1", "2"):
            done = run("phold", "--lps", "512", "--end", "100", "--threads", threads, "--progress", "0.001")
            self.assertEqual(done.returncode, 0, done.stderr)
            times = [float(t) for t in re.findall(r"^time ([0-9.e+-]+) of 100, ", done.stderr, re.M)]
            self.assertGreater(len(times), 1, done.stderr)
            self.assertEqual(times, sorted(times))

    def test_trace_is_a_chrome_trace_of_all_that_was_done(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "trace.json")
            done = run("phold", "--lps", "64", "--end", "5", "--threads", "2", "--trace", path, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(done.stdout)
            with open(path, encoding="utf-8") as f:
                entries = json.load(f)["traceEvents"]
        spans = [e for e in entries if e["ph"] == "X"]
        self.assertEqual({e["tid"] for e in spans}, {0, 1})
        for e in spans:
            self.assertGreaterEqual(e["ts"], 0)
            self.assertGreaterEqual(e["dur"], 0)
        self.assertEqual(sum(e["name"] == "event" for e in spans), result["executed"])
        self.assertEqual(sum(e["args"]["undone"] for e in spans if e["name"] == "rollback"), result["rolled_back"])
        self.assertGreaterEqual(sum(e["name"] == "GVT" for e in spans), result["gvt_rounds"])

    def test_a_trace_that_cannot_be_written_is_said(self):
        done = run("phold", "--lps", "4", "--end", "1", "--trace", "/nowhere/trace.json")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"/nowhere/trace\.json")

    def test_wrong_arguments(self):
        for arguments, words, code in ((["--threshold", "1.5"], "threshold", 64), (["--way", "nowhere"], "way", 64),
                                       (["--threads", "x"], "threads", 64), (["--window", "-1"], "window", 64),
                                       (["--every", "0"], "every", 64), (["--state", "8"], "state", 64),
                                       (["--memory", "1K", "--events", "64"], "raise the limit", 79),
                                       (["--mean", "x"], "--mean: x is not a number, 0 or more", 64),
                                       (["--remote", "nan"], "--remote: nan is not a number from 0 to 1", 64),
                                       (["--memory", "-5"], "--memory: -5 is not a size", 64),
                                       (["--device-speed", "-1M"], "--device-speed: -1M is not a size", 64),
                                       (["--progress", "-1"], "progress", 64),
                                       (["--mpi", "/nowhere.so"], "nowhere", 69)):
            done = run("phold", "--lps", "40", "--end", "9", *arguments)
            self.assertEqual(done.returncode, code, arguments)
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertLess(len(done.stderr), 200, done.stderr)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BENCH = os.path.join(os.path.abspath(options.build), "bench")
    unittest.main(argv=[sys.argv[0], *rest])
