#!/usr/bin/env python3
"""A restart right after a kill -9, which returns before the killed process has given up its locks: the restart waits for that.
The kill is held up by a tracer, at the process's exit."""
import ctypes
import os
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "files"))
import changed_in_place
from changed_in_place import RESTART, environment

PTRACE_CONT, PTRACE_SEIZE, PTRACE_O_TRACEEXIT, PTRACE_EVENT_EXIT, WALL = 7, 0x4206, 0x40, 6, 0x40000000
PR_SET_CHILD_SUBREAPER = 36
libc = ctypes.CDLL(None, use_errno=True)

# A database that is open has a lock.
OPENED = r"""
import os, sqlite3, sys, time
c = sqlite3.connect('db', isolation_level=None)
c.execute('pragma journal_mode=wal')
c.execute('create table if not exists t(v integer)')
"""

CHILD = OPENED + r"""
with open('child.tmp', 'w') as f: f.write(str(os.getpid()))
os.rename('child.tmp', 'child')
time.sleep(999)
"""

PROGRAM = OPENED + r"""
print('up', flush=True)
while not os.path.exists('change') and not os.path.exists('go'): time.sleep(0.002)
if not os.path.exists('go') and os.fork() == 0:
    if sys.argv[2] == 'apart': os.setsid()
    os.execv('/usr/bin/python3', ['python3', '-c', sys.argv[1]])
while not os.path.exists('go'): time.sleep(0.002)
print('end', c.execute('pragma integrity_check').fetchone()[0], flush=True)
"""


def ptrace(request, pid, data):
    if libc.ptrace(request, ctypes.c_long(pid), None, ctypes.c_void_p(data)) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def waits_for(waiter, pid):
    """Has this process, or one that it has made, a pidfd of pid?"""
    with open(f"/proc/{waiter}/task/{waiter}/children") as f:
        family = [waiter, *map(int, f.read().split())]
    for one in family:
        try:
            for fd in os.listdir(f"/proc/{one}/fdinfo"):
                with open(f"/proc/{one}/fdinfo/{fd}") as f:
                    if f"Pid:\t{pid}\n" in f.read():
                        return True
        except OSError:
            pass
    return False


class Dying(unittest.TestCase):
    setUp, path, touch, output, wait_for, command, start, kill = (
        getattr(changed_in_place.ChangedInPlace, n) for n in ("setUp", "path", "touch", "output", "wait_for", "command", "start", "kill"))

    def kill_slowly(self, pid):
        """It is killed, and stands where it exits."""
        ptrace(PTRACE_SEIZE, pid, PTRACE_O_TRACEEXIT)
        os.kill(pid, signal.SIGKILL)
        self.assertEqual(os.waitpid(pid, WALL)[1] >> 8, signal.SIGTRAP | PTRACE_EVENT_EXIT << 8)

    def restart_beside(self, dying):
        restart = subprocess.Popen([RESTART, "images"], cwd=self.directory, env=environment(), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            self.touch("go")
            while restart.poll() is None and not waits_for(restart.pid, dying):
                pass
            ended = restart.poll()
            ptrace(PTRACE_CONT, dying, 0)
            os.waitpid(dying, WALL)
            said = restart.communicate(timeout=60)[0]
            self.assertIsNone(ended, said)
            self.assertEqual(restart.returncode, 0, said)
        finally:
            restart.kill()
        self.assertEqual(self.output(), "up\nend ok\n")

    def test_the_program(self):
        child = self.start(PROGRAM)
        self.command("ckpt", "now", str(child.pid))
        self.kill_slowly(child.pid)
        self.restart_beside(child.pid)

    def child_that_is_in_no_image(self, where):
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        child = self.start(PROGRAM, CHILD, where)
        self.command("ckpt", "now", str(child.pid))
        self.touch("change")
        self.wait_for(child, lambda: os.path.exists(self.path("child")))
        os.unlink(self.path("change"))
        with open(self.path("child")) as f:
            grandchild = int(f.read())
        child.kill()
        child.wait()
        self.kill_slowly(grandchild)
        self.restart_beside(grandchild)

    def test_a_child_of_its_group_that_is_in_no_image(self):
        self.child_that_is_in_no_image("in the group")

    def test_a_child_that_is_in_no_image(self):
        self.child_that_is_in_no_image("apart")


if __name__ == "__main__":
    unittest.main()
