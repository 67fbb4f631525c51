#!/usr/bin/env python3
"""What ordinary programs and their run times do every day, each lost or refused once. As odd_objects.py."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from odd_objects import come_back

# Go's os/exec: the child gets the list of variables that the kernel made, whatever libc's environ is, by system calls of its own.
KERNELS_LIST = r"""
import ctypes, os, time
libc = ctypes.CDLL(None)
stack = int(open('/proc/self/stat').read().rsplit(')', 1)[1].split()[25])
variables = stack + 8 * (ctypes.c_long.from_address(stack).value + 2)
hear, tell = os.pipe()
pid = os.fork()
if pid == 0:
    os.dup2(hear, 0)
    argv = (ctypes.c_char_p * 4)(b'sh', b'-c', b': > before; read x; exit $x', None)
    libc.syscall(59, b'/bin/sh', argv, ctypes.c_void_p(variables))
while not os.path.exists('go'): time.sleep(0.005)
os.write(tell, b'7\n')
print(os.waitpid(pid, 0)[1] >> 8)
"""

# top(1) sets a handler for each signal, also for the one that stops threads: its thread waits for ours to take another one, behind
# the checkpoint that ours is at.
ALL_SIGNALS = r"""
import ctypes, os, signal, threading, time
libc = ctypes.CDLL(None)
number = int(os.environ.get('CKPT_SIGNAL', '60'))
of_threads = lambda: os.listdir('/proc/self/task')
libc.ckpt_rt_enter_critical()
known = len(of_threads())
open('before', 'w').close()
while len(of_threads()) == known: time.sleep(0.002)
taken = []
def take(): taken.append(libc.signal(number, ctypes.cast(libc.abs, ctypes.c_void_p)))
thread = threading.Thread(target=take)
thread.start()
def waits_for_the_agent():
    with open(f'/proc/self/task/{thread.native_id}/syscall') as f: call = f.read().split()
    return call[0] == '202' and call[2:4] == ['0x80', '0x0']
while not waits_for_the_agent(): time.sleep(0.002)
libc.ckpt_rt_leave_critical()
thread.join()
while not os.path.exists('go'): time.sleep(0.005)
caught = next(int(line.split()[1], 16) for line in open('/proc/self/status') if line.startswith('SigCgt'))
os.kill(os.getpid(), number)
print(taken, caught >> number - 1 & 1)
"""


class Everyday(unittest.TestCase):
    def test_a_thread_that_waits_to_take_our_signal(self):
        self.assertEqual(come_back(self, "everyday-signals", ALL_SIGNALS, go_early=True), "[0] 1")

    def test_a_child_with_the_variables_that_the_kernel_gave(self):
        self.assertEqual(come_back(self, "everyday-variables", KERNELS_LIST, go_early=True), "7")


job_tree.adopt_orphans()

if __name__ == "__main__":
    unittest.main()
