#!/usr/bin/env python3
"""The last thread of a process ends past libc (SYS_exit, as the function of a bare clone(2) does) while a checkpoint is
taken: only the checkpointer's threads are left in it. The process has ended, and is no member of the job any more."""
import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import job_tree
from job_tree import CKPT, PATIENCE, Tree, environment

job_tree.adopt_orphans()

# Ends as soon as there is a second thread: ours, which prepares the checkpoint.
LAST = r"""
import ctypes, os, time
libc = ctypes.CDLL(None)
def end_with_us():
    open('up', 'w').close()
    while os.stat('/proc/self/task').st_nlink == 3: pass
    libc.syscall(60, 7)  # SYS_exit
"""
CHILD = LAST + r"""
child = os.fork()
if child == 0: end_with_us()
while not os.path.exists('go'): time.sleep(0.01)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
# Its child leaves no zombie.
UNNOTICED = r"""
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while True: signal.pause()
open('up', 'w').close()
while True: signal.pause()
"""


class Ended(unittest.TestCase):
    def start(self, program, point):
        tree = Tree("ended", ["env", f"CKPT_TEST_POINT={point}=wait", "python3", "-c", program])
        self.addCleanup(tree.close, False)
        tree.run()
        self.wait_for(tree, lambda: os.path.exists(os.path.join(tree.work, "up")))
        return tree

    def wait_for(self, tree, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), deadline, tree.said())
            time.sleep(0.005)

    def asked(self, tree, who, ask):
        """What that call of the checkpoint returns, which stops nobody before the last thread of that process has ended."""
        held = os.path.join(tree.work, f"{tree.child.pid:010}.waits")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answer = pool.submit(ask)
            self.wait_for(tree, lambda: answer.done() or os.path.exists(held))
            self.wait_for(tree, lambda: answer.done() or job_tree.state_of(who) in "Z?")
            with contextlib.suppress(FileNotFoundError):  # it has answered, wrongly
                os.remove(held)
            return answer.result()

    def test_a_member(self):
        """Its parent gets its exit code after the restart."""
        tree = self.start(CHILD, "coordinator.prepared")
        child, = job_tree.descendants(tree.child.pid)
        image = self.asked(tree, child, lambda: tree.checkpoint(tree.child.pid))
        with open(os.path.join(image, "manifest.json"), encoding="utf-8") as f:
            members = json.load(f)["members"]
        self.assertEqual([m["state"] for m in members], ["running", "zombie"])
        tree.kill()
        tree.restart(image)
        open(os.path.join(tree.work, "go"), "w").close()
        self.assertEqual(tree.finish(), (0, b"7\n"))

    @unittest.skipUnless("OWN_NUMBERS" in os.environ and os.path.exists("/proc/sys/kernel/ns_last_pid"), "needs root to choose a number")
    def test_a_member_whose_number_another_process_has(self):
        """It ends as it is about to be asked, by a signal that would kill whoever does not expect it."""
        tree = Tree("ended-number", ["env", "CKPT_TEST_POINT=coordinator.asks=stop", "python3", "-c", UNNOTICED])
        self.addCleanup(tree.close, False)
        tree.run()
        root = tree.child.pid
        self.wait_for(tree, lambda: os.path.exists(os.path.join(tree.work, "up")))
        child, = job_tree.descendants(root)
        with subprocess.Popen([CKPT, "now", str(root)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment()) as asker:
            self.wait_for(tree, lambda: job_tree.state_of(root) == "T")
            os.kill(child, signal.SIGKILL)
            self.wait_for(tree, lambda: not os.path.exists(f"/proc/{child}"))
            other = self.process_of_number(child)
            os.kill(root, signal.SIGCONT)
            said = asker.communicate(timeout=PATIENCE)[0]
            self.assertEqual(asker.returncode, 0, said)
        self.assertIsNone(other.poll())
        other.kill()
        other.wait()

    def process_of_number(self, pid):
        """The kernel counts up from the last one; others may take the number in between, and end."""
        for _ in range(1000):
            with open("/proc/sys/kernel/ns_last_pid", "w") as last:
                last.write(str(pid - 1))
            other = subprocess.Popen(["sleep", "1000"])
            if other.pid == pid:
                return other
            other.kill()
            other.wait()
        self.skipTest("the number is taken")

    def test_alone(self):
        tree = self.start(LAST + "end_with_us()", "prepare.ready")
        now = [CKPT, "now", str(tree.child.pid)]
        done = self.asked(tree, tree.child.pid, lambda: subprocess.run(now, capture_output=True, text=True, timeout=PATIENCE,
                                                                       env=environment(), check=False))
        self.assertEqual(done.returncode, 67, done.stderr)
        self.assertEqual(tree.finish()[0], 7)
        self.assertEqual([n for n in os.listdir(tree.images) if n.endswith((".ckpt", ".job"))], [])


def enter_own_numbers():
    """Where a test chooses the number of the next process, all that follow have numbers that others just had: not those of the machine."""
    if os.geteuid() == 0 and "OWN_NUMBERS" not in os.environ and shutil.which("unshare"):
        own = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, *sys.argv]
        os.execvpe(own[0], own, dict(os.environ, OWN_NUMBERS="1"))


if __name__ == "__main__":
    enter_own_numbers()
    unittest.main(verbosity=2)
