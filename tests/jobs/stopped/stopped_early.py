#!/usr/bin/env python3
"""A member that was stopped in the dynamic linker, before the library in it had started: saved and stopped again after a
restart as others are, and its program has not begun. At every system call of its start with CKPT_LONG=1."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from job_tree import NOBODY, Tree, adopt_orphans, handles_requests, root_of, wait_for

adopt_orphans()

# Starts a program, and stops it at the n-th system call after its exec; then it is as if somebody had sent SIGSTOP there.
# At its end it says what the program has done.
STOPS = r"""
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char** argv) {
  int calls = atoi(argv[1]), status;
  pid_t pid = fork();
  if (pid == 0) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    execvp(argv[2], argv + 2);
    _exit(127);
  }
  waitpid(pid, &status, 0);
  ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
  ptrace(PTRACE_CONT, pid, 0, 0);
  while (waitpid(pid, &status, 0) == pid && status >> 8 != (SIGTRAP | PTRACE_EVENT_EXEC << 8)) ptrace(PTRACE_CONT, pid, 0, 0);
  ptrace(PTRACE_SYSCALL, pid, 0, 0);
  waitpid(pid, &status, 0);  // the end of exec
  for (int i = 0; i < 2 * calls; i++) {
    ptrace(PTRACE_SYSCALL, pid, 0, 0);
    waitpid(pid, &status, 0);
    if (!WIFSTOPPED(status)) return 3;
  }
  kill(pid, SIGSTOP);
  ptrace(PTRACE_SYSCALL, pid, 0, 0);
  waitpid(pid, &status, 0);
  ptrace(PTRACE_DETACH, pid, 0, SIGSTOP);
  siginfo_t info;
  waitid(P_PID, pid, &info, WSTOPPED);
  printf("stopped %d\n", pid);
  fflush(stdout);
  while (access("go", F_OK)) usleep(1000);
  printf("begun %d\n", access("begun", F_OK) == 0);
  kill(pid, SIGCONT);
  waitpid(pid, &status, 0);
  printf("begun %d status %d\n", access("begun", F_OK) == 0, status);
  return 0;
}
"""

LONG = os.environ.get("CKPT_LONG") == "1"


def state_of(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return next(line for line in f if line.startswith("State:")).split()[1]


def is_ready(pid):
    """The library in it has started: a checkpoint asks it as any other."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
        return "libckpt_rt.so" in f.read() and handles_requests(pid)


class StoppedEarly(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix="ckpt-stopped-early-")
        os.chmod(cls.directory, 0o755)
        cls.program = os.path.join(cls.directory, "stops")
        with open(cls.program + ".c", "w", encoding="utf-8") as f:
            f.write(STOPS)
        subprocess.run(["gcc", "-O1", "-o", cls.program, cls.program + ".c"], check=True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.directory)

    def stop_at(self, calls, uid=0):
        """One checkpoint, one restart. Whether the library had started by then."""
        tree = Tree("stopped-early", [self.program, str(calls), "sh", "-c", "touch begun; exit 7"], uid=uid)
        failed = True
        try:
            tree.run()
            while not (output := tree.output()).endswith(b"\n"):
                self.assertIsNone(tree.child.poll(), tree.said())
            child = int(output.split()[1])
            ready = is_ready(child)
            image = tree.checkpoint(tree.child.pid)
            self.assertTrue(image.endswith(".job"), image)
            wait_for(lambda: state_of(child) == "T", "its stop, into which it goes back itself")
            tree.kill()
            root_of(tree.restart(image))
            open(os.path.join(tree.work, "go"), "w", encoding="utf-8").close()
            code, output = tree.finish()
            self.assertEqual((code, output.decode().splitlines()[1:]), (0, ["begun 0", f"begun 1 status {7 << 8}"]), calls)
            failed = False
        finally:
            tree.close(failed)
        return ready

    def test_at_each_call_of_its_start(self):
        step, calls, early = (1 if LONG else 13), 0, 0
        while not self.stop_at(calls):
            early += 1
            calls += step
        self.assertGreater(early, 3)

    def test_as_user(self):
        if os.geteuid() != 0:
            self.skipTest("is that user already")
        self.stop_at(20, NOBODY)

    def test_a_program_whose_library_did_not_start(self):
        """It has begun long ago: it is refused by name, and runs nothing meanwhile."""
        tree = Tree("stopped-asleep", ["sh", "-c", "CKPT_DISABLE=1 sh -c 'while :; do echo >> rounds; done' & echo $!; wait"])
        self.addCleanup(tree.close, False)
        tree.run()
        while not (output := tree.output()).endswith(b"\n"):
            self.assertIsNone(tree.child.poll(), tree.said())
        child = int(output)

        def rounds():
            return os.stat(os.path.join(tree.work, "rounds")).st_size

        wait_for(lambda: os.path.exists(os.path.join(tree.work, "rounds")), "the loop")
        os.kill(child, signal.SIGSTOP)
        wait_for(lambda: state_of(child) == "T", "its stop")
        before = rounds()
        with self.assertRaisesRegex(AssertionError, rf"exit code 75: .*{child} \(sh\) of the job has the library but does not handle"):
            tree.checkpoint(tree.child.pid)
        wait_for(lambda: state_of(child) == "T", "its stop, into which it goes back itself")
        self.assertEqual(rounds(), before)


if __name__ == "__main__":
    unittest.main(verbosity=2)
