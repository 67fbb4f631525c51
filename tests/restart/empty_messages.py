#!/usr/bin/env python3
"""Messages without a byte that wait in Unix sockets while checkpoint follows checkpoint: the kernel shows each of them to one look alone."""

import random
import subprocess
import sys
import unittest

from stepped_program import RESTART, environment
from stepped_test import SteppedTest

PROGRAM = """
a, b = socket.socketpair(socket.AF_UNIX, socket.%s)
c = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); c.bind('\\0ckpt-empty-%%d' %% os.getpid())
names = []
for n in range(2):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind('\\0ckpt-from-%%d-%%d' %% (os.getpid(), n)); s.connect(c.getsockname()); names.append(s)
def all_of(s):
    s.setblocking(False)
    got = []
    while True:
        try:
            data, control, flags, sender = s.recvmsg(100, 1000)
        except BlockingIOError: return got
        # A connection has its end, which is no message.
        if not data and s.type == socket.SOCK_SEQPACKET and len(got) > 50: return got
        got.append((data, sender[-1:] if sender else None))
def send(s, *messages):
    for m in messages: s.send(m)
def options(s): return [s.getsockopt(socket.SOL_SOCKET, n) for n in (29, 35, 42, 63, 64)]
"""


class EmptyMessages(SteppedTest):
    kind = "SOCK_DGRAM"

    def setUp(self):
        super().setUp()
        self.program_text = PROGRAM % self.kind

    def test_at_a_second_checkpoint(self):
        self.start()
        self.do("send(a, b'', b'', b'x', b'', b'y', b'')")
        for _ in range(3):
            self.assertEqual(self.checkpoint(), [])
        self.assertEqual(self.ask("options(b)"), "[0, 0, -1, 0, 0]")
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("[m for m, _ in all_of(b)]"), "[b'', b'', b'x', b'', b'y', b'']")

    def test_received_and_sent_between(self):
        """What was received is gone, what was sent since is there."""
        self.start()
        chance = random.Random(self.kind)
        expected = []
        for round_ in range(12):
            for _ in range(chance.randrange(5)):
                if len(expected) < 9:
                    message = chance.choice((b"", b"", b"x", b"yy"))
                    self.do(f"send(a, {message!r})")
                    expected.append(message)
            for _ in range(chance.randrange(3)):
                if expected:
                    self.assertEqual(self.ask("b.recv(10)"), repr(expected.pop(0)))
            if round_ % 3 == 2:
                self.come_back()
            else:
                self.checkpoint()
        self.assertTrue(expected)
        self.assertEqual(self.ask("[m for m, _ in all_of(b)]"), repr(expected))

    def test_who_sent_them(self):
        self.start()
        self.do("send(names[0], b'', b''); send(names[1], b'', b'z'); send(names[0], b'')")
        for _ in range(2):
            self.assertEqual(self.checkpoint(), [])
        self.come_back()
        self.assertEqual(self.ask("all_of(c)"), str([(b"", b"0"), (b"", b"0"), (b"", b"1"), (b"z", b"1"), (b"", b"0")]))

    def test_time_stamps_of_the_program(self):
        self.start()
        self.do("b.setsockopt(socket.SOL_SOCKET, 35, 1); c.setsockopt(socket.SOL_SOCKET, 29, 1)", "before = [options(s) for s in (b, c)]",
                "send(a, b'', b'x', b''); send(names[0], b'', b'x', b'')")
        self.assertEqual(self.checkpoint(), [])
        self.assertEqual(self.ask("[options(s) for s in (b, c)] == before"), "True")
        self.come_back()
        self.assertEqual(self.ask("[options(s) for s in (b, c)] == before"), "True")
        # Of a socket that stamps by microseconds nothing is remembered.
        self.assertEqual(self.ask("[m for m, _ in all_of(b)], [m for m, _ in all_of(c)][:2]"), "([b'', b'x', b''], [b'', b'x'])")

    def test_of_a_job_that_shares_them(self):
        self.start()
        # Ends with its parent.
        self.do("child = os.fork() or (libc.prctl(1, 9), signal.pause())")
        self.do("send(a, b'', b'', b'x', b'', b'y', b'')")
        for _ in range(3):
            self.assertEqual(self.checkpoint(), [])
        self.assertEqual(self.ask("b.recv(1)"), "b''")
        self.checkpoint()
        self.kill_program()
        again = subprocess.Popen([RESTART, "--json", self.images], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
        with again:
            again.stdin.write(b"[m for m, _ in all_of(b)]\n")
            again.stdin.close()
            self.assertEqual(again.stdout.readline(), b"[b'', b'x', b'', b'y', b'']\n")

    def test_after_ckpt_back(self):
        self.start()
        self.do("send(a, b'', b'', b'x', b'')")
        for _ in range(2):
            self.checkpoint()
        self.go_back()
        self.checkpoint()
        self.do("b.recv(1)", "send(a, b'', b'late')")
        self.go_back()
        self.checkpoint()
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("[m for m, _ in all_of(b)]"), "[b'', b'', b'x', b'']")


class InAConnection(EmptyMessages):
    kind = "SOCK_SEQPACKET"

    def test_with_the_other_end_gone(self):
        self.start()
        self.do("send(a, b'', b'x', b'')", "a.close()")
        for _ in range(2):
            self.assertEqual(self.checkpoint(), [])
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("[m for m, _ in all_of(b)][:5]"), "[b'', b'x', b'', b'', b'']")


if __name__ == "__main__":
    sys.exit(unittest.main())
