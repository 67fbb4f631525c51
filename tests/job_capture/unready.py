"""Members that never get ready, and coordinators that say nothing, while the program runs: nobody waits for them without an end."""

import os
import signal
import subprocess
import unittest

from capture_support import BUSY, CKPT, STOP_TIMEOUT, Job, clean, stat_of, wait_for

# Two processes with memory that both write to.
SHARING = """
import mmap, os, signal
memory = mmap.mmap(-1, 1 << 20)
memory[:] = bytes([1]) * len(memory)
if os.fork() == 0: signal.pause()
print("up", flush=True)
signal.pause()
"""


class Unready(Job):
    def test_never_prepared(self):
        """It runs, and says nothing: the checkpoint is given up and names it, and the next one is taken."""
        # The shortest time to get ready. All are ready by then, and none is to stop, which is to take a hundredth of it.
        env = clean(CKPT_TEST_POINT="member.prepared@cat=wait", CKPT_STOP_TIMEOUT="100ms")
        child = self.start("bash", "-c", f"cd {self.directory}; echo up; sleep 1000 & cat & wait", ready="up", env=env)
        names = self.settle_named(child.pid, "bash", "cat", "sleep")
        done = self.run_ckpt("now", child.pid)
        waits = os.path.join(self.directory, f"{names['cat']:010}.waits")
        self.assertTrue(os.path.exists(waits))
        self.assertEqual(done.returncode, 75, done.stderr)
        self.assertIn(f"process {names['cat']} (cat) of the job was not ready in time", done.stderr)
        os.unlink(waits)
        wait_for("the member", lambda: self.run_ckpt("now", child.pid).returncode == 0)

    def test_no_descriptor_left(self):
        """It cannot take the checkpoint's directory, and says so."""
        child = self.start("bash", "-c", f"(ulimit -n 1; echo up; {BUSY}) & wait", ready="up")
        self.settle(child.pid, 2)
        done = self.run_ckpt("now", child.pid)
        self.assertEqual(done.returncode, 71, done.stderr)
        self.assertIn("raise 'ulimit -n'", done.stderr)
        self.assertEqual(self.leftovers(), [])

    def test_nobody_asks_any_more(self):
        """A member is not ready, and ckpt now is killed: the checkpoint is given up."""
        child = self.start("bash", "-c", f"cd {self.directory}; sleep 1000 & echo up; wait", ready="up",
                           options=["--stop-timeout", STOP_TIMEOUT], env=clean(CKPT_TEST_POINT="member.prepared@sleep=wait"))
        sleep = self.settle_named(child.pid, "bash", "sleep")["sleep"]
        waits = os.path.join(self.directory, f"{sleep:010}.waits")
        with subprocess.Popen([CKPT, "now", str(child.pid)], env=clean()) as asker:
            wait_for("the member", lambda: os.path.exists(waits))
            asker.kill()
        wait_for("the end of the checkpoint", lambda: "whoever asked for the checkpoint is gone" in self.log() and not self.leftovers(),
                 said=self.log)
        os.unlink(waits)
        self.now(child.pid)

    def test_coordinator_that_is_stopped(self):
        """A member that runs does not wait for it for ever, and takes other requests."""
        for point in ("prepared", "written"):
            with self.subTest(point=point):
                child = self.start("bash", "-c", f"echo up; sleep 1000 & {BUSY}", ready="up", options=["--stop-timeout", STOP_TIMEOUT],
                                   env=clean(CKPT_TEST_POINT=f"coordinator.{point}@sleep=stop"))
                names = self.settle_named(child.pid, "bash", "sleep")
                bash, sleep = names["bash"], names["sleep"]
                with subprocess.Popen([CKPT, "now", str(sleep)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      env=clean()) as asker:
                    wait_for("stop", lambda: stat_of(sleep)[1] == "T")
                    self.now(bash, "--only", "--timeout", "60s")  # it is silent as long as it waits
                    os.kill(sleep, signal.SIGCONT)
                    errors = asker.communicate(timeout=60)[1]
                # The member is asked anew, or what it had written counts.
                self.assertEqual(asker.returncode, 0, errors)
                self.assertEqual(self.now(bash)["members"], 2)
                self.assertEqual(self.leftovers(), [])

    def test_member_that_is_stopped_while_others_protect(self):
        """Others wait for what it has to copy: it does so all the same."""
        child = self.start("python3", "-c", SHARING, ready="up", env=clean(CKPT_TEST_POINT="member.go=stop"))
        self.settle(child.pid, 2)
        self.assertEqual(self.now(child.pid)["members"], 2)


if __name__ == "__main__":
    unittest.main()
