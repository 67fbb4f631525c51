#!/usr/bin/env python3
"""A process of the job traces another one (ptrace): after a checkpoint, and after a restart from it, the tracer finds registers,
siginfo, signal mask and wait statuses as they were; gdb goes on at its breakpoint.
  tracing.py [Tracing.test_held ...]
"""
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from job_tree import CKPT, NOBODY, PATIENCE, Tree, adopt_orphans, environment, root_of, wait_for  # noqa: E402

adopt_orphans()
TRACER = os.path.join(os.environ["CKPT_BUILD"], "tests", "jobs", "jobs_tracer")


class Tracing(unittest.TestCase):
    def tree(self, name, command, **how):
        tree = Tree(f"tracing-{name}", command, **how)
        self.addCleanup(lambda: tree.close(any(error for _, error in getattr(getattr(self._outcome, "result", None), "failures", []))))
        return tree

    def at(self, tree, name):
        return os.path.join(tree.work, name)

    def touch(self, tree, name):
        open(self.at(tree, name), "wb").close()

    def begin(self, kind, uid=0):
        tree = self.tree(kind, [TRACER, kind], uid=uid)
        tree.run()
        self.pid = tree.child.pid
        wait_for(lambda: os.path.exists(self.at(tree, "ready")), f"{kind} to be ready")
        return tree

    def finish(self, tree, said):
        self.touch(tree, "go")
        code, output = tree.finish()
        self.assertEqual((code, output.decode()), (0, said), tree.said())

    def both(self, kind, said, uid=0, generations=2):
        # The program goes on after three checkpoints.
        tree = self.begin(kind, uid)
        for _ in range(3):
            tree.checkpoint(tree.child.pid)
        self.finish(tree, said)
        # It comes back, several times.
        tree = self.begin(kind, uid)
        for _ in range(generations):
            job = tree.checkpoint(self.pid)
            tree.kill()
            self.pid = root_of(tree.restart(job))
        self.finish(tree, said)

    def test_held_at_a_breakpoint(self):
        self.both("held", "same 7 stops 4\n")

    def test_of_a_user(self):
        self.both("held", "same 7 stops 4\n", uid=NOBODY)

    def test_stop_that_was_not_told_yet(self):
        self.both("untold", "same 7 stops 4\n")

    def test_signal_in_a_call(self):
        self.both("read", "same 7 stops 0\n")

    def test_signal_in_a_sleep(self):
        self.both("sleep", "same 7 stops 0\n")

    def test_runs(self):
        self.both("run", "exited 7\n")

    def test_seized(self):
        self.both("seize", "same 7 stops 4\n")

    def test_debug_registers(self):
        self.both("debug", "same 7 stops 4\n")

    def test_stops_of_system_calls(self):
        for kind in ["syscall", "syscall_sysgood", "syscall_untold", "syscall_exit", "syscall_exit_sysgood_untold"]:
            with self.subTest(kind):
                self.both(kind, "same 7 stops 5\n")

    def test_stop_of_an_event_is_refused(self):
        tree = self.begin("fork")
        done = subprocess.run([CKPT, "now", str(tree.child.pid)], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 69, done.stdout + done.stderr)
        self.assertIn("event", done.stderr)
        self.assertIn("traces", done.stderr)
        tree.kill()


if __name__ == "__main__":
    unittest.main()
