#!/usr/bin/env python3
"""A member that was stopped, which its parent had not been told yet, stops again at a restart before any other member goes on: the
SIGCONT of one that goes on at once would come too early, and the member would stand for ever."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from odd_objects import come_back  # noqa: E402

# What the child has to do after the restart lasts until its parent has sent the signal: the callback is flock(3, LOCK_EX).
PROGRAM = r"""
import ctypes, fcntl, os, signal
libc = ctypes.CDLL(None)
held = os.open('held', os.O_RDWR | os.O_CREAT)
fcntl.flock(held, fcntl.LOCK_EX)
child = os.fork()
if child == 0:
    os.dup2(os.open('held', os.O_RDWR), 3)
    assert libc.ckpt_rt_add_callback(3, libc.flock, ctypes.c_void_p(fcntl.LOCK_EX)) == 0
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(7)
os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOWAIT)
open('before', 'w').close()
while not os.path.exists('go'): pass
os.kill(child, signal.SIGCONT)
fcntl.flock(held, fcntl.LOCK_UN)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


class StoppedLate(unittest.TestCase):
    def test_it_stops_before_its_parent_goes_on(self):
        self.assertEqual(come_back(self, "stopped-late", PROGRAM, go_early=True), "7")


if __name__ == "__main__":
    unittest.main()
