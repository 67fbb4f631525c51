"""A Python interpreter as the program that is checkpointed, killed and brought back: each line of its input is an
expression (or a statement, after "do "), answered by its value in a line."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from stepped_program import CKPT, RESTART, Program, environment

PRELUDE = """
import ctypes, errno, fcntl, mmap, os, select, signal, socket, stat, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def call(number, *args):
    # A bare system call: its result, or the name of its error.
    libc.syscall.restype = ctypes.c_long
    r = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    return errno.errorcode[ctypes.get_errno()] if r == -1 else r
def attempt(f, *args):
    try: return f(*args)
    except OSError as e: return errno.errorcode[e.errno]
"""
LOOP = """
print('up', flush=True)
for line in sys.stdin:
    try:
        if line.startswith('do '):
            exec(line[3:].strip().replace('\\\\n', '\\n'), globals())
            answer = None
        else: answer = eval(line)
    except Exception as e: answer = repr(e)
    print(answer, flush=True)
"""

needs_root = unittest.skipIf(os.geteuid() != 0, "needs root")
NOT_RESTARTABLE = 76


class SteppedTest(unittest.TestCase):
    program_text = ""
    settings = {}

    def setUp(self):
        signal.signal(signal.SIGALRM, lambda *_: self.fail("hangs"))
        # Once more every ten seconds: what leaves a `with` of a process waits for its end.
        signal.setitimer(signal.ITIMER_REAL, 240, 10)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        self.directory = tempfile.mkdtemp(prefix="ckpt-objects-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.images = os.path.join(self.directory, "images")
        self.pid = 0

    def path(self, name):
        return os.path.join(self.directory, name)

    def start_program(self, *program, how=(), **settings):
        """One that says "up" when it is ready."""
        self.program = Program([*how, CKPT, "run", "--dir", self.images, "--", *program], **settings)
        self.addCleanup(self.program.child.kill)
        self.assertEqual(self.program.child.stdout.readline(), b"up\n")
        self.pid = self.program.child.pid

    def start(self, *how, **more):
        self.start_program("/usr/bin/python3", "-c", PRELUDE + self.program_text + LOOP, how=how, **{**self.settings, **more})
        self.do("os.chdir(%r)" % self.directory)
        return self.program

    def do(self, *steps):
        for step in steps:
            self.assertEqual(self.program.ask("do " + step), "None", step)

    def ask(self, question):
        return self.program.ask(question)

    def now(self, *options):
        """`ckpt now`: exit code and what it says as JSON."""
        done = subprocess.run([CKPT, "now", "--json", *options, str(self.pid)], capture_output=True, timeout=60, env=environment())
        return done.returncode, json.loads(done.stdout) if done.stdout.startswith(b"{") else done.stderr.decode()

    def checkpoint(self, *options):
        """Returns what the checkpoint had to say; it must be one that can be restarted."""
        code, said = self.now(*options)
        self.assertEqual(code, 0, said)
        self.assertEqual(said["restartable"], True)
        return said.get("notes", [])

    def kill_program(self):
        os.kill(self.pid, signal.SIGKILL)
        self.end()

    def end(self):
        if not self.program.child.stdin.closed:
            return self.program.end()

    def restart(self, *options, how=()):
        self.program = Program([*how, RESTART, "--json", *options, self.images])
        self.addCleanup(self.program.child.kill)
        said = self.program.said()
        self.assertTrue(said["ok"], said)
        self.addCleanup(self.end)
        self.notes = said["notes"]
        self.pid = said["outer_pid"]
        return self.program

    def come_back(self, *options, how=()):
        notes = self.checkpoint()
        self.kill_program()
        self.restart(*options, how=how)
        return notes

    def go_back(self):
        done = subprocess.run([CKPT, "back", "--trust", str(self.pid)], capture_output=True, timeout=60, env=environment(), check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def refused(self, *options):
        """A restart that must not be: its exit code and message."""
        done = subprocess.run([RESTART, *options, self.images], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env=environment())
        self.assertNotEqual(done.returncode, 0)
        return done.returncode, done.stderr.decode()

    def verify_restartable(self):
        done = subprocess.run([CKPT, "verify", "--restartable", "--json", self.images], capture_output=True, timeout=60, env=environment())
        return done.returncode, json.loads(done.stdout)[-1]

    def stays(self, question, *options):
        before = self.ask(question)
        self.assertNotIn("Error", before)
        notes = self.come_back(*options)
        self.assertEqual(self.ask(question), before)
        return notes

    def comes_back_as_job(self, program):
        """Python text of several processes, which makes the file `up` when a checkpoint may be taken, and goes on when there is a file `go`.
        Its exit code after a restart, and what ckpt-restart has said."""
        first = subprocess.Popen([CKPT, "run", "--dir", self.images, "--", "/usr/bin/python3", "-c", PRELUDE + self.program_text + program],
                                 cwd=self.directory, stdin=subprocess.DEVNULL, env=environment(), start_new_session=True)
        try:
            while not os.path.exists(self.path("up")):
                time.sleep(0.001)
            self.pid = first.pid
            self.checkpoint()
        finally:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
        with open(self.path("go"), "w"):
            pass
        again = subprocess.run([RESTART, self.images], cwd=self.directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
                               env=environment())
        return again.returncode, again.stderr.decode()
