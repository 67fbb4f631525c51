#!/usr/bin/env python3
"""Children that were continued, of which their parent was not told yet: it is told after a restart, and they notice nothing."""
import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from job_tree import NOBODY, RESTART, Tree, adopt_orphans, descendants, root_of, state_of, wait_for

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
# The parent goes on ahead of its child, and continues it.
FASTER = """
import os, signal, time
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    signal.signal(signal.SIGCONT, lambda *_: os.write(writes, b'c'))
    signal.signal(signal.SIGURG, lambda *_: os.write(writes, b'u'))
    with open('child.tmp', 'w') as f: f.write(str(os.getpid()))
    os.rename('child.tmp', 'child')
    while True: time.sleep(1)
while not os.path.exists('go'): time.sleep(0.001)
os.kill(child, signal.SIGCONT)
os.kill(child, signal.SIGURG)
heard = b''
while not heard.endswith(b'u'): heard += os.read(reads, 1)
print(heard.decode(), flush=True)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
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

    def number_here(self, tree, number):
        """Of the process that has this number in the program's namespace."""
        for pid in descendants(tree.child.pid):
            with open(f"/proc/{pid}/status", encoding="utf-8") as f:
                if [int(line.split()[-1]) for line in f if line.startswith("NSpid:")] == [number]:
                    return pid
        raise AssertionError(f"no process {number}: {tree.said()}")

    def test_who_goes_on_later_hears_it_all_the_same(self):
        """A child that is still to take its word to go on when its parent, which had it first, continues it."""
        tree = Tree("continued-late", ["python3", "-c", FASTER])
        failed = True
        try:
            tree.run()
            said = os.path.join(tree.work, "child")
            wait_for(lambda: os.path.exists(said), "the child")
            with open(said, encoding="ascii") as f:
                child = int(f.read())
            image = tree.checkpoint(tree.child.pid)
            tree.kill()
            open(os.path.join(tree.work, "go"), "w", encoding="utf-8").close()
            tree.start(["env", "CKPT_TEST_POINT=restart.ready=stop", RESTART, image], True)
            wait_for(lambda: state_of(tree.child.pid) == "T", "all to stand ready")
            child = self.number_here(tree, child)
            os.kill(child, signal.SIGSTOP)
            wait_for(lambda: state_of(child) == "T", "its stop")
            os.kill(tree.child.pid, signal.SIGCONT)
            self.assertEqual(tree.finish(), (0, b"cu\n"))
            failed = False
        finally:
            tree.close(failed)

    def test_as_user(self):
        if os.geteuid() != 0:
            self.skipTest("is that user already")
        self.trial(2, NOBODY)


if __name__ == "__main__":
    adopt_orphans()
    unittest.main()
