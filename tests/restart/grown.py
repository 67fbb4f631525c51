#!/usr/bin/env python3
"""Memory of ours that is left to the next checkpoint is given back when that needs more, while the program runs: what it maps at
that place is its own, and in the image."""

import os
import signal
import sys
import unittest

from stepped_program import BUILD, CKPT, Program
from stepped_test import SteppedTest

PROGRAM = os.path.join(BUILD, "tests", "restart", "grown")


class Grown(SteppedTest):
    def run_program(self):
        """The program, as SteppedTest knows it."""
        self.program = Program([CKPT, "run", "--dir", self.images, "--", PROGRAM], CKPT_INCREMENTS="100")
        self.addCleanup(self.program.child.kill)
        self.assertEqual(self.program.child.stdout.readline(), b"up\n")
        self.pid = self.program.child.pid

    def test_what_is_mapped_where_ours_was(self):
        self.run_program()
        for _ in range(8):
            # A few pages are copied in the stop for each thread: with 150 more the room for them is 2 MiB longer.
            self.assertEqual(self.ask("0"), "0")
            self.checkpoint()
            self.assertEqual(self.ask("150"), "150")
            self.checkpoint()
            self.kill_program()
            self.restart()
        self.assertEqual(self.ask("1"), "1")
        os.kill(self.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(unittest.main())
