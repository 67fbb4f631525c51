#!/usr/bin/env python3
"""Memory with the same bytes in many places: the image has it once, and every place gets it back, eagerly and lazily, compressed
or not, from increments, from what `ckpt compact` and `ckpt cat` make of them. Each place is memory of its own afterwards."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from stepped_program import CKPT, DAMAGED, RESTART, Program, environment  # noqa: E402

PARTS, PART = 1024, 1 << 16  # 64 MiB

# Part n holds pattern n % 5 (one is zeros), but for those that were written.
PROGRAM = """
import mmap, os, random, sys
PARTS, PART = %d, %d
table = mmap.mmap(-1, PARTS * PART, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
random.seed(4)
pattern = [bytes(PART)] + [random.randbytes(PART // 2) + b'.' * (PART // 2) for _ in range(4)]
value = lambda n, more: pattern[(n + more) %% 5]
what = [0] * PARTS
def put(first, count, more):
    for n in range(first, first + count):
        what[n] = more
        table[n * PART:(n + 1) * PART] = value(n, more)
def check():
    bad = [n for n in range(PARTS) if table[n * PART:(n + 1) * PART] != value(n, what[n])]
    return 'good' if not bad else 'BAD %%s' %% bad[:5]
put(0, PARTS, 0)
print('up', flush=True)
for line in sys.stdin: print(eval(line) or 'done', flush=True)
""" % (PARTS, PART)


class Repeated(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="ckpt-repeated-")
        self.addCleanup(shutil.rmtree, self.directory)
        self.images = os.path.join(self.directory, "images")

    def run_(self, *argv, code=0):
        done = subprocess.run(argv, capture_output=True, timeout=120, stdin=subprocess.DEVNULL, env=environment())
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout

    def start(self, *options):
        program = Program([CKPT, "run", "--dir", self.images, *options, "--", "/usr/bin/python3", "-c", PROGRAM])
        self.addCleanup(program.child.kill)
        self.assertEqual(program.child.stdout.readline(), b"up\n")
        return program

    def take(self, program):
        return json.loads(self.run_(CKPT, "now", "--json", str(program.child.pid)))["image"]

    def kill(self, program):
        os.kill(program.child.pid, signal.SIGKILL)
        program.end()

    def comes_back(self, image):
        for option in ("--eager", "--lazy"):
            with self.subTest(option=option, image=image):
                program = Program([RESTART, "--quiet", option, image])
                self.addCleanup(program.child.kill)
                self.assertEqual(program.ask("check()"), "good")
                # What was one place in the image is not one in memory.
                self.assertEqual(program.ask("put(10, 20, 1)"), "done")
                self.assertEqual(program.ask("check()"), "good")
                self.assertEqual(program.end(), (0, ""))

    def test_each_codec(self):
        for codec in ("none", "lz4", "zstd"):
            program = self.start("--compress", codec)
            image = self.take(program)
            self.kill(program)
            self.assertLess(os.stat(image).st_size, 24 << 20)  # the interpreter's own memory included
            self.run_(CKPT, "verify", image)
            self.comes_back(image)
            core = os.path.join(self.directory, "core")
            self.run_(CKPT, "core", image, "--output", core)
            self.assertGreater(os.stat(core).st_size, PARTS * PART)
            self.assertGreater(json.loads(self.run_(CKPT, "show", "--json", image))["bytes_memory"], PARTS * PART * 3 // 4)
            shutil.rmtree(self.images)

    def test_increments(self):
        program = self.start("--increments", "3")
        first = self.take(program)
        self.assertEqual(program.ask("put(100, 400, 2)"), "done")
        second = self.take(program)
        self.kill(program)
        self.assertEqual(json.loads(self.run_(CKPT, "show", "--json", second))["parent"], 1)
        self.run_(CKPT, "verify", self.images)
        self.comes_back(second)
        self.run_(CKPT, "diff", first, second, code=1)  # they differ
        self.run_(CKPT, "compact", second)
        self.assertLess(os.stat(second).st_size, 24 << 20)
        self.comes_back(second)

    def test_damaged(self):
        program = self.start()
        image = self.take(program)
        self.kill(program)
        listed = json.loads(self.run_(CKPT, "verify", "--json", image))
        self.assertTrue(listed)
        with open(image, "r+b") as f:
            whole = f.read()
            at = whole.index(b"." * (PART // 2 - 4096))  # in the one copy of a pattern
            f.seek(at)
            f.write(b",")
        self.run_(CKPT, "verify", image, code=DAMAGED)
        self.run_(RESTART, "--check", image, code=DAMAGED)
        self.run_(RESTART, "--eager", image, code=DAMAGED)


if __name__ == "__main__":
    unittest.main()
