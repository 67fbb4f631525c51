#!/usr/bin/env python3
"""Memory that several processes of a job share and write to at full speed: protected by all of them, copied while they run.
  shared_memory.py [NAME...]
"""
import concurrent.futures
import glob
import json
import os
import signal
import subprocess
import sys
import time
import unittest

from job_tree import BUILD, CKPT, LONG, NOBODY, PATIENCE, Tree, adopt_orphans, descendants, environment, root_of
from stopped_threads import is_any_stopped

PROGRAM = os.path.join(BUILD, "tests", "jobs", "shared_job")
# One of the two counts in shared memory and in its own; the other waits.
COUNTS = r"""
import ctypes, mmap, os, sys, time
word = ctypes.c_long.from_buffer(mmap.mmap(-1, 4096))
count = os.open('count', os.O_RDWR | os.O_CREAT, 0o600)
child = os.fork()
own = 0
while not os.path.exists('stop'):
    if (child == 0) == (sys.argv[1] == 'child'):
        if word.value != own: break
        word.value = own + 1
        own += 1
        os.pwrite(count, f'{own:20}'.encode(), 0)
    time.sleep(0.001)
right = os.path.exists('stop')
if child == 0: os._exit(not right)
if os.waitpid(child, 0)[1] == 0 and right: print('ok', flush=True)
"""
PROTECTED = "are protected by all members"


