#!/usr/bin/env python3
"""strace with its programs, as a job: what it writes is what it writes when nobody asks for a checkpoint.
  strace.py [Strace.test_... ...]
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from job_tree import CKPT, PATIENCE, Tree, adopt_orphans, descendants, environment, name_of, root_of, state_of, wait_for  # noqa: E402

adopt_orphans()
STRACE = shutil.which("strace")
LONGER = "100000"  # seconds: than any test

PROGRAM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static void handler(int s) { (void)s; }
static void meet(void) { close(open("ready", O_CREAT | O_WRONLY, 0600)); }
int main(int argc, char** argv) {
  int fds[2], from;
  char c;
  if (argv[1][0] == 'n') {  // sleeps, through libc
    struct timespec t = {atoi(argv[2]), 0};
    signal(SIGUSR1, handler);
    meet();
    nanosleep(&t, 0);
  } else if (argv[1][0] == 'r') {  // reads, from who was told
    if (mkfifo("fifo", 0600)) return 1;
    meet();
    from = open("fifo", O_RDONLY);
    while (read(from, &c, 1) == 1) syscall(SYS_getppid);
  } else if (argv[1][0] == 't') {  // has a thread of libc's for timers
    struct sigevent e = {.sigev_notify = SIGEV_THREAD};
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &e, &timer)) return 1;
    meet();
    while (access("go", F_OK)) poll(0, 0, 1);
  } else if (argv[1][0] == 'b') {  // is busy
    meet();
    while (access("go", F_OK)) syscall(SYS_getppid);
  } else {  // waits for a child that reads
    pipe(fds);
    if (mkfifo("fifo", 0600)) return 1;
    struct pollfd p = {open("fifo", O_RDWR), POLLIN, 0};
    if (fork() == 0) {
      close(fds[1]);
      poll(0, 0, 1);
      _exit(read(fds[0], &c, 1));
    }
    meet();
    poll(&p, 1, atoi(argv[2]) * 1000);
    write(fds[1], "x", 1);
    wait(0);
  }
  return 5;
}
"""


@unittest.skipUnless(STRACE, "no strace")
class Strace(unittest.TestCase):
    def begin(self, *arguments):
        def prepare(work):
            with open(os.path.join(work, "program.c"), "w", encoding="utf-8") as f:
                f.write(PROGRAM)
            subprocess.run(["gcc", "-w", "-include", "sys/stat.h", "-o", "program", "program.c"], cwd=work, check=True)

        tree = Tree("strace", [STRACE, "-ff", "-o", "trace", "./program", *arguments], prepare=prepare)
        self.addCleanup(lambda: tree.close(False))
        tree.run()
        wait_for(lambda: os.path.exists(os.path.join(tree.work, "ready")), "the program under strace")
        return tree

    def touch(self, tree):
        open(os.path.join(tree.work, "go"), "wb").close()

    def finish(self, tree, end):
        end(tree)
        code, _ = tree.finish()
        # From the meeting on, of each process by itself. When SIGCHLD comes is a matter of luck; numbers may be of processes, or times.
        said = []
        for name in sorted((n for n in os.listdir(tree.work) if n.startswith("trace.")), key=lambda n: int(n.split(".")[1])):
            with open(os.path.join(tree.work, name), encoding="utf-8") as f:
                lines = [re.sub(r"\d{3,}|0x[0-9a-f]+", "N", line) for line in f if not line.startswith("--- SIGCHLD")]
            text = "".join(lines[next((i for i, line in enumerate(lines) if "ready" in line), 0):])
            # How often one that is busy looks is a matter of luck; that each of its calls is there, and once, is not.
            said.append(re.sub(r'(access\("go", F_OK\) += -1 ENOENT [^\n]*\ngetppid\(\) += N\n)+', "", text))
        return code, said

    def check(self, *arguments, end=lambda tree: None, checkpoints=3, generations=2):
        back = self.begin(*arguments)
        pid = back.child.pid
        for _ in range(generations):
            job = back.checkpoint(pid)
            back.kill()
            pid = root_of(back.restart(job))
        plain, saved = self.begin(*arguments), self.begin(*arguments)
        for _ in range(checkpoints):
            saved.checkpoint(saved.child.pid)
        plain = self.finish(plain, end)
        self.assertEqual(plain[0], 5)
        self.assertTrue(all(plain[1]))
        self.assertEqual(self.finish(saved, end), plain)
        self.assertEqual(self.finish(back, end), plain)

    @staticmethod
    def wake(tree):
        """By a signal, when it sleeps: nanosleep, clock_nanosleep, restart_syscall."""
        def call_of(pid):
            with open(f"/proc/{pid}/syscall", encoding="ascii") as f:
                return f.read().split()[0]

        program, = [p for p in descendants(os.getpid()) if name_of(p) == "program" and os.readlink(f"/proc/{p}/cwd") == tree.work]
        wait_for(lambda: call_of(program) in ("35", "230", "219"), "the program to sleep")
        os.kill(program, signal.SIGUSR1)

    @staticmethod
    def feed(tree):
        with open(os.path.join(tree.work, "fifo"), "wb", buffering=0) as f:
            f.write(b"abc")

    def test_sleeps(self):
        self.check("n", LONGER, end=self.wake)

    def test_reads(self):
        self.check("r", end=self.feed)

    def test_waits_for_a_child(self):
        self.check("w", LONGER, end=self.feed)

    def test_is_busy(self):
        self.check("b", end=self.touch)

    def test_a_thread_that_blocks_the_signal_for_ever_is_refused(self):
        tree = self.begin("t")
        program, = [p for p in descendants(os.getpid()) if name_of(p) == "program" and os.readlink(f"/proc/{p}/cwd") == tree.work]

        def waits(tid):
            with open(f"/proc/{program}/task/{tid}/syscall", encoding="ascii") as f:
                return f.read().startswith("128 ") and state_of(tid) == "S"  # rt_sigtimedwait

        wait_for(lambda: any(waits(int(tid)) for tid in os.listdir(f"/proc/{program}/task")), "libc's thread to wait for its timers")
        done = subprocess.run([CKPT, "now", str(tree.child.pid)], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 69, done.stdout + done.stderr)
        self.assertIn("SIGEV_THREAD", done.stderr)
        self.touch(tree)
        self.assertEqual(tree.finish()[0], 5)


if __name__ == "__main__":
    unittest.main()
