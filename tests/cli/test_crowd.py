"""Checkpoints of programs with very many threads under the fault back ends whose faults the threads handle themselves."""

import glob
import time

from support import *

CROWD = os.environ["CKPT_CROWD"]


class Crowd(CkptTest):
    def check(self, threads, *options, codes=(OK,)):
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
        before = rounds()
        answer = subprocess.run([CKPT, "now", "--json", "--timeout", "60s", str(child.pid)], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=clean_environment())
        self.assertIn(answer.returncode, codes, answer.stderr)
        # They have gone on all the while, and all of them do.
        self.assertGreater(rounds(), before)
        await_rounds(rounds() + threads)
        if answer.returncode == TIMEOUT:
            self.assertIn("CKPT_STOP_TIMEOUT", answer.stderr)
            return
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

    def test_in_less_time_than_it_takes(self):
        """The checkpoint is given up, or was in time; the program goes on."""
        self.check(2000, "--faults", "in-thread", "--stop-timeout", "2ms", codes=(OK, TIMEOUT))

    def log(self):
        (path,) = glob.glob(self.path("images/*.log"))
        with open(path, encoding="utf-8") as f:
            return f.read()


if __name__ == "__main__":
    unittest.main()
