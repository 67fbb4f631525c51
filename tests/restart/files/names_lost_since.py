#!/usr/bin/env python3
"""Names that a program takes away between a checkpoint and its end, of what it had open then: by rename(2), unlink(2), rmdir(2).
  names_lost_since.py [NamesLostSince.test_...]
"""
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART = (os.path.join(BUILD, "bin", n) for n in ("ckpt", "ckpt-restart"))

# Writes a file under one name, and gives it its final one: when it is told to, and once more after a restart.
RENAMES = r"""
import os, time
f = open('new', 'w')
f.write('first\n'); f.flush()
print('up', flush=True)
while not os.path.exists('later') and not os.path.exists('go'): time.sleep(0.002)
f.write('second\n'); f.flush()
os.rename('new', 'final')
open('renamed', 'w').close()
while not os.path.exists('go'): time.sleep(0.002)
print(sorted(n for n in os.listdir() if n in ('new', 'final')), repr(open('final').read()), os.fstat(f.fileno()).st_ino == os.stat('final').st_ino, flush=True)
"""

# Saves again and again, as editors and daemons do: a new file, renamed over the old one.
SAVES = r"""
import os, time
def save(n, wait):
    with open('new', 'w') as f:
        f.write(f'{n}\n')
        wait()
    os.rename('new', 'final')
    print(n, repr(open('final').read()), flush=True)
def checkpointed():
    print('up', flush=True)
    while not os.path.exists('later') and not os.path.exists('go'): time.sleep(0.002)
save(1, checkpointed)
if not os.path.exists('go'):
    f = open('new', 'w')
    print('a file of later', file=f, flush=True)
    open('saved', 'w').close()
    time.sleep(1000)
save(2, lambda: None)
"""

DIRECTORY = r"""
import os, stat, time
os.mkdir('room', 0o751)
open('room/inside', 'w').close()
d = os.open('room', os.O_RDONLY | os.O_DIRECTORY)
print('up', flush=True)
while not os.path.exists('later') and not os.path.exists('go'): time.sleep(0.002)
try: os.unlink('inside', dir_fd=d)
except FileNotFoundError: print('gone')
os.rmdir('room')
open('removed', 'w').close()
while not os.path.exists('go'): time.sleep(0.002)
print(oct(stat.S_IMODE(os.fstat(d).st_mode)), os.path.exists('room'), flush=True)
"""

# Written and closed, and removed when somebody else would have read it.
TEMPORARY = r"""
import os, time
name = os.path.join(os.environ['TMPDIR'], 'text.s')
with open(name, 'w') as f: f.write('assembler')
print('up', flush=True)
while not os.path.exists('later') and not os.path.exists('go'): time.sleep(0.002)
try: print(open(name).read(), flush=True)
except OSError as e: print(e, flush=True)
os.unlink(name)
open('removed', 'w').close()
while not os.path.exists('go'): time.sleep(0.002)
"""

# A file of another moment is open at each moment, so some are opened while a checkpoint is prepared.
CHURN = r"""
import os, time
print('up', flush=True)
n = 0
while not os.path.exists('go'):
    n += 1
    fd = os.open(f'churn{n}', os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, b'%d' % n)
    time.sleep(0.0005)
    os.unlink(f'churn{n}')
    if os.pread(fd, 20, 0) != b'%d' % n: print('other bytes', flush=True)
    os.close(fd)
print('end', flush=True)
"""


def environment():
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    clean["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
    return clean


class NamesLostSince(unittest.TestCase):
    def setUp(self):
        # On a disk: /tmp may be in memory.
        self.directory = tempfile.mkdtemp(prefix="ckpt-names-", dir=BUILD)
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def output(self):
        with open(self.path("out")) as out:
            return out.read()

    def killed(self, program, wait_for=None, **more):
        """Starts it, checkpoints it, tells it to go on until that file is there, kills it."""
        with open(self.path("out"), "w") as out:
            child = subprocess.Popen([CKPT, "run", "--dir", self.path("images"), "--", "/usr/bin/python3", "-c", program], stdin=subprocess.DEVNULL,
                                     stdout=out, stderr=subprocess.STDOUT, cwd=self.directory, env={**environment(), **more})
        try:
            end = time.monotonic() + 60
            while child.poll() is None and "up" not in self.output():
                self.assertLess(time.monotonic(), end)
                time.sleep(0.005)
            taken = subprocess.run([CKPT, "now", str(child.pid)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
                                   check=False)
            self.assertEqual(taken.returncode, 0, taken.stdout)
            open(self.path("later"), "w").close()
            while wait_for is not None and not os.path.exists(self.path(wait_for)):
                self.assertLess(time.monotonic(), end)
                time.sleep(0.002)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()

    def restart(self):
        open(self.path("go"), "w").close()
        done = subprocess.run([RESTART, self.path("images")], cwd=self.directory, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + self.output())
        return done.stdout

    def test_renamed(self):
        self.killed(RENAMES, "renamed")
        with open(self.path("final")) as f:
            self.assertEqual(f.read(), "first\nsecond\n")
        said = self.restart()
        self.assertIn("stays as it is", said)
        self.assertEqual(self.output(), "up\n['final'] 'first\\nsecond\\n' True\n")

    def test_new_name_keeps_its_bytes(self):
        """A program that does not come as far as its rename must not have cost the file that was finished."""
        self.killed(RENAMES, "renamed")
        os.unlink(self.path("later"))
        held = subprocess.Popen([RESTART, self.path("images")], cwd=self.directory, env=environment(), stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + 60
            while not os.path.exists(self.path("new")) or os.path.getsize(self.path("new")) != len("first\n"):  # cut back
                self.assertLess(time.monotonic(), end)
                time.sleep(0.002)
            with open(self.path("final")) as f:
                self.assertEqual(f.read(), "first\nsecond\n")
        finally:
            open(self.path("go"), "w").close()
            held.wait(60)

    def test_renamed_and_another_one_in_its_place(self):
        self.killed(SAVES, "saved")
        said = self.restart()
        self.assertIn("new is another file than at the checkpoint: the one that it was has its name again", said)
        self.assertEqual(self.output(), "up\n1 '1\\n'\n2 '2\\n'\n")
        aside = [n for n in os.listdir(self.path("images")) if "replaced" in n]
        self.assertEqual(len(aside), 1)
        with open(os.path.join(self.path("images"), aside[0])) as f:
            self.assertEqual(f.read(), "a file of later\n")

    def test_directory(self):
        self.killed(DIRECTORY, "removed")
        self.restart()
        self.assertEqual(self.output(), "up\ngone\n0o751 False\n")

    def test_temporary(self):
        os.mkdir(self.path("tmp"))
        with open(self.path("tmp/older"), "w") as f:
            f.write("of another program")
        # The kernel tells when a process began in ticks of 10 ms: this one is older.
        while time.time_ns() - os.stat(self.path("tmp/older")).st_ctime_ns < 20_000_000:
            time.sleep(0.005)
        self.killed(TEMPORARY, "removed", TMPDIR=self.path("tmp"))
        os.unlink(self.path("tmp/older"))
        self.assertIn("tmp/text.s was gone: it is there again", self.restart())
        self.assertEqual(self.output(), "up\nassembler\n")
        self.assertEqual(os.listdir(self.path("tmp")), [])

    def test_opened_while_it_is_prepared(self):
        for _ in range(6):
            self.killed(CHURN)
            self.restart()
            self.assertEqual(self.output(), "up\nend\n")
            for name in ("images", "go", "later"):
                (shutil.rmtree if name == "images" else os.unlink)(self.path(name))


if __name__ == "__main__":
    unittest.main()
