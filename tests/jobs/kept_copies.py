#!/usr/bin/env python3
"""Copies of files that are kept beside the images (CKPT_FILES=copies): durable before the checkpoint counts, and there also when
the member that began to make one has ended.
  kept_copies.py
"""
import glob
import os
import re
import shutil
import signal
import subprocess
import unittest

from job_tree import CKPT, Tree, adopt_orphans, environment, state_of, wait_for

# The process that is told "go" reads the file. Who takes the checkpoint prepares ahead of the others: to be behind one of
# them a process must not be that one.
READER = """
import os, time
kept = open('kept', 'r+')
# The kernel tells when a process began in ticks of 10 ms; and a file that was written just before is not copied.
while time.time_ns() - os.stat('kept').st_mtime_ns < 40_000_000: time.sleep(0.005)
with open('up.tmp', 'w') as f: f.write(str(os.getpid()))
os.rename('up.tmp', 'up')
while not os.path.exists('go'): time.sleep(0.005)
print(kept.read() == 'kept' * 20_000, flush=True)
"""
TWO = """
import os, subprocess, sys
reader = subprocess.Popen([sys.executable, '-c', sys.argv[1]], env={**os.environ, 'CKPT_TEST_POINT': sys.argv[2]})
with open('kept') as kept:
    copier = subprocess.Popen(['sleep', '1000'], pass_fds=[kept.fileno()], env={**os.environ, 'CKPT_TEST_POINT': sys.argv[3]})
with open('copier.tmp', 'w') as f: f.write(str(copier.pid))
os.rename('copier.tmp', 'copier')
reader.wait()
copier.kill()
"""


def ended_calls(text):
    """Those of strace's lines, in the order of their ends: (name, arguments). One during which another process made a line has two."""
    begun, calls = {}, []
    for line in text.splitlines():
        thread, _, what = line.partition(" ")
        what = what.strip()
        if what.endswith("<unfinished ...>"):
            begun[thread] = what.removesuffix("<unfinished ...>").rstrip()
            continue
        if resumed := re.fullmatch(r"<\.\.\. \w+ resumed>(.*)", what):
            what = begun.pop(thread, "") + resumed[1]
        if call := re.fullmatch(r"(\w+)\((.*)\) += 0", what):
            calls.append((call[1], call[2].rstrip()))
    return calls


class KeptCopies(unittest.TestCase):
    def start(self, *command):
        def prepare(work):
            with open(os.path.join(work, "kept"), "w", encoding="ascii") as f:
                f.write("kept" * 20_000)

        tree = Tree("copies", ["env", "CKPT_FILES=copies", "python3", "-c", *command], prepare)
        self.addCleanup(tree.close, False)
        tree.run()
        return tree, self.pid_in(tree, "up")

    @staticmethod
    def pid_in(tree, name):
        path = os.path.join(tree.work, name)
        wait_for(lambda: os.path.exists(path), "the program")
        with open(path, encoding="ascii") as f:
            return int(f.read())

    def comes_back(self, tree, image):
        tree.kill()
        os.unlink(os.path.join(tree.work, "kept"))
        tree.restart(image)
        with open(os.path.join(tree.work, "go"), "w", encoding="ascii"):
            pass
        self.assertEqual(tree.finish(), (0, b"True\n"), tree.said())

    def calls(self, tree, pids):
        """A checkpoint, and the calls that make things durable and give names, in their order: (name, arguments)."""
        if shutil.which("strace") is None:
            self.skipTest("no strace")
        out = os.path.join(tree.directory, "calls")
        with subprocess.Popen(["strace", "-f", "-y", "-o", out, "-e", "trace=fsync,renameat2,syncfs", *(f"-p{p}" for p in pids)],
                              stderr=subprocess.PIPE, text=True) as strace:
            try:
                for _ in pids:
                    said = strace.stderr.readline()
                    if "attached" not in said:
                        self.skipTest("strace: " + said)
                image = tree.checkpoint(pids[0])
            finally:
                strace.send_signal(signal.SIGINT)
                strace.communicate()
        with open(out, encoding="utf-8") as f:
            return image, ended_calls(f.read())

    def check_order(self, calls, saved, image):
        """The bytes of each copy ahead of its name, the names ahead of that of the checkpoint."""
        copies = [n for n, (call, what) in enumerate(calls) if call == "renameat2" and ".copy.tmp" in what]
        self.assertGreaterEqual(len(copies), 1, calls)
        bytes_durable = [n for n, (call, what) in enumerate(calls) if call == "fsync" and ".copy.tmp>" in what]
        names_durable = [n for n, (call, what) in enumerate(calls) if call == "fsync" and what.endswith(saved + ">")]
        named = [n for n, (call, what) in enumerate(calls) if call == "renameat2" and f'"{image}"' in what]
        self.assertEqual(len(named), 1, calls)
        self.assertEqual(len(bytes_durable), len(copies), calls)
        self.assertLess(max(copies), named[0], calls)
        self.assertTrue(any(max(copies) < n < named[0] for n in names_durable), calls)

    def test_are_durable(self):
        tree, reader = self.start(TWO, READER, "", "")
        image, calls = self.calls(tree, (tree.child.pid, reader, self.pid_in(tree, "copier")))
        self.check_order(calls, "job.files", os.path.basename(image))
        self.comes_back(tree, image)

    def test_of_one_process_are_durable(self):
        tree, pid = self.start(READER)
        image, calls = self.calls(tree, (pid,))
        name = os.path.basename(image)
        self.check_order(calls, name.replace(".ckpt", ".files"), name)
        self.comes_back(tree, image)

    def test_the_process_that_makes_one_ends(self):
        tree, reader = self.start(TWO, READER, "prepare.image=wait", "member.copies=wait")
        copier = self.pid_in(tree, "copier")
        waits = [os.path.join(tree.work, f"{pid:010}.waits") for pid in (reader, copier)]
        now = subprocess.Popen(  # pylint: disable=consider-using-with
            [CKPT, "now", "--json", str(tree.child.pid)], stdout=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(now.stdout.close)
        self.addCleanup(now.wait)
        self.addCleanup(now.kill)
        for name in waits:
            wait_for(lambda name=name: os.path.exists(name), "both to come to their points")
        os.kill(copier, signal.SIGKILL)
        wait_for(lambda: state_of(copier) in "Z?", "its end")
        os.unlink(waits[0])
        said = now.communicate()[0]
        self.assertEqual(now.returncode, 0, said + tree.said())
        images, = glob.glob(os.path.join(tree.images, "*.job"))
        self.assertEqual([n for n in os.listdir(os.path.join(images, "job.files")) if n.endswith(".tmp")], [])
        self.comes_back(tree, images)


adopt_orphans()
if __name__ == "__main__":
    unittest.main()
