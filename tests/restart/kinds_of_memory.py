#!/usr/bin/env python3
"""Memory of seldom kinds: each is of its kind after a restart."""

import os
import subprocess
import unittest

from stepped_program import CKPT, environment
from stepped_test import SteppedTest

MMAP, MUNMAP, SECCOMP = 9, 11, 317  # system calls
SMAPS = r"""
def flags_at(at):
    inside = False
    for line in open('/proc/self/smaps'):
        first = line.split()[0]
        if '-' in first and not first.endswith(':'):
            start, end = (int(n, 16) for n in first.split('-'))
            inside = start <= at < end
        if inside and first == 'VmFlags:':
            return line.split()[1:]
def fill(at, text):
    ctypes.memmove(at, text, len(text))
def held(at, n=6):
    return ctypes.string_at(at, n)
"""


class Droppable(SteppedTest):
    program_text = SMAPS
    PAGES = 512  # so much that ckpt-restart puts ordinary memory there itself

    def begin(self, **settings):
        self.start(**settings)
        # MAP_DROPPABLE | MAP_ANONYMOUS
        self.do("m = libc.mmap(None, %d * 4096, 3, 0x28, -1, 0)" % self.PAGES)
        if self.ask("m in (None, 2**64 - 1)") == "True":
            self.skipTest("no droppable memory here")
        self.do("k = libc.mmap(None, 4096, 3, 0x22, -1, 0); fill(k, b'stays!')",
                "for i in range(%d): fill(m + i * 4096, b'filled')" % self.PAGES, "libc.mprotect(ctypes.c_void_p(m + 4096), 4096, 1)")

    def is_as_it_was(self, contents):
        for page in (0, 1, 2, self.PAGES - 1):
            self.assertIn("'dp'", self.ask("flags_at(m + %d * 4096)" % page))
        self.assertEqual(self.ask("held(m), held(m + 4096), held(m + %d * 4096)" % (self.PAGES - 1)), str((contents,) * 3))
        self.assertEqual(self.ask("'wr' in flags_at(m), 'wr' in flags_at(m + 4096), 'dp' in flags_at(k), held(k)"), "(True, False, False, b'stays!')")

    def test_restarted(self):
        """With zeros, as where the kernel has dropped it."""
        self.begin()
        for options in ([], ["--lazy"], ["--eager"]):
            self.assertEqual(self.come_back(*options), [])
            self.assertEqual(self.notes, [])
            self.is_as_it_was(bytes(6))
            self.do("fill(m, b'filled')", "fill(m + 4096 * %d, b'filled')" % (self.PAGES - 1))

    def test_increments(self):
        self.begin(CKPT_INCREMENTS="2")
        self.checkpoint()
        self.do("fill(m, b'anew!!')")
        self.assertEqual(self.come_back(), [])
        self.is_as_it_was(bytes(6))

    def test_other_memory_by_then(self):
        """Mapped there since the flags of mappings were read, by calls that nobody sees: what it holds is not left out."""
        self.begin(CKPT_TEST_POINT="prepare.ready=wait")
        # Its arguments moved to where the kernel has them: syscall(2) is libc's.
        code = "4889f84889f74889d64889ca4d89c24d89c84c8b4c24080f05c3"
        self.do("c = libc.mmap(None, 4096, 7, 0x22, -1, 0); fill(c, bytes.fromhex('%s')); bare = ctypes.CFUNCTYPE(*[ctypes.c_long] * 8)(c)" % code)
        waits = self.path(f"{self.pid:010}.waits")
        with subprocess.Popen([CKPT, "now", str(self.pid)], stdout=subprocess.DEVNULL, env=environment()) as asker:
            while not os.path.exists(waits):
                self.assertIsNone(asker.poll())
            self.do("assert bare(%d, m, %d * 4096, 0, 0, 0, 0) == 0" % (MUNMAP, self.PAGES), "assert bare(%d, m, %d * 4096, 3, 0x32, -1, 0) == m" % (MMAP, self.PAGES),
                    "for i in range(%d): fill(m + i * 4096, b'other!')" % self.PAGES)
            os.unlink(waits)
            self.assertEqual(asker.wait(60), 0)
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("[held(m + i * 4096) for i in (0, 1, %d)], 'dp' in flags_at(m), 'wf' in flags_at(m)" % (self.PAGES - 1)), str(([b"other!"] * 3, False, False)))

    def test_under_a_filter(self):
        """Ordinary memory, as a note says: nothing is asked."""
        self.begin()
        self.do("class Program(ctypes.Structure): _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_char_p)]", "libc.prctl(38, 1, 0, 0, 0)",
                "assert call(%d, 1, 1, ctypes.byref(Program(1, struct.pack('HBBI', 6, 0, 0, 0x7fff0000)))) == 0" % SECCOMP)  # of all threads, allows all
        self.assertIn("droppable memory (MAP_DROPPABLE)", " ".join(self.come_back()))
        self.assertEqual(self.ask("held(m), 'dp' in flags_at(m)"), "(b'filled', False)")

    def test_gone_back(self):
        """What was unmapped since is droppable again."""
        self.begin()
        self.checkpoint()
        self.do("libc.munmap(ctypes.c_void_p(m), 4096 * %d)" % self.PAGES)
        self.do("assert libc.mmap(m, 4096 * %d, 3, 0x32, -1, 0) == m" % self.PAGES)
        self.go_back()
        self.assertIn("'dp'", self.ask("flags_at(m)"))
        self.assertEqual(self.ask("held(k)"), "b'stays!'")


