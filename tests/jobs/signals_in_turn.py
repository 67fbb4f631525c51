#!/usr/bin/env python3
"""What a member sends another one while a checkpoint stops the job, and from the moment on in which it is back, is had in turn."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from odd_objects import come_back  # noqa: E402

# Values that one member sends another one, which blocks the signal: they wait in its queue. 4096 are saved at most.
PROGRAM = r"""
import ctypes, os, signal
libc = ctypes.CDLL(None)
number = signal.SIGRTMIN + 2
signal.pthread_sigmask(signal.SIG_BLOCK, {number})
receiver = os.getpid()
def send(values):
    for value in values: assert libc.sigqueue(receiver, number, ctypes.c_void_p(value)) == 0
def stands():
    with open('/proc/%d/syscall' % receiver) as f: return f.read().startswith('202 ')
if os.fork() == 0:
    SENDER
    os._exit(0)
assert os.wait()[1] == 0
values = []
while (info := signal.sigtimedwait({number}, 0)) is not None: values.append(info.si_status)
print('in turn' if values == list(range(1, len(values) + 1)) else values, len(values))
"""

# No thread of its process stands for good before it has left its critical section. The receiver waits for a child, and
# in a stop for a futex: when it is seen to do that again and again it stands.
IN_THE_STOP = r"""
    send(range(1, 11))
    assert libc.ckpt_rt_enter_critical() == 0
    open('before', 'w').close()
    looks = 0
    while looks < 300: looks = looks + 1 if stands() else 0
    send(range(11, 21))
    libc.ckpt_rt_leave_critical()
    while not os.path.exists('go'): pass
"""

# One for the process, and one for the thread that stands: each waits in a queue of its own.
OF_BOTH_KINDS = IN_THE_STOP.replace("    send(range(1, 11))\n", "").replace("send(range(11, 21))", "os.kill(receiver, number), libc.syscall(234, receiver, receiver, number)")

# When both are back the sender goes on at once: 3,000 signals of before are not queued as fast.
WHEN_BACK = r"""
    send(range(1, 3001))
    open('before', 'w').close()
    while not os.path.exists('go'): pass
    send(range(3001, 3501))
"""


# Of a standard signal the first waits, and what comes meanwhile is merged with it.
OF_ONE_KIND = r"""
    send([1])
    open('before', 'w').close()
    while not os.path.exists('go'): pass
    send([2])
"""


def of_sender(code):
    return PROGRAM.replace("    SENDER\n", code.lstrip("\n"))


class SignalsInTurn(unittest.TestCase):
    def test_sent_in_the_stop(self):
        self.assertEqual(come_back(self, "signals-stop", of_sender(IN_THE_STOP), go_early=True), "in turn 20")

    def test_sent_in_the_stop_to_the_process_and_to_its_thread(self):
        self.assertEqual(come_back(self, "signals-both", of_sender(OF_BOTH_KINDS), go_early=True).split()[-1], "2")

    def test_sent_when_back(self):
        for turn in range(5):
            self.assertEqual(come_back(self, f"signals-back-{turn}", of_sender(WHEN_BACK), go_early=True), "in turn 3500")

    def test_one_sent_when_back(self):
        program = of_sender(OF_ONE_KIND).replace("signal.SIGRTMIN + 2", "signal.SIGUSR1")
        for turn in range(10):
            self.assertEqual(come_back(self, f"signals-one-{turn}", program, go_early=True), "in turn 1")


if __name__ == "__main__":
    unittest.main()
