#!/usr/bin/env python3
"""A thread may stand in the call that makes a semaphore set or a message queue: it has its number when it goes on, and the object must be
there after a restart, in System V namespaces of their own that have none."""

import os
import sys
import unittest

from stepped_program import BUILD
from stepped_test import SteppedTest, needs_root

PROGRAM = os.path.join(BUILD, "tests", "restart", "makes_objects")
OWN = ("unshare", "-i")


@needs_root
class MakesObjects(SteppedTest):
    def test_again_and_again(self):
        # One in two had a thread there.
        for _ in range(12):
            self.start_program(PROGRAM, how=OWN)
            self.checkpoint()
            self.assertEqual(self.ask("?"), "there")
            self.kill_program()
            self.restart(how=OWN)
            self.assertEqual(self.ask("?"), "there")
            self.kill_program()


if __name__ == "__main__":
    sys.exit(unittest.main())
