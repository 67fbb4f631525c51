"""What ckpt says a checkpoint took: the figures agree with the kernel's and with each other (docs/account.md)."""

import contextlib
import re
import time
import unittest

from support import *

# Half a second for 32 MiB; with 4 MiB of buffers the copy waits for it.
SLOW_DISK = "python3 -c \"import sys, time\nwhile d := sys.stdin.buffer.read(1 << 20): time.sleep(1 / 64)\""

WHO = ["agent", "handler", "writer", "helpers", "child"]

# Private memory full of noise. "writing": a thread writes a byte to one page after the other, and never stops.
PROGRAM = """
import mmap, os, sys, threading
size = int(sys.argv[1]) << 20
table = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, size, 65536): table[at:at + 65536] = os.urandom(65536)
def write():
    n = 0
    while True:
        n += 1
        for at in range(0, size, 4096): table[at] = n & 255
if sys.argv[2] == 'writing': threading.Thread(target=write, daemon=True).start()
print('up', flush=True)
sys.stdin.read()
"""


def processor_ns(pid):
    """Of all threads of the process so far, those that have ended too: clock_getcpuclockid(3)."""
    return time.clock_gettime_ns((~pid << 3) | 2)


class Account(CkptTest):
    @contextlib.contextmanager
    def program(self, mib, does, *options):
        child = subprocess.Popen([CKPT, "run", "--dir", self.path("images"), *options, "--", "/usr/bin/python3", "-c", PROGRAM, str(mib), does],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
        try:
            self.assertEqual(child.stdout.readline(), b"up\n")
            yield child
        finally:
            child.kill()
            child.communicate()

    def now(self, child):
        cost = load(self.ckpt("now", child.pid, "--json"))
        self.assertEqual(cost["processor_ns"], sum(cost[f"processor_{who}_ns"] for who in WHO), cost)
        for key, value in cost.items():
            if key.endswith("_ns"):
                self.assertGreaterEqual(value, 0, key)
        return cost

    def test_of_a_program_that_waits_it_is_all_that_the_kernel_counts(self):
        for mode, idle in [("sequential", ["handler", "writer", "child"]), ("concurrent", ["handler", "child"]), ("fork", ["handler", "writer"]),
                           *([("realtime", ["child"])] if ROOT else [])]:
            with self.subTest(mode), self.program(128, "waiting", "--mode", mode) as child:
                before = processor_ns(child.pid)
                cost = self.now(child)
                took = processor_ns(child.pid) - before
                self.assertEqual([who for who in idle if cost[f"processor_{who}_ns"] != 0], [], cost)
                of_it = cost["processor_ns"] - cost["processor_child_ns"]  # another process
                # The rest: a signal, the thread that waits in the stop, the beginning and the end of the agent.
                self.assertLessEqual(of_it, took)
                self.assertGreater(of_it, took / 2, cost)
                self.assertGreater(cost["processor_ns"], 128 * 10_000, "no machine copies and sums a MiB in 10 us")
                second = self.now(child)
                self.assertEqual(load(self.ckpt("stat", child.pid, "--json"))["processor_ns"], cost["processor_ns"] + second["processor_ns"])
                self.assertIn("processor time of ours", self.ckpt("stat", child.pid).stdout)
                with open(self.path("images") + "/ckpt_rt.log", encoding="utf-8") as log:
                    agent = [int(n) for n in re.findall(r"took processors: agent (\d+),", log.read())]
                self.assertEqual(agent[-2:], [c["processor_agent_ns"] // 1000 for c in (cost, second)])

    @unittest.skipUnless(ROOT, "needs full userfaultfd")
    def test_faults_and_their_waits(self):
        # As long as the disk takes, not as fast as memory is copied: the thread that writes has a processor meanwhile, however many want it.
        with self.program(32, "writing", "--mode", "realtime", "--pool", "4M", "--to", SLOW_DISK) as child:
            cost = self.now(child)
            self.assertGreater(cost["faults"], 0)
            self.assertGreater(cost["processor_handler_ns"], 0)
            self.assertGreaterEqual(cost["fault_wait_ns"], cost["longest_wait_ns"])
            self.assertGreaterEqual(cost["fault_wait_ns"], cost["buffer_wait_ns"])
            # One thread of the program faults, and one after the other.
            self.assertLess(cost["fault_wait_ns"], cost["durable_ns"] * 2)

    @unittest.skipUnless(ROOT, "needs full userfaultfd")
    def test_waits_for_a_buffer_are_counted_where_the_disk_is_slow(self):
        with self.program(32, "writing", "--mode", "realtime", "--pool", "4M", "--to", SLOW_DISK) as child:
            cost = self.now(child)
            self.assertGreater(cost["copier_wait_ns"], 0)
            self.assertEqual(cost["buffer_waits"] != 0, cost["buffer_wait_ns"] != 0)
            self.assertGreater(cost["copier_wait_ns"] + cost["buffer_wait_ns"], 100_000_000)
            self.assertLess(cost["processor_ns"], cost["durable_ns"], "who waits for the disk does not compute")

    @unittest.skipUnless(ROOT, "needs full userfaultfd")
    def test_what_increments_leave_to_the_next_goes_after_a_while(self):
        """Buffers and lists stay mapped for the next checkpoint, until none has come for a second."""
        def mapped_kib():
            with open(f"/proc/{child.pid}/status", encoding="utf-8") as status:
                return int(re.search(r"VmSize:\s+(\d+)", status.read())[1])

        def is_given_back(before, within):
            deadline = time.monotonic() + within
            while mapped_kib() > before - 64 * 1024:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.05)
            return True

        with self.program(16, "writing", "--mode", "realtime", "--increments", "20") as child:
            self.now(child)
            # Where this process got no processor for a second it was given back before the first look at it.
            self.assertTrue(any(is_given_back((self.now(child), mapped_kib())[1], 10) for _ in range(3)))
            after = self.now(child)
            self.assertNotEqual(after["parent_sequence"], 0)
            self.assertEqual(self.ckpt("verify", after["image"]).returncode, OK)


if __name__ == "__main__":
    unittest.main()
