#!/usr/bin/env python3
"""libc tells threads of a change of user by a signal of its own, and counts them. Each is told once, whether the program goes back in place or is
restarted, at whatever moment of that the checkpoint was."""

import os
import signal
import sys
import unittest

from stepped_program import BUILD
from stepped_test import SteppedTest

PROGRAM = os.path.join(BUILD, "tests", "restart", "sets_user")


class SetsUser(SteppedTest):
    def again_and_again(self, come_back):
        self.start_program(PROGRAM)
        for _ in range(20):
            self.checkpoint()
            self.assertEqual(self.ask("?"), "there")
            come_back()
            self.assertEqual(self.ask("?"), "there")
        os.kill(self.pid, signal.SIGKILL)

    def test_back(self):
        """One in five had a thread that was told of a change that was made since."""
        self.again_and_again(self.go_back)

    def test_restart(self):
        def come_back():
            self.kill_program()
            self.restart()
        self.again_and_again(come_back)


if __name__ == "__main__":
    sys.exit(unittest.main())
