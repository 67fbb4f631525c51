"""Which of our threads goes before the program's, and when (libckpt_rt/core/threads/of_ours/urgency.h)."""

import contextlib
import signal
import time

from support import *

OF_PROGRAM = 3
# Also where the tests themselves run with a nice value.
NICE = os.getpriority(os.PRIO_PROCESS, 0) + OF_PROGRAM


def await_(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.005)


def fields(path):
    with open(path, encoding="utf-8") as f:
        return f.read().rsplit(")", 1)[1].split()


def threads(pid):
    """The fields of each thread; those that end meanwhile, as a checkpoint's may, have none."""
    found = []
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append(fields(f"/proc/{pid}/task/{tid}/stat"))
    return found


class Urgency(CkptTest):
    def stopped_at(self, point, mode):
        """A nice program whose checkpoint has come to `point`, where all of it is stopped."""
        child = subprocess.Popen([CKPT, "run", "--dir", self.path("images"), "--mode", mode, "--stop-timeout", "60s", "--", "/usr/bin/python3", "-c",
                                  f"import os, time; os.nice({OF_PROGRAM}); print('up', flush=True); time.sleep(600)"],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={**clean_environment(), "CKPT_TEST_POINT": f"{point}=stop"})
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        self.assertEqual(child.stdout.readline(), b"up\n")
        asker = subprocess.Popen([CKPT, "now", str(child.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=clean_environment())
        self.addCleanup(asker.communicate)
        self.addCleanup(asker.kill)
        # The first thread may wait for a page meanwhile, which the thread that would bring it cannot while it is stopped.
        await_(lambda: any(thread[0] == "T" for thread in threads(child.pid)), point)
        return child, asker

    def stopped_writer(self, pid):
        """The child that writes the image of `pid`, when it is stopped."""
        def writers():
            born = []
            for tid in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{tid}/children", encoding="utf-8") as f:
                    born += f.read().split()
            return [int(child) for child in born if fields(f"/proc/{child}/stat")[0] == "T"]
        await_(writers, "the child to stop")
        (writer,) = writers()
        return writer

    def niceness(self, pid):
        return sorted(int(thread[16]) for thread in threads(pid))

    def goes_on(self, asker, *pids):
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        said = asker.communicate(timeout=60)[1]
        self.assertEqual(asker.returncode, OK, said)

    def test_none_but_who_serves_faults_while_memory_is_copied(self):
        child, asker = self.stopped_at("copy.go", "realtime")
        ours = self.niceness(child.pid)
        self.assertLessEqual(ours.count(-20), 1)
        self.assertEqual(set(ours) - {-20}, {NICE})
        self.assertGreaterEqual(len(ours), 2)
        self.goes_on(asker, child.pid)

    def test_not_the_child_that_writes(self):
        child, asker = self.stopped_at("fork.child", "fork")
        writer = self.stopped_writer(child.pid)
        self.assertEqual(self.niceness(writer), [NICE])
        self.goes_on(asker, child.pid, writer)

    def test_the_child_may_write_on_any_processor(self):
        """It begins on that of the agent, and may then go to others."""
        child, asker = self.stopped_at("fork.table", "fork")
        writer = self.stopped_writer(child.pid)
        os.kill(child.pid, signal.SIGCONT)  # the agent may not have come to it yet
        await_(lambda: os.sched_getaffinity(writer) == os.sched_getaffinity(child.pid), "the child to be let go")
        self.goes_on(asker, writer)


if __name__ == "__main__":
    unittest.main()
