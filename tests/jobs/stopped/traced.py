#!/usr/bin/env python3
"""A member that another member traces: named, not waited for; the job goes on as if nobody had asked.
  traced.py
"""
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from job_tree import CKPT, PATIENCE, adopt_orphans, environment  # noqa: E402

TRACER = r"""
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
TRACEME, CONT = 0, 7
child = os.fork()
if child == 0:
    libc.ptrace(TRACEME, 0, None, None)
    os.kill(os.getpid(), signal.SIGSTOP)
    while not os.path.exists('go'): time.sleep(0.002)
    os._exit(7)
os.waitpid(child, 0)
libc.ptrace(CONT, child, None, None)
open('up', 'w').close()
stops = 0
while True:
    _, status = os.waitpid(child, 0)
    if not os.WIFSTOPPED(status): break
    stops += 1
    libc.ptrace(CONT, child, None, ctypes.c_void_p(os.WSTOPSIG(status)))
print(os.WEXITSTATUS(status), stops, flush=True)
"""


class Traced(unittest.TestCase):
    def test_is_named(self):
        work = tempfile.mkdtemp(prefix="ckpt-traced-")
        self.addCleanup(shutil.rmtree, work)
        job = subprocess.Popen([CKPT, "run", "--dir", os.path.join(work, "images"), "--", sys.executable, "-c", TRACER], cwd=work, env=environment(),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.addCleanup(job.kill)
        end = time.monotonic() + PATIENCE
        while not os.path.exists(os.path.join(work, "up")):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.005)
        done = subprocess.run([CKPT, "now", str(job.pid)], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 69, done.stdout + done.stderr)
        self.assertIn("traced", done.stderr)
        open(os.path.join(work, "go"), "w").close()
        said, _ = job.communicate(timeout=PATIENCE)
        self.assertEqual(said, "7 0\n")
        self.assertEqual(job.returncode, 0)


adopt_orphans()
if __name__ == "__main__":
    unittest.main()
