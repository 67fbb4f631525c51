#!/usr/bin/env python3
"""A program with thousands of mappings that are smaller than a segment, of which several are copied into one buffer, while a
thread writes to them: each of them comes back as it was, by every way of copying and of loading."""

import os
import signal
import sys
import unittest

from stepped_program import BUILD, CKPT, Program
from stepped_test import SteppedTest

PROGRAM = os.path.join(BUILD, "tests", "restart", "small_mappings")


class SmallMappings(SteppedTest):
    def go(self, *restart, **settings):
        self.program = Program([CKPT, "run", "--dir", self.images, "--", PROGRAM], **settings)
        self.addCleanup(self.program.child.kill)
        self.assertEqual(self.program.child.stdout.readline(), b"up\n")
        self.pid = self.program.child.pid
        for _ in range(3):
            for _ in range(3):
                self.checkpoint()
            before = self.look()
            self.kill_program()
            self.restart(*restart)
            self.assertGreater(self.look(), 0)
        self.assertGreater(before, 0)
        os.kill(self.pid, signal.SIGKILL)

    def look(self):
        said = self.ask("?")
        self.assertRegex(said, "^good [0-9]+$")
        return int(said.split()[1])

    def test_as_it_is(self):
        self.go()

    def test_lazily(self):
        self.go("--lazy")

    def test_increments(self):
        self.go(CKPT_INCREMENTS="2")

    def test_compressed(self):
        self.go(CKPT_COMPRESS="lz4")

    def test_segments_of_256k(self):
        self.go(CKPT_SEGMENT="256K")

    def test_faults_of_its_own_threads(self):
        self.go(CKPT_FAULTS="in-thread")

    def test_mprotect(self):
        self.go(CKPT_FAULTS="mprotect")

    def test_by_an_engine(self):
        self.go(CKPT_ENGINE="dma")


if __name__ == "__main__":
    sys.exit(unittest.main())
