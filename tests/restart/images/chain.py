#!/usr/bin/env python3
"""A real program's images as a chain of increments: every instant comes back from it, whatever was compacted,
renamed or collected. The chain is made of full images by comparing them (make_chain)."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART, MAKE_CHAIN = (os.path.join(BUILD, "bin", n) for n in ("ckpt", "ckpt-restart", "make_chain"))
OK, DAMAGED, NOT_FOUND, IO = 0, 65, 66, 74

# Each line of input is a step: writes here and there, gives memory back and takes it again at the same place,
# makes pages zero. The answer depends on all of its memory.
PROGRAM = """
import mmap, random, sys, zlib
rng = random.Random(1)
kept = mmap.mmap(-1, 16 << 20)
block = None
print('up', flush=True)
n = 0
for line in sys.stdin:
    n += 1
    for i in range(200):
        at = rng.randrange(len(kept) >> 12) << 12
        kept[at:at + 4096] = bytes(4096) if rng.random() < 0.2 else rng.randbytes(4096)
    if block is not None and n % 2 == 0:
        block.close()
        block = None
    elif block is None:
        block = mmap.mmap(-1, 2 << 20)
        block[n * 4096:n * 4096 + 3] = b'new'
    print(n, zlib.crc32(kept), zlib.crc32(block) if block else '-', flush=True)
