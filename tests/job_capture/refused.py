"""Checkpoints of jobs that are refused, and members that are stopped or end while one is taken."""

import glob
import json
import os
import re
import signal
import subprocess
import unittest

from capture_support import CKPT, STATIC, VFORK, STOP_TIMEOUT, BUSY, clean, stat_of, name_of, processor_time, tree, wait_for, Job

WAITS = ["sh", "-c", "read line"]  # until it is told to end


def sleeps_of_ours(pid):
    """Of the library's threads in a process, how often the one that did so most has gone to sleep."""
    most = 0
    for tid in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{tid}/status", encoding="ascii", errors="replace") as f:
                status = f.read()
        except OSError:
            continue  # it has ended
        if status.startswith("Name:\tckpt_rt\n"):
            most = max(most, int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)[1]))
    return most


def call_of(pid):
    """The system call that the first thread is in, its arguments and its stack's place; "running": in none."""
    with open(f"/proc/{pid}/syscall", encoding="ascii") as f:
        return f.read()


class Refused(Job):
    def refuse(self, pid, code, *words, options=()):
        done = self.run_ckpt("now", *options, pid)
        self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(str(word), done.stderr)
        self.assertEqual(glob.glob(self.images + "/*.job"), [])
        self.assertEqual(self.leftovers(), [])

    def test_static_program(self):
        child = self.start("bash", "-c", f"echo up; {STATIC}; :", ready="up")
        self.settle(child.pid, 2)
        static = tree(child.pid)[1]
        wait_for("the program", lambda: name_of(static) == "job_static_prog")
        self.refuse(child.pid, 78, static, "job_static_prog", "--leave-out")
        for leave_out in (str(static), "job_static_prog", "all"):
            answer = self.now(child.pid, "--leave-out", leave_out)
            self.assertEqual((answer["members"], answer["members_left_out"]), (1, 1))
            self.assertEqual([(l["pid"], l["reason"]) for l in self.manifest(answer)["left_out"]],
                             [(static, "static")])

    def test_cleared_environment(self):
        child = self.start("bash", "-c", "echo up; env -i /bin/cat; :", ready="up")
        self.settle(child.pid, 2)
        wait_for("cat", lambda: name_of(tree(child.pid)[1]) == "cat")
        self.refuse(child.pid, 78, tree(child.pid)[1], "cat", "without libckpt_rt.so")

    def test_stopped_member(self):
        child, cat = self.with_cat()
        os.kill(cat, signal.SIGSTOP)
        wait_for("stop", lambda: stat_of(cat)[1] == "T")
        self.now(child.pid)
        wait_for("stop", lambda: stat_of(cat)[1] == "T")
        os.kill(cat, signal.SIGCONT)
        self.now(child.pid)

    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/usr/bin/setpriv"), "needs root and setpriv")
    def test_a_stream_of_several_users(self):
        """It would not tell whose word an image is."""
        child = self.start("bash", "-c", "setpriv --reuid 65534 cat /dev/zero > /dev/null & echo up; wait; :", ready="up",
                           options=["--to", "cat >/dev/null"])
        self.settle(child.pid, 2)
        wait_for("cat", lambda: name_of(tree(child.pid)[1]) == "cat")
        self.refuse(child.pid, 78, tree(child.pid)[1], "of another user", "CKPT_TO")


