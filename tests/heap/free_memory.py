#!/usr/bin/env python3
"""Programs with libckpt_heap.so: what is free at the stop is not in the image, what is not free comes back, and memory
that is promised to be zero is, whenever it is allocated. ckpt run's side of it."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART, BLOCKS = (os.path.join(BUILD, n) for n in ("bin/ckpt", "bin/ckpt-restart", "tests/heap/blocks"))
BLOCK = 70_000   # bytes; an extent of its own
COUNT = 320      # 24 MiB with their rounding up; what is freed of them stays stale (heap/region.cc)
USAGE = 64


def environment(**more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("CKPT", "MALLOC_CONF")) and k != "LD_PRELOAD"}
    clean["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
    return {**clean, **more}


class FreeMemory(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="ckpt-heap.")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.images = os.path.join(self.directory, "images")
        self.child = None
        self.addCleanup(self.kill)

    def launch(self, argv, **more):
        # Decommitted when freed, so that nobody need wait for it.
        env = environment(MALLOC_CONF="dirty_decay_ms:0", **more)
        self.child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=self.directory, env=env)

    def run_blocks(self, *options, heap="jemalloc", **more):
        self.launch([CKPT, "run", "--dir", self.images, f"--heap={heap}", *options, "--", BLOCKS], **more)
        self.pid = self.child.pid
        self.assertEqual(self.child.stdout.readline(), b"up\n")

    def ask(self, step):
        self.child.stdin.write(step.encode() + b"\n")
        self.child.stdin.flush()
        self.assertEqual(self.child.stdout.readline().decode().strip(), "good", step)

    def checkpoint(self):
        answer = subprocess.run([CKPT, "now", "--json", str(self.pid)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return json.loads(answer.stdout)

    def kill(self):
        if self.child is None:
            return
        subprocess.run(["kill", "-9", str(self.pid)], check=False, capture_output=True)
        self.child.kill()
        self.child.wait()
        for stream in (self.child.stdin, self.child.stdout):
            stream.close()
        self.child = None

    def restart(self):
        self.kill()
        # The program's standard streams are those of ckpt-restart from now on.
        self.child = subprocess.Popen([RESTART, "--json", self.images], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, cwd=self.directory, env=environment())
        said = json.loads(self.child.stderr.readline())
        self.child.stderr.close()
        self.assertTrue(said["ok"], said)
        self.pid = said["outer_pid"]
        self.ask("check")

    def logged(self):
        with open(os.path.join(self.images, "ckpt_rt.log"), encoding="utf-8", errors="replace") as log:
            return log.read()

    def free_bytes(self):
        return [int(k) << 10 for k in re.findall(r"heap: (\d+) KiB of free pages are not saved", self.logged())]

    def resident(self):
        with open(f"/proc/{self.pid}/status", encoding="ascii", errors="replace") as status:
            return int(re.search(r"VmRSS:\s+(\d+) kB", status.read()).group(1)) << 10

    def test_what_is_free_is_left_out_in_every_mode(self):
        for mode in ("auto", "sequential", "concurrent", "fork"):
            with self.subTest(mode=mode):
                shutil.rmtree(self.images, ignore_errors=True)
                self.run_blocks("--mode", mode)
                self.ask(f"fill {COUNT} {BLOCK}")
                full = self.checkpoint()["bytes_memory"]
                self.assertGreater(full, COUNT * BLOCK)
                resident = self.resident()
                self.ask("thin 8")
                freed = COUNT * BLOCK * 7 // 8
                self.assertGreater(self.resident(), resident - freed // 4, "given back: there is nothing to leave out")
                self.assertLess(self.checkpoint()["bytes_memory"], full - freed * 9 // 10)
                self.assertGreater(self.free_bytes()[-1], freed * 9 // 10)
                self.restart()
                self.ask("check")
                self.ask(f"zeros {COUNT} {BLOCK}")
                self.ask(f"fill {COUNT} {BLOCK}")
                self.ask("check")
                self.kill()

    def test_increments_and_generations(self):
        self.run_blocks("--increments", "4")
        self.ask(f"fill {COUNT} {BLOCK}")
        self.checkpoint()
        for generation in range(2):
            # Free in the parent and used in the increment, and the other way round; beside them what never changes.
            self.ask("thin 3")
            self.checkpoint()
            self.ask(f"zeros {COUNT // 2} {BLOCK}")
            self.checkpoint()
            self.ask(f"fill {COUNT // 3} {BLOCK}")
            self.ask("thin 2")
            self.ask(f"fill 40 {BLOCK * 3}")
            increment = self.checkpoint()
            self.assertTrue(increment["parent_sequence"], "no increment")
            self.restart()
            self.ask("check")
            self.ask(f"zeros {COUNT} {BLOCK}")
            self.ask("check")
            self.checkpoint()

    def test_more_than_a_share_is_given_back(self):
        self.run_blocks()
        self.ask(f"fill {6 * COUNT} {BLOCK}")
        resident = self.resident()
        self.ask("thin 8")
        self.assertLess(self.resident(), resident - COUNT * BLOCK * 3)
        self.checkpoint()
        self.restart()
        self.ask("check")
        self.ask(f"zeros {3 * COUNT} {BLOCK}")
        self.ask("check")

    def test_a_heap_that_is_not_there_is_named(self):
        self.launch([BLOCKS], LD_PRELOAD=os.path.join(BUILD, "lib/libckpt_rt.so"), CKPT_DIR=self.images, CKPT_HEAP="jemalloc")
        self.pid = self.child.pid
        self.assertEqual(self.child.stdout.readline(), b"up\n")
        self.checkpoint()
        self.assertIn("put libckpt_heap.so into LD_PRELOAD", self.logged())

    def test_huge_pages_are_asked_for(self):
        # How the heap's memory is mapped, of which we have the flags only from what was said when it was mapped.
        def flags():
            with open(f"/proc/{self.pid}/smaps", encoding="utf-8", errors="replace") as smaps:
                found = re.findall(r"^[0-9a-f]+-[0-9a-f]+ (rw-p) 00000000 00:00 0 *$(?:(?!^VmFlags).)*^Size: +(\d+) kB"
                                   r"(?:(?!^VmFlags).)*^VmFlags:([^\n]*)$", smaps.read(), re.M | re.S)
            return [said.split() for _, kib, said in found if int(kib) >= COUNT * BLOCK >> 10]

        self.run_blocks(heap="jemalloc:huge")
        self.ask(f"fill {COUNT} {BLOCK}")
        before = flags()
        self.assertEqual(len(before), 1)
        self.assertIn("hg", before[0])
        self.assertIn("nr", before[0])
        self.checkpoint()
        self.restart()
        self.assertEqual([{"hg", "nr"} & set(f) for f in flags()], [{"hg", "nr"}])
        self.ask(f"zeros {COUNT} {BLOCK}")
        self.ask("check")
        self.kill()
        self.run_blocks()
        self.ask(f"fill {COUNT} {BLOCK}")
        self.assertEqual(["hg" in f for f in flags()], [False])

    def test_libc_is_the_default(self):
        self.run_blocks(heap="libc")
        self.checkpoint()
        self.assertEqual(self.free_bytes(), [])
        with open(f"/proc/{self.pid}/maps", encoding="utf-8", errors="replace") as maps:
            self.assertNotIn("libckpt_heap", maps.read())

    def test_an_allocator_that_is_preloaded_already_comes_first(self):
        other = os.path.join(self.directory, "other.so")
        shutil.copy(os.path.join(BUILD, "lib/libckpt_heap.so"), other)
        got = subprocess.run([CKPT, "run", "--dir", self.images, "--heap=jemalloc", "--", "/bin/sh", "-c", "echo $LD_PRELOAD"],
                             capture_output=True, text=True, env=environment(LD_PRELOAD=other), check=True).stdout.strip()
        names = [os.path.basename(p) for p in got.split(":")]
        self.assertEqual(names, ["libckpt_rt.so", "other.so", "libckpt_heap.so"])

    def test_no_such_heap(self):
        got = subprocess.run([CKPT, "run", "--dir", self.images, "--heap=tcmalloc", "--", "/bin/true"], capture_output=True,
                             text=True, env=environment(), check=False)
        self.assertEqual(got.returncode, USAGE)
        self.assertIn("CKPT_HEAP='tcmalloc' is no heap; use libc, jemalloc (whose free memory is not saved) or jemalloc:huge", got.stderr)


if __name__ == "__main__":
    unittest.main()
