"""ckpt back of a job, and somebody dies at each step: all have gone back, or all go on as they were, or the job is gone."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

from support import LIBRARY, ToldJob, clean_environment

# Does what a line says, and answers with a line. Its child does the same, and is another program by name.
SERVE = r"""
import mmap, os, subprocess, sys
state = {"n": 0}
def serve(commands, answers):
    for line in commands:
        try:
            result = eval(line)
        except Exception as error:
            result = repr(error)
        answers.write(repr(result) + "\n")
        answers.flush()
"""
CHILD = SERVE + "serve(sys.stdin, sys.stdout)"
PARENT = SERVE + r"""
child = subprocess.Popen([sys.argv[1], "-u", "-c", sys.argv[2]], stdin=-1, stdout=-1, text=True)
log = open(sys.argv[3], "a", buffering=1)
def tell(line):
    child.stdin.write(line + "\n")
    child.stdin.flush()
    return eval(child.stdout.readline())
serve(sys.stdin, sys.stdout)
"""
AS_IT_WAS, BACK, GONE = "as it was", "back", "gone"
# Points of `ckpt back`, in order, and what becomes of the job when it dies there.
BACK_ITSELF = {"back.asked": AS_IT_WAS, "back.held": AS_IT_WAS, "back.standing": AS_IT_WAS, "back.planned": AS_IT_WAS,
               "back.ready": AS_IT_WAS, "back.cutting": GONE, "back.cut": GONE, "back.decided": GONE, "back.committed": BACK}
# Of a member, and how often it comes there until it dies.
MEMBER = {"member.back.held": AS_IT_WAS, "member.back.ready": AS_IT_WAS, "member.back.committed": GONE,
          "member.back.barrier:1": GONE, "member.back.barrier:2": GONE, "member.back.barrier:3": GONE,
          "member.back.barrier:4": GONE}


class BackFaults(ToldJob):
    def start(self, child_point=""):
        """child_point: only the child has that name."""
        for name in ("parent", "youngest"):
            if not os.path.lexists(self.path(name)):
                os.symlink(sys.executable, self.path(name))
        env = clean_environment(LD_PRELOAD=LIBRARY, CKPT_DIR=self.path("images"))
        if child_point:
            point, _, times = child_point.partition(":")
            env["CKPT_TEST_POINT"] = f"{point}@youngest=kill:{times or 1}"
        self.program = subprocess.Popen(
            [self.path("parent"), "-u", "-c", PARENT, self.path("youngest"), CHILD, self.path("log")], env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.addCleanup(self.end)
        self.child = self.do("child.pid")
        self.do("state.update(n=1)"), self.tell("state.update(n=2)"), self.do("log.write('then\\n')")
        now = self.ckpt("now", "--json", self.program.pid)
        self.assertEqual(now.returncode, 0, now.stderr)
        self.do("state.update(n=10)"), self.tell("state.update(n=20)"), self.do("log.write('later\\n')")

    def counts(self):
        """Without agents: that of a member ends its work after `ckpt now` has."""
        self.wait_until("an agent stays", self.without_agents)
        counts = []
        for pid in (self.program.pid, self.child):
            with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
                counts.append(len(f.readlines()))
            counts.append(sorted(os.listdir(f"/proc/{pid}/fd")))
        return counts

    def is_gone(self, pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                return f.read().rsplit(")", 1)[1].split()[0] in "ZX"
        except (FileNotFoundError, ProcessLookupError):  # the latter between open and read
            return True

    def wait_until(self, what, condition):
        end = time.monotonic() + 120
        while not condition():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.005)  # between two looks

    def without_agents(self):
        return all(os.listdir(f"/proc/{pid}/task") == [str(pid)] for pid in (self.program.pid, self.child))

    def check(self, outcome, before):
        if outcome == GONE:
            for pid in (self.program.pid, self.child):
                self.wait_until(f"{pid} goes on", lambda: self.is_gone(pid))
            return
        wanted = (10, 20) if outcome == AS_IT_WAS else (1, 2)
        self.assertEqual((self.do("state['n']"), self.tell("state['n']")), wanted)
        with open(self.path("log"), encoding="utf-8") as log:
            self.assertEqual(log.read(), "then\n" + ("later\n" if outcome == AS_IT_WAS else ""))
        self.assertEqual(self.counts(), before)
        # Processes can be made, and it can go back as if nothing had been.
        self.assertEqual(self.tell("subprocess.call(['true'])"), 0)
        done = self.ckpt("back", "--json", self.program.pid)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["members"], 2)
        self.assertEqual((self.do("state['n']"), self.tell("state['n']")), (1, 2))

    def ckpt_back_killed_at(self, point):
        env = clean_environment(CKPT_TEST_POINT=f"{point}=kill")
        done = self.ckpt("back", self.program.pid, env=env)
        self.assertEqual(done.returncode, -signal.SIGKILL, (done.stdout, done.stderr))

    def test_ckpt_back_dies(self):
        for point, outcome in BACK_ITSELF.items():
            with self.subTest(point=point):
                self.start()
                before = self.counts()
                self.ckpt_back_killed_at(point)
                self.check(outcome, before)
                self.end()
                os.unlink(self.path("log"))

    def test_a_member_dies(self):
        for point, outcome in MEMBER.items():
            with self.subTest(point=point):
                self.start(point)
                done = self.ckpt("back", self.program.pid)
                self.assertRegex(done.stderr, r"\Ackpt: [^\n]+\n\Z")
                self.assertIn(str(self.child), done.stderr)
                self.assertNotEqual(done.returncode, 0)
                if outcome == AS_IT_WAS:
                    self.wait_until("the child goes on", lambda: self.is_gone(self.child))
                    self.assertEqual(self.do("state['n']"), 10)
                    self.assertEqual(self.do("child.wait()"), -signal.SIGKILL)
                    self.assertEqual(self.do("subprocess.call(['true'])"), 0)
                else:
                    self.assertIn("was killed", done.stderr)
                    self.check(outcome, None)
                self.end()
                os.unlink(self.path("log"))

    def test_both_die(self):
        for point in [p for p in MEMBER if p.startswith("member.back.barrier")]:
            with self.subTest(point=point):
                self.start(point)
                self.ckpt_back_killed_at("back.committed")
                self.check(GONE, None)
                self.end()
                os.unlink(self.path("log"))


if __name__ == "__main__":
    unittest.main()
