#!/usr/bin/env python3
"""What a tracer has asked for, and the kernel tells nobody: calls that it emulates or skips, and options that it gave ahead of another program or
to the process that made its tracee. Each is as without a checkpoint, or refused by name.
  wishes.py [Wishes.test_... ...]
"""
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from job_tree import CKPT, PATIENCE, SIGNAL, Tree, adopt_orphans, environment, root_of, wait_for  # noqa: E402

adopt_orphans()
TRACER = os.path.join(os.environ["CKPT_BUILD"], "tests", "jobs", "jobs_wishes_tracer")


def pending_of(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(f.read().split("\nShdPnd:\t")[1].split("\n")[0], 16)


class Wishes(unittest.TestCase):
    def begin(self, kind):
        tree = Tree(f"tracing-{kind}", [TRACER, kind])
        self.addCleanup(lambda: tree.close(False))
        tree.run()
        wait_for(lambda: os.path.exists(os.path.join(tree.work, "ready")), f"{kind} to be ready")
        return tree

    def read(self, tree, name):
        with open(os.path.join(tree.work, name), encoding="ascii") as f:
            return f.read()

    def now(self, tree):
        return subprocess.run([CKPT, "now", str(tree.child.pid)], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)

    def finish(self, tree, said, got=None):
        open(os.path.join(tree.work, "go"), "wb").close()
        code, output = tree.finish()
        self.assertEqual((code, output.decode()), (0, said), tree.said())
        if got is not None:
            self.assertEqual(self.read(tree, "got"), got)

    def as_without(self, kind, said, got=None):
        """Without a checkpoint, behind two of them, and behind a restart."""
        self.finish(self.begin(kind), said, got)
        tree = self.begin(kind)
        for _ in range(2):
            tree.checkpoint(tree.child.pid)
        self.finish(tree, said, got)
        tree = self.begin(kind)
        job = tree.checkpoint(tree.child.pid)
        tree.kill()
        root_of(tree.restart(job))
        self.finish(tree, said, got)

    def test_calls_that_the_kernel_is_not_to_make(self):
        """The tracer has taken the number away, or lets the tracee go on by PTRACE_SYSEMU; the result is what it writes."""
        for kind in ("skips", "emulates", "emulates_later", "steps"):
            with self.subTest(kind):
                self.as_without(kind, "same registers, 700\n", "1234")

    def killed(self, kind, point):
        os.environ["JOB_TREE_SETTINGS"] = f"CKPT_TEST_POINT={point}"
        tree = self.begin(kind)
        os.environ.pop("JOB_TREE_SETTINGS")
        self.now(tree)
        tree.child.wait(PATIENCE)
        wait_for(lambda: os.path.exists(os.path.join(tree.work, "got")), f"the tracee to go on ({point})")
        return self.read(tree, "got")

    def test_the_tracer_is_killed_behind_a_call_that_it_emulates(self):
        names = ["tracing.coming", "tracing.delivered", "tracing.marker", "tracing.returned", "tracing.back"]
        for kind in ("skips", "emulates"):
            for point in [f"{name}=kill" for name in names] + [f"tracing.goes=kill:{n}" for n in range(1, 4)]:
                with self.subTest(kind=kind, point=point):
                    # ENOSYS: it is on its way to that stop once more (docs/tracing.md). The kernel makes no call there either.
                    self.assertEqual(self.killed(kind, point), "-38" if point == "tracing.goes=kill:3" else "1234")

    def test_a_queued_signal_comes_once(self):
        """Of one of which its tracer was not told yet, and which it has sent to the tracee again when it is killed."""
        self.assertEqual(self.killed("queued", "tracing.sent=kill"), "1")

    def test_the_signal_of_a_stop_is_given_to_one_that_was_seized(self):
        self.as_without("stops", "80137f, ended\n")

    def test_options_of_the_process_that_made_the_tracee(self):
        self.as_without("lets_go", "fork told, 700\n")

    def test_options_of_one_whose_maker_is_gone(self):
        self.as_without("orphan", "fork told, 700\n")

    def test_options_given_ahead_of_another_program(self):
        """Also where it has set them again: whether the tracee was seized, nobody tells."""
        for kind in ("exec", "exec_sets"):
            with self.subTest(kind):
                self.finish(self.begin(kind), "fork told, 700\n")
                tree = self.begin(kind)
                done = self.now(tree)
                self.assertEqual(done.returncode, 69, done.stdout + done.stderr)
                self.assertIn("PTRACE_SETOPTIONS", done.stderr)
                self.finish(tree, "fork told, 700\n")

    def test_options_given_ahead_of_another_program_and_the_tracee_is_saved_alone(self):
        """Each of its calls is stopped, so it is held behind our handler; its options stay."""
        self.finish(self.begin("exec_calls"), "fork told, 700\n")
        tree = self.begin("exec_calls")
        tracee = int(self.read(tree, "tracee"))
        with subprocess.Popen([CKPT, "now", "--only", str(tracee)], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as asks:
            # It is held in a stop, and takes the request when it goes on.
            wait_for(lambda: pending_of(tracee) >> (SIGNAL - 1) & 1, "the request to be there")
            self.finish(tree, "fork told, 700\n")
            asks.wait(PATIENCE)


if __name__ == "__main__":
    unittest.main()