class ViewsOfMemfds(SteppedTest):
    """Private mappings: pages that were written through them are their own, the others the memfd's."""
    program_text = SMAPS

    def begin(self, *more, **settings):
        self.start(**settings)
        self.do("f = os.memfd_create('viewed', os.MFD_ALLOW_SEALING)",
                "[os.pwrite(f, b'memfd %d!' % i, i * 4096) for i in range(6)]", "os.truncate(f, 8 * 4096)",
                "v = libc.mmap(None, 8 * 4096, 3, 2, f, 0)", "fill(v + 4096, b'own page')", "ctypes.memset(v + 2 * 4096, 0, 4096)", "held(v + 3 * 4096)", *more)
        self.was = self.shown()
        self.assertEqual(self.was, "[b'memfd 0!', b'own page', b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00', b'memfd 3!', b'memfd 4!', b'memfd 5!', "
                                   "b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00', b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00']")

    def shown(self):
        return self.ask("[held(v + i * 4096, 8) for i in range(8)]")

    def follows(self, write="os.pwrite(f, %s, %d * 4096)"):
        """What is written to the memfd is seen but in the view's own pages."""
        self.assertEqual(self.shown(), self.was)
        for page in range(8):
            self.do(write % ("b'anew  %d!'" % page, page))
        self.assertEqual(self.shown(), "[b'anew  0!', b'own page', b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00', " +
                         ", ".join("b'anew  %d!'" % i for i in range(3, 8)) + "]")
        self.do("fill(v + 5 * 4096, b'own page')")
        self.assertEqual(self.ask("os.pread(f, 8, 5 * 4096)" if "pwrite" in write else "held(s + 5 * 4096, 8)"), "b'anew  5!'")

    def test_restarted(self):
        for mode in ("realtime", "standing", "concurrent", "sequential", "fork"):
            with self.subTest(mode):
                self.images = self.path(mode)
                self.begin(CKPT_MODE=mode)
                self.assertEqual(self.come_back(), [])
                self.was = self.shown()
                self.assertEqual(self.come_back(), [])
                self.follows()
                self.kill_program()

    def test_back_ends(self):
        for faults in ("in-thread", "mprotect"):
            with self.subTest(faults):
                self.images = self.path(faults)
                self.begin(CKPT_FAULTS=faults)
                self.assertEqual(self.come_back(), [])
                self.follows()
                self.kill_program()

    def test_increments(self):
        self.begin(CKPT_INCREMENTS="2")
        self.checkpoint()
        self.do("fill(v + 4 * 4096, b'memfd 4?')")
        self.checkpoint()
        self.assertEqual(self.come_back("--lazy"), [])
        self.assertEqual(self.ask("held(v + 4 * 4096, 8)"), "b'memfd 4?'")
        self.do("os.pwrite(f, b'anew', 4 * 4096); os.pwrite(f, b'anew', 5 * 4096)")
        self.assertEqual(self.ask("held(v + 4 * 4096, 8), held(v + 5 * 4096, 4), held(v + 4096, 8)"), "(b'memfd 4?', b'anew', b'own page')")

    def test_gone_back(self):
        self.begin()
        self.checkpoint()
        self.do("fill(v, b'since'); fill(v + 4096, b'since'); os.pwrite(f, b'since', 3 * 4096); os.pwrite(f, b'since', 4096)")
        self.go_back()
        self.follows()

    def test_protected_in_part(self):
        """And with a part that shows the memfd from elsewhere."""
        self.begin()
        self.do("libc.mprotect(ctypes.c_void_p(v + 4096), 2 * 4096, 1)", "libc.mprotect(ctypes.c_void_p(v + 6 * 4096), 4096, 0)",
                "w = libc.mmap(None, 2 * 4096, 1, 2, f, 4 * 4096)")
        self.was = self.ask("[held(v + i * 4096, 8) for i in range(6)]")
        self.assertEqual(self.come_back(), [])
        self.assertEqual(self.ask("[held(v + i * 4096, 8) for i in range(6)]"), self.was)
        self.do("os.pwrite(f, b'anew', 4096); os.pwrite(f, b'anew', 5 * 4096); libc.mprotect(ctypes.c_void_p(v + 6 * 4096), 4096, 3)")
        self.assertEqual(self.ask("held(v + 4096, 8), held(v + 5 * 4096, 4), held(w + 4096, 4), 'wr' in flags_at(v + 4096)"), "(b'own page', b'anew', b'anew', False)")

    def test_sealed(self):
        """F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE: the view may be written to all the same."""
        self.begin("fcntl.fcntl(f, 1033, 2 | 4 | 8)")
        self.assertEqual(self.come_back(), [])
        self.assertEqual(self.shown(), self.was)
        self.do("fill(v + 3 * 4096, b'own page')")
        self.assertEqual(self.ask("fcntl.fcntl(f, 1034), attempt(os.write, f, b'x'), held(v + 3 * 4096, 8), os.pread(f, 8, 3 * 4096)"), "(14, 'EPERM', b'own page', b'memfd 3!')")

    def test_code(self):
        """A function in the memfd, mapped to be run."""
        self.start()
        self.do("f = os.memfd_create('code'); os.truncate(f, 8192)", "put = lambda at, n: os.pwrite(f, bytes([0xb8, n, 0, 0, 0, 0xc3]), at)", "put(0, 1); put(4096, 2)",
                "x = libc.mmap(None, 8192, 5, 2, f, 0)", "run = [ctypes.CFUNCTYPE(ctypes.c_int)(x + at) for at in (0, 4096)]")
        self.assertEqual(self.come_back(), [])
        self.assertEqual(self.ask("[r() for r in run]"), "[1, 2]")
        self.do("put(4096, 3)")
        self.assertEqual(self.ask("[r() for r in run], 'wr' in flags_at(x), 'ex' in flags_at(x)"), "([1, 3], False, True)")

    def test_without_a_descriptor(self):
        """A shared mapping shows the same."""
        self.begin("s = libc.mmap(None, 8 * 4096, 3, 1, f, 0); os.close(f)")
        self.assertEqual(self.come_back(), [])
        self.follows("(lambda text, page: fill(s + page * 4096, text))(%s, %d)")

    def test_unmapped_since(self):
        """Nobody maps it again in place: refused, and nothing is changed."""
        self.begin()
        self.checkpoint()
        self.do("libc.munmap(ctypes.c_void_p(v), 8 * 4096)", "os.pwrite(f, b'since', 0)")
        done = subprocess.run([CKPT, "back", "--trust", str(self.pid)], capture_output=True, text=True, timeout=60, env=environment(), check=False)
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertIn("a private mapping of a memfd", done.stderr)
        self.assertEqual(self.ask("os.pread(f, 5, 0)"), "b'since'")

    def test_of_nobody_else(self):
        """Ordinary memory: nobody in the program can write to the memfd."""
        self.begin("os.close(f)")
        self.assertIn("a memfd privately", " ".join(self.come_back()))
        self.assertEqual(self.shown(), self.was)
        self.do("fill(v + 3 * 4096, b'own page')")
        self.assertEqual(self.ask("held(v + 3 * 4096, 8)"), "b'own page'")

    def test_of_one_process(self):
        """Of a job: the others do not have the memfd. What nobody maps is in it as well."""
        code, said = self.comes_back_as_job("""
def rest(name):
    while not os.path.exists(name): time.sleep(0.001)
child = os.fork()
if child == 0:
    open('child', 'w').close()
    rest('go')
    os._exit(7)
rest('child')
f = os.memfd_create('viewed', os.MFD_ALLOW_SEALING)
os.fchmod(f, 0o640)
[os.pwrite(f, b'memfd %d!' % i, i * 4096) for i in range(6)]
v = libc.mmap(None, 3 * 4096, 3, 2, f, 0)
fill(v + 4096, b'own page')
open('up', 'w').close()
rest('go')
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert [held(v + i * 4096, 8) for i in range(3)] == [b'memfd 0!', b'own page', b'memfd 2!']
assert [os.pread(f, 8, i * 4096) for i in range(6)] == [b'memfd %d!' % i for i in range(6)]
os.pwrite(f, b'anew', 0)
assert held(v, 8) == b'anewd 0!' and os.fstat(f).st_mode & 0o777 == 0o640 and os.fstat(f).st_size == 5 * 4096 + 8
sys.exit(5)
""")
        self.assertEqual(code, 5, said)

    def test_two_processes(self):
        """A child writes to the memfd that its parent views."""
        code, said = self.comes_back_as_job("""
f = os.memfd_create('viewed')
[os.pwrite(f, b'memfd %d!' % i, i * 4096) for i in range(3)]
v = libc.mmap(None, 3 * 4096, 3, 2, f, 0)
fill(v + 4096, b'of both!')
def rest(name):
    while not os.path.exists(name): time.sleep(0.001)
child = os.fork()
if child == 0:
    fill(v + 2 * 4096, b'of child')
    open('child', 'w').close()
    rest('go')
    assert [held(v + i * 4096, 8) for i in range(3)] == [b'memfd 0!', b'of both!', b'of child']
    [os.pwrite(f, b'anew', i * 4096) for i in range(3)]
    assert [held(v + i * 4096, 8) for i in range(3)] == [b'anewd 0!', b'of both!', b'of child']
    os._exit(7)
rest('child')
open('up', 'w').close()
rest('go')
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert [held(v + i * 4096, 8) for i in range(3)] == [b'anewd 0!', b'of both!', b'anewd 2!']
sys.exit(5)
""")
        self.assertEqual(code, 5, said)


if __name__ == "__main__":
    unittest.main()
