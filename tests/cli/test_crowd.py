"""Checkpoints of programs with very many threads under the fault back ends whose faults the threads handle themselves."""

import ctypes
import glob
import time

from support import *

CROWD = os.environ["CKPT_CROWD"]


class Crowd(CkptTest):
    def start(self, threads, *options):
        child = subprocess.Popen([CKPT, "run", "--dir", self.path("images"), *options, "--", CROWD, str(threads)],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=clean_environment())
        self.child = child
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        if child.stdout.readline() != b"up\n":
            self.skipTest("so many threads or descriptors are not to be had here")
        self.await_rounds(threads)

    def rounds(self):
        self.child.stdin.write(b"\n")
        return int(self.child.stdout.readline())

    def await_rounds(self, n):
        while self.rounds() < n:
            time.sleep(0.01)

    def now(self):
        return subprocess.run([CKPT, "now", "--json", "--timeout", "60s", str(self.child.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env=clean_environment())

    def check(self, threads, *options):
        self.start(threads, *options)
        before = self.rounds()
        answer = self.now()
        self.assertEqual(answer.returncode, OK, answer.stderr)
        # They have gone on all the while, and all of them do.
        self.assertGreater(self.rounds(), before)
        self.await_rounds(self.rounds() + threads)
        cost = load(answer)
        self.assertEqual((cost["mode"], cost["threads"]), ("realtime", threads + 1))
        self.assertEqual(self.ckpt("verify", cost["image"]).returncode, OK)

    def test_in_thread(self):
        # A thread that is to stop waits for those before it at the guard: with others at work on the machine longer than it may.
        self.check(2000, "--faults", "in-thread", "--stop-timeout", "20s")
        self.assertNotIn("it has more than", self.log())

    def test_more_than_the_guard_takes(self):
        self.check(2060, "--faults", "in-thread", "--stop-timeout", "20s")
        self.assertIn("it has more than 2048 threads", self.log())

    def test_given_up_as_one_thread_does_not_stop(self):
        """A tracer holds one of the threads: the checkpoint is given up while the others stand or wait at the guard, and they go on."""
        seize, interrupt, detach = 0x4206, 0x4207, 17
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        threads = 2000
        self.start(threads, "--faults", "in-thread", "--stop-timeout", "200ms")
        held = max({int(tid) for tid in os.listdir(f"/proc/{self.child.pid}/task")} - {self.child.pid})
        self.assertEqual(libc.ptrace(seize, held, None, None), 0, os.strerror(ctypes.get_errno()))
        self.assertEqual(libc.ptrace(interrupt, held, None, None), 0, os.strerror(ctypes.get_errno()))
        self.assertTrue(os.WIFSTOPPED(os.waitpid(held, 0x40000000)[1]))  # __WALL
        before = self.rounds()
        answer = self.now()
        self.assertEqual(answer.returncode, TIMEOUT, answer.stderr)
        self.assertIn("CKPT_STOP_TIMEOUT", answer.stderr)
        self.assertEqual(glob.glob(self.path("images/*.ckpt*")), [])
        self.await_rounds(before + threads)
        self.assertEqual(libc.ptrace(detach, held, None, None), 0)
        self.await_rounds(self.rounds() + threads)

    def log(self):
        (path,) = glob.glob(self.path("images/*.log"))
        with open(path, encoding="utf-8") as f:
            return f.read()


if __name__ == "__main__":
    unittest.main()
