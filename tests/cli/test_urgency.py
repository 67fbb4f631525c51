"""Which of our threads goes before the program's, and when (libckpt_rt/core/threads/urgency.h)."""

import signal
import time

from support import *

NICE = 3


def await_(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.005)


def fields(path):
    with open(path, encoding="utf-8") as f:
        return f.read().rsplit(")", 1)[1].split()


class Urgency(CkptTest):
    def stopped_at(self, point, mode):
        """A nice program whose checkpoint has come to `point`, where all of it is stopped."""
        child = subprocess.Popen([CKPT, "run", "--dir", self.path("images"), "--mode", mode, "--stop-timeout", "60s", "--", "/usr/bin/python3", "-c",
                                  f"import os, time; os.nice({NICE}); print('up', flush=True); time.sleep(600)"],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={**clean_environment(), "CKPT_TEST_POINT": f"{point}=stop"})
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        self.assertEqual(child.stdout.readline(), b"up\n")
        asker = subprocess.Popen([CKPT, "now", str(child.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=clean_environment())
        self.addCleanup(asker.communicate)
        self.addCleanup(asker.kill)
        await_(lambda: fields(f"/proc/{child.pid}/stat")[0] == "T", point)
        return child, asker

    def niceness(self, pid):
        return sorted(int(fields(f"/proc/{pid}/task/{tid}/stat")[16]) for tid in os.listdir(f"/proc/{pid}/task"))

    def goes_on(self, asker, *pids):
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        said = asker.communicate(timeout=60)[1]
        self.assertEqual(asker.returncode, OK, said)

    def test_while_threads_wait_for_the_agent(self):
        for point in ("stop.standing", "stop.captured"):
            with self.subTest(point):
                child, asker = self.stopped_at(point, "realtime")
                if os.geteuid() == 0:
                    self.assertIn(-20, self.niceness(child.pid))
                self.goes_on(asker, child.pid)

    def test_none_but_who_serves_faults_while_memory_is_copied(self):
        child, asker = self.stopped_at("copy.go", "realtime")
        ours = self.niceness(child.pid)
        self.assertLessEqual(ours.count(-20), 1)
        self.assertEqual(set(ours) - {-20}, {NICE})
        self.assertGreaterEqual(len(ours), 3)
        self.goes_on(asker, child.pid)

    def test_not_the_child_that_writes(self):
        child, asker = self.stopped_at("fork.child", "fork")
        with open(f"/proc/{child.pid}/task/{child.pid}/children", encoding="utf-8") as f:
            born = f.read().split()
        for tid in os.listdir(f"/proc/{child.pid}/task"):
            with open(f"/proc/{child.pid}/task/{tid}/children", encoding="utf-8") as f:
                born += f.read().split()
        (writer,) = set(born)
        await_(lambda: fields(f"/proc/{writer}/stat")[0] == "T", "the child to stop")
        self.assertEqual(self.niceness(writer), [NICE])
        self.goes_on(asker, child.pid, int(writer))


if __name__ == "__main__":
    unittest.main()
