#!/usr/bin/env python3
"""A thread may stand where the library is about to use its own page, around a call that executes a program. The page is in no image, and must
be where it was."""

import os
import signal
import sys
import unittest

from stepped_program import BUILD
from stepped_test import SteppedTest

PROGRAM = os.path.join(BUILD, "tests", "restart", "tries_programs")


class TriesPrograms(SteppedTest):
    def test_again_and_again(self):
        self.start_program(PROGRAM)
        # One in five had a thread there.
        for _ in range(20):
            self.checkpoint()
            self.kill_program()
            self.restart()
            self.assertEqual(self.ask("?"), "there")
        os.kill(self.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(unittest.main())
