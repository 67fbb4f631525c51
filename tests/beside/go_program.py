#!/usr/bin/env python3
"""A static program of Go's own compiler (go/busy.go): under checkpoints in each mode, killed and brought back again and again, its output is that of
an uninterrupted run."""
import glob
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from own_network import enter_own_network  # noqa: E402
from own_pids import enter_own_pids  # noqa: E402

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART = (os.path.join(BUILD, "bin", n) for n in ("ckpt", "ckpt-restart"))
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "go", "busy.go")
LONG = os.environ.get("CKPT_LONG") == "1"
ROUNDS = "100"
PATIENCE = 300  # seconds
WAYS = [["--mode", mode] for mode in ("realtime", "realtime-large", "standing", "concurrent", "sequential", "fork")]
WAYS += [["--faults", "in-thread"], ["--faults", "mprotect"], ["--mode", "realtime", "--increments", "4"]]


class GoProgram(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        go = shutil.which("go")
        if go is None:
            print("no compiler of Go here")
            raise unittest.SkipTest("no compiler of Go here")
        cls.directory = tempfile.mkdtemp(prefix="ckpt-go-")
        cls.addClassCleanup(shutil.rmtree, cls.directory, ignore_errors=True)
        cls.program = os.path.join(cls.directory, "busy")
        cls.environment = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
        cls.environment["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
        subprocess.run([go, "build", "-o", cls.program, SOURCE], check=True, cwd=cls.directory,
                       env={**cls.environment, "CGO_ENABLED": "0", "GOCACHE": os.path.join(cls.directory, "cache"), "GO111MODULE": "off"})
        cls.expected = subprocess.run([cls.program, ROUNDS], check=True, capture_output=True, text=True, timeout=PATIENCE).stdout

    def start(self, name, *words):
        with open(os.path.join(self.directory, name), "a", encoding="ascii") as out:
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True, cwd=self.directory,
                                    env=self.environment)

    def test_each_way(self):
        for way in WAYS:
            with self.subTest(" ".join(way)):
                images, end = (os.path.join(self.directory, name) for name in ("each", "end"))
                child = self.start("out", CKPT, "run", "--dir", images, *way, "--every", "50ms", "--", self.program, ROUNDS, end)
                # Its rounds may be over before one is durable, where others copy while it runs on.
                self.await_image(child, images)
                with open(end, "w", encoding="ascii"):
                    pass
                err = child.communicate(timeout=PATIENCE)[1]
                os.unlink(end)
                with open(os.path.join(self.directory, "out"), encoding="ascii") as out:
                    self.assertEqual((child.returncode, out.read()), (0, self.expected), err)
                os.unlink(os.path.join(self.directory, "out"))
                shutil.rmtree(images)

    @staticmethod
    def await_image(child, images):
        while child.poll() is None and not any(glob.glob(os.path.join(images, "*." + kind)) for kind in ("ckpt", "job")):
            time.sleep(0.01)

    def test_killed_and_brought_back(self):
        seed = int(os.environ.get("CKPT_SEED", random.randrange(1 << 30)))
        chance = random.Random(seed)
        for trial in range(60 if LONG else 6):
            way = chance.choice(WAYS)
            with self.subTest(seed=seed, trial=trial, way=way):
                self.kill_again_and_again(f"killed{trial}", way, chance)

    def kill_again_and_again(self, name, way, chance):
        """Until it has ended: each life is a bit longer."""
        images = os.path.join(self.directory, name)
        child = self.start(name + ".out", CKPT, "run", "--dir", images, *way, "--every", "50ms", "--", self.program, ROUNDS)
        pid, life = child.pid, 1.0
        self.await_image(child, images)
        while True:
            try:
                err = child.communicate(timeout=chance.uniform(0.3, life))[1]
                break
            except subprocess.TimeoutExpired:
                life *= 1.3
            # Once its process is there ckpt-restart ends with it, and has reaped it: the number is free for the next.
            os.kill(pid if os.path.exists(f"/proc/{pid}") else child.pid, signal.SIGKILL)
            child.communicate()
            child = self.start(name + ".out", RESTART, images)
        with open(os.path.join(self.directory, name + ".out"), encoding="ascii") as out:
            self.assertEqual((child.returncode, out.read()), (0, self.expected), err)
        shutil.rmtree(images)


if __name__ == "__main__":
    enter_own_pids()
    enter_own_network()
    sys.exit(unittest.main())
