#!/usr/bin/env python3
"""Tracers and tracees that are seldom so: a signal of the marker's number waits, no descriptor is left, SIGSTOP was not told yet, a thread
of the tracer or the tracee is deaf or busy, another thread waits. All comes back as it was, or is refused by name; nobody waits for ever.
  odd.py [Odd.test_... ...]
"""
import os
import signal
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from job_tree import CKPT, PATIENCE, RESTART, Tree, adopt_orphans, environment, root_of, state_of, wait_for  # noqa: E402

adopt_orphans()
TRACER = os.path.join(os.environ["CKPT_BUILD"], "tests", "jobs", "jobs_odd_tracer")


class Odd(unittest.TestCase):
    def begin(self, kind):
        tree = Tree(f"tracing-{kind}", [TRACER, kind])
        self.addCleanup(lambda: tree.close(False))
        tree.run()
        wait_for(lambda: os.path.exists(os.path.join(tree.work, "ready")), f"{kind} to be ready")
        return tree

    def touch(self, tree, name):
        open(os.path.join(tree.work, name), "wb").close()

    def tracee(self, tree):
        with open(os.path.join(tree.work, "tracee"), encoding="ascii") as f:
            return int(f.read())

    def finish(self, tree, said):
        self.touch(tree, "go")
        code, output = tree.finish()
        self.assertEqual((code, output.decode()), (0, said), tree.said())

    def both(self, kind, said="same 7\n", checkpoints=3):
        tree = self.begin(kind)
        for _ in range(checkpoints):
            tree.checkpoint(tree.child.pid)
        self.finish(tree, said)
        tree = self.begin(kind)
        pid = tree.child.pid
        for _ in range(2):
            job = tree.checkpoint(pid)
            tree.kill()
            pid = root_of(tree.restart(job))
        self.finish(tree, said)

    def refused(self, kind, why, said="same 7\n"):
        tree = self.begin(kind)
        done = subprocess.run([CKPT, "now", str(tree.child.pid)], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 69, done.stdout + done.stderr)
        self.assertIn(why, done.stderr)
        self.finish(tree, said)

    def test_a_signal_of_the_same_number_waits(self):
        self.both("pending")

    def test_no_descriptor_is_left(self):
        self.both("full")

    def test_a_stop_by_sigstop_was_not_told_yet(self):
        self.both("stop_untold", f"same -{int(signal.SIGKILL)}\n")

    def test_another_thread_of_the_tracee_runs(self):
        self.both("thread", checkpoints=30)

    def test_a_thread_of_the_tracer_takes_no_signals(self):
        self.both("deaf", checkpoints=8)

    def test_a_watchpoint_where_the_handler_writes(self):
        self.both("watches")

    def test_an_attempt_is_given_up_in_the_stop(self):
        """The tracing thread stands when another process of the job is killed."""
        os.environ["JOB_TREE_SETTINGS"] = "CKPT_TEST_POINT=member.standing@sleep=kill"
        self.addCleanup(os.environ.pop, "JOB_TREE_SETTINGS")
        for _ in range(5):
            tree = self.begin("third")
            tree.checkpoint(tree.child.pid)
            self.finish(tree, "same 7\n")

    def test_filters_of_system_calls_are_refused(self):
        self.refused("seccomp", "PTRACE_O_TRACESECCOMP")

    def test_a_thread_that_waits_for_others_tracees_is_refused(self):
        self.refused("waiter", "waits", "same 0\n")

    def test_wait_of_a_bad_pointer(self):
        tree = Tree("tracing-pointer", [TRACER, "bad_pointer"])
        self.addCleanup(lambda: tree.close(False))
        tree.start([CKPT, "run", "--dir", tree.images, "--", TRACER, "bad_pointer"], False)
        self.assertEqual(tree.finish(), (0, b"no signal\n"))

    def only(self, tree):
        done = subprocess.run([CKPT, "now", "--only", str(self.tracee(tree))], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return os.path.join(tree.images, max(n for n in os.listdir(tree.images) if n.endswith(".ckpt")))

    def test_an_image_of_one_says_what_it_lacks(self):
        tree = self.begin("plain")
        done = subprocess.run([CKPT, "now", "--only", str(tree.child.pid)], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        image = os.path.join(tree.images, max(n for n in os.listdir(tree.images) if n.endswith(".ckpt")))
        shown = subprocess.run([CKPT, "show", image], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
        self.assertIn(f"traces process {self.tracee(tree)}", " ".join(shown.split()))
        self.finish(tree, "same 7\n")

    def test_going_back_is_refused(self):
        tree = self.begin("plain")
        tree.checkpoint(tree.child.pid)
        done = subprocess.run([CKPT, "back", str(tree.child.pid)], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn("ptrace", done.stdout + done.stderr)
        self.finish(tree, "same 7\n")

    def test_the_tracer_ends_at_once(self):
        """It is killed when all has just come back: the tracee goes on without, and ends as nobody is there for its breakpoint."""
        tree = self.begin("plain")
        job = tree.checkpoint(tree.child.pid)
        tree.kill()
        report = tree.restart(job)
        root = root_of(report)
        tracee, = [p for p in report.get("outer_pids", report["processes"]) if p != root]
        os.kill(root, signal.SIGKILL)
        wait_for(lambda: not os.path.exists(f"/proc/{tracee}") or state_of(tracee) == "Z", "the tracee to end")

    def test_other_ways_to_wait(self):
        for kind in ["waits_by_wait", "waits_by_syscall"]:
            with self.subTest(kind):
                tree = self.begin(kind)
                self.only(tree)
                self.touch(tree, "on")
                code, output = tree.finish()
                self.assertEqual((code, output.decode()), (0, "1 700\n"))

    def test_a_tracee_alone_comes_back_beside_its_tracer(self):
        tree = self.begin("runs")
        tracer, tracee = tree.child, self.tracee(tree)
        image = self.only(tree)
        os.kill(tracee, signal.SIGKILL)
        wait_for(lambda: os.path.exists(os.path.join(tree.work, "ended")), "the tracer to see it end")
        self.touch(tree, "on")
        tree.start([RESTART, image], True)
        self.assertEqual(tree.finish()[0], 7, tree.said())
        self.touch(tree, "end")
        self.assertEqual(tracer.wait(PATIENCE), 0)


if __name__ == "__main__":
    unittest.main()