def wait_for(what, condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: has not come in {PATIENCE} s")
        time.sleep(0.01)


class SharedMemory(unittest.TestCase):
    def tree(self, *arguments, uid=0, **settings):
        tree = Tree("shared", ["env", *(f"{k}={v}" for k, v in settings.items()), PROGRAM, *arguments], uid=uid)
        self.addCleanup(lambda: tree.close(self._outcome.result.failures or self._outcome.result.errors))
        return tree

    @staticmethod
    def workers(tree, count):
        wait_for("processes", lambda: len(descendants(tree.child.pid)) >= count)

    @staticmethod
    def lines(tree, text):
        with open(glob.glob(os.path.join(tree.images, "**", "ckpt_rt.log"), recursive=True)[0], errors="replace") as f:
            return [line for line in f if text in line]

    def end(self, tree, expected=(0, b"ok\n")):
        with open(os.path.join(tree.work, "stop"), "w"):
            pass
        self.assertEqual(tree.finish(), expected, tree.said())
        os.unlink(os.path.join(tree.work, "stop"))

    def rounds(self, *arguments, uid=0, protected=True, checkpoints=2, **settings):
        """The program runs on after its checkpoints; the last is brought back, and one of the restarted program."""
        tree = self.tree(*arguments, uid=uid, **settings)
        tree.run()
        self.workers(tree, int(arguments[1]))
        images = [tree.checkpoint(tree.child.pid) for _ in range(checkpoints * (10 if LONG else 1))]
        self.assertNotIn(None, images)
        if protected is not None:
            self.assertEqual(bool(self.lines(tree, PROTECTED)), protected, tree.said())
        self.end(tree)
        for image in images[-10 if LONG else -1:]:
            report = tree.restart(image)
            again = tree.checkpoint(root_of(report))
            tree.kill()
            tree.restart(again)
            self.end(tree, (0, b"ok\n"))
            tree.kill()
        return tree

    def test_processes_that_write(self):
        self.rounds("16", "3")

    def test_as_user(self):
        """Where a user may not have full userfaultfd, all is copied in the stop."""
        self.rounds("16", "3", uid=NOBODY, protected=None)

    def test_while_children_come_and_go(self):
        for how in "fork", "clone", "syscall":
            with self.subTest(how=how):
                self.rounds("16", "2", how)

    def test_increments(self):
        self.rounds("16", "2", CKPT_INCREMENTS="3")

    def test_small_segments(self):
        self.rounds("16", "2", CKPT_SEGMENT="16k")

    def test_large_segments(self):
        self.rounds("16", "2", CKPT_SEGMENT="256k")

    def test_other_modes_copy_in_the_stop(self):
        for settings in {"CKPT_MODE": "concurrent"}, {"CKPT_MODE": "sequential"}, {"CKPT_MODE": "fork"}, {"CKPT_MODE": "realtime", "CKPT_FAULTS": "in-thread"}:
            with self.subTest(**settings):
                self.rounds("8", "2", protected=False, checkpoints=1, **settings)

    def test_sequential_needs_no_copies(self):
        """Each member writes what it shares from where it is: no process grows by that, and it may take its time."""
        tree = self.tree("64", "3", CKPT_MODE="sequential", CKPT_STOP_TIMEOUT="5s", CKPT_TEST_POINT="member.shared=wait")
        tree.run()
        self.workers(tree, 3)
        members = [tree.child.pid, *descendants(tree.child.pid)]

        def sizes(field):
            found = {}
            for pid in members:
                with open(f"/proc/{pid}/status", encoding="utf-8") as f:
                    found[pid] = next(int(line.split()[1]) >> 10 for line in f if line.startswith(field))
            return found

        # A child has none of the shared pages when it begins, and grows until it has written to all of them.
        wait_for("workers that have all pages", lambda: sum(mib > 62 for mib in sizes("RssShmem").values()) >= 3)
        for pid in members:
            with open(f"/proc/{pid}/clear_refs", "w", encoding="utf-8") as f:
                f.write("5")
        before = sizes("VmRSS")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            image = pool.submit(tree.checkpoint, tree.child.pid)
            for pid in members:
                held = os.path.join(tree.work, f"{pid:010}.waits")
                wait_for("a member that has written what it shares", lambda: image.done() or os.path.exists(held))
                if pid == members[-1]:
                    # Longer than a coordinator and its members wait where they write nothing: twice the time to stop. That is long, for
                    # it is also the time for each thread, from which the host may take the processor for seconds.
                    time.sleep(11)
                os.remove(held)
            job = image.result()
        self.assertIsNotNone(job, tree.said())
        grown = {pid: most - before[pid] for pid, most in sizes("VmHWM").items()}
        self.assertLess(max(grown.values()), 48, f"MiB: {grown}")
        tree.kill()
        tree.restart(job)
        self.end(tree)

    def check_who_goes_on_first(self, mode, who, point):
        tree = Tree("shared-goes", ["env", f"CKPT_TEST_POINT={point}=wait", f"CKPT_MODE={mode}", sys.executable, "-c", COUNTS, who])
        self.addCleanup(tree.close, False)
        tree.run()

        def counted():
            with open(os.path.join(tree.work, "count")) as f:
                return int(f.read() or 0)

        wait_for("two processes", lambda: len(descendants(tree.child.pid)) == 1 and counted() != 0)
        other = tree.child.pid if who == "child" else min(descendants(tree.child.pid))
        held = os.path.join(tree.work, f"{other:010}.waits")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            image = pool.submit(tree.checkpoint, tree.child.pid)
            wait_for("a member that waits", lambda: image.done() or os.path.exists(held))
            before = counted()
            wait_for("one that goes on", lambda: image.done() or counted() > before + 3)
            os.remove(held)
            job = image.result()
        tree.kill()
        tree.restart(job)
        self.end(tree)

    def test_a_member_that_goes_on_before_another(self):
        """It writes to shared memory then, while the other has not written its image yet."""
        for mode in "sequential", "concurrent", "fork", "realtime":
            for who, point in ("child", "coordinator.go"), ("parent", "member.go"):
                with self.subTest(mode=mode, who=who):
                    self.check_who_goes_on_first(mode, who, point)

    def test_member_killed_while_others_wait_for_it(self):
        """All stop where they have copied their memory. One is killed: the others neither wait for it nor commit."""
        tree = self.tree("16", "3", CKPT_TEST_POINT="member.copied=stop:2", CKPT_KEEP="9")
        tree.run()
        self.workers(tree, 3)
        first = tree.checkpoint(tree.child.pid)
        root, children = tree.child.pid, sorted(descendants(tree.child.pid))
        for victim in children[0], children[-1]:
            second = subprocess.Popen([CKPT, "now", "--json", str(root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      env=environment(), text=True)
            members = [root, *children]
            if victim == children[0]:
                wait_for("all stop", lambda: all(is_any_stopped(p) for p in members))
            os.kill(victim, signal.SIGKILL)
            for pid in members:
                if pid != victim:
                    os.kill(pid, signal.SIGCONT)
            out, err = second.communicate(timeout=PATIENCE)
            self.assertEqual(second.returncode, 0, err + out + tree.said())
            children.remove(victim)
            # Those that are left go on to write.
            subprocess.run([CKPT, "verify", json.loads(out)["job"]], check=True, stdout=subprocess.DEVNULL, env=environment())
        tree.kill()
        tree.restart(first)
        self.end(tree)


if __name__ == "__main__":
    adopt_orphans()
    unittest.main()
