"""Members of a job, or the one that leads its checkpoint, killed at each named point: the others go on, and no image is torn."""

import glob
import json
import os
import shutil
import signal
import unittest

from capture_support import BUSY, clean, stat_of, processor_time, wait_for, Job


class Kill(Job):
    MEMBER = ["member.joined", "member.prepared", "member.held", "member.stopped", "member.standing", "member.sampled", "member.go",
              "member.image", "member.written", "member.done"]
    COORDINATOR = ["coordinator.asked", "coordinator.armed", "coordinator.prepared", "coordinator.held", "coordinator.stop", "coordinator.stopped", "coordinator.standing",
              "coordinator.samples", "coordinator.sampled", "coordinator.go", "coordinator.image", "coordinator.written", "coordinator.manifest", "coordinator.renamed"]
    SETTINGS = {}

    def kill_at(self, point, program, asked):
        """bash, which runs, with cat and sleep below; `program` kills itself at the point."""
        env = clean(CKPT_TEST_POINT=f"{point}@{program}=kill:2", **self.SETTINGS)
        child = self.start("bash", "-c", f"echo up; sleep 1000 & cat & {BUSY}", ready="up", env=env)
        names = self.settle_named(child.pid, "bash", "cat", "sleep")
        first = self.now(names[asked])
        self.assertEqual(first["mode"], self.SETTINGS.get("CKPT_MODE", first["mode"]))
        done = self.run_ckpt("now", "--json", names[asked])
        wait_for(f"death at {point}", lambda: (stat_of(names[program]) or (0, "Z"))[1] in "ZX")
        self.check_rest(first, done, names, program)

    def check_rest(self, first, done, names, program):
        alive = [p for n, p in names.items() if n != program]
        # Whoever computes goes on to compute; nobody stands.
        if program != "bash":
            before = processor_time(names["bash"])
            wait_for("bash goes on", lambda: processor_time(names["bash"]) > before)
        # What has its final name is whole; what is left of others goes with the next checkpoint at the latest.
        self.assertTrue(os.path.isdir(first["job"]))
        for job in glob.glob(self.images + "/*.job"):
            verified = self.run_ckpt("verify", job)
            self.assertEqual(verified.returncode, 0, verified.stderr)
        self.assertEqual(glob.glob(self.images + "/*.job/*.tmp"), [])
        if done.returncode == 0:
            self.assertTrue(os.path.isdir(json.loads(done.stdout)["job"]))
        answer = self.now(alive[0])
        self.assertIn(alive[0], [m["pid"] for m in self.manifest(answer)["members"]])
        self.assertEqual(self.leftovers(), [])
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        wait_for("their ends", lambda: all((stat_of(pid) or (0, "X"))[1] in "ZX" for pid in alive))
        shutil.rmtree(self.images)

    def test_members(self):
        for point in self.MEMBER:
            with self.subTest(point=point):
                self.kill_at(point, "cat", "bash")

    def test_coordinator(self):
        for point in self.COORDINATOR:
            with self.subTest(point=point):
                self.kill_at(point, "sleep", "sleep")


class KillGuarded(Kill):
    """The same where the thread that writes handles its own fault: the guard is open while all stand."""

    SETTINGS = {"CKPT_FAULTS": "in-thread"}


class KillProtected(Kill):
    SETTINGS = {"CKPT_FAULTS": "mprotect"}


class KillForked(Kill):
    SETTINGS = {"CKPT_MODE": "fork"}


class KillSequential(Kill):
    """Shared memory is written while all stand, and nobody has a deadline."""

    MEMBER = [*Kill.MEMBER, "member.shared"]
    COORDINATOR = [*Kill.COORDINATOR, "member.shared"]
    SETTINGS = {"CKPT_MODE": "sequential"}


class KillConcurrent(Kill):
    SETTINGS = {"CKPT_MODE": "concurrent"}


class KillWatched(Kill):
    """With the watch that a checkpoint leaves to the next: the second one, in which they are killed, is an increment."""

    SETTINGS = {"CKPT_INCREMENTS": "3", "CKPT_MODE": "realtime"}


if __name__ == "__main__":
    unittest.main()
