#!/usr/bin/env python3
"""What a traced program has done or made when a checkpoint comes: calls that are half done, threads and children that have ended, memory below its
stack, memory that is not there yet. All goes on as without a checkpoint, or is refused by name.
  made.py [Made.test_... ...]
"""
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from job_tree import CKPT, PATIENCE, Tree, adopt_orphans, environment, root_of, state_of, wait_for  # noqa: E402

adopt_orphans()
TRACER = os.path.join(os.environ["CKPT_BUILD"], "tests", "jobs", "jobs_made_tracer")


class Made(unittest.TestCase):
    def begin(self, kind, settings=""):
        os.environ["JOB_TREE_SETTINGS"] = settings
        tree = Tree(f"tracing-{kind}", [TRACER, kind])
        self.addCleanup(lambda: tree.close(False))
        tree.run()
        os.environ.pop("JOB_TREE_SETTINGS")
        wait_for(lambda: os.path.exists(os.path.join(tree.work, "ready")), f"{kind} to be ready")
        return tree

    def touch(self, tree, name):
        open(os.path.join(tree.work, name), "wb").close()

    def tracee(self, tree):
        with open(os.path.join(tree.work, "tracee"), encoding="ascii") as f:
            return int(f.read())

    def now(self, tree):
        return subprocess.run([CKPT, "now", str(tree.child.pid)], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)

    def finish(self, tree, said):
        self.touch(tree, "go")
        if tree.command[1] == "large":
            self.touch(tree, "end")
        code, output = tree.finish()
        self.assertEqual((code, output.decode()), (0, said), tree.said())

    def as_without(self, kind, said, *options):
        """Without a checkpoint, behind three of them, and behind two restarts."""
        self.finish(self.begin(kind), said)
        tree = self.begin(kind)
        for _ in range(3):
            tree.checkpoint(tree.child.pid)
        self.finish(tree, said)
        tree = self.begin(kind)
        pid = tree.child.pid
        for _ in range(2):
            job = tree.checkpoint(pid)
            tree.kill()
            pid = root_of(tree.restart(job, *options))
        self.finish(tree, said)

    def refused(self, kind, why, said):
        self.finish(self.begin(kind), said)
        tree = self.begin(kind)
        done = self.now(tree)
        self.assertEqual(done.returncode, 69, done.stdout + done.stderr)
        self.assertIn(why, done.stderr)
        self.finish(tree, said)

    def test_a_write_that_is_half_done(self):
        self.as_without("writes", "300000 bytes, 0 bad, 700\n")

    def test_a_step_that_is_a_call(self):
        self.as_without("steps", "57f, 57f, 1, 700\n")

    def test_a_call_of_the_librarys_own(self):
        self.as_without("executes", "700\n")

    def test_what_is_below_the_stack(self):
        self.as_without("below", "57f, 0 differ, 700\n")

    def test_memory_is_there_behind_a_lazy_restart(self):
        self.as_without("large", "57f, 0 bad, 700\n", "--lazy")

    def test_memory_is_written_to_while_it_is_copied(self):
        tree = self.begin("large", "CKPT_TEST_POINT=fork.go=wait")
        mark = os.path.join(tree.work, f"{self.tracee(tree):010}.waits")
        with subprocess.Popen([CKPT, "now", str(tree.child.pid)], env=environment(), stdout=subprocess.DEVNULL) as asks:
            wait_for(lambda: os.path.exists(mark), "all to go on")
            self.touch(tree, "go")
            wait_for(lambda: os.path.exists(os.path.join(tree.work, "written")), "the tracer to write")
            os.unlink(mark)
            self.assertEqual(asks.wait(PATIENCE), 0)
        self.finish(tree, "57f, 0 bad, 700\n")

    def test_no_room_on_the_stack(self):
        self.refused("narrow", "stack", "57f, 700\n")

    def test_a_child_has_ended(self):
        self.refused("ends", "has ended", "0, 700\n")

    def test_a_thread_has_ended(self):
        self.refused("thread_ends", "has ended", "0, 700\n")

    def test_a_child_of_which_nobody_has_asked(self):
        self.refused("forks", "just been attached", "137f, 0, 700\n")

    def test_a_child_in_its_parents_memory(self):
        self.refused("vforks", "vfork", "0, 700\n")

    def test_the_tracee_is_killed_meanwhile(self):
        """Its end is left for the program's wait(2)."""
        for point in ("tracing.comes", "tracing.delivers", "tracing.delivered", "tracing.marker", "tracing.sent", "tracing.returned"):
            with self.subTest(point):
                tree = self.begin("plain", f"CKPT_TEST_POINT={point}=wait")
                mark, tracee = os.path.join(tree.work, f"{tree.child.pid:010}.waits"), self.tracee(tree)
                with subprocess.Popen([CKPT, "now", str(tree.child.pid)], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as asks:
                    wait_for(lambda path=mark: os.path.exists(path), "the point")
                    os.kill(tracee, signal.SIGKILL)
                    wait_for(lambda pid=tracee: state_of(pid) == "Z", "the tracee to end")
                    os.unlink(mark)
                    asks.wait(PATIENCE)
                self.finish(tree, "57f, 9\n")

    def test_tracing_begins_meanwhile(self):
        """The checkpoint is taken again, with it."""
        tree = self.begin("begins", "CKPT_TEST_POINT=coordinator.held=wait")
        mark, end = os.path.join(tree.work, f"{tree.child.pid:010}.waits"), threading.Event()

        def let_go():
            while not end.is_set():
                if os.path.exists(mark) and os.path.exists(os.path.join(tree.work, "attached")):
                    os.unlink(mark)
                time.sleep(0.01)

        thread = threading.Thread(target=let_go)
        thread.start()
        try:
            attach = threading.Thread(target=lambda: (wait_for(lambda: os.path.exists(mark), "the point"), self.touch(tree, "attach")))
            attach.start()
            job = tree.checkpoint(tree.child.pid)
            attach.join()
            tree.kill()
            root_of(tree.restart(job))
        finally:
            end.set()
            thread.join()
        self.finish(tree, "80057f, 700\n")


if __name__ == "__main__":
    unittest.main()
