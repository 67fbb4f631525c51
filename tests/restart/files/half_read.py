#!/usr/bin/env python3
"""A program that has read a part of /proc/self/maps reads the rest after a restart: no mapping is missing, none is there twice."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from stepped_program import CKPT, RESTART, Program, environment

# 400 mappings of which neighbours differ. A line of input "N": reads N bytes more; "rest": to the end, and says what was wrong.
PROGRAM = r"""
import ctypes, os, re
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
first = libc.mmap(None, 400 * 4096, 3, 0x22, -1, 0)
for i in range(0, 400, 2): libc.mprotect(first + i * 4096, 4096, 1)
lists = {name: os.open('/proc/self/' + name, os.O_RDONLY) for name in ('maps',)}
text = {name: b'' for name in lists}
def read(name, n):
    while n > 0:
        some = os.read(lists[name], min(n, 1000))
        if not some: return
        text[name] += some
        n -= len(some)
while True:
    line = input()
    if line == 'rest': break
    for name in lists: read(name, int(line))
    print('read', flush=True)
for name in lists:
    read(name, 1 << 30)
    starts = [int(a, 16) for a in re.findall(rb'^([0-9a-f]+)-[0-9a-f]+ ', text[name], re.M)]
    mine = [(a - first) // 4096 for a in starts if first <= a < first + 400 * 4096]
    print(name, mine == list(range(400)), flush=True)
input()
"""


def end(program):
    program.child.kill()
    program.child.wait(60)
    for stream in (program.child.stdin, program.child.stdout, program.child.stderr):
        stream.close()


class HalfRead(unittest.TestCase):
    def trial(self, part):
        """So much is read before the checkpoint."""
        with tempfile.TemporaryDirectory(prefix="ckpt-half-read-") as place:
            program = Program([CKPT, "run", "--dir", place, "--", sys.executable, "-c", PROGRAM])
            try:
                self.assertEqual(program.ask(str(part)), "read")
                done = subprocess.run([CKPT, "now", "--json", str(program.child.pid)], capture_output=True, text=True, env=environment(),
                                      check=True)
                self.assertEqual("/maps) may be half read" in " ".join(json.loads(done.stdout).get("notes", [])), part < 10**6)
                end(program)
                program = Program([RESTART, "--json", place])
                program.said()
                self.assertEqual(program.ask("rest"), "maps True")
            finally:
                end(program)

    def test_at_each_part(self):
        for part in (1, 1000, 4000, 9216, 16000, 23456):
            with self.subTest(part=part):
                self.trial(part)

    def test_at_the_end(self):
        self.trial(10**8)


if __name__ == "__main__":
    unittest.main()
