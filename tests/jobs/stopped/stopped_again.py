#!/usr/bin/env python3
"""A child that is stopped and continued without rest while checkpoints are taken: its parent is told of each stop."""
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from job_tree import CKPT, PATIENCE, Tree, adopt_orphans, environment, wait_for

PROGRAM = """
import os, signal
child = os.fork()
if child == 0:
    while True: pass
open('ready', 'w').close()
while not os.path.exists('go'):
    os.kill(child, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    os.kill(child, signal.SIGCONT)
    assert os.WIFCONTINUED(os.waitpid(child, os.WCONTINUED)[1])
os.kill(child, signal.SIGKILL)
print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""
CHECKPOINTS = 40


class StoppedAgain(unittest.TestCase):
    def test_told_of_each_stop(self):
        tree = Tree("stopped-again", ["python3", "-c", PROGRAM])
        failed = True
        try:
            tree.run()
            wait_for(lambda: os.path.exists(os.path.join(tree.work, "ready")) or tree.child.poll() is not None, "the child")
            for _ in range(CHECKPOINTS):
                # A child that is continued in the wrong moment may be named instead (69).
                done = subprocess.run([CKPT, "now", str(tree.child.pid)], capture_output=True, text=True, timeout=PATIENCE,
                                      env=environment(), check=False)
                self.assertIn(done.returncode, (0, 69, 70, 75), done.stderr)
            open(os.path.join(tree.work, "go"), "w", encoding="utf-8").close()
            self.assertEqual(tree.finish(), (0, b"9\n"))
            failed = False
        finally:
            tree.close(failed)


if __name__ == "__main__":
    adopt_orphans()
    unittest.main()
