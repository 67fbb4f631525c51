#!/usr/bin/env python3
"""A program whose signal handlers leave mmap and munmap by siglongjmp goes on, though memory is copied before it goes."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

from stepped_program import BUILD, CKPT, environment

PROGRAM = os.path.join(BUILD, "tests", "restart", "leaves_releases")
CHECKPOINTS = 5
# The end of a copy waits for threads that have asked for a copy. If that wait is given up, the program is killed.
NEVER = "release.abandoned=kill"


class Leaves(unittest.TestCase):
    def test_goes_on(self):
        with tempfile.TemporaryDirectory(prefix="ckpt-leaves-") as place:
            program = subprocess.Popen([CKPT, "run", "--dir", "images", "--", PROGRAM], cwd=place, stdout=subprocess.PIPE,
                                       env=environment(CKPT_TEST_POINT=NEVER))
            try:
                self.assertEqual(program.stdout.readline(), b"up\n")
                for _ in range(CHECKPOINTS):
                    done = subprocess.run([CKPT, "now", str(program.pid)], capture_output=True, timeout=60, env=environment())
                    self.assertEqual(done.returncode, 0, done.stderr.decode())
                    self.assertIsNone(program.poll(), "a checkpoint waited for a thread that never came, until it gave that up")
                with open(os.path.join(place, "end"), "w", encoding="utf-8"):
                    pass
                self.assertEqual(program.wait(60), 0)
                self.assertRegex(program.stdout.readline(), b"^left [1-9]")
            finally:
                if program.poll() is None:
                    program.send_signal(signal.SIGKILL)
                    program.wait()
                program.stdout.close()


if __name__ == "__main__":
    sys.exit(unittest.main())
