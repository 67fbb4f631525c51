"""--every auto: the interval is the one that the equation of `ckpt plan` gives for what checkpoints of this program cost."""

import json
import math
import os
import subprocess
import sys
import time
import unittest

from support import CKPT, CkptTest, USAGE, clean_environment

HELD = "import os, sys, time\nmemory = os.urandom(int(sys.argv[1]) << 20)\nopen(sys.argv[2], 'w').close()\nwhile True: time.sleep(0.01)\n"


def best_interval(mtbf, overhead):
    """(1) of docs/plan.md, apart from the code: x + lambda O + log(1 - x) = 0."""
    low, high = 0.0, 1.0
    for _ in range(200):
        x = (low + high) / 2
        low, high = (x, high) if x + overhead / mtbf + math.log1p(-x) > 0 else (low, x)
    return low * mtbf


def duration(ns):
    """As settings are printed: in the largest unit of which it is whole."""
    worth, unit = max((worth, unit) for worth, unit in ((10**3, "us"), (10**6, "ms"), (10**9, "s"), (60 * 10**9, "m"), (3600 * 10**9, "h"))
                      if ns % worth == 0)
    return f"{ns // worth}{unit}"


class EveryTest(CkptTest):
    def start(self, name, *options, megabytes=1):
        images, up = self.path(name), self.path(name + ".up")
        program = subprocess.Popen([CKPT, "run", "--dir", images, *options, "--", sys.executable, "-c", HELD, str(megabytes), up],
                                   env=clean_environment(), stdin=subprocess.DEVNULL)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        self.wait(lambda: os.path.exists(up))
        return program

    def wait(self, condition):
        deadline = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def stat(self, program):
        answer = self.ckpt("stat", "--json", program.pid)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return json.loads(answer.stdout)

    def learned(self, program):
        """In force, after three checkpoints; it is what the equation says of the figures beside it."""
        for _ in range(3):
            self.assertEqual(self.ckpt("now", program.pid).returncode, 0)
        stat = self.stat(program)
        expected = best_interval(stat["every_mtbf_ns"] / 1e9, stat["every_overhead_ns"] / 1e9) * 1e9
        expected = max(expected, stat["every_latency_ns"], 1e6)
        self.assertAlmostEqual(stat["every_ns"] / expected, 1, delta=1e6 / expected + 1e-6)
        self.assertEqual(stat["settings"]["CKPT_EVERY"]["set"], "auto")
        self.assertEqual(stat["settings"]["CKPT_EVERY"]["in_force"], duration(stat["every_ns"]))
        return stat

    def test_cheap_and_dear(self):
        cheap = self.learned(self.start("cheap", "--every", "auto", "--mtbf", "24h"))
        # All threads stand until half of the memory is in a pipe whose reader takes a MiB every 20 ms.
        slow = f"{sys.executable} -c 'import sys, time\nwhile sys.stdin.buffer.read(1 << 20): time.sleep(0.02)'"
        dear = self.learned(self.start("dear", "--every", "auto", "--mtbf", "24h", "--mode", "sequential", "--pool", "4M", "--to", slow, megabytes=16))
        self.assertEqual(cheap["every_mtbf_ns"], 24 * 3600 * 10**9)
        # What the cheap one's threads stand is left to the machine, which may be busy.
        self.assertGreater(dear["every_overhead_ns"], 100_000_000)
        self.assertEqual(dear["every_ns"] > cheap["every_ns"], dear["every_overhead_ns"] > cheap["every_overhead_ns"])

    def test_the_clock_follows_it(self):
        # Of such a machine every few tens of milliseconds, or as long as one takes, which is what the machine makes of it.
        program = self.start("often", "--every", "auto", "--mtbf", "1s")
        self.wait(lambda: self.stat(program)["checkpoints"] >= 4)
        stat = self.stat(program)
        self.assertLess(stat["every_ns"], max(10**9, stat["every_latency_ns"] + 1))
        text = self.ckpt("stat", program.pid).stdout
        self.assertIn("checkpoints every", text)
        self.assertIn("auto; in force: ", text)

    def test_without_a_rate(self):
        program = self.start("observed", "--every", "auto")
        self.assertEqual(self.learned(program)["every_mtbf_ns"], 24 * 3600 * 10**9)

    def test_refusals(self):
        self.refuse(USAGE, ["CKPT_EVERY", "auto"], "run", "--every", "automatic", "--", "true")
        self.refuse(USAGE, "CKPT_MTBF", "run", "--mtbf", "1ms", "--", "true")


if __name__ == "__main__":
    unittest.main()
