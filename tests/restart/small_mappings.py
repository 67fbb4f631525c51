#!/usr/bin/env python3
"""A program with thousands of mappings that are smaller than a segment, of which several are copied into one buffer, while a
thread writes to them: each of them comes back as it was, by every way of copying and of loading."""

import json
import os
import signal
import subprocess
import sys
import unittest

from stepped_program import BUILD, CKPT, Program, environment
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
            self.assertEqual(self.ask("?"), "good")
            self.kill_program()
            self.restart(*restart)
            self.assertEqual(self.ask("?"), "good")
        os.kill(self.pid, signal.SIGKILL)

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

    def test_the_image_has_the_mappings_of_the_program(self):
        # What is found out beside the list of mappings, while all stand, must not be in it.
        self.start()
        self.do("all = [libc.mmap(None, 8192, 1 + i % 2 * 2, 0x22, -1, 0) for i in range(400)]")
        for _ in range(60):
            before = self.mapped()
            self.checkpoint()
            shown = subprocess.run([CKPT, "show", "--json", self.images], capture_output=True, env=environment(), check=True)
            ranges = [(int(m["start"], 16), int(m["end"], 16)) for m in json.loads(shown.stdout)["mappings"]]
            there = before + self.mapped()
            self.assertEqual([m for m in ranges if not any(start <= m[0] and m[1] <= end for start, end in there)], [])

    def mapped(self):
        with open(f"/proc/{self.pid}/maps") as f:
            return [tuple(int(a, 16) for a in line.split()[0].split("-")) for line in f]


if __name__ == "__main__":
    sys.exit(unittest.main())
