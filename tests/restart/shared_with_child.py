#!/usr/bin/env python3
"""Pages that a program shares with a child, copy-on-write, stay shared when they are saved: a checkpoint makes the memory of a
tree of processes no larger."""

import os
import shutil
import signal
import subprocess
import tempfile
import unittest

from stepped_program import CKPT, Program

MIB = 32
# Each line of input is an expression, answered by its value in a line. No huge pages: what the library copies into is then
# none either.
PROGRAM = f"""
import ctypes, mmap, os, signal, sys
libc = ctypes.CDLL(None)
libc.prctl(41, 1, 0, 0, 0)
memory = mmap.mmap(-1, {MIB} << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, {MIB} << 20, 4096): memory[at:at + 16] = os.urandom(16)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
child = os.fork()
if child == 0:
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)
    while True: signal.pause()
def shares(pid):
    # KiB of the memory that are shared, and that are not.
    inside, shared, private = False, 0, 0
    for line in open('/proc/%d/smaps' % pid):
        words = line.split()
        if '-' in words[0] and ':' not in words[0]:
            a, b = (int(n, 16) for n in words[0].split('-'))
            inside = a < start + ({MIB} << 20) and start < b
        elif inside and words[0].startswith('Shared_') and words[0] != 'Shared_Hugetlb:': shared += int(words[1])
        elif inside and words[0].startswith('Private_') and words[0] != 'Private_Hugetlb:': private += int(words[1])
    return shared, private
def both(): return shares(os.getpid()), shares(child)
def write(pages):
    for page in range(pages): memory[page << 16] = 1
    return pages
print('up', flush=True)
for line in sys.stdin:
    try: answer = eval(line)
    except Exception as e: answer = repr(e)
    print(answer, flush=True)
os.kill(child, signal.SIGKILL)
"""


class Shared(unittest.TestCase):
    def setUp(self):
        signal.signal(signal.SIGALRM, lambda *_: self.fail("hangs"))
        signal.alarm(240)
        self.addCleanup(signal.alarm, 0)
        self.directory = tempfile.mkdtemp(prefix="ckpt-shared-")
        self.addCleanup(shutil.rmtree, self.directory)

    def check(self, *options, pages=0):
        program = Program([CKPT, "run", "--dir", os.path.join(self.directory, "images"), *options, "--", "/usr/bin/python3", "-c",
                           PROGRAM])
        try:
            self.assertEqual(program.child.stdout.readline(), b"up\n")
            before = program.ask("both()")
            self.assertEqual(before, str(((MIB << 10, 0), (MIB << 10, 0))))
            for _ in range(2):
                done = subprocess.run([CKPT, "now", str(program.child.pid)], capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(program.ask("both()"), before)
            # What the program writes is its own, page by page.
            if pages != 0:
                self.assertEqual(program.ask(f"write({pages})"), str(pages))
                done = subprocess.run([CKPT, "now", str(program.child.pid)], capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr)
                own = (MIB << 10) - pages * 4
                self.assertEqual(program.ask("both()"), str(((own, pages * 4), (own, pages * 4))))
        finally:
            program.end()

    def test_handler(self):
        self.check("--mode", "realtime", pages=10)

    def test_increments(self):
        self.check("--mode", "realtime", "--increments", "5", pages=10)

    def test_large(self):
        self.check("--mode", "realtime-large")

    def test_concurrent(self):
        self.check("--mode", "concurrent", pages=10)

    def test_sequential(self):
        self.check("--mode", "sequential")

    def test_fork(self):
        self.check("--mode", "fork")

    def test_in_thread(self):
        self.check("--faults", "in-thread", pages=10)

    def test_mprotect(self):
        self.check("--faults", "mprotect")


if __name__ == "__main__":
    unittest.main()