class Stopped(Job):
    def test_member_that_is_stopped_meanwhile(self):
        """It takes its part all the same, and stays stopped."""
        for point in ("joined", "prepared", "held", "stopped", "standing", "sampled"):
            with self.subTest(point=point):
                child, cat = self.with_cat(env=clean(CKPT_TEST_POINT=f"member.{point}@cat=stop"))
                self.now(child.pid)
                wait_for("stop", lambda: stat_of(cat)[1] == "T")
                os.kill(cat, signal.SIGCONT)
                self.now(child.pid)
                self.assertEqual(self.leftovers(), [])

    def test_member_that_is_killed_in_the_stop(self):
        """The others learn at once that the attempt is over, and stand no longer: not until their deadlines."""
        child = self.start("bash", "-c", "sleep 1000 & tail -f /dev/null & sleep 1000 & echo up; wait; :", ready="up",
                           options=["--stop-timeout", "60s"], env=clean(CKPT_TEST_POINT="member.sampled@tail=kill"))
        self.settle_named(child.pid, "bash", "sleep", "tail", "sleep")
        answer = self.now(child.pid)
        # Of another attempt, without the one that was killed. The first did not end for a deadline.
        self.assertEqual((answer["members"], answer["job_attempts"]), (3, 2), self.log())
        self.assertNotIn("in time", self.log())

    def test_coordinator_that_is_stopped(self):
        """The others go on without it."""
        for point in ("standing", "sampled"):
            with self.subTest(point=point):
                child = self.start("bash", "-c", f"echo up; sleep 1000 & {BUSY}", ready="up",
                                   options=["--stop-timeout", STOP_TIMEOUT],
                                   env=clean(CKPT_TEST_POINT=f"coordinator.{point}@sleep=stop"))
                names = self.settle_named(child.pid, "bash", "sleep")
                bash, sleep = names["bash"], names["sleep"]
                asker = subprocess.Popen([CKPT, "now", str(sleep)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                         text=True, env=clean())
                wait_for("stop", lambda: stat_of(sleep)[1] == "T")
                before = processor_time(bash)
                wait_for("bash goes on", lambda: processor_time(bash) > before + 10)
                os.kill(sleep, signal.SIGCONT)
                asker.communicate(timeout=60)
                self.now(bash)
                self.assertEqual(self.leftovers(), [])

    def test_child_with_its_parents_memory(self):
        """Its handler is its parent's: nothing is asked of it, and no signal sent, before it has a program of its own."""
        child = self.start(VFORK, *WAITS, ready="up", env=clean(CKPT_TEST_POINT="coordinator.looked=stop"))
        wait_for("vfork", lambda: len(tree(child.pid)) == 2)
        waits = tree(child.pid)[1]
        asker = subprocess.Popen([CKPT, "now", "--json", str(child.pid)], stdout=subprocess.PIPE, text=True, env=clean())
        wait_for("coordinator", lambda: "ckpt_rt" in {name_of(f"{child.pid}/task/{t}") for t in os.listdir(f"/proc/{child.pid}/task")})
        slept = sleeps_of_ours(child.pid)
        wait_for("its looks at the child, between which it sleeps", lambda: sleeps_of_ours(child.pid) >= slept + 10)
        self.assertNotIn("T", {(stat_of(f"{child.pid}/task/{t}") or (0, ""))[1] for t in os.listdir(f"/proc/{child.pid}/task")})
        child.stdin.write("x")
        child.stdin.flush()
        wait_for("stop", lambda: stat_of(child.pid)[1] == "T")
        self.assertEqual(name_of(waits), "sh")
        os.kill(child.pid, signal.SIGCONT)
        self.assertEqual(json.loads(asker.communicate(timeout=60)[0])["members"], 2, self.log())
        self.ends_when_told(child)

    def test_child_with_memory_of_its_own(self):
        """Its parent cannot be stopped while it waits for it in the kernel: nothing is held or stopped before that is over."""
        child = self.start(VFORK, *WAITS, ready="up", env=clean(OWN_MEMORY="1"))
        wait_for("child", lambda: len(tree(child.pid)) == 2)
        wait_for("the first thread to wait for the other (futex)", lambda: call_of(child.pid).startswith("202 "))
        waits_at = call_of(child.pid)
        asker = subprocess.Popen([CKPT, "now", str(child.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean())
        wait_for("agent", lambda: asker.poll() is not None or "ckpt_rt" in {name_of(f"{child.pid}/task/{t}") for t in os.listdir(f"/proc/{child.pid}/task")})
        slept = sleeps_of_ours(child.pid)
        # Far more than it sleeps on its way to a stop.
        wait_for("its looks at the thread", lambda: asker.poll() is not None or sleeps_of_ours(child.pid) >= slept + 500)
        self.assertIsNone(asker.poll())
        self.assertEqual(call_of(child.pid), waits_at)  # one that stands is in our handler
        child.stdin.write("x")
        child.stdin.flush()
        said = asker.communicate(timeout=60)
        self.assertEqual(asker.returncode, 0, said)
        self.ends_when_told(child)

    def ends_when_told(self, child):
        child.stdin.write("\n")
        child.stdin.flush()
        self.assertEqual(child.stdout.read(), "0\n")


if __name__ == "__main__":
    unittest.main()
