#!/usr/bin/env python3
"""Members of a job that are easily missed: made past libc while all others hold, with a file over /proc/loadavg; or listed when no
descriptor is left.
  who_is_in.py
"""
import ctypes
import json
import os
import resource
import shutil
import subprocess
import traceback
import unittest

from job_tree import CKPT, Tree, adopt_orphans, environment, wait_for

# Makes a process by its own instruction when it is told so.
RAW = r"""
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
static long raw_clone(void) {
  long r;
  register long r10 __asm__("r10") = 0;
  register long r8 __asm__("r8") = 0;
  __asm__ volatile("syscall" : "=a"(r) : "a"(SYS_clone), "D"(SIGCHLD), "S"(0), "d"(0), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
  return r;
}
int main(void) {
  if (fork() == 0)
    for (;;) usleep(10000);
  close(open("up", O_WRONLY | O_CREAT, 0600));
  while (access("go", F_OK) != 0) usleep(1000);
  if (raw_clone() == 0)
    for (;;) usleep(10000);
  close(open("made", O_WRONLY | O_CREAT, 0600));
  for (;;) usleep(10000);
}
"""
CHILD = """
import os, time
if os.fork() == 0:
    while True: time.sleep(0.01)
open('up', 'w').close()
while True: time.sleep(0.01)
"""


def members(image):
    with open(os.path.join(image, "manifest.json"), encoding="utf-8") as f:
        return len(json.load(f)["members"])


class WhoIsIn(unittest.TestCase):
    def start(self, command, prepare=None):
        tree = Tree("who", command, prepare)
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: os.path.exists(os.path.join(tree.work, "up")), "the program")
        return tree

    def test_made_past_libc_with_another_loadavg(self):
        libc = ctypes.CDLL(None, use_errno=True)
        kNewMounts, kPrivate, kBind = 0x20000, (1 << 18) | 0x4000, 0x1000
        pid = os.fork()
        if pid:
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            return
        code = 1
        try:
            def prepare(work):
                with open(os.path.join(work, "raw.c"), "w", encoding="ascii") as f:
                    f.write(RAW)
                subprocess.run(["gcc", "-o", os.path.join(work, "raw"), os.path.join(work, "raw.c")], check=True)
                shutil.copyfile("/proc/loadavg", os.path.join(work, "loadavg"))
                mounted = libc.unshare(kNewMounts) == 0 and libc.mount(b"none", b"/", None, kPrivate, None) == 0 and libc.mount(
                    os.path.join(work, "loadavg").encode(), b"/proc/loadavg", None, kBind, None) == 0
                if not mounted:
                    os._exit(0)  # not without the right to it

            adopt_orphans()
            tree = self.start(["env", "CKPT_TEST_POINT=coordinator.held=wait", "./raw"], prepare)
            waits = os.path.join(tree.work, f"{tree.child.pid:010}.waits")
            now = subprocess.Popen(  # pylint: disable=consider-using-with
                [CKPT, "now", "--json", str(tree.child.pid)], stdout=subprocess.PIPE, env=environment())
            self.addCleanup(now.stdout.close)
            self.addCleanup(now.wait)
            self.addCleanup(now.kill)
            wait_for(lambda: os.path.exists(waits), "all to hold")
            with open(os.path.join(tree.work, "go"), "w", encoding="ascii"):
                pass
            wait_for(lambda: os.path.exists(os.path.join(tree.work, "made")), "the process")
            os.unlink(waits)
            image = os.path.dirname(json.loads(now.communicate()[0])["image"])
            self.assertEqual(members(image), 3)
            tree.kill()
            code = 0
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
        finally:
            self.doCleanups()
            os._exit(code)

    def test_no_descriptor_is_left(self):
        """It is the whole job, or no checkpoint."""
        tree = self.start(["python3", "-c", CHILD])
        pid = tree.child.pid
        used = max(int(n) for n in os.listdir(f"/proc/{pid}/fd")) + 1
        for room in range(4):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + room, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))
            done = subprocess.run([CKPT, "now", "--json", str(pid)], capture_output=True, text=True, env=environment(), check=False)
            if room == 0:
                self.assertIn("members cannot be listed", done.stderr)
            if done.returncode == 0:
                image = os.path.dirname(json.loads(done.stdout)["image"])
                self.assertTrue(image.endswith(".job"), (room, done.stdout))
                self.assertEqual(members(image), 2, room)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, 1024))
        self.assertEqual(members(tree.checkpoint(pid)), 2)


adopt_orphans()
if __name__ == "__main__":
    unittest.main()
