#!/usr/bin/env python3
"""A program maps again what it has unmapped, and has a stack that grows into a hole: no checkpoint has put anything there."""

import os
import subprocess
import sys
import tempfile
import unittest

from stepped_program import BUILD, CKPT, environment

PROGRAM = os.path.join(BUILD, "tests", "restart", "takes_holes")
SETTINGS = [[], ["--increments", "5"], ["--mode", "fork"], ["--mode", "sequential"], ["--faults", "in-thread"]]


class TakesHoles(unittest.TestCase):
    def test_holes_stay_the_programs(self):
        with tempfile.TemporaryDirectory(prefix="ckpt-holes-") as place:
            programs = []
            for number, settings in enumerate(SETTINGS):
                directory = os.path.join(place, str(number))
                programs.append((settings, directory, subprocess.Popen(
                    [CKPT, "run", "--dir", directory, "--every", "30ms", *settings, "--", PROGRAM], stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, text=True, env=environment())))
            for settings, directory, program in programs:
                out, err = program.communicate(timeout=100)
                self.assertEqual((program.returncode, out), (0, "ready\nok\n"), f"{settings}: {err}")
                self.assertTrue(any(name.endswith(".ckpt") for name in os.listdir(directory)), settings)


if __name__ == "__main__":
    sys.exit(unittest.main())
