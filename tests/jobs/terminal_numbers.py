#!/usr/bin/env python3
"""Many pseudo-terminals, whose masters several processes have: each gets its number back, but for the one that somebody
else has taken since; and that one gets no number that is another's. In a devpts of its own: other programs of the machine
take numbers too. Exit code 77: not root."""
import fcntl
import json
import os
import struct
import subprocess
import sys
import time
import unittest

TIOCGPTN = 0x80045430
MANY = r"""
import fcntl, json, os, struct, sys, time
def masters(): return [os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY) for _ in range(40)]
def number(fd): return struct.unpack('I', fcntl.ioctl(fd, 0x80045430, bytes(4)))[0]
def live(name, fds):
    for when in ('before', 'after'):
        while when == 'after' and not os.path.exists('go'): time.sleep(0.01)
        with open(f'{when}.{name}.tmp', 'w') as f: json.dump([number(fd) for fd in fds], f)
        os.rename(f'{when}.{name}.tmp', f'{when}.{name}')
common = masters()
child = os.fork()
if child == 0:
    live('child', common + masters())
    os._exit(0)
own = masters()
live('parent', common[::-1] + own[::-1])
os.waitpid(child, 0)
"""


def own_devpts():
    """This program once more, where no other has terminals."""
    if os.geteuid() != 0:
        sys.exit(77)
    mounts = "mount -t devpts -o newinstance,ptmxmode=0666 devpts /dev/pts && mount --bind /dev/pts/ptmx /dev/ptmx"
    inner = ["unshare", "--mount", "sh", "-c", f'{mounts} || exit 77; exec python3 "$@"', "sh", *sys.argv]
    sys.exit(subprocess.run(inner, env={**os.environ, "CKPT_OWN_DEVPTS": "1"}, check=False).returncode)


class TerminalNumbers(unittest.TestCase):
    def numbers(self, tree, when):
        found = {}
        deadline = time.monotonic() + job_tree.PATIENCE
        for name in ("parent", "child"):
            path = os.path.join(tree.work, f"{when}.{name}")
            while not os.path.exists(path):
                self.assertLess(time.monotonic(), deadline, f"{path}: {job_tree.processes_below()}\n{tree.said()}")
                time.sleep(0.01)
            with open(path, encoding="utf-8") as f:
                found[name] = json.load(f)
        return found

    def take(self, wanted):
        """Opens masters until one has that number."""
        while True:
            fd = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
            self.addCleanup(os.close, fd)
            if struct.unpack("I", fcntl.ioctl(fd, TIOCGPTN, bytes(4)))[0] == wanted:
                return fd

    def test_numbers(self):
        tree = job_tree.Tree("terminal_numbers", ["python3", "-c", MANY])
        self.addCleanup(tree.close, False)
        tree.run()
        before = self.numbers(tree, "before")
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        self.take(0)
        taken = before["child"].index(0)
        report = tree.restart(image)
        open(os.path.join(tree.work, "go"), "w").close()
        after = self.numbers(tree, "after")
        self.assertEqual(tree.finish()[0], 0)
        everyones = set(before["parent"] + before["child"])
        instead = after["child"][taken]
        self.assertNotIn(instead, everyones)
        for name in before:
            self.assertEqual(after[name], [instead if n == 0 else n for n in before[name]])
        self.assertEqual([n for n in report["notes"] if "is in use" in n],
                         [f"/dev/pts/0 of the program is in use: its terminal is /dev/pts/{instead} now"])


if __name__ == "__main__":
    if os.environ.get("CKPT_OWN_DEVPTS") != "1":
        own_devpts()
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import job_tree

    job_tree.adopt_orphans()
    unittest.main(verbosity=2)
