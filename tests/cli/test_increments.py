"""Increments: what they hold, what a restart of each finds, and the threads that wait between checkpoints."""

import glob
import signal
import unittest

from support import *

RESTART = os.path.join(os.path.dirname(CKPT), "ckpt-restart")
API = os.path.join(os.path.dirname(CKPT), "..", "tests", "cli", "cli_api_program")

WRITER = "m = bytearray(8 << 20)\nprint('up', flush=True)\nwhile True:\n    for i in range(0, len(m), 4096): m[i] = m[i] + 1 & 255\n"

# Its rseq area lies amid memory that is written.
RSEQ = """
import ctypes, mmap, time
m = mmap.mmap(-1, 1 << 20)
for i in range(0, len(m), 4096): m[i] = 1
area = ctypes.addressof(ctypes.c_char.from_buffer(m)) + (512 << 10)
assert ctypes.CDLL(None).syscall(334, ctypes.c_void_p(area), 32, 0, 0x53053053) == 0
print('up', flush=True)
while True: time.sleep(60)
"""


def state(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        return f.read().rpartition(") ")[2][0]


class Increments(CkptTest):
    def setUp(self):
        super().setUp()
        findings = {f["id"]: f for f in json.loads(self.ckpt("check", "--json").stdout)["findings"]}
        if findings["userfaultfd"]["level"] != "ok":
            self.skipTest("needs full userfaultfd")

    def run_api(self, word, *options):
        """What the program prints, to a file: a pipe to us would not come back."""
        with open(self.path("out"), "wb") as out:
            result = subprocess.run([CKPT, "run", "--dir", self.path("images"), "--keep", "0", *options, "--", API, word],
                                    stdout=out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=clean_environment(),
                                    timeout=60, check=False)
        with open(self.path("out"), encoding="utf-8") as out:
            return result.returncode, out.read()

    def restart(self, which):
        with open(self.path("out"), "wb"):
            pass
        result = subprocess.run([RESTART, which], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                env=clean_environment(), timeout=60, check=False)
        self.assertEqual(result.returncode, OK, result.stderr)
        with open(self.path("out"), encoding="utf-8") as out:
            return out.read().strip("\0")

    def parents(self):
        return [one["parent"] for one in load(self.ckpt("ls", self.path("images"), "--json"))]

    def test_hold_what_was_written_since(self):
        self.check_what_they_hold()

    def test_hold_what_was_written_since_also_in_mode_standing(self):
        self.check_what_they_hold("--mode", "standing")
        modes = {one["mode"] for one in load(self.ckpt("ls", self.path("images"), "--json"))}
        self.assertEqual(modes, {"standing"})

    def test_in_mode_standing_nobody_writes_before_all_is_copied(self):
        """A program that writes without a pause: in mode realtime it meets memory that is still to be copied."""
        child = subprocess.Popen([CKPT, "run", "--dir", self.path("images"), "--keep", "0", "--mode", "standing", "--increments", "8", "--",
                                  "/usr/bin/python3", "-c", WRITER], stdout=subprocess.PIPE, env=clean_environment())
        try:
            self.assertEqual(child.stdout.readline(), b"up\n")
            answers = [load(self.ckpt("now", child.pid, "--json")) for _ in range(3)]
        finally:
            child.kill()
            child.communicate()
        self.assertEqual([(one["mode"], one["parent_sequence"], one["forced_copies"]) for one in answers],
                         [("standing", 0, 0), ("standing", 1, 0), ("standing", 2, 0)])
        self.assertEqual(self.ckpt("verify", self.path("images")).returncode, OK)

    def test_in_mode_standing_the_kernel_writes_nothing_either(self):
        """When a thread returns to user mode, as one does that was preempted on its way to sleep, or was stopped and goes on, the kernel
        writes to its rseq area."""
        environment = {**clean_environment(), "GLIBC_TUNABLES": "glibc.pthread.rseq=0", "CKPT_TEST_POINT": "stop.captured=stop"}
        child = subprocess.Popen([CKPT, "run", "--dir", self.path("images"), "--mode", "standing", "--", "/usr/bin/python3", "-c", RSEQ],
                                 stdout=subprocess.PIPE, env=environment)
        try:
            self.assertEqual(child.stdout.readline(), b"up\n")
            with subprocess.Popen([CKPT, "now", str(child.pid), "--json"], stdout=subprocess.PIPE, text=True, env=clean_environment()) as asker:
                while state(child.pid) != "T":
                    self.assertIsNone(asker.poll())
                os.kill(child.pid, signal.SIGCONT)
                cost = json.loads(asker.communicate()[0])
        finally:
            child.kill()
            child.communicate()
        self.assertEqual((cost["mode"], cost["forced_copies"]), ("standing", 0))

    def check_what_they_hold(self, *options):
        code, said = self.run_api("increments", "--increments", "8", *options)
        self.assertEqual(code, OK)
        sizes = [int(n) for n in said.split()[:-1]]
        self.assertGreaterEqual(sizes[0], 16)
        for size in sizes[1:]:
            self.assertLess(size, 4, "an increment has a few pages of the 16 MiB")
        self.assertEqual(self.parents(), [0, 1, 2, 3])
        self.assertEqual(self.ckpt("verify", self.path("images")).returncode, OK)
        for number, expected in [(1, "baaa zeros 0 a 4092 z 0"), (2, "bcaa zeros 0 a 4092 z 0"),
                                 (3, "bcda zeros 50 a 4042 z 0"), (4, "bcde zeros 49 a 4042 z 1")]:
            with self.subTest(number):
                self.assertIn(f"image {number}: {expected}\n", self.restart(f"{self.path('images')}@{number}"))

    def test_chain_has_an_end(self):
        for option, expected in [("0", [0] * 4), ("1", [0, 1, 0, 3]), ("2", [0, 1, 2, 0])]:
            with self.subTest(option):
                shutil.rmtree(self.path("images"), ignore_errors=True)
                self.assertEqual(self.run_api("increments", "--increments", option)[0], OK)
                self.assertEqual(self.parents(), expected)

    def test_log_says_why_there_are_none(self):
        for options, why in [(["--mode", "sequential"], "this mode protects no memory"),
                             (["--faults", "mprotect"], "with this fault back end (CKPT_FAULTS) protection ends with the copying"),
                             (["--to", "cat > /dev/null"], "whoever gets images by CKPT_TO need not have the one before")]:
            with self.subTest(options):
                shutil.rmtree(self.path("images"), ignore_errors=True)
                self.assertEqual(self.run_api("increments", "--increments", "8", *options)[0], OK)
                log = "".join(open(path, encoding="utf-8").read() for path in glob.glob(f"{self.path('images')}/*.log"))
                self.assertEqual(log.count(f"no increments: {why}; images are full\n"), 4, log)
                self.assertEqual(set(self.parents()) - {0}, set())

    def test_shared_memory_that_is_forgotten_while_it_is_copied(self):
        self.assertEqual(self.run_api("shared", "--increments", "8")[0], OK)
        for number in range(1, 5):
            with self.subTest(number):
                self.assertIn(f"image {number}: as it was\n", self.restart(f"{self.path('images')}@{number}"))

    def test_memory_given_back_without_end(self):
        self.assertEqual(self.run_api("given-back", "--increments", "8")[0], OK)
        self.assertEqual(self.parents(), [0, 1, 2])
        for number, expected in [(1, "a 2048 new 0"), (2, "a 2038 new 10"), (3, "a 2038 new 10")]:
            with self.subTest(number):
                self.assertIn(f"image {number}: {expected}\n", self.restart(f"{self.path('images')}@{number}"))

    def test_inherit_nothing_that_lost_its_protection_without_a_word(self):
        """Between what is written, in the stop, so that one call would protect both."""
        code, said = self.run_api("reclaimed-pieces", "--increments", "8")
        self.assertEqual((code, said), (OK, "restarted 0 as at the stop 4259840\n"))
        self.assertEqual(self.parents(), [0, 1])
        self.assertIn("restarted 1 as at the stop 4259840\n", self.restart(f"{self.path('images')}@2"))

    def test_what_is_mapped_while_a_checkpoint_is_taken(self):
        self.assertEqual(self.run_api("placed", "--increments", "8")[0], OK)
        for number in range(1, 7):
            with self.subTest(number):
                self.assertIn(f"image {number}: all there\n", self.restart(f"{self.path('images')}@{number}"))

    def test_heap_that_grows_stays_one_mapping(self):
        code, said = self.run_api("growth", "--increments", "20")
        self.assertEqual(code, OK)
        self.assertLessEqual(int(said), 2, "the heap, and what it grew by since the last checkpoint")

    def test_none_where_the_kernel_writes_unseen(self):
        code, said = self.run_api("ring", "--increments", "8")
        self.assertEqual(code, OK)
        if said.startswith("no rings"):
            self.skipTest("io_uring is not allowed")
        self.assertEqual(self.parents(), [0, 0, 0])

    def test_nothing_of_ours_is_there_for_calls_that_must_be_alone(self):
        code, said = self.run_api("alone", "--increments", "3")
        self.assertEqual((code, said), (OK, "3 threads, then unshare worked, 1 thread\n"))

    def test_process_ends_with_its_last_thread(self):
        self.assertEqual(self.run_api("last", "--increments", "3")[0], 7)

    @unittest.skipUnless(ROOT, "gives up rights")
    def test_rights_that_were_given_up_are_not_used(self):
        code, said = self.run_api("drop", "--increments", "3")
        self.assertEqual((code, said), (OK, f"returned {PERMISSION}\n"))


if __name__ == "__main__":
    unittest.main()
