#!/usr/bin/env python3
"""gdb with its program, as a job: saved at a breakpoint and while the program runs, all killed, brought back. What gdb says is what it says
when nobody asks for a checkpoint.
  gdb.py [Gdb.test_at_a_breakpoint ...]
"""
import os
import random
import re
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from job_tree import LONG, NOBODY, Tree, adopt_orphans, root_of, wait_for  # noqa: E402

adopt_orphans()
GDB = shutil.which("gdb")

PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
volatile long total;
__attribute__((noinline)) void tick(long i) { total += i * i % 7; }
static void* other(void* a) { for (volatile long n = 0;; n++) usleep(200); return a; }
int main(int argc, char** argv) {
  pthread_t t;
  for (int i = 2; i < argc; i++) pthread_create(&t, 0, other, 0);
  for (long i = 0; i < 40; ++i) {
    tick(i);
    usleep(1000);
    if (i == 20 && atoi(argv[1])) {
      fclose(fopen("ready", "w"));
      while (access("go", F_OK)) usleep(1000);
    }
  }
  printf("total %ld\n", total);
  fflush(stdout);
  return 3;
}
"""
MEET = "shell touch ready; while [ ! -e go ]; do sleep 0.02; done\n"
AT = """break tick if i == 20
run
bt
print total
MEET
print i
print $pc
info registers rax rbx rcx rdx rsp rip eflags
x/3i $pc
stepi
print $pc
next
next
print total
break tick if i == 25
continue
print i
delete
finish
continue
print $_exitcode
"""
WATCH = """break tick if i == 10
run
watch total if total > 30
continue
MEET
print i
print total
continue
print total
delete
continue
"""
RUNS = """break tick if i == 30
run
print i
print total
continue
"""


@unittest.skipUnless(GDB, "no gdb")
class Gdb(unittest.TestCase):
    def begin(self, script, arguments, saves, uid=0):
        def prepare(work):
            with open(os.path.join(work, "count.c"), "w", encoding="utf-8") as f:
                f.write(PROGRAM)
            subprocess.run(["gcc", "-g", "-O0", "-o", "count", "count.c", "-lpthread"], cwd=work, check=True)
            with open(os.path.join(work, "commands"), "w", encoding="utf-8") as f:
                f.write("set pagination off\nset print thread-events off\n" + script.replace("MEET\n", MEET))
            if not saves:
                open(os.path.join(work, "go"), "w", encoding="utf-8").close()

        tree = Tree("gdb", [GDB, "-nx", "-batch", "-x", "commands", "--args", "./count", *arguments], prepare=prepare, uid=uid)
        self.addCleanup(lambda: tree.close(False))
        tree.run()
        wait_for(lambda: os.path.exists(os.path.join(tree.work, "ready")), "the program under gdb")
        return tree

    def finish(self, tree):
        open(os.path.join(tree.work, "go"), "w", encoding="utf-8").close()
        code, output = tree.finish()
        # The directory's name, and numbers of processes and threads.
        text = re.sub(r"process \d+|LWP \d+|0x7ff[0-9a-f]+|\b(14073|1407)\d+\b", "N", output.decode().replace(tree.directory, ""))
        return code, text

    def check(self, script, *arguments, uid=0, generations=2):
        plain = self.finish(self.begin(script, arguments, False, uid))
        self.assertIn("total", plain[1])
        tree = self.begin(script, arguments, True, uid)
        for _ in range(3):
            tree.checkpoint(tree.child.pid)
        self.assertEqual(self.finish(tree), plain)
        tree = self.begin(script, arguments, True, uid)
        pid = tree.child.pid
        for _ in range(generations):
            job = tree.checkpoint(pid)
            tree.kill()
            pid = root_of(tree.restart(job))
        self.assertEqual(self.finish(tree), plain)

    def test_at_a_breakpoint(self):
        self.check(AT, "0")

    def test_at_a_breakpoint_of_a_user(self):
        self.check(AT, "0", uid=NOBODY)

    def test_at_a_breakpoint_with_threads(self):
        self.check(AT, "0", "a", "thread", "more")

    def test_at_a_watchpoint(self):
        self.check(WATCH, "0")

    def test_while_it_runs(self):
        self.check(RUNS, "1")

    def test_while_it_runs_with_threads(self):
        self.check(RUNS, "1", "a", "thread", "more")

    def test_killed_at_any_instant(self):
        """All is killed while checkpoints are taken one after the other; the newest that is complete comes back."""
        plain = self.finish(self.begin(AT, ("0",), False))
        for _ in range(20 if LONG else 3):
            tree = self.begin(AT, ("0",), True)
            tree.checkpoint(tree.child.pid)
            asking = subprocess.Popen([sys.executable, "-c", "import subprocess, sys\nwhile subprocess.run(sys.argv[1:], check=False).returncode == 0: pass",
                                       os.path.join(os.environ["CKPT_BUILD"], "bin", "ckpt"), "now", str(tree.child.pid)],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                asking.wait(random.random())
            except subprocess.TimeoutExpired:
                pass
            tree.kill()
            asking.wait()
            jobs = sorted(n for n in os.listdir(tree.images) if n.endswith(".job"))
            tree.restart(os.path.join(tree.images, jobs[-1]))
            self.assertEqual(self.finish(tree), plain)


if __name__ == "__main__":
    unittest.main()
