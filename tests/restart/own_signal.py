#!/usr/bin/env python3
"""Programs that use the checkpoint's signal themselves: theirs arrive, ours is another one."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import unittest

from stepped_program import CKPT, environment
from stepped_test import SteppedTest

OURS = 60  # kDefaultCheckpointSignal


class OwnSignal(SteppedTest):
    program_text = """
S = 60
caught = []
def catch(n, f): caught.append(n)
"""

    def signal_of_ours(self):
        said = subprocess.run([CKPT, "stat", "--json", str(self.pid)], capture_output=True, timeout=60, env=environment(), check=True)
        return json.loads(said.stdout)["signal"]

    def again_and_again(self, check):
        """check() holds before and after a checkpoint and a restart."""
        check()
        self.assertNotEqual(self.signal_of_ours(), OURS)
        self.checkpoint()
        check()
        self.come_back()
        check()
        self.assertNotEqual(self.signal_of_ours(), OURS)
        self.come_back()
        check()

    def test_with_a_handler(self):
        self.start()
        self.assertEqual(self.signal_of_ours(), OURS)
        self.do("signal.signal(S, catch)")

        def check():
            self.do("caught.clear()", "os.kill(os.getpid(), S)", "signal.raise_signal(S)", "signal.pthread_kill(threading.main_thread().ident, S)")
            self.assertEqual(self.ask("caught"), "[60, 60, 60]")
            os.kill(self.pid, OURS)  # from outside
            while self.ask("len(caught)") == "3":
                time.sleep(0.01)
            self.assertEqual(self.ask("signal.getsignal(S) is catch"), "True")
        self.again_and_again(check)

    def test_an_asker_that_looked_just_before_the_move(self):
        self.start()
        self.do("others = []", "signal.signal(S, catch)", "signal.signal(signal.SIGUSR2, lambda n, f: others.append(n))")
        queue = ctypes.CDLL(None, use_errno=True).sigqueue
        for value, times in ((1 << 40 | 5, 0), (7, 1)):  # one that may be a cookie, and one that is none
            self.assertEqual(queue(self.pid, OURS, ctypes.c_void_p(value)), 0)
            os.kill(self.pid, signal.SIGUSR2)
            while self.ask("len(others)") == "0":
                time.sleep(0.01)
            self.do("others.clear()")
            self.assertEqual(self.ask("len(caught)"), str(times))
        self.checkpoint()  # the agent is well
        self.come_back()
        self.assertEqual(self.ask("len(caught)"), "1")

    def test_blocked_and_waited_for(self):
        self.start()
        self.do("signal.pthread_sigmask(signal.SIG_BLOCK, {S})")

        def check():
            self.assertEqual(self.ask("signal.pthread_sigmask(signal.SIG_BLOCK, []) == {S}"), "True")
            self.do("[call(129, os.getpid(), S, struct.pack('iiiiiiq', S, 0, -1, 0, os.getpid(), 0, v).ljust(128, b'\\0')) for v in (7, 8)]")
            self.assertEqual(self.ask("signal.sigpending() == {S}"), "True")
            self.checkpoint()  # with two that wait
            self.assertEqual(self.ask("signal.sigpending() == {S}"), "True")
            self.assertEqual(self.ask("[(i.si_signo, i.si_code) for i in (signal.sigwaitinfo({S}) for _ in range(2))], signal.sigtimedwait({S}, 0)"),
                             "([(60, -1), (60, -1)], None)")
        self.again_and_again(check)

    def test_signalfd(self):
        self.start()
        self.do("libc.signalfd.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int]", "signal.pthread_sigmask(signal.SIG_BLOCK, {S})",
                "f = libc.signalfd(-1, struct.pack('Q', 1 << (S - 1)).ljust(128, b'\\0'), 0)")

        def check():
            self.do("os.kill(os.getpid(), S)")
            self.assertEqual(self.ask("struct.unpack_from('I', os.read(f, 128))"), "(60,)")
        self.again_and_again(check)

    def test_of_a_thread_that_waits_while_others_block_all(self):
        # Which never open it: our new one is opened for them.
        self.start()
        self.do("stop, got = [], []",
                "def full():\\n    signal.pthread_sigmask(signal.SIG_SETMASK, range(1, 65)); up.release()\\n    while not stop: time.sleep(0.01)",
                "up = threading.Semaphore(0); ts = [threading.Thread(target=full, daemon=True) for _ in range(5)]; [t.start() for t in ts]; [up.acquire() for t in ts]",
                "def waits():\\n    while not stop: got.append(signal.sigwait({S}))",
                "signal.pthread_sigmask(signal.SIG_BLOCK, {S}); w = threading.Thread(target=waits, daemon=True); w.start()")

        def check():
            self.do("n = len(got); os.kill(os.getpid(), S)", "while len(got) == n: time.sleep(0.001)")
            self.assertEqual(self.ask("got[-1]"), "60")
        self.again_and_again(check)
        with open("/proc/%d/status" % self.pid, encoding="ascii") as status:
            self.assertIn("SigBlk", status.read())
        blocked = []
        for tid in os.listdir("/proc/%d/task" % self.pid):
            with contextlib.suppress(OSError), open("/proc/%d/task/%s/status" % (self.pid, tid), encoding="ascii") as status:  # else it has ended
                blocked += [int(line.split()[1], 16) for line in status if line.startswith("SigBlk")]
        # The main thread and five; not the one that waits for it, while it does.
        self.assertIn(sum(mask >> (OURS - 1) & 1 for mask in blocked), (6, 7))

    def test_timer(self):
        self.start()
        self.do("signal.signal(S, catch)", "libc.timer_create.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p]; t = ctypes.create_string_buffer(8)",
                "libc.timer_create(1, struct.pack('qii', 5, S, 0).ljust(64, b'\\0'), t)",
                "libc.timer_settime.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p]",
                "libc.timer_settime(struct.unpack('Q', t.raw)[0], 0, struct.pack('4q', 0, 10000000, 0, 10000000), None)")

        def check():
            self.do("n = len(caught)", "while len(caught) < n + 3: time.sleep(0.001)")
        self.again_and_again(check)

    def test_at_an_interval(self):
        self.start(CKPT_EVERY="200ms", CKPT_KEEP="2")
        self.do("signal.signal(S, catch)")
        before = self.ask("len(caught)")
        images = lambda: {f for f in os.listdir(self.images) if f.endswith(".ckpt")}
        first = images()
        while not images() - first:
            time.sleep(0.02)
        self.assertEqual(self.ask("len(caught)"), before)

    def test_all_of_them(self):
        # As those do who set a handler for whatever there is.
        self.start()
        self.do("for n in range(34, 65): signal.signal(n, catch)")
        with open(os.path.join(self.images, [f for f in os.listdir(self.images) if f.endswith(".log")][0]), encoding="utf-8") as log:
            self.assertIn("CKPT_SIGNAL", log.read())
        self.checkpoint()
        ours = self.signal_of_ours()
        self.do("[os.kill(os.getpid(), n) for n in range(34, 65) if n != %d]" % ours)
        self.assertEqual(self.ask("sorted(caught) == [n for n in range(34, 65) if n != %d]" % ours), "True")

    def test_of_who_names_none(self):
        # Masks of all signals are no use of ours.
        self.start()
        self.do("signal.pthread_sigmask(signal.SIG_SETMASK, range(1, 65)); signal.pthread_sigmask(signal.SIG_SETMASK, [])", "signal.sigtimedwait(range(1, 65), 0)",
                "[signal.signal(n, signal.SIG_DFL) for n in range(34, 65)]")
        self.assertEqual(self.signal_of_ours(), OURS)


if __name__ == "__main__":
    sys.exit(unittest.main())
