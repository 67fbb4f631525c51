#!/usr/bin/env python3
"""Programs that are near what the kernel allows them, or that may make nothing more: mappings, descriptors, threads."""

import os
import struct
import sys
import unittest

from stepped_test import SteppedTest, needs_root

MOST_MAPPINGS = int(open("/proc/sys/vm/max_map_count", encoding="ascii").read())


class Mappings(SteppedTest):
    program_text = """
def scatter(n, value=None):
    # Every other page of another protection: mappings that the kernel cannot join.
    p = libc.mmap(None, n * 4096, 3, 0x22, -1, 0)
    if value is not None: ctypes.memset(p, value, n * 4096)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return p, sum(libc.mprotect(p + i * 4096, 4096, 1) for i in range(0, n, 2))
def mappings():
    return sum(1 for line in open('/proc/self/maps'))
"""

    @unittest.skipIf(MOST_MAPPINGS < 60000, "vm.max_map_count is less than a test of 50,000 needs")
    def test_fifty_thousand(self):
        for faults in ("mprotect", "in-thread", "handler"):
            with self.subTest(faults=faults):
                self.images = self.path(faults)
                self.start(CKPT_FAULTS=faults)
                self.do("p, failed = scatter(50000, 7)")
                self.assertEqual(self.ask("failed, mappings() >= 50000"), "(0, True)")
                code, said = self.now()
                self.assertEqual((code, said["mode"]), (0, "realtime"), said)
                self.kill_program()
                self.restart("--eager")
                self.assertEqual(self.ask("mappings() >= 50000, ctypes.string_at(p, 50000 * 4096) == b'\\x07' * 50000 * 4096"), "(True, True)")
                self.end()

    @unittest.skipIf(not 60000 <= MOST_MAPPINGS <= 100000, "vm.max_map_count is not about its default")
    def test_as_many_as_there_may_be(self):
        self.start()
        # Of which a lazy restart watches parts: each cuts the mapping.
        self.do("s = libc.mmap(None, 1900 << 22, 3, 0x4022, -1, 0); call(28, s, 1900 << 22, 15)", "for i in range(1900): ctypes.memset(s + (i << 22), 5, 1)")
        # So that there is no room for ours: whoever maps or cuts one more is refused.
        self.do("p, failed = scatter(%d - mappings() - 16)" % MOST_MAPPINGS, "q = libc.mmap(None, 64 * 4096, 3, 0x22, -1, 0); n = 0",
                "while n < 64 and not libc.mprotect(q + n * 4096, 4096, 1): n += 2")
        code, said = self.now()
        self.assertEqual(code, 69, said)
        self.assertIn("vm.max_map_count", said)
        # The program goes on, and can be checkpointed when it has less.
        self.do("call(11, p, 1000 * 4096)")
        self.checkpoint()
        self.kill_program()
        self.restart("--lazy")
        self.assertEqual(self.ask("{ctypes.string_at(s + (i << 22), 1) for i in range(1900)}, %d - mappings() < 2000" % MOST_MAPPINGS), "({b'\\x05'}, True)")


class Descriptors(SteppedTest):
    # CKPT_LONG=1: 13,000 of 20,000.
    LIMIT, EACH, FILES = (20000, 3000, 1000) if os.environ.get("CKPT_LONG") == "1" else (3000, 600, 300)
    # Not even root may have more.
    LIMITED = ("prlimit", f"--nofile={LIMIT}:{LIMIT}", "setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource")

    def test_restarted_under_the_limit_of_the_program(self):
        self.start(*self.LIMITED)
        self.do("pipes = [os.pipe() for _ in range(%d)]; pairs = [socket.socketpair() for _ in range(%d)]; files = [open('/dev/null') for _ in range(%d)]" % (self.EACH, self.EACH, self.FILES),
                "for i, (r, w) in enumerate(pipes): os.write(w, b'%d' % i)", "for i, (a, b) in enumerate(pairs): a.send(b'%d' % i); b.send(b'%d' % -i)")
        self.checkpoint()
        self.kill_program()
        self.restart(how=self.LIMITED)
        self.assertEqual(self.ask("[i for i, (r, w) in enumerate(pipes) if os.read(r, 9) != b'%d' % i]"), "[]")
        self.assertEqual(self.ask("[i for i, (a, b) in enumerate(pairs) if b.recv(9) != b'%d' % i or a.recv(9) != b'%d' % -i]"), "[]")
        # Each leads where it did, and none is left over.
        self.do("for r, w in pipes: os.write(w, b'again')")
        self.assertEqual(self.ask("{os.read(r, 9) for r, w in pipes}"), "{b'again'}")
        self.do("for r, w in pipes: os.close(w)")
        self.assertEqual(self.ask("{os.read(r, 9) for r, w in pipes}, len(os.listdir('/proc/self/fd')) - 1 == %d" % (3 + 3 * self.EACH + self.FILES)), "({b''}, True)")


@needs_root
class Deadline(SteppedTest):
    """A thread under SCHED_DEADLINE may make no other, but where that one is not to have the deadline as well: the agent does not."""
    SET, GET = 314, 315  # sched_setattr, sched_getattr
    # 20 ms of each 100. In the struct: flags, which stay what they are.
    ATTRIBUTES = struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 20_000_000, 100_000_000, 100_000_000)

    def test_each_mode(self):
        for mode in "realtime", "standing", "sequential", "fork":
            with self.subTest(mode):
                self.start("env", f"CKPT_MODE={mode}")
                if self.ask(f"call({self.SET}, 0, {self.ATTRIBUTES}, 0)") != "0":
                    self.skipTest("no SCHED_DEADLINE here")
                self.do("now = ctypes.create_string_buffer(48)")
                for _ in range(2):
                    self.checkpoint()
                    self.check()
                    self.kill_program()
                    self.restart()
                    self.check()
                self.kill_program()

    def check(self):
        self.assertEqual(self.ask(f"call({self.GET}, 0, now, 48, 0), now.raw == {self.ATTRIBUTES}"), "(0, True)")


if __name__ == "__main__":
    sys.exit(unittest.main())
