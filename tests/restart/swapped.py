#!/usr/bin/env python3
"""Memory that is in swap when the checkpoint is taken. Skipped where there is none."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART = (os.path.join(BUILD, "bin", n) for n in ("ckpt", "ckpt-restart"))
SKIPPED = 77
MIB = 1 << 20

PROGRAM = f"""
import mmap, os, random, time, zlib
PAGEOUT = 21  # MADV_PAGEOUT
shared = mmap.mmap(-1, 256 * {MIB})
private = mmap.mmap(-1, 256 * {MIB}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for m in (shared, private):
    for at in range(0, 16 * {MIB}, 8192):  # every other page of the beginning, and a few far behind it
        m[at:at + 64] = random.Random(at).randbytes(64)
    m[200 * {MIB}:201 * {MIB}] = random.Random(1).randbytes({MIB})
def touched():
    return [zlib.crc32(bytes(m[:16 * {MIB}:4096]) + m[200 * {MIB}:201 * {MIB}]) for m in (shared, private)]
before = touched()
for m in (shared, private):
    m.madvise(PAGEOUT)
print('up', flush=True)
while not os.path.exists('go'):
    time.sleep(0.005)
print(before == touched(), flush=True)
"""


def environment():
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    clean["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
    return clean


def made_kib(pid):
    """Of the shared memory: pages in memory or in swap, of this object alone."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        [place] = [line.split()[0] for line in maps if "/dev/zero" in line]
    return os.stat(f"/proc/{pid}/map_files/{place}").st_blocks // 2


def kib(path, name):
    with open(path) as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


class Swapped(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="ckpt-swapped-")
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def output(self):
        with open(self.path("out")) as out:
            return out.read()

    def check(self, *options, checkpoints=1):
        with open(self.path("out"), "w") as out:
            child = subprocess.Popen([CKPT, "run", "--dir", self.path("images"), *options, "--", "/usr/bin/python3", "-c", PROGRAM],
                                     stdin=subprocess.DEVNULL, stdout=out, cwd=self.directory, env=environment())
        try:
            while child.poll() is None and "up" not in self.output():
                time.sleep(0.005)
            self.assertGreater(kib(f"/proc/{child.pid}/status", "VmSwap"), 1024, "nothing went into swap")
            for _ in range(checkpoints):
                subprocess.run([CKPT, "now", str(child.pid)], env=environment(), stdout=subprocess.DEVNULL, check=True, timeout=120)
            # Shared memory that does not exist is not made: 17 MiB do.
            self.assertLess(made_kib(child.pid), 64 * 1024)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
        open(self.path("go"), "w").close()
        subprocess.run([RESTART, "-q", self.path("images")], cwd=self.directory, env=environment(), stdin=subprocess.DEVNULL, check=True, timeout=60)
        self.assertEqual(self.output(), "up\nTrue\n")

    def test_modes(self):
        for mode in ("realtime", "realtime-large", "standing", "concurrent", "sequential", "fork"):
            with self.subTest(mode=mode):
                self.check("--mode", mode)
                shutil.rmtree(self.path("images"))
                os.unlink(self.path("go"))

    def test_increments(self):
        self.check("--increments", "3", checkpoints=3)


if __name__ == "__main__":
    if kib("/proc/meminfo", "SwapFree") < 64 * 1024 or os.geteuid() != 0:
        print("skipped: needs 64 MiB of free swap, and root (lseek(2) on memory that is shared)")
        sys.exit(SKIPPED)
    unittest.main()
