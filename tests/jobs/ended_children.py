#!/usr/bin/env python3
"""How a child ended that was not waited for, where that is hard to know or to say; and numbers that others have by now.
  ended_children.py
"""
import os
import subprocess
import sys
import unittest

from job_tree import NOBODY, Tree, adopt_orphans, wait_for

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from own_pids import enter_own_pids  # noqa: E402

PROGRAM = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
child = os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
other = os.fork()
if other == 0:
    while True: time.sleep(0.01)
ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
with open('how.tmp', 'w') as f: f.write(str(ended.si_code))
os.rename('how.tmp', 'how')
while not os.path.exists('go'): time.sleep(0.001)
print('%x' % os.waitpid(child, 0)[1], flush=True)
os.kill(other, 9)
"""
# A session with a terminal of the job's own; its foreground group has ended.
FOREGROUND = """
import fcntl, os, pty, signal, termios, time
master, slave = pty.openpty()
session = os.fork()
if session == 0:
    os.close(master)
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    reads, writes = os.pipe()
    group = os.fork()
    if group == 0:
        os.read(reads, 1)
        os._exit(0)
    os.setpgid(group, group)
    os.tcsetpgrp(slave, group)
    os.write(writes, b'e')
    os.waitpid(group, 0)
    with open('how.tmp', 'w') as f: f.write(str(group))
    os.rename('how.tmp', 'how')
    while True: time.sleep(0.01)
while not os.path.exists('go'): time.sleep(0.001)
print('there', flush=True)
os.kill(session, 9)
"""


class EndedChildren(unittest.TestCase):
    def start(self, program, *arguments, uid=0, prepare=None):
        tree = Tree("ended-children", ["python3", "-c", program, *arguments], uid=uid)
        self.addCleanup(tree.close, False)
        if prepare is not None:
            prepare(tree)
        tree.run()
        how = os.path.join(tree.work, "how")
        wait_for(lambda: os.path.exists(how), "its end")
        with open(how, encoding="ascii") as f:
            return tree, int(f.read())

    @staticmethod
    def says_go(tree):
        with open(os.path.join(tree.work, "go"), "w", encoding="ascii"):
            pass

    def test_of_another_user(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")

        def compiled(tree):
            path = os.path.join(tree.work, "seven")
            subprocess.run(["gcc", "-x", "c", "-o", path, "-"], input=b"int main() { return 7; }", check=True)
            os.chmod(path, 0o4755)

        tree, _ = self.start(PROGRAM, "./seven", uid=NOBODY, prepare=compiled)
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        tree.restart(image)
        self.says_go(tree)
        self.assertEqual(tree.finish(), (0, b"700\n"), tree.said())

    def test_with_a_core_dump(self):
        tree, how = self.start(PROGRAM, "sh", "-c", "kill -ABRT $$", prepare=lambda tree: None)
        if how != os.CLD_DUMPED:
            self.skipTest("no core is dumped here")
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        report = tree.restart(image)
        self.assertIn("core dump", " ".join(report["notes"]))
        self.says_go(tree)
        self.assertEqual(tree.finish(), (0, b"6\n"), tree.said())

    def test_foreground_group_s_number_is_another_s(self):
        last = "/proc/sys/kernel/ns_last_pid"
        tree, group = self.start(FOREGROUND)
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        try:
            with open(last, "w", encoding="ascii") as f:
                f.write(str(group - 1))
        except OSError:
            self.skipTest("may not choose numbers")
        other = subprocess.Popen(["sleep", "1000"], start_new_session=True)  # pylint: disable=consider-using-with
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        self.assertEqual(other.pid, group)
        tree.restart(image, "--namespaces=never")
        self.says_go(tree)
        self.assertEqual(tree.finish(), (0, b"there\n"), tree.said())

    def test_a_name_with_too_large_a_number(self):
        def planted(tree):
            os.mkdir(os.path.join(tree.images, "x.9999999999999999999.job"))

        tree, _ = self.start(PROGRAM, "true", prepare=planted)
        self.assertTrue(tree.checkpoint(tree.child.pid).endswith(".000001.job"))


if __name__ == "__main__":
    enter_own_pids()
    adopt_orphans()
    unittest.main()
