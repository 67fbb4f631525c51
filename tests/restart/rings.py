#!/usr/bin/env python3
"""Rings of io_uring: they come back with what the program has not taken yet, and with what it has not submitted yet; a
checkpoint waits for what is under way, and says what it cannot bring back."""

import os
import signal
import subprocess
import unittest

from stepped_program import BUILD, CKPT, Program, environment
from stepped_test import NOT_RESTARTABLE, SteppedTest, needs_root

SQPOLL, CLAMP, DISABLED, SINGLE, DEFER, NO_ARRAY = 1 << 1, 1 << 4, 1 << 6, 1 << 12, 1 << 13, 1 << 16
NOP, READ_FIXED, POLL, READ, WRITE, TIMEOUT, GIVE_BUFFERS = 0, 4, 6, 22, 23, 11, 31
LINK, SKIP = 1 << 2, 1 << 6


class Rings(SteppedTest):
    program_text = """
class Ring:
    def __init__(self, entries, flags=0, completions=0, calls=call):
        p = ctypes.create_string_buffer(struct.pack('6I', 0, completions, flags | (8 if completions else 0), 0, 50, 0), 120)
        self.calls, self.kept, self.fd = calls, [], calls(425, entries, p)
        if self.fd.__class__ is str or self.fd < 0: return
        self.requests, self.completions, self.flags = struct.unpack_from('3I', p)
        of, to = struct.unpack_from('7I', p, 40), struct.unpack_from('7I', p, 80)
        size = max(to[5] + self.completions * (32 if self.flags & 1 << 11 else 16), of[6] + 4 * self.requests)
        self.memory = libc.mmap(None, size, 3, 0x8001, self.fd, 0)
        self.entries = libc.mmap(None, self.requests * 64, 3, 0x8001, self.fd, 0x10000000)
        word = lambda at: ctypes.c_uint.from_address(self.memory + at)
        self.head, self.tail, self.state, self.dropped = word(of[0]), word(of[1]), word(of[4]), word(of[5])
        self.array = None if self.flags & 1 << 16 else (ctypes.c_uint * self.requests).from_address(self.memory + of[6])
        self.first, self.last, self.lost, self.list = word(to[0]), word(to[1]), word(to[4]), self.memory + to[5]
    def put(self, operation=0, fd=-1, where=0, size=0, offset=0, data=0, flags=0, how=0):
        i = self.tail.value & (self.requests - 1)
        at = where if isinstance(where, int) else ctypes.addressof(where)
        ctypes.memmove(self.entries + 64 * i, struct.pack('<BBHiQQIIQ24x', operation, flags, 0, fd, offset, at, size, how, data), 64)
        if self.array is not None: self.array[i] = i
        self.tail.value += 1
    def enter(self, submit=0, least=0, fd=None, flags=0):
        return self.calls(426, self.fd if fd is None else fd, submit, least, (1 if least else 0) | flags, 0, 0)
    def submit(self, *what, **more):
        self.put(*what, **more)
        return self.enter(1)
    def take(self, least=0):
        if least and self.last.value - self.first.value < least: self.enter(0, least)
        taken = []
        while self.first.value != self.last.value:
            taken.append(struct.unpack('<Qi', ctypes.string_at(self.list + 16 * (self.first.value & (self.completions - 1)), 12)))
            self.first.value += 1
        return taken
    def counters(self):
        return [x.value for x in (self.head, self.tail, self.first, self.last, self.dropped, self.lost)]
    def register(self, operation, argument, count): return self.calls(427, self.fd, operation, argument, count)
fd = os.open('/proc/self/exe', os.O_RDONLY)
buffer = ctypes.create_string_buffer(64)
"""

    def start(self, *how, **more):
        super().start(*how, **more)
        self.do("a = Ring(8)")
        if not self.ask("a.fd").isdigit():
            self.skipTest("no io_uring here: " + self.ask("a.fd"))

    def works(self, ring="a"):
        """More than once round."""
        self.assertEqual(self.ask("all(%s.submit(%d, fd, buffer, 7, data=n) == 1 and %s.take(1) == [(n, 7)] for n in range(40))" %
                                  (ring, READ, ring)), "True")

    def says_no(self, *words):
        code, said = self.now()
        self.assertEqual(code, NOT_RESTARTABLE, said)
        for word in words:
            self.assertIn(word, str(said))

    def test_what_waits(self):
        """Completions that nobody has taken, requests that are not submitted, of two rings; eagerly, lazily, in namespaces."""
        self.start()
        self.do("b = Ring(4, %d, 64)" % NO_ARRAY)
        for options in ([], ["--lazy"], ["--eager"], ["--namespaces", "always"]):
            self.works("a")
            self.works("b")
            self.do("[a.submit(%d, fd, buffer, 4 + n, data=100 + n) for n in range(9)]" % READ, "[b.submit(%d, fd, buffer, 3, data=n) for n in range(50)]" % READ,
                    "b.put(%d, fd, buffer, 11, data=77)" % READ, "b.put(data=78)", "before = a.counters(), b.counters()")
            self.assertEqual(self.come_back(*options), [])
            self.assertEqual(self.ask("(a.counters(), b.counters()) == before"), "True")
            self.assertEqual(self.ask("a.take() == [(100 + n, 4 + n) for n in range(9)], b.take() == [(n, 3) for n in range(50)]"), "(True, True)")
            self.assertEqual(self.ask("b.enter(2, 2), b.take()"), "(2, [(77, 11), (78, 0)])")
        self.works("a")
        self.works("b")

    def test_more_than_there_is_room_for(self):
        """Completions that the kernel holds back; a request that it has dropped."""
        self.start()
        self.do("a.put()", "a.array[a.head.value & 7] = 99", "a.enter(1)")
        self.works()
        self.do("[a.submit(%d, fd, buffer, 1 + n, data=n) for n in range(30)]" % READ, "before = a.counters()")
        self.assertEqual(self.ask("before[4]"), "1")
        for _ in range(2):
            self.assertEqual(self.come_back(), [])
            self.assertEqual(self.ask("a.counters() == before"), "True")
        self.assertEqual(self.ask("a.take() == [(n, n + 1) for n in range(16)]"), "True")
        self.assertEqual(self.ask("a.take(14) == [(n, n + 1) for n in range(16, 30)]"), "True")
        self.works()

    def test_what_is_under_way(self):
        self.start()
        self.do("r, w = os.pipe()", "a.submit(%d, r, buffer, 5, data=9)" % READ)
        self.says_no("io_uring", "1 of its requests are under way")
        self.do("os.write(w, b'words')")
        self.assertEqual(self.come_back(), [])
        self.assertEqual(self.ask("a.take(1), buffer.raw[:5]"), "([(9, 5)], b'words')")
        # The kernel lists no timeouts.
        self.do("late = struct.pack('qq', 3600, 0)", "late = ctypes.create_string_buffer(late)", "a.submit(%d, -1, late, 1)" % TIMEOUT)
        self.says_no("1 of its requests are under way")

    def test_what_ends_in_the_stop(self):
        self.start()
        self.do("soon = ctypes.create_string_buffer(struct.pack('qq', 0, 300000000))")
        self.assertEqual(self.ask("a.submit(%d, -1, soon, 1, data=5)" % TIMEOUT), "1")
        self.assertEqual(self.come_back(), [])
        self.assertEqual(self.ask("a.take(1)"), "[(5, -%d)]" % 62)
        self.works()

    def test_who_is_told(self):
        """An eventfd; an epoll; a second number; and whether a program that is executed has them."""
        self.start()
        self.do("e = os.eventfd(0, os.EFD_NONBLOCK)", "a.register(4, struct.pack('i', e), 1)", "other = os.dup(a.fd); os.set_inheritable(other, True)",
                "p = select.epoll()", "p.register(a.fd, select.EPOLLIN | select.EPOLLET)", "p.register(other, select.EPOLLIN)",
                "state = lambda: ([fcntl.fcntl(x, fcntl.F_GETFD) for x in (a.fd, other)], os.path.sameopenfile(a.fd, other))")
        self.works()
        self.do("os.eventfd_read(e)", "p.poll(0)")
        for _ in range(2):
            self.stays("state()")
            self.assertEqual(self.ask("p.poll(0), attempt(os.eventfd_read, e)"), "([], 'EAGAIN')")
            self.do("a.submit(data=3)")
            self.assertEqual(self.ask("sorted(p.poll(0)) == sorted([(a.fd, 1), (other, 1)]), os.eventfd_read(e), a.take()"), "(True, 1, [(3, 0)])")
        self.do("os.dup2(other, a.fd)", "os.close(other)")
        self.says_no("under a number that is not the ring's any more")
        self.do("p.close()")
        self.assertEqual(self.come_back(), [])
        self.works()
        self.do("os.dup2(os.eventfd(0), e)")
        self.says_no("the eventfd that it tells")

    def test_of_one_thread(self):
        """Only the thread that made it may use it; its number for the ring is its own; completions are posted when it asks."""
        self.start()
        self.do("import queue", "steps, answers = queue.Queue(), queue.Queue()",
                "def work():\\n    while True: answers.put(repr(eval(steps.get(), globals())))",
                "threading.Thread(target=work, daemon=True).start()", "def there(what):\\n    steps.put(what)\\n    return answers.get()",
                "there('globals().update(b=Ring(8, %d))')" % (SINGLE | DEFER), "number = struct.pack('IIQ', 0xffffffff, 0, b.fd)",
                "number = ctypes.create_string_buffer(number)", "r, w = os.pipe()")
        self.assertEqual(self.ask("there('b.register(20, number, 1)')"), "1")
        self.do("index = struct.unpack_from('I', number)[0]")
        self.assertEqual(self.ask("b.submit()"), "EEXIST")
        self.do("b.tail.value -= 1")
        for n in range(3):
            self.assertEqual(self.ask("there('b.submit(%d, r, buffer, 1, data=8)'), os.write(w, b'x')" % READ), "('1', 1)")
            self.assertEqual(self.come_back(*(["--eager"] if n else [])), [])
            self.assertEqual(self.ask("there('b.take(1)')"), "[(8, 1)]")
            self.assertEqual(self.ask("there('[b.put(data=6), b.enter(1, 1, fd=index, flags=1 << 4), b.take()]')"), "[None, 1, [(6, 0)]]")
            self.assertEqual(self.ask("b.submit()"), "EEXIST")
            self.do("b.tail.value -= 1")

    def test_registered_files(self):
        """A pipe's ends, a file, and places without one: changed since, by both operations that do so."""
        self.start()
        self.do("r, w = os.pipe()", "other = os.open('/dev/null', os.O_RDWR)", "array = lambda *x: ctypes.create_string_buffer(struct.pack('%di' % len(x), *x))",
                "change = lambda at, *x: (lambda a: a.register(14, struct.pack('IIQQII', at, 0, ctypes.addressof(keep[-1]), 0, len(x), 0), 32))(a) if not keep.append(array(*x)) else 0",
                "keep = []", "list = array(other, -1, r, -1, w)", "a.register(2, list, 5)", "one = array(fd)",
                "a.register(6, struct.pack('IIQ', 1, 0, ctypes.addressof(one)), 1)")
        self.assertEqual(self.ask("change(0, -1, -2)"), "2")
        for n in range(2):
            self.assertEqual(self.come_back(), [])
            self.assertEqual(self.ask("a.submit(%d, 1, buffer, 4, flags=1, data=5), a.take(1), buffer.raw[1:4]" % READ), "(1, [(5, 4)], b'ELF')")
            self.assertEqual(self.ask("a.submit(%d, 0, buffer, 4, flags=1), a.take(1)" % READ), "(1, [(0, -9)])")
            self.assertEqual(self.ask("a.submit(%d, 4, buffer, 4, flags=1), a.take(1), os.read(r, 9)[1:]" % WRITE), "(1, [(0, 4)], b'ELF')")
            self.assertEqual(self.ask("os.write(w, b'12'), a.submit(%d, 2, buffer, 4, flags=1), a.take(1), buffer.raw[:2]" % READ), "(2, 1, [(0, 2)], b'12')")
            self.do("buffer.raw = b'?ELF'")
        self.assertEqual(self.ask("a.register(3, 0, 0), a.register(3, 0, 0)"), "(0, 'ENXIO')")
        self.assertEqual(self.come_back(), [])
        self.works()

    def test_registered_buffers(self):
        """The kernel writes to them past the protection of pages: what it writes while a checkpoint copies memory is not in the image."""
        for mode in ("realtime", "fork"):
            with self.subTest(mode=mode):
                self.registered_buffers(mode)

    def registered_buffers(self, mode):
        self.start(CKPT_MODE=mode)
        # At the end of memory that takes a while to copy.
        self.do("memory = libc.mmap(None, 32 << 20, 3, 0x22, -1, 0)", "ctypes.memset(memory, 1, 32 << 20)", "where = memory + (31 << 20) + 100",
                "ff = os.open('ff', os.O_RDWR | os.O_CREAT); os.write(ff, bytes(8192))",
                "a.register(15, struct.pack('IIQQQ', 3, 1, 0, 0, 0), 32)", "v = ctypes.create_string_buffer(struct.pack('QQ', where, 8192))",
                "done, wrong = [0], []")
        self.assertEqual(self.ask("a.register(16, struct.pack('IIQQII', 0, 0, ctypes.addressof(v), 0, 1, 0), 32)"), "1")
        self.assertEqual(self.ask("a.submit(%d, ff, where, 8192), a.take(1)" % READ_FIXED), "(1, [(0, 8192)])")
        self.do("def work():\\n    while not wrong:\\n        if ctypes.string_at(where, 8192) != bytes([done[0]]) * 8192: wrong.append(done[0])\\n"
                "        n = done[0] + 1 & 255\\n        os.pwrite(ff, bytes([n]) * 8192, 0)\\n        a.submit(%d, ff, where, 8192)\\n"
                "        if a.take(1) != [(0, 8192)]: wrong.append('taken')\\n        done[0] = n; total[0] += 1" % READ_FIXED,
                "total = [0]", "threading.Thread(target=work, daemon=True).start()")
        for options in ([], ["--lazy"], ["--eager"]):
            self.assertEqual(self.come_back(*options), [])
            self.do("before = total[0]")
            self.assertEqual(self.ask("(list(iter(lambda: bool(wrong) or total[0] > before + 20, True)), wrong)[1]"), "[]")
        self.do("wrong.append('end')", "time.sleep(0)")

    def test_that_is_not_enabled_yet(self):
        self.start()
        self.do("b = Ring(4, %d)" % (DISABLED | SINGLE))
        self.assertEqual(self.come_back(), [])
        self.assertEqual(self.ask("b.enter(0), b.register(12, 0, 0), b.submit(data=2), b.take(1)"), "('EBADFD', 0, 1, [(2, 0)])")
        self.assertEqual(self.come_back(), [])
        self.works("b")

    def test_with_a_thread_of_the_kernel(self):
        self.start()
        self.do("b = Ring(8, %d)" % SQPOLL, "def submit(n):\\n    b.put(%d, fd, buffer, 5, data=n)\\n    return b.enter(1, flags=2)" % READ)
        for _ in range(2):
            self.assertEqual(self.ask("all(submit(n) == 1 and b.take(1) == [(n, 5)] for n in range(30))"), "True")
            self.do("submit(1)", "b.enter(0, 1)")
            self.assertEqual(self.come_back(), [])
            self.assertEqual(self.ask("b.take()"), "[(1, 5)]")

    @needs_root
    def test_as_another_user(self):
        import ctypes
        os.chmod(self.directory, 0o777)
        how = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        os.chown(self.directory, 65534, 65534)
        self.start(*how)
        self.works()
        self.do("[a.submit(data=n) for n in range(5)]")
        self.assertEqual(self.come_back(how=how), [])
        self.assertEqual(self.ask("a.take() == [(n, 0) for n in range(5)]"), "True")
        self.works()

    def test_what_cannot_come_back(self):
        self.start()
        self.do("b = Ring(8)", "page = libc.mmap(None, 4096, 3, 0x22, -1, 0)",
                "large = libc.mmap(None, 17 << 20, 3, 0x22, -1, 0)")
        for operation, argument, count, undo, word in (
                (2, "struct.pack('i', closed)", 1, "b.register(3, 0, 0)", "files that are registered"),
                (0, "struct.pack('QQ', large, 17 << 20)", 1, "b.register(1, 0, 0)", "16 MiB"),
                (22, "struct.pack('QIHH24x', page, 8, 1, 0)", 1, "b.register(23, struct.pack('QIHH24x', 0, 0, 1, 0), 1)", "buffers to choose from"),
                (19, "ctypes.create_string_buffer(struct.pack('II', 2, 2))", 2, None, "operation 19")):
            with self.subTest(word):
                self.do("closed = os.open('/dev/null', os.O_RDONLY)")
                if operation != 2:
                    self.do("os.close(closed)")
                self.assertEqual(self.ask("b.register(%d, %s, %d)" % (operation, argument, count)), "0")
                if operation == 2:
                    self.assertEqual(self.now()[0], 0)
                    self.do("os.close(closed)")
                self.says_no(word)
                if undo:
                    self.assertEqual(self.ask(undo), "0")
                    self.assertEqual(self.now()[0], 0)
        self.do("c = Ring(8)", "os.close(c.fd)", "[libc.munmap(ctypes.c_void_p(x), 4096) for x in (b.memory, b.entries)], os.close(b.fd)")
        self.says_no("its descriptor is closed")
        self.do("[libc.munmap(ctypes.c_void_p(x), 4096) for x in (c.memory, c.entries)]")
        self.assertEqual(self.now()[0], 0)
        self.do("b = Ring(8)", "b.submit(%d, 1, page, 64, 0, flags=%d)" % (GIVE_BUFFERS, SKIP))
        self.says_no("buffers to choose from")

    def test_made_past_the_library(self):
        self.start()
        self.do("own = ctypes.CDLL('libc.so.6', use_errno=True).syscall",
                "past = lambda number, *args: own(ctypes.c_long(number), *[ctypes.c_long(x) if isinstance(x, int) else x for x in args])",
                "b = Ring(8, calls=past)")
        self.says_no("past libc and liburing")
        code, verdict = self.verify_restartable()
        self.assertEqual((code, verdict["restartable"]), (NOT_RESTARTABLE, False))

    def test_going_back_in_place_is_refused(self):
        self.start()
        self.checkpoint()
        done = subprocess.run([CKPT, "back", str(self.pid)], capture_output=True, timeout=60, env=environment())
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertIn(b"io_uring", done.stderr)
        self.works()

    def test_a_child_has_the_ring_of_its_parent(self):
        self.start()
        self.do("child = os.fork() or signal.pause()")
        self.addCleanup(os.kill, int(self.ask("child")), signal.SIGKILL)
        self.says_no("its parent's")
        self.works()

    def test_a_child_that_makes_its_own(self):
        program = """
child = os.fork()
if child == 0:
    a = Ring(8)
    [a.submit(%d, fd, buffer, 1 + n, data=n) for n in range(3)]
    open('up', 'w').close()
    while not os.path.exists('go'): time.sleep(0.001)
    os._exit(not (a.take(3) == [(0, 1), (1, 2), (2, 3)] and a.submit(%d, fd, buffer, 5) == 1 and a.take(1) == [(0, 5)]))
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""" % (READ, READ)
        self.assertEqual(self.comes_back_as_job(program), (0, ""))

    def test_threads_that_submit_without_rest(self):
        for mode in ("realtime", "fork"):
            with self.subTest(mode=mode):
                self.submit_without_rest(mode)

    def submit_without_rest(self, mode):
        self.start(CKPT_MODE=mode)
        self.do("data = os.urandom(1 << 20); open('data', 'wb').write(data)", "file = os.open('data', os.O_RDWR); wrong = []; rounds = [0] * 3",
                "def work(k):\\n    c = Ring(32, [0, %d, %d][k]); got = [ctypes.create_string_buffer(4096) for _ in range(32)]\\n" % (SINGLE | DEFER, SQPOLL) +
                "    while not wrong:\\n        at = [os.urandom(1)[0] * 4096 for _ in got]\\n"
                "        for n, b in enumerate(got):\\n            c.put(%d, file, b, 4096, at[n], n)\\n" % READ +
                "        if c.enter(32, 0, flags=2 if k == 2 else 0) != 32: wrong.append('submit')\\n        taken = []\\n"
                "        while len(taken) < 32: taken += c.take(1)\\n"
                "        if sorted(taken) != [(n, 4096) for n in range(32)]: wrong.append(taken)\\n"
                "        if [b.raw for b in got] != [data[x:x + 4096] for x in at]: wrong.append('bytes')\\n        rounds[k] += 1",
                "[threading.Thread(target=work, args=(k,), daemon=True).start() for k in range(3)]")
        for _ in range(3):
            self.assertEqual(self.come_back(), [])
            self.do("before = list(rounds)")
            self.assertEqual(self.ask("(list(iter(lambda: bool(wrong) or min(y - z for y, z in zip(rounds, before)) > 2, True)), wrong)[1]"), "[]")


class Liburing(SteppedTest):
    """A program that uses liburing, which makes its system calls itself."""

    def test_it_goes_on(self):
        program = [CKPT, "run", "--dir", self.images, "--", os.path.join(BUILD, "tests", "restart", "liburing_program")]
        for kind in ("plain", "thread", "poll"):
            with self.subTest(kind):
                self.program = Program([*program, kind])
                self.addCleanup(self.program.child.kill)
                up = self.program.child.stdout.readline()
                if up.startswith(b"no rings"):
                    self.skipTest(up.decode())
                self.pid = self.program.child.pid
                for n in range(3):
                    self.assertEqual(self.ask("read"), "read 500 times")
                    self.assertEqual(self.ask("leave"), "left 5")
                    self.assertEqual(self.come_back(), [])
                    self.assertEqual(self.ask("take"), "took 5: 0 1 2 3 4")
                if kind == "plain":  # any thread may wait
                    self.assertEqual(self.ask("wait"), "waits")
                    self.assertEqual(self.come_back(), [])
                    self.checkpoint()
                    self.assertEqual(self.ask("wake"), "woke: 0")
                self.end()


if __name__ == "__main__":
    unittest.main()
