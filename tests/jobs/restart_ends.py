#!/usr/bin/env python3
"""A restart that is interfered with: children that are continued before their time, ckpt-restart that is killed, and signals for a
parent's end where the parent is another one than before.
  restart_ends.py
"""
import os
import signal
import subprocess
import sys
import unittest

from job_tree import RESTART, Tree, adopt_orphans, descendants, environment, state_of, wait_for

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from own_pids import enter_own_pids  # noqa: E402

# A child that is stopped, and has a child that is; the program knows of both.
STOPPED = """
import os, signal, sys, time
def stopped_child(program):
    pid = os.fork()
    if pid == 0:
        program()
        while True: time.sleep(0.01)
    while not os.path.exists(str(pid)): time.sleep(0.001)
    os.kill(pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    return pid
def named():
    open(str(os.getpid()), 'w').close()
def with_child():
    stopped_child(named)
    named()
child = stopped_child(with_child)
with open('child.tmp', 'w') as f: f.write(str(child))
os.rename('child.tmp', 'child')
while not os.path.exists('go'): time.sleep(0.001)
print(os.waitpid(child, os.WUNTRACED | os.WCONTINUED | os.WNOHANG), flush=True)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""
# The root has a signal for its parent's end.
ROOT = """
import ctypes, os, time
ctypes.CDLL(None).prctl(1, 9)
child = os.fork()
if child == 0:
    while True: time.sleep(0.01)
open('child', 'w').close()
while not os.path.exists('go'): time.sleep(0.001)
print('there', flush=True)
os.kill(child, 9)
"""
# The first thread of the parent has ended.
NO_LEADER = """
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
parent_pid = os.getpid()
def parent():
    child = os.fork()
    if child == 0:
        libc.prctl(1, 9)
        while open(f'/proc/{parent_pid}/stat').read().rsplit(')', 1)[1].split()[0] != 'Z': time.sleep(0.001)
        open('child', 'w').close()
        while True: time.sleep(0.01)
    while not os.path.exists('go'): time.sleep(0.001)
    got, status = os.waitpid(child, os.WNOHANG)
    print('ended' if got else 'there', flush=True)
    os.kill(child, 9)
    os._exit(0)
threading.Thread(target=parent).start()
libc.pthread_exit(None)
"""


class RestartEnds(unittest.TestCase):
    def checkpointed(self, program):
        tree = Tree("restart-ends", ["python3", "-c", program])
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: os.path.exists(os.path.join(tree.work, "child")), "the child")
        return tree, tree.checkpoint(tree.child.pid)

    @staticmethod
    def says_go(tree):
        with open(os.path.join(tree.work, "go"), "w", encoding="ascii"):
            pass

    def test_a_stopped_child_is_continued_too_early(self):
        tree, image = self.checkpointed(STOPPED)
        with open(os.path.join(tree.work, "child"), encoding="ascii") as f:
            child = int(f.read())
        root = tree.child.pid
        tree.kill()
        tree.start(["env", "CKPT_TEST_POINT=restart.memory=stop", RESTART, "--namespaces=never", image], True)
        wait_for(lambda: state_of(tree.child.pid) == "T", "the memory")
        os.kill(root, signal.SIGSTOP)
        wait_for(lambda: state_of(root) == "T", "the parent's stop")
        os.kill(tree.child.pid, signal.SIGCONT)
        wait_for(lambda: state_of(child) == "T", "the child's stop")
        os.kill(child, signal.SIGCONT)
        os.kill(root, signal.SIGCONT)
        self.says_go(tree)
        self.assertEqual(tree.finish(), (0, b"(0, 0)\n"), tree.said())

    def killed(self, stops_all):
        tree, image = self.checkpointed(STOPPED)
        if stops_all:
            tree.stop()
            image = tree.checkpoint(tree.child.pid)
        tree.kill()
        done = subprocess.run([RESTART, "--namespaces=never", image], stdin=subprocess.DEVNULL, capture_output=True, cwd=tree.work,
                              env=environment(CKPT_TEST_POINT="restart.ready=kill"), check=False)
        self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)
        wait_for(lambda: all(state_of(p) in "Z?" for p in descendants(os.getpid())), "all to end")

    def test_killed_with_stopped_children(self):
        self.killed(False)

    def test_killed_with_all_stopped(self):
        self.killed(True)

    def asked_to_end(self, number, namespaces):
        """The signal comes when all have their memory, and none runs."""
        tree, image = self.checkpointed(STOPPED)
        tree.kill()
        tree.start(["env", "CKPT_TEST_POINT=restart.memory=stop", RESTART, f"--namespaces={namespaces}", image], True)
        wait_for(lambda: state_of(tree.child.pid) == "T", "the memory")
        os.kill(tree.child.pid, number)
        os.kill(tree.child.pid, signal.SIGCONT)
        self.assertEqual(tree.child.wait(), 128 + number, tree.said())
        wait_for(lambda: all(state_of(p) in "Z?" for p in descendants(os.getpid())), "all to end")
        self.assertEqual(tree.output(), b"", tree.said())
        self.assertIn(b"before the job ran", tree.read("err"))

    def test_asked_to_end(self):
        self.asked_to_end(signal.SIGTERM, "never")

    def test_interrupted(self):
        self.asked_to_end(signal.SIGINT, "never")

    def test_asked_to_end_in_a_namespace(self):
        self.asked_to_end(signal.SIGTERM, "always")

    def test_signal_for_the_end_of_the_root_s_parent(self):
        tree, image = self.checkpointed(ROOT)
        tree.kill()
        tree.start([RESTART, "--detach", image], True)
        self.assertEqual(tree.child.wait(), 0, tree.said())
        self.says_go(tree)
        wait_for(lambda: all(state_of(p) in "Z?" for p in descendants(os.getpid())) or b"there" in tree.output(), "its word")
        self.assertIn(b"there", tree.output(), tree.said())
        self.assertIn(b"PR_SET_PDEATHSIG", tree.read("err"))

    def test_signal_for_the_end_of_a_thread_that_has_ended(self):
        tree, image = self.checkpointed(NO_LEADER)
        tree.kill()
        report = tree.restart(image)
        self.says_go(tree)
        self.assertEqual(tree.finish(), (0, b"there\n"), tree.said())
        self.assertIn("PR_SET_PDEATHSIG", " ".join(report["notes"]))


if __name__ == "__main__":
    enter_own_pids()
    adopt_orphans()
    unittest.main()
