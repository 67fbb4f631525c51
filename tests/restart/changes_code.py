#!/usr/bin/env python3
"""Pages of a file's read-only mapping that are changed while a checkpoint begins, by calls that nobody sees, are in the image."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

from stepped_program import BUILD, CKPT, environment

PROGRAM = os.path.join(BUILD, "tests", "restart", "changes_code")
RESTART = os.path.join(BUILD, "bin", "ckpt-restart")
CHECKPOINTS = 2  # as many images as are kept


class ChangesCode(unittest.TestCase):
    def run_to_end(self, place, command):
        done = subprocess.run(command, cwd=place, capture_output=True, timeout=100, env=environment())
        self.assertEqual((done.returncode, done.stdout), (0, b"wrong 0\n"), done.stderr.decode())

    def test_what_changes_is_saved(self):
        with tempfile.TemporaryDirectory(prefix="ckpt-changes-") as place:
            program = subprocess.Popen([CKPT, "run", "--dir", "images", "--", PROGRAM], cwd=place, stdout=subprocess.PIPE,
                                       env=environment())
            try:
                self.assertEqual(program.stdout.readline(), b"up\n")
                for _ in range(CHECKPOINTS):
                    done = subprocess.run([CKPT, "now", str(program.pid)], capture_output=True, timeout=60, env=environment())
                    self.assertEqual(done.returncode, 0, done.stderr.decode())
            finally:
                program.send_signal(signal.SIGKILL)
                program.wait()
                program.stdout.close()
            with open(os.path.join(place, "end"), "w", encoding="utf-8"):
                pass
            images = sorted(name for name in os.listdir(os.path.join(place, "images")) if name.endswith(".ckpt"))
            self.assertEqual(len(images), CHECKPOINTS)
            for image in images:
                self.run_to_end(place, [RESTART, os.path.join("images", image)])


if __name__ == "__main__":
    sys.exit(unittest.main())
