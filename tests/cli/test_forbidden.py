"""Checkpoints of programs that have forbidden themselves something that a checkpoint, or an interposed call, does."""

import time

from support import *

PROGRAM = os.environ["CKPT_FORBIDDEN_PROGRAM"]
RESTART = os.path.join(os.path.dirname(CKPT), "ckpt-restart")


class Forbidden(CkptTest):
    def start(self, what, **settings):
        child = subprocess.Popen([PROGRAM, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                                 env=clean_environment(LD_PRELOAD=LIBRARY, CKPT_DIR=self.path("images"), **settings))
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.stdin.close)
        self.assertEqual(child.stdout.readline(), b"up\n")
        return child

    def ask(self, child, expected):
        child.stdin.write(b"\n")
        self.assertEqual(child.stdout.readline(), b"%d\n" % expected)

    def test_counter(self):
        child = self.start("tsc")
        self.ask(child, 1)
        image = load(self.ckpt("now", child.pid, "--json"))["image"]
        self.ask(child, 2)
        child.kill()
        child.wait()
        again = subprocess.run([RESTART, image], input=b"\n\n", stdout=subprocess.PIPE, timeout=60)
        self.assertEqual((again.returncode, again.stdout), (0, b"2\n3\n"))

    def test_strict(self):
        for what in ["strict", "beside"]:
            with self.subTest(what):
                child = self.start(what)
                self.ask(child, 1)
                self.refuse(UNSUPPORTED, ["strict seccomp", str(child.pid)], "now", child.pid)
                self.ask(child, 2)

    def test_strict_and_an_interval(self):
        # Another program with this interval, which forbids itself nothing: its checkpoints tell when the interval has passed.
        other = subprocess.Popen([CKPT, "run", "--dir", self.path("other"), "--every", "10ms", "--", "/bin/cat"], stdin=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL, env=clean_environment())
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        self.addCleanup(other.stdin.close)

        def newest():
            self.assertIsNone(other.poll())
            images = sorted(os.listdir(self.path("other"))) if os.path.exists(self.path("other")) else []
            return max([int(image.split(".")[-2]) for image in images if image.endswith(".ckpt")], default=0)

        for what in ["strict", "beside"]:
            with self.subTest(what):
                child = self.start(what, CKPT_EVERY="10ms")
                for i in range(1, 9):
                    self.ask(child, i)
                    before = newest()
                    while newest() < before + 2:
                        time.sleep(0.001)
                self.assertIsNone(child.poll())


if __name__ == "__main__":
    unittest.main()
