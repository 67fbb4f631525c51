"""Checkpoints of programs with very many threads under the fault back ends whose faults the threads handle themselves."""

import glob
import threading
import time

from support import *

CROWD = os.environ["CKPT_CROWD"]


class Crowd(CkptTest):
    def check(self, threads, *options):
        child = subprocess.Popen([CKPT, "run", "--dir", self.path("images"), *options, "--", CROWD, str(threads)],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=clean_environment())
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        if child.stdout.readline() != b"up\n":
            self.skipTest("so many threads or descriptors are not to be had here")

        def rounds():
            child.stdin.write(b"\n")
            return int(child.stdout.readline())

        def await_rounds(n):
            while rounds() < n:
                time.sleep(0.01)

        await_rounds(threads)
        # They go on all the while: what a round takes is no more than what a checkpoint may.
        done = threading.Event()
        slowest = 0

        def watch():
            nonlocal slowest
            before, since = rounds(), time.monotonic()
            while not done.is_set():
                now = rounds()
                if now != before:
                    before, since = now, time.monotonic()
                slowest = max(slowest, time.monotonic() - since)
                time.sleep(0.005)

        watcher = threading.Thread(target=watch)
        watcher.start()
        cost = load(subprocess.run([CKPT, "now", "--json", "--timeout", "60s", str(child.pid)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=clean_environment()))
        done.set()
        watcher.join()
        self.assertEqual((cost["mode"], cost["threads"]), ("realtime", threads + 1))
        self.assertLess(slowest, 40)  # seconds; 0.5 on two processors with others at work; without end when threads wait for each other
        await_rounds(rounds() + threads)
        self.assertEqual(self.ckpt("verify", cost["image"]).returncode, OK)

    def test_in_thread(self):
        # A thread that is to stop waits for those before it at the guard: with others at work on the machine longer than it may.
        self.check(2000, "--faults", "in-thread", "--stop-timeout", "20s")
        self.assertNotIn("it has more than", self.log())

    def test_more_than_the_guard_takes(self):
        self.check(2060, "--faults", "in-thread", "--stop-timeout", "20s")
        self.assertIn("it has more than 2048 threads", self.log())

    def log(self):
        (path,) = glob.glob(self.path("images/*.log"))
        with open(path, encoding="utf-8") as f:
            return f.read()


if __name__ == "__main__":
    unittest.main()
