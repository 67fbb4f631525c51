"""Another checkpointer saves a process: a static program is a child in a job, and is dumped by CRIU in the job's checkpoint, restored by it in
the job's restart (examples/plugins/criu.c). CRIU: in CKPT_PEERS (a directory), or in PATH; needs root."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from own_pids import enter_own_pids  # noqa: E402  pylint: disable=wrong-import-position

CKPT, RESTART, PLUGIN, COUNTER = (os.environ[n] for n in ("CKPT", "CKPT_RESTART", "CKPT_CRIU_PLUGIN", "CKPT_COUNTER"))


def find_criu():
    for path in (os.path.join(os.environ.get("CKPT_PEERS", "/nowhere"), "criu"), shutil.which("criu")):
        if path and os.access(path, os.X_OK) and subprocess.run([path, "check"], capture_output=True, check=False).returncode == 0:
            return path
    return None


CRIU = find_criu() if os.geteuid() == 0 else None


@unittest.skipUnless(CRIU, "no criu in CKPT_PEERS or PATH that works here (criu check), or not root")
class Criu(unittest.TestCase):
    JOB = ("./counter number sum < /dev/null > /dev/null 2>&1 & child=$!; echo $child; while [ ! -e end ]; do :; done; "
           "kill $child; wait $child; echo status $?; cat sum")

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ckpt-criu.")
        self.addCleanup(shutil.rmtree, self.dir, True)
        shutil.copy(COUNTER, self.dir + "/counter")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
        self.environment["CKPT_CRIU"] = CRIU

    def begin(self, words):
        job = subprocess.Popen(words, env=self.environment, cwd=self.dir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)
        self.addCleanup(self.end, job)
        return job

    def start(self, *options, script=JOB):
        return self.begin([CKPT, "run", "--dir", self.dir + "/images", "--stop-timeout", "20s", "--prepare-timeout", "20s", *options, "--", "sh", "-c", script])

    def end(self, job):
        try:
            os.killpg(job.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        job.wait()
        job.stdout.close()
        job.stderr.close()

    def now(self, pid, *options):
        return subprocess.run([CKPT, "now", *options, str(pid)], capture_output=True, text=True, env=self.environment, timeout=120, check=False)

    def number(self):
        try:
            with open(self.dir + "/number", encoding="ascii") as f:
                return int((f.read() or "0").split()[0])
        except FileNotFoundError:
            return 0

    def grows(self):
        first = self.number()
        end = time.monotonic() + 60
        while self.number() <= first:
            self.assertLess(time.monotonic(), end, "the counter stands still")
            time.sleep(0.01)

    def finish(self, job, child):
        open(self.dir + "/end", "w", encoding="ascii").close()
        said = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, said)
        status, number = said[0].splitlines()
        self.assertEqual(status, "status 7")
        self.assertEqual(number.split()[1:], ["right", str(child)])

    def test_two_lives(self):
        job = self.start("--plugins", PLUGIN)
        child, root = int(job.stdout.readline()), job.pid
        for _ in range(2):  # twice, so that the second life begins in a restarted checkpoint of a restarted process
            self.grows()
            taken = self.now(root)
            self.assertEqual(taken.returncode, 0, taken.stderr)
            self.grows()
            newest = sorted(n for n in os.listdir(self.dir + "/images") if n.endswith(".job"))[-1]
            with open(f"{self.dir}/images/{newest}/manifest.json", encoding="ascii") as f:
                left_out = json.load(f)["left_out"]
            self.assertEqual([(o["pid"], o["reason"]) for o in left_out], [(child, "saved by criu")])
            os.kill(child, signal.SIGKILL)
            os.kill(root, signal.SIGKILL)
            self.end(job)
            end = time.monotonic() + 60
            while os.path.exists(f"/proc/{child}") or os.path.exists(f"/proc/{root}"):  # until whoever has it now has waited for it
                self.assertLess(time.monotonic(), end)
                time.sleep(0.01)
            job = self.begin([RESTART, self.dir + "/images"])
            self.grows()
        self.finish(job, child)

    def test_one_life(self):
        """A checkpoint changes nothing for the program."""
        job = self.start("--plugins", PLUGIN)
        child = int(job.stdout.readline())
        self.grows()  # it is the static program, not the shell's fork any more
        taken = self.now(job.pid)
        self.assertEqual(taken.returncode, 0, taken.stderr)
        self.grows()
        self.finish(job, child)

    def test_without_it_the_job_is_refused(self):
        job = self.start()
        child = int(job.stdout.readline())
        self.grows()  # it is the static program, not the shell's fork any more
        taken = self.now(job.pid)
        self.assertEqual(taken.returncode, 78, taken.stderr)
        self.assertIn(f"process {child} (counter)", taken.stderr)

    def test_what_criu_refuses(self):
        """A pipe with its other end in another process: the checkpoint is given up with the plug-in's words, and both go on."""
        job = self.start("--plugins", PLUGIN, script="sh -c 'echo there; while [ ! -e end ]; do :; done' | ./counter number sum > /dev/null 2>&1 & echo begun; wait")
        job.stdout.readline()
        self.grows()
        taken = self.now(job.pid)
        self.assertEqual(taken.returncode, 69, taken.stderr)
        self.assertRegex(taken.stderr, "plug-in criu: process [0-9]+ has a pipe or socket")
        self.grows()
        self.assertFalse([n for n in os.listdir(self.dir + "/images") if n.endswith(".job")])


if __name__ == "__main__":
    enter_own_pids()
    unittest.main()
