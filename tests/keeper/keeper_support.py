"""A keeper, a program that counts in memory, and what tests do with them."""
import contextlib
import glob
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART = f"{BUILD}/bin/ckpt", f"{BUILD}/bin/ckpt-restart"
LIMIT = 120  # seconds, for each step
NOT_FOUND, UNAVAILABLE, IO, PERMISSION, USAGE = 66, 69, 74, 77, 64

# Each block holds the round in which it was written; `check` fails if some block is of no round that can be.
PROGRAM = r"""
import os, sys, time
path, megabytes = sys.argv[1], int(sys.argv[2])
memory = [bytearray(os.urandom(1 << 20)) for _ in range(megabytes)]
rounds, out = 0, os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
while True:
    rounds += 1
    for block in memory[:4]:
        block[:8] = rounds.to_bytes(8, "little")
    assert len({bytes(block[:8]) for block in memory[:4]}) == 1
    os.pwrite(out, b"%20d" % rounds, 0)
    time.sleep(0.002)
"""


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    env["CKPT_STOP_TIMEOUT"] = "30s"
    env.update(more)
    return env


def descendants(of):
    """Parents before children."""
    children = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as f:
                parent = int(f.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        children.setdefault(parent, []).append(int(entry))
    found = [of]
    for pid in found:
        found += sorted(children.get(pid, []))
    return found[1:]


class KeeperBase(unittest.TestCase):
    number = 0

    def setUp(self):
        KeeperBase.number += 1
        self.keeper = f"test-{os.getpid()}-{KeeperBase.number}"
        self.where = f"keeper:{self.keeper}"
        self.directory = tempfile.mkdtemp(prefix="ckpt-keeper-test-")
        self.started = []
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.addCleanup(self.end_all)

    def end_all(self):
        for program in self.started:
            if program.poll() is None:
                self.kill(program)
        self.ckpt("keeper", "stop", self.keeper)
        for left in glob.glob(f"/tmp/ckpt-keeper-*/{self.keeper}.*"):
            os.unlink(left)

    def ckpt(self, *words, variables=None, **more):
        return subprocess.run([CKPT, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=LIMIT, env=environment(**(variables or {})), check=False, **more)

    def fine(self, *words, **more):
        done = self.ckpt(*words, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def refused(self, code, words, *arguments, **more):
        done = self.ckpt(*arguments, **more)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        self.assertRegex(done.stderr, r"\Ackpt: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, done.stderr)

    def start_keeper(self, memory="512M"):
        self.fine("keeper", "start", self.keeper, "--memory", memory, "--untouched")
        return self.status()["pid"]

    def end_keeper(self, pid):
        """Killed, and gone."""
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + LIMIT
        while self.lives(pid):
            self.assertLess(time.monotonic(), deadline, "the killed keeper does not end")
            time.sleep(0.002)

    def lives(self, pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as f:
                return f.read().rpartition(")")[2].split()[0] not in "ZX"
        except (FileNotFoundError, ProcessLookupError):  # the latter between open and read
            return False

    def status(self):
        return json.loads(self.fine("keeper", "status", "--json", self.keeper))

    def spawn(self, words, **more):
        program = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, **more)
        self.started.append(program)
        return program

    def start(self, megabytes=8, options=(), more=None, program=None, name="count", **others):
        """A program that has begun to count."""
        path = f"{self.directory}/{name}"
        # One that every user may run.
        python = "/usr/bin/python3" if "preexec_fn" in others else sys.executable
        words = program or [python, "-c", PROGRAM, path, str(megabytes)]
        started = self.spawn([CKPT, "run", "--to", self.where, *options, "--", *words], env=environment(**(more or {})),
                             cwd=self.directory, **others)
        self.moves(name)
        return started

    def said(self, name="count"):
        try:
            with open(f"{self.directory}/{name}", encoding="ascii") as f:
                return int(f.read() or 0)
        except FileNotFoundError:
            return 0

    def moves(self, name="count"):
        """Waits until it has counted on from here."""
        begin, deadline = self.said(name), time.monotonic() + LIMIT
        while self.said(name) <= begin:
            self.assertLess(time.monotonic(), deadline, "the program does not count")
            time.sleep(0.002)

    def now(self, program):
        return json.loads(self.fine("now", "--json", program.pid))

    def kill(self, program):
        """And all that it has started."""
        for pid in [program.pid] + descendants(program.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        program.wait()

    def restart(self, what=None, at_least=0, name="count"):
        with open(f"{self.directory}/{name}", "w", encoding="ascii") as f:
            f.write(f"{0:20}")
        # The program has what it inherits of it open: the next restart needs this one's as it is.
        self.restarts = getattr(self, "restarts", 0) + 1
        log = open(f"{self.directory}/restart.{self.restarts}", "w+", encoding="utf-8")  # pylint: disable=consider-using-with
        self.addCleanup(log.close)
        back = self.spawn([RESTART, what or self.where], env=environment(), cwd=self.directory, stderr=log)
        deadline = time.monotonic() + LIMIT
        while self.said(name) == 0:
            if back.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                self.fail(f"it does not come back: {back.poll()} {log.read()}")
            time.sleep(0.002)
        self.moves(name)  # the restart itself puts back what the file held
        self.assertGreaterEqual(self.said(name), at_least)
        return back

    def child_of(self, process):
        """The first process of what was brought back: below ckpt-restart, and the init of its namespace."""
        for pid in descendants(process.pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/environ", "rb") as f:
                if b"CKPT_JOB=" in f.read():
                    return pid
        self.fail("nothing was brought back")

    def now_of_child(self, back):
        return json.loads(self.fine("now", "--json", self.child_of(back)))

    def links(self, pid):
        return [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
