#!/usr/bin/env python3
"""Programs of two pid namespaces, as in two containers, with one image directory."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from stepped_program import BUILD, CKPT, environment  # noqa: E402

PROGRAM = "import sys; print('up', flush=True); sys.stdin.read()"
# The program is the first of its namespace, 1: a number that is always somebody's outside.
ELSEWHERE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
POINT = "fork.child"  # threads run, files are kept, the image is not begun


class SharedDirectory(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="ckpt-shared-", dir=BUILD)
        self.addCleanup(place.cleanup)
        self.place = place.name
        self.images = os.path.join(self.place, "images")

    def start(self, name, *before, **settings):
        # Open from its first instruction on, so also at its first checkpoint: kept beside the image.
        with open(os.path.join(self.place, name), "w+", encoding="utf-8") as file:
            program = subprocess.Popen([*before, CKPT, "run", "--dir", self.images, "--mode", "fork", "--", sys.executable, "-c", PROGRAM],
                                       cwd=self.place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[file.fileno()],
                                       env=environment(**settings))
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.stdin.close)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), b"up\n")
        return program

    def now(self, program):
        done = subprocess.run([CKPT, "now", str(program.pid)], capture_output=True, timeout=60, env=environment())
        self.assertEqual(done.returncode, 0, done.stderr.decode())

    def saved(self):
        return {name for name in os.listdir(self.images) if name.endswith(".files")} if os.path.isdir(self.images) else set()

    def saved_without_an_image(self):
        return {name for name in self.saved() if not os.path.exists(os.path.join(self.images, name.replace(".files", ".ckpt")))}

    @unittest.skipIf(os.geteuid() != 0, "needs root: pid namespaces")
    def test_files_saved_for_an_image_that_is_not_begun(self):
        other = self.start("other", *ELSEWHERE, CKPT_EVERY="100ms", CKPT_TEST_POINT=POINT + "=stop")
        deadline = time.monotonic() + 60
        while not (self.saved_without_an_image() and self.stands(other.pid)):
            self.assertLess(time.monotonic(), deadline, "it did not come to " + POINT)
            time.sleep(0.01)
        unfinished = self.saved_without_an_image()
        self.assertEqual(len(unfinished), 1)
        ours = self.start("ours")
        self.now(ours)
        self.assertEqual(self.saved_without_an_image(), unfinished)
        # Its program is gone: nobody will write the image.
        other.kill()
        other.wait()
        deadline = time.monotonic() + 60
        while self.saved_without_an_image():  # until the kernel has ended all of the namespace
            self.assertLess(time.monotonic(), deadline, "nobody has removed it")
            self.now(ours)

    def stands(self, pid):
        """A process below this one is stopped."""
        children, threads = [], []
        with contextlib.suppress(OSError):  # what has ended has none
            threads = os.listdir(f"/proc/{pid}/task")
        for thread in threads:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", encoding="utf-8") as f:
                children += [int(child) for child in f.read().split()]
        for child in children:
            with contextlib.suppress(OSError), open(f"/proc/{child}/stat", encoding="utf-8") as status:
                if status.read().rpartition(")")[2].split()[0] == "T":
                    return True
        return any(self.stands(child) for child in children)


if __name__ == "__main__":
    sys.exit(unittest.main())
