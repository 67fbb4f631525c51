#!/usr/bin/env python3
"""Children that were continued, of which their parent was not told yet: it is told after a restart, and they notice nothing."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from job_tree import NOBODY, Tree, adopt_orphans, root_of, wait_for

PROGRAM = """
import mmap, os, signal, struct, time
seen = mmap.mmap(-1, 4096)
def count(at):
    def note(*_): seen[at] = seen[at] + 1
    return note
def wait_until(what):
    while not what(): time.sleep(0.001)
parent = os.getpid()
children = []
for n in range(3):
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCONT, count(n))
        seen[100 + n] = 1
        while os.getppid() == parent: time.sleep(0.01)
        os._exit(1)
    children.append(pid)
wait_until(lambda: all(seen[100:103]))
signal.signal(signal.SIGCHLD, count(50))
for n, pid in enumerate(children[:2]):
    os.kill(pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: seen[n] == 1)
chld = seen[50]
open('ready.tmp', 'w').close(); os.rename('ready.tmp', 'ready')
wait_until(lambda: os.path.exists('go'))
# The kernel delivers what waits in the order of numbers.
signal.signal(signal.SIGURG, count(51))
os.kill(parent, signal.SIGURG)
wait_until(lambda: seen[51] == 1)
print('continued', list(seen[:3]), 'signals', seen[50] - chld, flush=True)
for pid in children:
    got, status = os.waitpid(pid, os.WUNTRACED | os.WCONTINUED | os.WNOHANG)
    print(got == pid and os.WIFCONTINUED(status), flush=True)
for pid in children:
    os.kill(pid, signal.SIGKILL)
    print(os.WTERMSIG(os.waitpid(pid, os.WUNTRACED | os.WCONTINUED)[1]), flush=True)
"""
EXPECTED = b"continued [1, 1, 0] signals 0\nTrue\nTrue\nFalse\n9\n9\n9\n"


class Continued(unittest.TestCase):
    def trial(self, generations, uid=0):
        tree = Tree("continued", ["python3", "-c", PROGRAM], uid=uid)
        failed = True
        try:
            tree.run()
            wait_for(lambda: os.path.exists(os.path.join(tree.work, "ready")) or tree.child.poll() is not None, "the children")
            root = tree.child.pid
            for _ in range(generations):
                image = tree.checkpoint(root)
                tree.kill()
                root = root_of(tree.restart(image))
            open(os.path.join(tree.work, "go"), "w", encoding="utf-8").close()
            self.assertEqual(tree.finish(), (0, EXPECTED))
            failed = False
        finally:
            tree.close(failed)

    def test_without_a_restart(self):
        self.trial(0)

    def test_once(self):
        self.trial(1)

    def test_twice(self):
        self.trial(2)

    def test_as_user(self):
        if os.geteuid() != 0:
            self.skipTest("is that user already")
        self.trial(2, NOBODY)


if __name__ == "__main__":
    adopt_orphans()
    unittest.main()
