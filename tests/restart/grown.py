#!/usr/bin/env python3
"""Memory of ours that is left to the next checkpoint is given back when that needs more, while the program runs: what it maps at
that place is its own, and in the image."""

import os
import signal
import sys
import unittest

from stepped_program import BUILD
from stepped_test import SteppedTest

PROGRAM = os.path.join(BUILD, "tests", "restart", "grown")


class Grown(SteppedTest):
    def test_what_is_mapped_where_ours_was(self):
        self.start_program(PROGRAM, CKPT_INCREMENTS="100")
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