"""
STEPS = 6


def environment():
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    clean["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
    return clean


def step(child):
    child.stdin.write(b"\n")
    child.stdin.flush()
    return child.stdout.readline().decode().strip()


def end(child):
    child.kill()
    child.communicate()


class Chain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Images 1 to STEPS, image N after N steps, all but the first increments; the answers of a whole run."""
        cls.made = tempfile.mkdtemp(prefix="ckpt-chain-")
        images = os.path.join(cls.made, "images")
        child = subprocess.Popen([CKPT, "run", "--dir", images, "--keep", "0", "--", "/usr/bin/python3", "-c", PROGRAM],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
        assert child.stdout.readline() == b"up\n"
        cls.answers = []
        for _ in range(STEPS):
            cls.answers.append(step(child))
            subprocess.run([CKPT, "now", str(child.pid)], check=True, stdout=subprocess.DEVNULL)
        cls.answers += [step(child) for _ in range(2)]
        end(child)
        cls.full_bytes = sum(e.stat().st_size for e in os.scandir(images))
        subprocess.run([MAKE_CHAIN, images], check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.made)

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="ckpt-chain-")
        self.addCleanup(shutil.rmtree, self.directory)
        self.images = os.path.join(self.directory, "images")
        # Links and all: the names of saved files are symbolic links that lead nowhere (image/format/saved_file_names.h).
        shutil.copytree(os.path.join(self.made, "images"), self.images, symlinks=True)

    def ckpt(self, *args, code=OK):
        done = subprocess.run([CKPT, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=120, env=environment())
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == OK else done.stderr

    def path(self, n):
        return next(os.path.join(self.images, f) for f in os.listdir(self.images) if f.endswith(".%06d.ckpt" % n))

    def kinds(self):
        return {r["sequence"]: r["parent"] for r in json.loads(self.ckpt("ls", "--json", self.images)) if r["state"] == "complete"}

    def comes_back(self, image, n):
        """Restarted, the program goes on behind step n."""
        child = subprocess.Popen([RESTART, image], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=environment())
        try:
            got = [step(child) for _ in range(2)]
        finally:
            child.stdin.close()  # its input ends, so does it
            child.wait(60)
            errors = child.stderr.read()
            child.stdout.close()
            child.stderr.close()
        self.assertEqual(got, self.answers[n:n + 2], errors)

    def test_every_instant(self):
        self.assertEqual(self.kinds(), {n: n - 1 for n in range(1, STEPS + 1)})
        self.assertLess(sum(e.stat().st_size for e in os.scandir(self.images)), self.full_bytes * 0.7)
        self.ckpt("verify", self.images)
        shown = json.loads(self.ckpt("show", "--json", self.images))
        self.assertEqual([c["sequence"] for c in shown["chain"]], list(range(STEPS, 0, -1)))
        self.assertEqual(sum(c["bytes_used"] for c in shown["chain"]), shown["bytes_memory"])
        for n in (1, 2, STEPS - 1, STEPS):
            self.comes_back(self.path(n), n)
        self.comes_back(self.images, STEPS)
        self.comes_back(self.images + "@-2", STEPS - 2)
        self.comes_back(self.images + "@3", 3)

    def test_by_time(self):
        rows = {r["sequence"]: r["realtime_ns"] for r in json.loads(self.ckpt("ls", "--json", self.images))}
        show = lambda when: json.loads(self.ckpt("show", "--json", "%s@%s" % (self.images, when)))["sequence"]
        stamp = lambda ns, form: time.strftime(form, time.localtime(ns // 10**9))
        newest_of = lambda ns: max(n for n, t in rows.items() if t // 10**9 <= ns // 10**9)
        self.assertEqual(show(stamp(rows[2], "%Y-%m-%dT%H:%M:%S")), newest_of(rows[2]))
        self.assertEqual(show(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(rows[1] // 10**9))), newest_of(rows[1]))
        self.assertEqual(show("2999-01-01"), STEPS)
        self.ckpt("show", self.images + "@2001-01-01T10:00", code=NOT_FOUND)

    def test_compact_keeps_every_instant(self):
        before = {n: json.loads(self.ckpt("show", "--json", self.path(n)))["bytes_memory"] for n in (4, STEPS)}
        self.assertIn("are one of", self.ckpt("compact", self.images + "@4"))
        self.assertEqual(self.kinds()[4], 0)
        # Those above build on it as they did on the increment.
        self.assertEqual(len(json.loads(self.ckpt("show", "--json", self.images))["chain"]), STEPS - 3)
        self.ckpt("verify", self.images)
        for n in (4, STEPS):
            self.assertEqual(json.loads(self.ckpt("show", "--json", self.path(n)))["bytes_memory"], before[n])
            self.comes_back(self.path(n), n)
        self.assertIn("is a full image", self.ckpt("compact", self.path(4)))
        # Now the old parents may go, and nothing else does.
        self.ckpt("gc", self.images, "--keep", "1")
        self.assertEqual(sorted(self.kinds()), list(range(4, STEPS + 1)))
        self.comes_back(self.images, STEPS)
        self.ckpt("compact", self.images)
        self.ckpt("gc", self.images, "--keep", "1")
        self.assertEqual(self.kinds(), {STEPS: 0})
        self.comes_back(self.images, STEPS)

    def test_no_room_to_compact(self):
        before = {e.name: e.stat().st_size for e in os.scandir(self.images)}
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        done = subprocess.run([CKPT, "compact", self.images], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, env=environment(), preexec_fn=limit)
        self.assertEqual(done.returncode, IO, done.stderr)
        self.assertRegex(done.stderr, r"\Ackpt: [^\n]+\n\Z")
        self.assertEqual({e.name: e.stat().st_size for e in os.scandir(self.images)}, before)
        self.ckpt("verify", self.images)

    def test_gc_keeps_parents(self):
        self.ckpt("gc", self.images, "--keep", "2")
        self.assertEqual(sorted(self.kinds()), list(range(1, STEPS + 1)))

    def test_killed_while_compacting(self):
        for delay in (0, 0.001, 0.003, 0.006, 0.01, 0.02):
            child = subprocess.Popen([CKPT, "compact", self.images], stdout=subprocess.DEVNULL, env=environment())
            time.sleep(delay)  # any instant will do
            child.send_signal(signal.SIGKILL)
            child.wait()
            self.ckpt("verify", self.images)
            self.assertIn(self.kinds()[STEPS], (0, STEPS - 1))
        self.ckpt("compact", self.images)
        self.ckpt("gc", self.images, "--keep", "1")
        self.assertEqual(len([f for f in os.listdir(self.images) if ".ckpt" in f]), 1)
        self.comes_back(self.images, STEPS)

    def test_missing_and_foreign_parents(self):
        parent, image = self.path(3), self.path(5)
        moved = os.path.join(self.images, "renamed" + os.path.basename(parent)[7:])
        os.rename(parent, moved)
        self.ckpt("verify", image)
        os.rename(moved, parent + ".away")
        for command in (["show"], ["verify"], ["core", "-o", os.path.join(self.directory, "core")], ["diff", image]):
            message = self.ckpt(command[0], image, *command[1:], code=NOT_FOUND)
            self.assertIn(os.path.basename(parent), message)
        done = subprocess.run([RESTART, image], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, NOT_FOUND)
        self.assertIn(os.path.basename(parent), done.stderr)
        states = {r["sequence"]: r["state"] for r in json.loads(self.ckpt("ls", "--json", self.images))}
        self.assertEqual([states[n] for n in (2, 4, 5)], ["complete", "damaged", "damaged"])
        # The newest that can be restored is the one before; gc does not remove it for the sake of those that cannot.
        self.ckpt("gc", self.images, "--keep", "1")
        self.comes_back(self.images, 2)


if __name__ == "__main__":
    unittest.main()
