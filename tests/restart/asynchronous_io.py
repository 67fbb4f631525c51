#!/usr/bin/env python3
"""Contexts of asynchronous I/O (io_setup, as libaio uses it): they come back with the events that nobody has taken, and a
checkpoint waits for requests that are under way."""

import os
import signal
import subprocess
import unittest

from stepped_program import CKPT, environment
from stepped_test import NOT_RESTARTABLE, SteppedTest

PREAD, PWRITE, POLL = 0, 1, 5


class AsynchronousIo(SteppedTest):
    program_text = """
class Context:
    def __init__(self, requests, calls=call):
        self.id, self.calls, self.kept = ctypes.c_ulong(0), calls, []
        self.made = calls(206, requests, ctypes.byref(self.id))
    def ring(self):
        return struct.unpack('IIII', ctypes.string_at(self.id.value, 16))[1:]  # length, head, tail
    def submit(self, operation, fd, buffer, size=0, offset=0, data=0, told=None):
        where = buffer if isinstance(buffer, int) else ctypes.addressof(buffer)
        request = ctypes.create_string_buffer(struct.pack('<QIIHhIQQqQII', data, 0, 0, operation, 0, fd, where, size, offset, 0,
                                                          told is not None, told or 0), 64)
        self.kept.append((request, buffer))
        return self.calls(209, self.id.value, 1, ctypes.byref(ctypes.c_void_p(ctypes.addressof(request))))
    def take(self, least, most=None):
        events = ctypes.create_string_buffer(32 * (most or least))
        n = self.calls(208, self.id.value, least, most or least, events, 0)
        return n if isinstance(n, str) else [(data, result) for data, _, result, _ in struct.iter_unpack('<QQqq', events.raw[:32 * n])]
    def fill(self):
        # How many requests there is room for.
        n = 0
        while self.submit(0, fd, buffer, 1) == 1: n += 1
        return n
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the kernel counts what is free for each processor
fd = os.open('/proc/self/exe', os.O_RDONLY)
buffer = ctypes.create_string_buffer(64)
"""

    def start(self, *how, **more):
        super().start(*how, **more)
        self.do("a = Context(8)")
        if self.ask("a.made") != "0":
            self.skipTest("no asynchronous I/O here: " + self.ask("a.made"))

    def test_events_that_wait(self):
        self.start()
        self.do("[a.submit(0, fd, buffer, 4, data=n) and a.take(1) for n in range(100)]",
                "[a.submit(0, fd, buffer, 4 + n, data=n) for n in range(60)]", "before = a.ring()")
        length, head, tail = eval(self.ask("before"))
        self.assertGreater(head, tail, "the events do not go round the end of the ring of %d" % length)
        for waits in (60, 59):
            self.assertEqual(self.come_back(), [])
            self.assertEqual(self.ask("a.ring() == before"), "True")
            self.assertEqual(self.ask("a.take(1)"), "[(%d, %d)]" % (60 - waits, 64 - waits))
            self.do("before = a.ring()")
        self.assertEqual(self.ask("a.take(58) == [(n, 4 + n) for n in range(2, 60)], a.take(0, 1)"), "(True, [])")
        # And on it goes, round the ring and more.
        self.assertEqual(self.ask("sum(a.submit(0, fd, buffer, 7) == 1 and a.take(1) == [(0, 7)] for _ in range(%d))" % (2 * length)),
                         str(2 * length))

    def test_as_much_room_as_before(self):
        self.start()
        self.do("b = Context(100)", "full = b.fill()", "b.take(full)", "[b.submit(0, fd, buffer, 1) for _ in range(30)]")
        self.assertEqual(self.come_back(), [])
        self.assertEqual(self.ask("b.fill() - (full - 30)"), "0")
        self.assertEqual(self.ask("len(b.take(full)), b.submit(0, fd, buffer, 1)"), "(%s, 1)" % self.ask("full"))
        self.assertEqual(self.come_back(), [])
        self.assertEqual(self.ask("b.take(1), call(207, b.id.value), call(207, b.id.value)"), "([(0, 1)], 0, 'EINVAL')")

    def test_an_eventfd_is_told(self):
        self.start()
        self.do("e = os.eventfd(0, os.EFD_NONBLOCK)", "[a.submit(0, fd, buffer, 1, told=e) for _ in range(3)]")
        self.assertEqual(self.come_back(), [])
        self.assertEqual(self.ask("os.eventfd_read(e), len(a.take(3)), attempt(os.eventfd_read, e)"), "(3, 3, 'EAGAIN')")
        self.assertEqual(self.ask("a.submit(0, fd, buffer, 1, told=e), os.eventfd_read(e)"), "(1, 1)")

    def test_a_request_that_does_not_end(self):
        self.start()
        self.do("r, w = os.pipe()", "a.submit(%d, r, select.POLLIN)" % POLL)
        code, said = self.now()
        self.assertEqual(code, NOT_RESTARTABLE, said)
        self.assertIn("asynchronous I/O", str(said))
        self.do("os.write(w, b'x')")
        self.assertEqual(self.come_back(), [])
        self.assertEqual(self.ask("a.take(1)[0][1] & select.POLLIN"), "1")

    def test_a_request_that_ends_in_the_stop(self):
        """The checkpoint waits for it."""
        self.start()
        self.do("t = call(283, 1, 0)", "call(286, t, 0, struct.pack('qqqq', 0, 0, 0, 400000000), 0)")
        self.assertEqual(self.ask("a.submit(%d, t, select.POLLIN)" % POLL), "1")
        self.assertEqual(self.come_back(), [])
        self.assertEqual(self.ask("a.take(1)[0][1] & select.POLLIN"), "1")

    def test_made_past_the_library(self):
        self.start()
        self.do("own = ctypes.CDLL('libc.so.6', use_errno=True).syscall",
                "past = lambda number, *args: own(ctypes.c_long(number), *[ctypes.c_long(x) if isinstance(x, int) else x for x in args])",
                "b = Context(8, past)")
        self.assertEqual(self.ask("b.made"), "0")
        code, said = self.now()
        self.assertEqual(code, NOT_RESTARTABLE, said)
        self.assertEqual(self.ask("call(207, b.id.value)"), "0")
        self.assertEqual(self.come_back(), [])

    def test_going_back_in_place_is_refused(self):
        self.start()
        self.checkpoint()
        done = subprocess.run([CKPT, "back", str(self.pid)], capture_output=True, timeout=60, env=environment())
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertIn(b"asynchronous I/O", done.stderr)
        self.assertEqual(self.ask("a.submit(0, fd, buffer, 1), a.take(1)"), "(1, [(0, 1)])")

    def test_a_child_has_the_memory_alone(self):
        self.start()
        self.do("a.submit(0, fd, buffer, 1)", "child = os.fork() or signal.pause()")
        parent, self.pid = self.pid, int(self.ask("child"))
        self.addCleanup(os.kill, self.pid, signal.SIGKILL)
        self.checkpoint("--only")
        self.pid = parent
        self.assertEqual(self.ask("a.take(1)"), "[(0, 1)]")

    def test_a_child_that_makes_its_own(self):
        """Known to be a child only when its first checkpoint is taken."""
        program = """
child = os.fork()
if child == 0:
    a = Context(8)
    [a.submit(0, fd, buffer, 1 + n, data=n) for n in range(3)]
    open('up', 'w').close()
    while not os.path.exists('go'): time.sleep(0.001)
    os._exit(not (a.take(3) == [(0, 1), (1, 2), (2, 3)] and a.submit(0, fd, buffer, 5) == 1 and a.take(1) == [(0, 5)]))
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
        self.assertEqual(self.comes_back_as_job(program), (0, ""))

    def test_threads_that_submit_without_rest(self):
        for mode in ("realtime", "fork"):
            with self.subTest(mode=mode):
                self.submit_without_rest(mode)

    def submit_without_rest(self, mode):
        self.start(CKPT_MODE=mode)
        self.do("os.sched_setaffinity(0, range(os.cpu_count()))", "data = os.urandom(1 << 20); open('data', 'wb').write(data)",
                "file = os.open('data', os.O_RDWR); wrong = []; rounds = [0] * 3",
                "def work(k):\\n    c = Context(32); got = [ctypes.create_string_buffer(4096) for _ in range(32)]\\n"
                "    while not wrong:\\n        c.kept.clear()\\n        at = [os.urandom(1)[0] * 4096 for _ in got]\\n"
                "        for n, b in enumerate(got):\\n            if c.submit(0, file, b, 4096, at[n], n) != 1: wrong.append('submit')\\n"
                "        if sorted(c.take(32)) != [(n, 4096) for n in range(32)]: wrong.append('take')\\n"
                "        if [b.raw for b in got] != [data[x:x + 4096] for x in at]: wrong.append('bytes')\\n        rounds[k] += 1",
                "[threading.Thread(target=work, args=(k,), daemon=True).start() for k in range(3)]")
        for _ in range(3):
            self.assertEqual(self.come_back(), [])
            self.do("before = list(rounds)")
            self.assertEqual(self.ask("(list(iter(lambda: bool(wrong) or min(y - z for y, z in zip(rounds, before)) > 2, True)), wrong)[1]"), "[]")


if __name__ == "__main__":
    unittest.main()
